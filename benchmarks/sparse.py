"""Block-sparse attention beside full attention: time per token and peak extra memory as the sequence grows.

Usage: python -m benchmarks.sparse [--rounds N] [--lengths T ...] [--backward] [--device cuda]. One row, float32, blocks
of 64 with three random ones. Beside it: full attention by the formula and by PyTorch's fused kernel, and Hugging Face's
block-sparse layer, where transformers is installed; it writes the weights of all pairs of tokens down, even if nobody
asks. The functions take turns in changing order; reported is the quickest round, which says most on a machine that is
not quiet. Peak memory is what the allocator held at most beyond the inputs.

With --window W, a causal window of W tokens instead: first one attention, by blocks, with a mask of all pairs (up to
8,192 tokens) and without a window; then forward and backward pass of a decoder of two layers of width 256, with the
window and without, and the ratio that the account predicts. On a CPU these are CPU times of one thread.
"""

import argparse
import math
import random
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.hardware import describe
from glassformer import scaled_dot_product_attention
from glassformer.config import BlockSparse, ModelConfig, change
from glassformer.families import preset
from glassformer.inspect.account import account
from glassformer.models.transformer import Transformer
from glassformer.nn.masks import DenseMask, Mask
from glassformer.nn.sparse import block_sparse_attention

HEADS, WIDTH, PATTERN, SET = 4, 64, BlockSparse(block=64, random=3), BlockSparse(block=64, random=3, semantics="set")
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def hugging_face(length: int, device: str) -> Attention:
    """The layer's function of queries, keys and values, without its projections."""
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = BigBirdConfig(
        hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, max_position_embeddings=length, block_size=PATTERN.block
    )
    layer = BigBirdBlockSparseAttention(config, seed=0).eval()
    real = torch.ones(1, length, device=device)
    blocked, band, queries, keys = BigBirdModel.create_masks_for_block_sparse_attn(real, PATTERN.block)
    sizes = (HEADS, PATTERN.random, WIDTH, PATTERN.block, PATTERN.block, 1, length, length)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, _ = layer.bigbird_block_sparse_attention(
            q, k, v, band, queries, keys, blocked, blocked, *sizes,
            seed=0, plan_from_length=None, plan_num_rand_blocks=None,
        )  # fmt: skip
        return out.transpose(1, 2)

    return attend


def competitors(length: int, device: str) -> dict[str, Attention]:
    scale = 1 / math.sqrt(WIDTH)
    found: dict[str, Attention] = {
        "block-sparse, reference": lambda q, k, v: block_sparse_attention(q, k, v, PATTERN, scale=scale),
        "block-sparse, set": lambda q, k, v: block_sparse_attention(q, k, v, SET, scale=scale),
        "full, formula": lambda q, k, v: scaled_dot_product_attention(q, k, v, path="eager"),
        "full, fused kernel": lambda q, k, v: scaled_dot_product_attention(q, k, v, path="sdpa"),
    }
    try:
        found["block-sparse, Hugging Face"] = hugging_face(length, device)
    except ImportError:
        print("transformers is not installed: no comparison with Hugging Face")
    return found


def window_competitors(length: int, window: int) -> dict[str, Attention]:
    """A causal window, by blocks and by a mask of all pairs, and full causal attention."""
    mask = Mask(causal=True, window=window)
    found: dict[str, Attention] = {
        "window, by blocks": lambda q, k, v: scaled_dot_product_attention(q, k, v, mask),
        "window, mask of all pairs": lambda q, k, v: scaled_dot_product_attention(
            q, k, v, DenseMask(mask.dense((length, length), q.device))
        ),
        "full, fused kernel": lambda q, k, v: scaled_dot_product_attention(q, k, v, Mask(causal=True)),
    }
    if length > 8192:
        del found["window, mask of all pairs"]
    return found


def decoder(window: int | None) -> ModelConfig:
    """Mistral's facts with two layers of width 256."""
    facts = preset("mistral-7b-v0.1")
    small: dict[str, object] = {"layers": 2, "attention.kv_heads": HEADS, "attention.heads": HEADS}
    small |= {"attention.rotary.dim": WIDTH, "attention.head_dim": WIDTH, "ffn.hidden": 4 * HEADS * WIDTH}
    for path, value in small.items():
        facts = change(facts, f"decoder.{path}", value)
    facts = change(change(facts, "vocab", 256), "width", HEADS * WIDTH)
    return change(facts, "decoder.attention.windows", (window,))


