"""Printing texts that a model writes: at the end, piece by piece, or with every step of the search in a file."""

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text as Styled

from glassformer.cli.errors import counting
from glassformer.cli.outputs import (
    bar,
    note,
    on_terminal,
    people,
    percent,
    print_computed,
    rounded,
    somebody_sees_notes,
    visible,
)
from glassformer.generation.prompts import fit_prompt, read_prompt
from glassformer.generation.text import Text, generate_text, stream_text
from glassformer.hub import Loaded
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.visible import counted

if TYPE_CHECKING:
    from glassformer.cli.write import Job
    from glassformer.generation.prompts import PromptInput

SLICE = 8  # batches between two prints: enough for prompts of one length to be found

WHY = {
    "eos": "ended by itself",
    "stop": "ended at a stop string",
    "length": "cut off at the most new tokens",
    "context": "cut off where the model's positions end",
}


def print_texts(
    loaded: Loaded, given: Sequence["PromptInput"], shown: Sequence[str], options: dict[str, Any], job: "Job"
) -> None:
    """Write some prompts after the other, and print each as soon as those before it are there."""
    goes_on, recorded = _goes_on(loaded, given, shown), []
    step = SLICE * job.computing.batch_size
    if len(given) > step and options["truncate"] is None:
        with counting(0):  # a prompt that does not fit is found before an hour's work, not after it
            for number, one in enumerate(given):
                fit_prompt(loaded, read_prompt(loaded, one, number), None, 0)
    for first in range(0, len(given), step):
        part = given[first : first + step]
        with bar("writing", len(given), first) as progress, counting(first):
            found = generate_text(loaded, part, batch_size=job.computing.batch_size, progress=progress, **options)
        for number, texts in enumerate(found, start=first):
            bare = texts if goes_on else [replace(text, text=text.text.removeprefix(" ")) for text in texts]
            _print_prompt(number, bare, shown, goes_on, job, loaded.tokenizer)
        if job.showing.record is not None:
            recorded += found
    if job.showing.record is not None:
        _save_record(job.showing.record, shown, recorded, loaded.tokenizer)


def _print_prompt(
    number: int, texts: Sequence[Text], shown: Sequence[str], goes_on: bool, job: "Job", tokenizer: Tokenizer
) -> None:
    """All that was written for one prompt."""
    console = people()
    for place, text in enumerate(texts):
        if job.showing.as_json:
            print_computed(_row(number, place, shown[number], text, tokenizer))
            continue
        if on_terminal() and (len(shown) > 1 or len(texts) > 1):
            _heading(console, (number, len(shown)), (place, len(texts)), text)
        one_per_line = not (goes_on or on_terminal() or len(shown) == len(texts) == 1)
        words = visible(text.text.replace("\n", " ") if one_per_line else text.text)
        console.print(Styled.assemble(_prompt(shown[number], goes_on), words))
        if any(text.written.alternatives):
            console.print(_alternatives(text, tokenizer))
        if len(shown) == len(texts) == 1:
            _note_end(text)


def _note_end(text: Text) -> None:
    """Say, where a person sees it, what a text does not show: that it was cut off, or that its prompt was."""
    if not somebody_sees_notes():
        return
    if text.written.ended == "length":
        note(f"stopped after {counted(len(text.written.ids), 'token')} (--max-new-tokens).")
    elif text.written.ended == "context":
        note(f"stopped after {counted(len(text.written.ids), 'token')}, where the model's positions end.")
    if text.cut_tokens:
        note(f"cut off from the text: {counted(text.cut_tokens, 'token')} (--truncate).")


def stream_texts(
    loaded: Loaded, given: Sequence["PromptInput"], shown: Sequence[str], options: dict[str, Any], job: "Job"
) -> None:
    """Write one text after the other and print each piece as it comes."""
    console, goes_on = people(), _goes_on(loaded, given, shown)
    for number, (one, prompt) in enumerate(zip(given, shown, strict=True)):

        def begin(number: int = number, prompt: str = prompt) -> None:
            if job.showing.as_json:
                return
            if len(given) > 1 and on_terminal():
                console.print(f"[dim]── {number + 1} of {len(given)}[/]")
            console.print(_prompt(prompt, goes_on), end="")
            sys.stdout.flush()

        with closing(stream_text(loaded, one, **options)) as pieces, counting(number):
            bare = pieces if goes_on else _stripped(pieces)
            text = show_pieces(bare, number if job.showing.as_json else None, begin)
        if job.showing.as_json:
            print_computed(_row(number, 0, prompt, text, loaded.tokenizer))
            continue
        console.print()
        if len(given) == 1:
            _note_end(text)


def show_pieces(
    pieces: Generator[str, None, Text], number: int | None, begin: Callable[[], None] = lambda: None
) -> Text:
    """Print pieces of text at once, as JSON objects if they have a number; return the whole text.

    ``begin`` is called when the first piece is there, and so not if what was asked for is refused.
    """
    begun = False
    try:
        while True:
            piece = next(pieces)
            if not begun:
                begin()
                begun = True
            if number is None:
                sys.stdout.write(visible(piece))
                sys.stdout.flush()
            else:
                print_computed({"number": number, "piece": piece})
    except StopIteration as end:
        if not begun:
            begin()
        return end.value
    except KeyboardInterrupt:
        if number is None and begun:
            sys.stdout.write("\n")  # what was shown so far keeps its line
        raise


