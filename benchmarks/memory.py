"""Memory as accounted for beside memory as measured, on a GPU: one forward pass, and one training step with AdamW.

Usage: python -m benchmarks.memory [--models NAME …] [--batch N] [--context N] [--dtypes float32 bfloat16]. Models have
random weights. Measured is the peak of what PyTorch's allocator hands out, without the workspace of the product
library, which is there before the model. The step: cross-entropy, gradients set to None before each step, AdamW in its
fused form. The second step is measured, when the optimizer has its states.
"""

import argparse
import gc
import sys

import torch
import torch.nn.functional as F

from benchmarks.hardware import describe
from glassformer import Transformer, account, preset

MODELS = ("gpt2", "gpt2-medium", "gpt2-large")


def baseline() -> int:
    """What is allocated without a model: the workspace of the product library."""
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(64, 64, device="cuda", dtype=dtype, requires_grad=True)
        (x @ x).sum().backward()
    del x
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def answer(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    """Scores of every token, of a decoder's where there are two stacks."""
    scores = model(ids, target=ids) if model.config.family == "encoder-decoder" else model(ids)
    return scores[0] if isinstance(scores, tuple) else scores


def peak_of_forward(model: Transformer, ids: torch.Tensor) -> int:
    """The highest level during one pass without gradients."""
    model.eval()
    with torch.inference_mode():
        torch.cuda.reset_peak_memory_stats()
        answer(model, ids)
    return torch.cuda.max_memory_allocated()


def peak_of_training(model: Transformer, ids: torch.Tensor) -> int:
    """The highest level during a step of training."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        F.cross_entropy(answer(model, ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return torch.cuda.max_memory_allocated()


def measure(name: str, dtype: str, batch: int, context: int) -> None:
    """One model in one type: a line for the pass, a line for the step."""
    before = baseline()
    model = Transformer(preset(name), "cuda", getattr(torch, dtype))
    ids = torch.randint(0, 1000, (batch, context), device="cuda")
    for mode, run in (("forward", peak_of_forward), ("train", peak_of_training)):
        counted = account(name, batch=batch, context=context, dtype=dtype, mode=mode)
        measured = run(model, ids) - before - ids.nbytes
        predicted = counted.memory.peak
        print(
            f"{name:14} {dtype:9} {mode:8} accounted {predicted / 1e9:7.3f} GB   measured {measured / 1e9:7.3f} GB   "
            f"{100 * (predicted / measured - 1):+5.1f} %",
            flush=True,
        )


def main() -> None:
    """Measure all that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this measures the memory of a GPU, and PyTorch finds none here.")
    print(describe())
    print(torch.cuda.get_device_name(), f"batch {asked.batch}, context {asked.context}")
    for name in asked.models:
        for dtype in asked.dtypes:
            measure(name, dtype, asked.batch, asked.context)


if __name__ == "__main__":
    main()
