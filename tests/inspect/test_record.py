"""``record`` keeps the values that a pass computes, under the same names for every model, and changes nothing else."""

import copy
import math
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import glassformer
from glassformer.config import Convolution, Disentangled, LMHead, MaskDecoder, ModelConfig, Stack
from glassformer.config.parts import PLACEMENTS
from glassformer.config.positions import ScoreBias
from glassformer.generation.api import generate, generate_stream
from glassformer.generation.settings import GenerationSettings
from glassformer.inspect.account.report import as_dict
from glassformer.inspect.intervene import scale_heads
from glassformer.inspect.listeners import match_names
from glassformer.inspect.record import LIMIT_BYTES, NotRecordedError, Trace, TraceLimitError, record, value_names
from glassformer.models.transformer import Transformer, transformer_of
from glassformer.nn.attention import PATHS
from glassformer.nn.block import Block
from glassformer.nn.cache import KVCache
from glassformer.nn.observer import thread_observers
from glassformer.nn.sparse import block_sparse_mask
from glassformer.objectives.base import model_token_loss
from glassformer.training.block_calls import checkpoint_blocks, compile_model
from tests.configs import CONFIGS, PAIRS, at_token, attention, built, model, random_config, stack, tokens
from tests.helpers import largest_difference, right_padded, some_at_once

EXACT = 1e-12
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2}  # of the output, by its largest number
LENGTH, TARGET = 8, 5
WITH_TRACES = {"llama", "t5", "deberta"}  # configs whose long tests run at once
ANY = [seed for seed in range(120) if random_config(seed).vocab > 2]


