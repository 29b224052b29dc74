"""The viewer at 1,024 tokens, 12 layers and 12 heads: its queries, its page in Chromium, and an exported file.

Usage: python -m benchmarks.viewer [--rounds N] [--only queries|page|export] [--quick]. The model has GPT-2's shape
(124M parameters), random weights and the vocabulary of the shipped stories. The queries are asked one after the other
of a fresh page, so later ones find what earlier ones computed; CPU time is printed beside wall time, because it says
more on a busy machine. "Interactive" is the time from the start of navigation until the first view is drawn and has
drawn the answer to a movement of the pointer. A hover is the time from the event until the frame after it. Printed are
medians over the rounds. Where bertviz is installed, the size of its model_view of the first layer alone is printed
beside that of the exported file: it writes every weight as text, so all layers take as many times that.
"""

import argparse
import importlib.util
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.hardware import describe
from glassformer import Transformer, pretrained
from glassformer.families import lineages
from glassformer.loaded import Loaded, LoadReport
from glassformer.training.malloc import keep_freed_memory
from glassformer.viewer import queries
from glassformer.viewer.contents import Contents
from glassformer.viewer.encode import to_json
from glassformer.viewer.export import write_page
from glassformer.viewer.inputs import Input
from glassformer.viewer.subject import Subject

WORDS = "Once upon a time there was a little girl named Lily who liked to play in the park with her friends. "
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
HOVERS, PLACES = 60, 20  # movements of the pointer, over the first tokens
IDLE = """() => new Promise((done) => {
  const look = () => (document.body.dataset.busy === "0" && document.querySelector("main canvas")
    ? requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))) : setTimeout(look, 5));
  look();
})"""
# The next frame draws what the handlers of the event changed; what follows it runs when that is done.
HOVER = """(place) => new Promise((done, fail) => {
  const target = document.querySelector(`.board-token.query[data-place="${place}"]`);
  const { x, y } = target.getBoundingClientRect();
  const start = performance.now();
  target.dispatchEvent(new PointerEvent("pointermove", { clientX: x + 4, clientY: y + 4, bubbles: true }));
  requestAnimationFrame(() => setTimeout(() => {
    if (!target.classList.contains("over")) fail(new Error("the page did not react to the pointer"));
    done({ spent: performance.now() - start, now: performance.now() });
  }, 0));
})"""


@dataclass(frozen=True)
class Sizes:
    """Of the model and the text."""

    tokens: int
    layers: int
    heads: int
    width: int
    vocab: int


FULL, QUICK = Sizes(1024, 12, 12, 768, 50_257), Sizes(300, 2, 2, 16, 4096)


