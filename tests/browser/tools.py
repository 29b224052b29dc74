"""What browser tests share."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import torch

OpenPage = Callable[..., Any]  # the fixture open_page: open_page("en-zh", "view=heads&layer=1")
IDLE = """() => new Promise((done) => {
  const idle = () => document.body.dataset.busy === "0";
  if (!idle()) return setTimeout(() => done(false), 20);
  setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(() => done(idle()))), 20);
})"""


def settle(page: Any, seconds: float = 30) -> None:
    """Wait until no query is under way and what came of the last one is drawn."""
    # Not by wait_for_function, which evaluates text in the page: its content policy refuses that.
    end = time.monotonic() + seconds
    while not page.evaluate(IDLE):
        if time.monotonic() > end:
            raise TimeoutError(f"queries were under way for {seconds} seconds")


def type_text(page: Any, text: str, name: str = "text") -> None:
    """Type into one of the page's fields (text, text_b, target) and wait for the answer."""
    page.locator(f"textarea[name={name}]").fill(text)
    page.locator(f"textarea[name={name}]").press("Enter")
    settle(page)


def address(page: Any) -> str:
    """What the address of the page says, as the page has it now: ``page.url`` learns of changes a little later."""
    return str(page.evaluate("() => location.hash.slice(1)"))


def state(page: Any) -> dict[str, str]:
    """What the address of the page says, by key."""
    return dict(parse_qsl(address(page), keep_blank_values=True))


def save(page: Any, kind: str, folder: Path) -> Path:
    """Press SVG or PNG and return the file."""
    with page.expect_download() as download:
        page.locator(f"button[data-save={kind}]").click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def recorded(subject: Any, name: str, **texts: str) -> torch.Tensor:
    """A value of a pass over texts (text, text_b, target), by ``record`` and without the viewer's queries."""
    from glassformer.inspect.record import record
    from glassformer.viewer.inputs import Input

    read = subject.sequences(Input(**texts))
    rows = {key: torch.tensor([ids]) for key, ids in vars(read).items() if isinstance(ids, tuple)}
    with torch.inference_mode(), record(subject.model, name) as trace:
        if "encoder" not in rows:
            subject.model(rows["decoder"])
        elif "decoder" not in rows:
            subject.model(rows["encoder"], segments=rows.get("segments"))
        else:
            subject.model(rows["encoder"], target=rows["decoder"])
    return trace[name][0]


def written(value: float, digits: int) -> str:
    """A number as the page writes it."""
    small = value != 0 and abs(value) < 10**-digits / 2
    if not small:
        return f"{value:.{digits}f}".replace("-", "−")
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent):+d}".replace("-", "−")


def shown(text: str) -> float:
    """A number as the page writes it, as a number."""
    return float(text.replace("−", "-").replace("∞", "inf"))
