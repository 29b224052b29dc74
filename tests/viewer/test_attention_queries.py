"""Queries about attention, masks and sublayers, against values that are computed directly."""

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from glassformer.config import change
from glassformer.inspect.record import record, value_names
from glassformer.models.transformer import Transformer
from glassformer.nn.sparse import block_sparse_mask
from glassformer.viewer.encode import decode
from glassformer.viewer.inputs import Input
from glassformer.viewer.masks import REASONS
from glassformer.viewer.queries_attention import CROSS, SELF, WHOLE, patterns, thumbs
from glassformer.viewer.subject import Subject
from tests.helpers import randomise
from tests.viewer.conftest import TEXT, ask, shipped, tiny

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BERT = {**SMALL, "max_position_embeddings": 64}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 400}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
TINY = {
    "gpt2": (GPT2, "lm"),
    "gpt-neox": ({**SMALL, "max_position_embeddings": 64}, "lm"),
    "gpt-j": ({"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}, "lm"),
    "bloom": ({"hidden_size": 32, "n_layer": 2, "n_head": 4}, "lm"),
    "llama": ({**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64}, "lm"),
    "qwen3": ({**SMALL, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}, "lm"),
    "mistral": ({**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 3}, "lm"),
    "bert": (BERT, "lm"),
    "albert": ({**BERT, "embedding_size": 16}, "lm"),
    "deberta": ({**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, "lm"),
    "deberta_v2": (
        {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "conv_kernel_size": 3, "conv_act": "gelu"},
        "lm",
    ),
    "t5": (T5, "lm"),
}


def of(name: str) -> Subject:
    """A tiny model with random weights, or a shipped one."""
    return shipped(name) if name in TEXT else tiny(name, *TINY[name])


def recorded(subject: Subject, text: str) -> dict[str, torch.Tensor]:
    """Every value of a pass over a text, by the recorder itself."""
    read = subject.sequences(Input(text))
    with record(subject.model) as trace, torch.no_grad():
        if read.encoder is None:
            subject.model(torch.tensor([read.decoder]))
        elif read.decoder is None:
            segments = None if not subject.facts.embed.segments else torch.tensor([read.segments])
            subject.model(torch.tensor([read.encoder]), segments=segments)
        else:
            subject.model(torch.tensor([read.encoder]), target=torch.tensor([read.decoder]))
    return {name: trace[name][0] for name in trace if name != "head"}


def close(encoded: dict[str, Any], expected: torch.Tensor, bound: float = 1e-5) -> None:
    np.testing.assert_allclose(decode(encoded), expected.detach().float().numpy(), atol=bound, rtol=1e-4)


DEFAULT = ("llama", "t5", "deberta", "deberta_v2")  # the others are long tests
LINEAGES = [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.slow) for name in TINY]


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*LINEAGES, "en-zh"])
def test_weights_are_those_of_the_recorder(name: str) -> None:
    subject, text = of(name), "a little girl went home"
    values = recorded(subject, text)
    for weights in [key for key in values if key.endswith(".weights")]:
        stack, _, layer, sublayer, _ = weights.split(".")
        kind = "cross" if sublayer == "cross" else stack
        answer = ask(subject, "attention", text, kind=kind, layer=int(layer))
        close(answer["weights"], values[weights], 1e-6)
        assert list(decode(answer["weights"]).shape[1:]) == [answer["queries"], answer["keys"]]
        hidden = values[weights.replace("weights", "scores")] == -torch.inf
        shown = np.ones(hidden.shape) if answer["allowed"] is None else decode(answer["allowed"])
        np.testing.assert_array_equal(np.broadcast_to(shown, hidden.shape) == 0, hidden.numpy())


def test_chosen_heads_and_rows() -> None:
    subject = shipped("stories")
    whole = decode(ask(subject, "attention", kind="decoder", layer=2)["weights"])
    part = ask(subject, "attention", kind="decoder", layer=2, heads=[5, 1], rows=[2, 4])
    np.testing.assert_array_equal(decode(part["weights"]), whole[[5, 1], 2:4])
    assert (part["heads"], part["rows"]) == ([5, 1], [2, 4])
    np.testing.assert_allclose(whole.sum(-1), 1, atol=1e-5)


