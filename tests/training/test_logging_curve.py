"""The picture of a run: what is drawn is what the log says."""

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from glassformer.training.logging.curve import (
    LEFT,
    LOSS,
    RATE,
    RIGHT,
    Point,
    draw_curve,
    linear_axis,
    smooth,
    thin,
    value_axis,
    whole_axis,
)
from glassformer.training.logging.sinks import RunLog

SVG = "{http://www.w3.org/2000/svg}"
Losses = dict[int, float]


def drawn(folder: Path, losses: Losses, validations: Losses | None = None, rates: Losses | None = None) -> ET.Element:
    """The picture of a run with these losses."""
    with RunLog(folder / "log.jsonl") as log:
        for step, loss in losses.items():
            log.write("step", step, {"loss": loss} | ({} if rates is None else {"lr": rates[step]}), {"seconds": 0.1})
            if validations and step in validations:
                log.write("validation", step, {"loss": validations[step]})
        log.write("checkpoint", step, {})
    draw_curve(folder / "log.jsonl", folder / "pictures" / "loss.svg")
    return ET.parse(folder / "pictures" / "loss.svg").getroot()


def line(picture: ET.Element, kind: str) -> list[tuple[float, float]]:
    """The places that a line goes through; the legend has lines of two numbers, which are left out."""
    result = [path.attrib["d"] for path in picture.iter(f"{SVG}path") if path.attrib["class"] == kind]
    (where,) = [d for d in result if not d.endswith("h20")]
    numbers = [float(number) for number in where.removeprefix("M").removesuffix("h0").split()]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def dots(picture: ET.Element, kind: str) -> list[tuple[float, float]]:
    """Centres of circles, without those of the legend."""
    every = [dot.attrib for dot in picture.iter(f"{SVG}circle") if dot.attrib["class"] == kind]
    return [(float(item["cx"]), float(item["cy"])) for item in every if float(item["cy"]) > LOSS[1] - 10]


def texts(picture: ET.Element) -> list[str]:
    return [text.text for text in picture.iter(f"{SVG}text") if text.text]


def test_values_are_where_the_axes_say(tmp_path: Path) -> None:
    """Five steps from 4 to 0 on axes that begin and end there."""
    picture = drawn(tmp_path, {1: 4.0, 2: 3.0, 3: 2.0, 4: 1.0, 5: 0.0}, {3: 2.5, 5: 1.5})
    across, (bottom, top) = RIGHT - LEFT, LOSS
    up = (bottom - top) / 4
    assert line(picture, "mean") == [(LEFT + n * across / 4, top + n * up) for n in range(5)]
    assert line(picture, "tried") == [(LEFT + across / 2, top + 1.5 * up), (RIGHT, top + 2.5 * up)]
    assert dots(picture, "dot") == line(picture, "tried")
    assert dots(picture, "best") == [(RIGHT, top + 2.5 * up)]
    assert {"1", "2", "3", "4", "5", "0", "step", "loss", "training", "best: 1.5 at step 5"} <= {*texts(picture)}
    assert not any("learning rate" in text for text in texts(picture))


def test_the_learning_rate_has_a_panel_of_its_own(tmp_path: Path) -> None:
    rates = {1: 0.0, 2: 2e-4, 3: 4e-4, 4: 1e-4}
    picture = drawn(tmp_path, dict.fromkeys(rates, 1.0), rates=rates)
    bottom, top = RATE
    heights = [y for _, y in line(picture, "rate")]
    assert heights == pytest.approx([bottom, (bottom + top) / 2, top, bottom + (top - bottom) / 4])
    assert {"learning rate", "0", "0.0002", "0.0004"} <= {*texts(picture)}
    same = drawn(tmp_path, dict.fromkeys(rates, 1.0), rates=dict.fromkeys(rates, 1e-3))
    assert "learning rate" not in texts(same)  # nothing to see


