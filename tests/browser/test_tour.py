"""Tour: the walk, its address and its numbers, beside those that a pass of the model gives."""

import re
from importlib import import_module
from typing import Any

import pytest
import torch

from tests.browser.conftest import OpenPage, Problems
from tests.browser.tiny import tiny
from tests.browser.tools import address, recorded, save, settle, state, type_text

TEXT = "Once upon a time, there was a"


def go(page: Any, stop: str) -> None:
    page.locator(f".tour-dot[data-stop={stop}]").click()
    settle(page)


def unknown_words(page: Any) -> list[str]:
    """Keys of the interface that have no words: they would be shown as they are."""
    text = page.locator("main").inner_text()
    return re.findall(
        r"\b(?:text|embed|positions|qkv|scores|mask|softmax|sum|concat|residual|ffn|layers|memory|target|masked|cross|logits|next|again|labels|vectors|map)\.[a-z_.]+\b",
        text,
    )


def test_a_walk_with_the_models_own_numbers(visit: OpenPage, served: Any) -> None:
    page = visit("stories", f"view=tour&text={TEXT}&layer=1&heads=3")
    assert page.locator(".tour-card .label").first.text_content() == "Stop 1 of 15"
    subject = served("stories").subjects[0]
    ids = subject.tokenizer.encode(TEXT)
    assert page.locator(".tour-id small").all_text_contents() == [str(number) for number in ids]
    # Arrow keys walk; the address remembers where.
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    settle(page)
    assert state(page)["x.tour.stop"] == "softmax"
    assert page.locator(".tour-map [data-stop=softmax]").get_attribute("aria-current") == "step"
    row = recorded(subject, "decoder.blocks.1.attention.weights", text=TEXT)[3, -1]
    cells = page.locator(".tour-stage .bars td.number").all_text_contents()
    assert [float(cell.split("→")[1]) for cell in cells] == pytest.approx(row.tolist(), abs=0.0006)
    assert "sum of the row 1.000" in page.locator(".arithmetic").text_content()
    # Resume from the address: the prediction.
    go(page, "next")
    page = visit("stories", address(page))
    probs = torch.softmax(recorded(subject, "head", text=TEXT)[-1], -1)
    best = int(probs.argmax())
    assert page.locator(".tour-word").text_content() == subject.token_texts([best])[0].strip()
    assert f"{100 * float(probs[best]):.1f} %" in page.locator(".tour-story").text_content()
    page.locator("[data-go=back]").click()
    settle(page)
    assert state(page)["x.tour.stop"] == "logits"


@pytest.mark.slow
def test_keys_pressed_faster_than_answers_come(open_page: OpenPage) -> None:
    page = open_page("stories", "view=tour")
    for number in range(12):
        page.locator(".tour-dot").first.click()
        type_text(page, f"There were {number} cats.")  # a text that has no answers yet
        page.locator("h1").click()
        for _ in range(6):
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(number % 4)
        settle(page)
        assert state(page)["x.tour.stop"] == "softmax"
        assert page.locator(".tour-stage .bars td.number").count() > 0


STOPS = {"stories": 15, "mlm-en": 14, "en-zh": 19, "ner-en": 13}


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", STOPS)
def test_every_stop_of_every_family(open_page: OpenPage, name: str, lang: str) -> None:
    page = open_page(name, f"view=tour&lang={lang}", viewport={"width": 390, "height": 844})
    seen = []
    for number in range(STOPS[name]):
        settle(page)
        assert unknown_words(page) == []
        assert str(number + 1) in page.locator(".tour-card .label").first.text_content()
        assert page.locator(".tour-stage > *").count() > 0
        assert page.locator(".tour-map [aria-current=step], .tour-map [data-stop=layers]").count() > 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"stop {number + 1} is too wide"
        seen.append(page.locator(".tour-card h2").text_content())
        if number < STOPS[name] - 1:
            page.locator("[data-go=next]").click()
    assert len(set(seen)) == STOPS[name]
    assert page.locator("[data-go=next]").is_disabled()


# Lineages with a mechanism of their own, by the name of a tiny model in tests/parity.
UNUSUAL = {
    "albert": "shared layers, factorised embedding",
    "deberta": "disentangled attention, a repeated last layer",
    "bigbird": "block-sparse attention",
    "t5": "buckets of distances, unscaled scores",
    "bloom": "ALiBi",
    "gptj": "parallel sublayers, rotary positions",
    "gpt_neox": "parallel sublayers with a norm each",
    "gpt_neo": "a window in every other layer",
    "llama": "grouped keys and values",
    "bart": "post-norm encoder-decoder",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNUSUAL)
def test_every_stop_and_figure_of_unusual_lineages(open_page: OpenPage, name: str) -> None:
    page = open_page(tiny(import_module(f"tests.parity.cases_{name}").CASES[0].id), "view=tour&text=The cat sat.")
    stops = page.locator(".tour-dot").count()
    assert stops >= 13
    for number in range(stops):
        settle(page)
        assert page.locator(".error:visible").all_text_contents() == []
        assert unknown_words(page) == []
        assert page.locator(".tour-stage > *").count() > 0
        if number < stops - 1:
            page.locator("[data-go=next]").click()
    page.goto(page.url.replace("view=tour", "view=figures"))
    settle(page)
    for one in [button.get_attribute("data-figure") for button in page.locator("[data-figure]").all()]:
        if one not in ("toy", "tree", "curves", "dictionary"):
            page.locator(f"[data-figure={one}]").click()
            settle(page)
            assert page.locator(".error:visible").all_text_contents() == [], one
    page.goto(page.url.replace("view=figures", "view=compare"))
    settle(page)
    assert page.locator("figure[data-side=difference] canvas.heat-window").count() == 1


