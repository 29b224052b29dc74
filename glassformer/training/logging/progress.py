"""Progress of a run: on a terminal a bar with metrics under it, and lines of events that scroll above; in a pipe or a
file plain lines with the same metrics, now and then. ``Monitor`` passes everything to the terminal and to the sinks.

Nothing is wider than the terminal: metrics wrap to the next line, and only what is wider than a whole line is broken.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from glassformer.config.checks import check_positive_integer, check_positive_number
from glassformer.inspect.account.report import human
from glassformer.text.plain_text import visible
from glassformer.training.logging.sinks import Sink, Sinks, step_values
from glassformer.training.logging.throughput import Utilisation, peak_memory
from glassformer.training.loop import StepReport

OpenSink = Callable[[int], Sink]  # from the number of steps done to a sink for the steps after them
RECENT = 50  # steps over which the speed is averaged
KEEP = 0.95  # decay of the smoothed loss: about the mean of the last 20 steps
REFRESH = 0.1  # minimum seconds between two drawings of the bar
APART = 2.0  # minimum seconds between two plain lines
INDENT = 12  # of wrapped lines; the kinds of events are shorter
STYLES = {"validation": "magenta", "sample": "cyan", "checkpoint": "green", "note": "yellow", "warning": "red"}


class DisplayValue(NamedTuple):
    """A number as text, with the words before and after it, which may be empty."""

    before: str
    value: str
    after: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


class Meter:
    """Smoothed loss, speed and remaining time from reports.

    Only the seconds of the steps themselves count for the speed. The remaining time includes what happens between them,
    such as validations and checkpoints, at the rate so far.

    Args:
        steps: of the whole run; None if it is limited by time.
        utilisation: for MFU; None if it is not known.
    """

    def __init__(self, steps: int | None = None, utilisation: Utilisation | None = None) -> None:
        self._steps, self._utilisation = steps, utilisation
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._made = self._skipped = 0
        self._smooth = self._weight = self._busy = self._begun = self._now = 0.0
        self._report: StepReport | None = None

    def add(self, report: StepReport, now: float) -> None:
        """Add one step, which ended ``now``."""
        if not self._made:
            self._begun = now - report.seconds
        if self._made == 1:
            self._recent.clear()  # the first step also compiles and allocates
        self._recent.append((report.tokens, report.seconds))
        self._made += 1
        self._skipped += report.skipped
        self._smooth = KEEP * self._smooth + (1 - KEEP) * report.loss
        self._weight = KEEP * self._weight + (1 - KEEP)
        self._busy += report.seconds
        self._report, self._now = report, now

    @property
    def report(self) -> StepReport:
        """The last report."""
        assert self._report is not None, "nothing has been added"
        return self._report

    @property
    def loss(self) -> float:
        """The exponential moving average of the loss."""
        return self._smooth / self._weight

    @property
    def tokens_per_second(self) -> float:
        """Over the last steps, without what happens between them."""
        tokens, seconds = (sum(column) for column in zip(*self._recent, strict=True))
        return tokens / max(seconds, 1e-9)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation; None if the peak is not known."""
        return None if self._utilisation is None else self._utilisation.at(self.tokens_per_second)

    @property
    def left(self) -> float:
        """Estimated seconds until the end."""
        elapsed, done = self._now - self._begun, self.report.fraction
        if self._steps is None:
            return elapsed * (1 - done) / max(done, 1e-9)
        per_step = sum(seconds for _, seconds in self._recent) / len(self._recent)
        overhead = max(1.0, elapsed / max(self._busy, 1e-9))  # validations, checkpoints
        return (self._steps - self.report.step) * per_step * overhead

    def values(self, epoch: int | None, memory: int | None) -> Iterator[DisplayValue]:
        """Yield everything to show, the most important first."""
        report = self.report
        yield DisplayValue("step", f"{report.step:,}", "" if self._steps is None else f"of {self._steps:,}")
        if epoch is not None:
            yield DisplayValue("epoch", f"{epoch:,}")
        yield DisplayValue("loss", as_number(self.loss), f"(last {as_number(report.loss)})")
        yield DisplayValue("lr", f"{report.lr:.2e}")
        yield DisplayValue("grad norm", as_number(report.grad_norm, 3))
        yield DisplayValue("", f"{self.tokens_per_second:,.0f}", "tokens/s")
        if self.mfu is not None:
            yield DisplayValue("MFU", f"{100 * self.mfu:.1f}", "%")
        if memory is not None:
            yield DisplayValue("memory", human(memory, "B"))
        if self._skipped:
            yield DisplayValue("skipped", f"{self._skipped:,}")


