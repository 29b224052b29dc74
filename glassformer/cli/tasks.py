"""``glassformer fill``, ``classify``, ``tag``, ``answer``, ``score`` and ``embed``: tasks on texts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassformer.cli.console import (
    bar,
    check_writable,
    pairs,
    percent,
    print_rounded_json,
    print_table,
    print_truncated,
    read_texts,
    read_whole,
    stdout_console,
    visible,
)
from glassformer.cli.errors import InputError
from glassformer.cli.options import ModelName, TaskOptions, Texts, Truncate, computing_command, setting
from glassformer.config.checks import check_choice
from glassformer.text.plain_text import counted

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.hub import Loaded
    from glassformer.tasks.batches import Progress
    from glassformer.tasks.score import Score, Total
    from glassformer.tasks.tag import Tagged

UNBROKEN = "\ue000"  # stands for a space until lines are broken; rich breaks them at no-break spaces too
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """How the second texts of pairs are read.

    Args:
        pair: the second text of the pair; give one for each TEXT. Repeatable.
        tsv: each text is a pair: two texts with a tab between them.
    """

    pair: list[str] | None = setting(None, metavar="TEXT")
    tsv: bool = False


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """The settings of ``tasks.answer``, under the same names.

    Args:
        top: answers per question.
        max_answer_tokens: the longest answer, in tokens.
        no_answer: allow 'no answer' as an answer.
        stride: tokens by which windows over a long context advance; half a window by default.
    """

    top: int = setting(1, min=1)
    max_answer_tokens: int = setting(30, min=1)
    no_answer: bool = False
    stride: int | None = setting(None, min=1)


@computing_command
def fill(
    model: ModelName,
    common: TaskOptions,
    texts: Texts = None,
    top: Annotated[
        int, typer.Option(min=1, help="How many tokens to list for each blank, and how many filled texts to print.")
    ] = 5,
    blank: Annotated[
        str | None,
        typer.Option(metavar="STRING", help="The string that marks a blank; by default the model's mask token."),
    ] = None,
    truncate: Truncate = None,
) -> None:
    """Fill the blanks of texts with the most probable tokens."""
    lines = read_texts(texts, common.reading)
    from glassformer.tasks.fill import fill as fill_texts

    loaded = common.loading.load(model)
    with bar("filling", len(lines)) as progress:
        results = fill_texts(
            loaded,
            lines,
            top=top,
            blank=blank,
            truncate=truncate,
            batch_size=common.batch_size,
            progress=progress,
        )
    console = stdout_console()
    for result in results:
        if common.as_json:
            print_rounded_json(result)
            continue
        console.print(Text(visible(result.text), "bold"))
        rows = [(filling.probability, filling.text) for filling in result.fillings]
        print_table(_table(rows))


@computing_command
def classify(
    model: ModelName,
    common: TaskOptions,
    pair: PairOptions,
    texts: Texts = None,
    multi_label: Annotated[
        bool,
        typer.Option("--multi-label", help="Any number of labels may apply (sigmoid instead of softmax)."),
    ] = False,
    truncate: Truncate = None,
) -> None:
    """Classify texts or pairs of texts."""
    inputs = pairs(read_texts(texts, common.reading), pair.pair, tsv=pair.tsv)
    from glassformer.tasks.classify import classify as classify_texts

    loaded = common.loading.load(model)
    with bar("classifying", len(inputs)) as progress:
        results = classify_texts(
            loaded, inputs, multi_label=multi_label, truncate=truncate, batch_size=common.batch_size, progress=progress
        )
    console = stdout_console()
    for result in results:
        if common.as_json:
            print_rounded_json(result)
            continue
        console.print(Text(visible(result.text if result.pair is None else f"{result.text} │ {result.pair}"), "bold"))
        print_table(_table([(label.probability, label.name) for label in result.labels]))


@computing_command
def tag(
    model: ModelName,
    common: TaskOptions,
    texts: Texts = None,
    overlap: Annotated[
        int | None,
        typer.Option(min=0, help="Overlap of the windows over a long text, in tokens; default: a quarter of a window."),
    ] = None,
) -> None:
    """Label the words of texts, and print the entities that they form."""
    lines = read_texts(texts, common.reading)
    from glassformer.tasks.tag import tag as tag_texts

    loaded = common.loading.load(model)
    with bar("tagging", len(lines)) as progress:
        results = tag_texts(loaded, lines, overlap=overlap, batch_size=common.batch_size, progress=progress)
    kinds = sorted({entity.kind for result in results for entity in result.entities})
    console = stdout_console()
    for result in results:
        if common.as_json:
            print_rounded_json(result)
        else:
            for line in _marked(result, kinds).wrap(console, console.width):
                line.plain = line.plain.replace(UNBROKEN, " ")
                console.print(line)


@computing_command
def answer(
    model: ModelName,
    common: TaskOptions,
    options: AnswerOptions,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="CONTEXT", help="The text that holds the answer.")
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            "--question",
            "-q",
            metavar="TEXT",
            help="A question about CONTEXT, or about the whole of --file or standard input. Without it, the input is "
            'JSON lines with "question" and "context".',
        ),
    ] = None,
) -> None:
    """Answer a question from a context, or many questions from JSON lines."""
    if question is not None:
        questions = [(question, read_whole(texts, common.reading).strip())]
    else:
        questions = _questions(read_texts(texts, common.reading))
    from glassformer.tasks.answer import answer as answer_questions

    loaded = common.loading.load(model)
    with bar("answering", len(questions)) as progress:
        results = answer_questions(
            loaded, questions, batch_size=common.batch_size, progress=progress, **asdict(options)
        )
    console = stdout_console()
    for result in results:
        if common.as_json:
            print_rounded_json(result)
            continue
        console.print(Text(visible(result.question), "bold"))
        rows = [(span.probability, _in_context(result.context, span.start, span.end)) for span in result.answers]
        if result.no_answer is not None:
            rows = sorted([*rows, (result.no_answer, Text("no answer", "italic"))], key=lambda row: -row[0])
        print_table(_table(rows))


def _questions(lines: Sequence[str]) -> list[tuple[str, str]]:
    questions = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            questions.append((row["question"], row["context"]))
        except (ValueError, TypeError, KeyError):
            questions.append(("", ""))
        if not all(isinstance(part, str) and part for part in questions[-1]):
            raise ValueError(
                f'line {number} must be a JSON object with the texts "question" and "context", got {line:.60}; or give '
                "--question, and the context as a text."
            )
    return questions


def _table(rows: Sequence[tuple[float, str | Text]]) -> Table:
    """Return probabilities with a bar each, and what they belong to."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for probability, what in rows:
        shown = Text(visible(what)) if isinstance(what, str) else what
        table.add_row(percent(probability), "█" * round(10 * probability) or "▏", shown)
    return table