def test_long_texts_come_in_8_bits_with_a_factor_per_row() -> None:
    subject = tiny("gpt2", GPT2)
    text = "a little girl " * 100
    answer = ask(subject, "attention", text, layer=1, rows=[256, 300])
    assert answer["queries"] > WHOLE
    assert answer["weights"]["type"] == "u1"
    weights = decode(answer["weights"]) / 255 * decode(answer["scale"])[..., None]
    exact = subject.weights(Input(text), "decoder", 1)[:, 256:300].numpy()
    bound = decode(answer["scale"])[..., None] / 509
    assert bool((np.abs(weights - exact) <= bound).all())


def test_weights_of_long_texts_are_kept_in_8_bits() -> None:
    subject, text = tiny("gpt2", GPT2), "a little girl " * 100
    ask(subject, "attention_overview", text)
    kept = [ask(subject, "attention", text, layer=layer, rows=[0, 300]) for layer in range(2)]
    with count_passes(subject) as passes:
        again = ask(subject, "attention", text, layer=1, rows=[0, 300])
        assert passes == []
        other = tiny("gpt2", GPT2)
        for layer in (1, 0):
            fresh = ask(other, "attention", text, layer=layer, rows=[0, 300])
            np.testing.assert_array_equal(decode(fresh["weights"]), decode(kept[layer]["weights"]))
            np.testing.assert_array_equal(decode(fresh["scale"]), decode(kept[layer]["scale"]))
    assert again == kept[1]


def test_ablating_a_head_equals_zeroing_its_columns_of_the_output_projection() -> None:
    subject, text = tiny("llama", *TINY["llama"]), "a little girl"
    ablated = ask(subject, "predict", text, input={"ablate": [["decoder.attention", 1, 2]]})
    other = tiny("llama", *TINY["llama"])
    assert other.model.decoder is not None
    with torch.no_grad():
        other.model.decoder.blocks[1].attention.o.weight[:, 16:24] = 0
    close(ablated["logits"], torch.tensor(decode(ask(other, "predict", text)["logits"])))
    assert not np.allclose(decode(ablated["logits"]), decode(ask(subject, "predict", text)["logits"]))


# --- all heads --------------------------------------------------------------------------------------------------------


def test_small_pictures_hold_the_largest_weights() -> None:
    subject = shipped("en-zh")
    answer = ask(subject, "attention_overview", kind="encoder", size=4)
    weights = torch.stack([subject.weights(Input(TEXT["en-zh"]), "encoder", layer) for layer in range(3)])
    assert decode(answer["thumbs"]).shape == (3, 8, 4, 4)
    np.testing.assert_array_equal(
        decode(answer["thumbs"]).reshape(3, 8, -1).max(-1), (weights.amax((-1, -2)) * 255).round().numpy()
    )
    small = ask(subject, "attention_overview", "hi", kind="encoder")
    exact = torch.stack([subject.weights(Input("hi"), "encoder", layer) for layer in range(3)])
    np.testing.assert_array_equal(decode(small["thumbs"]), (exact * 255).round().numpy())


