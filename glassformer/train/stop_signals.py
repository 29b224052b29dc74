"""An interrupt from the keyboard, or the signal of a machine that shuts down, as a wish granted between two steps."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopSignals:
    """Takes note of the first signal; the second one acts at once, as it would without this."""

    def __init__(self) -> None:
        self.came = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # others cannot be told
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.came = True
        signal.signal(number, self._before[number])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
