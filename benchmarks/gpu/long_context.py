"""Rows of long context: a training step of a decoder with sliding windows beside the same with full attention."""

from functools import partial

from benchmarks.gpu.rows import Result, Setup, contestant, row
from benchmarks.gpu.timing import Ceilings
from benchmarks.gpu.training import QUICK, Sizes, facts_of, floor, next_tokens, ours, random_ids
from glassformer.config import ModelConfig, change
from glassformer.inspect.account import account
from glassformer.objectives.causal_lm import NextToken

WINDOWS = (256, 1024)


def decoder(sizes: Sizes, window: int | None) -> ModelConfig:
    """Return Llama's facts in these sizes, with a window in every layer."""
    shape = {"num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads, "hidden_size": sizes.width}
    shape |= {"vocab_size": sizes.vocab, "max_position_embeddings": sizes.tokens, "intermediate_size": 4 * sizes.width}
    facts = facts_of("llama", "lm", **shape, num_key_value_heads=sizes.heads)
    return change(facts, "decoder.attention.windows", (window,))


def predicted_factor(sizes: Sizes, window: int) -> float:
    """Return the FLOPs of a step with full attention over those with windows, as the kernels compute them."""
    with_window = account(decoder(sizes, window), context=sizes.tokens, mode="train")  # blocks are computed whole
    full = account(decoder(sizes, None), context=sizes.tokens, mode="train", causal="exact")
    return (full.flops + full.recomputed_flops) / (with_window.flops + with_window.recomputed_flops)


def measure(window: int, setup: Setup, ceilings: Ceilings) -> Result:
    """Measure a step with windows and without."""
    if setup.quick:
        sizes, window = QUICK, 4
    else:
        sizes = Sizes(12, 768, 12, 1, 32_768, 50_304)
    batch = next_tokens(random_ids(sizes, setup.device, extra=1))
    measured = [
        contestant(name, partial(ours, decoder(sizes, size), NextToken(), batch, setup), sizes.tokens)
        for name, size in ((f"glassformer, window {window:,}", window), ("glassformer, full attention", None))
    ]
    values = {"predicted factor": predicted_factor(sizes, window)}
    if measured[0].rate is not None and measured[1].rate is not None:
        values["measured factor"] = measured[0].rate / measured[1].rate
    return Result(
        title=f"windows of {window:,} tokens in a long text",
        settings=str(sizes),
        unit="tokens",
        measurements=measured,
        floor_seconds=floor(decoder(sizes, window), sizes, ceilings),
        values=values,
    )


for _window in WINDOWS:
    row(f"long-window-{_window}", "long context")(partial(measure, _window))
