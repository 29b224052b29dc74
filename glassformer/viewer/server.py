"""The local server of the page.

Every route is guarded in the same way, before anything else happens: the address has the token as its first part
(``/TOKEN/``, so that relative links keep it), ``Host`` names this machine, and a request from another page is refused.
Queries run in a few threads, with limits on their number, size and time; one whose reader has left is cancelled.
"""

import asyncio
import hmac
import ipaddress
import json
import logging
import re
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from glassformer.viewer import queries, work
from glassformer.viewer.contents import Contents
from glassformer.viewer.encode import to_json
from glassformer.viewer.page import served_page, static_files
from glassformer.viewer.subject import QueryError

if TYPE_CHECKING:
    import uvicorn

LOOPBACK = ("127.0.0.1", "localhost", "::1")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HOST = re.compile(r"(\[[\w:.%-]+\]|[\w.-]+)(?::\d{1,5})?", re.ASCII)  # a name or address, and a port
SAFE_TOKEN = re.compile(r"[A-Za-z0-9_~-]{1,128}")
CLOSE = {"Connection": "close"}  # the rest of a request is not read
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request, and all of them together, may use.

    Args:
        body: bytes of a request.
        waiting: queries that run or wait at a time; further ones are answered with 429.
        threads: queries that run at a time.
        seconds: of a query, waiting included.
        result: bytes of an answer.
        sending: seconds in which a request must come, first its head, then its body.
        headers: of a request.
        header_bytes: of all of them.
    """

    body: int = 2**18
    waiting: int = 64
    threads: int = 2
    seconds: float = 120.0
    result: int = 2**26
    sending: float = 10.0
    headers: int = 64
    header_bytes: int = 2**14


class Guard:
    """Refuses what does not come from the page itself, on every route; removes the token from the path.

    Args:
        app: the application behind it.
        token: the secret part of the address.
        hosts: the names under which this server may be addressed.
        any_address: whether every IP address may be in ``Host``, for a server that listens beyond this machine.
        limits: of requests.
    """

    def __init__(
        self, app: Starlette, token: str, hosts: Sequence[str], *, any_address: bool = False, limits: Limits
    ) -> None:
        self.app, self.token, self.limits = app, token.encode(), limits
        self.hosts, self.any_address = {host.lower() for host in hosts}, any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket that is closed before it is accepted is answered with 403
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = scope["headers"]
        if len(headers) > self.limits.headers or sum(map(len, chain(*headers))) > self.limits.header_bytes:
            await _error(431, f"a request has at most {self.limits.headers} headers.")(scope, receive, send)
            return
        refusal = self.refusal(scope)
        if refusal is not None:
            await _error(403, refusal)(scope, receive, send)
            return
        _, slash, rest = scope["path"].lstrip("/").partition("/")
        if not slash:  # relative links would lose the token
            own = {"Location": f"/{self.token.decode()}/"}
            await _error(307, "the address ends in a slash.", own)(scope, receive, send)
            return
        path = f"/{rest}"
        await self.app({**scope, "path": path, "raw_path": path.encode(), "root_path": ""}, receive, send)

    def refusal(self, scope: Scope) -> str | None:
        """Return why a request is refused, or None."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not self._is_ours(hosts[0].decode("latin-1")):
            return "this server is not addressed by that name; use the address that glassformer view printed."
        own = f"{scope['scheme']}://".encode() + hosts[0]
        if any(origin.lower() != own.lower() for origin in headers.get(b"origin", [])):
            return "requests from other pages are refused."
        if any(site not in (b"same-origin", b"none") for site in headers.get(b"sec-fetch-site", [])):
            return "requests from other pages are refused; open the address itself."
        given = scope["path"].lstrip("/").partition("/")[0]
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self.token):
            return "the address lacks the token; use the address that glassformer view printed."
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header names this server; the port may differ, as it does through a tunnel."""
        found = HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].strip("[]")
        if name.lower() in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address


class Workers:
    """Runs queries in threads, within limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.waiting = limits, 0
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="query")

    async def run(self, function: Callable[[], str], request: Request) -> Response:
        """Return the result of a function as a response; an error where it takes too long or there are too many."""
        if self.waiting >= self.limits.waiting:
            return _error(429, "too many queries wait already; try again in a moment.", code="busy")
        job = work.RunningQuery(self.limits.seconds)

        def in_thread() -> str:
            with work.running(job):
                return function()

        self.waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, in_thread)
        future.add_done_callback(self._done)
        try:
            return await self._wait(future, job, request)
        except asyncio.CancelledError:
            job.cancel()
            raise

    async def _wait(self, future: "asyncio.Future[str]", job: work.RunningQuery, request: Request) -> Response:
        pause = 0.01
        while not future.done():
            await asyncio.wait({future}, timeout=pause)
            pause = min(2 * pause, 0.25)
            if not future.done() and (time.monotonic() > job.deadline or await request.is_disconnected()):
                job.cancel()
                future.cancel()  # if it has not begun
                return self._given_up(job)
        try:
            result = future.result()
        except work.CancelledError:
            return self._given_up(job)
        except QueryError as error:
            # What a reader can type is no failed request, which browsers would log as an error of the page.
            return _error(400 if error.code is None else 200, str(error), code=error.code, values=error.values)
        except Exception:
            LOG.exception("a query failed")
            return _error(500, "this query failed; the terminal of glassformer view says why.", code="failed")
        if len(result) > self.limits.result:
            message = f"the answer has more than {self.limits.result} bytes; ask for fewer tokens or heads."
            return _error(400, message, code="large")
        return Response(result, media_type="application/json", headers=HEADERS)

    def _given_up(self, job: work.RunningQuery) -> Response:
        if time.monotonic() <= job.deadline:
            return _error(503, "the query was cancelled, because the connection was closed.")
        seconds = f"{self.limits.seconds:g}"
        message = f"this took longer than {seconds} seconds; ask for less."
        return _error(503, message, code="slow", values={"seconds": seconds})

    def _done(self, future: "asyncio.Future[str]") -> None:
        self.waiting -= 1
        if not future.cancelled():
            future.exception()  # seen, also where nobody waits for it any more


