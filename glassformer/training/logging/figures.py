"""From reports to the figures that people read: smoothed loss, speed, time left; and each as text.

Only the seconds of the steps themselves count for the speed. The time left takes in what goes on between them, such as
validations and checkpoints: at the rate so far.
"""

from collections import deque
from collections.abc import Iterator
from math import isfinite
from typing import NamedTuple

from glassformer.inspect.account.units import human
from glassformer.text.visible import visible
from glassformer.training.logging.speed import Utilisation
from glassformer.training.loop import Report

RECENT = 50  # steps over which the speed is told
KEEP = 0.95  # of the smoothed loss in each step: about the mean of the last 20


class Figure(NamedTuple):
    """One figure as text; either side of its value may be empty."""

    before: str
    value: str
    after: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


class Meter:
    """Adds up reports.

    Args:
        steps: of the whole run; None if it ends by time.
        utilisation: for MFU; None if it is not known.
    """

    def __init__(self, steps: int | None = None, utilisation: Utilisation | None = None) -> None:
        self._steps, self._utilisation = steps, utilisation
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._made = self._skipped = 0
        self._smooth = self._weight = self._busy = self._begun = self._now = 0.0
        self._report: Report | None = None

    def add(self, report: Report, now: float) -> None:
        """One step more, which ended ``now``."""
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
    def report(self) -> Report:
        """The last one."""
        assert self._report is not None, "nothing has been added"
        return self._report

    @property
    def loss(self) -> float:
        """The mean of the losses so far, the later ones with more weight."""
        return self._smooth / self._weight

    @property
    def tokens_per_second(self) -> float:
        """Over the last steps, and nothing but steps."""
        tokens, seconds = (sum(column) for column in zip(*self._recent, strict=True))
        return tokens / max(seconds, 1e-9)

    @property
    def mfu(self) -> float | None:
        """The share of the hardware's peak; None where that is not known."""
        return None if self._utilisation is None else self._utilisation.at(self.tokens_per_second)

    @property
    def left(self) -> float:
        """Seconds until the end, if all goes on as it has gone so far."""
        elapsed, done = self._now - self._begun, self.report.fraction
        if self._steps is None:
            return elapsed * (1 - done) / max(done, 1e-9)
        a_step = sum(seconds for _, seconds in self._recent) / len(self._recent)
        between = max(1.0, elapsed / max(self._busy, 1e-9))  # what goes on besides the steps
        return (self._steps - self.report.step) * a_step * between

    def figures(self, epoch: int | None, memory: int | None) -> Iterator[Figure]:
        """All that is known, the most important first."""
        report = self.report
        yield Figure("step", f"{report.step:,}", "" if self._steps is None else f"of {self._steps:,}")
        if epoch is not None:
            yield Figure("epoch", f"{epoch:,}")
        yield Figure("loss", as_number(self.loss), f"(last {as_number(report.loss)})")
        yield Figure("lr", f"{report.lr:.2e}")
        yield Figure("grad norm", as_number(report.grad_norm, 3))
        yield Figure("", f"{self.tokens_per_second:,.0f}", "tokens/s")
        if self.mfu is not None:
            yield Figure("MFU", f"{100 * self.mfu:.1f}", "%")
        if memory is not None:
            yield Figure("memory", human(memory, "B"))
        if self._skipped:
            yield Figure("skipped", f"{self._skipped:,}")


def as_number(value: float, digits: int = 5) -> str:
    """So many digits; with a power of ten where they would be noughts, or too few."""
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
    """Text that is safe on a terminal and as wide as it looks: tabs are spaces."""
    return visible(text.replace("\r\n", "\n").expandtabs(4), keep="\n")
