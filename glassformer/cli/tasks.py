"""``glassformer fill``, ``classify``, ``tag``, ``answer``, ``score`` and ``embed``: what a model says of texts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassformer.cli.errors import InputError
from glassformer.cli.inputs import check_room, pairs, read_texts, read_whole
from glassformer.cli.options import Common, ModelName, Texts, Truncate, computing_verb, side
from glassformer.cli.outputs import bar, people, percent, print_computed, print_table, visible
from glassformer.config.checks import check_choice
from glassformer.text.visible import counted

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.hub import Loaded
    from glassformer.tasks.batches import Progress
    from glassformer.tasks.score import Score, Total
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


FIRST = 6  # numbers of a vector that people see


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How texts are scored."""

    whole: Annotated[
        bool, typer.Option("--whole", help="A file or standard input is one long text, read in windows.")
    ] = False
    masked: Annotated[bool, typer.Option("--masked", help="Mask each token in its turn: for encoders.")] = False
    tokens: Annotated[bool, typer.Option("--tokens", help="Show the score of every token.")] = False
    window: Annotated[int | None, typer.Option(min=2, help="Tokens that the model sees at once.")] = None
    stride: Annotated[int | None, typer.Option(min=1, help="Tokens that each window predicts.")] = None

    @property
    def windows(self) -> dict[str, int | None]:
        """The options for ``tasks.score``."""
        return {"window": self.window, "stride": self.stride}


@computing_verb
def score(model: ModelName, common: Common, pairing: Pairing, how: Scoring, texts: Texts = None) -> None:
    """How probable texts are: log-probability, perplexity, bits per byte; for an encoder-decoder pairs (source, text).

    The last line is about all texts together, averaged over their tokens.
    """
    if how.whole:
        if how.tokens or how.masked or pairing.pair or pairing.tsv:
            raise InputError(
                "--whole gives one number for a long text; leave out --tokens, --masked, --pair and --tsv."
            )
        _score_whole(model, common, texts, how)
        return
    if how.masked and any(how.windows.values()):
        raise ValueError("--masked reads a text as a whole; leave out --window and --stride.")
    given = pairs(read_texts(texts, common.reading), pairing.pair, tsv=pairing.tsv)
    from glassformer.tasks import score as scoring

    loaded = common.loading.load(model)
    with bar("scoring", len(given)) as progress:
        if how.masked:
            found = _masked_scores(loaded, given, common.batch_size, progress)
        else:
            found = scoring.score(loaded, given, batch_size=common.batch_size, progress=progress, **how.windows)
    total = scoring.summarise(found)
    if common.as_json:
        for one in found:
            print_computed(_row(one, how.tokens))
        print_computed({"total": total})
        return
    console = people()
    if how.tokens:
        for one in found:
            _print_tokens(console, one)
    print_table(
        _score_table([*((one.text, one.total) for one in found), *([("all", total)] if len(found) > 1 else [])])
    )


def _masked_scores(
    loaded: "Loaded", given: Sequence[Any], batch_size: int, progress: "Progress | None"
) -> "list[Score]":
    from glassformer.tasks.score import score_masked

    if not all(isinstance(one, str) for one in given):
        raise ValueError("--masked is for single texts, not for pairs.")
    return score_masked(loaded, given, batch_size=batch_size, progress=progress)


def _score_whole(model: str, common: Common, texts: Sequence[str] | None, how: Scoring) -> None:
    from glassformer.tasks.score import score_file

    if texts:
        raise InputError("--whole reads one long text: --file F or standard input, and no texts beside it.")
    file = common.reading.file
    text = read_whole(None, common.reading)
    loaded = common.loading.load(model)
    with TemporaryDirectory() as folder, bar("reading", 2) as progress:  # the number of windows is seen as it is read
        path = file or Path(folder) / "standard input"
        if file is None:
            path.write_bytes(text.encode())
        total = score_file(loaded, path, batch_size=common.batch_size, progress=progress, **how.windows)
    if common.as_json:
        print_computed({"file": None if file is None else str(file), "total": total})
    else:
        print_table(_score_table([(path.name if file is None else str(file), total)]))


def _row(one: "Score", with_tokens: bool) -> dict[str, Any]:
    row = asdict(one)
    total = row.pop("total")
    tokens = row.pop("tokens")
    return {**row, **total, **({"tokens": tokens} if with_tokens else {})}