def arguments(facts: ModelConfig, rows: int = 2, length: int = LENGTH, seed: int = 0) -> dict[str, Any]:
    """Inputs of a model, without padding."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Any] = {"ids": torch.randint(facts.vocab, (rows, length), generator=generator)}
    if facts.family == "encoder-decoder":
        found["target"] = torch.randint(facts.vocab, (rows, TARGET), generator=generator)
    if facts.embed.languages:
        found["languages"] = torch.zeros(rows, length, dtype=torch.long)
    return found


def recorded(made: Transformer, names: str | list[str] = "*", **inputs: Any) -> tuple[Trace, Any]:
    with torch.no_grad(), record(made, names) as trace:
        output = made(**inputs)
    return trace, output


def plain(made: Transformer, **inputs: Any) -> Tensor:
    """The output without recording."""
    with torch.no_grad():
        return at_token(made(**inputs))


def hooks(module: nn.Module) -> list[str]:
    parts = module.named_modules()
    return [name for name, part in parts if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part)]


def stacks(facts: ModelConfig) -> Iterator[tuple[str, Stack]]:
    for name in ("encoder", "decoder"):
        if getattr(facts, name) is not None:
            yield name, getattr(facts, name)


# ---- names and values


@pytest.mark.parametrize(
    "config", some_at_once([*CONFIGS, *ANY], lambda config: config in CONFIGS or config in ANY[:12])
)
def test_every_name_is_recorded_and_the_output_stays(config: str | int) -> None:
    facts = CONFIGS[config] if isinstance(config, str) else random_config(config)
    made, inputs = built(facts), arguments(facts)
    expected = plain(made, **inputs)
    trace, output = recorded(made, **inputs)
    missing = set(value_names(facts)) - set(trace.names)
    assert missing <= {"target_embed.language"}  # none is passed for the target
    assert list(trace.names) == [name for name in value_names(facts) if name not in missing]
    assert largest_difference(at_token(output), expected) <= BOUNDS[torch.float64] * max(1, float(expected.abs().max()))
    assert hooks(made) == []
    assert torch.equal(plain(made, **inputs), expected)
    for name, weights in trace.find("*.weights").items():
        assert largest_difference(weights.sum(-1), torch.ones(())) < EXACT, name


def test_the_configs_have_every_kind_of_bias_and_placement() -> None:
    """Kinds that a config without them would leave out of the tests here."""
    found = [stack for facts in [*CONFIGS.values(), *map(random_config, ANY)] for _, stack in stacks(facts)]
    assert {type(stack.attention.score_bias) for stack in found} == {type(None), *get_args(ScoreBias)}
    assert {stack.placement for stack in found} == set(PLACEMENTS)


@pytest.mark.parametrize("config", CONFIGS)
def test_values_fit_each_other(config: str) -> None:
    """The definition of each value from those before it."""
    facts = CONFIGS[config]
    trace, output = recorded(built(config), **arguments(facts))
    assert torch.equal(trace["head"], at_token(output))
    for name, part in stacks(facts):
        made = getattr(built(config), name)
        layers = 1 + max(int(n.split(".")[2]) for n in trace if n.startswith(f"{name}.blocks."))
        for number in range(layers):
            block = made.blocks[min(number, part.layers - 1) * len(made.blocks) // part.layers]
            for sublayer in ("attention", "cross"):
                path = f"{name}.blocks.{number}.{sublayer}"
                if f"{path}.q" in trace:
                    check_attention({n.removeprefix(f"{path}."): x for n, x in trace.find(f"{path}.*").items()}, part)
                    output = getattr(block, sublayer).o(trace[f"{path}.heads"].transpose(1, 2).flatten(2))
                    assert largest_difference(output, trace[f"{path}.output"]) < EXACT
            ffn = f"{name}.blocks.{number}.ffn"
            assert largest_difference(block.ffn.down(trace[f"{ffn}.hidden"]), trace[f"{ffn}.output"]) < EXACT
            if number and number < part.layers - (config == "deberta"):
                before = trace[f"{name}.blocks.{number - 1}.output"]
                assert torch.equal(before, trace[f"{name}.blocks.{number}.input"])
            check_stream(trace, f"{name}.blocks.{number}", part)


def check_attention(values: dict[str, Tensor], facts: Stack) -> None:
    q, k, v = values.get("q_rotary", values["q"]), values.get("k_rotary", values["k"]), values["v"]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scale = facts.attention.scale or 1 / math.sqrt(q.shape[-1])
    scores = q @ k.transpose(-1, -2) * scale + values.get("bias", 0.0)
    hidden = values["scores"] == -torch.inf
    assert largest_difference(scores[~hidden], values["scores"][~hidden]) < EXACT
    assert largest_difference(torch.softmax(values["scores"], -1), values["weights"]) < EXACT
    assert torch.equal(values["weights"][hidden], torch.zeros(int(hidden.sum()), dtype=torch.float64))
    assert largest_difference(values["weights"] @ v, values["heads"]) < EXACT


def check_stream(trace: Trace, block: str, facts: Stack) -> None:
    """In pre-norm and parallel blocks, the sublayers are added to the stream."""
    if facts.placement == "post":
        return
    added = [trace[f"{block}.{name}.output"] for name in ("attention", "ffn", *(["cross"] if facts.cross else []))]
    after = f"{block}.convolution.input" if f"{block}.convolution.input" in trace else f"{block}.output"
    assert largest_difference(sum(added, start=trace[f"{block}.input"]), trace[after]) < EXACT


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("padded", [False, True])
def test_a_convolution_is_added_to_the_first_layer(placement: Any, padded: bool) -> None:
    kernel = Convolution(kernel=3, groups=2, activation="gelu")
    facts = model(encoder=stack(placement=placement, convolution=kernel), head=None)
    made, ids = built(facts), tokens(2, LENGTH)
    mask = right_padded(LENGTH, LENGTH - 3, width=LENGTH) if padded else None
    trace, _ = recorded(made, ids=ids, mask=mask)
    assert sum("convolution" in name for name in value_names(facts)) == 2  # of the first layer alone
    assert made.encoder is not None
    module = made.encoder.convolution
    assert module is not None
    x = trace["encoder.blocks.0.input"]
    x = x if mask is None else x.where(mask[..., None], 0.0)
    convolved = nn.functional.conv1d(x.mT, module.weight, module.bias, padding=1, groups=2).mT
    assert largest_difference(nn.functional.gelu(convolved), trace["encoder.blocks.0.convolution.output"]) < EXACT
    total = trace["encoder.blocks.0.convolution.input"] + trace["encoder.blocks.0.convolution.output"]
    assert largest_difference(module.norm(total), trace["encoder.blocks.0.output"]) < EXACT
    last = made.encoder.blocks[0]
    assert isinstance(last, Block)
    if placement == "post":
        before = last.ffn_norm(trace["encoder.blocks.0.ffn.input"] + trace["encoder.blocks.0.ffn.output"])
        assert largest_difference(before, trace["encoder.blocks.0.convolution.input"]) < EXACT


def test_the_only_layer_of_a_mask_decoder_has_no_convolution() -> None:
    head = LMHead(mask_decoder=MaskDecoder(length=LENGTH))
    facts = model(encoder=stack(layers=1, convolution=Convolution(kernel=3)), head=head)
    trace, _ = recorded(built(facts), ids=tokens(1, LENGTH))
    assert trace.names == value_names(facts)
    assert not [name for name in trace if "convolution" in name]


@pytest.mark.parametrize("config", CONFIGS)
def test_embeddings_are_the_sum_of_their_parts(config: str) -> None:
    made, inputs = built(config), arguments(CONFIGS[config])
    trace, _ = recorded(made, ["embed*", "target_embed*"] if config in PAIRS else "embed*", **inputs)
    for part in ("embed", "target_embed") if config in PAIRS else ("embed",):
        embed = made.get_submodule(part)
        total = sum(trace[name] for name in trace if name.startswith(f"{part}."))
        expected = total if embed.norm is None else embed.norm(total)
        expected = expected if embed.project is None else embed.project(expected)
        assert largest_difference(expected, trace[part]) < EXACT


def test_layers_are_counted_as_they_run() -> None:
    trace, _ = recorded(built("albert"), ids=tokens(1, 4))  # 4 layers, 2 with weights of their own
    assert sum(name.endswith("attention.weights") for name in trace) == 4
    trace, _ = recorded(built("deberta"), ids=tokens(1, 4))  # 2 layers, and the mask decoder runs the last one twice
    assert [name for name in trace if name.endswith("blocks.2.input")] == ["encoder.blocks.2.input"]
    assert torch.equal(trace["encoder.blocks.1.output"], trace["encoder.blocks.2.input"])
    assert torch.equal(trace["encoder.blocks.2.output"], trace["encoder.output"])


# ---- paths of attention


@pytest.mark.parametrize(
    ("config", "dtype"),
    some_at_once(product(CONFIGS, BOUNDS), lambda case: case[0] in WITH_TRACES or case[1] == torch.float64),
)
def test_the_formula_replaces_fused_kernels_where_weights_are_recorded(config: str, dtype: torch.dtype) -> None:
    made, inputs = built(config, dtype), arguments(CONFIGS[config])
    expected = plain(made, **inputs)
    trace, output = recorded(made, "*.blocks.1.*.weights", **inputs)
    assert trace.switched == tuple(name.removesuffix(".weights") for name in trace.names)
    assert largest_difference(at_token(output), expected) < BOUNDS[dtype] * max(1, float(expected.abs().max()))
    trace, by_formula = recorded(made, "*.weights", **inputs, path="eager")
    assert trace.switched == ()
    assert torch.equal(at_token(by_formula), plain(made, **inputs, path="eager"))


@pytest.mark.parametrize("config", CONFIGS)
def test_without_scores_and_weights_nothing_is_switched(config: str) -> None:
    made, inputs = built(config, torch.float32), arguments(CONFIGS[config])
    names = [name for name in value_names(CONFIGS[config]) if not name.endswith((".scores", ".weights"))]
    trace, output = recorded(made, names, **inputs)
    assert trace.switched == ()
    assert torch.equal(at_token(output), plain(made, **inputs))


@pytest.mark.parametrize("semantics", ["set", "reference"])
def test_block_sparse_weights(semantics: Any) -> None:
    sparse = glassformer.config.BlockSparse(block=2, random=1, semantics=semantics)
    facts = model(encoder=stack(attention=attention(windows=(None, sparse))), head=None)
    made, ids = built(facts), tokens(1, 24)
    expected = made(ids)
    trace, output = recorded(made, ids=ids)
    assert trace.switched == ("encoder.blocks.0.attention", "encoder.blocks.1.attention")
    assert largest_difference(output, expected) < 1e-12
    allowed = block_sparse_mask(24, sparse, 4)[None] > -torch.inf
    weights = trace["encoder.blocks.1.attention.weights"]
    assert bool((weights[allowed] > 0).all())
    assert bool((weights[~allowed] == 0).all())
    assert largest_difference(weights.sum(-1), torch.ones(())) < EXACT
    assert recorded(made, "*.weights", ids=ids, path="eager")[0].switched == ("encoder.blocks.1.attention",)


# ---- padding, packing


@pytest.mark.parametrize("config", some_at_once(CONFIGS, WITH_TRACES.__contains__))
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_gets_no_weight(config: str, side: str) -> None:
    facts = CONFIGS[config]
    mask = right_padded(LENGTH, 5, width=LENGTH)
    mask = mask if side == "right" else mask.flip(-1)
    inputs = {**arguments(facts), "mask": mask}
    trace, _ = recorded(built(config), ["*.weights", "*.scores"], **inputs)
    alone = {**inputs, "ids": inputs["ids"][1:][:, mask[1]], "mask": None}
    alone |= {"target": inputs["target"][1:]} if "target" in inputs else {}
    single, _ = recorded(built(config), ["*.weights"], **alone)
    for name, weights in trace.find("*.weights").items():
        of_keys = mask if "cross" in name or not (name.startswith("decoder") and config in PAIRS) else None
        if of_keys is not None:
            assert bool((weights[1][..., ~of_keys[1]] == 0).all()), name
            assert bool((trace[name.replace("weights", "scores")][1][..., ~of_keys[1]] == -torch.inf).all())
        assert largest_difference(weights.sum(-1)[weights.sum(-1) > 0], torch.ones(())) < EXACT
        rows = weights[1] if of_keys is None else weights[1][..., of_keys[1]]
        rows = rows if "cross" in name or of_keys is None else rows[:, of_keys[1]]
        assert largest_difference(rows, single[name][0]) < EXACT


def test_packed_documents_do_not_see_each_other() -> None:
    documents = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0]])
    made, ids = built("llama"), tokens(1, 8)
    trace, _ = recorded(made, "*.weights", ids=ids, mask=documents)
    for weights in trace.values():
        assert bool((weights[0, :, 3:7, :3] == 0).all())
        assert bool((weights[..., 7] == 0).all())
    alone, _ = recorded(made, "*.weights", ids=ids[:, 3:7])
    for name, weights in trace.items():
        assert largest_difference(weights[:, :, 3:7, 3:7], alone[name]) < EXACT


# ---- generation


def check_steps(trace: Trace, full: Trace, prompt: int) -> None:
    """Each step equals the rows of one pass over all tokens."""
    stop = 0
    for number, step in enumerate(trace.steps):
        start, stop = stop, prompt + number
        for name, value in step.items():
            expected = full[name]
            if name == "head":
                expected = expected[:, stop - 1 : stop]
            elif not (name.startswith(("encoder", "embed")) and "encoder.output" in full) and not name.endswith(
                ("cross.k", "cross.v")
            ):
                expected = expected[..., start:stop, :]
            if name.endswith(("attention.scores", "attention.weights", "attention.bias")) and "decoder" in name:
                expected = expected[..., :stop]
            assert value.shape == expected.shape, name
            assert torch.equal(value == -torch.inf, expected == -torch.inf)
            assert largest_difference(value.nan_to_num(neginf=0), expected.nan_to_num(neginf=0)) < 1e-11, name


@pytest.mark.parametrize(
    "config",
    some_at_once([name for name in CONFIGS if CONFIGS[name].decoder], {"gpt_neo", "bloom", "llama", "t5"}.__contains__),
)
@pytest.mark.parametrize("chunk", [None, 3])
def test_steps_of_generate_equal_the_rows_of_a_full_pass(config: str, chunk: int | None) -> None:
    made, prompt = built(config), tokens(1, 6).tolist()
    start = [7] if config in PAIRS else None
    with record(made) as trace:
        [[text]] = generate(made, prompt, GenerationSettings(max_new_tokens=5), start=start, chunk=chunk)
    if chunk is not None:  # a prompt in pieces has a step for each
        assert len(trace.steps) == (5 if start else 5 + 1)
        return
    assert len(trace.steps) == 5
    ids = torch.tensor([[*(start or prompt[0]), *text.ids[:-1]]])
    inputs = {"ids": torch.tensor(prompt), "target": ids} if start else {"ids": ids}
    full, _ = recorded(made, **inputs)
    assert set(full.names) == set(trace.names)
    check_steps(trace, full, len(start or prompt[0]))


def test_cached_steps_with_padding() -> None:
    """Two rows of unequal lengths, padded on the left, and a window that forgets its first keys."""
    made, ids = built("gpt_neo"), tokens(2, 10)
    mask = right_padded(10, 7, width=10).flip(-1)
    full, _ = recorded(made, ids=ids, mask=mask)
    cache = KVCache(evicts=True)
    with torch.no_grad(), record(made) as trace:
        for start, stop in ((0, 6), (6, 7), (7, 10)):
            made(ids[:, start:stop], mask[:, start:stop], cache=cache)
    for (start, stop), step in zip(((0, 6), (6, 7), (7, 10)), trace.steps, strict=True):
        for name, value in step.items():
            expected = full[name][..., start:stop, :]
            expected = expected[..., :stop] if name.endswith(("scores", "weights")) else expected
            real = mask[:, start:stop]
            rows = (value.movedim(-2, 1)[real], expected.movedim(-2, 1)[real])
            assert rows[0].shape == rows[1].shape, name
            assert largest_difference(*(x.nan_to_num(neginf=0) for x in rows)) < 1e-11, name


@pytest.mark.parametrize("padded", [False, True])
def test_rows_that_share_a_memory(padded: bool) -> None:
    """Beams of one source share a row of its memory; each row has its own values all the same."""
    made = built("t5")
    memory_mask = right_padded(6, 4, width=6) if padded else None
    memory, target = made.encode(tokens(2, 6), memory_mask), tokens(6, 3)
    repeated = None if memory_mask is None else memory_mask.repeat_interleave(3, 0)
    with torch.no_grad():
        expected = made.decode(target, memory=memory, memory_mask=memory_mask)
        with record(made) as shared:
            output = made.decode(target, memory=memory, memory_mask=memory_mask)
        with record(made) as separate:
            made.decode(target, memory=memory.repeat_interleave(3, 0), memory_mask=repeated)
    assert largest_difference(output, expected) < 1e-12
    assert shared["decoder.blocks.1.cross.weights"].shape == (6, 4, 3, 6)
    for name in shared:
        left, right = (x[name].nan_to_num(neginf=0) for x in (shared, separate))
        assert largest_difference(left, right) < EXACT, name


def test_beams() -> None:
    made, settings = built("t5"), GenerationSettings(beam_size=3, max_new_tokens=5)
    prompts = [[3, 4, 5], [1, 2, 3, 4, 5]]
    expected = generate(made, prompts, settings, start=[1])
    with record(made, "decoder.**.weights") as trace:
        found = generate(made, prompts, settings, start=[1])
    assert [[text.ids for text in texts] for texts in found] == [[text.ids for text in texts] for texts in expected]
    assert [len(step["decoder.blocks.0.cross.weights"]) for step in trace.steps] == [2, 6, 6, 6, 6]
    assert trace["decoder.blocks.0.attention.weights"].shape == (6, 4, 1, 5)


def test_a_stream_and_a_model_in_training_mode() -> None:
    made = built("gpt2").train()  # runs as a view in evaluation mode
    settings = GenerationSettings(max_new_tokens=4)
    with record(made, "*.weights") as trace:
        for number, _ in enumerate(generate_stream(made, [[1, 2, 3]], settings)):
            assert len(trace.steps) == number + 1
    assert hooks(made) == []
    assert not trace["decoder.blocks.0.attention.weights"].is_inference()


# ---- threads, nesting, exceptions


def test_calls_of_other_threads_are_neither_recorded_nor_changed() -> None:
    made, ids = built("llama", torch.float32), tokens(1, 6)
    alone = made(ids)
    with ThreadPoolExecutor(4) as pool, record(made, "*.weights") as trace:
        others = list(pool.map(lambda _: made(ids), range(20)))
        assert trace.steps == []
        assert all(torch.equal(other, alone) for other in others)
        made(ids)
    assert len(trace.steps) == 1


def test_threads_record_at_once_each_its_own() -> None:
    made = built("gpt2")
    barrier = threading.Barrier(4)
    expected = [recorded(made, ids=tokens(1, 5, seed=seed))[0] for seed in range(4)]

    def one(seed: int) -> Trace:
        with torch.no_grad(), record(made) as trace:
            barrier.wait()
            made(tokens(1, 5, seed=seed))
            barrier.wait()
        return trace

    with ThreadPoolExecutor(4) as pool:
        for trace, alone in zip(pool.map(one, range(4)), expected, strict=True):
            assert len(trace.steps) == 1
            assert all(torch.equal(trace[name], alone[name]) for name in alone)
    assert hooks(made) == []


@pytest.mark.parametrize("enters", [True, False])
def test_recording_may_begin_and_end_during_a_call_of_another_thread(enters: bool) -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    expected = made(ids)
    context = record(made, "head")
    inside, go_on = threading.Event(), threading.Event()
    found: list[Tensor] = []

    def wait(*_: Any) -> None:
        inside.set()
        assert go_on.wait(60)

    hook = made.decoder.register_forward_pre_hook(wait)
    if not enters:
        context.__enter__()
    thread = threading.Thread(target=lambda: found.append(made(ids)))
    thread.start()
    assert inside.wait(60)
    trace = context.__enter__() if enters else None
    if trace is None:
        context.__exit__(None, None, None)
    go_on.set()
    thread.join()
    if trace is not None:
        assert trace.steps == []
        context.__exit__(None, None, None)
    hook.remove()
    assert torch.equal(found[0], expected)


def test_threads_record_again_and_again() -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    expected = plain(made, ids=ids)

    def one(number: int) -> bool:
        if number % 2:
            return torch.equal(plain(made, ids=ids), expected)
        trace, _ = recorded(made, "decoder.blocks.*", ids=ids)
        return len(trace.steps) == 1

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(200)))


def test_a_recording_that_another_thread_ends() -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    context = record(made, "head")
    trace = context.__enter__()
    made(ids)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(context.__exit__, None, None, None).result()
    assert thread_observers() == {}
    made(ids)
    assert len(trace.steps) == 1


@pytest.mark.parametrize("course", [False, True])
def test_a_copy_made_inside_is_a_model_of_its_own(course: bool) -> None:
    made: Any = glassformer.TransformerLM(31, 24, 16, 2, 4) if course else built("gpt2")
    ids = tokens(1, 5)
    with torch.no_grad(), record(made, "head") as trace:
        expected = made(ids)
        copied = copy.deepcopy(made)
        pickled = pickle.loads(pickle.dumps(made))
        for other in (copied, pickled):
            for weight in other.parameters():
                weight.zero_()
            assert not transformer_of(other)(ids).any()
            assert not other(ids).any()
            assert hooks(other) == []
            assert set(vars(other)) == set(vars(made))
            assert len(trace.steps) == 1
        assert torch.equal(made(ids), expected)
    assert len(trace.steps) == 2


def test_an_account_inside_is_not_recorded_nor_changed() -> None:
    for made in (built("gpt2"), glassformer.TransformerLM(31, 24, 16, 2, 4)):
        expected = as_dict(glassformer.account(made, context=8))
        with record(made) as trace, scale_heads(made, {"*": {0: 2.0}}):
            made(tokens(1, 5))
            assert as_dict(glassformer.account(made, context=8)) == expected
            made(tokens(1, 5))
        assert len(trace.steps) == 2
        assert not any(isinstance(value, FakeTensor) for value in trace.values())


def test_nested() -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    with record(made, "decoder.blocks.0.*") as outer:
        made(ids)
        with (
            record(made, "decoder.blocks.*.*.weights") as inner,
            record(built("gpt2"), "*") as other,
        ):
            made(ids)
        made(ids)
    assert [len(trace.steps) for trace in (outer, inner, other)] == [3, 1, 0]
    assert set(inner.names) == {f"decoder.blocks.{number}.attention.weights" for number in range(2)}
    assert all(name.startswith("decoder.blocks.0.") for name in outer)
    assert hooks(made) == []


def test_after_an_exception_nothing_remains() -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    with pytest.raises(IndexError), record(made) as trace:
        made(ids + 1000)
    assert hooks(made) == []
    made(ids)
    assert trace.steps == []


def test_a_closed_trace_takes_nothing_more() -> None:
    """Blocks that save only their input run again in the backward pass, which may come after the recording."""
    made, ids = built("gpt2").train(), tokens(1, 5)
    made(ids).sum().backward()
    expected = made.decoder.blocks[0].attention.q.weight.grad.clone()
    made.zero_grad()
    checkpoint_blocks(made)
    with record(made, ["*.weights", "head"]) as trace:
        output = made(ids)
    held = trace.bytes
    output.sum().backward()
    assert trace.bytes == held
    assert largest_difference(made.decoder.blocks[0].attention.q.weight.grad, expected) < 1e-12
    with record(made, ["*.weights", "head"]) as inside:
        made(ids).sum().backward()
    assert (inside.bytes, len(inside.steps)) == (held, 1)


def test_values_of_the_forward_pass_stay_where_the_backward_pass_computes_them_again() -> None:
    gradients = []
    for recomputes in (False, True):
        made, ids = copy.deepcopy(built("gpt2")).train(), tokens(1, 5)
        if recomputes:
            checkpoint_blocks(made)
        with record(made, "*.heads", detach=False) as trace:
            output = made(ids).square().sum()
            before = dict(trace)
            for value in trace.values():
                value.retain_grad()
            output.backward()
            assert all(value is before[name] for name, value in trace.items())
        gradients.append([value.grad for value in trace.values()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_a_head_that_the_backward_pass_computes_again_begins_no_step() -> None:
    made, ids = built("gpt2"), tokens(1, 6)
    with record(made, "head") as trace:
        model_token_loss(made, {"ids": ids}, ids, chunk=3).total.backward()
    assert len(trace.steps) == 2  # one for each piece
    made.zero_grad()


# ---- what is kept


def test_heads_dtype_device_and_bytes() -> None:
    made, ids = built("llama"), tokens(2, 5)  # 4 heads, 2 of keys
    full, _ = recorded(made, ids=ids)
    with torch.no_grad(), record(made, heads=[3, 0], dtype=torch.float16, device=None) as trace:
        made(ids)
    for name, value in trace.items():
        kind = name.split(".")[-1]
        assert value.dtype == torch.float16
        expected = full[name]
        if kind in ("k", "v", "k_rotary"):
            expected = expected[:, [1, 0]]
        elif kind in ("q", "q_rotary", "scores", "weights", "heads"):
            expected = expected[:, [3, 0]]
        assert torch.equal(value, expected.half()), name
    # The input of a layer is the output of the one before: kept once.
    distinct = {x.data_ptr(): x.nbytes for x in trace.values()}
    assert trace.bytes == sum(distinct.values())
    assert len(distinct) < len(trace)


def test_values_are_copies() -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    with torch.no_grad():
        expected = made(ids)
        with record(made) as trace:
            output = made(ids)
    for value in trace.values():
        value.fill_(torch.nan)
    assert largest_difference(output, expected) < EXACT


def test_gradients_of_recorded_values() -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    with record(made, ["*.heads", "embed.token"], detach=False) as trace:
        output = made(ids)
    gradients = torch.autograd.grad(output.square().sum(), list(trace.values()))
    assert all(bool((gradient != 0).any()) for gradient in gradients)
    with record(made, "*.heads") as trace:
        made(ids)
    assert not any(value.requires_grad for value in trace.values())


def test_memory_is_bounded() -> None:
    made, ids = built("gpt2"), tokens(1, 5)
    message = r"recording 'embed.position' \(640 bytes\) .* limit_bytes=1,000; it holds 640. Record fewer"
    with pytest.raises(TraceLimitError, match=message), record(made, limit_bytes=1000) as trace:
        made(ids)
    assert trace.bytes == 640
    assert hooks(made) == []
    with record(made, limit_bytes=None) as trace:
        made(ids)
    assert trace.bytes < LIMIT_BYTES


def test_the_trace_says_what_it_holds() -> None:
    made = built("llama")
    with torch.no_grad(), record(made, ["embed", "*.weights", "head"]) as trace:
        assert repr(trace) == "<Trace of 0 calls: 0 names, 0 bytes>"
        made(tokens(1, 5))
    lines = repr(trace).splitlines()
    assert lines[0] == "<Trace of 1 call: 4 names, 3,480 bytes"
    assert "  decoder.blocks.N.attention.weights: (1, 4, 5, 5) float64, N = 0, 1" in lines
    assert lines[-1] == "  head: (1, 5, 31) float64>"
    assert len(trace) == 4
    assert list(trace.find("decoder.*")) == [f"decoder.blocks.{number}.attention.weights" for number in range(2)]


@pytest.mark.parametrize(
    ("glob", "parts"),
    [
        ("*", None),
        ("**", None),
        ("embed*", ["embed.token", "embed.position", "embed"]),
        ("decoder.blocks.*.output", ["decoder.blocks.0.output", "decoder.blocks.1.output"]),
        ("*.blocks.*.output", ["decoder.blocks.0.output", "decoder.blocks.1.output"]),
        ("decoder.blocks.1.*put", ["decoder.blocks.1.input", "decoder.blocks.1.output"]),
        ("*.blocks.?.ffn.hidden", ["decoder.blocks.0.ffn.hidden", "decoder.blocks.1.ffn.hidden"]),
        ("decoder.blocks.[1-9].ffn.h*", ["decoder.blocks.1.ffn.hidden"]),
        ("decoder.blocks.[!1].ffn.h*", ["decoder.blocks.0.ffn.hidden"]),
        ("decoder.**.weights", ["decoder.blocks.0.attention.weights", "decoder.blocks.1.attention.weights"]),
        ("*.weights", ["decoder.blocks.0.attention.weights", "decoder.blocks.1.attention.weights"]),
        ("decoder.blocks.1.ffn.*", [f"decoder.blocks.1.ffn.{name}" for name in ("input", "hidden", "output")]),
    ],
)
def test_globs(glob: str, parts: list[str] | None) -> None:
    names = value_names(CONFIGS["gpt2"])
    assert list(match_names(glob, names)) == (list(names) if parts is None else parts)


def test_a_glob_that_is_too_narrow() -> None:
    message = r"no value is called 'decoder.\*.weights'. \('decoder.\*\*.weights' would match: .*\) There are: embed"
    with pytest.raises(ValueError, match=message), record(built("gpt2"), "decoder.*.weights"):
        pass


def test_names_that_do_not_exist() -> None:
    made = built("llama")
    message = r"no value is called 'decoder.*weight'. There are: embed.token; embed; decoder.blocks.N.… with N = 0, 1 "
    with pytest.raises(ValueError, match=message), record(made, "decoder.blocks.*.attention.weight"):
        pass
    with pytest.raises(ValueError, match="no value is called 'encoder"), record(made, ["embed", "encoder.*"]):
        pass
    with (
        pytest.raises(ValueError, match=r"names has no glob, so nothing is chosen. There are: embed"),
        record(made, []),
    ):
        pass
    with pytest.raises(TypeError, match="names are globs"), record(made, [3]):  # type: ignore[list-item]
        pass
    assert hooks(made) == []
    with record(made, "embed") as trace:
        with pytest.raises(NotRecordedError, match="'embed' has not been computed: the model was not called"):
            trace["embed"]
        made(tokens(1, 3))
    with pytest.raises(KeyError, match="'head' was not recorded; add it to the names"):
        trace["head"]
    with pytest.raises(KeyError, match=r"no value of this model is called 'logits'. The trace holds: embed."):
        trace["logits"]
    with pytest.raises(ValueError, match="no value is called 'decoder"):
        trace.find("decoder.*")
    assert "embed" in trace
    assert "head" not in trace


@pytest.mark.parametrize("heads", [[4], [-1], [], [1.0]])
def test_heads_that_do_not_exist(heads: Any) -> None:
    with pytest.raises(ValueError, match="the decoder has heads 0 to 3; got"), record(built("llama"), heads=heads):
        pass


# ---- models


def test_a_course_model() -> None:
    made = glassformer.TransformerLM(31, 24, 16, 2, 4, dtype=torch.float64)
    before, ids = set(vars(made)), tokens(6, 5).view(2, 3, 5)
    positions = torch.arange(2, 7)
    with torch.no_grad():
        expected = made(ids, positions)
        with record(made) as trace, record(made, "head") as second:
            output = made(ids, positions)
            [[text]] = generate(made, [[1, 2, 3]], GenerationSettings(max_new_tokens=3))
    assert largest_difference(output, expected) < 1e-12
    assert largest_difference(trace.steps[0]["head"], expected.view(6, 5, 31)) < 1e-12
    assert [len(trace.steps), len(second.steps), len(text.ids)] == [4, 4, 3]
    assert set(vars(made)) == before
    assert hooks(made) == []
    assert torch.equal(made(ids, positions), expected)


def test_a_loaded_model() -> None:
    loaded = glassformer.load("stories")
    with glassformer.record(loaded, "decoder.blocks.0.attention.weights") as trace:
        loaded.generate("Once upon a time", max_new_tokens=3)
    assert len(trace.steps) == 3
    assert trace["decoder.blocks.0.attention.weights"].shape[1] == loaded.config.decoder.attention.heads


@pytest.mark.slow
def test_compiled_models_cannot_be_recorded() -> None:
    """A long test for the time that importing the compiler takes."""
    made = built("gpt2")
    wrapped = torch.compile(made)
    with pytest.raises(ValueError, match="is compiled, and compiled code cannot be observed"), record(wrapped):
        pass
    in_place = copy.deepcopy(made)
    compile_model(in_place, backend="eager")
    with pytest.raises(ValueError, match="is compiled"), record(in_place):
        pass
    with record(copy.deepcopy(in_place), "embed") as trace:
        assert trace.names == ()


def test_what_is_no_model() -> None:
    with pytest.raises(TypeError, match="expected a Transformer; got a Linear"), record(nn.Linear(2, 2)):
        pass
    with pytest.raises(TypeError, match=r"expected a model, .* got str"), record("gpt2"):  # type: ignore[arg-type]
        pass

    class Other(nn.Module):
        def as_transformer(self) -> Transformer:
            return built("gpt2")

    with pytest.raises(TypeError, match=r"calls of a Other cannot be observed: .* another model_key"), record(Other()):
        pass


def test_paths_and_biases_are_those_of_the_configs() -> None:
    """What ``switched`` and ``value_names`` decide by: a new kind needs a look at both."""
    assert set(PATHS) == {"sdpa", "eager"}
    for facts in CONFIGS.values():
        for name, part in stacks(facts):
            bias = part.attention.score_bias
            has_bias = bias is not None and not (isinstance(bias, Disentangled) and not bias.terms)
            assert (f"{name}.blocks.0.attention.bias" in value_names(facts)) == has_bias