def _in_context(context: str, start: int, end: int, around: int = 30) -> Text:
    """Return an answer with a few characters on either side."""
    before, after = context[max(0, start - around) : start], context[end : end + around]
    before = ("…" if start > around else "") + before
    after = after + ("…" if end + around < len(context) else "")
    flat = [" ".join(visible(part).split("\n")) for part in (before, context[start:end], after)]
    return Text.assemble((flat[0], "dim"), (flat[1], "bold green"), (flat[2], "dim"))


def _marked(tagged: "Tagged", kinds: Sequence[str]) -> Text:
    """Return the text with its entities in colour, each followed by its kind, with no space for a line to break at."""
    line, reached = Text(), 0
    for entity in tagged.entities:
        colour = COLOURS[kinds.index(entity.kind) % len(COLOURS)]
        line.append(visible(tagged.text[reached : entity.start]))
        line.append(visible(entity.text), f"bold {colour}")
        label = f"[{entity.kind or '?'} {100 * entity.probability:.0f} %]"
        line.append(label.replace(" ", UNBROKEN), colour)
        reached = entity.end
    return line.append(visible(tagged.text[reached:]))


FIRST = 6  # components of a vector that are printed


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """How texts are scored.

    Args:
        whole: score a file or standard input as one long text, in windows.
        masked: mask one token at a time, for encoders.
        tokens: print the score of every token.
        window: tokens that the model reads at once.
        stride: new tokens per window; half a window by default.
    """

    whole: bool = False
    masked: bool = False
    tokens: bool = False
    window: int | None = setting(None, min=2)
    stride: int | None = setting(None, min=1)

    @property
    def windows(self) -> dict[str, int | None]:
        """The options for ``tasks.score``."""
        return {"window": self.window, "stride": self.stride}