def as_number(value: float, digits: int = 5) -> str:
    """Return a number with ``digits`` digits; with a power of ten where these would be zeros, or too few."""
    if not isfinite(value):
        return str(value)
    if value != 0 and not 10.0 ** (1 - digits) <= abs(value) < 10.0**digits:
        return f"{value:.2e}"
    return f"{value:.{max(0, digits - len(str(int(abs(value)))))}f}"


def as_time(seconds: float) -> str:
    """``4:05``, ``1:02:03``, ``2d 03:04``."""
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}"
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def spaced(text: str) -> str:
    """Return text that is safe to print on a terminal, with tabs as spaces."""
    return visible(text.replace("\r\n", "\n").expandtabs(4), keep="\n")


class ProgressDisplay:
    """Shows a run on a console; use it in a ``with`` statement.

    Args:
        console: to print on.
        steps: of the whole run; None if it is limited by time.
        name: of the run, shown before the bar.
        utilisation: for MFU; None if it is not known.
        every_steps: in a pipe or a file, print a line at every multiple of it, but not within two seconds of the last;
        every_seconds: and after this many seconds in any case. The first and the last step always have a line.
    """

    def __init__(
        self,
        console: Console,
        *,
        steps: int | None = None,
        name: str = "",
        utilisation: Utilisation | None = None,
        every_steps: int = 100,
        every_seconds: float = 30.0,
    ) -> None:
        check_positive_integer(steps=1 if steps is None else steps, every_steps=every_steps)
        check_positive_number(every_seconds=every_seconds)
        self._console, self._every_steps, self._every_seconds = console, every_steps, every_seconds
        self._meter, self._name = Meter(steps, utilisation), spaced(name)
        self._values: list[DisplayValue] = []
        self._shown: tuple[int, float] | None = None  # the step and the time of the last output
        is_live = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False) if is_live else None

    def __enter__(self) -> "ProgressDisplay":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Show the last step, if it has not been shown, and stop the bar."""
        if self._shown is not None and self._shown[0] != self._meter.report.step:
            self._show(self._console.get_time())
        if self._live is not None:
            with self._ignoring_broken_pipe():
                self._live.stop()

    def step(self, report: StepReport, *, epoch: int | None = None, memory: int | None = None) -> None:
        """Show one step.

        Args:
            report: of the step.
            epoch: the current one, counted from 1.
            memory: the peak in bytes so far; see ``throughput.peak_memory``.
        """
        now = self._console.get_time()
        self._meter.add(report, now)
        self._values = list(self._meter.values(epoch, memory))
        if report.fraction >= 1 or self._is_due(report.step, now):
            self._show(now)

    def validation(
        self, step: int, loss: float, metrics: Mapping[str, float] | None = None, *, best: bool = False
    ) -> None:
        """Show a validation; ``best``: the best so far."""
        values = [DisplayValue("loss", as_number(loss), "(best so far)" if best else "")]
        values += [DisplayValue(name, as_number(value)) for name, value in (metrics or {}).items()]
        self._event("validation", step, [_text(value) for value in values])

    def sample(self, step: int, text: str, prompt: str = "") -> None:
        """Show what the model generates, after its prompt."""
        body = Text.assemble((spaced(prompt), "bold"), spaced(text))
        self._event("sample", step, [], body)

    def checkpoint(self, step: int, path: Path, *, best: bool = False) -> None:
        """Show that a checkpoint was written."""
        mark = [Text("(best so far)", style="dim")] if best else []
        self._event("checkpoint", step, [*mark, Text(spaced(str(path)))])

    def note(self, text: str, *, kind: str = "note") -> None:
        """Show any other line; ``kind`` is ``note`` or ``warning``."""
        words = spaced(text).split()
        head = _head(kind)
        if self._live is not None:
            lines = Text(" ".join(words)).wrap(self._console, self._width(INDENT))
            self._print(_hanging(head, lines, INDENT))
        else:
            self._print([head.append(" ".join(words))])

    def _event(self, kind: str, step: int, parts: Sequence[Text], body: Text | None = None) -> None:
        head, parts = _head(kind), [_text(DisplayValue("step", f"{step:,}")), *parts]
        if self._live is None:
            lines = [head.append_text(Text("  ").join(parts))]
            lines += [Text("  ").append_text(line) for line in (body.split("\n") if body else [])]
        else:
            width = self._width(INDENT)
            wrapped = (line for row in flow(parts, width) for line in row.wrap(self._console, width, overflow="fold"))
            lines = _hanging(head, wrapped, INDENT)
            lines += _hanging(Text("  "), body.wrap(self._console, self._width(2)) if body else [], 2)
        self._print(lines)

    def _width(self, indent: int) -> int:
        return max(INDENT, self._console.width - indent)

    def _print(self, lines: Iterable[Text]) -> None:
        """Print lines; a character that the console cannot encode becomes a question mark."""
        text = Text("\n").join(lines)
        text.plain = text.plain.encode(self._console.encoding, "replace").decode(self._console.encoding)
        with self._ignoring_broken_pipe():
            self._console.print(text, soft_wrap=True, highlight=False)

    @contextmanager
    def _ignoring_broken_pipe(self) -> Iterator[None]:
        """Write, but do not end the run because the reader of the pipe has gone (``| head -1``).

        At a broken pipe rich makes the console quiet for good, and then exits the program. A bar that it could not
        start raises an IndexError when it is stopped.
        """
        try:
            yield
        except (SystemExit, OSError, IndexError):
            if not self._console.quiet:
                raise

    def _is_due(self, step: int, now: float) -> bool:
        if self._shown is None:
            return True
        seconds = now - self._shown[1]
        if self._live is not None:
            return seconds >= REFRESH
        has_passed = step // self._every_steps > self._shown[0] // self._every_steps
        return seconds >= self._every_seconds or (has_passed and seconds >= APART)

    def _show(self, now: float) -> None:
        report = self._meter.report
        self._shown = report.step, now
        if self._live is not None:
            if not self._live.is_started:
                with self._ignoring_broken_pipe():
                    self._console.show_cursor(False)  # first: a bar that fails as it starts cannot be stopped
            with self._ignoring_broken_pipe():
                self._live.start()  # at the first step: earlier lines are not part of it
                self._live.update(_Bar(self._name, report.fraction, self._meter.left, self._values), refresh=True)
            return
        first, *others = self._values
        values = (first, DisplayValue("", f"{100 * report.fraction:.0f}", "%"), *others, _left(self._meter.left))
        self._print([Text("  ".join(map(str, values)))])


class _Bar:
    """The bar and the metrics under it, for the width of the terminal when it is drawn."""

    def __init__(self, name: str, fraction: float, left: float, values: Sequence[DisplayValue]) -> None:
        self._name, self._fraction, self._left, self._values = name, fraction, left, values

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        width = options.max_width
        ends = [Text(f"{100 * self._fraction:3.0f} %"), _text(_left(self._left))]
        name = Text(self._name, style="bold")
        name.truncate(width // 4, overflow="crop")
        names = [name] if name else []
        used = sum(part.cell_len + 2 for part in (*names, *ends))
        long = max(8, min(60, width - used))
        bar = ProgressBar(total=1.0, completed=self._fraction, width=long, complete_style="cyan")
        row = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        for _ in range(len(names) + 1 + len(ends)):
            row.add_column(no_wrap=True)
        row.add_row(*names, bar, *ends)
        yield row
        for line in flow([_text(value) for value in self._values], width):
            line.no_wrap, line.overflow = True, "crop"
            yield line


def flow(parts: Iterable[Text], width: int) -> list[Text]:
    """Return parts joined by two spaces, as many in a line as fit; none is broken."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 2 + part.cell_len <= width:
            lines[-1].append("  ").append_text(part)
        else:
            lines.append(part.copy())
    return lines


