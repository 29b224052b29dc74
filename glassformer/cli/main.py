"""The program ``glassformer``. Verbs import what they need when they run, so that ``--help`` is quick."""

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

import glassformer
from glassformer.cli.account import account
from glassformer.cli.chat import chat
from glassformer.cli.convert import convert, download
from glassformer.cli.demo import demo
from glassformer.cli.env import env
from glassformer.cli.info import info
from glassformer.cli.judge import answer, classify, fill, tag
from glassformer.cli.measure import embed, score
from glassformer.cli.tokenizer import tokenizer
from glassformer.cli.train import compare, evaluate, train
from glassformer.cli.write import generate, summarise, task, translate

app = typer.Typer(
    help="The Transformer you can see through.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (demo, info, account, convert, download):
    app.command(rich_help_panel="Models")(verb)
for verb in (train, evaluate, compare):
    app.command(rich_help_panel="Training")(verb)
app.add_typer(tokenizer, name="tokenizer", rich_help_panel="Training")
for verb in (generate, translate, summarise, task, chat):
    app.command(rich_help_panel="Writing")(verb)
for verb in (fill, classify, tag, answer, score, embed):
    app.command(rich_help_panel="Reading")(verb)
app.command(rich_help_panel="This program")(env)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"glassformer {glassformer.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[  # noqa: ARG001  # its callback does the work
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The Transformer you can see through."""
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal that cannot show a character gets "?", not a crash
        sys.stdout.reconfigure(errors="replace")