def _stripped(pieces: Generator[str, None, Text]) -> Generator[str, None, Text]:
    """An answer without the space that parts it from its question."""
    begun = False
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return replace(end.value, text=end.value.text.removeprefix(" "))
        shown = piece if begun else piece.removeprefix(" ")
        begun = begun or bool(piece)
        if shown:
            yield shown


def _goes_on(loaded: Loaded, given: Sequence["PromptInput"], shown: Sequence[str]) -> bool:
    """Whether texts go on from what is shown, and do not answer it."""
    return loaded.config.encoder is None and list(given) == list(shown)


def _prompt(prompt: str, goes_on: bool) -> Styled:
    """What a text goes on from, on the same line; what it answers, on a line of its own, and in a pipe not at all."""
    if not goes_on and not on_terminal():
        return Styled()
    return Styled(visible(prompt), "bold cyan") if goes_on else Styled(visible(prompt) + "\n", "dim")


def _heading(console: Console, prompt: tuple[int, int], place: tuple[int, int], text: Text) -> None:
    parts = [f"{prompt[0] + 1} of {prompt[1]}"] if prompt[1] > 1 else []
    parts += [f"text {place[0] + 1} of {place[1]}"] if place[1] > 1 else []
    parts.append(f"score {text.written.score:.2f}")
    parts.append(f"{counted(len(text.written.ids), 'token')}, {WHY[text.written.ended]}")
    console.print(Styled("── " + " · ".join(parts), "dim"))


def _alternatives(text: Text, tokenizer: Tokenizer) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("token", "chance", "likeliest"):
        table.add_column(name, justify="right" if name == "chance" else "left", no_wrap=name != "likeliest")
    written = text.written
    for token, log_prob, others in zip(written.ids, written.log_probs, written.alternatives, strict=True):
        line = Styled("   ").join(
            Styled.assemble(
                (_in_sight(tokenizer, one.token), "bold" if one.token == token else ""),
                f" {percent(exp(one.log_prob))}",
            )
            for one in others
        )
        table.add_row(Styled(_in_sight(tokenizer, token), "bold"), percent(exp(log_prob)), line)
    return table


def _in_sight(tokenizer: Tokenizer, token: int) -> str:
    """A token's text with its white space in sight."""
    return visible(_named(tokenizer, token).replace(" ", "␣").replace("\n", "⏎"))


def _named(tokenizer: Tokenizer, token: int) -> str:
    """A token's text; of one that is not text by itself, the vocabulary's name."""
    name = tokenizer.backend.id_to_token(token)
    if name is None:
        return f"#{token}"
    text = tokenizer.decode([token])
    if not text.strip() or "\ufffd" in text:
        return visible(name)
    return (
        f" {text}" if name.startswith(("▁", " ")) and not text.startswith(" ") else text
    )  # decoders drop the first space


def _row(number: int, place: int, prompt: str, text: Text, tokenizer: Tokenizer) -> dict[str, Any]:
    """A text as a JSON object."""
    written = text.written
    row: dict[str, Any] = {
        "number": number,
        "sample": place,
        "prompt": prompt,
        "text": text.text,
        "ended": written.ended,
        "score": written.score,
        "prompt_tokens": text.prompt_tokens,
        "cut_tokens": text.cut_tokens,
        "new_tokens": len(written.ids),
    }
    if any(written.alternatives):
        row["tokens"] = _tokens(text, tokenizer)
    return row


def _tokens(text: Text, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    written = text.written
    others = written.alternatives or [[] for _ in written.ids]
    return [
        {
            "id": token,
            "token": _named(tokenizer, token),
            "log_prob": log_prob,
            "alternatives": [{**asdict(one), "text": _named(tokenizer, one.token)} for one in some],
        }
        for token, log_prob, some in zip(written.ids, written.log_probs, others, strict=True)
    ]


def _save_record(path: Path, shown: Sequence[str], found: Sequence[Sequence[Text]], tokenizer: Tokenizer) -> None:
    """Every prompt with its texts, token by token, and the nodes of its search; those of a sample are its own."""
    rows = []
    for number, (prompt, texts) in enumerate(zip(shown, found, strict=True)):
        records = []
        for text in texts:
            if text.written.record is not None and text.written.record not in records:
                records.append(text.written.record)
        nodes = [[{**asdict(node), "text": _named(tokenizer, node.token)} for node in one.nodes] for one in records]
        rows.append(
            {
                "prompt": prompt,
                "texts": [
                    _row(number, place, prompt, text, tokenizer) | {"tokens": _tokens(text, tokenizer)}
                    for place, text in enumerate(texts)
                ],
                "searches": nodes,
            }
        )
    path.write_text(json.dumps(rounded(rows), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