def make_app(
    contents: Contents,
    *,
    token: str,
    host: str = "127.0.0.1",
    limits: Limits = Limits(),  # noqa: B008  # frozen
) -> Guard:
    """Return the application, guarded.

    Args:
        contents: what the page shows.
        token: the secret part of the address.
        host: the address that the server listens on.
        limits: of requests.
    """
    if not SAFE_TOKEN.fullmatch(token):
        raise ValueError("a token is part of an address: 1 to 128 letters, digits and - _ ~.")
    workers = Workers(limits)

    async def index(request: Request) -> Response:  # noqa: ARG001
        return HTMLResponse(served_page({"mode": "server", **contents.bootstrap()}), headers=HEADERS)

    async def static(request: Request) -> Response:
        file = static_files().get(request.path_params["path"])
        if file is None:
            raise HTTPException(404, "there is no such file.")
        return FileResponse(file[0], media_type=file[1], headers=HEADERS)

    async def api(request: Request) -> Response:
        body = await _read_body(request, limits)
        try:
            parsed = queries.parse(request.path_params["name"], _read_json(body))
        except QueryError as error:
            return _error(400, str(error))
        return await workers.run(lambda: to_json(queries.answer(contents, parsed)), request)

    async def refused(request: Request, error: Exception) -> Response:  # noqa: ARG001
        assert isinstance(error, HTTPException)
        return _error(error.status_code, str(error.detail), error.headers)

    routes = [
        Route("/", index, methods=["GET"]),
        Route("/static/{path:path}", static, methods=["GET"]),
        Route("/api/{name}", api, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: refused})
    app.router.redirect_slashes = False
    names = () if host in LOOPBACK else (host, socket.gethostname())
    return Guard(app, token, [*LOOPBACK, *names], any_address=host not in LOOPBACK, limits=limits)


async def _read_body(request: Request, limits: Limits) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(limits.sending):
            async for piece in request.stream():
                body += piece
                if len(body) > limits.body:
                    raise HTTPException(413, f"a request has at most {limits.body} bytes.", CLOSE)
    except TimeoutError:
        raise HTTPException(408, f"the request did not end within {limits.sending:g} seconds.", CLOSE) from None
    except ClientDisconnect:
        raise HTTPException(400, "the request ended early.") from None
    return bytes(body)


def _read_json(body: bytes) -> object:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON number")

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise QueryError("the body of a request is a JSON object.") from error


def new_token() -> str:
    """Return a random token for an address."""
    return secrets.token_urlsafe(24)


def _error(status: int, message: str, headers: Any = None, *, code: str | None = None, values: Any = None) -> Response:
    """Return an error: in English, and perhaps as the name of a sentence of the page with what to fill in."""
    sentence = {} if code is None else {"code": code, "values": values or {}}
    return Response(
        to_json({"error": message[:500], **sentence}),
        status,
        headers={**(headers or {}), **HEADERS},
        media_type="application/json",
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 is a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def listen_here(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on an address; with 127.0.0.1 also ::1, where the port is free: localhost may mean either."""
    listeners = [listen(host, port)]
    if host in ("127.0.0.1", "localhost"):
        with suppress(OSError):
            listeners.append(listen("::1", listeners[0].getsockname()[1]))
    return listeners


def serve(app: Guard, listeners: Sequence[socket.socket]) -> None:
    """Serve until interrupted."""
    make_server(app).run(sockets=list(listeners))


def make_server(app: Guard) -> "uvicorn.Server":
    """Return a server that speaks plain HTTP/1.1, with small limits, and logs nothing but its own errors."""
    import uvicorn

    from glassformer.viewer.connections import timed_protocol

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=timed_protocol(app.limits.sending),
            ws="none",
            lifespan="off",
            log_config=None,  # uvicorn's own would close every log handler of the program, and absl's close stderr
            log_level="error",  # warnings are about requests, such as advice to install a library for websockets
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=256,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=app.limits.header_bytes,
        )
    )
