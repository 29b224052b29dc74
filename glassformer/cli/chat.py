"""``glassformer chat``: a conversation with a model that was trained for them."""

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from glassformer.cli.options import AsJson, Computing, Loading, ModelName, Searching
from glassformer.cli.outputs import note, people, print_json, visible
from glassformer.cli.verbs import verb

if TYPE_CHECKING:
    from glassformer.hub import Loaded

RESET, EXIT = "/reset", "/exit"


@verb
def chat(
    model: ModelName,
    loading: Loading,
    searching: Searching,
    computing: Computing,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    stream: Annotated[bool, typer.Option(help="Show replies as they are written.")] = True,
    as_json: AsJson = False,
) -> None:
    """Talk with MODEL, line by line. /reset begins anew, /exit or Ctrl-D ends."""
    from glassformer.generate.defaults import notes_for

    loaded = loading.load(model)
    if loaded.tokenizer.chat_template is None:
        raise ValueError(f"{model} has no chat template, so it is no chat model; glassformer generate continues texts.")
    options = searching.given()
    for text in notes_for(loaded, **options):
        note(text)
    options |= computing.given(loading)
    begin = [] if system is None else [{"role": "system", "content": system}]
    messages = list(begin)
    console = people()
    for line in _lines(console, as_json):
        if line == RESET:
            messages = list(begin)
            if not as_json:
                console.print("[dim]The conversation begins anew.[/]")
            continue
        messages.append({"role": "user", "content": line})
        try:
            text = _reply(loaded, messages, options, console, "json" if as_json else "stream" if stream else "whole")
        except ValueError as error:
            if not sys.stdin.isatty():
                raise
            messages.pop()
            typer.echo(f"error: {error} ({RESET} begins anew.)", err=True)
            continue
        messages.append({"role": "assistant", "content": text})


def _lines(console: Console, as_json: bool) -> Iterator[str]:
    """What the user says, until the end of the input or /exit; empty lines are passed over."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with suppress(ImportError):  # not on every system
            import readline  # noqa: F401  # gives input() a line that can be edited
        if not as_json:
            console.print(f"[dim]{RESET} begins anew, {EXIT} or Ctrl-D ends.[/]")
    while True:
        try:
            line = input("> ") if is_terminal else _next_line()
        except EOFError:
            if is_terminal:
                console.print()
            return
        if line.strip() == EXIT:
            return
        if line.strip():
            yield line.strip()


def _next_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _reply(
    loaded: "Loaded", messages: list[dict[str, str]], options: dict[str, Any], console: Console, how: str
) -> str:
    from glassformer.cli.texts import show_pieces
    from glassformer.generate.chat import reply, stream_reply

    if how == "stream":
        with closing(stream_reply(loaded, messages, **options)) as pieces:
            text = show_pieces(pieces, None).text
        console.print("\n" if sys.stdout.isatty() else "")
        return text
    found = reply(loaded, messages, **options)
    if how == "json":
        written = found.written
        counts = {"prompt_tokens": found.prompt_tokens, "new_tokens": len(written.ids)}
        print_json({"role": "assistant", "content": found.text, "ended": written.ended, **counts})
    else:
        console.print(visible(found.text), markup=False)
    return found.text
