"""The server: who gets an answer, and that no request harms it."""

import gc
import io
import json
import logging
import random
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from glassformer.viewer import queries, server, work
from glassformer.viewer.contents import Contents
from glassformer.viewer.encode import decode
from glassformer.viewer.inputs import Input
from glassformer.viewer.page import static_files
from glassformer.viewer.queries import QUERIES, Query
from glassformer.viewer.queries_model import Nothing
from glassformer.viewer.server import HEADERS, Guard, Limits, make_app
from glassformer.viewer.subject import QueryError, Subject
from tests.viewer.conftest import ask as answered
from tests.viewer.conftest import shipped

TOKEN = "sesame"
HOST = "127.0.0.1:8000"


def app_of(**limits: Any) -> Guard:
    return make_app(Contents([shipped("stories")]), token=TOKEN, limits=Limits(**limits))


def client_of(app: Guard) -> TestClient:
    return TestClient(app, base_url=f"http://{HOST}", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def app() -> Guard:
    return app_of()


@pytest.fixture(scope="module")
def client(app: Guard) -> TestClient:
    return client_of(app)


def routes(app: Guard) -> list[tuple[str, str]]:
    """Every route as a method and a path that it answers, taken from the route table."""
    found = []
    for route in app.app.routes:
        assert isinstance(route, Route), "a kind of route that this test does not know"
        path = route.path.replace("{path:path}", "js/main.js").replace("{name}", "tokens")
        found += [(method, path) for method in sorted(route.methods or ())]
    return found


def ask(client: httpx.Client, method: str, path: str, **kwargs: Any) -> httpx.Response:
    body = {"content": json.dumps({"input": {"text": "a"}})} if method == "POST" else {}
    return client.request(method, path, **body, **kwargs)


# --- who gets an answer -----------------------------------------------------------------------------------------------


def test_the_table_holds_every_route(app: Guard) -> None:
    assert sorted(path for _, path in routes(app)) == sorted(
        ["/", "/", "/static/js/main.js", "/static/js/main.js", "/api/tokens"]
    )


def test_every_route_answers_the_page_itself(app: Guard, client: TestClient) -> None:
    for method, path in routes(app):
        own = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
        for headers in ({}, {"sec-fetch-site": "none"}, own):
            answer = ask(client, method, f"/{TOKEN}{path}", headers=headers)
            assert answer.status_code == 200, (method, path, headers)
            for name, value in HEADERS.items():
                assert answer.headers[name] == value
            assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("prefix", ["", "/wrong", f"/{TOKEN}x", f"/{TOKEN[:-1]}", f"/{TOKEN.upper()}", "/%00", "/é"])
def test_without_the_token_every_route_is_refused(app: Guard, client: TestClient, prefix: str) -> None:
    for method, path in [*routes(app), ("GET", "/nothing"), ("POST", "/api/nothing"), ("PUT", "/")]:
        for address in (f"{prefix}{path}", f"{prefix}{path}?token={TOKEN}"):
            answer = ask(client, method, address)
            assert answer.status_code == 403, (method, address)
            assert "Content-Security-Policy" in answer.headers


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example", "attacker.example:8000", "127.0.0.1.attacker.example", "localhost.attacker.example",
        "192.168.0.7:8000", "8.8.8.8", "", "127.0.0.1@attacker.example", "[::2]:8000", "2130706433", "0.0.0.0:8000",
        "[::1]attacker.example", "127.0.0.1:80@attacker.example", "127.0.0.1:80:80", "localhost:", "[::1", "::1",
        "localhost:123456", "localhost/", "[localhost].attacker.example",
    ],
)  # fmt: skip
def test_another_name_of_this_machine_is_refused(app: Guard, client: TestClient, host: str) -> None:
    """DNS rebinding: a page of attacker.example asks its own name, which now leads here."""
    for method, path in routes(app):
        assert ask(client, method, f"/{TOKEN}{path}", headers={"host": host}).status_code == 403