@pytest.mark.parametrize("length", [300, 77])
@pytest.mark.parametrize("is_cross", [False, True])
def test_patterns_and_pictures_are_their_formulas(length: int, is_cross: bool) -> None:
    scores = torch.randn(3, length, 128 if is_cross else length, generator=torch.Generator().manual_seed(0)) * 3
    allowed = torch.ones(scores.shape[1:], dtype=torch.bool)
    weights = scores.masked_fill(~(allowed if is_cross else allowed.tril()), -torch.inf).softmax(-1)
    queries, keys = allowed.shape
    special = torch.arange(keys) % 9 == 8
    counts = (allowed if is_cross else allowed.tril()).sum(-1)[None]
    shares, entropy, distance = patterns(weights, special, counts, is_cross=is_cross)
    exact = weights.double()
    terms = -torch.special.xlogy(exact, exact).sum(-1)
    torch.testing.assert_close(entropy.double(), terms.mean(-1), atol=1e-5, rtol=0)
    several = counts[0] > 1
    broad = exact.minimum(1 / counts[0].double()[:, None]).sum(-1)[:, several].mean(-1)
    found = dict(zip(CROSS if is_cross else SELF, shares.double().unbind(-1), strict=True))
    torch.testing.assert_close(found["broad"], broad, atol=1e-5, rtol=0)
    torch.testing.assert_close(found["separator"], exact[..., special].sum(-1).mean(-1), atol=1e-5, rtol=0)
    at, key = torch.arange(queries)[:, None], torch.arange(keys)
    if is_cross:
        near = (key - at * (keys - 1) / (queries - 1)).abs() <= 1
        torch.testing.assert_close(found["aligned"], (exact * near).sum((-1, -2)) / queries, atol=1e-5, rtol=0)
    else:
        away = (exact * (at - key).abs()).sum((-1, -2)) / queries
        torch.testing.assert_close(distance.double(), away, atol=1e-3, rtol=0)
    rows, columns = (np.arange(49) * size / 48 for size in (queries, keys))
    for i, j in ((0, 0), (3, 5), (47, 40), (20, 20)):
        top, bottom = math.floor(rows[i]), math.ceil(rows[i + 1])
        left, right = math.floor(columns[j]), math.ceil(columns[j + 1])
        cell = weights[:, top:bottom, left:right]
        assert torch.equal(thumbs(weights, 48)[:, i, j], cell.amax((-1, -2)))


def test_queries_at_the_same_time_share_one_pass() -> None:
    subject, text = tiny("gpt2", GPT2), "a little girl " * 60
    alone = [ask(tiny("gpt2", GPT2), name, text) for name in ("attention_overview", "head_stats")]
    start = threading.Barrier(4, timeout=60)

    def asked(query: str, /, **params: Any) -> dict[str, Any]:
        start.wait()
        return ask(subject, query, text, **params)

    with count_passes(subject) as passes, ThreadPoolExecutor(4) as pool:
        overview, stats = pool.submit(asked, "attention_overview"), pool.submit(asked, "head_stats")
        values = [pool.submit(asked, "values", name="decoder.output", tokens=[0]) for _ in range(2)]
        assert [overview.result(), stats.result()] == alone
        assert values[0].result() == values[1].result()
    assert len(passes) == 2


@contextmanager
def count_passes(subject: Subject) -> Iterator[list[Any]]:
    """The passes of a model inside the ``with`` statement."""
    passes: list[Any] = []
    run = subject.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "run", lambda read: (passes.append(read), run(read))[1])
        yield passes


def test_patterns_are_shares_of_the_weights() -> None:
    subject = shipped("stories")
    answer = ask(subject, "head_stats", kind="decoder")
    values = dict(zip(answer["patterns"], np.moveaxis(decode(answer["values"]), -1, 0), strict=True))
    weights = subject.weights(Input(TEXT["stories"]), "decoder", 3)[4].double()
    length = len(weights)
    assert values["previous"][3, 4] == pytest.approx(float(weights.diagonal(-1).mean()), abs=1e-6)
    assert values["self"][3, 4] == pytest.approx(float(weights.diagonal().mean()), abs=1e-6)
    assert values["next"][3, 4] == 0, "a causal head sees no later token"
    assert values["first"][3, 4] == pytest.approx(float(weights[1:, 0].mean()), abs=1e-6)
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1)
    assert decode(answer["entropy"])[3, 4] == pytest.approx(float(entropy.mean()), abs=1e-5)
    broad = [float(weights[row].clamp(max=1 / (row + 1)).sum()) for row in range(1, length)]
    assert values["broad"][3, 4] == pytest.approx(sum(broad) / len(broad), abs=1e-5)
    away = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    assert decode(answer["distance"])[3, 4] == pytest.approx(float((weights * away).sum(-1).mean()), abs=1e-4)


