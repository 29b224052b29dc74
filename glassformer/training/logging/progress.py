"""A run as it goes: in a terminal a bar with figures under it, which lines of what happened scroll above; in a pipe or
a file plain lines with the same figures, now and then.

Nothing is wider than the terminal: figures go on in the next line, and only what is wider than a whole line is broken.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from glassformer.config.checks import check_number, check_positive
from glassformer.training.logging.figures import Figure, Meter, as_number, as_time, spaced
from glassformer.training.logging.speed import Utilisation
from glassformer.training.loop import Report

REDRAWN = 0.1  # seconds between two pictures of the bar, at the least
APART = 2.0  # seconds between two plain lines, at the least
INDENT = 12  # of what goes on in the next line; the kinds of events are shorter
STYLES = {"validation": "magenta", "sample": "cyan", "checkpoint": "green", "note": "yellow"}


class Progress:
    """Shows a run; to be used in ``with``.

    Args:
        console: where to.
        steps: of the whole run; None if it ends by time.
        name: of the run, shown before the bar.
        utilisation: for MFU; None if it is not known.
        every_steps: in a pipe or a file, a line at every multiple of it, or two seconds after the last line;
        every_seconds: and after so many seconds, however few steps were made. The first step and the last have a line.
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
        check_positive(steps=1 if steps is None else steps, every_steps=every_steps)
        check_number(every_seconds=every_seconds)
        self._console, self._every_steps, self._every_seconds = console, every_steps, every_seconds
        self._meter, self._name = Meter(steps, utilisation), spaced(name)
        self._figures: list[Figure] = []
        self._shown: tuple[int, float] | None = None  # the step and the time of the last line or picture
        is_live = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False) if is_live else None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Show the last step, if it has not been shown, and leave the bar as it is."""
        if self._shown is not None and self._shown[0] != self._meter.report.step:
            self._show(self._console.get_time())
        if self._live is not None:
            with self._unless_gone():
                self._live.stop()

    def step(self, report: Report, *, epoch: int | None = None, memory: int | None = None) -> None:
        """One step was made.

        Args:
            report: what it did.
            epoch: the present one, counted from 1.
            memory: the most bytes held so far; see ``speed.peak_memory``.
        """
        now = self._console.get_time()
        self._meter.add(report, now)
        self._figures = list(self._meter.figures(epoch, memory))
        if report.fraction >= 1 or self._is_due(report.step, now):
            self._show(now)

    def validation(
        self, step: int, loss: float, metrics: Mapping[str, float] | None = None, *, best: bool = False
    ) -> None:
        """The model was tried on text that it does not learn from; ``best``: never was it better."""
        figures = [Figure("loss", as_number(loss), "(best so far)" if best else "")]
        figures += [Figure(name, as_number(value)) for name, value in (metrics or {}).items()]
        self._event("validation", step, [_text(figure) for figure in figures])

    def sample(self, step: int, text: str, prompt: str = "") -> None:
        """What the model writes by now, after its prompt."""
        body = Text.assemble((spaced(prompt), "bold"), spaced(text))
        self._event("sample", step, [], body)

    def checkpoint(self, step: int, path: Path, *, best: bool = False) -> None:
        """The run can go on from there."""
        told = [Text("(best so far)", style="dim")] if best else []
        self._event("checkpoint", step, [*told, Text(spaced(str(path)))])

    def note(self, text: str) -> None:
        """Anything else worth a line."""
        words = spaced(text).split()
        head = _head("note")
        if self._live is not None:
            lines = Text(" ".join(words)).wrap(self._console, self._room(INDENT))
            self._print(_hanging(head, lines, INDENT))
        else:
            self._print([head.append(" ".join(words))])

    def _event(self, kind: str, step: int, parts: Sequence[Text], body: Text | None = None) -> None:
        head, parts = _head(kind), [_text(Figure("step", f"{step:,}")), *parts]
        if self._live is None:
            lines = [head.append_text(Text("  ").join(parts))]
            lines += [Text("  ").append_text(line) for line in (body.split("\n") if body else [])]
        else:
            room = self._room(INDENT)
            broken = (line for line in flow(parts, room) for line in line.wrap(self._console, room, overflow="fold"))
            lines = _hanging(head, broken, INDENT)
            lines += _hanging(Text("  "), body.wrap(self._console, self._room(2)) if body else [], 2)
        self._print(lines)

    def _room(self, indent: int) -> int:
        return max(INDENT, self._console.width - indent)

    def _print(self, lines: Iterable[Text]) -> None:
        """Lines as they are; a character that the console cannot write becomes a question mark."""
        said = Text("\n").join(lines)
        said.plain = said.plain.encode(self._console.encoding, "replace").decode(self._console.encoding)
        with self._unless_gone():
            self._console.print(said, soft_wrap=True, highlight=False)

    @contextmanager
    def _unless_gone(self) -> Iterator[None]:
        """Write, but let no run end because its reader went away (``| head -1``): from then on nothing is shown.

        At a broken pipe rich makes the console quiet for good, and then ends the program.
        """
        try:
            yield
        except (SystemExit, OSError):
            if not self._console.quiet:
                raise

    def _is_due(self, step: int, now: float) -> bool:
        if self._shown is None:
            return True
        seconds = now - self._shown[1]
        if self._live is not None:
            return seconds >= REDRAWN
        has_passed = step // self._every_steps > self._shown[0] // self._every_steps
        return seconds >= self._every_seconds or (has_passed and seconds >= APART)

    def _show(self, now: float) -> None:
        report = self._meter.report
        self._shown = report.step, now
        if self._live is not None:
            if not self._live.is_started:
                with self._unless_gone():
                    self._console.show_cursor(False)  # first, for a bar that breaks off as it starts cannot be stopped
            with self._unless_gone():
                self._live.start()  # with the first step: what comes before is no part of it
                self._live.update(_Picture(self._name, report.fraction, self._meter.left, self._figures), refresh=True)
            return
        first, *others = self._figures
        figures = (first, Figure("", f"{100 * report.fraction:.0f}", "%"), *others, _left(self._meter.left))
        self._print([Text("  ".join(map(str, figures)))])


class _Picture:
    """The bar and the figures under it, for the width that the terminal has when it is drawn."""

    def __init__(self, name: str, fraction: float, left: float, figures: Sequence[Figure]) -> None:
        self._name, self._fraction, self._left, self._figures = name, fraction, left, figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        width = options.max_width
        ends = [Text(f"{100 * self._fraction:3.0f} %"), _text(_left(self._left))]
        name = Text(self._name, style="bold")
        name.truncate(width // 4, overflow="crop")
        names = [name] if name else []
        taken = sum(part.cell_len + 2 for part in (*names, *ends))
        long = max(8, min(60, width - taken))
        bar = ProgressBar(total=1.0, completed=self._fraction, width=long, complete_style="cyan")
        row = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        for _ in range(len(names) + 1 + len(ends)):
            row.add_column(no_wrap=True)
        row.add_row(*names, bar, *ends)
        yield row
        for line in flow([_text(figure) for figure in self._figures], width):
            line.no_wrap, line.overflow = True, "crop"
            yield line


def flow(parts: Iterable[Text], width: int) -> list[Text]:
    """Parts with two spaces between them, as many in a line as it has room for; none is broken."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 2 + part.cell_len <= width:
            lines[-1].append("  ").append_text(part)
        else:
            lines.append(part.copy())
    return lines


def _text(figure: Figure) -> Text:
    """A figure with its value in front of the words around it."""
    words = [(part, style) for part, style in zip(figure, ("dim", "bold", "dim"), strict=True) if part]
    return Text(" ").join(Text(part, style=style) for part, style in words)


def _left(seconds: float) -> Figure:
    return Figure("", as_time(seconds), "left")


def _head(kind: str) -> Text:
    return Text().append(f"{kind:<{INDENT}}", style=STYLES[kind])  # of the kind alone, not of what follows


def _hanging(head: Text, lines: Iterable[Text], indent: int) -> list[Text]:
    """Lines behind a head, the second and later ones as far to the right as the first."""
    starts = (head if number == 0 else Text(" " * indent) for number in count())
    found = [start.append_text(line) for line, start in zip(lines, starts, strict=False)]
    for line in found:
        line.rstrip()
    return found
