"""How far each block is from its own float64 result in narrower types, and its two attention paths from each other.

Usage: python -m benchmarks.numerics, which prints the table of docs/numerics.md.
"""

import os

# The same processor features as the tests use: see tests/conftest.py.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

import glassformer as gf
from benchmarks.hardware import describe
from glassformer.nn import masks

WIDTH, HEADS, HIDDEN, BATCH, LENGTH, VOCAB = 64, 4, 128, 4, 48, 100
TYPES = (torch.float64, torch.float32, torch.bfloat16)
REAL = torch.arange(LENGTH) < torch.tensor([48, 40, 17, 1])[:, None]
MASK = masks.causal() & masks.padding(REAL)
IDS = torch.randint(VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


class Function(nn.Module):
    """A plain function of one tensor in the shape of a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def plain_blocks() -> dict[str, nn.Module]:
    """Blocks that are called with vectors alone."""
    return {
        "softmax": Function(lambda x: gf.softmax(x * 3, dim=-1)),
        "silu": Function(gf.silu),
        "gelu": Function(gf.gelu),
        "RMSNorm": gf.RMSNorm(WIDTH),
        "LayerNorm": gf.LayerNorm(WIDTH),
        "RotaryPositionalEmbedding": Function(gf.RotaryPositionalEmbedding(10_000.0, WIDTH, LENGTH)),
        "Linear": gf.Linear(WIDTH, WIDTH, bias=True),
        "FeedForward": gf.FeedForward(WIDTH, HIDDEN),
        "SwiGLU": gf.SwiGLU(WIDTH, HIDDEN),
    }


def attending_blocks() -> dict[str, tuple[nn.Module, Callable[[nn.Module, Tensor, str], Tensor]]]:
    """Blocks with attention in them, each with the way to call it on one path."""
    block = gf.TransformerBlock(WIDTH, HEADS, HIDDEN, LENGTH, 1e4)
    model = gf.TransformerLM(VOCAB, LENGTH, WIDTH, 4, HEADS, HIDDEN)
    return {
        "MultiHeadAttention": (gf.MultiHeadAttention(WIDTH, HEADS), lambda m, x, path: m(x, mask=MASK, path=path)),
        "EncoderLayer": (gf.EncoderLayer(WIDTH, HEADS, HIDDEN), lambda m, x, path: m(x, MASK, path=path)),
        "DecoderLayer": (gf.DecoderLayer(WIDTH, HEADS, HIDDEN), lambda m, x, path: m(x, x, MASK, path=path)),
        "TransformerBlock": (block, lambda m, x, path: m(x, path=path)),
        "TransformerLM, 4 layers": (model, lambda m, _, path: m(IDS, path=path)),
    }


def apart(a: Tensor, b: Tensor) -> str:
    """Largest difference in units of the largest value."""
    return f"{float((a.double() - b.double()).abs().max() / b.double().abs().max()):.0e}"


def prepare(module: nn.Module) -> Tensor:
    """Randomise the parameters and draw an input, all rounded to bfloat16, so that only arithmetic is measured."""
    torch.manual_seed(0)
    for name, parameter in module.named_parameters():
        gain = parameter.ndim == 1 and name.endswith("weight")
        parameter.copy_((torch.randn_like(parameter) * 0.15 + gain).bfloat16())
    return torch.randn(BATCH, LENGTH, WIDTH).bfloat16()


@torch.no_grad()
def main() -> None:
    print("| block | float32 | bfloat16 | paths, float64 | paths, float32 | paths, bfloat16 |")
    print("|---|---|---|---|---|---|")
    for name, module in plain_blocks().items():
        x = prepare(module)
        exact, *narrow = (copy.deepcopy(module).to(t)(x.to(t)) for t in TYPES)
        print(f"| {name} | {' | '.join(apart(y, exact) for y in narrow)} | – | – | – |")
    for name, (module, call) in attending_blocks().items():
        x = prepare(module)
        eager, fused = ([call(copy.deepcopy(module).to(t), x.to(t), path) for t in TYPES] for path in ("eager", "sdpa"))
        errors = [apart(y, fused[0]) for y in fused[1:]]
        print(f"| {name} | {' | '.join([*errors, *map(apart, eager, fused)])} |")
    print(f"\n{describe()}")


if __name__ == "__main__":
    main()
