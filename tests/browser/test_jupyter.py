"""The page in notebooks: JupyterLab and Notebook 7 in Chromium, with a real kernel; and what other notebooks allow."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer.viewer.page import inline_script
from tests.browser.test_neuron import numbers
from tests.browser.tools import IDLE, recorded, shown
from tests.contracts.rules import REPOSITORY

TOKEN = "a-token-for-these-tests"
TEXT = "Once upon a time, there was a little dog."
CELLS = (
    "import torch\nfrom glassformer import head_view, load, model_view, neuron_view\n"
    f"m = load('stories', dtype='float32')\nm.view({TEXT!r})",
    "torch.manual_seed(5)\nweights = [torch.rand(1, 4, 5, 5).softmax(-1) for _ in range(2)]\n"
    "head_view(weights, list('abcde'), heads=[1], layer=1, height=500)",
    "model_view(weights, list('abcde'))",
    "neuron_view(m, 'Once upon a time', layer=1, head=2)",
)
TITLES = ("Heads", "Heads", "All heads", "Neurons")
PLACES = {"jupyterlab": "lab/workspaces/{name}/tree/{name}.ipynb", "notebook": "notebooks/{name}.ipynb"}
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
LUMINANCE = """() => {
  const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
  return (r + g + b) / 765;
}"""


@dataclass
class Jupyter:
    """A server of notebooks in a folder, and what went wrong in the frames of its pages."""

    app: str
    root: Path
    address: str
    environment: dict[str, str]
    problems: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.root / "notebooks"

    def open(self, browser: Any, name: str) -> Any:
        """A notebook in a browser whose system prefers neither light nor dark."""
        context = browser.new_context(
            viewport={"width": 1280, "height": 1000}, locale="en-GB", color_scheme="null", accept_downloads=True
        )
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._page_error(error))
        page.on("request", self._request)
        page.goto(f"{self.address}{PLACES[self.app].format(name=name)}?token={TOKEN}")
        page.locator(f"{PANEL} .jp-CodeCell .cm-content").first.wait_for()
        self._wait_for_kernel(page, name)
        return page

    def _wait_for_kernel(self, page: Any, name: str) -> None:
        """Until the kernel of a notebook answers its page: until then, running a cell asks which kernel to use."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            sessions = page.request.get(f"{self.address}api/sessions?token={TOKEN}").json()
            kernels = [session["kernel"] for session in sessions if session["path"] == f"{name}.ipynb"]
            if any(kernel["execution_state"] == "idle" and kernel["connections"] for kernel in kernels):
                page.locator(f"{PANEL} .jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
                page.wait_for_timeout(500)
                return
            page.wait_for_timeout(200)
        raise TimeoutError(f"no kernel for {name} in 120 seconds")

    # Jupyter has messages of its own; those of the frame come from about:srcdoc.
    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and "srcdoc" in f"{message.location} {message.text}":
            self.problems.append(message.text)

    def _page_error(self, error: Any) -> None:
        if "srcdoc" in str(error.stack):
            self.problems.append(str(error))

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:", "about:srcdoc")):
            self.problems.append(f"asked for {request.url}")


@pytest.fixture(params=PLACES)
def jupyter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Jupyter]:
    """JupyterLab or Notebook on a free port of this machine, with settings, trust and kernels of its own."""
    app = request.param
    for module in (app, "ipykernel"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed (extra: notebook)")
    names = {"CONFIG": "config", "DATA": "data", "RUNTIME": "runtime"}
    environment = {f"JUPYTER_{key}_DIR": str(tmp_path / name) for key, name in names.items()}
    environment |= {f"JUPYTERLAB_{key}_DIR": str(tmp_path / key.lower()) for key in ("SETTINGS", "WORKSPACES")}
    environment |= {"IPYTHONDIR": str(tmp_path / "ipython"), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    news = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}  # it asks the network
    (tmp_path / "config" / "labconfig").mkdir(parents=True)
    (tmp_path / "config" / "labconfig" / "page_config.json").write_text(json.dumps(news))
    (tmp_path / "notebooks").mkdir()
    options = ["--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", f"--IdentityProvider.token={TOKEN}"]
    options += ["--ServerApp.allow_root=True", "--LabApp.extension_manager=readonly"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", app, *options], cwd=tmp_path / "notebooks", env={**os.environ, **environment},
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield Jupyter(app, tmp_path, _address(server, tmp_path), environment)
        finally:
            server.terminate()  # its kernels end with it
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _address(server: subprocess.Popen[bytes], root: Path) -> str:
    """The address that a server writes down once it listens."""
    end = time.monotonic() + 120
    while time.monotonic() < end and server.poll() is None:
        for path in (root / "runtime").glob("jpserver-*.json"):
            text = path.read_text()
            if text.rstrip().endswith("}"):
                return str(json.loads(text)["url"])
        time.sleep(0.2)
    pytest.fail(f"Jupyter did not start:\n{(root / 'log').read_text()[-3000:]}")


def write_notebook(path: Path) -> None:
    keys = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    cells = [{**keys, "id": f"cell-{number}", "source": source} for number, source in enumerate(CELLS)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(book))


def choose(page: Any, menu: str, *items: str) -> None:
    """Choose from a menu of the notebook."""
    page.locator(".lm-MenuBar-item").get_by_text(menu, exact=True).click()
    for item in items:
        page.locator(".lm-Menu-item:visible").filter(has_text=re.compile(f"^{item}")).first.click()


def run_cells(page: Any) -> None:
    choose(page, "Run", "Run All Cells")
    page.locator(f"{PANEL} .jp-OutputArea iframe").nth(len(CELLS) - 1).wait_for(timeout=180_000)


def frames(page: Any) -> list[Any]:
    """The documents inside the outputs of the shown notebook, each when it has been drawn."""
    found = []
    for element in page.locator(f"{PANEL} .jp-OutputArea iframe").element_handles():
        element.scroll_into_view_if_needed()  # a frame that cannot be seen is not drawn
        frame = element.content_frame()
        frame.wait_for_selector("main section.view")
        end = time.monotonic() + 60
        while not frame.evaluate(IDLE) and time.monotonic() < end:
            page.wait_for_timeout(50)
        found.append(frame)
    return found


def readout(frame: Any, query: int) -> dict[int, float]:
    """The weights that the page writes out for a query when it is hovered, by key."""
    frame.locator(f".board-token.query[data-index='{query}']").hover()
    rows = frame.locator(f".readout[data-query='{query}'] tbody tr").all()
    return {int(row.locator("th .note").inner_text()): shown(row.locator(".bar-value").inner_text()) for row in rows}


def check_values(found: list[Any], subject: Any) -> None:
    """The numbers on the pages are those that Python computes."""
    expected = recorded(subject, "decoder.blocks.0.attention.weights", text=TEXT)[:, 6].mean(0)
    assert readout(found[0], 6) == pytest.approx(dict(enumerate(expected[:7].tolist())), abs=6e-5)
    torch.manual_seed(5)
    weights = [torch.rand(1, 4, 5, 5).softmax(-1) for _ in range(2)]
    assert readout(found[1], 3) == pytest.approx(dict(enumerate(weights[1][0, 1, 3].tolist())), abs=6e-5)
    assert found[2].locator("canvas").count() >= 1
    assert found[3].locator("select[name=layer]").input_value() == "1"
    assert found[3].locator("select[name=head]").input_value() == "2"
    found[3].locator(".neuron-numbers").evaluate("one => { one.open = true; }")
    chosen = int(found[3].locator("select[name=token]").input_value())
    row = recorded(subject, "decoder.blocks.1.attention.weights", text="Once upon a time")[2, chosen]
    weights_shown = [values[-1] for values in numbers(found[3])]
    assert weights_shown == pytest.approx(row[: chosen + 1].tolist(), abs=6e-4)


def check_sizes(found: list[Any]) -> None:
    """Each frame has its height, fills its output, and needs no sideways scrolling."""
    boxes = [frame.frame_element().bounding_box() for frame in found]
    assert [box["height"] for box in boxes] == [720, 500, 720, 720]
    for frame, box in zip(found, boxes, strict=True):
        assert box["width"] > 600
        assert frame.evaluate("document.documentElement.scrollWidth") <= box["width"]


def choose_theme(page: Any, name: str) -> None:
    choose(page, "Settings", "Theme", name)
    page.locator(f"body[data-jp-theme-name='{name}']").wait_for(state="attached")
    page.wait_for_timeout(500)


def check_themes(page: Any, found: list[Any]) -> None:
    """The pages follow the theme of the notebook while they stay as they are."""
    for theme, least, most in (("", 0.8, 1), ("JupyterLab Dark", 0, 0.3), ("JupyterLab Light", 0.8, 1)):
        if theme:
            choose_theme(page, theme)
        for frame in found:
            frame.frame_element().scroll_into_view_if_needed()
            assert least <= frame.evaluate(LUMINANCE) <= most, theme


def save_notebook(page: Any, path: Path) -> None:
    page.locator(f"{PANEL} .jp-CodeCell .cm-content").first.click()  # keys pressed inside a frame stay there
    page.keyboard.press("Control+s")
    end = time.monotonic() + 60
    while path.read_text().count("srcdoc") < len(CELLS):
        assert time.monotonic() < end, "the notebook was not saved"
        page.wait_for_timeout(200)


@pytest.mark.slow
def test_pages_in_a_notebook(jupyter: Jupyter, browser: Any, served: Any) -> None:
    subject = served("stories").subjects[0]
    book = jupyter.folder / "book.ipynb"
    write_notebook(book)
    page = jupyter.open(browser, "book")
    run_cells(page)
    found = frames(page)
    assert tuple(frame.locator("h1").inner_text() for frame in found) == TITLES
    check_values(found, subject)
    check_sizes(found)
    found[1].locator("nav [data-view=grid]").click()  # the frames do not share what is chosen
    assert [frame.locator("h1").inner_text() for frame in found[:2]] == ["Heads", "All heads"]
    check_themes(page, found)
    with page.expect_download() as download:
        found[0].locator("button[data-save=svg]").click()
    assert b"<svg" in Path(download.value.path()).read_bytes()
    save_notebook(page, book)
    page.context.close()

    # Opened again, the notebook shows its pages without running anything.
    page = jupyter.open(browser, "book")
    found = frames(page)
    assert tuple(frame.locator("h1").inner_text() for frame in found) == TITLES
    check_values(found, subject)
    page.context.close()

    # Written by someone else, it is not trusted: Jupyter removes frame and style, and the note says so.
    (jupyter.folder / "other.ipynb").write_text(book.read_text().replace("head=2", "head=3"))
    page = jupyter.open(browser, "other")
    note = page.locator(f"{PANEL} .jp-OutputArea p", has_text="not trusted")
    note.first.wait_for()
    assert (note.count(), page.locator("iframe").count()) == (len(CELLS), 0)
    page.context.close()
    trust = [sys.executable, "-m", "jupyter", "trust", "other.ipynb"]
    subprocess.run(trust, cwd=jupyter.folder, env={**os.environ, **jupyter.environment}, check=True)
    page = jupyter.open(browser, "other")
    assert len(frames(page)) == len(CELLS)
    assert not page.locator(f"{PANEL} .glassformer-note").first.is_visible()
    page.context.close()
    assert jupyter.problems == []


# VS Code's policy for outputs in its strictest setting; documents in srcdoc are subject to it as well. Colab's outputs
# are in a frame of another origin.
VSCODE = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src https: http: data:; font-src https:; connect-src https:; child-src https: data:"
)
THEMES = {
    "VS Code, light": ("<body data-vscode-theme-kind='vscode-light'>", True),
    "VS Code, dark": ("<body data-vscode-theme-kind='vscode-dark'>", False),
    "VS Code, high contrast": ("<body data-vscode-theme-kind='vscode-high-contrast'>", False),
    "VS Code, light and high contrast": ("<body data-vscode-theme-kind='vscode-high-contrast-light'>", True),
    "Colab, dark": ("<html theme='dark'><body>", False),
}


@pytest.mark.parametrize(
    "rights", ["allow-scripts allow-downloads", pytest.param("allow-scripts", marks=pytest.mark.slow)]
)
def test_the_page_needs_scripts_alone(browser: Any, rights: str) -> None:
    torch.manual_seed(5)
    weights = torch.rand(2, 3, 4, 4).softmax(-1)
    cell = glassformer.head_view(weights, list("abcd"))._repr_html_()
    assert cell.count('sandbox="allow-scripts allow-downloads"') == 1
    cell = cell.replace("allow-scripts allow-downloads", rights)
    page = browser.new_context(offline=True, accept_downloads=True, locale="en-GB").new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if not request.url.startswith("data:") else None)
    policy = f'<meta http-equiv="Content-Security-Policy" content="{VSCODE}">'
    page.set_content(f"<!doctype html><html><head>{policy}</head><body>{cell}</body></html>")
    frame = page.locator("iframe").element_handle().content_frame()
    frame.wait_for_selector("main section.view")
    assert readout(frame, 2) == pytest.approx(dict(enumerate(weights[0, :, 2].mean(0).tolist())), abs=6e-5)
    frame.locator("nav [data-view=grid]").click()
    assert frame.locator("h1").inner_text() == "All heads"
    if "downloads" in rights:
        for kind in ("svg", "png"):
            with page.expect_download():
                frame.locator(f"button[data-save={kind}]").click()
    assert not frame.locator(".error").is_visible()
    page.context.close()
    assert [problem for problem in problems if problem != "about:srcdoc"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", THEMES)
def test_the_page_follows_the_theme_of_a_notebook(browser: Any, name: str) -> None:
    around, is_light = THEMES[name]
    page = browser.new_context(color_scheme="null").new_page()
    page.set_content(f"<!doctype html>{around}{glassformer.head_view(torch.ones(1, 1, 1, 1), ['a'])._repr_html_()}")
    frame = page.locator("iframe").element_handle().content_frame()
    frame.wait_for_selector("main section.view")
    page.wait_for_timeout(200)
    assert (frame.evaluate(LUMINANCE) > 0.5) == is_light
    assert not page.locator(".glassformer-note").is_visible()
    page.context.close()


def test_the_page_reaches_for_nothing_outside_its_frame() -> None:
    script = inline_script()
    names = ("localStorage", "sessionStorage", "indexedDB", "cookie", "postMessage", "window.open", "WebSocket")
    assert [name for name in names if name in script] == []
    outside = r"\b(?:window|self|globalThis)\.(?:parent|top|opener)\b|\b(?:parent|top)\.(?:document|location)"
    assert re.findall(outside, script) == []
    assert script.count("fetch(") == 1  # of the server's own page
