"""Plots of FLOPs by kind of work: stacked shares of several models, or of one model over a varied size.

Needs matplotlib (``pip install 'glassformer[plot]'``). The same account gives the same bytes: no date, fixed ids.
Colours are those of Okabe and Ito (2008), safe for all kinds of colour vision; hatches and labels repeat them.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.inspect.account.account import Account
from glassformer.inspect.account.report import KINDS, human, main_kinds
from glassformer.inspect.account.sweep import Crossing, FlopsCurve, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
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
FAINT = "#00000038"  # hatches and edges
GREY = "#444444"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "glassformer",
    "svg.fonttype": "none",  # text stays text, for search, screen readers and copying
    "font.family": ["DejaVu Sans", "sans-serif"],  # the first is shipped with matplotlib
    "font.size": 11,
    "hatch.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DPI = 150
MIN_NUMBER_SHARE = 3.4  # per cent of a bar: the least that a number fits in
MIN_LABEL_SHARE = 9.0  # per cent of the height: the least that a name fits in
TITLE_INCHES = 0.72  # inches for the title
MIN_MARK_GAP = 0.24  # of the width: labels of marks that are closer than this would overlap
STEPS = 8  # points of a curve per doubling of the size
MAX_TICKS = 9


def check_plot(path: Path) -> None:
    """Raise unless a plot can be written to this file: known suffix, existing folder, matplotlib installed."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"a plot is a file ending in {' or '.join(SUFFIXES)}; got {path.name!r}. Use {path.stem}{SUFFIXES[0]}."
        )
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for {path.name}; create it first.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'glassformer[plot]'") from error


def plot_models(accounts: Sequence[Account], path: Path) -> None:
    """One bar per model: the shares of its FLOPs by kind, and the total."""
    check_plot(path)
    from matplotlib import rc_context

    with rc_context(STYLE):
        is_same_context = len({account.context for account in accounts}) == 1
        tokens = f", {accounts[0].context:,} tokens" if is_same_context else ""
        title = (
            "Where the FLOPs go, model by model" if len(accounts) > 1 else f"Where the FLOPs of {accounts[0].name} go"
        )
        figure, axes = _figure(1.9 + 0.55 * len(accounts), title, _workload(accounts[0]) + tokens)
        for row, account in enumerate(accounts):
            _bar(axes, row, account)
        names = [f"{account.name}\n{account.context:,} tokens" for account in accounts]
        axes.set_yticks(range(len(accounts)), [a.name for a in accounts] if is_same_context else names)
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the FLOPs of all matrix products, %")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        _legend(figure, {kind for account in accounts for kind in main_kinds(account.shares())})
        save_figure(figure, path)


def _bar(axes: "Axes", row: int, account: Account) -> None:
    left = 0.0
    for kind, flops in main_kinds(account.shares()).items():
        share = 100 * flops / account.forward_flops
        axes.barh(row, share, 0.7, left, color=COLOURS[kind], hatch=HATCHES[kind], edgecolor=FAINT, linewidth=0.8)
        if share >= MIN_NUMBER_SHARE:
            _label(axes, left + share / 2, row, f"{share:.1f}")
        left += share
    axes.text(101, row, human(account.flops, "FLOP"), va="center", ha="left")


