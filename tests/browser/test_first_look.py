"""What readers stumbled over: narrow pages, dull or unexplained pictures, numbers that contradict each other."""

import re
from typing import Any

import pytest

from tests.browser.tools import OpenPage, type_text

NARROW = {"width": 390, "height": 844}


def narrow(page: Any) -> None:
    page.set_viewport_size(NARROW)
    page.wait_for_timeout(100)


@pytest.mark.slow
def test_entities_keep_their_kind_on_a_narrow_page(open_page: OpenPage) -> None:
    page = open_page("ner-en", "view=predict")
    narrow(page)
    for name in page.locator("[data-part=tags] .predict-name").all():
        assert re.search(r" · (PER|LOC|ORG)$", name.inner_text())
        assert name.evaluate("node => node.scrollWidth <= node.clientWidth + 1"), "the end is cut off"


@pytest.mark.slow
def test_names_of_heads_keep_their_number_on_a_narrow_page(open_page: OpenPage) -> None:
    page = open_page("stories", "view=grid")
    narrow(page)
    badges = page.locator(".head-thumb-badge").all()
    assert all(re.fullmatch(r"mixed|[a-z ]+ 0\.\d\d", " ".join(badge.inner_text().split())) for badge in badges)
    assert all(badge.evaluate("node => node.scrollWidth <= node.clientWidth + 1") for badge in badges)
    menu = page.get_by_label("Find heads that attend to").locator("option").all_inner_texts()
    named = {badge.locator("span").first.inner_text() for badge in badges} - {"mixed"}
    assert named <= set(menu), "cells and menu use the same words"
    assert "Framed: at least 50 %" in page.locator(".grid-rule").inner_text()


@pytest.mark.slow
def test_both_halves_of_positions_are_seen_on_a_narrow_page(open_page: OpenPage) -> None:
    page = open_page("en-zh", "view=positions")
    narrow(page)
    table = page.locator("[data-map=table] .heat")
    assert table.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
    assert page.locator("[data-map] .legend").count() == page.locator("[data-map]").count()


@pytest.mark.slow
def test_flow_begins_at_a_word_and_shows_what_cross_attention_reads(open_page: OpenPage) -> None:
    page = open_page("en-zh", "view=flow&kind=cross&layer=1")
    words = page.locator(".flow-picture [role=listitem]").first
    assert "</s>" not in words.get_attribute("aria-label")
    assert page.locator(".flow-cross[data-layer='1'] path").count() > 0
    assert page.locator(".flow-picture").inner_html().count("shared, counted above") == 1
    page.get_by_role("radio", name="Decoder").first.click()
    page.wait_for_timeout(300)
    assert page.locator(".flow-cross").count() == 0
    narrow(page)
    page.reload()
    page.wait_for_timeout(800)
    assert "on the left" not in page.locator(".view-flow").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize(("model", "view", "chosen"), [("mlm-en", "flow", "[MASK]"), ("ner-en", "flow", "Warsaw")])
def test_views_follow_a_telling_token(open_page: OpenPage, model: str, view: str, chosen: str) -> None:
    page = open_page(model, f"view={view}")
    assert chosen.startswith(page.locator(".flow-picture [aria-pressed=true][data-token]").text_content().strip("·"))


@pytest.mark.slow
def test_predict_begins_before_the_last_word_of_a_translation(open_page: OpenPage) -> None:
    page = open_page("en-zh", "view=predict")
    assert page.locator(".predict-bars li").first.inner_text().splitlines()[0] != "</s>"
    assert "6,000 of 6,000 tokens" in page.locator("[data-part=summary]").inner_text()


@pytest.mark.slow
def test_the_tour_says_that_it_follows_another_word(open_page: OpenPage) -> None:
    page = open_page("en-zh", "view=tour&x.tour.stop=target")
    assert "From here on the tour follows a token of the target" in page.locator("main").inner_text()


@pytest.mark.slow
def test_sources_are_words(visit: OpenPage) -> None:
    page = visit("en-zh", "view=heads&text=The animal didn't cross the street.")
    cells = " ".join(page.locator(".sources tbody td").all_inner_texts())
    assert "animal" in cells
    assert not re.search(r"\banim\b", cells)


@pytest.mark.slow
def test_one_token_is_one(open_page: OpenPage) -> None:
    page = open_page("stories", "view=heads")
    type_text(page, "")
    shown = page.locator("body").inner_text()
    assert re.search(r"\b1 token\b", shown)
    assert "1 tokens" not in shown
