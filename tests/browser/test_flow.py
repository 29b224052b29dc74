"""Flow: boxes that open, and the arithmetic of one token in one head against recorded values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import OpenPage, Served
from tests.browser.reference import TINY, decoder_ids, decoder_values, logits, number, numbers, tiny_folder
from tests.browser.tiny import tiny
from tests.browser.tools import save, settle, state

TEXT = "Once upon a time there was a cat"
LONG = pytest.mark.slow
PLACES = ("model", "embed", "stack", "layer", "attention", "ffn", "head")


def address(place: str, **more: object) -> str:
    """The state of Flow at a place."""
    chosen = {"view": "flow", "text": TEXT, "x.flow.at": place, **more}
    return "&".join(f"{key}={value}" for key, value in chosen.items())


def test_attention_shows_the_models_own_numbers(visit: OpenPage, served: Callable[..., Served]) -> None:
    page = visit("stories", address("attention", layer=2, heads=3, pins=5))
    loaded = served("stories").subjects[0].loaded
    name = "decoder.blocks.2.attention"
    found = decoder_values(loaded, TEXT, [f"{name}.{value}" for value in ("q_rotary", "k_rotary", "weights", "output")])
    weights = found[f"{name}.weights"][3, 5]
    products = found[f"{name}.k_rotary"][1] @ found[f"{name}.q_rotary"][3, 5]  # two query heads share a key head
    rows = page.locator("[data-step=scores] tbody tr")
    assert rows.count() == decoder_ids(loaded, TEXT).shape[1]
    assert numbers(rows.locator("td:nth-child(2)").all_text_contents()) == pytest.approx(products.tolist(), abs=1e-2)
    shown = [number(text.split()[-1]) for text in rows.locator("td:last-child").all_text_contents()]
    assert shown == pytest.approx(weights.tolist(), abs=6e-4)
    assert [text == "−∞" for text in rows.locator("td:nth-child(4)").all_text_contents()] == (weights == 0).tolist()
    assert number(page.locator("[data-step=scores] tfoot td:last-child").text_content()) == pytest.approx(1, abs=1e-3)
    # The arrow keys move to another coordinate of the output.
    strip = page.locator("canvas[data-vector=output]")
    strip.focus()
    for _ in range(3):
        strip.press("ArrowRight")
    assert strip.get_attribute("aria-valuetext") == f"f(x)[3] = {found[f'{name}.output'][5, 3]:.4f}".replace("-", "−")


def test_boxes_open_and_close(visit: OpenPage, served: Callable[..., Served]) -> None:
    page = visit("stories", address("model"))
    account = served("stories").subjects[0].loaded.account(context=decoder_ids_count(served))
    assert page.locator("tr[data-cost=total]").get_attribute("title").startswith(f"{account.parameters:,} parameters")
    assert f"{account.flops:,} FLOPs" in page.locator("tr[data-cost=total]").get_attribute("title")
    best = logits(served("stories").subjects[0].loaded, TEXT)[-1].softmax(-1).max()
    assert f"{100 * float(best):.1f} %" in page.locator("[role=listitem]").first.text_content()
    page.locator("[data-box=stack-decoder]").click()
    settle(page)
    page.locator("[data-box=layer-1]").press("Enter")
    settle(page)
    assert (state(page)["x.flow.at"], state(page)["layer"]) == ("layer", "1")
    page.locator("[data-box=ffn]").press("Enter")
    settle(page)
    assert page.locator(".flow-path button").all_text_contents() == [
        "stories",
        "Decoder",
        "Layer 1",
        "Feed-forward network",
    ]
    page.locator(".flow-path [aria-current]").press("Escape")
    settle(page)
    assert state(page)["x.flow.at"] == "layer"
    page.locator(".flow-path button").first.click()
    settle(page)
    assert "x.flow.at" not in state(page)


def decoder_ids_count(served: Callable[..., Served]) -> int:
    """How many tokens the text has."""
    return decoder_ids(served("stories").subjects[0].loaded, TEXT).shape[1]


@LONG
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", ["stories", "en-zh", "mlm-en", "ner-en"])
def test_every_place_of_every_family(visit: OpenPage, model: str, place: str, tmp_path: Path) -> None:
    narrow = visit(model, f"view=flow&x.flow.at={place}&lang=zh&theme=dark", viewport={"width": 390, "height": 844})
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390
    page = visit(model, f"view=flow&x.flow.at={place}")
    assert page.locator(".flow-stage").get_attribute("data-place") == place
    assert page.locator(".flow-missing").count() == 0
    assert page.locator(".error:visible").count() == 0
    assert save(page, "svg", tmp_path).read_text(encoding="utf-8").startswith("<svg")
    assert save(page, "png", tmp_path).stat().st_size > 2000


@LONG
@pytest.mark.parametrize("kind", TINY)
def test_every_build_is_drawn_for_what_it_is(
    visit: OpenPage, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tiny_folder(kind, tmp_path_factory.getbasetemp())
    for place in PLACES:
        page = visit(folder, f"view=flow&x.flow.at={place}")
        assert page.locator(".flow-stage").get_attribute("data-place") == place
        assert page.locator(".error:visible").count() == 0
        if place == "layer":
            boxes = page.locator(".flow-stage [data-box]").evaluate_all("all => all.map((box) => box.dataset.box)")
            inner = [box for box in boxes if not box.startswith("norm-")]
            more = {"buckets": ["attention", "cross", "ffn"], "convolution": ["attention", "ffn", "convolution"]}
            assert inner == more.get(kind, ["attention", "ffn"])
            norms = len(boxes) - len(inner)
            assert norms == (1 if kind == "parallel" else len(inner))
        if place == "stack" and kind == "shared":
            assert "used 12 times" in page.locator(".flow-stage svg").text_content()


@LONG
def test_a_convolution_is_drawn_beside_the_first_layer(
    visit: OpenPage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tiny_folder("convolution", tmp_path_factory.getbasetemp())
    page = visit(folder, "view=flow&x.flow.at=layer&layer=0")
    assert "3 neighbouring tokens, GELU" in page.locator("[data-box=convolution]").text_content()
    assert page.locator("[data-box=norm-convolution]").count() == 1
    page = visit(folder, "view=flow&x.flow.at=layer&layer=1")
    assert page.locator("[data-box=ffn]").count() == 1
    assert page.locator("[data-box=convolution]").count() == 0
    page = visit(folder, "view=flow&x.flow.at=stack")
    assert "convolution" in page.locator("[data-box=layer-0]").text_content()
    assert "convolution" not in page.locator("[data-box=layer-1]").text_content()
    assert page.locator("tr[data-cost=convolution]").count() == 1


@LONG
def test_a_norm_of_queries_and_keys_is_named(visit: OpenPage) -> None:
    folder = tiny("qwen3-Qwen3ForCausalLM")
    page = visit(folder, "view=flow&x.flow.at=layer")
    assert "rotary positions, RMSNorm of q and k" in page.locator("[data-box=attention]").text_content()
    page = visit(folder, "view=flow&x.flow.at=attention")
    assert "q = RMSNorm(W_Q·x),  k = RMSNorm(W_K·x),  v = W_V·x" in page.locator("[data-step=project]").text_content()
    page = visit(folder, "view=tour&x.tour.stop=qkv")
    assert page.locator(".tour-product .op").all_text_contents() == ["· Wq→ RMSNorm =", "· Wk→ RMSNorm =", "· Wv ="]
    page = visit(folder, "view=figures&x.figures.figure=product")
    assert "normalises each row by RMSNorm" in page.locator(".figure-body").inner_text()


WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
Bars = dict[str, list[float]]


def bars_of(page: Any, layer: int) -> Bars:
    """The bars of a layer in the picture of the model: along and length, across and breadth."""
    x, y = ("x", "width"), ("y", "height")
    order = [*y, *x] if page.viewport_size == WIDE else [*x, *y]
    bars = page.locator(f"[data-box^=stack-] [data-layer='{layer}'] [data-bar]").all()
    return {bar.get_attribute("data-bar"): [float(bar.get_attribute(key)) for key in order] for bar in bars}


@LONG
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("gpt2-GPT2LMHeadModel", [["norm-attention"], ["attention"], ["norm-ffn"], ["ffn"]]),
        ("bert-BertForMaskedLM", [["attention"], ["norm-attention"], ["ffn"], ["norm-ffn"]]),
        ("gpt-j-GPTJForCausalLM", [["norm-attention"], ["attention", "ffn"]]),
        ("gpt-neox-GPTNeoXForCausalLM", [["norm-attention", "norm-ffn"], ["attention", "ffn"]]),
    ],
)
def test_the_picture_of_the_model_shows_what_runs_at_once(visit: OpenPage, name: str, order: list[list[str]]) -> None:
    folder = tiny(name)
    for viewport in (WIDE, NARROW):
        for layer in (0, 2):
            bars = bars_of(visit(folder, "view=flow", viewport=viewport), layer)
            assert set(bars) == {bar for row in order for bar in row}
            end = 0.0
            for row in order:
                along, length, _, breadth = bars[row[0]]
                assert along > end
                assert length > 4
                end = along + length
                side = 0.0
                for bar in row:  # side by side, all equally large
                    assert (bars[bar][0], bars[bar][1], bars[bar][3]) == pytest.approx((along, length, breadth))
                    assert bars[bar][2] > side
                    side = bars[bar][2] + breadth
            widths = [sum(bars[bar][3] for bar in row) + 2 * (len(row) - 1) for row in order]
            assert widths == pytest.approx([widths[0]] * len(order))  # a shared norm lies above all that read it


@pytest.mark.parametrize(
    ("viewport", "lang", "words"), [(WIDE, "en", "4 key/value heads"), (NARROW, "zh", "4 个键/值头")]
)
def test_the_picture_of_the_model_shows_grouped_heads(
    visit: OpenPage, viewport: dict[str, int], lang: str, words: str
) -> None:
    page = visit("stories", f"view=flow&lang={lang}", viewport=viewport)
    stack = page.locator("[data-box=stack-decoder]")
    assert words in stack.text_content()
    assert words in stack.get_attribute("aria-label")
    squares = stack.locator("[data-heads='8/4'] rect")
    rows = squares.evaluate_all("all => all.map((one) => one.getAttribute('y'))")
    assert [rows.count(level) for level in dict.fromkeys(rows)] == [8, 4]
    mine, outer = stack.locator("[data-heads]").bounding_box(), stack.locator(".frame").bounding_box()
    assert outer["x"] < mine["x"]
    assert mine["x"] + mine["width"] < outer["x"] + outer["width"]


def test_heads_with_keys_of_their_own_are_not_drawn_as_grouped(visit: OpenPage) -> None:
    page = visit("en-zh", "view=flow")
    assert page.locator("[data-box^=stack-]").count() == 2
    assert page.locator("[data-heads]").count() == 0
    assert "key/value" not in page.locator(".flow-picture").text_content()


@LONG
@pytest.mark.parametrize("name", ["gpt-j-GPTJForCausalLM", "qwen3-Qwen3ForCausalLM"])
def test_a_layer_says_all_that_it_is_at_every_width(visit: OpenPage, name: str) -> None:
    folder = tiny(name)
    for viewport in (WIDE, NARROW):
        page = visit(folder, "view=flow&x.flow.at=layer", viewport=viewport)
        for box in ("attention", "ffn"):
            drawn = page.locator(f"[data-box={box}]")
            about = drawn.get_attribute("aria-label").split(". ")[1]
            assert ("causal, rotary positions" in about) == (box == "attention")
            assert about in " ".join(drawn.locator("text").all_text_contents())
            frame = drawn.locator(".frame").bounding_box()
            for text in drawn.locator("text").all():
                place = text.bounding_box()
                assert place is None or place["x"] + place["width"] < frame["x"] + frame["width"]
        assert "…" not in page.locator(".flow-picture").text_content()


@LONG
def test_what_comes_before_the_logits_is_said(visit: OpenPage) -> None:
    """A head may scale its vector, as T5's does, or transform it, as BERT's does; both may add a bias."""
    t5 = tiny("t5-T5ForConditionalGeneration")
    for model, formula, words in (
        (t5, "softmax(E·x · 0.2041)", ("is multiplied by 0.2041", "vector is multiplied by 0.2041")),
        ("mlm-en", "softmax(E·x + b)", ("a linear layer, GELU and a norm", "A bias of each token")),
        ("stories", "softmax(E·x)", ("multiplied with 4,096 columns", "The last vector is multiplied with a matrix")),
    ):
        page = visit(model, "view=flow&x.flow.at=head")
        assert page.locator("[data-step=logits]").text_content().count(formula) == 1
        page = visit(model, "view=tour&x.tour.stop=logits")
        assert words[0] in page.locator(".tour-story").text_content()
        page = visit(model, "view=figures&x.figures.figure=word")
        assert words[1] in page.locator(".figure-word").inner_text()


@LONG
def test_lines_that_are_left_out_are_not_described(visit: OpenPage) -> None:
    for text, words in (("Tom saw a cat.", "Lines inside a stack"), ("Tom saw a cat. " * 12, "Beyond 48 tokens")):
        page = visit("stories", f"view=flow&text={text}")
        assert words in page.locator(".view-flow").inner_text()


@LONG
def test_the_feed_forward_network_and_post_norm(open_page: OpenPage, served: Callable[..., Served]) -> None:
    import torch

    from glassformer.inspect.record import record

    page = open_page("mlm-en", "view=flow&text=A [MASK] barks.&x.flow.at=ffn&layer=1&pins=2")
    subject = served("mlm-en").subjects[0]
    loaded = subject.loaded
    ids = torch.tensor([loaded.tokenizer.encode("A [MASK] barks.")])
    with (
        torch.inference_mode(),
        record(loaded.model, ["encoder.blocks.1.output", "encoder.blocks.1.ffn.hidden"]) as trace,
    ):
        loaded.model(ids)
    hidden = trace["encoder.blocks.1.ffn.hidden"][0, 2]
    strongest = page.locator("tr[data-neuron]")
    assert int(strongest.first.get_attribute("data-neuron")) == int(hidden.abs().argmax())
    assert number(strongest.first.locator("td").last.text_content()) == pytest.approx(
        float(hidden[hidden.abs().argmax()]), abs=1e-3
    )
    end = page.locator("canvas[data-vector=post_norm-out]")
    end.focus()
    end.press("Home")
    end.press("ArrowRight")
    after = float(trace["encoder.blocks.1.output"][0, 2, 1])
    assert number(end.get_attribute("aria-valuetext").partition("=")[2]) == pytest.approx(after, abs=1e-3)
    # A token that is chosen here is the one that the other views show.
    page.locator(".flow-token").nth(3).click()
    settle(page)
    assert state(page)["pins"] == "3"
