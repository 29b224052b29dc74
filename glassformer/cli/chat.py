"""``glassformer chat``: a conversation with a model that was trained for them."""

import re
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from glassformer.cli.errors import InputError, in_words
from glassformer.cli.options import AsJson, Computing, Loading, ModelName, Searching, Truncate, computing_verb, side
from glassformer.cli.outputs import note, people, print_json, visible

if TYPE_CHECKING:
    from glassformer.generation.text import Text
    from glassformer.hub import Loaded

RESET, EXIT, HELP = "/reset", "/exit", "/help"
COMMANDS = {RESET: "begins anew", EXIT: "or Ctrl-D ends", HELP: "shows this"}
_COMMAND = re.compile(r"/[A-Za-z]+")
TOLD = ", ".join(f"{command} {does}" for command, does in COMMANDS.items())


@dataclass(frozen=True, kw_only=True)
class Talking:
    """How the conversation goes."""

    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model is told before the conversation.")
    ] = None
    stream: Annotated[bool, typer.Option(help="Show replies as they are written.")] = True
    truncate: Truncate = None
    as_json: AsJson = False

    @property
    def how(self) -> str:
        """In which form replies are shown."""
        return "json" if self.as_json else "stream" if self.stream else "whole"

    @property
    def begin(self) -> list[dict[str, str]]:
        """The messages before the first line."""
        return [] if self.system is None else [{"role": "system", "content": self.system}]


@computing_verb
def chat(model: ModelName, talking: Talking, loading: Loading, searching: Searching, computing: Computing) -> None:
    """Talk with MODEL, line by line. /reset begins anew, /exit or Ctrl-D ends, Ctrl-C ends a reply; /help."""
    from glassformer.generation.defaults import notes_for

    if sys.stdin is None:
        raise InputError("standard input is closed, so that nothing can be said to the model.")
    side(talking.truncate)
    loaded = loading.load(model)
    if loaded.tokenizer.chat_template is None:
        raise ValueError(f"{model} has no chat template, so it is no chat model; glassformer generate continues texts.")
    options = searching.given()
    for remark in notes_for(loaded, **options):
        note(remark)
    options |= {**computing.given(loading), "truncate": side(talking.truncate)}
    _check_settings(loaded, options, talking.how)
    _talk(loaded, options, talking)


def _talk(loaded: "Loaded", options: dict[str, Any], talking: Talking) -> None:
    messages, console = talking.begin, people()
    for line in _lines(console, talking.as_json):
        if line == RESET:
            messages = talking.begin
            if not talking.as_json:
                console.print("[dim]The conversation begins anew.[/]")
            continue
        if _COMMAND.fullmatch(line):  # never for the model
            note(TOLD if line == HELP else f"{line} is no command: {TOLD}.")
            continue
        messages.append({"role": "user", "content": line})
        try:
            text = _reply(loaded, messages, options, console, talking.how)
        except ValueError as error:
            if not sys.stdin.isatty():
                raise
            typer.echo(f"error: {in_words(error)} ({RESET} begins anew.)", err=True)
            text = None
        if text is not None:
            messages.append({"role": "assistant", "content": text})
        else:  # the conversation goes on as if the line had not been said
            messages.pop()


def _check_settings(loaded: "Loaded", options: dict[str, Any], how: str) -> None:
    """Raise for settings that no reply can be written with, before anything is said."""
    from glassformer.generation.defaults import settings_for
    from glassformer.generation.text import API_OPTIONS, REPLY_LENGTH, generate_text

    generate_text(loaded, [], **options)  # the names of tokens
    of_tokens = ("eos", "suppress", "bad_words", "forced_first", "forced_last", "logit_bias", "truncate", *API_OPTIONS)
    rest = {name: value for name, value in options.items() if name not in of_tokens}
    chosen, _ = settings_for(loaded, default_length=REPLY_LENGTH, **rest)
    if how == "stream" and (chosen.samples > 1 or chosen.beam_size > 1):
        raise InputError(
            "replies are shown as they are written, which beams and several samples cannot be; say --no-stream."
        )


def _lines(console: Console, as_json: bool) -> Iterator[str]:
    """What the user says, until the end of the input or /exit; empty lines are passed over."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with suppress(ImportError):  # not on every system
            import readline  # noqa: F401  # gives input() a line that can be edited
        if not as_json:
            console.print(f"[dim]{TOLD}.[/]")
    for number in count(1):
        try:
            line = input("> ") if is_terminal else _next_line(number)
        except EOFError:
            if is_terminal:
                console.print()
            return
        if line.strip() == EXIT:
            return
        if line.strip():
            yield line.strip()


def _next_line(number: int) -> str:
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"line {number} of standard input is not UTF-8; convert it, for instance with iconv."
        ) from None


def _remembered(pieces: Generator[str, None, "Text"], said: list[str]) -> Generator[str, None, "Text"]:
    """The same pieces; what was said is known also of a reply that is broken off."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return end.value
        said.append(piece)
        yield piece


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[None]:
    """On a terminal Ctrl-C ends the reply, not the conversation."""
    try:
        yield
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise


def _reply(
    loaded: "Loaded", messages: list[dict[str, str]], options: dict[str, Any], console: Console, how: str
) -> str | None:
    """Let the model reply and print it; None where Ctrl-C came before its first word."""
    from glassformer.cli.texts import show_pieces
    from glassformer.generation.text import reply, stream_reply

    if how == "stream":
        said: list[str] = []
        whole = None
        with closing(stream_reply(loaded, messages, **options)) as pieces, _stopped_by_ctrl_c():
            whole = show_pieces(_remembered(pieces, said), None).text
        console.print("\n" if sys.stdout.isatty() else "")
        return "".join(said) or whole
    found = None
    with _stopped_by_ctrl_c():
        found = reply(loaded, messages, **options)
    if found is None:
        return None
    if how == "json":
        written = found.written
        counts = {"prompt_tokens": found.prompt_tokens, "new_tokens": len(written.ids)}
        print_json({"role": "assistant", "content": found.text, "ended": written.ended, **counts})
    else:
        console.print(visible(found.text), markup=False)
    return found.text
