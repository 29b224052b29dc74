"""The tree of the beams: its forks, its ranks, and columns that wide characters leave aligned."""

from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console

from glassformer.cli.search_tables import beam_table
from glassformer.generation.search import Node, Record, Status

WORDS = ["<zh>", "今天", "天气", "很", "好", "。", "晚上", "</s>", "x"]


class Words:
    """A tokenizer whose tokens are words; those in angle brackets are special."""

    def decode(self, ids: Iterable[int], *, skip_special: bool) -> str:
        assert skip_special
        return "".join(WORDS[number] for number in ids if not WORDS[number].startswith("<"))


def record(*beams: tuple[int | None, str, float, Status, float | None]) -> Record:
    """Nodes from (parent, token, sum of log-probabilities, status, final score)."""
    steps: list[int] = []
    nodes = []
    for parent, token, score, status, final in beams:
        steps.append(0 if parent is None else steps[parent] + 1)
        nodes.append(Node(steps[-1], parent, WORDS.index(token), score, score, status, 0, final))
    return Record(nodes)


SEARCH = record(
    (None, "<zh>", 0.0, "kept", None),
    (0, "今天", -0.1, "kept", None),
    (0, "晚上", -2.0, "kept", None),  # given up, though more probable than the second text
    (1, "天气", -0.2, "kept", None),
    (1, "x", -9.0, "kept", None),  # given up, and less probable
    (3, "很", -0.5, "kept", None),
    (3, "好", -1.5, "kept", None),
    (5, "好", -0.6, "kept", None),
    (6, "</s>", -2.5, "ended", -0.5),
    (7, "</s>", -0.7, "ended", -0.1),
    (7, "。", -3.0, "dropped", None),
)


def shown(width: int = 60) -> list[str]:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(beam_table(SEARCH, Words()))  # type: ignore[arg-type]
    return captured.get().splitlines()


def test_the_tree() -> None:
    assert [line.rstrip() for line in shown()] == [
        "   score  log-prob  beam",
        "             -0.20  今天天气",
        "1  -0.10     -0.70  ├─ 很好",
        "2  -0.50     -2.50  └─ 好",
        "             -2.00  晚上 (dropped)",
    ]


def test_wide_characters_leave_the_columns_aligned() -> None:
    assert len({cell_len(line) for line in shown()}) == 1