def test_a_long_run_is_thinned_and_no_spike_is_lost(tmp_path: Path) -> None:
    losses = {step: 2 + math.sin(step) / 10 for step in range(1, 8001)}
    losses[2345], losses[6456] = 4.9, 1.1  # alone among thousands
    picture = drawn(tmp_path, losses)
    each = line(picture, "each")
    assert 600 < len(each) <= 750
    assert len(line(picture, "mean")) <= 750
    bottom, top = LOSS
    assert min(y for _, y in each) == pytest.approx(top + 0.1 / 4 * (bottom - top), abs=0.1)
    assert max(y for _, y in each) == pytest.approx(bottom - 0.1 / 4 * (bottom - top), abs=0.1)
    assert [x for x, _ in each] == sorted(x for x, _ in each)
    assert (tmp_path / "pictures" / "loss.svg").stat().st_size < 40_000
    middle, raw = ([y for _, y in line(picture, kind)] for kind in ("mean", "each"))
    assert max(middle) - min(middle) < 0.1 * (max(raw) - min(raw))  # what is smoothed is steady


def test_the_same_log_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "run").mkdir(parents=True)
        drawn(tmp_path / name / "run", {1: 3.0, 2: 2.0}, {2: 2.5})
    item, other = ((tmp_path / name / "run" / "pictures" / "loss.svg").read_bytes() for name in ("a", "b"))
    assert item == other


def test_what_is_not_finite_is_left_out_and_told(tmp_path: Path) -> None:
    picture = drawn(tmp_path, {1: 3.0, 2: math.nan, 3: math.inf, 4: 1.0}, {2: math.nan, 4: 2.0})
    assert len(line(picture, "mean")) == 2
    assert len(line(picture, "tried")) == 1
    assert "Steps without a finite loss, left out: 2." in texts(picture)
    assert "left out: 2." in (picture.findtext(f"{SVG}desc") or "")


@pytest.mark.parametrize("value", [4.2, 0.0, -1.0, 1e-9, 1e9])
def test_one_point(tmp_path: Path, value: float) -> None:
    picture = drawn(tmp_path, {7: value})
    ((x, y),) = line(picture, "mean")
    assert x == (LEFT + RIGHT) / 2
    assert LOSS[1] <= y <= LOSS[0]
    assert "7" in texts(picture)


def test_values_of_very_different_size_get_a_logarithmic_axis(tmp_path: Path) -> None:
    picture = drawn(tmp_path, {1: 10.0, 2: 1.0, 3: 0.1})
    middle = sum(LOSS) / 2
    assert [y for _, y in line(picture, "mean")] == [LOSS[1], middle, LOSS[0]]
    assert {"loss, logarithmic", "0.1", "1", "10"} <= {*texts(picture)}


