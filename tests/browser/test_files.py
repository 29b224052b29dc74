"""Pages without a server: exported files from file://, and the frame that a notebook shows."""

from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer.viewer.contents import Contents
from glassformer.viewer.export import write_page
from tests.browser.conftest import Problems
from tests.browser.tools import settle
from tests.viewer.conftest import shipped, tiny
from tests.viewer.test_encode import HOSTILE

NO_ADDRESS = "nothing may be asked for"


def open_file(browser: Any, path: Path, state: str = "") -> tuple[Any, Problems]:
    """A file in a context without a network, and what goes wrong in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", offline=True)
    page = context.new_page()
    problems = Problems(NO_ADDRESS)
    problems.watch(page)
    page.goto(f"{path.as_uri()}#{state}" if state else path.as_uri())
    page.wait_for_selector("main > *")
    settle(page)
    return page, problems


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stories", "en-zh"])
def test_every_view_of_a_file_opens_offline(browser: Any, tmp_path: Path, name: str) -> None:
    text = "Once upon a time" if name == "stories" else "I love you."
    write_page(Contents([shipped(name)], state={"text": text}), tmp_path / "page.html")
    page, problems = open_file(browser, tmp_path / "page.html")
    views = page.eval_on_selector_all("nav [data-view]", "buttons => buttons.map((button) => button.dataset.view)")
    assert len(views) > 5
    unanswered = {}
    for view in views:
        page.click(f'nav [data-view="{view}"]')
        settle(page)
        assert page.inner_text("main").strip()
        error = page.locator(".error")
        if error.is_visible():
            unanswered[view] = error.inner_text()
    assert unanswered == {}
    assert problems.found == []
    page.context.close()


@pytest.mark.slow
def test_a_file_offers_nothing_that_it_cannot_answer(browser: Any, tmp_path: Path) -> None:
    subject = shipped("mlm-en")
    write_page(Contents([subject], state={"text": "The cat sat."}), tmp_path / "encoder.html")
    page, problems = open_file(browser, tmp_path / "encoder.html")
    assert page.locator("textarea").evaluate_all("all => all.map((one) => one.name)") == ["text"]  # no second sentence
    page.context.close()
    write_page(Contents([shipped("stories")], state={"text": "Once upon a time"}), tmp_path / "decoder.html")
    page, more = open_file(browser, tmp_path / "decoder.html", "view=predict")
    assert page.locator(".predict-bars li").count() > 5
    assert page.locator(".predict-pick").count() == 0
    assert "Click a word" not in page.inner_text("main")
    assert problems.found + more.found == []
    page.context.close()


@pytest.mark.slow
def test_a_notebooks_frame_shows_tokens_as_text(browser: Any, tmp_path: Path) -> None:
    tokens = [*HOSTILE[:4], HOSTILE[8]]
    weights = torch.rand(2, 3, len(tokens), len(tokens)).softmax(-1)
    shown = glassformer.head_view(weights, tokens)
    cell = "<!doctype html><meta charset='utf-8'><title>cell</title><body>"
    (tmp_path / "cell.html").write_text(cell + shown._repr_html_(), encoding="utf-8")
    page = browser.new_context(offline=True).new_page()
    problems = Problems(NO_ADDRESS)
    problems.watch(page)
    page.goto((tmp_path / "cell.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("main > *").first.wait_for()
    frame.locator("body[data-busy='0']").wait_for()
    assert frame.locator("nav [data-view]").count() == 2
    text = frame.locator("body").inner_text()
    assert "<img src=x onerror=alert(1)>" in text
    assert frame.locator("main img").count() == 0
    assert [found for found in problems.found if "about:srcdoc" not in found] == []
    page.context.close()


@pytest.mark.parametrize("lang", ["en", pytest.param("zh", marks=pytest.mark.slow)])
def test_no_head_can_be_switched_off_in_a_file(browser: Any, tmp_path: Path, lang: str) -> None:
    subject = tiny("gpt2", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64})
    write_page(Contents([subject], state={"text": "Once"}), tmp_path / "page.html")
    state = f"view=predict&x.predict.tab=ablate&lang={lang}&ablate=decoder.attention-0-1"
    page, problems = open_file(browser, tmp_path / "page.html", state)
    heads = page.locator(".predict-head")
    assert heads.count() == 4
    assert heads.evaluate_all("all => all.every((one) => one.disabled)")
    message = {"en": "this file holds those of the whole model only", "zh": "此文件只含整个模型的数值"}
    assert message[lang] in page.inner_text("main")
    assert page.locator(".field.ablated").count() == 0
    assert page.locator(".predict-bars li").count() > 5
    assert not page.locator(".error").is_visible()
    assert problems.found == []
    page.context.close()
