"""The head view: what it shows equals what the model computes."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.browser.tools import OpenPage, address, recorded, save, settle, shown, state, type_text

TEXT = "Once upon a time, there was a little dog."
LINES = re.compile(r"M[\d.]+ [\d.]+C")


@pytest.fixture
def stories(served: Any) -> Any:
    return served("stories").subjects[0]


def weights(subject: Any, layer: int, **texts: str) -> torch.Tensor:
    return recorded(subject, f"decoder.blocks.{layer}.attention.weights", **texts)


def query(page: Any, index: int) -> Any:
    return page.locator(f".board-token.query[data-index='{index}']")


def key(page: Any, index: int) -> Any:
    return page.locator(f".board-token.key[data-index='{index}']")


def table(page: Any, index: int) -> dict[int, float]:
    """The weights written out for a query, by key."""
    rows = page.locator(f".readout[data-query='{index}'] tbody tr").all()
    return {int(row.locator("th .note").inner_text()): shown(row.locator(".bar-value").inner_text()) for row in rows}


def test_hover_shows_the_weights_of_the_model(visit: OpenPage, stories: Any) -> None:
    page = visit("stories", f"view=heads&layer=1&text={TEXT}")
    query(page, 6).hover()
    expected = weights(stories, 1, text=TEXT)[:, 6]
    found = table(page, 6)
    assert found == pytest.approx({key: expected[:, key].mean().item() for key in found}, abs=6e-5)
    assert set(found) == set(range(7))  # the others are masked
    lines = page.locator(".tip div").all_inner_texts()
    assert [shown(line.split()[-1]) for line in lines] == pytest.approx(expected.amax(-1).tolist(), abs=6e-5)
    masked = page.locator(".board-token.key.masked").count()
    assert masked == expected.shape[-1] - 7


def test_pins_are_kept_in_the_address(visit: OpenPage, stories: Any) -> None:
    page = visit("stories", f"view=heads&text={TEXT}")
    query(page, 2).click()
    query(page, 5).click()
    assert state(page)["pins"] == "2.5"
    key(page, 1).hover()
    expected = weights(stories, 0, text=TEXT)
    values = [shown(line.split()[-1]) for line in page.locator(".tip div:not(.tip-title)").all_inner_texts()]
    assert values == pytest.approx(expected[:, 5, 1].tolist(), abs=6e-5)
    page = visit("stories", address(page))
    assert query(page, 2).get_attribute("aria-pressed") == query(page, 5).get_attribute("aria-pressed") == "true"
    assert {2, 5} == {int(one.get_attribute("data-query")) for one in page.locator(".readout").all()}
    query(page, 2).click()
    assert state(page)["pins"] == "5"
    page.get_by_role("button", name="Unpin all").click()
    assert "pins" not in state(page)


def test_heads_are_chosen_by_click_and_double_click(visit: OpenPage, stories: Any) -> None:
    page = visit("stories", f"view=heads&pins=4&text={TEXT}")
    expected = weights(stories, 0, text=TEXT)[:, 4]
    swatch = page.locator(".swatch[data-head='3']")
    swatch.dblclick()
    assert state(page)["heads"] == "3"
    found = table(page, 4)
    assert found == pytest.approx({key: expected[3, key].item() for key in found}, abs=6e-5)
    page.locator(".swatch[data-head='6']").click()
    found = table(page, 4)
    assert found == pytest.approx({key: expected[[3, 6], key].mean().item() for key in found}, abs=6e-5)
    page.get_by_role("radio", name="sum").click()
    found = table(page, 4)
    assert found == pytest.approx({key: expected[[3, 6], key].sum().item() for key in found}, abs=6e-5)
    page.locator(".swatch[data-head='6']").click()
    swatch.dblclick()  # the only one: all again
    assert "heads" not in state(page)


def test_the_slider_leaves_out_small_weights(visit: OpenPage, stories: Any, tmp_path: Path) -> None:
    page = visit("stories", f"view=heads&layer=2&heads=1&text={TEXT}")
    expected = weights(stories, 2, text=TEXT)[1]
    slider = page.get_by_label("Minimum weight")
    for threshold in (0.0, 0.25):
        slider.fill(str(threshold))
        svg = save(page, "svg", tmp_path).read_text(encoding="utf-8")
        assert len(LINES.findall(svg)) == int((expected >= max(threshold, 0.012)).sum())
    assert state(page)["x.heads.from"] == "0.25"
    assert "·upon" in svg
    assert "style=" not in svg


def test_cross_attention_of_a_typed_translation(visit: OpenPage, served: Any) -> None:
    page = visit("en-zh", "view=heads")
    type_text(page, "I love you.")
    assert "我" in page.locator("textarea[name=target]").get_attribute("placeholder")
    type_text(page, "我爱你。", "target")
    subject = served("en-zh").subjects[0]
    expected = recorded(subject, "decoder.blocks.0.cross.weights", text="I love you.", target="我爱你。")
    index = 1
    query(page, index).hover()
    assert query(page, index).inner_text().split() == ["__zh__", "→", "我爱"]  # what that row is about to write
    assert "我爱" in page.locator(".readout caption").inner_text()
    found = table(page, index)
    assert len(found) > 4
    assert found == pytest.approx({key: expected[:, index, key].mean().item() for key in found}, abs=6e-5)
    page.get_by_role("radio", name="Encoder").click()
    settle(page)
    assert state(page)["kind"] == "encoder"
    texts = [page.locator(f".board-token.{side}").all_inner_texts() for side in ("query", "key")]
    assert texts[0] == texts[1]


def test_where_each_word_of_a_translation_comes_from(visit: OpenPage, served: Any) -> None:
    text = "Where is the station?"
    page = visit("en-zh", f"view=heads&text={text}")
    rows = page.locator(".sources tbody tr")
    found = {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows.all()}
    assert {word: found[word][0].split(",")[0] for word in ("车站", "在哪里")} == {"车站": "station", "在哪里": "Where"}
    subject = served("en-zh").subjects[0]
    layers = subject.facts.decoder.layers
    target = "车站在哪里？"
    weights = [recorded(subject, f"decoder.blocks.{n}.cross.weights", text=text, target=target) for n in range(layers)]
    mean = torch.stack(weights).mean((0, 1))[1, 1:-1]  # the row that writes 车站; the words of the source
    assert shown(found["车站"][1]) == pytest.approx(mean.max().item(), abs=0.006)
    page.get_by_role("button", name="车站", exact=True).click()
    assert state(page)["pins"] == "1"
    assert page.locator(".sources").count() == 0
    page.get_by_role("button", name="Unpin all").click()
    type_text(page, "I love you.")
    assert page.locator(".sources tbody th").all_inner_texts() == ["我爱", "你", "。"]
    page.get_by_role("radio", name="Encoder").click()
    settle(page)
    assert page.locator(".sources").count() == 0


@pytest.mark.slow
def test_heads_can_be_looked_for_from_their_lines(open_page: OpenPage) -> None:
    page = open_page("stories")
    page.get_by_role("button", name="Find heads by what they read").click()
    settle(page)
    page.get_by_label("Find heads that attend to").select_option("previous")
    page.locator(".grid-best button").first.click()
    settle(page)
    found = state(page)
    assert (found["view"], found["layer"], found["heads"]) == ("heads", "4", "2")


def test_the_keyboard_moves_and_pins(visit: OpenPage) -> None:
    page = visit("stories", f"view=heads&text={TEXT}")
    query(page, 0).focus()
    for pressed in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "Enter"):
        page.keyboard.press(pressed)
    assert state(page)["pins"] == "2"
    assert "upon" in page.locator("[role=status]").text_content()
    page.keyboard.press("]")
    page.keyboard.press("}")
    settle(page)
    assert (state(page)["layer"], state(page)["heads"]) == ("1", "0")
    page.keyboard.press("Escape")
    assert "pins" not in state(page)


@pytest.mark.slow
def test_sentence_pairs_are_filtered(open_page: OpenPage) -> None:
    page = open_page("mlm-en", "view=heads&text=The cat sat.&text_b=It was tired.")

    def columns() -> list[list[str]]:
        return [page.locator(f".board-token.{side}").all_inner_texts() for side in ("query", "key")]

    both = columns()[0]
    page.get_by_label("Sentences").select_option("ab")
    rows, keys = columns()
    assert rows + keys == both
    assert rows[0] == "[CLS]"
    page.get_by_label("Hide special tokens").check()
    rows, keys = columns()
    assert not {"[CLS]", "[SEP]"} & {*rows, *keys}
    page.get_by_label("Sentences").select_option("ba")
    assert columns() == [keys, rows]
    type_text(page, "", "text_b")
    assert not page.get_by_label("Sentences").is_visible()


@pytest.mark.slow
def test_a_long_text_is_drawn_in_windows(open_page: OpenPage, stories: Any) -> None:
    text = " ".join(["Tom saw a big red ball and ran."] * 45)
    page = open_page("stories", "view=heads")
    type_text(page, text)
    expected = weights(stories, 0, text=text)
    length = expected.shape[-1]
    assert length > 256
    assert page.locator(".board-token").count() < 140
    page.locator(".board").evaluate("board => { board.scrollTop = board.scrollHeight / 2; }")
    settle(page)
    index = length // 2
    query(page, index).hover()
    found = table(page, index)
    scale = expected[:, index].amax().item() / 255  # such weights come in 8 bits
    assert found == pytest.approx({key: expected[:, index, key].mean().item() for key in found}, abs=scale + 1e-4)


@pytest.mark.slow
def test_a_picture_as_png(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page("stories", f"view=heads&text={TEXT}")
    picture = save(page, "png", tmp_path).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20], "big") > 1000  # pixels across
    assert len(picture) > 20_000


@pytest.mark.slow
def test_a_key_is_masked_only_where_no_pinned_token_sees_it(open_page: OpenPage) -> None:
    page = open_page("stories", "view=heads&layer=4&heads=2&text=Once there was a little girl named Lily.")
    masked = page.locator(".board-token.key.masked")
    for word, hidden in (("girl", ["·named", "·Lily", "."]), ("little", ["·named", "·Lily", "."])):
        page.locator(".board-token.query", has_text=word).click()
        settle(page)
        page.mouse.move(2, 2)
        page.wait_for_timeout(50)
        assert masked.all_inner_texts() == hidden, f"after {word} is pinned"
    page.locator(".board-token.key", has_text="girl").hover()
    assert "girl → ·girl" in page.locator(".tip").inner_text(), "of the pinned tokens, the one that sees it"


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_title_of_a_picture_fits(open_page: OpenPage, lang: str, tmp_path: Path) -> None:
    page = open_page("en-zh", f"view=heads&lang={lang}")
    svg = save(page, "svg", tmp_path).read_text(encoding="utf-8")
    page.evaluate("svg => { document.body.innerHTML = svg; }", svg)
    outside = """() => {
      const frame = document.querySelector("body > svg").getBoundingClientRect();
      const outside = (text) => {
        const box = text.getBoundingClientRect();
        return box.left < frame.left || box.right > frame.right;
      };
      return [...document.querySelectorAll("body > svg text")].filter(outside).map((text) => text.textContent);
    }"""
    assert page.evaluate(outside) == []