def test_what_an_even_head_would_give() -> None:
    answer = ask(shipped("stories"), "head_stats", kind="decoder")
    length = len(shipped("stories").sequences(Input(TEXT["stories"])).decoder or ())
    even = dict(zip(answer["patterns"], decode(answer["even"])[2], strict=True))
    rows = range(1, length)
    assert even["previous"] == even["first"] == pytest.approx(sum(1 / (row + 1) for row in rows) / len(rows), abs=1e-6)
    assert (even["next"], even["broad"]) == (0, pytest.approx(1))


def test_the_stories_have_a_head_for_the_previous_token() -> None:
    answer = ask(shipped("stories"), "head_stats", kind="decoder")
    previous = decode(answer["values"])[..., answer["patterns"].index("previous")]
    assert previous.max() > 0.5


# --- queries and keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LINEAGES)
def test_weights_come_from_queries_keys_and_bias(name: str) -> None:
    subject, text = of(name), "a little girl went home"
    kind = "encoder" if subject.facts.decoder is None else "decoder"
    answer = ask(subject, "neuron", text, kind=kind, layer=1, head=3, row=2)
    q, k = torch.tensor(decode(answer["q"])), torch.tensor(decode(answer["k"]))
    close(answer["products"], k @ q)
    bias = 0.0 if answer["bias"] is None else torch.tensor(decode(answer["bias"]))
    scores = (k @ q * answer["scale"] + bias).masked_fill(torch.tensor(decode(answer["allowed"])) == 0, -torch.inf)
    close(answer["scores"], scores)
    close(answer["weights"], scores.softmax(-1))
    whole = decode(ask(subject, "attention", text, kind=kind, layer=1)["weights"])
    np.testing.assert_allclose(decode(answer["weights"]), whole[3, 2], atol=1e-6)
    assert (answer["bias"] is not None) == (name in ("t5", "deberta", "deberta_v2", "bloom"))
    assert answer["rotary"] == (name in ("llama", "qwen3", "mistral", "gpt-neox", "gpt-j"))


