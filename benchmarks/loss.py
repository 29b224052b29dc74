"""A training step whose head holds all logits, beside one that computes the loss chunk by chunk.

Usage: python -m benchmarks.loss [--layers N] [--tokens N] [--rounds N] [--precision bfloat16]. GPT-2's shape with few
layers; forward, loss, backward, clipping, AdamW. CPU time of one thread, both in turns; then the peak bytes of a
forward and backward pass, from the events of PyTorch's allocator.
"""

import argparse
import statistics
import time
from contextlib import nullcontext

import torch
from torch import nn

from benchmarks.hardware import describe
from glassformer import Transformer, preset
from glassformer.config import change
from glassformer.objectives.base import Batch
from glassformer.objectives.causal_lm import NextToken
from glassformer.training.optim import adamw
from tests.inspect.levels import peak


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of the products")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Transformer(change(preset("gpt2"), "decoder.layers", asked.layers)).train()
    ids = torch.randint(model.config.vocab, (1, asked.tokens + 1))
    counts = {"next": asked.tokens}
    labels = {"next": ids[:, 1:].contiguous()}
    batch = Batch(inputs={"ids": ids[:, :-1].contiguous()}, labels=labels, counts=counts, tokens=asked.tokens)
    optimizer = adamw(model, 1e-4)

    def gradients(fused: bool) -> None:
        assert isinstance(model.head, nn.Module)
        hook = None if fused else model.head.register_forward_hook(lambda *_: None)  # a hook must see the logits
        with torch.autocast("cpu", torch.bfloat16) if asked.precision == "bfloat16" else nullcontext():
            loss = NextToken().loss(model, batch).mean(counts)
        loss.backward()
        if hook is not None:
            hook.remove()

    def step(fused: bool) -> float:
        start = time.thread_time()
        gradients(fused)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.thread_time() - start

    rounds = [(step(False), step(True)) for _ in range(asked.rounds + 1)][1:]
    seconds = [statistics.median(times) for times in zip(*rounds, strict=True)]
    print(f"{describe()}; {asked.layers} layers, 1 × {asked.tokens} tokens, {asked.precision}, {asked.rounds} rounds")
    for name, fused, second in zip(("all logits", "in chunks"), (False, True), seconds, strict=True):
        memory = peak(lambda fused=fused: gradients(fused))
        model.zero_grad(set_to_none=True)
        print(f"{name:12} {second:6.2f} s {memory / 1e6:8.0f} MB")
    print(f"ratio        {statistics.median(a / b for a, b in rounds):6.3f}")


if __name__ == "__main__":
    main()
