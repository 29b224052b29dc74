"""What is seen of a run in a terminal, and what stands in a file."""

import io
import math
import re
import subprocess
import sys
import unicodedata
from itertools import product
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from glassformer.training.logging.progress import Meter, ProgressDisplay, as_number, as_time, spaced
from glassformer.training.logging.throughput import Utilisation
from glassformer.training.loop import StepReport
from tests.helpers import some_at_once

STEPS = 1000
BUSY = Utilisation(flops_per_token=1e9, peak=1e14)
_PIECES = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|(.)", re.DOTALL)


def screen(written: str) -> list[str]:
    """What stands on a terminal in the end. It knows as much as a bar needs that is drawn again and again: any movement
    of the cursor but up and to the start is an error."""
    lines, row, column = [""], 0, 0
    for number, command, letter in _PIECES.findall(written):
        if command == "A":
            row -= int(number or 1)
        elif command == "K":
            assert number == "2"
            lines[row] = ""
        elif letter == "\r":
            column = 0
        elif letter == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif letter:
            assert letter.isprintable(), repr(letter)
            lines[row] = lines[row][:column].ljust(column) + letter + lines[row][column + 1 :]
            column += 1
        else:
            assert command in "mhl", f"unknown: {number}{command}"  # colours; the cursor hidden and shown
    return lines


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def paper(clock: Clock, *, width: int = 80, terminal: bool = False, encoding: str = "utf-8") -> Console:
    """A console that writes down what it is told; its clock is ours."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    return Console(file=file, width=width, force_terminal=terminal, get_time=clock, legacy_windows=False, _environ={})


def written(console: Console) -> str:
    console.file.flush()
    return console.file.buffer.getvalue().decode(console.encoding)  # type: ignore[attr-defined]


def report(
    step: int, loss: float = 2.0, *, seconds: float = 0.5, steps: int = STEPS, skipped: bool = False
) -> StepReport:
    return StepReport(
        step=step,
        loss=loss,
        terms={},
        metrics={},
        lr=3e-4,
        grad_norm=0.824,
        tokens=1000,
        tokens_seen=1000 * step,
        seconds=seconds,
        fraction=step / steps,
        skipped=skipped,
    )


def test_a_line_of_a_file_has_all_figures() -> None:
    clock = Clock()
    console = paper(clock)
    with ProgressDisplay(console, steps=STEPS, name="unseen here", utilisation=BUSY) as progress:
        clock.now = 1.0
        progress.step(report(1, 4.0), epoch=1, memory=12_340_000_000)
    assert written(console) == (
        "step 1 of 1,000  0 %  epoch 1  loss 4.0000 (last 4.0000)  lr 3.00e-04  grad norm 0.82  2,000 tokens/s  "
        "MFU 2.0 %  memory 12.34 GB  8:20 left\n"
    )


def test_what_is_not_known_is_left_out() -> None:
    console = paper(Clock())
    with ProgressDisplay(console) as progress:
        progress.step(report(500, seconds=3.0))
    assert written(console) == (
        "step 500  50 %  loss 2.0000 (last 2.0000)  lr 3.00e-04  grad norm 0.82  333 tokens/s  0:03 left\n"
    )


def test_lines_come_by_steps_and_by_seconds() -> None:
    def steps_of(seconds: float, steps: int) -> list[int]:
        clock = Clock()
        console = paper(clock)
        with ProgressDisplay(console, steps=STEPS) as progress:
            for step in range(1, steps + 1):
                clock.now += seconds
                progress.step(report(step, seconds=seconds))
        return [int(number) for number in re.findall(r"^step (\d+)", written(console), re.MULTILINE)]

    assert steps_of(0.5, 310) == [1, 61, 100, 160, 200, 260, 300, 310]  # 30 seconds are 60 steps; the last one at close
    assert steps_of(0.1, 250) == [1, 100, 200, 250]
    assert steps_of(1 / 64, 650) == [1, 129, 257, 385, 513, 641, 650]  # not within two seconds of each other
    assert steps_of(40.0, 4) == [1, 2, 3, 4]


def test_events_in_a_file() -> None:
    console = paper(Clock())
    with ProgressDisplay(console, steps=STEPS) as progress:
        progress.validation(1000, 2.105, {"perplexity": 8.36, "bleu": 31.2}, best=True)
        progress.validation(2000, 2.2)
        progress.sample(1000, "there was\n\ta king", "Once ")
        progress.checkpoint(1000, Path("runs/a [bold]b/step-00001000"), best=True)
        progress.note("a disk is full:\n[red]look[/]")
    assert written(console) == (
        "validation  step 1,000  loss 2.1050 (best so far)  perplexity 8.3600  bleu 31.200\n"
        "validation  step 2,000  loss 2.2000\n"
        "sample      step 1,000\n"
        "  Once there was\n"
        "      a king\n"
        "checkpoint  step 1,000  (best so far)  runs/a [bold]b/step-00001000\n"
        "note        a disk is full: [red]look[/]\n"
    )


def noisy_run(console: Console, clock: Clock) -> None:
    with ProgressDisplay(
        console, steps=STEPS, name="a run with a name that is a little long", utilisation=BUSY
    ) as progress:
        progress.note("it begins, " + "and so it goes on " * 8)
        for step in range(1, 61):
            clock.now += 0.6
            progress.step(report(step, skipped=step == 7), epoch=1, memory=10**9)
            if step % 20 == 0:
                progress.validation(step, 2.0, {"accuracy": 0.5, "an uncommonly long name of a metric " * 3: 1.0})
                progress.sample(step, "\x1b[31mred\x07 \ttab\r\u0085 \udcff 王様 " + "word " * 40, "p")
                progress.checkpoint(step, Path("/far/away" * 20))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_no_control_characters_in_a_file_whatever_the_model_writes(encoding: str) -> None:
    clock = Clock()
    console = paper(clock, encoding=encoding)
    noisy_run(console, clock)
    text = written(console)
    assert "red" in text
    assert [c for c in text if unicodedata.category(c) == "Cc" and c != "\n"] == []
    assert ("王様" in text) == (encoding == "utf-8")


@pytest.mark.parametrize("width", [80, 60, 40])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    clock = Clock()
    console = paper(clock, width=width, terminal=True)
    noisy_run(console, clock)
    lines = screen(written(console))
    assert max(cell_len(line) for line in lines) <= width
    assert sum("left" in line for line in lines) == 1  # one bar, at the bottom, though it was drawn often
    text = " ".join(" ".join(lines).split())
    for figure in ("step 60 of 1,000", "loss 2.0000 (last 2.0000)", "lr 3.00e-04", "grad norm 0.82", "tokens/s",
                   "MFU 2.0 %", "memory 1.000 GB", "skipped 1", "epoch 1"):  # fmt: skip
        assert figure in text
    assert text.count("validation step") == 3


def test_the_screen_of_a_terminal() -> None:
    clock = Clock()
    console = paper(clock, terminal=True)
    with ProgressDisplay(console, steps=STEPS, name="lm-bytes", utilisation=BUSY) as progress:
        for step in range(481, 501):
            clock.now += 0.5
            progress.step(report(step), epoch=3, memory=12_340_000_000)
        progress.validation(500, 2.105, {"perplexity": 8.36, "accuracy": 0.4123}, best=True)
    assert screen(written(console)) == [
        "validation  step 500  loss 2.1050 (best so far)  perplexity 8.3600",
        "            accuracy 0.4123",
        "lm-bytes  ━━━━━━━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━━━━━   50 %  4:10 left",
        "step 500 of 1,000  epoch 3  loss 2.0000 (last 2.0000)  lr 3.00e-04",
        "grad norm 0.82  2,000 tokens/s  MFU 2.0 %  memory 12.34 GB",
        "",
    ]


def test_a_terminal_that_knows_no_commands_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=file, force_terminal=True, color_system=None)
    with ProgressDisplay(console, steps=STEPS) as progress:
        progress.step(report(1))
    assert file.getvalue().startswith("step 1 of 1,000  0 %")
    assert "\x1b" not in file.getvalue()


def test_the_bar_is_drawn_no_oftener_than_it_can_be_seen() -> None:
    clock = Clock()
    console = paper(clock, terminal=True)
    with ProgressDisplay(console, steps=STEPS) as progress:
        for step in range(1, 1001):
            clock.now += 0.001
            progress.step(report(step, seconds=0.001))
    drawn = re.findall(r"step \S*?([\d,]+)\S* ", re.sub(r"\x1b\[[\d;]*m", "", written(console)))
    assert 10 <= len(drawn) <= 14
    assert drawn[-1] == "1,000"


def test_speed_counts_steps_alone_and_time_left_counts_everything() -> None:
    meter = Meter(steps=100)
    now = 0.0
    for step in range(1, 51):
        now += 30.0 if step == 1 else 0.5  # the first one compiles
        meter.add(report(step, seconds=30.0 if step == 1 else 0.5), now)
        now += 1.0 if step % 10 == 0 else 0.0  # a validation
    assert meter.tokens_per_second == 2000.0
    assert meter.left == pytest.approx(50 * 0.5 * (30 + 49 * 0.5 + 4) / (30 + 49 * 0.5))


def test_time_left_of_a_run_that_goes_on_and_of_one_that_ends_by_time() -> None:
    meter = Meter(steps=100)
    meter.add(report(91, seconds=2.0), 1000.0)
    assert meter.left == 18.0
    meter = Meter()
    meter.add(report(1, seconds=2.0, steps=10), 1000.0)
    assert meter.left == 18.0


def test_the_speed_is_of_the_last_steps() -> None:
    meter = Meter(steps=STEPS)
    for step in range(1, 201):
        meter.add(report(step, seconds=1.0 if step <= 150 else 0.25), float(step))
    assert meter.tokens_per_second == 4000.0


def test_the_smoothed_loss_starts_without_a_bias_and_follows() -> None:
    meter = Meter(steps=STEPS)
    meter.add(report(1, 4.0), 1.0)
    assert meter.loss == pytest.approx(4.0)
    meter.add(report(2, 2.0), 2.0)
    assert meter.loss == pytest.approx((0.95 * 4 + 2) / 1.95)
    for step in range(3, 300):
        meter.add(report(step, 1.0), float(step))
    assert meter.loss == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0000"), (2.3, "2.3000"), (31.2, "31.200"), (12345.6, "12346"), (123456.0, "1.23e+05"),
        (0.00012, "0.0001"), (0.000012, "1.20e-05"), (-4.5, "-4.5000"), (math.inf, "inf"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_numbers(value: float, text: str) -> None:
    assert as_number(value) == text


def test_times() -> None:
    seconds = [0.0, -3.0, 59.6, 245.0, 3723.0, 86399.0, 183900.0]
    assert [as_time(item) for item in seconds] == ["0:00", "0:00", "1:00", "4:05", "1:02:03", "23:59:59", "2d 03:05"]


def test_control_characters_are_made_visible() -> None:
    every = "".join(map(chr, (*range(0x3000), *range(0xD800, 0xE000))))
    assert {c for c in spaced(every) if unicodedata.category(c) in ("Cc", "Cs")} == {"\n"}
    assert spaced("a\r\nb") == "a\nb"


CHATTER = """
import sys
from rich.console import Console
from glassformer.training.logging.progress import ProgressDisplay
from tests.training.test_logging_progress import report
console = Console(force_terminal=sys.argv[1] == "terminal", color_system=None, _environ={})
with ProgressDisplay(console, steps=3, every_seconds=1e-9) as progress:
    progress.note("begun")
    if sys.argv[2] == "later":
        progress.step(report(1, steps=3))
    sys.stdin.readline()
    for step in (1, 2, 3):
        progress.step(report(step, steps=3))
        progress.validation(step, 2.0)