def _text(value: DisplayValue) -> Text:
    """Return a number with its value emphasised."""
    words = [(part, style) for part, style in zip(value, ("dim", "bold", "dim"), strict=True) if part]
    return Text(" ").join(Text(part, style=style) for part, style in words)


def _left(seconds: float) -> DisplayValue:
    return DisplayValue("", as_time(seconds), "left")


def _head(kind: str) -> Text:
    return Text().append(f"{kind:<{INDENT}}", style=STYLES[kind])  # styles only the kind, not what follows


def _hanging(head: Text, lines: Iterable[Text], indent: int) -> list[Text]:
    """Return lines after a head, the second and later ones indented."""
    starts = (head if number == 0 else Text(" " * indent) for number in count())
    indented = [start.append_text(line) for line, start in zip(lines, starts, strict=False)]
    for line in indented:
        line.rstrip()
    return indented


class Monitor:
    """Passes what happens in a run to the terminal and to the sinks; use it in a ``with`` statement, after ``start``.

    Args:
        console: for ``ProgressDisplay``; None: show nothing.
        name: of the run.
        sinks: TensorBoard, Weights & Biases.
        only_warnings: show warnings on the console, and nothing else.
    """

    def __init__(
        self,
        console: Console | None = None,
        name: str = "",
        sinks: Sequence[OpenSink] = (),
        *,
        only_warnings: bool = False,
    ) -> None:
        self._console, self._name, self._open, self._only_warnings = console, name, sinks, only_warnings
        self._progress: ProgressDisplay | None = None
        self._sinks = Sinks([])
        self._stack = ExitStack()
        self._device = torch.device("cpu")

    def start(self, *, steps: int, done: int, device: torch.device, utilisation: Utilisation | None) -> None:
        """Begin a run of ``steps`` steps, or resume it after ``done`` of them."""
        self._device = device
        if self._console is not None and not self._only_warnings:
            self._progress = ProgressDisplay(self._console, steps=steps, name=self._name, utilisation=utilisation)
        self._sinks = Sinks([open_sink(done) for open_sink in self._open], warn=self.warning)

    def __enter__(self) -> "Monitor":
        if self._progress is not None:
            self._stack.enter_context(self._progress)
        self._stack.enter_context(self._sinks)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    def step(self, report: StepReport, epoch: int | None) -> dict[str, Any]:
        """Show and log a step; returns what was measured of it."""
        memory = peak_memory(self._device)
        if self._progress is not None:
            self._progress.step(report, epoch=epoch, memory=memory)
        self._sinks.step(report.step, step_values(report, memory=memory))
        return {"seconds": report.seconds, "memory": memory}

    def validation(self, step: int, loss: float, metrics: Mapping[str, float], best: bool) -> None:
        """Show and log a validation."""
        if self._progress is not None:
            self._progress.validation(step, loss, metrics, best=best)
        self._sinks.validation(step, {"loss": loss, **metrics})

    def sample(self, step: int, text: str, number: int) -> None:
        """Show and log what the model generates for a row; ``number`` counts the rows that are shown."""
        if self._progress is not None:
            self._progress.sample(step, text)
        self._sinks.text(step, text, name=f"sample {number}")

    def checkpoint(self, step: int, path: Path, best: bool) -> None:
        """Show that a checkpoint was written."""
        if self._progress is not None:
            self._progress.checkpoint(step, path, best=best)

    def warning(self, text: str) -> None:
        """Show what may need the user's action, also where only warnings are shown."""
        if self._progress is not None:
            self._progress.note(text, kind="warning")
        elif self._console is not None:
            ProgressDisplay(self._console).note(text, kind="warning")

    def note(self, text: str) -> None:
        """Show any other line."""
        if self._progress is not None:
            self._progress.note(text)
