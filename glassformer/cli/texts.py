"""Printing texts that a model writes: at the end, piece by piece, or with every step of the search in a file."""

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text as Styled

from glassformer.cli.outputs import bar, people, print_json, visible
from glassformer.generate.text import Text, generate_text, stream_text
from glassformer.hub import Loaded
from glassformer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from glassformer.cli.write import Job
    from glassformer.generate.prompts import Given

WHY = {
    "eos": "ended by itself",
    "stop": "ended at a stop string",
    "length": "cut off at the most new tokens",
    "context": "cut off where the model's positions end",
}


def print_texts(
    loaded: Loaded, given: Sequence["Given"], shown: Sequence[str], options: dict[str, Any], job: "Job"
) -> None:
    """Write everything, then print it."""
    with bar("writing", len(given)) as progress:
        size = job.computing.batch_size
        found = generate_text(loaded, given, batch_size=size, progress=progress, **options)
    if job.showing.record is not None:
        _save_record(job.showing.record, shown, found, loaded.tokenizer)
    console, goes_on = people(), _goes_on(loaded, given, shown)
    for number, (prompt, texts) in enumerate(zip(shown, found, strict=True)):
        for place, text in enumerate(texts):
            if loaded.config.encoder is None and not goes_on:
                text = replace(text, text=text.text.lstrip(" "))
            if job.showing.as_json:
                print_json(_row(number, place, prompt, text, loaded.tokenizer))
                continue
            if len(found) > 1 or len(texts) > 1:
                _heading(console, (number, len(found)), (place, len(texts)), text)
            console.print(Styled.assemble(_prompt(prompt, goes_on), visible(text.text)))
            if any(text.written.alternatives):
                console.print(_alternatives(text, loaded.tokenizer))


def stream_texts(
    loaded: Loaded, given: Sequence["Given"], shown: Sequence[str], options: dict[str, Any], job: "Job"
) -> None:
    """Write one text after the other and print each piece as it comes."""
    if job.showing.record is not None:
        raise ValueError("--record takes down a whole search; leave out --stream.")
    console, goes_on = people(), _goes_on(loaded, given, shown)
    for number, (one, prompt) in enumerate(zip(given, shown, strict=True)):
        if not job.showing.as_json:
            if len(given) > 1:
                console.print(f"[dim]── {number + 1} of {len(given)}[/]")
            console.print(_prompt(prompt, goes_on), end="")
            sys.stdout.flush()
        with closing(stream_text(loaded, one, **options)) as pieces:
            bare = _stripped(pieces) if loaded.config.encoder is None and not goes_on else pieces
            text = show_pieces(bare, number if job.showing.as_json else None)
        if job.showing.as_json:
            print_json(_row(number, 0, prompt, text, loaded.tokenizer))
        else:
            console.print()


def show_pieces(pieces: Generator[str, None, Text], number: int | None) -> Text:
    """Print pieces of text at once, as JSON objects if they have a number; return the whole text."""
    try:
        while True:
            piece = next(pieces)
            if number is None:
                sys.stdout.write(visible(piece))
                sys.stdout.flush()
            else:
                print_json({"number": number, "piece": piece})
    except StopIteration as end:
        return end.value
    except KeyboardInterrupt:
        if number is None:
            sys.stdout.write("\n")  # what was shown so far keeps its line
        raise


def _stripped(pieces: Generator[str, None, Text]) -> Generator[str, None, Text]:
    """An answer without the space that parts it from its question."""
    begun = False
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return replace(end.value, text=end.value.text.lstrip(" "))
        piece = piece if begun else piece.lstrip(" ")
        begun = begun or bool(piece)
        if piece:
            yield piece


def _goes_on(loaded: Loaded, given: Sequence["Given"], shown: Sequence[str]) -> bool:
    """Whether texts go on from what is shown, and do not answer it."""
    return loaded.config.encoder is None and list(given) == list(shown)


def _prompt(prompt: str, goes_on: bool) -> Styled:
    """What a text goes on from, on the same line; what it answers, on a line of its own."""
    return Styled(visible(prompt), "bold cyan") if goes_on else Styled(visible(prompt) + "\n", "dim")


def _heading(console: Console, prompt: tuple[int, int], place: tuple[int, int], text: Text) -> None:
    parts = [f"{prompt[0] + 1} of {prompt[1]}"] if prompt[1] > 1 else []
    parts += [f"text {place[0] + 1} of {place[1]}"] if place[1] > 1 else []
    parts.append(f"score {text.written.score:.2f}")
    parts.append(f"{len(text.written.ids)} tokens, {WHY[text.written.ended]}")
    console.print(Styled("── " + " · ".join(parts), "dim"))


def _alternatives(text: Text, tokenizer: Tokenizer) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("token", "chance", "likeliest"):
        table.add_column(name, justify="right" if name == "chance" else "left", no_wrap=name != "likeliest")
    written = text.written
    for token, log_prob, others in zip(written.ids, written.log_probs, written.alternatives, strict=True):
        line = Styled("   ").join(
            Styled.assemble(
                (_in_sight(tokenizer, one.token), "bold" if one.token == token else ""), f" {_share(one.log_prob)}"
            )
            for one in others
        )
        table.add_row(Styled(_in_sight(tokenizer, token), "bold"), _share(log_prob), line)
    return table


def _share(log_prob: float) -> str:
    return f"{100 * exp(log_prob):.1f} %"


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
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
