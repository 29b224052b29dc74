"""The neuron view: the numbers of queries, keys, scores and weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.browser.tools import OpenPage, recorded, save, settle, shown, state

TEXT = "Once upon a time, there was a little dog."


def numbers(page: Any) -> list[list[float]]:
    """The table of all numbers, without the masked keys: q · k, score, weight."""
    rows = [row.locator("td").all_inner_texts() for row in page.locator(".neuron-numbers tbody tr").all()]
    return [[shown(text) for text in row] for row in rows if "masked" not in row]


def expected(subject: Any, layer: int, head: int, row: int) -> torch.Tensor:
    """q · k, score and weight of each key that a query may see."""
    of = {
        name: recorded(subject, f"decoder.blocks.{layer}.attention.{name}", text=TEXT)
        for name in ("q_rotary", "k_rotary", "scores", "weights")
    }
    group = of["q_rotary"].shape[0] // of["k_rotary"].shape[0]
    products = of["k_rotary"][head // group] @ of["q_rotary"][head, row]
    return torch.stack([products, of["scores"][head, row], of["weights"][head, row]], -1)[: row + 1]


def test_numbers_equal_those_of_the_model(visit: OpenPage, served: Any) -> None:
    subject = served("stories").subjects[0]
    page = visit("stories", f"view=neuron&layer=1&heads=3&pins=5&text={TEXT}")
    page.get_by_text("All numbers").click()
    assert torch.tensor(numbers(page)) == pytest.approx(expected(subject, 1, 3, 5), abs=6e-4, rel=1e-3)
    page.get_by_label("Next token").click()
    page.get_by_label("Next head").click()
    settle(page)
    assert (state(page)["pins"], state(page)["heads"]) == ("6", "4")
    assert torch.tensor(numbers(page)) == pytest.approx(expected(subject, 1, 4, 6), abs=6e-4, rel=1e-3)


@pytest.mark.slow
def test_hover_shows_one_dimension_before_and_after_rotation(open_page: OpenPage, served: Any) -> None:
    subject = served("stories").subjects[0]
    page = open_page("stories", f"view=neuron&heads=2&pins=6&text={TEXT}")
    canvas = page.locator(".neuron-keys")
    box = canvas.bounding_box()
    # The first strip begins after the names, 120 pixels and a gap of 18 wide; its first cells are a few pixels each.
    for when, name in (("after", "k_rotary"), ("before", "k")):
        page.get_by_role("radio", name=when).click()
        settle(page)
        keys = recorded(subject, f"decoder.blocks.0.attention.{name}", text=TEXT)
        page.mouse.move(box["x"] + 120 + 18 + 3, box["y"] + 3.5 * 26)
        lines = page.locator(".tip div").all_inner_texts()
        assert lines[1] == "dimension 0"
        assert shown(lines[2]) == pytest.approx(keys[2 // 2, 3, 0].item(), abs=6e-5)
    assert state(page)["x.neuron.rotary"] == "before"


@pytest.mark.slow
def test_the_keyboard_reads_the_keys(open_page: OpenPage) -> None:
    page = open_page("stories", f"view=neuron&pins=6&text={TEXT}")
    page.locator(".neuron-keys").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.wait_for_timeout(50)
    spoken = page.locator("[role=status]").text_content()
    assert spoken.startswith("·upon: score")
    assert "·upon" in page.locator(".tip-title").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize(("model", "kind"), [("en-zh", "cross"), ("mlm-en", "encoder"), ("stories", "decoder")])
def test_every_kind_and_its_picture(open_page: OpenPage, tmp_path: Path, model: str, kind: str) -> None:
    page = open_page(model, f"view=neuron&kind={kind}")
    page.get_by_text("All numbers").click()
    weights = [row[-1] for row in numbers(page)]
    assert sum(weights) == pytest.approx(1, abs=2e-3)
    assert page.get_by_label("Rotary positions").count() == int(model == "stories")
    assert save(page, "png", tmp_path).read_bytes().startswith(b"\x89PNG")
    svg = save(page, "svg", tmp_path).read_text(encoding="utf-8")
    last = page.locator(".neuron-numbers tbody td:last-child").all_inner_texts()
    assert all(f">{weight}</text>" in svg for weight in last)
