"""Memory of an account against a real model: saved tensors, KV cache, peak.

Saved tensors are equal to the byte, in every lineage, on both paths and in every dtype; so is the peak of a pass, and
that of a training step up to some temporary numbers inside operators of autograd. Dropout saves one byte per element on
a GPU and the factor itself on a CPU, so it is disabled except in one test that allows for it.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.config import BlockSparse, FeedForward, ModelConfig, change
from glassformer.config.parts import ACTIVATION_NAMES
from glassformer.families import presets
from glassformer.inspect.account import account
from glassformer.inspect.account.memory import BLOCK
from glassformer.models.transformer import Transformer
from glassformer.nn.block import Block
from glassformer.nn.cache import KVCache
from tests.configs import CONFIGS, VOCAB, attention, model, random_config, stack
from tests.helpers import some_at_once
from tests.inspect.counting import SavedTensors, inputs, loss, rewritten, small, without_dropout
from tests.inspect.levels import SHAPE
from tests.inspect.test_account_counts import FIRST_SIZES, PATHS, config_of, sizes_of, some_builds, some_cases
from tests.parity.cases import CASES

PEAK = 1e-4  # relative tolerance of the peak of a training step
Shape = tuple[int, int, int]


def built(facts: ModelConfig, dtype: str) -> Transformer:
    return Transformer(facts, dtype=getattr(torch, dtype)).train()


def sizes(shape: Shape) -> dict[str, int]:
    return dict(zip(("batch", "context", "source"), shape, strict=True))


def check_activations(facts: ModelConfig, shape: Shape, kernel: str, dtype: str) -> None:
    """The bytes saved for the backward pass are equal."""
    transformer, model_inputs = built(facts, dtype), inputs(facts, *shape)
    transformer.fused = kernel == "sdpa"
    with SavedTensors([*transformer.parameters(), *model_inputs.values()]) as saved:
        loss(transformer(**model_inputs, path=kernel), saved)
    counted = account(facts, **sizes(shape), attention=kernel, dtype=dtype, mode="train")
    assert counted.memory.activations == saved.nbytes, (kernel, dtype)
    assert counted.root.activation_bytes == saved.nbytes


# ---- activations


@pytest.mark.parametrize("name", sizes_of("bert", "gpt2", "llama", "t5", "deberta_v2", "bigbird", "bloom"))
def test_activations_of_every_lineage(name):
    check_activations(small(presets()[name].facts), SHAPE, "sdpa", "float32")


@pytest.mark.parametrize("name", sizes_of("gpt-neo"))
def test_activations_of_eager_attention(name):
    check_activations(small(presets()[name].facts), SHAPE, "eager", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("kernel", PATHS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FIRST_SIZES.values())
def test_activations_in_every_dtype(name, kernel, dtype):
    for shape in (SHAPE, (1, 50, 64)):
        check_activations(small(presets()[name].facts), shape, kernel, dtype)


@pytest.mark.parametrize("kernel", some_at_once(PATHS, {"eager"}.__contains__))
@pytest.mark.parametrize("dtype", some_at_once(["float64", "bfloat16", "float16"], {"bfloat16"}.__contains__))
@pytest.mark.parametrize(
    "name", some_at_once(["t5-small", "llama-2-7b", "gpt2", "gpt-j-6b"], {"t5-small"}.__contains__)
)
def test_activations_in_other_dtypes(name, kernel, dtype):
    """Cosines are shared by all layers in float64; half precision is upcast and float16 is clamped."""
    check_activations(small(presets()[name].facts), (1, 50, 64), kernel, dtype)


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
@pytest.mark.parametrize("gated", [False, True])
def test_activations_of_every_activation(activation, gated):
    ffn = FeedForward(hidden=200, activation=activation, gated=gated)
    check_activations(change(CONFIGS["gpt2"], "decoder.ffn", ffn), (3, 24, 24), "sdpa", "float32")


@pytest.mark.parametrize("semantics", ["reference", "set"])
@pytest.mark.parametrize("tokens", some_at_once([14, 16, 21], {21}.__contains__))
def test_activations_of_block_sparse_attention(semantics, tokens):
    """Full attention, full blocks, and a partial last block."""
    pattern = BlockSparse(block=2, random=1, semantics=semantics)
    facts = model(encoder=stack(attention=attention(windows=(pattern, 5))))
    check_activations(facts, (3, tokens, tokens), "eager", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_activations_of_every_head(case):
    for kernel in PATHS:
        check_activations(config_of(case), (3, 13, 10), kernel, "float32")


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 100))])
def test_activations_of_any_facts(seed):
    for kernel in PATHS:
        check_activations(without_dropout(random_config(seed)), (3, 11, 7), kernel, "float32")


@pytest.mark.parametrize(
    "name",
    some_at_once(["bert-base-uncased", "deberta-v2-xlarge", "bart-base", "gpt2"], {"bart-base", "gpt2"}.__contains__),
)
def test_dropout_saves_a_byte_per_element(name, monkeypatch):
    """A CPU saves the factors, four bytes each. Its kernels have no dropout, so attention has none here."""
    facts = rewritten(small(presets()[name].facts), lambda name, value: 0.1 if name.endswith("dropout") else value)
    for name in ("encoder", "decoder"):
        if getattr(facts, name) is not None:
            facts = change(facts, f"{name}.attention.dropout", 0.0)
    transformer, model_inputs, dropped = built(facts, "float32"), inputs(facts, *SHAPE), []

    def counted_dropout(x: Tensor, p: float = 0.5, *args: Any, plain: Any = F.dropout, **kwargs: Any) -> Tensor:
        dropped.append(x.numel() if p else 0)  # at a rate of 0 nothing is held
        return plain(x, p, *args, **kwargs)

    with monkeypatch.context() as patch, SavedTensors([*transformer.parameters(), *model_inputs.values()]) as saved:
        patch.setattr(F, "dropout", counted_dropout)
        loss(transformer(**model_inputs), saved)
    counted = account(facts, **sizes(SHAPE), mode="train")
    assert dropped
    assert counted.memory.activations == saved.nbytes - 3 * sum(dropped)


# ---- activation checkpointing


def block_inputs(args: Any, kwargs: Any) -> Sequence[Tensor]:
    context = kwargs["context"]
    model_inputs = [tensor for tensor in (*args, context.memory, context.key_input) if tensor is not None]
    if context.path == "sdpa" and context.bias is not None and not context.bias.requires_grad:
        model_inputs.append(context.bias)  # a fused kernel saves it, once for all layers
    return model_inputs


@pytest.mark.parametrize("kernel", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
@some_builds
def test_checkpointed_blocks(name, kernel):
    facts = without_dropout(CONFIGS[name])
    shape = (3, 6, 24) if facts.family == "encoder-decoder" else (3, 24, 24)  # the largest block is the encoder's
    transformer, model_inputs = built(facts, "float32"), inputs(facts, *shape)
    transformer.fused = kernel == "sdpa"
    blocks = [part for part in transformer.modules() if isinstance(part, Block)]
    with SavedTensors([*transformer.parameters(), *model_inputs.values()], blocks, block_inputs) as saved:
        loss(transformer(**model_inputs, path=kernel), saved)
    memory = account(facts, **sizes(shape), attention=kernel, mode="train").memory
    assert memory.checkpointed == saved.checkpointed < memory.activations


# ---- the peak


LARGE = ["gpt2:20000:tied", "gpt2:20000:untied", "t5-small:20000"]  # vocabularies, and few tokens
AT_ONCE = LARGE[:1]
LATER = [*sorted(FIRST_SIZES.values()), *LARGE[1:]]


@pytest.mark.parametrize(
    "names", [pytest.param(AT_ONCE, id="some"), pytest.param(LATER, id="others", marks=pytest.mark.slow)]
)
def test_the_peak(names):
    command = [sys.executable, "-m", "tests.inspect.levels", *names]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    errors = {}
    for name, kernel in product(names, PATHS):
        for mode, real, counted in zip(("forward", "train"), *measured[name][kernel], strict=True):
            if abs(counted / real - 1) > (PEAK if mode == "train" else 0):
                errors[name, kernel, mode] = counted / real - 1
    assert not errors


def test_a_decoding_step_holds_the_output_of_the_encoder():
    """Its size per token of the source, besides the cache."""
    shape = {"batch": 3, "context": 8, "mode": "decode"}
    short, long = (account(CONFIGS["t5"], source=source, **shape).memory for source in (50, 100))
    assert (long.peak - long.resident) - (short.peak - short.resident) >= 3 * 50 * CONFIGS["t5"].width * 4


# ---- what is resident between passes


def check_cache(facts: ModelConfig, shape: Shape, dtype: str) -> None:
    """Equal to a real cache of the whole context, with the keys and values of the encoder's output."""
    batch, tokens, source = shape
    transformer, cache = built(facts, dtype).eval(), KVCache(capacity=tokens)
    with torch.no_grad():
        memory = None if facts.encoder is None else transformer.encode(torch.randint(facts.vocab, (batch, source)))
        transformer.decode(torch.randint(facts.vocab, (batch, tokens - 1)), memory=memory, cache=cache)
    counted = account(facts, **sizes(shape), dtype=dtype, mode="decode").memory
    assert counted.kv_cache == cache.nbytes > 0
    assert counted.resident == counted.weights + counted.kv_cache
    longer = account(facts, **sizes((batch, tokens + 1, source)), dtype=dtype, mode="decode").memory
    assert longer.kv_cache - counted.kv_cache == batch * counted.kv_cache_per_token


