"""Forward and backward of the language model on the CPU, beside the same model made of torch.nn parts.

Usage: python -m benchmarks.blocks [--rounds N]. The two take turns, so that a busy machine slows both; reported is the
median over the rounds of the ratio of two neighbouring runs.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.hardware import describe
from glassformer import TransformerLM, num_parameters

VOCAB, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN, BATCH = 10_000, 256, 384, 6, 6, 1024, 8


class PeerBlock(nn.Module):
    """The same block from torch.nn: fused norms, linear layers and activation, and the usual way to write rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.view(BATCH, -1, HEADS, WIDTH // HEADS).transpose(1, 2)

        def rotate(y: Tensor) -> Tensor:
            a, b = y.chunk(2, dim=-1)
            return y * cos + torch.cat((-b, a), dim=-1) * sin

        y = self.norm1(x)
        q, k, v = rotate(heads(self.q(y))), rotate(heads(self.k(y))), heads(self.v(y))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Peer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCAB, WIDTH), nn.RMSNorm(WIDTH, eps=1e-5)
        self.blocks = nn.ModuleList(PeerBlock() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        width = WIDTH // HEADS
        angles = torch.arange(CONTEXT)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("cos", torch.cat((angles, angles), dim=-1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), dim=-1).sin())

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


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
    ours, peer = TransformerLM(VOCAB, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN), Peer()
    assert num_parameters(ours) == num_parameters(peer)
    ids = torch.randint(VOCAB, (BATCH, CONTEXT + 1))
    for model in (ours, peer):  # the first steps pay for memory and threads
        seconds_for_step(model, ids)
        seconds_for_step(model, ids)
    pairs = [(seconds_for_step(ours, ids), seconds_for_step(peer, ids)) for _ in range(rounds)]
    print(describe())
    print(f"forward + backward, {LAYERS} layers of width {WIDTH}, batch {BATCH} × {CONTEXT}, float32, {rounds} rounds")
    print(f"glassformer  {statistics.median(a for a, _ in pairs) * 1e3:7.1f} ms")
    print(f"torch.nn     {statistics.median(b for _, b in pairs) * 1e3:7.1f} ms")
    print(f"ratio        {statistics.median(a / b for a, b in pairs):7.3f}   (below 1: glassformer is faster)")


if __name__ == "__main__":
    main()
