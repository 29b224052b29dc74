"""Memory of an account against a real model: what autograd keeps, what a cache holds, how high memory gets.

What is kept for the backward pass is equal to the byte, in every lineage, on both paths and in every type; the highest
level of a pass is equal too, that of a training step but for some numbers that autograd uses inside an operator.
Dropout keeps a byte per number on a GPU and a whole number on a CPU, so it is left out but for one test that allows
for it.
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

from glassformer.config import BlockSparse, FeedForward, Model, change
from glassformer.config.parts import ACTIVATION_NAMES
from glassformer.families import presets
from glassformer.inspect.account import account
from glassformer.inspect.account.memory import BLOCK
from glassformer.models.transformer import Transformer
from glassformer.nn.block import Block
from glassformer.nn.cache import KVCache
from tests.inspect.counting import Kept, inputs, loss, rewritten, small, without_dropout
from tests.inspect.levels import SHAPE
from tests.inspect.test_account_counts import FIRST_SIZES, PATHS, page_of, sizes_of, some_builds, some_cases
from tests.pages import PAGES, VOCAB, any_page, attention, model, stack
from tests.parity.cases import CASES

PEAK = 1e-4  # how far the highest level of a training step may be off, as a share of it
Shape = tuple[int, int, int]


def built(facts: Model, dtype: str) -> Transformer:
    return Transformer(facts, dtype=getattr(torch, dtype)).train()


def sizes(shape: Shape) -> dict[str, int]:
    return dict(zip(("batch", "context", "source"), shape, strict=True))


def check_activations(facts: Model, shape: Shape, kernel: str, dtype: str) -> None:
    """What is held for the way back, to the byte."""
    made, given = built(facts, dtype), inputs(facts, *shape)
    made.fused = kernel == "fused"
    with Kept([*made.parameters(), *given.values()]) as kept:
        loss(made(**given, path=PATHS[kernel]), kept)
    counted = account(facts, **sizes(shape), attention=kernel, dtype=dtype, mode="train")
    assert counted.memory.activations == kept.nbytes, (kernel, dtype)
    assert counted.root.activation_bytes == kept.nbytes


# ---- activations


@pytest.mark.parametrize("name", sizes_of("bert", "gpt2", "llama", "t5", "deberta_v2", "bigbird", "bloom"))
def test_activations_of_every_lineage(name):
    check_activations(small(presets()[name].facts), SHAPE, "fused", "float32")


@pytest.mark.parametrize("name", sizes_of("gpt-neo", "bart"))
def test_activations_with_scores_written_down(name):
    check_activations(small(presets()[name].facts), SHAPE, "eager", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("kernel", PATHS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FIRST_SIZES.values())
def test_activations_in_every_type(name, kernel, dtype):
    for shape in (SHAPE, (1, 50, 64)):
        check_activations(small(presets()[name].facts), shape, kernel, dtype)


@pytest.mark.parametrize("kernel", PATHS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "name", ["t5-small", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama-2-7b", "gpt2", "gpt-j-6b"))]
)
def test_activations_in_other_types(name, kernel, dtype):
    """Cosines are shared by all layers in float64; half types are widened and float16 is kept within its range."""
    check_activations(small(presets()[name].facts), (1, 50, 64), kernel, dtype)


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
@pytest.mark.parametrize("gated", [False, True])
def test_activations_of_every_activation(activation, gated):
    ffn = FeedForward(hidden=200, activation=activation, gated=gated)
    check_activations(change(PAGES["gpt2"], "decoder.ffn", ffn), (3, 24, 24), "fused", "float32")


@pytest.mark.parametrize("semantics", ["reference", "set"])
@pytest.mark.parametrize("tokens", [14, 21, pytest.param(16, marks=pytest.mark.slow)])
def test_activations_of_blocks(semantics, tokens):
    """In full, in whole blocks, and with a last block that is not whole."""
    pattern = BlockSparse(block=2, random=1, semantics=semantics)
    facts = model(encoder=stack(attention=attention(windows=(pattern, 5))))
    check_activations(facts, (3, tokens, tokens), "eager", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_activations_of_every_head(case):
    for kernel in PATHS:
        check_activations(page_of(case), (3, 13, 10), kernel, "float32")


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 150))])
def test_activations_of_any_page(seed):
    for kernel in PATHS:
        check_activations(without_dropout(any_page(seed)), (3, 11, 7), kernel, "float32")


@pytest.mark.parametrize("name", ["bert-base-uncased", "deberta-v2-xlarge", "bart-base", "gpt2"])
def test_dropout_holds_a_byte_for_each_number(name, monkeypatch):
    """A CPU holds the factors themselves, four bytes each. Its kernels know no dropout, so attention has none here."""
    facts = rewritten(small(presets()[name].facts), lambda name, value: 0.1 if name.endswith("dropout") else value)
    for each in ("encoder", "decoder"):
        if getattr(facts, each) is not None:
            facts = change(facts, f"{each}.attention.dropout", 0.0)
    made, given, dropped = built(facts, "float32"), inputs(facts, *SHAPE), []

    def counted_dropout(x: Tensor, *args: Any, plain: Any = F.dropout, **kwargs: Any) -> Tensor:
        dropped.append(x.numel())
        return plain(x, *args, **kwargs)

    with monkeypatch.context() as patch, Kept([*made.parameters(), *given.values()]) as kept:
        patch.setattr(F, "dropout", counted_dropout)
        loss(made(**given), kept)
    counted = account(facts, **sizes(SHAPE), mode="train")
    assert dropped
    assert counted.memory.activations == kept.nbytes - 3 * sum(dropped)


# ---- what is held if blocks run again


def given_to_block(args: Any, kwargs: Any) -> Sequence[Tensor]:
    context = kwargs["context"]
    given = [tensor for tensor in (*args, context.memory, context.source) if tensor is not None]
    if context.path == "sdpa" and context.bias is not None and not context.bias.requires_grad:
        given.append(context.bias)  # a fused kernel keeps it, once for all layers
    return given


@pytest.mark.parametrize("kernel", ["fused", pytest.param("eager", marks=pytest.mark.slow)])
@some_builds
def test_blocks_that_run_again(name, kernel):
    facts = without_dropout(PAGES[name])
    shape = (3, 6, 24) if facts.family == "encoder-decoder" else (3, 24, 24)  # the largest block is the encoder's
    made, given = built(facts, "float32"), inputs(facts, *shape)
    made.fused = kernel == "fused"
    blocks = [part for part in made.modules() if isinstance(part, Block)]
    with Kept([*made.parameters(), *given.values()], blocks, given_to_block) as kept:
        loss(made(**given, path=PATHS[kernel]), kept)
    memory = account(facts, **sizes(shape), attention=kernel, mode="train").memory
    assert memory.checkpointed == kept.checkpointed < memory.activations


# ---- the highest level


AT_ONCE = [FIRST_SIZES[lineage] for lineage in ("gpt2", "gpt-j", "llama", "t5", "bigbird")]
LATER = sorted({*FIRST_SIZES.values()} - {*AT_ONCE})
LARGE = ["gpt2:20000:tied", "gpt2:20000:untied", "t5-small:20000"]  # vocabularies, and few tokens


@pytest.mark.parametrize(
    "names", [pytest.param(AT_ONCE + LARGE, id="some"), pytest.param(LATER, id="others", marks=pytest.mark.slow)]
)
def test_the_highest_level(names):
    command = [sys.executable, "-m", "tests.inspect.levels", *names]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    off = {}
    for name, kernel in product(names, PATHS):
        for mode, real, counted in zip(("forward", "train"), *measured[name][kernel], strict=True):
            if abs(counted / real - 1) > (PEAK if mode == "train" else 0):
                off[name, kernel, mode] = counted / real - 1
    assert not off


def test_a_step_of_decoding_holds_the_output_of_the_encoder():
    """That much more for each token of the source, besides the cache."""
    shape = {"batch": 3, "context": 8, "mode": "decode"}
    short, long = (account(PAGES["t5"], source=source, **shape).memory for source in (50, 100))
    assert (long.peak - long.held) - (short.peak - short.held) >= 3 * 50 * PAGES["t5"].width * 4


# ---- what is held from pass to pass


def check_cache(facts: Model, shape: Shape, dtype: str) -> None:
    """Every slot of every layer, and keys and values of a memory, as a cache of the whole context has them."""
    batch, tokens, source = shape
    made, cache = built(facts, dtype).eval(), KVCache(capacity=tokens)
    with torch.no_grad():
        memory = None if facts.encoder is None else made.encode(torch.randint(facts.vocab, (batch, source)))
        made.decode(torch.randint(facts.vocab, (batch, tokens - 1)), memory=memory, cache=cache)
    counted = account(facts, **sizes(shape), dtype=dtype, mode="decode").memory
    assert counted.kv_cache == cache.nbytes > 0
    assert counted.held == counted.weights + counted.kv_cache
    longer = account(facts, **sizes((batch, tokens + 1, source)), dtype=dtype, mode="decode").memory
    assert longer.kv_cache - counted.kv_cache == batch * counted.kv_cache_per_token


@pytest.mark.parametrize("case", some_cases([case for case in CASES if page_of(case).decoder is not None]))
def test_the_cache(case):
    check_cache(page_of(case), (3, 12, 5), "float32")


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["t5", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "llama"))])
def test_the_cache_in_every_type(name, dtype):
    check_cache(PAGES[name], (2, 9, 7), dtype)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_weights_gradients_and_optimizer(name):
    facts = without_dropout(PAGES[name])
    made, given = built(facts, "float32"), inputs(facts, 2, 8, 8)
    optimizer = torch.optim.AdamW(made.parameters())
    loss(made(**given)).backward()
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values() if value.numel() > 1]
    memory = account(facts, batch=2, context=8, mode="train").memory
    assert memory.weights == sum(weight.nbytes for weight in made.parameters())
    used = [weight for weight in made.parameters() if weight.grad is not None]
    unused = memory.weights - sum(weight.nbytes for weight in used)
    assert memory.gradients - unused == sum(weight.grad.nbytes for weight in used if weight.grad is not None)
    assert memory.optimizer - 2 * unused == sum(state.nbytes for state in states)
    assert memory.held == memory.weights + memory.gradients + memory.optimizer <= memory.peak
    assert account(facts, context=8).memory.held == memory.weights


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_optimizers_remember(dtype):
    facts = PAGES["gpt2"]
    known = {
        name: account(facts, context=8, dtype=dtype, mode="train", optimizer=name)
        for name in ("none", "adamw", "adamw-master", "adamw-8bit")
    }
    count, width = known["none"].parameters, {"float32": 4, "bfloat16": 2}[dtype]
    scales = -(-count // BLOCK)
    expected = {
        "none": 0,
        "adamw": 2 * width * count,
        "adamw-master": 12 * count,
        "adamw-8bit": 2 * (count + 4 * scales),
    }
    assert {name: one.memory.optimizer for name, one in known.items()} == expected


def test_the_step_of_the_optimizer_can_be_the_highest_level():
    """One token of a model with a large vocabulary: gradients and states outweigh whatever the pass held."""
    facts = change(PAGES["gpt2"], "vocab", 100 * VOCAB)
    memory = account(facts, context=1, mode="train").memory
    assert memory.peak >= memory.weights + memory.gradients + memory.optimizer
    assert replace(memory, peak=0).held == 4 * memory.weights
