"""What a measurement was made on: printed with every one of them."""

import os
import platform

import torch

from glassformer.inspect.account.measure import processor


def describe() -> str:
    """Processor, threads and versions in one line."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads; {versions}"
