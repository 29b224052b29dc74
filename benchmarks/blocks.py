"""Forward and backward of the language model on the CPU, beside the same model made of torch.nn parts.

Usage: python -m benchmarks.blocks [--rounds N]. The peer comes in two versions, with the two usual ways to write the
rotation of queries and keys. The models take turns in changing order, so that a busy machine slows all of them;
reported are medians over the rounds, and the quickest step of each, which says most on a machine that is not quiet.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.hardware import describe
from glassformer import TransformerLM, num_parameters

VOCAB, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN, BATCH = 10_000, 256, 384, 6, 6, 1024, 8


class PeerBlock(nn.Module):
    """The same block from torch.nn parts; the rotation is handed in."""

    def __init__(self, rotate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rotate = rotate
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.view(BATCH, -1, HEADS, WIDTH // HEADS)

        y = self.norm1(x)
        q, k, v = self.rotate(heads(self.q(y))), self.rotate(heads(self.k(y))), heads(self.v(y))
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Peer(nn.Module):
    def __init__(self, rotate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCAB, WIDTH), nn.RMSNorm(WIDTH, eps=1e-5)
        self.blocks = nn.Sequential(*(PeerBlock(rotate) for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(ids))))


def rotations() -> dict[str, Callable[[Tensor], Tensor]]:
    """Two ways to turn ``(batch, tokens, heads, width)``: by halves and real numbers, by pairs and complex ones."""
    width = WIDTH // HEADS
    angles = torch.arange(CONTEXT)[:, None, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
    cos, sin = (torch.cat((f(angles), f(angles)), dim=-1) for f in (torch.cos, torch.sin))
    unit = torch.polar(torch.ones_like(angles), angles)

    def real(y: Tensor) -> Tensor:
        a, b = y.chunk(2, dim=-1)
        return y * cos + torch.cat((-b, a), dim=-1) * sin

    def complex_(y: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (-1, 2))) * unit).flatten(-2)

    return {"torch.nn, real rotation": real, "torch.nn, complex rotation": complex_}


def seconds_for_step(model: nn.Module, ids: Tensor) -> float:
    model.zero_grad()
    start = time.perf_counter()
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    models: dict[str, nn.Module] = {"glassformer": TransformerLM(VOCAB, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN)}
    models |= {name: Peer(rotate) for name, rotate in rotations().items()}
    assert len({num_parameters(model) for model in models.values()}) == 1
    ids = torch.randint(VOCAB, (BATCH, CONTEXT + 1))
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(-2, rounds):  # the first two rounds pay for memory and threads, and do not count
        order = list(models)
        random.Random(number).shuffle(order)
        for name in order:
            taken = seconds_for_step(models[name], ids)
            if number >= 0:
                seconds[name].append(taken)
    print(describe())
    print(f"forward + backward, {LAYERS} layers of width {WIDTH}, batch {BATCH} × {CONTEXT}, float32, {rounds} rounds")
    print(f"{'':28}{'median':>10}{'quickest':>10}   glassformer / this: median, quickest")
    ours = seconds["glassformer"]
    for name, theirs in seconds.items():
        median, least = statistics.median(theirs), min(theirs)
        ratios = f"{statistics.median(ours) / median:.3f}, {min(ours) / least:.3f}"
        print(f"{name:28}{median * 1e3:7.1f} ms{least * 1e3:7.1f} ms   {ratios}")


if __name__ == "__main__":
    main()
