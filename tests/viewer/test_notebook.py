"""Pages in notebooks: attention of any library, models, and the frame around them."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.viewer import notebook
from glassformer.viewer.encode import decode
from glassformer.viewer.notebook import View
from tests.viewer.conftest import shipped
from tests.viewer.test_encode import HOSTILE
from tests.viewer.test_export import Elements, answer_of, bootstrap_of


def weights(layers: int = 3, heads: int = 4, queries: int = 7, keys: int = 7, *, causal: bool = False) -> torch.Tensor:
    scores = torch.randn(layers, heads, queries, keys, generator=torch.Generator().manual_seed(0))
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys).triu(1) == 1, -torch.inf)
    return scores.softmax(-1)


def base_of(bootstrap: dict[str, Any]) -> dict[str, Any]:
    return {"model": 0, "input": {"text": bootstrap["state"]["text"], "text_b": None, "target": None, "ablate": []}}


@pytest.mark.parametrize("form", ["transformers", "layers", "stacked", "numpy", "lists"])
def test_weights_in_every_form(form: str) -> None:
    given = weights()
    forms: dict[str, Any] = {
        "transformers": tuple(layer[None] for layer in given),
        "layers": list(given),
        "stacked": given,
        "numpy": [layer.numpy() for layer in given],
        "lists": given.tolist(),
    }
    page = glassformer.head_view(forms[form], list("abcdefg"), sentence_b_start=4, heads=[1, 2], layer=1)
    bootstrap = bootstrap_of(page.html)
    assert bootstrap["views"] == ["heads", "grid"]
    assert {key: bootstrap["state"][key] for key in ("view", "kind", "layer", "heads")} == {
        "view": "heads", "kind": "encoder", "layer": 1, "heads": [1, 2],
    }  # fmt: skip
    base = base_of(bootstrap)
    for layer in range(3):
        held = answer_of(bootstrap, "attention", {**base, "kind": "encoder", "layer": layer})
        np.testing.assert_array_equal(decode(held["weights"]), given[layer])
        assert held["allowed"] is None
    tokens = answer_of(bootstrap, "tokens", base)["encoder"]
    assert [token["text"] for token in tokens] == list("abcdefg")
    assert [token["segment"] for token in tokens] == [0, 0, 0, 0, 1, 1, 1]
    model = answer_of(bootstrap, "model", base)
    assert (model["stacks"]["encoder"]["layers"], model["stacks"]["encoder"]["heads"]) == (3, 4)


def test_causal_weights_are_those_of_a_decoder() -> None:
    page = glassformer.model_view(weights(causal=True), ["<s>", *"bcdefg"])
    bootstrap = bootstrap_of(page.html)
    assert (bootstrap["state"]["kind"], bootstrap["state"]["view"]) == ("decoder", "grid")
    held = answer_of(bootstrap, "attention", {**base_of(bootstrap), "kind": "decoder", "layer": 0})
    np.testing.assert_array_equal(decode(held["allowed"]), np.tril(np.ones((7, 7))))
    tokens = answer_of(bootstrap, "tokens", base_of(bootstrap))["decoder"]
    assert [token["special"] for token in tokens] == [True, *[False] * 6]


def test_an_encoder_decoder_has_three_kinds() -> None:
    attention = {
        "encoder": weights(keys=7),
        "decoder": weights(queries=5, keys=5, causal=True),
        "cross": weights(queries=5),
    }
    tokens = {"encoder": list("abcdefg"), "decoder": list("vwxyz")}
    bootstrap = bootstrap_of(glassformer.head_view(attention, tokens).html)
    assert bootstrap["state"]["kind"] == "cross"
    held = answer_of(bootstrap, "attention", {**base_of(bootstrap), "kind": "cross", "layer": 2})
    np.testing.assert_array_equal(decode(held["weights"]), attention["cross"][2])
    stats = answer_of(bootstrap, "head_stats", {**base_of(bootstrap), "kind": "cross"})
    assert "aligned" in stats["patterns"]
    model = answer_of(bootstrap, "model", base_of(bootstrap))
    assert model["stacks"]["decoder"]["cross"]
    assert model["family"] == "encoder-decoder"


@pytest.mark.parametrize(
    ("attention", "tokens", "options", "message"),
    [
        ([], "abc", {}, "no layers"),
        ([None], list("abc"), {}, "attn_implementation"),
        ((), list("abc"), {}, "attn_implementation"),
        (torch.rand(1, 2, 3, 3), list("abcd"), {}, "has 3 queries, and the encoder has 4 tokens"),
        (torch.rand(3, 3), list("abc"), {}, r"shape \(heads, queries, keys\)"),
        (torch.rand(2, 5, 2, 3, 3), list("abc"), {}, "batch of 5 rows"),
        (torch.randn(1, 2, 3, 3) * 9, list("abc"), {}, "after the softmax"),
        (torch.full((1, 2, 3, 3), torch.nan), list("abc"), {}, "after the softmax"),
        ([torch.ones(2, 3, 3), torch.ones(1, 3, 3)], list("abc"), {}, "different shapes"),
        ({"self": weights()}, list("abc"), {}, "by encoder, decoder and cross"),
        ({"cross": weights()}, list("abcdefg"), {}, "tokens of each stack"),
        (weights(), list("abcdefg"), {"layer": 3}, "layer must be from 0 to 2"),
        (weights(), list("abcdefg"), {"heads": [4]}, "heads are numbers from 0 to 3"),
        (weights(), list("abcdefg"), {"sentence_b_start": 7}, "sentence_b_start"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(attention: Any, tokens: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        glassformer.head_view(attention, tokens, **options)


def test_tokens_are_a_list() -> None:
    with pytest.raises(TypeError, match="got a text"):
        glassformer.head_view(weights(), "abcdefg")


class Frame(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_notebook_shows_the_page_in_a_frame_without_rights(tmp_path: Path) -> None:
    page = glassformer.head_view(weights(), [*HOSTILE[:7]], height=500)
    found = dict(Frame(page._repr_html_()).found)
    assert list(found) == ["style", "iframe", "p"]
    attributes = found["iframe"]
    assert set(str(attributes["sandbox"]).split()) == {"allow-scripts", "allow-downloads"}
    assert attributes["height"] == "500"
    assert attributes["srcdoc"] == page.html
    assert Elements(page.html).found[0][0] == "html"
    assert page.save(tmp_path / "page.html").read_text(encoding="utf-8") == page.html
    assert "MB" in repr(page)


def test_models_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "LIMIT", 1000)
    loaded = shipped("mlm-en").loaded
    page = loaded.view("a little girl", text_b="went home")
    assert isinstance(page, View)
    bootstrap = bootstrap_of(page.html)
    base = {"model": 0, "input": {"text": "a little girl", "text_b": "went home", "target": None, "ablate": []}}
    tokens = answer_of(bootstrap, "tokens", base)["encoder"]
    assert {token["segment"] for token in tokens} == {0, 1}
    assert bootstrap["state"] == {"text": "a little girl", "text_b": "went home"}


def test_neurons_of_a_chosen_head() -> None:
    page = glassformer.neuron_view(shipped("stories").loaded, "Once upon a time", layer=2, head=3)
    bootstrap = bootstrap_of(page.html)
    assert bootstrap["state"] | {"text": ""} == {
        "text": "", "view": "neuron", "kind": "decoder", "layer": 2, "heads": [3],
    }  # fmt: skip
    base = base_of(bootstrap)
    for row in range(5):
        held = answer_of(bootstrap, "neuron", {**base, "kind": "decoder", "layer": 2, "head": 3, "row": row})
        assert decode(held["weights"]).sum() == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="layer must be from 0 to 4"):
        glassformer.neuron_view(shipped("stories").loaded, "Once", layer=9)
    with pytest.raises(TypeError, match=r"glassformer\.load"):
        glassformer.view(shipped("stories").model, "Once")  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_attention_of_transformers_can_be_shown() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
    )
    model = transformers.BertModel(config, add_pooling_layer=False)
    model.set_attn_implementation("eager")
    output = model(torch.tensor([[1, 2, 3, 4]]), output_attentions=True)
    page = glassformer.head_view(output.attentions, list("abcd"))
    bootstrap = bootstrap_of(page.html)
    held = answer_of(bootstrap, "attention", {**base_of(bootstrap), "kind": "encoder", "layer": 1})
    np.testing.assert_allclose(decode(held["weights"]), output.attentions[1][0].detach(), atol=1e-6)
