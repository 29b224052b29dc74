"""The loss curve of a run: an SVG file from its log, by the standard library alone.

Above, the training loss (every step faint, its mean over neighbouring steps strong) and the validation loss with its
best; below, the learning rate. The same log gives the same bytes. However long the run, the file stays small: of steps
that fall on the same pixel the lowest and the highest loss are drawn, so that no spike is lost.

Why not matplotlib: every run draws its curve, and matplotlib is an optional dependency; nor can its SVG files follow
the reader's light or dark mode, be read by a screen reader, or stay the same bytes from one version to the next.

Colours are those of Okabe and Ito (2008), which are distinct for all kinds of colour vision.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, floor, isfinite, log10
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from glassformer.training.logging.progress import spaced
from glassformer.training.logging.sinks import read_log
from glassformer.weights.saving import write_text

ROUND = (1, 2, 5, 10)
MANY = 30.0  # ratio of the largest to the smallest value above which an axis is logarithmic


@dataclass(frozen=True)
class Scale:
    """A linear map from values, or from their logarithms, to pixels."""

    values: tuple[float, float]
    pixels: tuple[float, float]
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        (low, high), (first, last) = self.values, self.pixels
        if self.logarithmic:
            low, high, value = log10(low), log10(high), log10(value)
        return first + (value - low) / (high - low) * (last - first)


@dataclass(frozen=True)
class Axis:
    """A scale with its ticks: values and their labels."""

    scale: Scale
    ticks: list[tuple[float, str]]


def linear_axis(values: Sequence[float], pixels: tuple[float, float], most: int, *, fits: bool = False) -> Axis:
    """Return an axis with at most ``most`` + 1 ticks at round values.

    It begins and ends at a tick; with ``fits`` at the smallest and the largest value.
    """
    low, high = min(values), max(values)
    if low == high:
        low, high = low - (abs(low) / 10 or 1.0), high + (abs(high) / 10 or 1.0)
    step = _round_up((high - low) / most)
    first, last = (ceil(low / step), floor(high / step)) if fits else (floor(low / step), ceil(high / step))
    ends = (low, high) if fits else (first * step, last * step)
    decimals = max(0, -floor(log10(step) + 1e-9))
    return Axis(Scale(ends, pixels), [(n * step, _number(n * step, decimals)) for n in range(first, last + 1)])


def value_axis(values: Sequence[float], pixels: tuple[float, float], most: int) -> Axis:
    """Return a linear axis; a logarithmic one if the values differ by orders of magnitude."""
    low, high = min(values), max(values)
    if low <= 0 or high / low < MANY:
        return linear_axis(values, pixels, most)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    ticks = [part * 10.0**power for power in powers for part in ROUND[:3]]
    ends = max(tick for tick in ticks if tick <= low), min(tick for tick in ticks if tick >= high)
    kept = [tick for tick in ticks if ends[0] <= tick <= ends[1]]
    if len(kept) > 2 * most:
        kept = [tick for tick in kept if tick in {10.0**power for power in powers}]
    return Axis(Scale(ends, pixels, logarithmic=True), [(tick, f"{tick:g}") for tick in kept])


def whole_axis(values: Sequence[int], pixels: tuple[float, float], most: int) -> Axis:
    """Return a linear axis from the first to the last integer, with integers as ticks."""
    axis = linear_axis(values, pixels, most, fits=True)
    if len(set(values)) == 1:
        return Axis(axis.scale, [(values[0], f"{values[0]:,}")])
    return Axis(axis.scale, [(value, f"{round(value):,}") for value, _ in axis.ticks if value == round(value)])


def _round_up(step: float) -> float:
    power = 10.0 ** floor(log10(step))
    return next(part * power for part in ROUND if part * power >= step * (1 - 1e-9))


def _number(value: float, decimals: int) -> str:
    if value and decimals > 4:
        number, power = f"{value:.1e}".split("e")
        return f"{number.removesuffix('.0')}e{int(power)}"
    return f"{value + 0.0:,.{decimals}f}" if value else "0"


WIDTH, LEFT, RIGHT = 840, 66, 816  # of the picture; of what is drawn in it
LOSS = (344, 84)  # bottom and top of the loss
RATE = (440, 380)  # and of the learning rate
BINS = 375  # intervals of the axis for which the lowest and the highest value are drawn
DOTS = 80  # up to this many validations get a dot each
CHARACTER = 6.4  # average width of a character, for the legend

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #424a53 }
.name { font-size: 15px; font-weight: 600; fill: #1f2328 }
.paper { fill: #ffffff } .grid { stroke: #e3e6ea } .axis { stroke: #8c959f }
path, line { fill: none; stroke-width: 1; vector-effect: non-scaling-stroke } path { stroke-linejoin: round }
.each { stroke: #0072b2; opacity: .35 } .mean { stroke: #0072b2; stroke-width: 2 }
.rate { stroke: #57606a; stroke-width: 1.5 } .tried { stroke: #d55e00; stroke-width: 2 }
.dot { fill: #d55e00 } .best { fill: none; stroke: #d55e00; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #b1bac4 } .name { fill: #f0f6fc }
.paper { fill: #0d1117 } .grid { stroke: #262c34 } .axis { stroke: #6e7681 }
.each, .mean { stroke: #56b4e9 } .each { opacity: .5 } .rate { stroke: #9198a1 }
.tried, .best { stroke: #e69f00 } .dot { fill: #e69f00 }
}
"""


