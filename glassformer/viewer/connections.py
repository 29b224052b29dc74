"""Connections of the server: closed if no request comes in time, so that idle ones do not use up the limit."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def timed_protocol(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol for HTTP/1.1, with a time limit on waiting for the head of each request.

    Args:
        seconds: from the beginning of a connection, or from the end of the last answer, until that head is complete.
    """

    class TimedProtocol(H11Protocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_timer()
            super().connection_lost(exc)

        def watch(self) -> None:
            """Run the timer while no request is being answered; single bytes do not begin it anew."""
            cycle: Any = self.cycle
            if cycle is not None and not cycle.response_complete:
                self.stop_timer()
            elif self.timer is None and not self.transport.is_closing():
                self.timer = self.loop.call_later(seconds, self.transport.close)

        def stop_timer(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

    return TimedProtocol
