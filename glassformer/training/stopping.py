"""When to stop: after several validations without improvement (Prechelt, 1998), or at a signal, between two steps."""

import math
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Any

from torch import Tensor

from glassformer.config.checks import check_positive_integer


class EarlyStopping:
    """Tracks the best value so far, and how many validations in a row did not improve on it.

    Args:
        patience: stop after this many validations in a row without improvement.
        smaller_is_better: True for a loss, False for a score.
        least_change: a value must improve on the best by more than this. Small improvements still add up: they are
            measured from the best that counted, not from the previous value.
    """

    def __init__(self, patience: int, *, smaller_is_better: bool = True, least_change: float = 0.0) -> None:
        check_positive_integer(patience=patience)
        if not 0 <= least_change < math.inf:
            raise ValueError(f"least_change must be a finite number of at least 0, got {least_change}.")
        self.patience, self.smaller_is_better, self.least_change = patience, smaller_is_better, least_change
        self.best: float | None = None
        self.waited = 0

    def better(self, value: float) -> bool:
        """Record one validation; return whether it is the best so far. NaN and the worst infinity never are."""
        sign = -1.0 if self.smaller_is_better else 1.0
        before = -math.inf if self.best is None else sign * self.best
        is_better = sign * value > before + (0.0 if self.best is None else self.least_change)
        if is_better:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return is_better

    @property
    def is_over(self) -> bool:
        """Whether to stop."""
        return self.waited >= self.patience

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a checkpoint saves of it: no tensors, and two values."""
        return {}, {"best": self.best, "waited": self.waited}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore what ``state`` gave."""
        del tensors
        self.best, self.waited = values["best"], values["waited"]


class StopSignals:
    """Records the first SIGINT or SIGTERM, for a stop between two steps; the second one acts at once, as usual.

    Args:
        on_signal: called at the first signal, in a separate thread. Python runs signal handlers only between two
            bytecodes, and a backward pass of PyTorch is a single one: a handler would run when it is done.
    """

    def __init__(self, on_signal: Callable[[], None] = lambda: None) -> None:
        self.received = False
        self._on_signal = on_signal
        self._before: dict[int, Any] = {}
        self._undo = ExitStack()

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is not threading.main_thread():  # only the main thread can set handlers
            return self
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        listener = threading.Thread(target=self._listen, args=(reader,), name="stop signals", daemon=True)
        listener.start()
        with ExitStack() as undo:
            undo.callback(reader.close)
            undo.callback(listener.join)
            undo.callback(writer.close)  # ends the listener
            undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False))
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
                undo.callback(signal.signal, number, self._before[number])
            self._undo = undo.pop_all()
        return self

    def _listen(self, reader: socket.socket) -> None:
        """Wait for signal numbers, which Python's C-level handler writes as soon as they arrive."""
        while number := reader.recv(1):
            if number[0] in (signal.SIGINT, signal.SIGTERM):
                self._on_signal()
                return

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        del number
        self.received = True
        for one, before in self._before.items():  # whichever comes next acts at once
            signal.signal(one, before)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._undo.close()
