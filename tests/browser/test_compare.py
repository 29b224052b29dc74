"""Compare: two texts and two models side by side, with values beside those that passes of the models give."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.browser.conftest import OpenPage
from tests.browser.tools import recorded, save, settle, state, written

A, B = "There was a little [MASK] named Lily.", "There was a big [MASK] named Lily."


def weights(subject: Any, text: str, layer: int) -> np.ndarray[Any, Any]:
    """(heads, tokens, tokens) of one layer of an encoder."""
    return recorded(subject, f"encoder.blocks.{layer}.attention.weights", text=text).numpy()


def read_cell(page: Any, side: str, row: int, column: int) -> str:
    """What a map says about a cell, by the keyboard."""
    canvas = page.locator(f"figure[data-side={side}] canvas.heat-window")
    canvas.focus()
    for _ in range(row + 1):
        canvas.press("ArrowDown")  # the first press enters the map
    for _ in range(column):
        canvas.press("ArrowRight")
    text = page.locator(".tip").text_content()
    canvas.press("Escape")
    return str(text)


def test_two_texts(visit: OpenPage, served: Any) -> None:
    page = visit("mlm-en", f"view=compare&text={A}&x.compare.text={B}&layer=1&heads=2")
    subject = served("mlm-en").subjects[0]
    one, other = weights(subject, A, 1), weights(subject, B, 1)
    assert one.shape == other.shape
    # The tokens that differ are marked.
    assert page.locator(".compare-other").all_text_contents() == ["little", "big"]
    # A cell of the map of differences says all three numbers.
    text = read_cell(page, "difference", 4, 3)
    assert text.startswith("little/big → a")
    expected = (one[2, 4, 3], other[2, 4, 3], other[2, 4, 3] - one[2, 4, 3])
    numbers = [float(part.split()[-1].replace("−", "-")) for part in text.partition("\n")[2].split(" · ")]
    assert numbers == pytest.approx(expected, abs=0.0006)
    # The head that differs most, of all layers.
    moved = np.stack([np.abs(weights(subject, A, n) - weights(subject, B, n)).sum(-1).mean(-1) / 2 for n in range(3)])
    layer, head = np.unravel_index(moved.argmax(), moved.shape)
    first = page.locator(".compare-top button").first
    assert first.text_content() == f"layer {layer}, head {head}: {moved[layer, head]:.3f}"
    first.click()
    settle(page)
    assert (state(page).get("layer", "0"), state(page)["heads"]) == (str(layer), str(head))
    # Probabilities for the blank.
    probs = {}
    for side, filled in zip("ab", subject.loaded.fill([A, B], top=20), strict=True):
        probs[side] = {guess.token: guess.probability for guess in filled.blanks[0].guesses}
    cells = page.locator("tr[data-token=' girl'] td").all_text_contents()
    assert cells[:2] == [f"{100 * probs[side]['girl']:.1f} %" for side in "ab"]


@pytest.mark.slow
def test_two_models_and_a_picture(open_page: OpenPage, served: Any, tmp_path: Any) -> None:
    names = ("mlm-en", "ner-en")
    page = open_page(names, f"view=compare&text={A}&layer=2&heads=0")
    subjects = served(*names).subjects
    assert page.locator("select[name=second-model]").input_value() == "1"
    assert page.locator(".compare-other").count() == 0, "both have the same vocabulary"
    one, other = (weights(subject, A, 2)[0] for subject in subjects)
    text = read_cell(page, "b", 5, 6)
    assert f"B {other[5, 6]:.3f}" in text
    assert f"A {one[5, 6]:.3f}" in text
    page.get_by_role("radio", name="two texts").click()
    settle(page)
    assert state(page)["x.compare.mode"] == "texts"
    field = page.locator("input[name=second]")
    assert field.input_value() == A.replace("Lily", "Tom")
    field.fill("There was a dog.")
    field.press("Enter")
    settle(page)
    assert page.locator(".compare-gap").count() > 0
    for kind in ("svg", "png"):
        assert save(page, kind, tmp_path).stat().st_size > 2000


@pytest.mark.slow
def test_translations_part(open_page: OpenPage) -> None:
    page = open_page("en-zh", "view=compare&kind=cross&lang=zh", viewport={"width": 390, "height": 844})
    assert page.locator(".compare-aligned").count() == 2, "queries and keys have different tokens"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    note = page.locator(".view-compare .panel .note").all_text_contents()
    assert any("之后" in text for text in note)
    assert page.locator("h2").first.text_content() == "对齐的词元"


@pytest.mark.slow
def test_labels_of_words(open_page: OpenPage, served: Any) -> None:
    page = open_page(
        "ner-en", "view=compare&text=Marie Curie was born in Warsaw.&x.compare.text=Marie Curie was born in May."
    )
    (tagged,) = served("ner-en").subjects[0].loaded.tag(["Marie Curie was born in Warsaw."])
    table = {
        row.locator("th").text_content(): row.locator("td").first.text_content()
        for row in page.locator(".compare-lower tbody tr").all()
    }
    for word in tagged.words[:5]:
        assert table[word.text] == f"{word.label} ({100 * word.probability:.1f} %)"
    assert page.locator(".compare-changed").count() >= 2, "Warsaw is a place, May is not"


@pytest.mark.slow
def test_with_and_without_a_head(open_page: OpenPage, served: Any) -> None:
    page = open_page("stories", "view=compare&ablate=decoder.attention-0-0&layer=1&heads=0&text=Once upon a time")
    assert page.locator("[role=radio][aria-checked=true]", has_text="switched off").count() == 1
    subject = served("stories").subjects[0]
    probs = torch.softmax(recorded(subject, "head", text="Once upon a time")[-1], -1)
    best = int(probs.argmax())
    row = page.locator(f"tr[data-token='{subject.token_texts([best])[0]}'] td")
    assert row.first.text_content() == f"{100 * float(probs[best]):.1f} %", "side A has all heads"
    assert row.nth(2).text_content() != "0.0 points", "and side B is another distribution"


@pytest.mark.slow
def test_two_checkpoints_of_a_run(open_page: OpenPage, served: Any, tmp_path: Any) -> None:
    from tests.training.small_sessions import small, trained

    data, out = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    trained(small("lm-bytes", data, "run.steps=40", "run.checkpoint_every=20", "run.keep=2"), out)
    names = tuple(str(out / "checkpoints" / f"step-{step:08}") for step in (20, 40))
    page = open_page(names, "view=compare&text=the cat eats&layer=0&heads=0")
    assert page.locator("figure[data-side] figcaption").first.text_content().startswith("A: ")
    one, other = (
        recorded(subject, "decoder.blocks.0.attention.weights", text="the cat eats")[0]
        for subject in served(*names).subjects
    )
    text = read_cell(page, "difference", 3, 0)
    assert f"B − A {written(float(other[3, 0] - one[3, 0]), 3)}" in text
    probs = [
        torch.softmax(recorded(subject, "head", text="the cat eats")[-1], -1) for subject in served(*names).subjects
    ]
    variation = float((probs[0] - probs[1]).abs().sum()) / 2
    assert f"Total variation {variation:.3f}" in page.locator(".compare-numbers").text_content()


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_two_families_have_tokens_and_predictions(open_page: OpenPage, lang: str) -> None:
    page = open_page(("stories", "mlm-en"), f"view=compare&lang={lang}")
    assert not page.locator(".error").is_visible()
    message = {"en": "share no kind of attention", "zh": "没有共同的注意力种类"}
    assert message[lang] in page.locator("[data-part=unshared]").inner_text()
    assert page.locator(".compare-aligned .chip").count() > 20
    assert page.locator(".compare-table tbody tr").count() > 8
    panels = page.locator(".view-compare .panel:visible").all_inner_texts()
    assert all(text.strip() for text in panels), "no blank box"
    assert page.locator("figure[data-side]:visible").count() == 0
    # Back to two texts: all cards are there again.
    page.locator("[role=radio][data-value=texts]").click()
    settle(page)
    assert page.locator("figure[data-side]:visible").count() == 3
    assert not page.locator("[data-part=unshared]").is_visible()


@pytest.mark.slow
def test_a_kind_that_one_model_lacks_is_exchanged_for_one_that_both_have(open_page: OpenPage, tmp_path: Any) -> None:
    page = open_page(("en-zh", "stories"), "view=compare")
    assert page.locator("[data-part=unshared]").inner_text().startswith("stories has no cross-attention")
    page.locator("[data-part=unshared] button[data-kind=decoder]").click()
    settle(page)
    assert state(page)["kind"] == "decoder"
    assert page.locator("figure[data-side]:visible").count() == 3
    # The picture holds every card.
    svg = save(page, "svg", tmp_path).read_text(encoding="utf-8")
    titles = page.locator(".view-compare h2:visible").all_inner_texts()
    assert len(titles) >= 4
    assert all(title in svg for title in titles)
