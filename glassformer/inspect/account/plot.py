"""Pictures of where the FLOPs go: stacked shares of several models, or of one model over a size that grows.

Needs matplotlib (``pip install 'glassformer[plot]'``). The same account gives the same bytes: no date, fixed names.
Colours are those of Okabe and Ito (2008), which all kinds of colour vision tell apart; hatches and labels say the same.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.inspect.account.account import Account
from glassformer.inspect.account.growth import Growth
from glassformer.inspect.account.report import KINDS, five_kinds
from glassformer.inspect.account.sweep import Crossing, Sweep
from glassformer.inspect.account.units import human

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png")
ORDER = (*KINDS, "other")
COLOURS = {"projections": "#56B4E9", "attention": "#E69F00", "ffn": "#009E73", "head": "#CC79A7", "other": "#BBBBBB"}
HATCHES = {"projections": "//", "attention": "", "ffn": "..", "head": "xx", "other": "--"}
LABELS = {
    "projections": "projections q, k, v, o",
    "attention": "attention: scores, weighted sum",
    "ffn": "feed-forward network",
    "head": "head",
    "other": "other",
}
FAINT = "#00000038"  # of hatches and edges: seen, and not in the way
GREY = "#444444"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "glassformer",
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and copied
    "font.family": ["DejaVu Sans", "sans-serif"],  # the first comes with matplotlib
    "font.size": 11,
    "hatch.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DPI = 150
THIN = 3.4  # per cent of a bar: no number fits in less
THICK = 9.0  # per cent of the height: a name fits in it
HEAD = 0.72  # inches for the headline
CLOSE = 0.24  # of the width: words at two marks that are nearer would touch
STEPS = 8  # places between a value and its double at which a curve is drawn
MOST_TICKS = 9


def check_plot(path: Path) -> None:
    """Raise unless a picture can be drawn into this file: its ending is known, its folder and matplotlib are there."""
    if path.suffix.lower() not in ENDINGS:
        known = " or ".join(ENDINGS)
        raise ValueError(
            f"a picture's ending says what it is, {known}; got {path.name!r}. Say {path.stem}{ENDINGS[0]}."
        )
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to put {path.name} into; make it first.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'glassformer[plot]'") from error


def plot_models(accounts: Sequence[Account], path: Path) -> None:
    """One bar per model: the shares of its FLOPs, and how many they are."""
    check_plot(path)
    from matplotlib import rc_context

    with rc_context(STYLE):
        same = len({one.context for one in accounts}) == 1
        tokens = f", {accounts[0].context:,} tokens" if same else ""
        title = (
            "Where the FLOPs go, model by model" if len(accounts) > 1 else f"Where the FLOPs of {accounts[0].name} go"
        )
        figure, axes = _figure(1.9 + 0.55 * len(accounts), title, _load(accounts[0]) + tokens)
        for row, account in enumerate(accounts):
            _bar(axes, row, account)
        names = [one.name if same else f"{one.name}\n{one.context:,} tokens" for one in accounts]
        axes.set_yticks(range(len(accounts)), names)
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the FLOPs of all matrix products, %")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        _legend(figure, {kind for one in accounts for kind in five_kinds(one.shares())})
        save_figure(figure, path)


def _bar(axes: "Axes", row: int, account: Account) -> None:
    left = 0.0
    for kind, flops in five_kinds(account.shares()).items():
        share = 100 * flops / account.forward_flops
        axes.barh(row, share, 0.7, left, color=COLOURS[kind], hatch=HATCHES[kind], edgecolor=FAINT, linewidth=0.8)
        if share >= THIN:
            _label(axes, left + share / 2, row, f"{share:.1f}")
        left += share
    axes.text(101, row, human(account.flops, "FLOP"), va="center", ha="left")


def plot_sweep(accounts: Sequence[Account], sweep: Sweep, crossings: Sequence[Crossing], path: Path) -> None:
    """Shares over the size that is varied, each kind an area, and a line where attention catches up with another."""
    check_plot(path)
    if len(accounts) < 2:
        raise ValueError(f"a picture of a sweep needs at least two values; got {sweep.axis}={sweep.values[0]}.")
    from matplotlib import rc_context

    with rc_context(STYLE):
        title = f"Where the FLOPs of {accounts[0].name} go, by {sweep.axis}"
        figure, axes = _figure(6.0, title, _load(accounts[0], sweep))
        low, high = sweep.values[0], sweep.values[-1]
        axes.set_xscale("log", base=2)
        axes.set_xlim(low, high)
        axes.set_ylim(0, 100)
        axes.minorticks_off()
        shown = list(zip(sweep.values, accounts, strict=True))[:: -(-len(accounts) // MOST_TICKS)]
        ticks = [f"{value:,}\n{human(one.flops, 'FLOP')}" for value, one in shown]
        axes.set_xticks([value for value, _ in shown], ticks)
        words = {"context": "context, tokens", "source": "source, tokens", "batch": "batch, rows"}[sweep.axis]
        axes.set_xlabel(f"{words} (and the FLOPs in all)")
        axes.set_ylabel("share of the FLOPs of all matrix products, %")
        marks = sorted((one.value, one.rival) for one in crossings if one.value is not None and low < one.value < high)
        present = _areas(axes, accounts[0], sweep, [value for value, _ in marks])
        _marks(axes, low, high, marks)
        _legend(figure, present)
        save_figure(figure, path)


def _areas(axes: "Axes", account: Account, sweep: Sweep, marks: Sequence[int]) -> set[str]:
    """The shares as areas on top of each other, with their names where there is room; the kinds that there are."""
    places = _places(sweep.values)
    growth = Growth(account, sweep.axis)
    found = [five_kinds(growth.at(place)) for place in places]
    present = [kind for kind in ORDER if any(kind in one for one in found)]
    below = [0.0] * len(places)
    for kind in present:
        above = [low + 100 * one.get(kind, 0) / sum(one.values()) for low, one in zip(below, found, strict=True)]
        axes.fill_between(
            places, below, above, facecolor=COLOURS[kind], hatch=HATCHES[kind], edgecolor=FAINT, linewidth=0.8
        )
        _name_area(axes, kind, list(zip(places, below, above, strict=True)), marks)
        below = above
    return set(present)


def _name_area(axes: "Axes", kind: str, edges: list[tuple[int, float, float]], marks: Sequence[int]) -> None:
    """The name of an area where it is thickest, away from the sides and from marks."""
    low, high = edges[0][0], edges[-1][0]
    near = CLOSE / 2

    def has_room(place: int) -> bool:
        return all(abs(log2(place / other)) > near * log2(high / low) for other in (low, high, *marks))

    roomy = [edge for edge in edges if has_room(edge[0]) and edge[2] - edge[1] >= THICK]
    if roomy:
        place, bottom, top = max(roomy, key=lambda edge: edge[2] - edge[1])
        _label(axes, place, (bottom + top) / 2, LABELS[kind].split(" q")[0].split(":")[0])


def _places(values: Sequence[int]) -> list[int]:
    """The values, and whole numbers between them so close that the curves look smooth."""
    found = {values[-1]}
    for low, high in pairwise(values):
        count = max(1, round(STEPS * log2(high / low)))
        found |= {round(low * (high / low) ** (step / count)) for step in range(count)}
    return sorted(found)


def _marks(axes: "Axes", low: int, high: int, marks: Sequence[tuple[int, str]]) -> None:
    """A line at each size from which attention costs as much as another kind, with words above that do not touch."""
    before = -1.0
    for value, rival in marks:
        axes.axvline(value, color="black", linestyle="--", linewidth=1.2)
        across = log2(value / low) / log2(high / low)
        side: Literal["left", "right", "center"] = "left" if across < 0.1 else "right" if across > 0.9 else "center"
        axes.annotate(
            f"attention = {'feed-forward' if rival == 'ffn' else rival}\nat {value:,}",
            (value, 100),
            (0, 5 if across - before > CLOSE else 36),
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontsize=10,
            annotation_clip=False,
        )
        before = across


def _label(axes: "Axes", x: float, y: float, text: str) -> None:
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axes.text(x, y, text, ha="center", va="center", fontsize=10, bbox=box)


def _load(account: Account, sweep: Sweep | None = None) -> str:
    """What is run, but for what is varied."""
    words = {"forward": "one forward pass", "train": "one training step", "decode": "one new token"}[account.mode]
    varied = None if sweep is None else sweep.axis
    if varied != "batch":
        words += f", batch {account.batch:,}"
    if varied is not None and varied != "context":
        words += f", {account.context:,} tokens"
    if account.has_source and varied != "source":
        words += ", source as long" if varied == "context" and account.follows else f", source of {account.source:,}"
    return words + (", causal pairs alone" if account.causal == "exact" else "")


def _figure(height: float, title: str, load: str) -> "tuple[Figure, Axes]":
    """Axes under a headline."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    height += HEAD
    engine = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - HEAD / height))
    figure = Figure(figsize=(10, height), layout=engine)
    figure.text(0.01, 1 - 0.1 / height, title, va="top", fontsize=14, fontweight="bold")
    figure.text(0.01, 1 - 0.4 / height, load, va="top", fontsize=11, color=GREY)
    return figure, figure.add_subplot()


def _legend(figure: "Figure", kinds: set[str]) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=COLOURS[kind], hatch=HATCHES[kind], edgecolor=FAINT, label=LABELS[kind])
        for kind in ORDER
        if kind in kinds
    ]
    look = {"frameon": False, "fontsize": 10, "handlelength": 1.8, "columnspacing": 1.4}
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), **look)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure as its ending says; the same figure gives the same bytes."""
    if path.suffix.lower() == ".svg":
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": "glassformer"})
    else:
        figure.savefig(path, format="png", dpi=DPI, metadata={"Software": "glassformer"})
