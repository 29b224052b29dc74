"""Every fast path beside the formula, on random shapes and types, forward and backward.

The reference is the formula in float64. A fast path may be no further from it than some times what the formula itself
is off in the same type, plus some units of rounding: both compute the same, in another order. Errors are ‖x − y‖ / ‖y‖
of outputs and of gradients, the largest of all tensors.
"""

import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.check_steps import steps_checks
from benchmarks.gpu.long_context import decoder
from benchmarks.gpu.ours import without_dropout
from benchmarks.gpu.timing import release
from benchmarks.gpu.training import Sizes, facts_of, next_tokens
from glassformer.config import ModelConfig, change
from glassformer.families import preset
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import scaled_dot_product_attention
from glassformer.nn.cross_entropy import IGNORE
from glassformer.nn.kernels.cross_entropy import linear_cross_entropy
from glassformer.nn.kernels.packed import has_packed_kernel, make_packed_mask
from glassformer.nn.masks import Mask
from glassformer.objectives.base import Batch, Objective
from glassformer.objectives.causal_lm import NextToken
from glassformer.objectives.masked_lm import MaskedLM
from glassformer.objectives.masking import Masking, MaskVocabulary
from glassformer.objectives.seq2seq import SequenceToSequence, SourceTarget
from glassformer.training.block_calls import compile_model

TIMES, UNITS = 4.0, 2.0  # of the formula's own error, and of rounding, that a fast path may be off
SHAPES = 3  # random ones for each function
HALF_AND_SINGLE = (torch.bfloat16, torch.float32)
Values = dict[str, Tensor]
Run = Callable[[torch.dtype, bool], Values]  # (type, fast?) to outputs and gradients by name


@dataclass(frozen=True)
class Check:
    """One comparison: ``run(dtype, fast)`` gives outputs and gradients, all from the same numbers."""

    name: str
    run: Run
    dtypes: tuple[torch.dtype, ...] = HALF_AND_SINGLE


def error(found: Values, reference: Values) -> float:
    """Return the largest relative error of any tensor."""
    assert found.keys() == reference.keys(), found.keys() ^ reference.keys()
    worst = 0.0
    for name, right in reference.items():
        difference = (found[name].double() - right.double()).norm() / right.double().norm().clamp(min=1e-30)
        worst = max(worst, float(difference))
        if not bool(found[name].isfinite().all()):
            return float("nan")
    return worst


def compare(check: Check, dtype: torch.dtype) -> tuple[float, float]:
    """Return the error of the fast path, and its bound."""
    reference, formula, fast = (
        check.run(torch.float64, False), check.run(dtype, False), check.run(dtype, True),
    )  # fmt: skip
    return error(fast, reference), TIMES * error(formula, reference) + UNITS * torch.finfo(dtype).eps


def gradients(outputs: Values, inputs: Values) -> Values:
    """Return outputs, and the gradients of a random weighted sum of them."""
    generator = torch.Generator().manual_seed(5)
    total = sum(
        (out * torch.randn(out.shape, generator=generator).to(out)).sum()
        for out in outputs.values() if out.is_floating_point()
    )  # fmt: skip
    found = torch.autograd.grad(total, list(inputs.values()))
    outputs = {name: out.detach() for name, out in outputs.items()}
    return {**outputs, **{f"d {name}": gradient for name, gradient in zip(inputs, found, strict=True)}}