console.print("outcome")
print("still there", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("kind", "when"),
    some_at_once(product(["file", "terminal"], ["at once", "later"]), {("terminal", "later")}.__contains__),
)
def test_a_reader_that_goes_away_does_not_end_the_run(kind: str, when: str) -> None:
    """As in ``glassformer train … | head -1``."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", CHATTER, kind, when], text=True, **pipes) as run:  # type: ignore[call-overload]
        assert run.stdout.readline() == "note        begun\n"
        run.stdout.close()
        run.stdin.write("\n")
        run.stdin.close()
        assert run.stderr.read() == "still there\n"
    assert run.returncode == 0


@pytest.mark.parametrize("terminal", [False, True])
def test_after_a_broken_pipe_nothing_more_is_written(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        tries = 0

        def write(self, _: str) -> int:
            self.tries += 1
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", io.StringIO())  # rich closes it, and that of the tests must stay
    file = Gone()
    console = Console(file=file, force_terminal=terminal, width=80, legacy_windows=False, _environ={})
    with ProgressDisplay(console, steps=STEPS, every_seconds=1e-9) as progress:
        for step in range(1, 5):
            progress.step(report(step))
            progress.note("lost")
    assert file.tries == 1
    with pytest.raises(SystemExit), ProgressDisplay(paper(Clock())):
        sys.exit(3)  # what others end with is not ours to hold


def test_wrong_settings_are_errors() -> None:
    console = paper(Clock())
    with pytest.raises(ValueError, match="every_steps must be at least 1"):
        ProgressDisplay(console, every_steps=0)
    with pytest.raises(ValueError, match="every_seconds must be a finite number above 0"):
        ProgressDisplay(console, every_seconds=0.0)