def plot_sweep(accounts: Sequence[Account], sweep: Sweep, crossings: Sequence[Crossing], path: Path) -> None:
    """Shares over the varied size, an area per kind, and a line where attention overtakes another kind."""
    check_plot(path)
    if len(accounts) < 2:
        raise ValueError(f"a plot of a sweep needs at least two values; got {sweep.axis}={sweep.values[0]}.")
    from matplotlib import rc_context

    with rc_context(STYLE):
        title = f"Where the FLOPs of {accounts[0].name} go, by {sweep.axis}"
        figure, axes = _figure(6.0, title, _workload(accounts[0], sweep))
        # A logarithmic x axis, with the total FLOPs below the sizes.
        low, high = sweep.values[0], sweep.values[-1]
        axes.set_xscale("log", base=2)
        axes.set_xlim(low, high)
        axes.set_ylim(0, 100)
        axes.minorticks_off()
        shown = list(zip(sweep.values, accounts, strict=True))[:: -(-len(accounts) // MAX_TICKS)]
        ticks = [f"{value:,}\n{human(account.flops, 'FLOP')}" for value, account in shown]
        axes.set_xticks([value for value, _ in shown], ticks)
        label = {"context": "context, tokens", "source": "source, tokens", "batch": "batch, rows"}[sweep.axis]
        axes.set_xlabel(f"{label} (and total FLOPs)")
        axes.set_ylabel("share of the FLOPs of all matrix products, %")
        # Areas of the shares, and marks at the crossings.
        marks = sorted((value, rival) for rival, _, value in crossings if value is not None and low < value < high)
        present = _areas(axes, accounts[0], sweep, [value for value, _ in marks])
        _marks(axes, low, high, marks)
        _legend(figure, present)
        save_figure(figure, path)


def _areas(axes: "Axes", account: Account, sweep: Sweep, marks: Sequence[int]) -> set[str]:
    """Draw the shares as stacked areas, with names where they fit; returns the kinds that occur."""
    sizes = _curve_sizes(sweep.values)
    curve = FlopsCurve(account, sweep.axis)
    flops = [main_kinds(curve.at(size)) for size in sizes]
    present = [kind for kind in ORDER if any(kind in kinds for kinds in flops)]
    below = [0.0] * len(sizes)
    for kind in present:
        above = [low + 100 * kinds.get(kind, 0) / sum(kinds.values()) for low, kinds in zip(below, flops, strict=True)]
        axes.fill_between(
            sizes, below, above, facecolor=COLOURS[kind], hatch=HATCHES[kind], edgecolor=FAINT, linewidth=0.8
        )
        _name_area(axes, kind, list(zip(sizes, below, above, strict=True)), marks)
        below = above
    return set(present)


def _name_area(axes: "Axes", kind: str, edges: list[tuple[int, float, float]], marks: Sequence[int]) -> None:
    """Write the name of an area where it is thickest, away from the sides and from marks."""
    low, high = edges[0][0], edges[-1][0]

    def is_free(size: int) -> bool:
        return all(abs(log2(size / other)) > MIN_MARK_GAP / 2 * log2(high / low) for other in (low, high, *marks))

    candidates = [edge for edge in edges if is_free(edge[0]) and edge[2] - edge[1] >= MIN_LABEL_SHARE]
    if candidates:
        size, bottom, top = max(candidates, key=lambda edge: edge[2] - edge[1])
        _label(axes, size, (bottom + top) / 2, LABELS[kind].split(" q")[0].split(":")[0])


def _curve_sizes(values: Sequence[int]) -> list[int]:
    """Return the values, and enough integers between them for smooth curves."""
    sizes = {values[-1]}
    for low, high in pairwise(values):
        count = max(1, round(STEPS * log2(high / low)))
        sizes |= {round(low * (high / low) ** (step / count)) for step in range(count)}
    return sorted(sizes)


def _marks(axes: "Axes", low: int, high: int, marks: Sequence[tuple[int, str]]) -> None:
    """Draw a line at each size from which attention costs as much as another kind, with labels that do not overlap."""
    before = -1.0
    for value, rival in marks:
        axes.axvline(value, color="black", linestyle="--", linewidth=1.2)
        across = log2(value / low) / log2(high / low)
        side: Literal["left", "right", "center"] = "left" if across < 0.1 else "right" if across > 0.9 else "center"
        axes.annotate(
            f"attention = {'feed-forward' if rival == 'ffn' else rival}\nat {value:,}",
            (value, 100),
            (0, 5 if across - before > MIN_MARK_GAP else 36),
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


def _workload(account: Account, sweep: Sweep | None = None) -> str:
    """Describe the workload, without what is varied."""
    text = {"forward": "one forward pass", "train": "one training step", "decode": "one new token"}[account.mode]
    varied = None if sweep is None else sweep.axis
    if varied != "batch":
        text += f", batch {account.batch:,}"
    if varied is not None and varied != "context":
        text += f", {account.context:,} tokens"
    if account.has_source and varied != "source":
        text += (
            ", source of the same length"
            if varied == "context" and account.source_follows
            else f", source of {account.source:,}"
        )
    return text + (", unmasked pairs only" if account.causal == "exact" else "")


def _figure(height: float, title: str, workload: str) -> "tuple[Figure, Axes]":
    """Return a figure with a title, a line for the workload, and axes."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    height += TITLE_INCHES
    engine = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - TITLE_INCHES / height))
    figure = Figure(figsize=(10, height), layout=engine)
    figure.text(0.01, 1 - 0.1 / height, title, va="top", fontsize=14, fontweight="bold")
    figure.text(0.01, 1 - 0.4 / height, workload, va="top", fontsize=11, color=GREY)
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
    """Write a figure in the format of its suffix; the same figure gives the same bytes."""
    from glassformer.weights.saving import replacing  # imports torch

    with replacing(path) as new:
        if path.suffix.lower() == ".svg":
            figure.savefig(new, format="svg", metadata={"Date": None, "Creator": "glassformer"})
        else:
            figure.savefig(new, format="png", dpi=DPI, metadata={"Software": "glassformer"})
