"""Block-sparse attention beside full attention: time per token and peak extra memory as the sequence grows.

Usage: python -m benchmarks.sparse [--rounds N] [--lengths T ...] [--backward] [--device cuda]. One row, float32, blocks
of 64 with three random ones. Beside it: full attention by the formula and by PyTorch's fused kernel, and Hugging Face's
block-sparse layer, where transformers is installed; it writes the weights of all pairs of tokens down, even if nobody
asks. The functions take turns in changing order; reported is the quickest round, which says most on a machine that is
not quiet. Peak memory is what the allocator held at most beyond the inputs.
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
from glassformer.config import BlockSparse
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


def step(attend: Attention, inputs: list[Tensor], backward: bool) -> None:
    with torch.set_grad_enabled(backward):
        out = attend(*inputs)
    if backward:
        torch.autograd.grad(out.sum(), inputs)
    if out.is_cuda:
        torch.cuda.synchronize()


def seconds(attend: Attention, inputs: list[Tensor], backward: bool) -> float:
    start = time.perf_counter()
    step(attend, inputs, backward)
    return time.perf_counter() - start


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


def measure(length: int, rounds: int, backward: bool, device: str) -> dict[str, tuple[float, int]]:
    """Per competitor: seconds of the quickest round, peak bytes."""
    inputs = [torch.randn(1, HEADS, length, WIDTH, device=device, requires_grad=backward) for _ in range(3)]
    functions = competitors(length, device)
    quickest = dict.fromkeys(functions, math.inf)
    for number in range(-1, rounds):  # the first round pays for memory and threads, and does not count
        order = list(functions)
        random.Random(number).shuffle(order)
        for name in order:
            taken = seconds(functions[name], inputs, backward)
            if number >= 0:
                quickest[name] = min(quickest[name], taken)
    return {name: (quickest[name], peak_bytes(functions[name], inputs, backward)) for name in functions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--backward", action="store_true", help="gradients too")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(describe() if options.device == "cpu" else torch.cuda.get_device_name())
    passes = "forward + backward" if options.backward else "forward"
    blocks = f"blocks of {PATTERN.block}, {PATTERN.random} random"
    print(f"{passes}, 1 row, {HEADS} heads of width {WIDTH}, {blocks}, float32, best of {options.rounds}")
    print(f"{'tokens':>6}  {'':28}{'µs / token':>11}{'peak MiB':>10}   this / ours (reference): time, memory")
    for length in options.lengths:
        results = measure(length, options.rounds, options.backward, options.device)
        ours = results["block-sparse, reference"]
        for name, (taken, held) in results.items():
            ratios = f"{taken / ours[0]:.2f}, {held / ours[1]:.2f}"
            print(f"{length:6}  {name:28}{taken / length * 1e6:11.2f}{held / 2**20:10.1f}   {ratios}")


if __name__ == "__main__":
    main()