@computing_command
def score(model: ModelName, common: TaskOptions, pair: PairOptions, options: ScoreOptions, texts: Texts = None) -> None:
    """Compute log-probability, perplexity and bits per byte of texts; an encoder-decoder needs pairs (source, text).

    With several texts, a last row scores all of them together, over all their tokens.
    """
    if options.whole:
        if options.tokens or options.masked or pair.pair or pair.tsv:
            raise InputError("--whole gives one score for a long text; leave out --tokens, --masked, --pair and --tsv.")
        _score_whole(model, common, texts, options)
        return
    if options.masked and any(options.windows.values()):
        raise ValueError("--masked reads a text as a whole; leave out --window and --stride.")
    inputs = pairs(read_texts(texts, common.reading), pair.pair, tsv=pair.tsv)
    from glassformer.tasks import score as scoring

    loaded = common.loading.load(model)
    with bar("scoring", len(inputs)) as progress:
        if options.masked:
            results = _masked_scores(loaded, inputs, common.batch_size, progress)
        else:
            results = scoring.score(loaded, inputs, batch_size=common.batch_size, progress=progress, **options.windows)
    # Scores of single texts, then the total.
    total = scoring.summarise(results)
    if common.as_json:
        for result in results:
            print_rounded_json(_row(result, options.tokens))
        print_rounded_json({"total": total})
        return
    console = stdout_console()
    if options.tokens:
        for result in results:
            _print_tokens(console, result)
    print_truncated(
        _score_table(
            [*((result.text, result.total) for result in results), *([("total", total)] if len(results) > 1 else [])]
        )
    )


def _masked_scores(
    loaded: "Loaded", texts: Sequence[Any], batch_size: int | None, progress: "Progress | None"
) -> "list[Score]":
    from glassformer.tasks.score import score_masked

    if not all(isinstance(text, str) for text in texts):
        raise ValueError("--masked scores single texts, not pairs.")
    return score_masked(loaded, texts, batch_size=batch_size, progress=progress)


def _score_whole(model: str, common: TaskOptions, texts: Sequence[str] | None, options: ScoreOptions) -> None:
    from glassformer.tasks.score import score_file

    if texts:
        raise InputError("--whole reads one long text from --file or standard input; leave out the arguments.")
    file = common.reading.file
    text = read_whole(None, common.reading)
    loaded = common.loading.load(model)
    with (
        TemporaryDirectory() as folder,
        bar("reading", 2) as progress,
    ):  # windows are counted later
        path = file or Path(folder) / "standard input"
        if file is None:
            path.write_bytes(text.encode())
        total = score_file(loaded, path, batch_size=common.batch_size, progress=progress, **options.windows)
    if common.as_json:
        print_rounded_json({"file": None if file is None else str(file), "total": total})
    else:
        print_truncated(_score_table([(path.name if file is None else str(file), total)]))


def _row(score: "Score", with_tokens: bool) -> dict[str, Any]:
    row = asdict(score)
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


