"""Figures: the textbook pictures, with values beside those that are computed here."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.viewer.encode import decode
from glassformer.viewer.queries_model import Nothing
from glassformer.viewer.queries_teaching import toy
from tests.browser.conftest import OpenPage
from tests.browser.tools import recorded, save, settle, state

ALL = ["dictionary", "product", "heads", "graph", "flies", "curves", "word", "decode", "toy", "tree"]
TEXT = "Once upon a time, there was a"


def figure(page: Any, name: str) -> None:
    page.locator(f"[data-figure={name}]").click()
    settle(page)


def unknown_words(page: Any) -> list[str]:
    """Keys of the interface that have no words: they would be shown as they are."""
    return re.findall(rf"\b(?:{'|'.join(ALL)})\.[a-z_.]+\b", page.locator("main").inner_text())


def test_dictionary_words_and_tree(visit: OpenPage, served: Any) -> None:
    page = visit("mlm-en", "view=figures")
    # A soft dictionary: fruit is 0.6 apple and 0.4 banana.
    assert page.locator(".dictionary-answer").text_content() == "8.00"
    page.locator(".plane").press("ArrowRight")
    settle(page)
    query, keys, values = np.array([2.1, np.log(1.5) / 2]), np.array([[2, 1], [2, -1], [-2, 0.5]]), np.array([10, 5, 2])
    scores = np.exp(keys @ query.round(2))
    assert page.locator(".dictionary-answer").text_content() == f"{scores @ values / scores.sum():.2f}"
    # "flies" in two sentences.
    figure(page, "flies")
    subject = served("mlm-en").subjects[0]
    ends = []
    for text in ("time flies like an arrow", "fruit flies like a banana"):
        tokens = subject.token_texts(subject.tokenizer.encode(text))
        last = next(i for i in range(len(tokens)) if "".join(tokens[1 : i + 1]).endswith(" flies"))
        ends.append(recorded(subject, "encoder.blocks.2.output", text=text)[last])
    cosine = torch.cosine_similarity(*ends, dim=0).item()
    assert (
        page.locator(".flies-value").text_content()
        == f"Layer 2: the two vectors of “flies” have the cosine {cosine:.3f}."
    )
    # The tree: what GPT-2 changed.
    figure(page, "tree")
    page.locator("[data-lineage=gpt2]").click()
    settle(page)
    assert state(page)["x.figures.lineage"] == "gpt2"
    row = page.locator(".tree-detail tbody tr").all_text_contents()
    assert row == ["Normsafter the sum (post-norm)→before the sublayer (pre-norm)"]
    assert unknown_words(page) == []


@pytest.mark.slow
def test_six_words_are_learned_before_your_eyes(open_page: OpenPage) -> None:
    answer = toy(Nothing())  # the server, a thread of this process, has it at once
    page = open_page("mlm-en", "view=figures&x.figures.figure=toy", reduced_motion="reduce")
    goals = page.locator(".toy-pair").nth(1).locator("table").nth(2).locator("td.goal")
    last = decode(answer["pairs"][1]["probs"])[-1]
    ones = decode(answer["pairs"][1]["one_hot"])
    assert [float(text) for text in goals.all_text_contents()] == pytest.approx(
        (last * ones).sum(-1).tolist(), abs=6e-4
    )
    before = page.locator(".toy-pair").nth(1).locator("table").nth(1).locator("td.goal").all_text_contents()
    first = (decode(answer["pairs"][1]["probs"])[0] * ones).sum(-1)
    assert [float(text) for text in before] == pytest.approx(first.tolist(), abs=6e-4)
    slider = page.locator(".figure-toy input[type=range]")
    slider.press("Home")
    settle(page)
    assert state(page)["x.figures.step"] == "0"
    assert goals.all_text_contents() == before


@pytest.mark.slow
def test_vector_to_word_and_product(open_page: OpenPage, served: Any, tmp_path: Any) -> None:
    page = open_page("stories", f"view=figures&x.figures.figure=word&text={TEXT}")
    subject = served("stories").subjects[0]
    logits = recorded(subject, "head", text=TEXT)[-1]
    best = logits.topk(12)
    probs = torch.softmax(logits, -1)[best.indices]
    tables = page.locator(".figure-word .bars")
    assert [
        float(text.replace("−", "-")) for text in tables.first.locator("td.number").all_text_contents()
    ] == pytest.approx(best.values.tolist(), abs=0.006)
    assert page.locator(".big-word").text_content() == subject.token_texts([int(best.indices[0])])[0].strip()
    shown = tables.nth(1).locator("td.number").all_text_contents()
    assert shown[0] == f"{100 * float(probs[0]):.1f} %"
    # One number of a product, as a sum.
    page.goto(page.url.replace("figure=word", "figure=product&layer=1&heads=2"))
    settle(page)
    queries = recorded(subject, "decoder.blocks.1.attention.q", text=TEXT)
    assert page.locator(".arithmetic").text_content().endswith(f"= {float(queries[2, 1, 0]):.3f}".replace("-", "−"))
    for kind in ("svg", "png"):
        assert save(page, kind, tmp_path).stat().st_size > 2000


@pytest.mark.slow
def test_decoding_can_be_played_and_stepped(open_page: OpenPage, served: Any) -> None:
    page = open_page("stories", f"view=figures&x.figures.figure=decode&text={TEXT}&heads=0")
    subject = served("stories").subjects[0]
    written = subject.loaded.generate(TEXT, max_new_tokens=20, temperature=0.0).written.ids
    for number in range(3):
        chosen = page.locator(".decode strong.token").text_content()
        assert chosen == subject.token_texts([written[number]])[0].strip()
        page.get_by_role("button", name="Next step").click()
        settle(page)
    assert page.locator(".decode-token.fresh").text_content() == subject.token_texts([written[2]])[0].strip()
    page.locator(".decode-play").click()
    page.wait_for_function("() => location.hash.includes('x.figures.at=5')")
    page.locator(".decode-play").click()
    at = state(page)["x.figures.at"]
    page.wait_for_timeout(1500)
    assert state(page)["x.figures.at"] == at, "paused"


@pytest.mark.slow
def test_graph_and_heads_show_the_weights(open_page: OpenPage, served: Any) -> None:
    page = open_page("en-zh", "view=figures&x.figures.figure=graph&kind=encoder&layer=1&heads=2&text=I love cats.")
    subject = served("en-zh").subjects[0]
    weights = recorded(subject, "encoder.blocks.1.attention.weights", text="I love cats.")[2]
    assert page.locator("path[data-edge]").count() == int((weights >= 0.1).sum())
    strongest = float(page.locator(".graph-frame td.number").first.text_content())
    assert strongest == pytest.approx(float(weights.max()), abs=6e-4)
    page.locator(".graph .node").nth(1).focus()
    page.keyboard.press("Enter")
    settle(page)
    assert state(page)["pins"] == "1"
    figure(page, "heads")
    assert page.locator(".head-row").count() == 8
    page.locator(".head-row[data-head='5'] button").click()
    settle(page)
    assert state(page)["heads"] == "5"


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", ["stories", "mlm-en", "en-zh", "ner-en"])
def test_every_figure_of_every_family(open_page: OpenPage, name: str, lang: str) -> None:
    toy(Nothing())
    page = open_page(name, f"view=figures&lang={lang}", viewport={"width": 390, "height": 844}, color_scheme="dark")
    shown = [button.get_attribute("data-figure") for button in page.locator("[data-figure]").all()]
    assert set(ALL) - set(shown) <= {"word", "decode"}
    for one in shown:
        figure(page, one)
        assert unknown_words(page) == []
        assert page.locator(".error:visible").count() == 0
        assert len(page.locator(".figure-body").inner_text()) > 100
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{one} is too wide"