@pytest.mark.slow
def test_cross_attention_of_a_translation(open_page: OpenPage, served: Any) -> None:
    page = open_page("en-zh", "view=tour&x.tour.stop=cross&layer=2&heads=1&text=I love cats.")
    subject = served("en-zh").subjects[0]
    weights = recorded(subject, "decoder.blocks.2.cross.weights", text="I love cats.")
    token = int(page.locator(".token-chips [aria-checked=true]").get_attribute("data-token"))
    cells = page.locator(".tour-stage .bars td.number").all_text_contents()
    assert [float(cell) for cell in cells] == pytest.approx(weights[1, token].tolist(), abs=0.0006)


@pytest.mark.slow
def test_the_mask_is_that_of_the_chosen_head(open_page: OpenPage) -> None:
    """Heads of block-sparse attention may have masks of their own."""
    page = open_page("mlm-en", "view=tour&heads=3")
    asked: list[int] = []
    page.on("request", lambda request: asked.append(request.post_data_json["head"]) if "mask" in request.url else None)
    go(page, "mask")
    assert asked == [3]


@pytest.mark.slow
def test_the_chosen_token_is_followed(open_page: OpenPage, tmp_path: Any) -> None:
    page = open_page("mlm-en", "view=tour&x.tour.stop=mask")
    page.locator(".token-chips [data-token='3']").click()
    settle(page)
    assert state(page)["x.tour.source"] == "3"
    page.locator(".token-chips [data-token='3']").press("ArrowRight")
    settle(page)
    assert state(page)["x.tour.source"] == "4"
    assert "“little”" in page.locator(".tour-story").text_content()
    assert save(page, "svg", tmp_path).stat().st_size > 2000


@pytest.mark.slow
def test_tour_and_figures_of_a_saved_page(browser: Any, served: Any, tmp_path: Any) -> None:
    from glassformer.viewer.contents import Contents
    from glassformer.viewer.export import write_page

    path = tmp_path / "page.html"
    write_page(Contents(served("mlm-en").subjects), path)
    problems = Problems(path.as_uri())
    page = browser.new_page(viewport={"width": 1280, "height": 900}, locale="en-GB")
    problems.watch(page)
    page.goto(f"{path.as_uri()}#view=tour")
    page.wait_for_selector(".tour-dot")
    for number in range(STOPS["mlm-en"]):
        settle(page)
        assert page.locator(".error:visible").all_text_contents() == []
        assert page.locator(".tour-story p").count() > 0
        if number < STOPS["mlm-en"] - 1:
            page.locator("[data-go=next]").click()
    assert page.locator(".tour-word").text_content() == "girl"
    page.goto(f"{path.as_uri()}#view=figures")
    settle(page)
    for one in [button.get_attribute("data-figure") for button in page.locator("[data-figure]").all()]:
        page.locator(f"[data-figure={one}]").click()
        settle(page)
        assert page.locator(".error:visible").all_text_contents() == [], one
        assert len(page.locator(".figure-body").inner_text()) > 300, one
    page.close()
    assert problems.found == []


ANIMAL = "The animal didn't cross the street because it was too tired."


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_a_list_leaves_out_is_said(open_page: OpenPage, served: Any, lang: str) -> None:
    page = open_page("en-zh", f"view=tour&x.tour.stop=cross&lang={lang}&text={ANIMAL}")
    weights = recorded(served("en-zh").subjects[0], "decoder.blocks.0.cross.weights", text=ANIMAL)[0]
    token = int(page.locator(".token-chips [aria-checked=true]").get_attribute("data-token"))
    rest = sorted(weights[token].tolist())[:-14]
    line = page.locator("[data-part=rest]").inner_text()
    assert [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)] == pytest.approx(
        [len(rest), sum(rest)], abs=6e-4
    )
    assert page.locator(".tour-stage .bars tr").count() == 14
    go(page, "scores")
    assert str(len(weights[0]) - 14) in page.locator("[data-part=rest]").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_buttons_stay_where_they_are(open_page: OpenPage, width: int) -> None:
    page = open_page("en-zh", f"view=tour&text={ANIMAL}", viewport={"width": width, "height": 900})
    places = set()
    for number in range(STOPS["en-zh"]):
        if number:
            page.locator("[data-go=next]").click()
            settle(page)
        box = page.locator("[data-go=next]").bounding_box()
        places.add((round(box["x"]), round(box["y"])))
        assert 0 < box["y"] < 900 - box["height"]
    assert len(places) == 1
    # Also from the end of a long stop: the next one begins at its top.
    page.locator(".tour-dot").first.click()
    page.locator("[data-go=next]").click()
    settle(page)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    before = page.locator("[data-go=next]").bounding_box()
    page.locator("[data-go=next]").click()
    settle(page)
    after = page.locator("[data-go=next]").bounding_box()
    assert after["y"] == pytest.approx(before["y"], abs=1) or after["y"] > before["y"]
    assert page.locator(".tour-card h2").bounding_box()["y"] > 0
