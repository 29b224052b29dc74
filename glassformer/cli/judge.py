"""``glassformer fill``, ``classify``, ``tag`` and ``answer``: what a model says of texts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from glassformer.cli.inputs import pairs, read_texts, read_whole
from glassformer.cli.options import Common, ModelName, Texts, Truncate, side
from glassformer.cli.outputs import bar, people, percent, print_computed, visible
from glassformer.cli.verbs import computing_verb

if TYPE_CHECKING:
    from glassformer.tasks.tag import Tagged

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Where the second texts of pairs come from."""

    pair: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="The second text of a pair, one for each text.")
    ] = None
    tsv: Annotated[bool, typer.Option("--tsv", help="Each text is a pair with a TAB between.")] = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is asked of answers; the names are those of ``tasks.answer``."""

    top: Annotated[int, typer.Option(min=1, help="Answers to each question.")] = 1
    max_answer_tokens: Annotated[int, typer.Option(min=1, help="The longest answer.")] = 30
    no_answer: Annotated[bool, typer.Option("--no-answer", help="There may be no answer.")] = False
    stride: Annotated[int | None, typer.Option(min=1, help="How far windows over long contexts move on.")] = None


@computing_verb
def fill(
    model: ModelName,
    common: Common,
    texts: Texts = None,
    top: Annotated[int, typer.Option(min=1, help="Guesses for each blank.")] = 5,
    blank: Annotated[
        str | None, typer.Option(metavar="STRING", help="What stands for a blank; else the model's mask token.")
    ] = None,
    truncate: Truncate = None,
) -> None:
    """Fill the blanks of texts with the likeliest words."""
    lines = read_texts(texts, common.reading)
    from glassformer.tasks.fill import fill as fill_texts

    loaded = common.loading.load(model)
    with bar("filling", len(lines)) as progress:
        found = fill_texts(
            loaded,
            lines,
            top=top,
            blank=blank,
            truncate=side(truncate),
            batch_size=common.batch_size,
            progress=progress,
        )
    console = people()
    for one in found:
        if common.as_json:
            print_computed(one)
            continue
        console.print(Text(visible(one.text), "bold"))
        rows = [(filling.probability, filling.text) for filling in one.fillings]
        console.print(_table(rows))


@computing_verb
def classify(
    model: ModelName,
    common: Common,
    pairing: Pairing,
    texts: Texts = None,
    several: Annotated[bool, typer.Option("--several", help="Several labels, or none, may be right.")] = False,
    truncate: Truncate = None,
) -> None:
    """Label texts or pairs of texts."""
    given = pairs(read_texts(texts, common.reading), pairing.pair, tsv=pairing.tsv)
    from glassformer.tasks.classify import classify as classify_texts

    loaded = common.loading.load(model)
    with bar("classifying", len(given)) as progress:
        found = classify_texts(
            loaded, given, several=several, truncate=side(truncate), batch_size=common.batch_size, progress=progress
        )
    console = people()
    for one in found:
        if common.as_json:
            print_computed(one)
            continue
        console.print(Text(visible(one.text if one.pair is None else f"{one.text} │ {one.pair}"), "bold"))
        console.print(_table([(label.probability, label.name) for label in one.labels]))


@computing_verb
def tag(
    model: ModelName,
    common: Common,
    texts: Texts = None,
    overlap: Annotated[int | None, typer.Option(min=0, help="Tokens that windows of long texts share.")] = None,
) -> None:
    """Label the words of texts, and join them to names of persons, places …"""
    lines = read_texts(texts, common.reading)
    from glassformer.tasks.tag import tag as tag_texts

    loaded = common.loading.load(model)
    with bar("tagging", len(lines)) as progress:
        found = tag_texts(loaded, lines, overlap=overlap, batch_size=common.batch_size, progress=progress)
    kinds = sorted({entity.kind for one in found for entity in one.entities})
    console = people()
    for one in found:
        if common.as_json:
            print_computed(one)
        else:
            console.print(_marked(one, kinds))


@computing_verb
def answer(
    model: ModelName,
    common: Common,
    limits: Limits,
    texts: Annotated[list[str] | None, typer.Argument(metavar="CONTEXT", help="Where the answer stands.")] = None,
    question: Annotated[
        str | None,
        typer.Option(
            "--question",
            "-q",
            metavar="TEXT",
            help='The context is then all of --file or standard input. Else JSON lines with "question" and "context".',
        ),
    ] = None,
) -> None:
    """Find answers in texts: a context from arguments, --file or standard input, as a whole; or many as JSON lines."""
    if question is not None:
        asked = [(question, read_whole(texts, common.reading).strip())]
    else:
        asked = _questions(read_texts(texts, common.reading))
    from glassformer.tasks.answer import answer as answer_questions

    loaded = common.loading.load(model)
    with bar("reading", len(asked)) as progress:
        found = answer_questions(loaded, asked, batch_size=common.batch_size, progress=progress, **asdict(limits))
    console = people()
    for one in found:
        if common.as_json:
            print_computed(one)
            continue
        console.print(Text(visible(one.question), "bold"))
        rows = [(found.probability, _in_context(one.context, found.start, found.end)) for found in one.answers]
        if one.no_answer is not None:
            rows = sorted([*rows, (one.no_answer, Text("no answer", "italic"))], key=lambda row: -row[0])
        console.print(_table(rows))


def _questions(lines: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            found.append((row["question"], row["context"]))
        except (ValueError, TypeError, KeyError):
            found.append(("", ""))
        if not all(isinstance(part, str) and part for part in found[-1]):
            raise ValueError(
                f'line {number} must be a JSON object with the texts "question" and "context", got {line:.60}; or give '
                "--question, and the context as a text."
            )
    return found


def _table(rows: Sequence[tuple[float, str | Text]]) -> Table:
    """Chances and what they are of, with a bar for each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for chance, what in rows:
        shown = Text(visible(what)) if isinstance(what, str) else what
        table.add_row(percent(chance), "█" * round(10 * chance) or "▏", shown)
    return table


def _in_context(context: str, start: int, end: int, around: int = 30) -> Text:
    """An answer with a few characters on either side."""
    before, after = context[max(0, start - around) : start], context[end : end + around]
    before = ("…" if start > around else "") + before
    after = after + ("…" if end + around < len(context) else "")
    flat = [" ".join(visible(part).split("\n")) for part in (before, context[start:end], after)]
    return Text.assemble((flat[0], "dim"), (flat[1], "bold green"), (flat[2], "dim"))


def _marked(one: "Tagged", kinds: Sequence[str]) -> Text:
    """The text with its entities in colours and their kinds after them."""
    line, reached = Text(), 0
    for entity in one.entities:
        colour = COLOURS[kinds.index(entity.kind) % len(COLOURS)]
        line.append(visible(one.text[reached : entity.start]))
        line.append(visible(entity.text), f"bold {colour}")
        line.append(f"[{entity.kind or '?'} {100 * entity.probability:.0f} %]", colour)
        reached = entity.end
    return line.append(visible(one.text[reached:]))