def numbers(device: str, *shape: int, seed: int) -> Tensor:
    """Return normal numbers that bfloat16 holds exactly, so that every type computes from the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().double().to(device)


# Attention and the loss.


def attention_run(device: str, shape: tuple[int, ...], mask: Mask | None, dtype: torch.dtype, fast: bool) -> Values:
    """Attention of random queries, keys and values; shape: rows, query heads, key heads, queries, keys, width."""
    rows, heads, groups, queries, keys, width = shape
    sizes = {"q": (rows, heads, queries, width), "k": (rows, groups, keys, width), "v": (rows, groups, keys, width)}
    inputs = {n: numbers(device, *s, seed=i).to(dtype).requires_grad_() for i, (n, s) in enumerate(sizes.items())}
    out = scaled_dot_product_attention(*inputs.values(), mask, path="sdpa" if fast else "eager")
    assert isinstance(out, Tensor)
    return gradients({"out": out}, inputs)


def attention_checks(device: str, chance: random.Random) -> Iterator[Check]:
    """Fused kernels, and windows by blocks, beside softmax(q kᵀ) v with a mask of all pairs."""
    for _ in range(SHAPES):
        rows, groups, width = chance.randint(1, 3), chance.choice((1, 2, 4)), chance.choice((32, 64, 80, 128))
        heads, tokens = groups * chance.choice((1, 2, 3)), chance.randint(2, 300)
        shape = (rows, heads, groups, tokens, tokens, width)
        token_mask = torch.arange(tokens, device=device) < torch.tensor(
            [[chance.randint(1, tokens)]] * rows, device=device
        )
        for name, mask in (("full", None), ("causal", Mask(causal=True)), ("padding", Mask(keys=token_mask))):
            yield Check(f"attention, {name} {shape}", partial(attention_run, device, shape, mask))
        window = chance.choice((16, 33, 64))
        long = (rows, heads, groups, 4 * window + chance.randint(0, 40), 0, width)
        long = (*long[:4], long[3], width)
        for causal in (True, False):
            name = f"window of {window} by blocks, {'causal' if causal else 'both sides'} {long}"
            yield Check(name, partial(attention_run, device, long, Mask(causal=causal, window=window)))


def packed_run(device: str, shape: tuple[int, ...], lengths: list[int], causal: bool, dtype: Any, fast: bool) -> Values:
    """Attention within packed documents, without gradients: by the kernel for ragged sequences, or by the formula."""
    heads, groups, width = shape
    sizes = [(1, number, sum(lengths), width) for number in (heads, groups, groups)]
    q, k, v = (numbers(device, *size, seed=seed).to(dtype) for seed, size in enumerate(sizes))
    documents = torch.arange(1, len(lengths) + 1).repeat_interleave(torch.tensor(lengths))[None].to(device)
    with torch.no_grad():
        mask = make_packed_mask(documents, causal=causal)
        if fast and not has_packed_kernel(q.device, dtype, width):
            raise RuntimeError("there is no kernel for packed documents here.")
        out = scaled_dot_product_attention(q, k, v, mask, path="sdpa" if fast else "eager")
    assert isinstance(out, Tensor)
    return {"out": out}


def packed_checks(device: str, chance: random.Random) -> Iterator[Check]:
    """Packed documents beside a mask of all pairs."""
    for number in range(SHAPES):
        groups = chance.choice((1, 2, 4))
        shape = (groups * chance.choice((1, 3)), groups, chance.choice((32, 64, 80, 128)))
        lengths = [chance.randint(1, 200) for _ in range(chance.randint(2, 9))]
        name = f"packed documents {shape}, {len(lengths)} of up to {max(lengths)}"
        run = partial(packed_run, device, shape, lengths, number % 2 == 1)
        yield Check(name, run, (torch.bfloat16, torch.float16))


def loss_run(device: str, shape: tuple[int, int, int], options: Any, dtype: torch.dtype, fast: bool) -> Values:
    """The loss of random vectors; shape: positions, width, vocabulary."""
    positions, width, vocab = shape
    inputs = {"x": numbers(device, positions, width, seed=1), "w": numbers(device, vocab, width, seed=2) / 8}
    inputs |= {"b": numbers(device, vocab, seed=3)}
    inputs = {name: tensor.to(dtype).requires_grad_() for name, tensor in inputs.items()}
    labels = torch.randint(vocab, (positions,), generator=torch.Generator().manual_seed(4)).to(device)
    labels[::3] = IGNORE
    total = linear_cross_entropy(*inputs.values(), labels, fused=fast, **options).total
    return gradients({"total": total.double() / positions}, inputs)


def loss_checks(device: str, chance: random.Random) -> Iterator[Check]:
    """The loss in chunks beside that of all logits."""
    for _ in range(SHAPES):
        shape = (chance.randint(2, 700), 8 * chance.randint(1, 40), chance.randint(10, 3000))
        options = {"smoothing": chance.choice((0.0, 0.1)), "chunk": chance.randint(1, 300)}
        yield Check(f"fused loss {shape}, {options}", partial(loss_run, device, shape, options))


# Whole models.


def model_run(
    facts: ModelConfig, objective: Objective[Any], batch: Batch, how: str, device: str, dtype: torch.dtype, fast: bool
) -> Values:
    """The loss of a model and all its gradients; ``how``: which fast path, beside the formula everywhere."""
    torch.manual_seed(0)
    model = Transformer(facts, device).train()
    with torch.no_grad():
        for weight in model.parameters():  # weights that make a difference, and that bfloat16 holds
            weight.copy_((weight + 0.05 * numbers(device, *weight.shape, seed=7).float()).bfloat16())
    is_mixed = dtype == torch.bfloat16  # as in training: weights in float32, products in bfloat16
    model = model.to(torch.float32 if is_mixed else dtype)
    model.fused = fast
    if fast and how != "fused":
        compile_model(model, "whole" if how == "whole" else "blocks")
    context: AbstractContextManager[Any] = torch.autocast(device, dtype) if is_mixed else nullcontext()
    with context:
        loss = objective.loss(by_formula(model) if not fast else model, batch.to(device)).mean()
    loss.backward()
    found = {f"d {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "gradient": torch.cat([g.flatten() for g in found.values()])}


def by_formula(model: Transformer) -> Transformer:
    """Let a model compute attention by the formula whatever it is asked for."""
    for name in ("encode", "decode", "forward"):
        setattr(model, name, partial(getattr(model, name), path="eager"))
    return model


def cases(chance: random.Random) -> Iterator[tuple[str, ModelConfig, Objective[Any], Batch]]:
    """Small models of every kind with random batches."""
    rows, tokens, vocab = chance.randint(2, 4), chance.randint(40, 90), chance.randint(200, 900)
    sizes = Sizes(2, 64, 4, rows, tokens, vocab)
    generator = torch.Generator().manual_seed(chance.randint(0, 999))
    ids = torch.randint(5, vocab, (rows, tokens + 1), generator=generator)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "vocab_size": vocab}
    gpt2 = facts_of("gpt2", "lm", n_layer=2, n_head=4, n_embd=64, n_positions=128, vocab_size=vocab)
    llama = facts_of("llama", "lm", **shape, intermediate_size=192, num_key_value_heads=2)
    yield "GPT-2", gpt2, NextToken(), next_tokens(ids)
    yield "Llama", llama, NextToken(), next_tokens(ids)
    yield "Llama, windows", decoder(sizes, 16), NextToken(), next_tokens(ids)
    texts = [row[: chance.randint(5, tokens)] for row in ids]
    bert = facts_of("bert", "lm", **shape, intermediate_size=256, max_position_embeddings=128)
    masked = MaskedLM(masking=Masking(vocabulary=MaskVocabulary(vocab, 4, frozenset(range(5)))))
    yield "BERT, padded", bert, masked, masked.prepare(texts, generator)
    pairs = SequenceToSequence(start=2, smoothing=0.1)
    both = [SourceTarget(text, text.flip(0)) for text in texts]
    yield "Transformer of 2017, padded", small_transformer(vocab), pairs, pairs.prepare(both, generator)


def small_transformer(vocab: int) -> ModelConfig:
    """Return the facts of 2017 in a small size."""
    facts = without_dropout(preset("transformer-base"))
    named: dict[str, object] = {"vocab": vocab, "width": 64, "embed.scale": 8.0}
    for side in ("encoder", "decoder"):
        named |= {f"{side}.layers": 2, f"{side}.attention.heads": 4, f"{side}.attention.head_dim": 16}
        named |= {f"{side}.ffn.hidden": 128}
    for path, value in named.items():
        facts = change(facts, path, value)
    return facts


def model_checks(device: str, chance: random.Random, *, compiles: bool) -> Iterator[Check]:
    """Fused modules in every model; compiled blocks and whole models in some."""
    for name, facts, objective, batch in cases(chance):
        ways = ("fused", "blocks", "whole") if compiles else ("fused",)
        for how in ways:
            dtypes = HALF_AND_SINGLE if how == "fused" else HALF_AND_SINGLE[:1]
            title = {"fused": "fused modules, sdpa", "blocks": "compiled blocks", "whole": "compiled whole"}[how]
            yield Check(f"{title}: {name}", partial(model_run, facts, objective, batch, how, device), dtypes)


def all_checks(device: str, *, quick: bool, seed: int) -> list[Check]:
    """Return every check; quick: none that compiles."""
    chance = random.Random(seed)
    checks = [*attention_checks(device, chance), *loss_checks(device, chance)]
    checks += packed_checks(device, chance) if device != "cpu" else []  # the kernel exists on GPUs alone
    checks += model_checks(device, chance, compiles=not quick)
    for name, run in steps_checks(device, chance, compiles=not quick):
        checks.append(Check(name, run, HALF_AND_SINGLE[:1] if "compiled" in name else HALF_AND_SINGLE))
    return checks


def run_checks(device: str, *, quick: bool = False, only: str = "", seed: int = 0) -> int:
    """Print a line per check and type; return how many failed. ``only``: parts of names, separated by semicolons."""
    parts = only.split(";")
    checks = [c for c in all_checks(device, quick=quick, seed=seed) if any(part in c.name for part in parts)]
    failed = 0
    print(f"{'fast path beside the formula':78}{'type':>10}{'error':>10}{'bound':>10}")
    for check in checks:
        for dtype in check.dtypes:
            try:
                found, bound = compare(check, dtype)
                verdict = "" if found <= bound else "   FAILED"
            except Exception:
                traceback.print_exc()
                found = bound = float("nan")
                verdict = "   FAILED"
            failed += bool(verdict)
            print(f"{check.name:78}{str(dtype)[6:]:>10}{found:10.1e}{bound:10.1e}{verdict}", flush=True)
            release() if "compiled" in check.name else None
    print(f"{len(checks)} fast paths, {failed} failures")
    return failed