def _score_table(rows: "Sequence[tuple[str, Total]]") -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("log-prob", "tokens", "perplexity", "bits per byte"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("text", no_wrap=True)
    for number, (text, total) in enumerate(rows):
        last = number == len(rows) - 1 and number > 0
        numbers = [
            f"{total.log_prob:.2f}",
            f"{total.predicted:,}",
            _number(total.perplexity),
            _number(total.bits_per_byte),
        ]
        table.add_row(*numbers, Text(visible(text).replace("\n", "⏎")), style="bold" if last else "")
    return table


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:,.3f}" if value < 1e6 else f"{value:.3g}"


def _print_tokens(console: Console, one: "Score") -> None:
    """The text, unexpected tokens yellow and red, and a table of all of them."""
    line, reached = Text(), 0
    for token in one.tokens:
        if token.end <= reached:  # of the frame, or a part of a character that is there already
            continue
        line.append(visible(one.text[reached : token.start]))  # white space that belongs to no token
        surprise = 0.0 if token.log_prob is None else -token.log_prob
        style = "" if surprise < 3 else "yellow" if surprise < 6 else "red"
        line.append(visible(one.text[max(reached, token.start) : token.end]), style)
        reached = token.end
    console.print(line.append(visible(one.text[reached:])))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("log-prob", justify="right")
    table.add_column("token")
    for token in one.tokens:
        table.add_row(
            "—" if token.log_prob is None else f"{token.log_prob:.3f}", Text(visible(token.token).replace("\n", "⏎"))
        )
    console.print(table)


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """How vectors are made and where they go."""

    pool: Annotated[str | None, typer.Option(metavar="mean|first|last", help="As the model says unless given.")] = None
    normalise: Annotated[
        bool | None, typer.Option("--normalise/--raw", help="To length 1; as the model says unless given.")
    ] = None
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the vectors: .npy or .safetensors.")] = None
    truncate: Truncate = None


@computing_verb
def embed(model: ModelName, common: Common, how: Embedding, texts: Texts = None) -> None:
    """Embed texts; on a terminal, print their cosine similarities."""
    out, pool = how.out, how.pool
    if out is not None:
        check_choice("the end of --out", out.suffix, (".npy", ".safetensors"))
        check_room(out, "--out")
    check_choice("--pool", "mean" if pool is None else pool, ("mean", "first", "last"))
    lines = read_texts(texts, common.reading)
    from glassformer.tasks.embed import embed as embed_texts

    loaded = common.loading.load(model)
    with bar("embedding", len(lines)) as progress:
        options: dict[str, Any] = {"pool": pool, "normalise": how.normalise, "truncate": side(how.truncate)}
        vectors = embed_texts(loaded, lines, batch_size=common.batch_size, progress=progress, **options).cpu()
    if out is not None:
        _save(out, vectors)
    if common.as_json:
        for text, vector in zip(lines, vectors.tolist(), strict=True):
            print_computed({"text": text, "vector": vector})
        return
    many = counted(len(lines), "vector")
    people().print(f"{many} of {vectors.shape[1]} numbers" + (f" in {out}" if out else ""), markup=False)
    if len(lines) == 1:
        some = "  ".join(f"{value:.4f}" for value in vectors[0, :FIRST].tolist())
        people().print(some + (" …" if vectors.shape[1] > FIRST else ""), markup=False)
    elif len(lines) <= 20:
        print_table(_likeness(lines, vectors))


def _save(path: Path, vectors: "Tensor") -> None:
    import numpy
    from safetensors.torch import save_file

    if path.suffix == ".npy":
        numpy.save(path, vectors.numpy())
    else:
        save_file({"vectors": vectors.contiguous()}, path)


def _likeness(lines: Sequence[str], vectors: "Tensor") -> Table:
    """Cosines between all texts."""
    unit = vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    table = Table(
        box=None, pad_edge=False, header_style="dim", title="cosines", title_justify="left", title_style="dim"
    )
    table.add_column("")
    for number in range(len(lines)):
        table.add_column(str(number + 1), justify="right", no_wrap=True)
    table.add_column("text", no_wrap=True)
    for number, (text, row) in enumerate(zip(lines, (unit @ unit.T).tolist(), strict=True)):
        cells = [Text(f"{value:.2f}", "dim" if place == number else "") for place, value in enumerate(row)]
        table.add_row(str(number + 1), *cells, Text(visible(text)))
    return table
