"""``glassformer score`` and ``embed``: texts as numbers."""

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
from glassformer.cli.judge import Pairing
from glassformer.cli.options import Common, ModelName, Texts, Truncate, side
from glassformer.cli.outputs import bar, people, print_computed, print_table, visible
from glassformer.cli.verbs import computing_verb
from glassformer.config.checks import check_choice
from glassformer.text.visible import counted

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.hub import Loaded
    from glassformer.tasks.batches import Progress
    from glassformer.tasks.score import Score, Total


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
    print_table(_table([*((one.text, one.total) for one in found), *([("all", total)] if len(found) > 1 else [])]))


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
        print_table(_table([(path.name if file is None else str(file), total)]))


def _row(one: "Score", with_tokens: bool) -> dict[str, Any]:
    row = asdict(one)
    total = row.pop("total")
    tokens = row.pop("tokens")
    return {**row, **total, **({"tokens": tokens} if with_tokens else {})}


def _table(rows: "Sequence[tuple[str, Total]]") -> Table:
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
    """One vector per text; people see how alike the texts are."""
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
