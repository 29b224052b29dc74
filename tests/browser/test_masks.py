"""Masks: which token may see which, why not, and what each step of decoding predicts."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer.config import BlockSparse, change
from glassformer.models.transformer import Transformer
from tests.browser.conftest import OpenPage, Served
from tests.browser.reference import decoder_ids, logits, tiny_folder
from tests.browser.tools import save, settle, state

TEXT = "Once upon a time there was a cat"
LONG = pytest.mark.slow


def counts(page: object) -> dict[str, int]:
    """How many pairs the legend counts, by reason."""
    entries = page.locator(".masks-entry")  # type: ignore[attr-defined]
    return dict(entries.evaluate_all("all => all.map((entry) => [entry.dataset.reason, Number(entry.dataset.count)])"))


def tip_at(page: object, row: int, column: int) -> str:
    """The text under the cursor, moved there by the arrow keys."""
    canvas = page.locator(".masks-picture .heat-window")  # type: ignore[attr-defined]
    canvas.focus()
    for key, times in (("ArrowDown", row + 1), ("ArrowRight", column)):
        for _ in range(times):
            canvas.press(key)
    return page.locator(".tip").text_content()  # type: ignore[attr-defined]


def test_a_causal_mask_and_its_steps(visit: OpenPage, served: Callable[..., Served]) -> None:
    page = visit("stories", f"view=masks&text={TEXT}")
    loaded = served("stories").subjects[0].loaded
    ids = decoder_ids(loaded, TEXT)[0].tolist()
    length = len(ids)
    assert counts(page) == {"allowed": length * (length + 1) // 2, "causal": length * (length - 1) // 2}
    assert "comes later" in tip_at(page, 1, 3)
    # Every row of the table is what the model itself predicts there.
    best = logits(loaded, TEXT).softmax(-1).max(-1)
    rows = page.locator("tr[data-step]")
    assert rows.count() == length
    for step, shown in enumerate(rows.locator("[data-part=predicted]").all_text_contents()):
        assert shown.endswith(f"{100 * float(best.values[step]):.1f} %")
    right = ["✓" in text for text in rows.locator("[data-part=next]").all_text_contents()]
    assert right[:-1] == [int(best.indices[step]) == ids[step + 1] for step in range(length - 1)]
    # Padding hides its own rows and columns.
    page.locator("input[type=range]").first.fill("2")
    page.wait_for_timeout(300)
    settle(page)
    assert state(page)["x.masks.padding"] == "2"
    assert counts(page)["padding"] == 2 * (length + 2) * 2 - 4


@LONG
@pytest.mark.parametrize("model", ["stories", "en-zh", "mlm-en"])
def test_every_family(open_page: OpenPage, model: str, tmp_path: Path) -> None:
    narrow = open_page(model, "view=masks&lang=zh&theme=dark", viewport={"width": 390, "height": 844})
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390
    page = open_page(model, "view=masks")
    assert set(counts(page)) == ({"allowed", "causal"} if model == "stories" else {"allowed"})
    assert save(page, "svg", tmp_path).stat().st_size > 1000
    if model == "en-zh":
        assert page.locator("tr[data-step]").last.locator("[data-part=next]").text_content().startswith("</s>")
        page.locator("[role=radio][data-value=decoder]").click()
        settle(page)
        assert set(counts(page)) == {"allowed", "causal"}


@LONG
def test_windows_and_blocks(open_page: OpenPage, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    page = open_page(tiny_folder("window", folder), f"view=masks&text={TEXT}&layer=1")
    length = page.locator("tr[data-step]").count()
    assert counts(page)["allowed"] == sum(min(4, query + 1) for query in range(length))
    assert "the window has 4" in tip_at(page, 6, 0)
    page.close()
    page = open_page(
        tiny_folder("sparse", folder), f"view=masks&text={2 * 'the cat sat on the mat and looked at the dog. '}"
    )
    assert "block-sparse" in counts(page)
    assert "head to head" in page.locator(".masks-about").text_content()


@LONG
def test_every_step_has_a_cell_for_every_token(open_page: OpenPage) -> None:
    page = open_page("stories", "view=masks", viewport={"width": 390, "height": 844})
    length = page.locator("tr[data-step]").count()
    assert length == 14
    for step in range(length):
        row = page.locator(f"tr[data-step='{step}']")
        assert row.locator(".masks-cell").count() == length
        assert row.locator(".masks-hidden").count() == length - 1 - step
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("[data-part=columns]").count() == 0
    long = open_page("stories", f"view=masks&text={30 * 'the cat and '}")
    total = int(long.locator(".token-count").inner_text().split()[0])
    assert long.locator("tr[data-step='0'] .masks-cell").count() == 60
    assert long.locator("[data-part=columns]").inner_text().startswith(f"The last {total - 60} tokens have no column")


@LONG
def test_the_reference_chooses_the_first_block_for_every_random_one(open_page: OpenPage, tmp_path: Path) -> None:
    loaded = glassformer.load("mlm-en")
    sparse = BlockSparse(block=4, random=2, semantics="reference")
    torch.manual_seed(0)
    model = Transformer(change(loaded.config, "encoder.attention.windows", (sparse,)))
    glassformer.save(model, tmp_path, tokenizer=loaded.tokenizer)
    page = open_page(str(tmp_path), f"view=masks&text={6 * 'the cat sat on the mat and looked. '}")
    about = page.locator(".masks-about").text_content()
    assert "no random block in the picture" in about
    assert "1 + 2 = 3 times" in about
    assert "This key counts 3 times" in tip_at(page, 20, 1)
    assert "at random" not in tip_at(page, 20, 30)