def test_an_address_without_its_last_slash_is_redirected(client: TestClient) -> None:
    for path in (f"/{TOKEN}", f"http://{HOST}//{TOKEN}", f"/{TOKEN}?a=b"):
        answer = client.get(path, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, f"/{TOKEN}/"), path
    assert "<script" in client.get(f"/{TOKEN}").text
    for path in (f"/{TOKEN}x", "/", ""):
        assert client.get(path, follow_redirects=False).status_code == 403


def test_a_request_has_few_headers(client: TestClient) -> None:
    address = f"/{TOKEN}/"
    assert client.get(address, headers={f"x-{number}": "a" for number in range(40)}).status_code == 200
    assert client.get(address, headers={f"x-{number}": "a" for number in range(70)}).status_code == 431
    assert client.get(address, headers={"x-large": "a" * 2**14}).status_code == 431


def test_a_tunnel_may_have_another_port(client: TestClient) -> None:
    for host in ("localhost:9999", "[::1]:9999", "LOCALHOST"):
        assert client.get(f"/{TOKEN}/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://attacker.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8001"},
        {"origin": "https://127.0.0.1:8000"},
        {"origin": f"http://{HOST}", "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_pages_are_refused(app: Guard, client: TestClient, headers: dict[str, str]) -> None:
    for method, path in routes(app):
        assert ask(client, method, f"/{TOKEN}{path}", headers=headers).status_code == 403


def test_beyond_this_machine_addresses_are_allowed_and_names_are_not() -> None:
    app = make_app(Contents([shipped("stories")]), token="long enough secret".replace(" ", "-"), host="0.0.0.0")
    client = client_of(app)
    assert client.get("/long-enough-secret/", headers={"host": "192.168.0.7:8000"}).status_code == 200
    assert client.get("/long-enough-secret/", headers={"host": "attacker.example"}).status_code == 403
    with pytest.raises(ValueError, match="part of an address"):
        make_app(Contents(), token="a/b")


def test_a_socket_that_is_no_http_is_refused(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(f"/{TOKEN}/api/tokens"):
        raise AssertionError("it was accepted")


# --- files ------------------------------------------------------------------------------------------------------------


def test_only_files_of_the_table_are_served(client: TestClient) -> None:
    for path in static_files():
        assert client.get(f"/{TOKEN}/static/{path}").status_code == 200
    outside = [
        "../page.py",
        "..%2fpage.py",
        "%2e%2e/page.py",
        "js/../../page.py",
        "/etc/passwd",
        "js",
        "js/",
        "js/main.js%00",
    ]
    for path in outside:
        assert client.get(f"/{TOKEN}/static/{path}").status_code in (403, 404), path


def test_the_policy_lets_nothing_else_in() -> None:
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


# --- requests ---------------------------------------------------------------------------------------------------------


def malformed(rng: random.Random) -> tuple[str, str, bytes]:
    """A request that cannot be answered: wrong JSON, wrong types, wrong names, wrong numbers."""
    values: list[Any] = [None, True, -1, 10**30, 1.5, "x", "\ud800", [], {}, [[]], {"a": 1}, "a" * 1000]
    kind = rng.randrange(6)
    name = rng.choice([*QUERIES, "nothing", "a" * 2000, "%00", "é"])
    if kind == 0:
        return "POST", f"/{TOKEN}/api/{name}", bytes(rng.randrange(256) for _ in range(rng.randrange(60)))
    if kind == 1:
        return "POST", f"/{TOKEN}/api/{name}", b"[" * rng.randrange(1, 5000)
    if kind == 2:
        return rng.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS"]), f"/{TOKEN}/api/{name}", b"{}"
    if kind == 3:
        return "GET", f"/{TOKEN}/" + "".join(rng.choice("ab./%\\") for _ in range(20)) + "zz", b""
    if kind == 4:
        text = rng.choice(["NaN", "1e999", "-Infinity", '{"input": NaN}', '{"a": 1', "null", "0", '"text"'])
        return "POST", f"/{TOKEN}/api/{name}", text.encode()
    wrong = {"layer": 10**9, "head": -1, "kind": "x", "rows": [5, 1], "name": 7, "unknown": 1, "model": 99}
    key = rng.choice([*wrong, "input"])
    body = {key: rng.choice(values) if key == "input" else wrong[key], "unknown key": rng.choice(values)}
    return "POST", f"/{TOKEN}/api/{name}", json.dumps(body).encode()


def send_malformed(client: TestClient, rng: random.Random, count: int) -> None:
    for _ in range(count):
        method, path, body = malformed(rng)
        try:
            answer = client.request(method, path, content=body)
        except httpx.InvalidURL:
            continue
        assert 400 <= answer.status_code < 500, (method, path, body[:100], answer.text[:300])
        assert "error" in answer.json()
        assert len(answer.content) < 2000


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_malformed_requests_get_4xx_and_cost_no_memory(client: TestClient, count: int) -> None:
    rng = random.Random(0)
    send_malformed(client, rng, 50)  # what is made once
    gc.collect()
    tracemalloc.start()
    try:
        send_malformed(client, rng, count)
        gc.collect()
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 500_000
    assert most < 8_000_000
    assert client.post(f"/{TOKEN}/api/tokens", json={"input": {"text": "a"}}).status_code == 200


def test_a_large_body_is_refused_before_it_is_read(client: TestClient) -> None:
    answer = client.post(f"/{TOKEN}/api/tokens", content=b" " * (2**18 + 1))
    assert answer.status_code == 413
    assert "error" in client.post(f"/{TOKEN}/api/tokens", json={"input": {"text": "a" * 2**17}}).json()


# --- work -------------------------------------------------------------------------------------------------------------


@contextmanager
def slow_query(monkeypatch: pytest.MonkeyPatch, seconds: float = 30.0) -> Iterator[dict[str, int]]:
    """A query that takes long and can be cancelled; counts how many began and how many were cancelled."""
    counts = {"begun": 0, "cancelled": 0, "done": 0}

    def wait(params: Nothing) -> dict[str, Any]:  # noqa: ARG001
        counts["begun"] += 1
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                work.check()
                time.sleep(0.005)
        except work.CancelledError:
            counts["cancelled"] += 1
            raise
        counts["done"] += 1
        return {"done": True}

    monkeypatch.setitem(queries.QUERIES, "wait", Query(wait, Nothing, "nothing"))
    yield counts


def test_what_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_query(monkeypatch) as counts:
        answer = client_of(app_of(seconds=0.2)).post(f"/{TOKEN}/api/wait", json={})
        assert answer.status_code == 503
        assert "longer than 0.2 seconds" in answer.json()["error"]
        assert (answer.json()["code"], answer.json()["values"]) == ("slow", {"seconds": "0.2"})
        _until(lambda: counts["cancelled"] == 1)


def test_errors_of_readers_have_words_in_the_page(client: TestClient) -> None:
    """Every code that an error can have names a sentence of the page, and its values are those of the sentence."""
    sources = [path.read_text(encoding="utf-8") for path in Path(queries.__file__).parent.glob("*.py")]
    codes = {code for text in sources for code in re.findall(r'(?:QueryError\([^()]*?, |code=)"([a-z]+)"', text)}
    assert codes >= {"long", "empty", "slow", "busy", "large", "failed", "single", "context", "ability", "word"}
    words = {
        lang: static_files()[f"js/i18n/{lang}.js"][0].read_text(encoding="utf-8")  # also checked in tests/page
        for lang in ("en", "zh")
    }
    missing = [(lang, code) for lang in words for code in codes if f'"error.{code}"' not in words[lang]]
    assert missing == []
    answer = client.post(f"/{TOKEN}/api/tokens", json={"input": {"text": "word " * 2000}})
    assert answer.status_code == 200, "browsers log other answers as errors of the page"
    assert answer.json()["code"] == "beyond", "the model's own limit"
    assert answer.json()["values"] == {"tokens": 2003, "longest": 512}
    assert client.post(f"/{TOKEN}/api/tokens", json={"input": {"text": "word"}, "layer": 99}).status_code == 400


@pytest.mark.parametrize(("model", "query"), [("ner-en", "tokens"), ("mlm-en", "fill"), ("mlm-en", "embedding")])
@pytest.mark.parametrize(
    ("text", "code"), [("", "empty"), (" \n", "empty"), ("\ufffd", "empty"), ("a " * 999, "beyond")]
)
def test_a_text_that_cannot_be_read_has_words_of_the_page(model: str, query: str, text: str, code: str) -> None:
    with pytest.raises(QueryError) as refused:
        answered(shipped(model), query, text)
    assert refused.value.code == code


def test_the_limit_of_the_page_is_not_the_models() -> None:
    with pytest.raises(QueryError, match="this page shows up to 8") as refused:
        Subject(shipped("stories").loaded, "stories", max_tokens=8).sequences(Input("word " * 20))
    assert refused.value.code == "long"


def test_an_error_inside_is_no_detail_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(params: Nothing) -> dict[str, Any]:  # noqa: ARG001
        raise KeyError("secret")

    monkeypatch.setitem(queries.QUERIES, "fail", Query(fail, Nothing, "nothing"))
    answer = client_of(app_of()).post(f"/{TOKEN}/api/fail", json={})
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_an_answer_has_a_size_limit() -> None:
    answer = client_of(app_of(result=100)).post(f"/{TOKEN}/api/model", json={})
    assert answer.status_code == 400
    assert "more than 100 bytes" in answer.json()["error"]


def _until(condition: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@contextmanager
def running(app: Guard) -> Iterator[str]:
    """A real server on a free port; its address with the token."""
    listener = server.listen("127.0.0.1", 0)
    process = server.make_server(app)
    thread = threading.Thread(target=process.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        _until(lambda: process.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/{TOKEN}/"
    finally:
        process.should_exit = True
        thread.join(20)
        listener.close()


def test_a_reader_who_leaves_cancels_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_query(monkeypatch) as counts, running(app_of()) as address:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}api/wait", json={}, timeout=0.5)
        _until(lambda: counts["cancelled"] == 1)
        assert counts == {"begun": 1, "cancelled": 1, "done": 0}


def test_a_cancelled_query_says_whether_it_was_too_slow() -> None:
    workers = server.Workers(Limits())
    slow, left = work.RunningQuery(-1.0), work.RunningQuery(60.0)
    assert b"took longer than 120 seconds" in bytes(workers._given_up(slow).body)
    assert b"because the connection was closed" in bytes(workers._given_up(left).body)


def test_too_many_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_query(monkeypatch, seconds=0.6) as counts, running(app_of(waiting=3, threads=1)) as address:
        codes: list[int] = []

        def one() -> None:
            codes.append(httpx.post(f"{address}api/wait", json={}, timeout=30).status_code)

        threads = [threading.Thread(target=one) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(codes) == [200, 200, 200, 429, 429, 429]
        assert counts["begun"] == 3


def test_twenty_readers_get_their_own_answers() -> None:
    subject = shipped("stories")
    texts = [f"Once upon a time there {'was a dog ' * (number % 5)}{number}" for number in range(20)]
    expected = {text: queries.answer(Contents([subject]), queries.parse("attention", _body(text))) for text in texts}
    found: dict[str, Any] = {}
    with running(app_of()) as address:

        def one(text: str) -> None:
            found[text] = httpx.post(f"{address}api/attention", json=_body(text), timeout=60).json()

        threads = [threading.Thread(target=one, args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for text in texts:
        assert (decode(found[text]["weights"]) == decode(expected[text]["weights"])).all(), text


def _body(text: str) -> dict[str, Any]:
    return {"input": {"text": text, "ablate": [["decoder.attention", 0, len(text) % 8]]}, "kind": "decoder", "layer": 1}


def test_a_real_server_survives_what_is_no_http() -> None:
    with running(app_of()) as address:
        port = int(address.split(":")[2].split("/")[0])
        junk = [b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 40_000, b"\r\n" * 50]
        junk += [b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"]
        junk += [b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(5000)) + b"\r\n"]
        for data in junk:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(data)
                connection.settimeout(5)
                reply = b""
                with suppress(TimeoutError, ConnectionResetError):
                    reply = connection.recv(4096)
                assert not reply or reply.split()[1].startswith(b"4"), reply[:80]
        page = httpx.get(address)
        assert page.status_code == 200
        assert "server" not in page.headers
        # Two Host headers, as a proxy might be fooled with.
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(f"GET /{TOKEN}/ HTTP/1.1\r\nHost: a.example\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert connection.recv(100).split()[1] in (b"400", b"403")


def connect(address: str, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(address.split(":")[2].split("/")[0])), timeout=20)
    connection.sendall(data)
    return connection


def closes(connection: socket.socket) -> bytes:
    """What comes on a connection until the server closes it."""
    found = b""
    with connection, suppress(ConnectionResetError):
        while piece := connection.recv(4096):
            found += piece
    return found


def test_silent_connections_are_closed_and_others_answered() -> None:
    with running(app_of(sending=1.0)) as address:
        silent = [connect(address) for _ in range(260)]  # more than the server takes at a time
        for connection in silent:
            assert not closes(connection)
        assert httpx.get(address).status_code == 200


def test_half_a_request_is_given_up() -> None:
    head = f"POST /{TOKEN}/api/tokens HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n".encode()
    whole = f"GET /{TOKEN}/static/js/main.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with running(app_of(sending=1.0)) as address:
        assert not closes(connect(address, b"GET / HTT"))
        answer = closes(connect(address, head + b"{"))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not end within 1 seconds" in answer
        # A second request on the same connection, of which single bytes come.
        dripping = connect(address, whole)
        assert dripping.recv(15) == b"HTTP/1.1 200 OK"
        end = time.monotonic() + 20
        with suppress(ConnectionError):
            for number in range(1000):
                dripping.sendall(b"GET /a"[number : number + 1] or b"a")
                time.sleep(0.1)
                assert time.monotonic() < end, "it is still open"
        dripping.close()


def test_a_long_query_is_not_cut_by_the_time_for_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_query(monkeypatch, seconds=1.0), running(app_of(sending=0.3)) as address:
        assert httpx.post(f"{address}api/wait", json={}, timeout=30).json() == {"done": True}


def test_log_handlers_of_the_program_stay_open(app: Guard) -> None:
    class Closing(logging.StreamHandler[io.StringIO]):
        def close(self) -> None:  # as absl's does
            self.stream.close()

    handler = Closing(io.StringIO())
    server.make_server(app).config.load()
    assert not handler.stream.closed
    logging.getLogger("uvicorn.error").warning("still there")


def test_requests_print_nothing(app: Guard) -> None:
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    logging.getLogger("uvicorn").addHandler(handler)
    try:
        with running(app) as address:
            upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
            assert (
                httpx.get(address, headers={**upgrade, "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA=="}).status_code
                == 200
            )
            with socket.create_connection(("127.0.0.1", int(address.split(":")[2].split("/")[0]))) as wrong:
                wrong.sendall(b"no request\r\n\r\n")
                assert b"400" in wrong.recv(100)
    finally:
        logging.getLogger("uvicorn").removeHandler(handler)
    assert heard.getvalue() == ""


def test_localhost_is_both_addresses() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    listeners = server.listen_here("127.0.0.1", 0)
    ports = {listener.getsockname()[1] for listener in listeners}
    names = [listener.getsockname()[0] for listener in listeners]
    for listener in listeners:
        listener.close()
    assert (names, len(ports)) == (["127.0.0.1", "::1"], 1)


def test_a_taken_port_of_the_other_address_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(host: str, port: int) -> socket.socket:
        if host == "::1":
            raise OSError(98, "taken")
        return listen(host, port)

    listen = server.listen
    monkeypatch.setattr(server, "listen", refuse)
    (only,) = server.listen_here("127.0.0.1", 0)
    only.close()


def test_a_port_that_is_taken_is_an_error() -> None:
    with server.listen("127.0.0.1", 0) as taken, pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1 port"):
        server.listen("127.0.0.1", taken.getsockname()[1]).close()