@pytest.mark.parametrize("case", some_cases([case for case in CASES if config_of(case).decoder is not None]))
def test_the_cache(case):
    check_cache(config_of(case), (3, 12, 5), "float32")


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "gpt2", "llama"])
def test_the_cache_in_every_dtype(name, dtype):
    check_cache(CONFIGS[name], (2, 9, 7), dtype)


@pytest.mark.parametrize("name", some_at_once(["bert", "llama", "t5"], {"bert", "llama"}.__contains__))
def test_weights_gradients_and_optimizer(name):
    facts = without_dropout(CONFIGS[name])
    transformer, model_inputs = built(facts, "float32"), inputs(facts, 2, 8, 8)
    optimizer = torch.optim.AdamW(transformer.parameters())
    loss(transformer(**model_inputs)).backward()
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values() if value.numel() > 1]
    memory = account(facts, batch=2, context=8, mode="train").memory
    assert memory.weights == sum(weight.nbytes for weight in transformer.parameters())
    used = [weight for weight in transformer.parameters() if weight.grad is not None]
    unused = memory.weights - sum(weight.nbytes for weight in used)
    assert memory.gradients - unused == sum(weight.grad.nbytes for weight in used if weight.grad is not None)
    assert memory.optimizer - 2 * unused == sum(state.nbytes for state in states)
    assert memory.resident == memory.weights + memory.gradients + memory.optimizer <= memory.peak
    assert account(facts, context=8).memory.resident == memory.weights


@pytest.mark.parametrize("dtype", some_at_once(["float32", "bfloat16"], {"bfloat16"}.__contains__))
def test_optimizer_states(dtype):
    facts = CONFIGS["gpt2"]
    accounts = {
        name: account(facts, context=8, dtype=dtype, mode="train", optimizer=name)
        for name in ("none", "adamw", "adamw-master", "adamw-8bit")
    }
    count, width = accounts["none"].parameters, {"float32": 4, "bfloat16": 2}[dtype]
    scales = -(-count // BLOCK)
    expected = {
        "none": 0,
        "adamw": 2 * width * count,
        "adamw-master": 12 * count,
        "adamw-8bit": 2 * (count + 4 * scales),
    }
    assert {name: account.memory.optimizer for name, account in accounts.items()} == expected


def test_the_optimizer_step_can_be_the_peak():
    """One token of a model with a large vocabulary: gradients and states outweigh the activations."""
    facts = change(CONFIGS["gpt2"], "vocab", 100 * VOCAB)
    memory = account(facts, context=1, mode="train").memory
    assert memory.peak >= memory.weights + memory.gradients + memory.optimizer
    assert replace(memory, peak=0).resident == 4 * memory.weights
