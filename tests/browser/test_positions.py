"""Positions: sinusoids in each layout, rotations, biases, against the functions that the models use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.nn.input_positions import sinusoids
from glassformer.nn.relative import alibi_slopes
from tests.browser.conftest import OpenPage, Served
from tests.browser.reference import TINY, number, numbers, tiny_folder
from tests.browser.tools import save, settle, state

LONG = pytest.mark.slow


def value_at(page: Any, key: str, row: int, column: int) -> str:
    """What a map says about a cell, reached by the arrow keys."""
    canvas = page.locator(f"[data-map={key}] .heat-window")
    canvas.focus()
    for move, times in (("ArrowDown", row + 1), ("ArrowRight", column)):
        for _ in range(times):
            canvas.press(move)
    return str(page.locator(".tip").text_content())


def test_sinusoids_in_each_layout(visit: OpenPage) -> None:
    page = visit("en-zh", "view=positions&x.positions.length=16")
    facts = {"fairseq": (256, 1), "interleaved": (256, 1), "halves": (256, 1)}
    for layout, (width, offset) in facts.items():
        if layout != "fairseq":
            page.locator(f"[data-value={layout}]").click()
            settle(page)
        table = sinusoids(torch.arange(16) + offset, width, layout=layout)
        shown = value_at(page, "table", 5, 3)
        assert number(shown.rpartition("=")[2]) == pytest.approx(float(table[5, 3]), abs=1e-4)
    assert state(page)["x.positions.layout"] == "halves"
    assert number(value_at(page, "similarity", 4, 4).rpartition(":")[2]) == pytest.approx(1)


def test_rotary_products_depend_on_the_distance_alone(visit: OpenPage) -> None:
    page = visit("stories", "view=positions&text=Once upon a time&layer=1&heads=2&x.positions.length=16")
    first = number(value_at(page, "products", 2, 5).rpartition(":")[2])
    page.locator("[data-map=products] .heat-window").press("Escape")
    second = number(value_at(page, "products", 7, 10).rpartition(":")[2])
    assert first == second  # both are three tokens apart
    assert number(page.locator("[data-part=products]").text_content().partition("within ")[2].partition(")")[0]) < 1e-9
    page.locator("select[name=scheme]").select_option("alibi")
    settle(page)
    shown = numbers(page.locator("[data-part=slopes]").text_content().split(", "))
    assert shown == pytest.approx(alibi_slopes(8).tolist(), abs=1e-4)


@LONG
def test_a_rotated_product_equals_the_models(open_page: OpenPage, served: Callable[..., Served]) -> None:
    from tests.browser.reference import decoder_values

    text = "Once upon a time there was a cat"
    page = open_page("stories", f"view=positions&text={text}&layer=1&heads=2&pins=6&x.positions.length=16")
    found = decoder_values(served("stories").subjects[0].loaded, text, "decoder.blocks.1.attention.*")
    name = "decoder.blocks.1.attention"
    key = int(found[f"{name}.weights"][2, 6].argmax())
    product = float(found[f"{name}.q_rotary"][2, 6] @ found[f"{name}.k_rotary"][1, key])
    assert number(value_at(page, "products", 6, key).rpartition(":")[2]) == pytest.approx(product, abs=1e-2)


@LONG
@pytest.mark.parametrize("kind", TINY)
def test_every_scheme(open_page: OpenPage, kind: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    folder = tiny_folder(kind, tmp_path_factory.getbasetemp())
    page = open_page(folder, "view=positions&x.positions.length=16")
    schemes = {
        "parallel": "rotary", "parallel_norms": None, "alibi": "alibi", "window": "learned", "shared": "learned",
        "disentangled": "disentangled", "convolution": "disentangled", "sparse": "learned", "buckets": "buckets",
    }  # fmt: skip
    assert page.locator(".positions").get_attribute("data-kind") == schemes[kind]
    assert save(page, "png", tmp_path).stat().st_size > 1000
    for lesson in page.locator("select[name=scheme] option").evaluate_all("all => all.map((option) => option.value)"):
        if lesson:
            page.locator("select[name=scheme]").select_option(lesson)
            settle(page)
            assert page.locator(".positions .panel").count() > 0
    narrow = open_page(folder, "view=positions&lang=zh&theme=dark", viewport={"width": 390, "height": 844})
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390