def make_subject(sizes: Sizes) -> tuple[Subject, str]:
    """The model, and a text of as many tokens as it reads."""
    torch.manual_seed(0)
    config = {"n_layer": sizes.layers, "n_head": sizes.heads, "n_embd": sizes.width, "n_positions": sizes.tokens}
    facts = lineages()["gpt2"].facts({**config, "vocab_size": sizes.vocab}, "lm")
    folder = pretrained.path("stories")
    loaded = Loaded(Transformer(facts).eval(), facts, "gpt2", LoadReport(), folder, tokenizer_path=folder)
    ids = loaded.tokenizer.encode(WORDS * (1 + sizes.tokens // 20), special=False)
    begin = len(loaded.tokenizer.encode(""))
    text = loaded.tokenizer.decode(ids[: sizes.tokens - begin])
    return Subject(loaded, "gpt2", max_tokens=sizes.tokens), text


def asked(sizes: Sizes) -> list[tuple[str, dict[str, Any]]]:
    """The queries that are timed, with their parameters."""
    last, layer = sizes.tokens - 1, sizes.layers - 1
    return [
        ("attention", {"layer": 0, "rows": [0, 128]}),
        ("attention_overview", {}),
        ("head_stats", {}),
        ("attention", {"layer": layer, "rows": [128, 256]}),
        ("neuron", {"layer": layer, "row": last}),
        ("predict", {}),
        ("sublayer", {"layer": layer, "token": last}),
        ("steps", {}),
        ("lens", {"rows": [last - 31, last + 1]}),
        ("costs", {}),
        ("mask", {}),
    ]


@dataclass(frozen=True)
class Took:
    """Seconds by the clock and of the CPU."""

    clock: float
    cpu: float


def timed(function: Callable[[], object]) -> Took:
    """How long a function takes."""
    clock, cpu = time.perf_counter(), time.process_time()
    function()
    return Took(time.perf_counter() - clock, time.process_time() - cpu)


def median(took: list[Took]) -> str:
    """The medians as two columns."""
    return f"{statistics.median(t.clock for t in took):9.2f} s{statistics.median(t.cpu for t in took):9.2f} s"


def held(what: str) -> float:
    """Megabytes that this process holds (VmRSS) or has held at most (VmHWM); Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status says nothing of {what}.")


def report_queries(subject: Subject, text: str, sizes: Sizes, rounds: int) -> None:
    """A table: the bare pass, then each query of a fresh page."""
    ids = torch.tensor([subject.tokenizer.encode(text)])

    def bare() -> None:
        with torch.inference_mode():
            subject.model.decode(ids)

    bare()
    found: dict[str, list[Took]] = {"one pass": [timed(bare) for _ in range(rounds)]}
    for _ in range(rounds):
        contents = Contents([Subject(subject.loaded, subject.name, max_tokens=sizes.tokens)])
        for name, params in asked(sizes):
            request = queries.parse(name, {"input": {"text": text}, **params})
            took = timed(lambda request=request, contents=contents: to_json(queries.answer(contents, request)))
            where = f", layer {params['layer']}" if "layer" in params else ""
            found.setdefault(f"{name}{where}", []).append(took)
    print(f"\n{'queries':32}{'clock':>11}{'CPU':>11}")
    for name, each in found.items():
        print(f"{name:32}{median(each)}", flush=True)
    print(f"{'memory':32}{held('VmRSS'):8.0f} MB held, {held('VmHWM'):.0f} MB at most")


@contextmanager
def served(contents: Contents) -> Iterator[str]:
    """The address of a server in a thread."""
    from glassformer.viewer import server

    token = server.new_token()
    listener = server.listen("127.0.0.1", 0)
    running = server.make_server(server.make_app(contents, token=token))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/"
    finally:
        running.should_exit = True
        thread.join(10)
        listener.close()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, or None where there is none."""
    program = os.environ.get("GLASSFORMER_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None or importlib.util.find_spec("playwright") is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True)
class Opened:
    """Milliseconds until a page is interactive and of each hover; what its console said."""

    interactive: float
    hovers: list[float]
    errors: list[str]


def open_page(browser: Any, address: str) -> Opened:
    """Open a page at its view Heads and move the pointer over its tokens."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(f"{address}#view=heads", wait_until="commit")
        page.wait_for_selector("main canvas", state="attached")
        page.evaluate(IDLE)
        first, *rest = [page.evaluate(HOVER, number % PLACES) for number in range(HOVERS + 1)]
        return Opened(first["now"], [hover["spent"] for hover in rest], errors)
    finally:
        context.close()


def all_heads(browser: Any, address: str) -> float:
    """Seconds until the view of all heads is drawn."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(300_000)
    try:
        page.goto(f"{address}#view=grid", wait_until="commit")
        page.wait_for_selector("main canvas", state="attached")
        return float(page.evaluate(IDLE)) / 1000
    finally:
        context.close()


def print_opened(name: str, opened: list[Opened]) -> None:
    """Two lines: until a page is interactive, and its hovers."""
    hovers = sorted(hover for each in opened for hover in each.hovers)
    interactive = statistics.median(each.interactive for each in opened) / 1000
    print(f"{name + ': interactive after':32}{interactive:9.2f} s")
    late = hovers[min(len(hovers) - 1, int(0.95 * len(hovers)))]
    print(f"{name + ': hover':32}{statistics.median(hovers):9.1f} ms, 95 % within {late:.1f} ms")
    errors = [error for each in opened for error in each.errors]
    print(f"{name + ': console':32}{'        no errors' if not errors else ' | '.join(errors)[:200]}", flush=True)


def report_page(browser: Any, subject: Subject, text: str, rounds: int) -> None:
    """The page from a server: a fresh one for each round, so that nothing is computed yet."""
    opened, grids, cpu = [], [], []
    print("\npage")
    for _ in range(rounds):
        fresh = Subject(subject.loaded, subject.name, max_tokens=subject.max_tokens)
        with served(Contents([fresh], state={"text": text})) as address:
            opened.append(open_page(browser, address))
            start = time.process_time()
            grids.append(all_heads(browser, address))
            cpu.append(time.process_time() - start)
    print_opened("server", opened)
    print(f"{'server: all heads':32}{median([Took(*pair) for pair in zip(grids, cpu, strict=True)])}", flush=True)


def report_export(browser: Any, subject: Subject, text: str, folder: Path, rounds: int) -> None:
    """An exported file: its size, how long it takes to write and to open."""
    path = folder / "page.html"
    fresh = Subject(subject.loaded, subject.name, max_tokens=subject.max_tokens)
    took = timed(lambda: write_page(Contents([fresh], state={"text": text}), path))
    print(f"\n{'export':32}{path.stat().st_size / 1e6:9.1f} MB")
    print(f"{'file: written in':32}{median([took])}", flush=True)
    if browser is not None:
        print_opened("file", [open_page(browser, path.as_uri()) for _ in range(rounds)])
    print(f"{'bertviz model_view, one layer':32}{peer_size(subject, text)}", flush=True)


def peer_size(subject: Subject, text: str) -> str:
    """The size of bertviz's page of the weights of the first layer."""
    if importlib.util.find_spec("bertviz") is None:
        return "not measured: bertviz is not installed"
    from bertviz import model_view

    weights = subject.weights(Input(text), "decoder", 0)
    tokens = subject.token_texts(subject.tokenizer.encode(text))
    html = model_view([weights[None]], tokens, html_action="return").data
    return f"{len(html.encode()) / 1e6:9.1f} MB"


def main() -> None:
    """Measure all that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["queries", "page", "export"])
    parser.add_argument("--quick", action="store_true", help="a tiny model and a shorter text: shows that all runs")
    wanted = parser.parse_args()
    keep_freed_memory()  # as glassformer view does
    sizes = QUICK if wanted.quick else FULL
    subject, text = make_subject(sizes)
    print(f"{describe()}; load {os.getloadavg()[0]:.1f}")
    print(
        f"{len(subject.tokenizer.encode(text))} tokens, {sizes.layers} layers, {sizes.heads} heads, width {sizes.width}"
    )
    parts = [wanted.only] if wanted.only else ["queries", "page", "export"]
    if "queries" in parts:
        report_queries(subject, text, sizes, wanted.rounds)
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        if browser is None:
            print("there is no Chromium with Playwright here: the page is not measured.")
        elif "page" in parts:
            print(f"Chromium {browser.version}")
            report_page(browser, subject, text, wanted.rounds)
        if "export" in parts:
            report_export(browser, subject, text, Path(folder), wanted.rounds)


if __name__ == "__main__":
    main()
