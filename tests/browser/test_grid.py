"""All heads at a glance: patterns, pictures, opening a head."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.browser.tools import OpenPage, recorded, save, settle, state

TEXT = "Once upon a time, there was a little dog."


def previous_shares(subject: Any) -> torch.Tensor:
    """The mean weight on the previous token, by layer and head."""
    layers = range(subject.facts.decoder.layers)
    names = [f"decoder.blocks.{layer}.attention.weights" for layer in layers]
    return torch.stack([recorded(subject, name, text=TEXT).diagonal(-1, -2, -1).mean(-1) for name in names])


def test_heads_that_read_the_previous_token_are_found(visit: OpenPage, served: Any) -> None:
    shares = previous_shares(served("stories").subjects[0])
    page = visit("stories", f"view=grid&text={TEXT}")
    page.get_by_label("Find heads that attend to").select_option("previous")
    for thumb in page.locator(".head-thumb").all():
        expected = shares[int(thumb.get_attribute("data-layer")), int(thumb.get_attribute("data-head"))].item()
        assert float(thumb.get_attribute("data-share")) == pytest.approx(expected, abs=1e-3)
    assert "50 % of the way from what an even spread" in page.locator(".grid-rule").inner_text()
    best = divmod(int(shares.argmax()), shares.shape[1])
    chip = page.locator(".grid-best .chip").first
    assert chip.inner_text() == f"Layer {best[0]}, head {best[1]}  {shares.max().item():.2f}"
    page.get_by_role("radio", name="by pattern").click()
    first = page.locator(".head-thumb").first
    assert (int(first.get_attribute("data-layer")), int(first.get_attribute("data-head"))) == best
    chip.click()
    settle(page)
    now = state(page)
    assert (now["view"], int(now.get("layer", 0)), int(now["heads"])) == ("heads", *best)
    page.go_back()
    settle(page)
    assert page.locator(".head-thumb").count() == shares.numel()


@pytest.mark.slow
def test_pictures_have_the_colours_of_the_weights(open_page: OpenPage, served: Any) -> None:
    subject = served("stories").subjects[0]
    weights = recorded(subject, "decoder.blocks.2.attention.weights", text=TEXT)[3]
    page = open_page("stories", f"view=grid&text={TEXT}")
    read = """canvas => ({size: [canvas.height, canvas.width],
      data: [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]})"""
    picture = page.locator(".head-thumb[data-layer='2'][data-head='3'] canvas").evaluate(read)
    assert tuple(picture["size"]) == tuple(weights.shape)
    red = torch.tensor(picture["data"]).view(*weights.shape, 4)[..., 0].float()
    darker = weights.flatten().argsort()
    steps = red.flatten()[darker].diff()
    assert (steps <= 0).all()  # the larger the weight, the darker, with no exception
    assert red[0, 1] == red.max()


@pytest.mark.slow
def test_arrow_keys_and_tooltip(open_page: OpenPage) -> None:
    page = open_page("stories", f"view=grid&text={TEXT}")
    page.locator(".head-thumb[tabindex='0']").focus()
    for pressed in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(pressed)
    focused = page.locator(".head-thumb:focus")
    assert (focused.get_attribute("data-layer"), focused.get_attribute("data-head")) == ("1", "1")
    focused.hover()
    assert page.locator(".tip-title").inner_text() == "Layer 1, head 1"
    assert "previous token:" in page.locator(".tip").inner_text()
    page.keyboard.press("Enter")
    settle(page)
    assert (state(page)["view"], state(page)["layer"], state(page)["heads"]) == ("heads", "1", "1")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_every_kind_has_pictures(open_page: OpenPage, tmp_path: Path, kind: str) -> None:
    page = open_page("en-zh", f"view=grid&kind={kind}")
    assert page.locator(".head-thumb").count() == 3 * 8
    svg = save(page, "svg", tmp_path).read_text(encoding="utf-8")
    assert svg.count("<image") == 3 * 8
    assert save(page, "png", tmp_path).read_bytes().startswith(b"\x89PNG")
