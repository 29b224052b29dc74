"""An interrupt from the keyboard, or the signal of a machine that shuts down, as a wish granted between two steps."""

import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Any


class StopSignals:
    """Takes note of the first signal; the second one acts at once, as it would without this.

    Args:
        answer: called at the first signal, in a thread of its own. Python runs signal handlers between two bytecodes
            only, and a backward pass of PyTorch is a single one: by a handler, the answer would come when it is done.
    """

    def __init__(self, answer: Callable[[], None] = lambda: None) -> None:
        self.came = False
        self._answer = answer
        self._before: dict[int, Any] = {}
        self._undo = ExitStack()

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is not threading.main_thread():  # others cannot be told
            return self
        ours, written = socket.socketpair()
        written.setblocking(False)
        listener = threading.Thread(target=self._listen, args=(ours,), name="stop signals", daemon=True)
        listener.start()
        with ExitStack() as undo:
            undo.callback(ours.close)
            undo.callback(listener.join)
            undo.callback(written.close)  # ends the listener
            undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False))
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
                undo.callback(signal.signal, number, self._before[number])
            self._undo = undo.pop_all()
        return self

    def _listen(self, ours: socket.socket) -> None:
        """Wait for the numbers of signals, which the system's own handler writes as soon as they come."""
        while number := ours.recv(1):
            if number[0] in (signal.SIGINT, signal.SIGTERM):
                self._answer()
                return

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.came = True
        signal.signal(number, self._before[number])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._undo.close()