class Point(NamedTuple):
    """A value after a step."""

    step: int
    value: float


@dataclass(frozen=True)
class Curves:
    """The curves in a log; values that are not finite are left out."""

    train: list[Point]
    validation: list[Point]
    rate: list[Point]
    best: Point | None  # the last validation that is marked as best, else the one with the lowest loss
    not_finite: int  # steps whose loss is not finite


def draw_curve(log: Path, svg: Path, *, title: str | None = None) -> None:
    """Draw the curves of a run.

    Args:
        log: of the run, as ``sinks.RunLog`` writes it.
        svg: the file to write; its folder is created if needed.
        title: by default the name of the log's folder.
    """
    curves = read_curves(log)
    svg.parent.mkdir(parents=True, exist_ok=True)
    write_text(svg, svg_of(curves, log.resolve().parent.name if title is None else title))


def read_curves(log: Path) -> Curves:
    """Return the losses and learning rates of a log."""
    return curves_of(read_lines(log), log)


def read_lines(log: Path) -> list[dict[str, Any]]:
    """Return the lines of a log in the order of their steps; raise if it is not the log of a run."""
    if not log.is_file():
        raise ValueError(f"there is no log {log} to draw a curve from.")
    try:
        return sorted(read_log(log), key=lambda line: int(line["step"]))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{log} is not the log of a run: a line is not a JSON object with a step ({error})."
        ) from error


def curves_of(lines: Sequence[dict[str, Any]], log: Path) -> Curves:
    """Return the losses and learning rates in the lines of a log; its path is for errors."""
    steps = [line for line in lines if line.get("kind") == "step"]
    train = _points(steps, "loss")
    if not train:
        raise ValueError(f"{log} holds no step with a finite loss, so there is nothing to draw yet.")
    validations = [line for line in lines if line.get("kind") == "validation"]
    validation, marked = _points(validations, "loss"), _points((v for v in validations if v.get("best")), "loss")
    best = marked[-1] if marked else min(validation, key=lambda point: point.value, default=None)
    return Curves(train, validation, _points(steps, "lr"), best, len(steps) - len(train))


def _points(lines: Iterable[dict[str, Any]], name: str) -> list[Point]:
    pairs = ((line["step"], line.get(name)) for line in lines)
    return [Point(step, float(value)) for step, value in pairs if isinstance(value, int | float) and isfinite(value)]


def smooth(points: Sequence[Point], neighbours: int) -> list[Point]:
    """Return the mean of each value with ``neighbours`` neighbours on both sides; fewer towards the ends."""
    sums = [0.0, *accumulate(point.value for point in points)]
    means = []
    for index, point in enumerate(points):
        near = min(neighbours, index, len(points) - 1 - index)
        means.append(Point(point.step, (sums[index + near + 1] - sums[index - near]) / (2 * near + 1)))
    return means


