"""``glassformer env``: what a bug report should say about the machine and its programs."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.table import Table

import glassformer
from glassformer.cli.options import AsJson
from glassformer.cli.outputs import people, print_json
from glassformer.cli.verbs import verb
from glassformer.inspect.account.measure import main_memory, processor

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "huggingface_hub", "gguf", "jinja2")


@verb
def env(as_json: AsJson = False) -> None:
    """Versions and hardware, for bug reports."""
    found = _facts()
    if as_json:
        print_json(found)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in found.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        table.add_row(name, "none" if shown in (None, "") else str(shown))
    people().print(table)


def _facts() -> dict[str, Any]:
    import torch

    cuda, size = torch.cuda.is_available(), main_memory()
    return {
        "glassformer": glassformer.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": None if size is None else round(size / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] if cuda else [],
        "cuda": torch.version.cuda,
        "mps": torch.backends.mps.is_available(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
