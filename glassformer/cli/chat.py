"""``glassformer chat``: a conversation with a chat model."""

import re
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from glassformer.cli.console import note, print_json, stdout_console, visible
from glassformer.cli.errors import InputError, message
from glassformer.cli.generate import print_pieces
from glassformer.cli.options import (
    AsJson,
    ComputeOptions,
    GenerationKeywords,
    LoadingOptions,
    ModelName,
    Truncate,
    computing_command,
    setting,
)

if TYPE_CHECKING:
    from glassformer.generation.text import Text
    from glassformer.hub import Loaded

RESET, EXIT, HELP = "/reset", "/exit", "/help"
COMMANDS = {RESET: "starts a new conversation", EXIT: "or Ctrl-D ends it", HELP: "prints this"}
_COMMAND = re.compile(r"/[A-Za-z]+")
USAGE = ", ".join(f"{command} {does}" for command, does in COMMANDS.items())


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """How the conversation starts and how replies are printed.

    Args:
        system: the system message.
        stream: print replies as they are generated.
    """

    system: str | None = setting(None, metavar="TEXT")
    stream: bool = setting(True, flags=["--stream/--no-stream"])
    truncate: Truncate = None
    as_json: AsJson = False

    @property
    def form(self) -> str:
        """How replies are printed."""
        return "json" if self.as_json else "stream" if self.stream else "whole"

    @property
    def first_messages(self) -> list[dict[str, str]]:
        """The messages before the first line of the user."""
        return [] if self.system is None else [{"role": "system", "content": self.system}]


@computing_command
def chat(
    model: ModelName,
    conversation: Conversation,
    loading: LoadingOptions,
    generation: GenerationKeywords,
    computing: ComputeOptions,
) -> None:
    """Chat with a model, line by line.

    /reset starts a new conversation, /exit or Ctrl-D ends it, Ctrl-C stops a reply, /help lists these commands.
    """
    from glassformer.generation.defaults import notes_for

    if sys.stdin is None:
        raise InputError("standard input is closed, so there is no line to reply to.")
    loaded = loading.load(model)
    if loaded.tokenizer.chat_template is None:
        raise ValueError(
            f"{model} has no chat template, so it is no chat model; continue texts with glassformer generate."
        )
    options: dict[str, Any] = dict(generation)
    for text in notes_for(loaded, **options):
        note(text)
    options |= {**computing.options(loading), "truncate": conversation.truncate}
    _check_settings(loaded, options, conversation.form)
    _converse(loaded, options, conversation)


def _converse(loaded: "Loaded", options: dict[str, Any], conversation: Conversation) -> None:
    messages, console = conversation.first_messages, stdout_console()
    for line in _lines(console, conversation.as_json):
        if line == RESET:
            messages = conversation.first_messages
            if not conversation.as_json:
                console.print("[dim]New conversation.[/]")
            continue
        if _COMMAND.fullmatch(line):  # never sent to the model
            note(USAGE if line == HELP else f"{line} is no command: {USAGE}.")
            continue
        messages.append({"role": "user", "content": line})
        try:
            text = _reply(loaded, messages, options, console, conversation.form)
        except ValueError as error:
            if not sys.stdin.isatty():
                raise
            typer.echo(f"error: {message(error)} ({RESET} starts a new conversation.)", err=True)
            text = None
        if text is not None:
            messages.append({"role": "assistant", "content": text})
        else:  # the conversation continues as if the line had not been sent
            messages.pop()


def _check_settings(loaded: "Loaded", options: dict[str, Any], form: str) -> None:
    """Raise for settings that no reply can be generated with, before the first line is read."""
    from glassformer.generation.defaults import settings_for
    from glassformer.generation.text import API_OPTIONS, REPLY_LENGTH, generate_text

    generate_text(loaded, [], **options)  # the names of tokens
    tokens = (
        "eos",
        "suppress",
        "bad_words",
        "forced_first",
        "forced_last",
        "logit_bias",
        "truncate",
        *API_OPTIONS,
    )
    rest = {name: value for name, value in options.items() if name not in tokens}
    chosen, _ = settings_for(loaded, default_length=REPLY_LENGTH, **rest)
    if form == "stream" and (chosen.samples > 1 or chosen.beam_size > 1):
        raise InputError("replies are streamed, which beam search and several samples do not allow; add --no-stream.")


def _lines(console: Console, as_json: bool) -> Iterator[str]:
    """Yield the lines of the user, until the end of the input or /exit; empty lines are skipped."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with suppress(ImportError):  # not on every system
            import readline  # noqa: F401  # gives input() a line that can be edited
        if not as_json:
            console.print(f"[dim]{USAGE}.[/]")
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


def _collected(pieces: Generator[str, None, "Text"], collected: list[str]) -> Generator[str, None, "Text"]:
    """Yield the same pieces, also appended to a list, which survives an interrupted reply."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return end.value
        collected.append(piece)
        yield piece


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[None]:
    """On a terminal, let Ctrl-C stop the reply and not the conversation."""
    try:
        yield
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise


def _reply(
    loaded: "Loaded", messages: list[dict[str, str]], options: dict[str, Any], console: Console, form: str
) -> str | None:
    """Generate and print a reply; None if Ctrl-C came before its first token."""
    from glassformer.generation.text import reply, stream_reply

    if form == "stream":
        printed: list[str] = []
        whole = None
        with closing(stream_reply(loaded, messages, **options)) as pieces, _stopped_by_ctrl_c():
            whole = print_pieces(_collected(pieces, printed), None).text
        console.print("\n" if sys.stdout.isatty() else "")
        return "".join(printed) or whole
    answer = None
    with _stopped_by_ctrl_c():
        answer = reply(loaded, messages, **options)
    if answer is None:
        return None
    if form == "json":
        counts = {"prompt_tokens": answer.prompt_tokens, "new_tokens": len(answer.written.ids)}
        print_json({"role": "assistant", "content": answer.text, "ended": answer.written.ended, **counts})
    else:
        console.print(visible(answer.text), markup=False)
    return answer.text
