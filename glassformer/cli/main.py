"""The program ``glassformer``. Verbs import what they need when they run, so that ``--help`` is quick."""

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

import glassformer
from glassformer.cli.convert import convert
from glassformer.cli.demo import demo
from glassformer.cli.info import info

app = typer.Typer(
    help="The Transformer you can see through.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(info)
app.command()(convert)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"glassformer {glassformer.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # noqa: ARG001  # its callback does the work
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The Transformer you can see through."""
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal that cannot show a character gets "?", not a crash
        sys.stdout.reconfigure(errors="replace")
