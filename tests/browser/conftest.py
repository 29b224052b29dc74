"""The page in a real browser: Chromium, driven by Playwright, against the real server in a thread.

``open_page("en-zh", "view=heads&layer=1")`` returns a Playwright page on which nothing is loading. ``visit`` takes the
same arguments and goes there in a page that an earlier test has left open, as by a link, in a quarter of the time. A
test fails if any of its pages logs an error or a warning, throws, or asks for something outside its server.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest

from tests.browser.tools import OpenPage, settle

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TOKEN = "test-token"
KEPT = 4  # pages that a worker keeps open


@dataclass
class Served:
    """A server in a thread: the models that it shows and its address."""

    names: tuple[str, ...]
    subjects: list[Any]
    address: str
    stop: Callable[[], None]


@dataclass
class Problems:
    """What went wrong in the pages of one test."""

    address: str
    found: list[str] = field(default_factory=list)

    def watch(self, page: Any) -> None:
        page.on("console", lambda m: self.found.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.found.append(str(error)))
        page.on("request", self._request)
        page.on("response", self._response)

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:", "file:")):
            self.found.append(f"asked for {request.url}")

    def _response(self, response: Any) -> None:
        if response.status >= 400:  # the console names neither the query nor its parameters
            self.found.append(f"{response.status} for {response.url}: {response.request.post_data}")


def start_server(names: tuple[str, ...], **options: Any) -> Served:
    """The real server on a free port, showing shipped models or folders."""
    from glassformer.hub import load
    from glassformer.viewer.contents import Contents
    from glassformer.viewer.subject import Subject

    return serve_contents(Contents([Subject(load(name, dtype="float32"), name) for name in names], **options))


def serve_contents(contents: Any) -> Served:
    """The real server on a free port."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra: viewer)")
    pytest.importorskip("starlette", reason="Starlette is not installed (extra: viewer)")
    from glassformer.viewer import server

    app = server.make_app(contents, token=TOKEN)
    listener = server.listen("127.0.0.1", 0)
    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="off", log_config=None, log_level="warning", access_log=False
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()

    def stop() -> None:
        running.should_exit = True
        thread.join(10)
        listener.close()

    names = tuple(subject.name for subject in contents.subjects)
    return Served(names, list(contents.subjects), f"http://127.0.0.1:{listener.getsockname()[1]}/{TOKEN}/", stop)


def chromium_path() -> str | None:
    """The program of Chromium; None: Playwright's own."""
    return os.environ.get("GLASSFORMER_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)


def without_browser(reason: str) -> NoReturn:
    """Skip a test for want of a browser; fail it where ``GLASSFORMER_NEEDS_BROWSER`` is set, as in CI."""
    if os.environ.get("GLASSFORMER_NEEDS_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One Chromium for all tests of this folder."""
    try:
        import playwright.sync_api as playwright
    except ImportError:
        without_browser("Playwright is not installed (extra: dev)")
    with playwright.sync_playwright() as started:
        try:
            chromium = started.chromium.launch(executable_path=chromium_path(), args=ARGUMENTS)
        except playwright.Error as error:
            without_browser(f"no Chromium: install it, or set GLASSFORMER_CHROMIUM ({str(error).splitlines()[0]})")
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def served() -> Iterator[Callable[..., Served]]:
    """Servers by the models that they show; each is started once."""
    running: dict[tuple[str, ...], Served] = {}

    def get(*names: str) -> Served:
        if names not in running:
            running[names] = start_server(names)
        return running[names]

    yield get
    for server in running.values():
        server.stop()


@dataclass
class Opened:
    """A page in a browser context of its own, and what goes wrong in it."""

    page: Any
    problems: Problems

    def close(self) -> None:
        self.page.context.close()


def open_in(browser: Any, server: Served, state: str, options: dict[str, Any]) -> Opened:
    """Open a server's page at a state, in a fresh browser context."""
    defaults = {"viewport": {"width": 1280, "height": 900}, "locale": "en-GB", "accept_downloads": True}
    page = browser.new_context(**{**defaults, **options}).new_page()
    page.set_default_timeout(15_000)
    problems = Problems(server.address)
    problems.watch(page)
    page.goto(f"{server.address}#{state}" if state else server.address)
    page.wait_for_selector("main > *")
    settle(page)
    return Opened(page, problems)


@pytest.fixture
def open_page(browser: Any, served: Callable[..., Served]) -> Iterator[OpenPage]:
    """Open the page of a model (of several: a tuple) at a state (``view=heads&…``), in a fresh browser context."""
    opened: list[Opened] = []

    def open_one(names: str | tuple[str, ...], state: str = "", **context_options: Any) -> Any:
        server = served(*([names] if isinstance(names, str) else names))
        opened.append(open_in(browser, server, state, context_options))
        return opened[-1].page

    yield open_one
    for one in opened:
        one.close()
    assert [problem for one in opened for problem in one.problems.found] == []


NOWHERE = "view=none&lang=zh&theme=dark"  # no such view: nothing of an earlier one is left, and the frame is drawn anew


@pytest.fixture(scope="package")
def kept() -> Iterator[dict[str, Opened]]:
    """Pages that tests have left open, the one that was used last at the end."""
    pages: dict[str, Opened] = {}
    yield pages
    for one in pages.values():
        one.close()


@pytest.fixture
def visit(browser: Any, served: Callable[..., Served], kept: dict[str, Opened]) -> Iterator[OpenPage]:
    """Show a state in the page of a model that is open already; the same page each time, if its options are the same.

    For tests that do not depend on how a page starts, and change nothing but what its address says.
    """
    used: dict[str, Opened] = {}

    def go(names: str | tuple[str, ...], state: str = "", **context_options: Any) -> Any:
        key = json.dumps([names, context_options], sort_keys=True)
        one = kept.pop(key, None)
        if one is None:
            server = served(*([names] if isinstance(names, str) else names))
            one = open_in(browser, server, state, context_options)
        else:
            one.page.mouse.move(0, 0)
            for address in (NOWHERE, state):
                one.page.evaluate("address => { location.hash = address; }", address)
                settle(one.page)
            one.page.evaluate("scrollTo(0, 0)")
        kept[key] = used[key] = one
        while len(kept) > KEPT:
            kept.pop(next(iter(kept))).close()
        return one.page

    yield go
    found = [problem for one in used.values() for problem in one.problems.found]
    for key, one in used.items():
        one.problems.found.clear()
        if found and kept.pop(key, None):
            one.close()
    assert found == []
