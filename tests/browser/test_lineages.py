"""Every view of a tiny model of every lineage and of every head: nothing fails, whatever is pressed."""

from typing import Any

import pytest

from tests.browser.test_tour import unknown_words
from tests.browser.tiny import MODELS, tiny
from tests.browser.tools import OpenPage, settle

TEXT, CONTEXT = "The cat sat on the [MASK].", "It was a little dog."
CHOICES = "section.view [role=radiogroup] [role=radio]:not(.predict-tokens *):not(.token-chips *), .bar [role=radio]"
PAIRED = ("BertForQuestionAnswering", "BertForSequenceClassification", "BertModel", "BartForQuestionAnswering")


def check(page: Any, where: str) -> list[str]:
    """What is wrong on the page once all is drawn."""
    settle(page)
    text = page.locator("main section.view").inner_text()
    wrong = [*page.locator(".error:visible").all_inner_texts(), *unknown_words(page)]
    wrong += [word for word in ("undefined", "NaN", "[object") if word in text]
    return [f"{where}: {one}" for one in (wrong if text.strip() else [*wrong, "empty"])]


def press_all(page: Any, view: str) -> list[str]:
    """Each choice of a view once, in the order of the page, and the last layer."""
    found = []
    for number in range(page.locator(CHOICES).count()):
        choice = page.locator(CHOICES).nth(number)
        if choice.count() and choice.is_visible():
            name = choice.inner_text()
            choice.click()
            found += check(page, f"{view}, {name}")
    layers = page.locator(".bar select[name=layer]")
    if layers.is_visible():
        layers.select_option(index=layers.locator("option").count() - 1)
        found += check(page, f"{view}, last layer")
    return found


def walk(page: Any) -> list[str]:
    """Each stop of the tour."""
    found = []
    for number in range(page.locator(".tour-dot").count()):
        page.locator(".tour-dot").nth(number).click()
        found += check(page, f"tour, stop {number + 1}")
        if not page.locator(".tour-stage > *").count():
            found.append(f"tour, stop {number + 1}: nothing on the stage")
    return found


def look_at_figures(page: Any) -> list[str]:
    """Each figure that shows something of the model."""
    found = []
    for name in page.locator("[data-figure]").evaluate_all("all => all.map((one) => one.dataset.figure)"):
        if name not in ("toy", "tree", "curves", "dictionary"):
            page.locator(f"[data-figure={name}]").click()
            found += check(page, f"figures, {name}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_view_of_every_lineage_and_head(open_page: OpenPage, name: str) -> None:
    second = f"&text_b={CONTEXT}" if name.endswith(PAIRED) else ""
    page = open_page(tiny(name), f"text={TEXT}{second}")
    views = page.locator("nav.views button").evaluate_all("all => all.map((one) => one.dataset.view)")
    assert {"tour", "flow", "heads", "grid", "neuron", "masks", "positions", "compare", "figures"} <= set(views)
    found = []
    for view in views:
        page.locator(f"nav.views button[data-view={view}]").click()
        found += check(page, view)
        found += walk(page) if view == "tour" else look_at_figures(page) if view == "figures" else press_all(page, view)
    assert found == []
