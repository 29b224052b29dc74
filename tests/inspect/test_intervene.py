"""Interventions and what is computed from recorded values, on cases with known answers."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer.generation.api import generate
from glassformer.generation.settings import GenerationSettings
from glassformer.inspect.intervene import (
    ablate,
    attention_rollout,
    head_importance,
    logit_lens,
    patch,
    replace,
    scale_heads,
    steer,
)
from glassformer.inspect.record import record, value_names
from glassformer.models.transformer import Transformer
from glassformer.training.block_calls import checkpoint_blocks
from tests.configs import CONFIGS, PAIRS, at_token, built, tokens
from tests.helpers import largest_difference, right_padded, some_at_once
from tests.inspect.test_record import arguments, hooks, plain, recorded

SOME = {"llama", "bert", "t5", "deberta"}
BOUND = 1e-12
EVERY_CONFIG = some_at_once(CONFIGS, SOME.__contains__)


def last_stack(config: str) -> str:
    return "encoder" if CONFIGS[config].decoder is None else "decoder"


def changed(made: Transformer, context: AbstractContextManager[None], **inputs: Any) -> Tensor:
    with torch.no_grad(), context:
        output = at_token(made(**inputs))
    assert hooks(made) == []
    return output


# ---- heads


@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_an_ablated_head_equals_zeroed_columns_of_the_output_projection(config: str) -> None:
    made, inputs = built(config), arguments(CONFIGS[config])
    before = plain(made, **inputs)
    sublayers = ["attention", "cross"] if config in PAIRS else ["attention"]
    for sublayer in sublayers:
        zeroed = copy.deepcopy(made)
        shared = zeroed.config.encoder is not None and zeroed.config.encoder.unique_layers is not None
        name = last_stack(config)
        width = getattr(CONFIGS[config], name).attention.head_dim
        part = getattr(getattr(zeroed, name).blocks[0], sublayer).o
        with torch.no_grad():
            for head in (0, 2):
                part.weight[:, head * width : (head + 1) * width] = 0
        layers = [0, 1] if shared else [0]  # layers that share weights are ablated together, to compare
        heads = {f"{name}.blocks.{number}.{sublayer}": [0, 2] for number in layers}
        output = changed(made, ablate(made, heads), **inputs)
        assert largest_difference(output, plain(zeroed, **inputs)) < BOUND
        assert largest_difference(output, before) > 1e-4
    assert torch.equal(plain(made, **inputs), before)


def test_ablating_all_heads_leaves_the_bias_of_the_projection() -> None:
    made, inputs = built("gpt2"), arguments(CONFIGS["gpt2"])
    with ablate(made, {"*.attention": None}):
        trace, _ = recorded(made, "*.attention.output", **inputs)
    for number, output in enumerate(trace.values()):
        assert largest_difference(output, made.decoder.blocks[number].attention.o.bias) < BOUND


@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_scaling_heads(config: str) -> None:
    made, inputs = built(config), arguments(CONFIGS[config], seed=0)
    before = plain(built(config), **inputs)
    count = getattr(CONFIGS[config], last_stack(config)).attention.heads
    ones = {"*": torch.ones(count)}
    assert torch.equal(changed(made, scale_heads(made, {"*": dict.fromkeys(range(count), 1.0)}), **inputs), before)
    assert torch.equal(changed(made, scale_heads(made, ones), **inputs), before)
    zero = changed(made, scale_heads(made, {f"{last_stack(config)}.blocks.1.*": {1: 0.0}}), **inputs)
    assert torch.equal(zero, changed(made, ablate(made, {f"{last_stack(config)}.blocks.1.*": [1]}), **inputs))
    with torch.no_grad(), record(made, "*.heads") as trace:
        made(**inputs)
    with torch.no_grad(), scale_heads(made, {"*.blocks.0.*": {1: 3.0}}), record(made, "*.blocks.0.*.heads") as scaled:
        made(**inputs)
    first = next(iter(scaled))
    assert largest_difference(scaled[first][:, 1], 3 * trace[first][:, 1]) < BOUND
    assert torch.equal(scaled[first][:, 0], trace[first][:, 0])


# ---- replace, steer


def test_replacing_by_a_tensor_or_a_function() -> None:
    made, ids = built("llama"), tokens(2, 6)
    full, output = recorded(made, ids=ids)
    one = {"decoder.blocks.1.input": torch.zeros(16)}
    assert largest_difference(changed(made, replace(made, one), ids=ids), output) > 1e-3
    doubled = changed(made, replace(made, {"head": lambda logits: 2 * logits}), ids=ids)
    assert largest_difference(doubled, 2 * output) < BOUND
    # Weights can be replaced, too: every head looks at the first token alone.
    first = torch.zeros(6, 6)
    first[:, 0] = 1
    with replace(made, {"decoder.blocks.0.attention.weights": first}):
        trace, _ = recorded(made, ["*.blocks.0.attention.v", "*.blocks.0.attention.heads"], ids=ids)
    heads, values = trace["decoder.blocks.0.attention.heads"], trace["decoder.blocks.0.attention.v"]
    assert largest_difference(heads, values[:, :, :1].repeat_interleave(2, 1).expand_as(heads)) < BOUND
    assert largest_difference(trace["decoder.blocks.0.attention.v"], full["decoder.blocks.0.attention.v"]) == 0


@pytest.mark.parametrize("config", some_at_once(sorted(SOME), {"llama"}.__contains__))
def test_every_value_can_be_replaced(config: str) -> None:
    """A value replaced by itself changes nothing beyond rounding; replaced by another, it changes the output."""
    made, inputs = built(config), arguments(CONFIGS[config])
    trace, output = recorded(made, **inputs)
    for name in trace:
        same = changed(made, replace(made, {name: lambda value: value.clone()}), **inputs)
        assert largest_difference(same, at_token(output)) < BOUND, name
        noise = torch.randn(trace[name].shape, dtype=torch.float64)
        with torch.no_grad(), replace(made, {name: lambda value, noise=noise: value + noise}), record(made) as other:
            made(**inputs)
        assert largest_difference(other["head"], trace["head"]) > 1e-9, name
        kept = trace[name].nan_to_num(neginf=0) + noise.where(trace[name] > -torch.inf, 0)
        assert largest_difference(other[name].nan_to_num(neginf=0), kept) < BOUND, name


@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_steering(config: str) -> None:
    made, inputs = built(config), arguments(CONFIGS[config])
    name = f"{last_stack(config)}.blocks.0.output"
    before, vector = plain(made, **inputs), torch.randn(16, dtype=torch.float64)
    assert torch.equal(changed(made, steer(made, {name: torch.zeros(16)}), **inputs), before)
    assert torch.equal(changed(made, steer(made, {name: vector}, scale=0.0), **inputs), before)
    with steer(made, {name: vector}, scale=2.0, positions=[1, -1]):
        trace, output = recorded(made, name, **inputs)
    original, _ = recorded(made, name, **inputs)
    expected = original[name].clone()
    expected[:, [1, -1]] += 2 * vector
    assert largest_difference(trace[name], expected) < BOUND
    assert largest_difference(at_token(output), before) > 1e-4


# ---- several globs for one value


def test_globs_that_overlap_act_one_after_the_other() -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    name = "decoder.blocks.0.attention.heads"
    full, _ = recorded(made, ids=ids)
    factors: dict[str, Any] = {"*": {0: 2.0}, "decoder.blocks.0.*": torch.tensor([3.0, 1.0, 1.0, 5.0])}
    with scale_heads(made, factors):
        trace, _ = recorded(made, name, ids=ids)
    expected = full[name] * torch.tensor([6.0, 1.0, 1.0, 5.0])[:, None, None]
    assert largest_difference(trace[name], expected) < BOUND
    stream = "decoder.blocks.1.output"
    with steer(made, {stream: torch.ones(16), "*.blocks.1.output": 2 * torch.ones(16)}):
        trace, _ = recorded(made, stream, ids=ids)
    assert largest_difference(trace[stream], full[stream] + 3) < BOUND
    changes: dict[str, Any] = {"embed": torch.ones(16), "emb*d": lambda x: 2 * x, "em*bed": lambda x: x + 1}
    with replace(made, changes):
        trace, _ = recorded(made, "embed", ids=ids)
    assert bool((trace["embed"] == 3).all())


@pytest.mark.parametrize("first", [torch.ones(16), lambda value: 2 * value])
def test_a_tensor_that_would_hide_another_change(first: Any) -> None:
    made = built("gpt2")
    message = "'decoder.blocks.1.output' matches '.*.output' and 'decoder.blocks.1.output', whose tensor would hide"
    changes = {"decoder.blocks.*.output": first, "decoder.blocks.1.output": torch.zeros(16)}
    with pytest.raises(ValueError, match=message), replace(made, changes):
        pass


def test_a_star_inside_a_name_is_one_part_of_it() -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    full, _ = recorded(made, ids=ids)
    with steer(made, {"decoder.blocks.*.output": torch.ones(16)}):
        trace, _ = recorded(made, ids=ids)
    name = "decoder.blocks.0"
    assert torch.equal(trace[f"{name}.attention.output"], full[f"{name}.attention.output"])
    assert torch.equal(trace[f"{name}.ffn.output"], full[f"{name}.ffn.output"])
    assert largest_difference(trace[f"{name}.output"], full[f"{name}.output"] + 1) < BOUND


# ---- positions


@pytest.mark.parametrize("chunk", [None, 2])
def test_positions_count_the_tokens_of_all_calls_of_a_generation(chunk: int | None) -> None:
    """Changes at positions of the prompt and of the new text act in the calls that read them."""
    made, prompt, vector = built("llama"), tokens(1, 5), 5 * torch.ones(16, dtype=torch.float64)
    positions, name = [1, 3, 6], "decoder.blocks.0.output"
    with steer(made, {name: vector}, positions=positions), record(made, [name, "decoder.output"]) as trace:
        [[text]] = generate(made, prompt, GenerationSettings(max_new_tokens=4), chunk=chunk)
    assert [len(text.ids), len(trace.steps)] == [4, 4 if chunk is None else 6]
    ids = torch.tensor([[*prompt[0].tolist(), *text.ids[:-1]]])
    with steer(made, {name: vector}, positions=positions):
        full, logits = recorded(made, [name, "decoder.output"], ids=ids)
    for value in full:
        assert largest_difference(torch.cat([step[value] for step in trace.steps], 1), full[value]) < 1e-11
    assert logits[0, 4:].argmax(-1).tolist() == text.ids


def test_positions_of_the_head_and_of_a_memory() -> None:
    made, prompt = built("llama"), tokens(1, 5)
    seventh = torch.zeros(31).index_fill(0, torch.tensor([7]), 1e3)
    with replace(made, {"head": seventh}, positions=[6]):
        [[text]] = generate(made, prompt, GenerationSettings(max_new_tokens=4))
    [[plain_text]] = generate(made, prompt, GenerationSettings(max_new_tokens=4))
    assert text.ids[:2] == plain_text.ids[:2]
    assert text.ids[2] == 7
    with replace(made, {"head": seventh}, positions=[-1]):
        [[text]] = generate(made, prompt, GenerationSettings(max_new_tokens=4))
    assert text.ids == [7] * 4
    # Keys of cross-attention are tokens of the source, in every call.
    made, name = built("t5"), "decoder.blocks.1.cross.k"
    with replace(made, {name: torch.zeros(1)}, positions=[2]), record(made, name) as trace:
        generate(made, tokens(1, 6), GenerationSettings(max_new_tokens=4), start=[7])
    assert len(trace.steps) == 4
    for step in trace.steps:
        assert (step[name] == 0).all(-1)[0, 0].tolist() == [False, False, True, False, False, False]
    made = built("deberta_v2")
    message = r"'head' has the shape \(1, \d\): one for each row, so it has no positions"
    with pytest.raises(ValueError, match=message), replace(made, {"head": torch.zeros(1)}, positions=[0]):
        made(tokens(1, 5))


# ---- patch


@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_patching_everything_equals_the_other_run(config: str) -> None:
    made, inputs, others = built(config), arguments(CONFIGS[config], seed=1), arguments(CONFIGS[config], seed=2)
    trace, expected = recorded(made, **others)
    assert largest_difference(plain(made, **inputs), at_token(expected)) > 1e-3
    assert torch.equal(changed(made, patch(made, trace), **inputs), at_token(expected))
    # The stream before one layer, and (in an encoder-decoder) what the encoder says, decide everything after it.
    streams = ["embed", "target_embed"] if config in PAIRS else ["embed"]
    assert largest_difference(changed(made, patch(made, trace, streams), **inputs), at_token(expected)) < BOUND
    last = [f"{last_stack(config)}.output"]
    assert largest_difference(changed(made, patch(made, trace, last), **inputs), at_token(expected)) < BOUND


def test_patching_heads_and_positions() -> None:
    made, ids, other = built("llama"), tokens(1, 6), tokens(1, 6, seed=1)
    trace, _ = recorded(made, ids=other)
    own, _ = recorded(made, ids=ids)
    name = "decoder.blocks.0.attention.heads"
    with patch(made, trace, name, heads=[2], positions=[4, 5]):
        patched, _ = recorded(made, name, ids=ids)
    expected = own[name].clone()
    expected[:, 2, 4:] = trace[name][:, 2, 4:]
    assert largest_difference(patched[name], expected) < BOUND
    # A trace of some heads patches those; of keys, those that serve them.
    with torch.no_grad(), record(made, "*.blocks.0.attention.*", heads=[3]) as some:
        made(other)
    with patch(made, some, ["*.attention.k", "*.attention.q"]):
        patched, _ = recorded(made, ["*.blocks.0.attention.k", "*.blocks.0.attention.q"], ids=ids)
    for kind, row, others in (("k", 1, [0]), ("q", 3, [0, 1, 2])):
        name = f"decoder.blocks.0.attention.{kind}"
        assert largest_difference(patched[name][:, row], trace[name][:, row]) < BOUND
        assert largest_difference(patched[name][:, others], own[name][:, others]) < BOUND
    with pytest.raises(ValueError, match=r"the trace has no head 0; it has \[3\]"), patch(made, some, heads=[0]):
        made(ids)


@pytest.mark.parametrize("config", ["gpt_neo", "t5", "bloom"])
def test_patching_every_step_of_generate_repeats_the_other_text(config: str) -> None:
    made, settings = built(config), GenerationSettings(max_new_tokens=5)
    start = [7] if config in PAIRS else None
    with record(made) as trace:
        [[other]] = generate(made, tokens(1, 6, seed=4), settings, start=start)
    with patch(made, trace):
        [[text]] = generate(made, tokens(1, 6, seed=5), settings, start=start)
    assert text.ids == other.ids
    with patch(made, trace), pytest.raises(ValueError, match="the trace has 5 steps, and this is call 6 of the model"):
        generate(made, tokens(1, 6, seed=5), GenerationSettings(max_new_tokens=6), start=start)


# ---- combinations


def test_a_record_sees_changed_values_in_either_order() -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    change: dict[str, Any] = {
        "embed": torch.zeros(16),
        "decoder.blocks.1.output": torch.ones(16),
        "head": torch.ones(31),
    }
    with torch.no_grad(), record(made) as outer, replace(made, change), record(made) as inner:
        made(ids)
    for trace in (outer, inner):
        assert bool((trace["embed"] == 0).all())
        assert bool((trace["decoder.blocks.1.output"] == 1).all())
        assert bool((trace["head"] == 1).all())


def test_changes_act_in_the_order_in_which_they_are_entered() -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    for name in ("embed", "decoder.blocks.0.output", "head"):
        twice = replace(made, {name: lambda value: 2 * value})
        with torch.no_grad(), replace(made, {name: lambda value: value * 0 + 1}), twice, record(made, name) as trace:
            made(ids)
        assert bool((trace[name] == 2).all())


def test_other_threads_are_not_changed() -> None:
    made, ids = built("llama"), tokens(1, 5)
    expected = plain(made, ids=ids)
    with ThreadPoolExecutor(2) as pool, ablate(made, {"*": None}):
        others = list(pool.map(lambda _: plain(made, ids=ids), range(6)))
        assert largest_difference(plain(made, ids=ids), expected) > 1e-3
    assert all(torch.equal(other, expected) for other in others)


def test_changes_of_a_course_model_and_of_a_loaded_one() -> None:
    made = glassformer.TransformerLM(31, 24, 16, 2, 4)
    expected = made(tokens(1, 5))
    with ablate(made, {"*": None}):
        assert largest_difference(made(tokens(1, 5)), expected) > 1e-3
    assert torch.equal(made(tokens(1, 5)), expected)
    loaded = glassformer.load("stories")
    prompt = "Once upon a time"
    before = loaded.generate(prompt, max_new_tokens=4).text
    with ablate(loaded, {"*": None}):
        assert loaded.generate(prompt, max_new_tokens=4).text != before
    assert loaded.generate(prompt, max_new_tokens=4).text == before


def test_gradients_with_recomputed_blocks() -> None:
    """A block that runs again in the backward pass, after the ``with`` block, runs with its changes."""
    made, ids = built("gpt2").train(), tokens(1, 5)
    gradients = []
    for recomputes in (False, True):
        if recomputes:
            checkpoint_blocks(made)
        with ablate(made, {"*.blocks.0.*": [1]}):
            output = made(ids)
        gradients += torch.autograd.grad(output.square().sum(), [made.decoder.blocks[0].attention.q.weight])
    assert largest_difference(*gradients) < BOUND


# ---- errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: ablate(m, {"decoder.blocks.7.attention": [0]}), "no value is called 'decoder.blocks.7.attention'"),
        (lambda m: ablate(m, {"*": [4]}), "decoder.blocks.0.attention has heads 0 to 3; got 4"),
        (lambda m: scale_heads(m, {"*": {-1: 0.5}}), "heads 0 to 3; got -1"),
        (lambda m: scale_heads(m, {"*": torch.ones(3)}), r"has 4 heads; got factors of shape \(3,\)"),
        (lambda m: replace(m, {"logits": torch.zeros(1)}), "no value is called 'logits'. There are: embed.token"),
        (lambda m: replace(m, {"embed": torch.zeros(7)}), r"'embed' cannot be replaced .* \(7,\) for \(1, 5, 16\)"),
        (lambda m: replace(m, {"embed": lambda x: x[:, :2]}), r"'embed' has the shape \(1, 5, 16\), .* \(1, 2, 16\)"),
        (lambda m: replace(m, {"embed": lambda _: None}), "its replacement is of NoneType"),
        (lambda m: steer(m, {"embed": torch.zeros(16)}, positions=[5]), "there is no position 5 in a call of 5 tokens"),
    ],
)
def test_changes_that_cannot_be_made(change: Callable[[Transformer], Any], message: str) -> None:
    made = built("llama")
    with pytest.raises(ValueError, match=message), change(made):
        made(tokens(1, 5))
    assert hooks(made) == []


# ---- logit lens


@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_the_last_layer_of_the_logit_lens_gives_the_output(config: str) -> None:
    made, inputs, stack = built(config), arguments(CONFIGS[config]), last_stack(config)
    trace, output = recorded(made, [f"{stack}.blocks.0.input", f"{stack}.blocks.*.output"], **inputs)
    lens = logit_lens(made, trace)
    layers = sum(name.endswith("ffn.output") for name in value_names(CONFIGS[config]) if name.startswith(stack))
    numbers = range(layers)
    assert list(lens) == [f"{stack}.blocks.0.input", *(f"{stack}.blocks.{number}.output" for number in numbers)]
    assert largest_difference(lens[f"{stack}.blocks.{layers - 1}.output"], at_token(output)) < BOUND
    # Each equals the head's output if the stack ended there.
    for name, logits in lens.items():
        end = f"{stack}.blocks.{layers - 1}.output"
        ended = changed(made, replace(made, {end: trace[name]}), **inputs)
        assert largest_difference(logits, ended) < BOUND


def test_the_logit_lens_of_some_positions_and_of_a_pooling_head() -> None:
    made = built("llama")
    trace, _ = recorded(made, "decoder.blocks.*.output", ids=tokens(2, 6))
    full, some = logit_lens(made, trace), logit_lens(made, trace, positions=[0, -1])
    assert all(
        torch.equal(some[name], full[name][:, [0, -1]])
        or largest_difference(some[name], full[name][:, [0, -1]]) < BOUND
        for name in full
    )
    made, mask = built("deberta_v2"), right_padded(6, 4, width=6)
    trace, output = recorded(made, "encoder.blocks.*.output", ids=tokens(2, 6), mask=mask)
    assert largest_difference(logit_lens(made, trace, mask=mask)["encoder.blocks.1.output"], output) < BOUND
    trace, _ = recorded(made, "*.attention.output", ids=tokens(2, 6))
    with pytest.raises(ValueError, match=r"no residual stream to read; record 'encoder.blocks.\*.output'"):
        logit_lens(made, trace)


@pytest.mark.parametrize("course", [False, True])
def test_the_logit_lens_is_neither_recorded_nor_changed(course: bool) -> None:
    made: Any = glassformer.TransformerLM(31, 24, 16, 2, 4) if course else built("gpt2")
    ids = tokens(1, 5)
    with torch.no_grad(), record(made, ["decoder.blocks.*.output", "head"]) as trace:
        made(ids)
        expected = logit_lens(made, trace)
        with replace(made, {"head": torch.zeros(31)}):
            inside = logit_lens(made, trace)
        made(ids)
    assert len(trace.steps) == 2
    assert all(torch.equal(inside[name], expected[name]) for name in expected)
    assert largest_difference(expected["decoder.blocks.1.output"], trace["head"]) < 1e-5


# ---- rollout


@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_rollout_rows_sum_to_one(config: str) -> None:
    mask = right_padded(8, 5, width=8)
    trace, _ = recorded(built(config), "*.attention.weights", **arguments(CONFIGS[config]), mask=mask)
    for stack in ("encoder", "decoder"):
        if getattr(CONFIGS[config], stack) is None:
            continue
        rollout = attention_rollout(trace, stack)
        assert largest_difference(rollout.sum(-1), torch.ones(())) < BOUND
        if stack == "decoder":  # causal
            assert bool((rollout.triu(1) == 0).all())


def test_rollout_by_hand() -> None:
    trace, _ = recorded(built("bert"), "*.weights", ids=tokens(1, 4))
    first, second = (trace[f"encoder.blocks.{number}.attention.weights"].mean(1) for number in range(2))
    eye = torch.eye(4, dtype=torch.float64)
    expected = (0.5 * eye + 0.5 * second) @ (0.5 * eye + 0.5 * first)
    assert largest_difference(attention_rollout(trace), expected) < BOUND
    assert largest_difference(attention_rollout(trace, residual=0.0), second @ first) < BOUND
    # A mask decoder runs the last layer twice, each time with the keys of the layer before it.
    trace, _ = recorded(built("deberta"), "*.weights", ids=tokens(1, 4))
    first, second, third = (trace[f"encoder.blocks.{number}.attention.weights"].mean(1) for number in range(3))
    keys = 0.5 * eye + 0.5 * first
    expected = 0.5 * (0.5 * keys + 0.5 * second @ keys) + 0.5 * third @ keys
    assert largest_difference(attention_rollout(trace), expected) < BOUND


def test_rollout_of_a_query_that_attends_to_nothing() -> None:
    sparse = glassformer.config.BlockSparse(block=2, random=1, semantics="reference")
    facts = glassformer.config.ModelConfig(
        vocab=31,
        width=16,
        encoder=glassformer.config.Stack(
            layers=2,
            attention=glassformer.config.Attention(heads=4, head_dim=4, windows=(sparse,)),
            ffn=glassformer.config.FeedForward(hidden=8),
        ),
    )
    mask = right_padded(24, 20, width=24)
    trace, _ = recorded(built(facts), "*.weights", ids=tokens(2, 24), mask=mask)
    assert bool((trace["encoder.blocks.0.attention.weights"][1, :, 20:] == 0).all())
    rollout = attention_rollout(trace)
    assert largest_difference(rollout.sum(-1), torch.ones(())) < BOUND
    assert torch.equal(rollout[1, 20:, 20:], torch.eye(4).double())


def test_rollout_errors() -> None:
    made = built("t5")
    trace, _ = recorded(made, "*.weights", ids=tokens(1, 4), target=tokens(1, 3))
    with pytest.raises(ValueError, match="an encoder and a decoder; choose one by stack="):
        attention_rollout(trace)
    with pytest.raises(ValueError, match="stack"):
        attention_rollout(trace, "middle")
    with record(built("gpt2"), "*.blocks.0.*.weights") as some:
        pass
    with pytest.raises(KeyError, match="has not been computed"):
        attention_rollout(some)
    gpt2 = built("gpt2")
    with record(gpt2, "*.weights") as steps:
        generate(gpt2, [[1, 2, 3]], GenerationSettings(max_new_tokens=2))
    with pytest.raises(ValueError, match="needs a whole sequence in one call"):
        attention_rollout(steps)


# ---- head importance


def loss_of(made: Transformer, **inputs: Any) -> Callable[[], Tensor]:
    def run() -> Tensor:
        logits = at_token(made(**inputs))
        return logits.square().mean() + logits.tanh().sum() / 10

    return run


@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_importance_by_ablation(config: str) -> None:
    made, inputs = built(config), arguments(CONFIGS[config])
    run = loss_of(made, **inputs)
    found = head_importance(made, run)
    assert list(found) == [n.removesuffix(".heads") for n in value_names(CONFIGS[config]) if n.endswith(".heads")]
    name = list(found)[-1]
    with torch.no_grad():
        before = run()
        for head in range(len(found[name])):
            with ablate(made, {name: [head]}):
                assert largest_difference(found[name][head], run() - before) < BOUND
    assert hooks(made) == []


@pytest.mark.parametrize("config", EVERY_CONFIG)
def test_importance_by_gradient_equals_a_finite_difference(config: str) -> None:
    made, inputs = built(config), arguments(CONFIGS[config])
    run, step = loss_of(made, **inputs), 1e-5
    found = head_importance(made, run, method="gradient")
    assert all(parameter.grad is None for parameter in made.parameters())
    for name, importance in list(found.items())[::3]:
        for head in range(len(importance)):
            losses = []
            for factor in (1 - step, 1 + step):
                with torch.no_grad(), scale_heads(made, {name: {head: factor}}):
                    losses.append(run())
            assert largest_difference(importance[head], (losses[0] - losses[1]) / (2 * step)) < 1e-7
    assert any(bool((importance.abs() > 1e-4).any()) for importance in found.values())


def test_importance_of_some_sublayers_and_its_errors() -> None:
    made = built("t5")
    run = loss_of(made, ids=tokens(1, 4), target=tokens(1, 3))
    for method in ("ablation", "gradient"):
        found = head_importance(made, run, method=method, sublayers="decoder.blocks.*.cross")
        assert list(found) == ["decoder.blocks.0.cross", "decoder.blocks.1.cross"]
        assert all(importance.shape == (4,) for importance in found.values())
    unused = head_importance(made, lambda: made.encode(tokens(1, 4)).sum(), method="gradient")
    assert bool((unused["decoder.blocks.0.cross"] == 0).all())
    with pytest.raises(ValueError, match="method"):
        head_importance(made, run, method="guess")  # type: ignore[arg-type]
    message = r"method='gradient' needs gradients, which torch.inference_mode excludes"
    with torch.inference_mode(), pytest.raises(ValueError, match=message):
        head_importance(made, run, method="gradient")
    with pytest.raises(ValueError, match="and the loss that run returns has none"):
        head_importance(made, lambda: run().detach(), method="gradient")
    with pytest.raises(ValueError, match=r"one number; got shape \(1, 4, 16\)"):
        head_importance(made, lambda: made.encode(tokens(1, 4)))
    with pytest.raises(ValueError, match=r"no value is called 'decoder\.blocks\.\*\.ffn'"):
        head_importance(made, run, sublayers="decoder.blocks.*.ffn")
