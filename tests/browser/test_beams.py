"""Beams: the tree, its scores and the winner, against the library's own beam search."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import OpenPage, Served
from tests.browser.reference import number
from tests.browser.tools import save, settle, state

TEXT = "One day, a cat"
LONG = pytest.mark.slow


def finals(page: Any) -> list[float]:
    """The final scores in the table of results."""
    return [number(text) for text in page.locator("tr[data-rank] [data-part=final]").all_text_contents()]


def expected(served: Callable[..., Served], size: int, penalty: float) -> list[float]:
    """What the library finds."""
    loaded = served("stories").subjects[0].loaded
    options = {"max_new_tokens": 12, "beam_size": size, "top_beams": size, "length_penalty": penalty}
    (texts,) = loaded.generate([TEXT], temperature=0.0, **options)
    return [text.written.score for text in texts]


def test_scores_and_winner(visit: OpenPage, served: Callable[..., Served]) -> None:
    page = visit("stories", f"view=beams&text={TEXT}&x.beams.size=3&x.beams.steps=12")
    assert finals(page) == pytest.approx(expected(served, 3, 1.0), abs=2e-3)
    # The penalty changes the scores, not the sums.
    page.locator("input[type=range]").nth(1).fill("0.5")
    page.wait_for_timeout(250)
    settle(page)
    assert state(page)["x.beams.penalty"] == "0.5"
    assert finals(page) == pytest.approx(expected(served, 3, 0.5), abs=2e-3)
    # The arrow keys walk along the winner's path.
    chosen = page.locator(".beams-node[aria-pressed=true]")
    chosen.press("ArrowLeft")
    assert "winner" in page.locator(".beams-node[aria-pressed=true]").get_attribute("aria-label")
    dropped = page.locator(".beams-node[data-status=dropped]")
    assert dropped.count() > 0
    page.locator("#beams-dropped").uncheck()
    settle(page)
    assert dropped.count() == 0


@LONG
def test_sum_length_and_score_agree_and_the_winner_is_in_sight(open_page: OpenPage) -> None:
    text = "The animal didn't cross the street because it was too tired."
    for width in (1280, 390):
        page = open_page("en-zh", f"view=beams&text={text}", viewport={"width": width, "height": 900})
        best = page.locator("tr[data-rank='1'] td").all_text_contents()
        total, length, final = (number(cell) for cell in best[2:])
        assert final == pytest.approx(total / length, abs=1e-4)
        # The chosen node says the same, and so does its table: what is in brackets does not count.
        rows = [row.locator("td").all_text_contents() for row in page.locator(".beams-path tbody tr").all()]
        assert number(rows[-1][4]) == total
        assert rows[0][3].startswith("("), "the language is forced"
        assert sum(number(row[3]) for row in rows if "(" not in row[3]) == pytest.approx(total, abs=0.01)
        assert "__zh__ is forced" in page.locator("[data-part=forced]").text_content()
        # All rows of the table, and the end of the winner's path, can be seen.
        assert page.locator(".beams-path").evaluate("box => box.scrollHeight <= box.clientHeight")
        frame, node = (
            page.locator(which).bounding_box() for which in (".beams-tree", ".beams-node[aria-pressed=true]")
        )
        assert frame["x"] <= node["x"]
        assert node["x"] + node["width"] <= frame["x"] + frame["width"]
        assert page.locator("[data-part=wide]").is_hidden() == (width == 1280), "it fits, or the page says so"


@LONG
@pytest.mark.parametrize("model", ["en-zh", "stories"])
def test_every_family(open_page: OpenPage, model: str, tmp_path: Path) -> None:
    narrow = open_page(model, "view=beams&lang=zh&theme=dark&x.beams.size=8", viewport={"width": 390, "height": 844})
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390
    assert narrow.locator("tr[data-rank]").count() == 8
    page = open_page(model, "view=beams")
    sums = [number(text) for text in page.locator("tr[data-rank] td:nth-child(3)").all_text_contents()]
    lengths = [int(text) for text in page.locator("tr[data-rank] td:nth-child(4)").all_text_contents()]
    assert finals(page) == pytest.approx(
        [total / length for total, length in zip(sums, lengths, strict=True)], abs=1e-3
    )
    assert finals(page) == sorted(finals(page), reverse=True)
    assert save(page, "svg", tmp_path).read_text(encoding="utf-8").count("<rect") > 20


@LONG
def test_an_encoder_has_no_beams(open_page: OpenPage) -> None:
    page = open_page("mlm-en")
    assert page.locator("nav.views button", has_text="Beams").count() == 0