def thin(points: Sequence[Point], bins: int) -> list[Point]:
    """Keep at most two points for each of ``bins`` intervals of the axis: the lowest and the highest, in order."""
    if len(points) <= 2 * bins:
        return list(points)
    first, span = points[0].step, max(1, points[-1].step - points[0].step)
    binned: dict[int, list[Point]] = {}
    for point in points:
        binned.setdefault(min(bins - 1, (point.step - first) * bins // span), []).append(point)
    kept = []
    for some in binned.values():
        ends = {min(some, key=lambda point: point.value), max(some, key=lambda point: point.value)}
        kept += sorted(ends)
    return kept


def svg_of(curves: Curves, title: str) -> str:
    """Return the curves as SVG."""
    neighbours = len(curves.train) // 100
    means = smooth(curves.train, neighbours)
    steps = [point.step for point in (*curves.train, *curves.validation)]
    has_rate = len({point.value for point in curves.rate}) > 1
    bottom = RATE[0] if has_rate else LOSS[0]
    # Axes of step and loss.
    x = whole_axis(steps, (LEFT, RIGHT), 8)
    y = value_axis([point.value for point in (*curves.train, *curves.validation)], LOSS, 6)
    parts = _vertical(x, LOSS, labels=not has_rate)
    parts += _horizontal(y, "loss, logarithmic" if y.scale.logarithmic else "loss")
    # Learning rate, below.
    if has_rate:
        rate = linear_axis([0.0, *(point.value for point in curves.rate)], RATE, 2)
        parts += _vertical(x, RATE, labels=True) + _horizontal(rate, "learning rate")
        parts.append(_path("rate", thin(curves.rate, BINS), x, rate))
    # Loss of every step, its running mean, validation.
    if neighbours:
        parts.append(_path("each", thin(curves.train, BINS), x, y))
    parts.append(_path("mean", thin(means, BINS), x, y))
    parts += _validation(curves, x, y)
    parts.append(f'<text x="{(LEFT + RIGHT) / 2:g}" y="{bottom + 38}" text-anchor="middle">step</text>')
    return _sheet(parts + _legend(curves, 2 * neighbours + 1), title, curves, bottom + 50)


def _validation(curves: Curves, x: Axis, y: Axis) -> list[str]:
    if curves.best is None:
        return []
    parts = [_path("tried", thin(curves.validation, BINS), x, y)]
    if len(curves.validation) <= DOTS:
        parts += [_dot("dot", 3, x.scale(step), y.scale(value)) for step, value in curves.validation]
    return [*parts, _dot("best", 6, x.scale(curves.best.step), y.scale(curves.best.value))]


def _path(kind: str, points: Sequence[Point], x: Axis, y: Axis) -> str:
    """Return a line through the points; a single point is a line of length 0 with round ends."""
    pixels = [f"{x.scale(step):.1f} {y.scale(value):.1f}" for step, value in points]
    dot = f' stroke-linecap="round" style="stroke-width: 6" d="M{pixels[0]}h0"' if len(pixels) == 1 else ""
    return f'<path class="{kind}"' + (dot or f' d="M{" ".join(pixels)}"') + "/>"


def _dot(kind: str, radius: float, x: float, y: float) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def _vertical(x: Axis, ends: tuple[int, int], *, labels: bool) -> list[str]:
    bottom, top = ends
    parts = [f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>' for at in _pixels(x)]
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    if labels:
        parts += [
            f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
            for at, (_, label) in zip(_pixels(x), x.ticks, strict=True)
        ]
    return parts


def _horizontal(y: Axis, name: str) -> list[str]:
    parts = []
    for at, (_, label) in zip(_pixels(y), y.ticks, strict=True):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    return [*parts, f'<text x="{LEFT}" y="{y.scale.pixels[1] - 8}">{name}</text>']


def _pixels(axis: Axis) -> list[float]:
    return [axis.scale(value) for value, _ in axis.ticks]


def _legend(curves: Curves, window: int) -> list[str]:
    entries = [("mean", "training")]
    if window > 1:
        entries = [("each", "training, every step"), ("mean", f"mean of {window:,} steps")]
    if curves.best is not None:
        entries += [("tried", "validation"), ("best", f"best: {curves.best.value:.4g} at step {curves.best.step:,}")]
    parts, at = [], float(LEFT)
    for kind, label in entries:
        symbol = f'<path class="{kind}" d="M{at:.0f} 50h20"/>' if kind != "best" else _dot("best", 6, at + 10, 50)
        parts.append(f'{symbol}<text x="{at + 28:.0f}" y="54">{label}</text>')
        at += 28 + CHARACTER * len(label) + 20
    return parts


def _description(curves: Curves) -> str:
    """Return a description of the curves, for screen readers."""
    first, last = curves.train[0], curves.train[-1]
    text = f"Training loss from {first.value:.4g} at step {first.step:,} to {last.value:.4g} at step {last.step:,}."
    if curves.best is not None:
        text += f" Best validation: loss {curves.best.value:.4g} at step {curves.best.step:,}."
    return f"{text} {_not_finite(curves)}".rstrip()


def _not_finite(curves: Curves) -> str:
    return f"Steps without a finite loss, left out: {curves.not_finite:,}." if curves.not_finite else ""


def _sheet(parts: Sequence[str], title: str, curves: Curves, height: int) -> str:
    name = escape(spaced(title).replace("\n", " "))
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" aria-labelledby="title words">',
            f'<title id="title">Loss of {name}</title>',
            f'<desc id="words">{_description(curves)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
            f'<text class="name" x="{LEFT}" y="28">{name}</text>',
            f'<text x="{RIGHT}" y="28" text-anchor="end">{_not_finite(curves)}</text>',
            *parts,
            "</svg>\n",
        )
    )