def decoders(window: int, device: str) -> dict[str, Attention]:
    """The loss of a batch, for both decoders."""
    models = {
        "decoder with the window": Transformer(decoder(window)).to(device),
        "decoder, full attention": Transformer(decoder(None)).to(device),
    }
    return {name: lambda ids, *_, model=model: model(ids).logsumexp(-1) for name, model in models.items()}


def predicted_ratio(length: int, window: int) -> float:
    """FLOPs of a training step without the window over those with it, as the kernels compute them.

    The kernel of full attention skips the keys after a query; blocks are computed whole.
    """
    full = account(decoder(None), context=length, mode="train", causal="exact")
    blocks = account(decoder(window), context=length, mode="train")
    return (full.flops + full.recomputed_flops) / (blocks.flops + blocks.recomputed_flops)


def step(attend: Attention, inputs: list[Tensor], backward: bool) -> None:
    with torch.set_grad_enabled(backward):
        out = attend(*inputs)
    if backward and inputs[0].is_floating_point():
        torch.autograd.grad(out.sum(), inputs)
    elif backward:
        out.sum().backward()
    if out.is_cuda:
        torch.cuda.synchronize()


def seconds(attend: Attention, inputs: list[Tensor], backward: bool) -> float:
    clock = time.perf_counter if inputs[0].is_cuda or torch.get_num_threads() > 1 else time.thread_time
    start = clock()
    step(attend, inputs, backward)
    return clock() - start


def peak_bytes(attend: Attention, inputs: list[Tensor], backward: bool) -> int:
    if inputs[0].is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(attend, inputs, backward)
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(attend, inputs, backward)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def attention_inputs(length: int, backward: bool, device: str) -> list[Tensor]:
    return [torch.randn(1, HEADS, length, WIDTH, device=device, requires_grad=backward) for _ in range(3)]


def measure(
    functions: dict[str, Attention], inputs: list[Tensor], rounds: int, backward: bool
) -> dict[str, tuple[float, int]]:
    """Per competitor: seconds of the quickest round, peak bytes."""
    quickest = dict.fromkeys(functions, math.inf)
    for number in range(-1, rounds):  # the first round pays for memory and threads, and does not count
        order = list(functions)
        random.Random(number).shuffle(order)
        for name in order:
            taken = seconds(functions[name], inputs, backward)
            if number >= 0:
                quickest[name] = min(quickest[name], taken)
    return {name: (quickest[name], peak_bytes(functions[name], inputs, backward)) for name in functions}


def print_rows(length: int, results: dict[str, tuple[float, int]]) -> None:
    first = next(iter(results.values()))
    for name, (taken, held) in results.items():
        ratios = f"{taken / first[0]:.2f}, {held / first[1]:.2f}"
        print(f"{length:6}  {name:28}{taken / length * 1e6:11.2f}{held / 2**20:10.1f}   {ratios}", flush=True)


def compare_window(options: argparse.Namespace) -> None:
    """Print the rows of a window."""
    torch.set_num_threads(1)
    for length in options.lengths:
        inputs = attention_inputs(length, options.backward, options.device)
        functions = window_competitors(length, options.window)
        print_rows(length, measure(functions, inputs, options.rounds, options.backward))
    functions = decoders(options.window, options.device)
    for length in options.lengths:
        ids = [torch.randint(256, (1, length), device=options.device)]
        print_rows(length, measure(functions, ids, options.rounds, True))
        print(f"{'':8}the account predicts a ratio of {predicted_ratio(length, options.window):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--backward", action="store_true", help="gradients too")
    parser.add_argument("--window", type=int, help="compare a causal window of so many tokens instead")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(describe() if options.device == "cpu" else torch.cuda.get_device_name())
    passes = "forward + backward" if options.backward else "forward"
    blocks = f"blocks of {PATTERN.block}, {PATTERN.random} random"
    blocks = blocks if options.window is None else f"causal window of {options.window}"
    print(f"{passes}, 1 row, {HEADS} heads of width {WIDTH}, {blocks}, float32, best of {options.rounds}")
    print(f"{'tokens':>6}  {'':28}{'µs / token':>11}{'peak MiB':>10}   this / first: time, memory")
    if options.window is not None:
        compare_window(options)
        return
    for length in options.lengths:
        functions = competitors(length, options.device)
        inputs = attention_inputs(length, options.backward, options.device)
        print_rows(length, measure(functions, inputs, options.rounds, options.backward))


if __name__ == "__main__":
    main()
