"""Texts changed faster than answers come: the page ends on the numbers of the last one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any
from urllib.parse import urlencode

import pytest
import torch

from glassformer.inspect.intervene import ablate
from glassformer.viewer.inputs import Input
from tests.browser.conftest import OpenPage, Served
from tests.browser.tools import settle, state

LONG = pytest.mark.slow
VIEWS = {  # by what is chosen so that numbers are in sight
    "heads": ("stories", {"view": "heads", "layer": "1"}),
    "heads of a translator": ("en-zh", {"view": "heads", "layer": "1", "kind": "cross"}),
    "next token": ("stories", {"view": "predict"}),
    "generation": ("stories", {"view": "predict", "x.predict.tab": "generate", "x.predict.n": "4"}),
    "layer by layer": ("stories", {"view": "predict", "x.predict.tab": "lens"}),
    "a head switched off": (
        "en-zh",
        {"view": "predict", "x.predict.tab": "ablate", "kind": "cross", "ablate": "decoder.cross-1-2"},
    ),
    "labels": ("ner-en", {"view": "predict"}),
    "compare": ("stories", {"view": "compare", "x.compare.text": "The dog ran home."}),
    "flow": ("stories", {"view": "flow"}),
    "flow of a layer": ("stories", {"view": "flow", "x.flow.at": "layer", "layer": "1"}),
    "flow of an output head": ("stories", {"view": "flow", "x.flow.at": "head"}),
    "flow of a translator": ("en-zh", {"view": "flow"}),
}


@contextmanager
def slow(subject: Any, pauses: tuple[float, ...]) -> Iterator[None]:
    """Let the passes of a model take some time, now more and now less, so that answers overtake each other."""
    times, run, logits = cycle(pauses), subject.run, subject.logits

    def later(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            time.sleep(next(times))
            return function(*args)

        return call

    subject.run, subject.logits = later(run), later(logits)
    try:
        yield
    finally:
        del subject.run, subject.logits


def retype(page: Any, texts: list[str], wait: int) -> None:
    """Type one text after the other without waiting for answers."""
    field = page.locator("textarea[name=text]")
    for text in texts:
        field.fill(text)
        field.press("Enter")
        page.wait_for_timeout(wait)


@LONG
@pytest.mark.parametrize("wait", [15, 90])
@pytest.mark.parametrize("name", VIEWS)
def test_the_last_text_is_shown(open_page: OpenPage, served: Callable[..., Served], name: str, wait: int) -> None:
    model, chosen = VIEWS[name]
    page = open_page(model, urlencode({**chosen, "text": "Tom saw a cat."}))
    texts = [f"Tom and {who} live in {where} {wait}." for who, where in zip("ABCDE", "VWXYZ", strict=True)]
    with slow(served(model).subjects[0], (0.08, 0.0, 0.03)):
        retype(page, [*texts[:-1], "Tom saw a cat.", texts[-1]], wait)
        settle(page)
    fresh = open_page(model, urlencode({**state(page), "text": texts[-1]}))
    assert state(page)["text"] == texts[-1]
    if chosen["view"] == "heads":  # its numbers are those of a token
        for each in (page, fresh):
            each.locator(".board-token.query[data-place='3']").click()
            settle(each)
    assert sorted(page.inner_text("main").splitlines()) == sorted(fresh.inner_text("main").splitlines())
    assert page.locator(".error:visible").count() == 0


def effects(page: Any) -> dict[str, float]:
    """What "Try each head" says beside the heads, in bits."""
    heads = page.locator(".predict-head").evaluate_all("all => all.map((head) => [head.dataset.head, head.title])")
    return {key: float(title.split()[-2]) for key, title in heads if title.endswith(" bit")}


def expected_effects(subject: Any, text: str, layer: int) -> dict[str, float]:
    """The divergence in bits that each head of a layer of a decoder makes at the last position."""
    ids = torch.tensor([subject.sequences(Input(text)).decoder])
    model, found = subject.model, {}
    with torch.inference_mode():
        before = model(ids)[0, -1].double().log_softmax(-1)
        for head in range(subject.facts.decoder.attention.heads):
            with ablate(model, {f"decoder.blocks.{layer}.attention": [head]}):
                after = model(ids)[0, -1].double().log_softmax(-1)
            bits = (before.exp() * (before - after)).sum() / torch.log(torch.tensor(2.0))
            found[f"decoder.attention-{layer}-{head}"] = float(bits)
    return found


@LONG
def test_each_head_is_tried_on_one_text(open_page: OpenPage, served: Callable[..., Served]) -> None:
    subject = served("stories").subjects[0]
    first, second = "Once upon a time there was a", "The big dog and the small cat"
    page = open_page("stories", f"view=predict&x.predict.tab=ablate&layer=1&text={first}")
    button = page.get_by_role("button", name="Try each head")
    with slow(subject, (0.05,)):
        button.click()
        assert button.is_disabled()
        page.wait_for_timeout(250)
        retype(page, [second], 0)
        settle(page)
    assert effects(page) == {}  # those of the first text are gone, and no others came
    assert button.is_enabled()
    button.click()
    settle(page)
    assert effects(page) == pytest.approx(expected_effects(subject, second, 1), abs=6e-4)
    assert button.is_enabled()
    # A view that is left asks no more.
    with slow(subject, (0.05,)):
        retype(page, [first], 0)
        settle(page)
        button.click()
        page.wait_for_timeout(120)
        page.locator("button[data-view=heads]").click()
        settle(page)
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(300)
    assert asked == []