def _print_tokens(console: Console, score: "Score") -> None:
    """Print the text with improbable tokens in yellow and red, and a table of its tokens."""
    line, reached = Text(), 0
    for token in score.tokens:
        if token.end <= reached:  # a special token, or a part of a character that is printed already
            continue
        line.append(visible(score.text[reached : token.start]))  # white space that belongs to no token
        surprise = 0.0 if token.log_prob is None else -token.log_prob
        style = "" if surprise < 3 else "yellow" if surprise < 6 else "red"
        line.append(visible(score.text[max(reached, token.start) : token.end]), style)
        reached = token.end
    console.print(line.append(visible(score.text[reached:])))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("log-prob", justify="right")
    table.add_column("token")
    for token in score.tokens:
        table.add_row(
            "—" if token.log_prob is None else f"{token.log_prob:.3f}", Text(visible(token.token).replace("\n", "⏎"))
        )
    print_table(table)


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How texts are embedded, and where the vectors are written.

    Args:
        pool: how to pool over the tokens; by default as the model's head does, or the mean.
        normalise: scale vectors to length 1, or not; by default as the model's head does.
        out: write the vectors to an .npy or .safetensors file.
    """

    pool: Literal["mean", "first", "last"] | None = setting(None, metavar="mean|first|last")
    normalise: bool | None = setting(None, flags=["--normalise/--raw"])
    out: Path | None = setting(None, metavar="FILE")
    truncate: Truncate = None


@computing_command
def embed(model: ModelName, common: TaskOptions, options: EmbedOptions, texts: Texts = None) -> None:
    """Embed texts; on a terminal, print their cosine similarities."""
    out = options.out
    if out is not None:
        check_choice("the suffix of --out", out.suffix, (".npy", ".safetensors"))
        check_writable(out, "--out")
    lines = read_texts(texts, common.reading)
    from glassformer.tasks.embed import embed as embed_texts

    loaded = common.loading.load(model)
    with bar("embedding", len(lines)) as progress:
        vectors = embed_texts(
            loaded,
            lines,
            pool=options.pool,
            normalise=options.normalise,
            truncate=options.truncate,
            batch_size=common.batch_size,
            progress=progress,
        ).cpu()
    # Vectors to a file or as JSON lines; on a terminal, cosines.
    if out is not None:
        _save(out, vectors)
    if common.as_json:
        for text, vector in zip(lines, vectors.tolist(), strict=True):
            print_rounded_json({"text": text, "vector": vector})
        return
    stdout_console().print(
        f"{counted(len(lines), 'vector')} of {vectors.shape[1]} numbers" + (f" in {out}" if out else ""), markup=False
    )
    if len(lines) == 1:
        first = "  ".join(f"{value:.4f}" for value in vectors[0, :FIRST].tolist())
        stdout_console().print(first + (" …" if vectors.shape[1] > FIRST else ""), markup=False)
    elif len(lines) <= 20:
        print_truncated(_cosines(lines, vectors))


def _save(path: Path, vectors: "Tensor") -> None:
    import numpy

    from glassformer.weights.saving import replacing, write_safetensors

    with replacing(path) as new:
        if path.suffix == ".npy":
            with new.open("wb") as file:  # numpy adds its suffix to a name that has another
                numpy.save(file, vectors.numpy())
        else:
            write_safetensors(new, {"vectors": vectors})


def _cosines(lines: Sequence[str], vectors: "Tensor") -> Table:
    """Return cosine similarities of all pairs of texts."""
    unit = vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    table = Table(
        box=None, pad_edge=False, header_style="dim", title="cosine similarity", title_justify="left", title_style="dim"
    )
    table.add_column("")
    for number in range(len(lines)):
        table.add_column(str(number + 1), justify="right", no_wrap=True)
    table.add_column("text", no_wrap=True)
    for number, (text, row) in enumerate(zip(lines, (unit @ unit.T).tolist(), strict=True)):
        cells = [Text(f"{value:.2f}", "dim" if column == number else "") for column, value in enumerate(row)]
        table.add_row(str(number + 1), *cells, Text(visible(text)))
    return table
