"""What a measurement was made on: printed with every one of them."""

import os
import platform
from pathlib import Path

import torch


def describe() -> str:
    """Processor, threads and versions in one line."""
    names = [line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{processor}, {os.cpu_count()} cores, {torch.get_num_threads()} threads; {versions}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
