"""The program ``glassformer``. Commands import torch only when they run, so that ``--help`` is fast."""

import atexit
import gc
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from io import BufferedWriter, RawIOBase, TextIOWrapper
from typing import Annotated, Any

import typer
from rich.table import Table

import glassformer
from glassformer.cli.account import account
from glassformer.cli.chat import chat
from glassformer.cli.console import print_json, print_table
from glassformer.cli.demo import demo
from glassformer.cli.generate import generate, summarise, task, translate
from glassformer.cli.models import convert, download, info, models
from glassformer.cli.options import AsJson, Command, CommandGroup, as_command
from glassformer.cli.tasks import answer, classify, embed, fill, score, tag
from glassformer.cli.tokenizer import tokenizer
from glassformer.cli.train import compare, evaluate, train
from glassformer.cli.view import view
from glassformer.inspect.account.measure import main_memory, processor

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "huggingface_hub", "gguf", "jinja2")


@as_command
def env(as_json: AsJson = False) -> None:
    """Print versions and hardware, for bug reports."""
    environment = _environment()
    if as_json:
        print_json(environment)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in environment.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        table.add_row(name, "none" if shown in (None, "") else str(shown))
    print_table(table)


def _environment() -> dict[str, Any]:
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


app = typer.Typer(
    cls=CommandGroup,
    help="The Transformer you can see through.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, models, info, view, account, convert, download):
    app.command(cls=Command, rich_help_panel="Models")(command)
for command in (train, evaluate, compare):
    app.command(cls=Command, rich_help_panel="Training")(command)
app.add_typer(tokenizer, name="tokenizer", rich_help_panel="Training")
for command in (generate, translate, summarise, task, chat):
    app.command(cls=Command, rich_help_panel="Generation")(command)
for command in (fill, classify, tag, answer, score, embed):
    app.command(cls=Command, rich_help_panel="Tasks on texts")(command)
app.command(cls=Command, rich_help_panel="Environment")(env)


def _print_version(requested: bool) -> bool:
    if requested:
        typer.echo(f"glassformer {glassformer.__version__}")
        raise typer.Exit
    return requested


@app.callback()
def _root(
    version: Annotated[  # noqa: ARG001  # its callback does the work
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The Transformer you can see through."""
    atexit.register(gc.freeze)  # a last collection of all that torch holds takes half a second
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal that cannot show a character gets "?", not a crash
        sys.stdout.reconfigure(errors="replace")
        if isinstance(sys.stdout.buffer, RawIOBase):  # PYTHONUNBUFFERED: a text written in part would pass for whole
            whole = BufferedWriter(sys.stdout.buffer)
            sys.stdout = TextIOWrapper(whole, sys.stdout.encoding, "replace", line_buffering=True)
