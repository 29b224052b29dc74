"""What ``generate`` and ``translate`` show of a search: the alternatives of each token, the tree of the beams."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import exp
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table
from rich.text import Text as Styled

from glassformer.cli.console import percent, visible

if TYPE_CHECKING:
    from glassformer.generation.search import Record
    from glassformer.generation.text import Text
    from glassformer.text.tokenizer import Tokenizer


def alternatives_table(text: "Text", tokenizer: "Tokenizer") -> Table:
    """Return every token of a text with its probability and the most probable tokens in its place."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("token", "probability", "most probable"):
        table.add_column(name, justify="right" if name == "probability" else "left", no_wrap=name != "most probable")
    written = text.written
    for token, log_prob, others in zip(written.ids, written.log_probs, written.alternatives, strict=True):
        line = Styled("   ").join(
            Styled.assemble(
                (_with_spaces(tokenizer, other.token), "bold" if other.token == token else ""),
                f" {percent(exp(other.log_prob))}",
            )
            for other in others
        )
        table.add_row(Styled(_with_spaces(tokenizer, token), "bold"), percent(exp(log_prob)), line)
    return table


def _with_spaces(tokenizer: "Tokenizer", token: int) -> str:
    """Return the text of a token with visible white space."""
    return visible(token_text(tokenizer, token).replace(" ", "␣").replace("\n", "⏎"))


def token_text(tokenizer: "Tokenizer", token: int) -> str:
    """Return the text of a token, or its name in the vocabulary where it has no text by itself."""
    name = tokenizer.backend.id_to_token(token)
    if name is None:
        return f"#{token}"
    text = tokenizer.decode([token])
    if not text.strip() or "\ufffd" in text:
        return visible(name)
    lost_space = name.startswith(("▁", " ")) and not text.startswith(" ")  # decoders drop the first space
    return f" {text}" if lost_space else text


# ---- beams


class SearchBranch(NamedTuple):
    """Tokens of a beam that only one beam continues, up to the next fork."""

    last: int  # the index, in the record, of its last token
    ids: list[int]  # from the first token of the text on
    forks: "list[SearchBranch]"


def beam_table(record: "Record", tokenizer: "Tokenizer") -> Table:
    """Return the beams of a search as a tree: the texts that ended with their ranks, and the beams that were dropped.

    Dropped beams that were less probable than every ranked text are left out.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("", "score", "log-prob", "beam"):
        table.add_column(name, justify="left" if name == "beam" else "right", no_wrap=True)
    ranks = _ranks(record)
    for lines, branch, text in _rows(_branches(record, ranks), tokenizer):
        node = record.nodes[branch.last]
        rank = ranks.get(branch.last)
        style = "dim" if rank is None and not branch.forks else "bold green" if rank == 1 else ""
        shown = Styled.assemble((lines, "dim"), (visible(text).replace("\n", "⏎"), style))
        if rank is None and not branch.forks:
            shown.append(" (dropped)", "dim")
        final = "" if rank is None or node.final is None else f"{node.final:.2f}"
        table.add_row("" if rank is None else str(rank), final, f"{node.score:.2f}", shown)
    return table


def _ranks(record: "Record") -> dict[int, int]:
    """Return the ranks of the best texts, one per beam, by the index of their last token."""
    alive = Counter(node.step for node in record.nodes if node.status == "kept")
    ended = {index: node.final for index, node in enumerate(record.nodes) if node.final is not None}
    best = sorted(ended, key=lambda index: -ended[index])[: max(alive.values(), default=1)]
    return {index: rank for rank, index in enumerate(best, start=1)}


def _branches(record: "Record", ranks: dict[int, int]) -> list[SearchBranch]:
    """Return the beams that lead to a ranked text or were at least as probable as the last of these, the best first."""
    nodes = record.nodes
    least = min((nodes[index].score for index in ranks), default=-float("inf"))
    ends = [*ranks, *(index for index, node in enumerate(nodes) if node.status == "kept" and node.score >= least)]
    # The children of every token, in the order of the best text that they lead to.
    children: dict[int | None, dict[int, None]] = defaultdict(dict)
    for end in ends:
        path = [end]
        while (parent := nodes[path[-1]].parent) is not None:
            path.append(parent)
        for index in reversed(path):
            children[nodes[index].parent][index] = None

    def branch(index: int, before: list[int]) -> SearchBranch:
        ids = [*before, nodes[index].token]
        while len(children[index]) == 1:
            (index,) = children[index]
            ids.append(nodes[index].token)
        return SearchBranch(index, ids, [branch(child, ids) for child in children[index]])

    return [branch(index, []) for index in children[None]]


def _rows(
    branches: list[SearchBranch], tokenizer: "Tokenizer", before: str = "", lines: str | None = None
) -> Iterator[tuple[str, SearchBranch, str]]:
    """Yield every branch with the lines of the tree on its left and its own text.

    ``before`` is the text that the branches continue, ``lines`` are those of their parent; None: they have none.
    """
    for number, branch in enumerate(branches, start=1):
        text = tokenizer.decode(branch.ids, skip_special=True)
        if branch.forks:
            text = text.rstrip("\ufffd")  # the next token completes this character
        own = text.removeprefix(before)
        if lines is None and branch.forks and not own:  # nothing but special tokens
            yield from _rows(branch.forks, tokenizer)
            continue
        is_last = number == len(branches)
        joint, below = ("", "") if lines is None else ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield (lines or "") + joint, branch, own.strip() or "(end)"
        yield from _rows(branch.forks, tokenizer, text, (lines or "") + below)