def test_the_best_is_what_the_log_calls_so(tmp_path: Path) -> None:
    """A run may go by another figure than the loss."""
    log = tmp_path / "log.jsonl"
    rows = [{"kind": "step", "step": step, "loss": 3.0} for step in (1, 2, 3)]
    rows += [
        {"kind": "validation", "step": 1, "loss": 1.0, "best": True},
        {"kind": "validation", "step": 2, "loss": 2.0, "best": True},
        {"kind": "validation", "step": 3, "loss": 1.5, "best": False},
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    draw_curve(log, tmp_path / "loss.svg", title='a <b> & \x1b[31m "c"')
    picture = ET.parse(tmp_path / "loss.svg").getroot()
    assert "best: 2 at step 2" in texts(picture)
    assert texts(picture)[0] == 'a <b> & ·[31m "c"'


def test_words_for_those_who_do_not_see_it(tmp_path: Path) -> None:
    picture = drawn(tmp_path, {1: 4.0, 2000: 1.25}, {2000: 1.5})
    assert picture.findtext(f"{SVG}title") == f"Loss of {tmp_path.name}"
    assert picture.findtext(f"{SVG}desc") == (
        "Training loss from 4 at step 1 to 1.25 at step 2,000. Best validation: loss 1.5 at step 2,000."
    )
    assert picture.attrib["role"] == "img"
    assert "prefers-color-scheme: dark" in (picture.findtext(f"{SVG}style") or "")


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with pytest.raises(ValueError, match=r"there is no log .*log\.jsonl"):
        draw_curve(log, tmp_path / "loss.svg")
    for text in ("", '{"kind": "validation", "step": 3, "loss": 1}\n', '{"kind": "step", "step": 1, "loss": null}\n'):
        log.write_text(text)
        with pytest.raises(ValueError, match="holds no step with a finite loss"):
            draw_curve(log, tmp_path / "loss.svg")
    for text in ("not json\n", "[1]\n", '{"kind": "step"}\n'):
        log.write_text(text)
        with pytest.raises(ValueError, match="is not the log of a run"):
            draw_curve(log, tmp_path / "loss.svg")
    assert not (tmp_path / "loss.svg").exists()


def test_half_a_line_at_the_end_is_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"kind": "step", "step": 1, "loss": 1.0}\n{"kind": "st')
    draw_curve(log, tmp_path / "loss.svg")
    assert line(ET.parse(tmp_path / "loss.svg").getroot(), "mean")


def test_smoothing_by_hand() -> None:
    points = [Point(step, float(value)) for step, value in enumerate((6, 0, 3, 9, 0))]
    assert [point.value for point in smooth(points, 1)] == [6.0, 3.0, 4.0, 4.0, 0.0]
    assert [point.value for point in smooth(points, 2)] == [6.0, 3.0, pytest.approx(3.6), 4.0, 0.0]
    assert smooth(points, 0) == points


def test_thinning_by_hand() -> None:
    values = [5, 1, 9, 3, 2, 8, 8, 8]
    points = [Point(step, float(value)) for step, value in enumerate(values)]
    assert [point.value for point in thin(points, 2)] == [1.0, 9.0, 2.0, 8.0]
    assert [point.step for point in thin(points, 2)] == [1, 2, 4, 5]
    assert thin(points, 4) == points


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1.2, 4.4], ["1", "2", "3", "4", "5"]),
        ([0.0, 1.0], ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ([2.31, 2.34], ["2.310", "2.315", "2.320", "2.325", "2.330", "2.335", "2.340"]),
        ([0.0, 6e-5], ["0", "1e-5", "2e-5", "3e-5", "4e-5", "5e-5", "6e-5"]),
        ([0.0, 25_000.0], ["0", "5,000", "10,000", "15,000", "20,000", "25,000"]),
        ([-1.0, 1.0], ["-1.0", "-0.5", "0", "0.5", "1.0"]),
    ],
)
def test_round_numbers_along_an_axis(values: list[float], labels: list[str]) -> None:
    axis = linear_axis(values, (0.0, 1.0), 6)
    assert [label for _, label in axis.ticks] == labels
    assert axis.scale(axis.ticks[0][0]) == 0.0
    assert axis.scale(axis.ticks[-1][0]) == pytest.approx(1.0)


def test_axes_of_steps_and_of_powers() -> None:
    assert [label for _, label in whole_axis([1, 5000], (0, 1), 8).ticks] == [
        "1,000",
        "2,000",
        "3,000",
        "4,000",
        "5,000",
    ]
    assert [label for _, label in whole_axis([1, 2], (0, 1), 8).ticks] == ["1", "2"]
    assert [label for _, label in value_axis([0.3, 11.0], (0, 1), 6).ticks] == ["0.2", "0.5", "1", "2", "5", "10", "20"]
    assert [label for _, label in value_axis([1e-6, 1.5], (0, 1), 6).ticks] == [
        "1e-06", "1e-05", "0.0001", "0.001", "0.01", "0.1", "1",
    ]  # fmt: skip