@pytest.mark.parametrize("name", LINEAGES)
@pytest.mark.parametrize("part", ["attention", "ffn"])
@pytest.mark.parametrize("layer", [0, 1])
def test_the_arithmetic_of_a_sublayer_adds_up(name: str, part: str, layer: int) -> None:
    subject, text = of(name), "a little girl went home"
    kind = "encoder" if subject.facts.decoder is None else "decoder"
    answer = ask(subject, "sublayer", text, kind=kind, layer=layer, part=part, token=2, head=3)
    get = {
        key: torch.tensor(decode(value)) for key, value in answer.items() if isinstance(value, dict) and "data" in value
    }
    stack = getattr(subject.model, kind)
    block = stack.blocks[layer * len(stack.blocks) // stack.facts.layers]
    # The stream around it.
    norm = answer["norm"] or answer["post_norm"]
    assert (answer["norm"] is None) == (answer["placement"] == "post")
    scaled = normed(norm, get["input"] if answer["placement"] != "post" else get["added"])
    close(norm["output"], scaled, 1e-4)
    torch.testing.assert_close(get["result"], scaled if answer["post_norm"] else get["added"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(get["read"], scaled if answer["norm"] else get["input"], atol=1e-4, rtol=1e-4)
    if not answer["others"]:
        torch.testing.assert_close(get["added"], get["input"] + get["output"], atol=1e-4, rtol=1e-4)
    # What it computes.
    if part == "ffn":
        torch.testing.assert_close(block.ffn.down(get["hidden"]), get["output"], atol=1e-4, rtol=1e-4)
        assert (answer["gate"] is not None) == answer["gated"]
    else:
        weights = torch.tensor(decode(answer["weights"]))
        torch.testing.assert_close(weights @ get["v"], get["head_output"], atol=1e-4, rtol=1e-4)
        width = len(get["head_output"])
        torch.testing.assert_close(get["concat"][3 * width : 4 * width], get["head_output"])
        torch.testing.assert_close(block.attention.o(get["concat"]), get["output"], atol=1e-4, rtol=1e-4)
        share = F.linear(get["head_output"], block.attention.o.weight[:, 3 * width : 4 * width])
        torch.testing.assert_close(get["head_share"], share, atol=1e-4, rtol=1e-4)
    # The last sublayer ends the layer.
    if part == "ffn":
        output = recorded(subject, text)[f"{kind}.blocks.{layer}.output"][2]
        last, convolution = get["result"], answer["convolution"]
        assert (convolution is not None) == (name == "deberta_v2" and layer == 0)
        if convolution is not None:
            close(convolution["added"], last + torch.tensor(decode(convolution["output"])), 1e-5)
            close(convolution["result"], normed(convolution["norm"], torch.tensor(decode(convolution["added"]))), 1e-4)
            last = torch.tensor(decode(convolution["result"]))
        torch.testing.assert_close(last, output, atol=1e-4, rtol=1e-4)


def normed(norm: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """A vector after a norm, from the numbers that an answer has of it."""
    scaled = (x - (norm["mean"] or 0.0)) / math.sqrt(norm["variance"] + norm["eps"])
    scaled = scaled * torch.tensor(decode(norm["gain"]))
    return scaled if norm["bias"] is None else scaled + torch.tensor(decode(norm["bias"]))


def test_cross_attention_reads_the_source() -> None:
    subject = shipped("en-zh")
    answer = ask(subject, "sublayer", kind="cross", layer=2, token=1, head=0)
    read = subject.sequences(Input(TEXT["en-zh"]))
    assert answer["keys"] == "encoder"
    assert decode(answer["v"]).shape[0] == len(read.encoder or ())


@pytest.mark.parametrize("name", ["mlm-en", "en-zh", pytest.param("albert", marks=pytest.mark.slow)])
def test_an_embedding_is_the_sum_of_its_parts(name: str) -> None:
    subject, text = of(name), "a little girl"
    stack = "encoder" if subject.facts.decoder is None else "decoder"
    answer = ask(subject, "embedding", text, stack=stack, token=1)
    parts = [decode(answer[key]) for key in ("token", "position", "segment", "language") if answer[key] is not None]
    np.testing.assert_allclose(decode(answer["sum"]), sum(parts), atol=1e-5)
    values = recorded(subject, text)
    close(answer["output"], values["target_embed" if name == "en-zh" else "embed"][1])
    assert answer["projected"] == (name == "albert")
    if answer["norm"] is None and not answer["projected"]:
        np.testing.assert_allclose(decode(answer["output"]), decode(answer["sum"]), atol=1e-5)


def test_a_matrix_is_the_weight() -> None:
    subject = tiny("llama", *TINY["llama"])
    assert subject.model.decoder is not None
    attention = subject.model.decoder.blocks[1].attention
    part = ask(subject, "matrix", layer=1, name="k", head=3)
    np.testing.assert_array_equal(decode(part["values"]), attention.k.weight[8:16].detach())  # 2 key heads for 4
    assert (part["rows"], part["columns"]) == (8, 32)
    out = ask(subject, "matrix", layer=1, name="o", head=3)
    np.testing.assert_array_equal(decode(out["values"]), attention.o.weight[:, 24:32].detach())
    whole = ask(subject, "matrix", layer=1, name="q", size=4)
    means = attention.q.weight.detach().reshape(4, 8, 4, 8).mean((1, 3))
    close(whole["values"], means)
    assert whole["largest"] == pytest.approx(float(attention.q.weight.detach().abs().max()))


def test_any_value_can_be_asked_for() -> None:
    subject, text = tiny("gpt2", GPT2), "a little girl"
    values = recorded(subject, text)
    for name in value_names(subject.facts):
        if name == "head":
            continue
        answer = ask(subject, "values", text, name=name)
        close(answer["values"], values[name])
        assert answer["shape"] == list(values[name].shape)
    some = ask(subject, "values", text, name="decoder.blocks.0.attention.q", tokens=[2, 0])
    close(some["values"], values["decoder.blocks.0.attention.q"][:, [2, 0]])
    finite = values["decoder.output"]
    answer = ask(subject, "values", text, name="decoder.output")
    assert answer["mean"] == pytest.approx(float(finite.mean()), abs=1e-6)
    assert answer["max"] == pytest.approx(float(finite.max()))


# --- masks ------------------------------------------------------------------------------------------------------------


def test_causal_masks_and_padding() -> None:
    answer = ask(shipped("stories"), "mask", "a little girl", padding=2)
    reason = decode(answer["reason"])
    length = len(reason) - 2
    expected = np.where(np.tril(np.ones((length, length))) == 1, "allowed", "causal")
    assert [[REASONS[code] for code in row] for row in reason[:length, :length]] == expected.tolist()
    assert set(reason[:, length:].flatten()) == {REASONS.index("padding")}
    assert set(reason[length:].flatten()) == {REASONS.index("padding")}
    np.testing.assert_array_equal(decode(answer["allowed"]), reason == 0)
    assert answer["causal"]


def test_windows() -> None:
    answer = ask(of("mistral"), "mask", "a little girl went home with her dog")
    reason = decode(answer["reason"])
    for row in range(len(reason)):
        for column in range(len(reason)):
            expected = "causal" if column > row else "window" if row - column >= 3 else "allowed"
            assert REASONS[reason[row, column]] == expected
    assert answer["window"] == 3


@pytest.mark.parametrize("semantics", ["reference", "set"])
def test_block_sparse_masks(semantics: str) -> None:
    config = {**BERT, "max_position_embeddings": 512, "attention_type": "block_sparse", "block_size": 4}
    config |= {"num_random_blocks": 1}
    subject = tiny("bigbird", config)
    if semantics == "set":
        pattern = {"block": 4, "random": 1, "semantics": "set"}
        subject = _with_facts(subject, change(subject.facts, "encoder.attention.windows", [pattern]))
    text = "a little girl went home with her dog and " * 5
    answer = ask(subject, "mask", text, kind="encoder", head=1)
    pattern = subject.facts.encoder.attention.windows[0]  # type: ignore[union-attr]
    length = answer["queries"]
    assert length > pattern.full_length  # type: ignore[union-attr]
    bias = block_sparse_mask(length, pattern, 4)[1]  # type: ignore[arg-type]
    np.testing.assert_array_equal(decode(answer["allowed"]) == 1, (bias > -torch.inf).numpy())
    assert (answer["block"], answer["random"], answer["per_head"]) == (4, 1, semantics == "set")
    if semantics == "reference":
        np.testing.assert_array_equal(decode(answer["counts"]), bias.exp().round().numpy())
    weights = ask(subject, "attention", text, kind="encoder")
    hidden = decode(weights["per_head_allowed"])[1] if semantics == "set" else decode(weights["allowed"])
    np.testing.assert_array_equal(decode(weights["weights"])[1] == 0, hidden == 0)


def _with_facts(subject: Subject, facts: Any) -> Subject:
    model = Transformer(facts).eval()
    randomise(model)
    return Subject(replace(subject.loaded, model=model, config=facts), subject.name)


def test_layers_are_counted_as_they_run() -> None:
    subject = tiny("albert", {**BERT, "num_hidden_layers": 5})
    answer = ask(subject, "model")
    assert (answer["stacks"]["encoder"]["layers"], answer["stacks"]["encoder"]["unique_layers"]) == (5, 1)
    first, last = (decode(ask(subject, "attention", "a b", kind="encoder", layer=n)["weights"]) for n in (0, 4))
    assert not np.allclose(first, last)
