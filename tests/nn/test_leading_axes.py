"""Leading axes are only bookkeeping: every block gives what a loop over them would, from none at all to three.

An axis may be empty, and sizes repeat, so that axes which were mixed up would often still fit.
"""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import glassformer as gf
from glassformer.nn import masks
from tests.helpers import PATHS, largest_difference, normal, randomise, some_at_once

WIDTH, HEADS, HIDDEN, LENGTH, MEMORY, ROWS = 8, 2, 12, 4, 3, 16

Leading = tuple[int, ...]
Function = Callable[..., Tensor]
Inputs = Callable[[Leading], tuple[Tensor, ...]]


def vectors(leading: Leading) -> tuple[Tensor, ...]:
    return (normal(*leading, WIDTH),)


def sequence(leading: Leading) -> tuple[Tensor, ...]:
    return (normal(*leading, LENGTH, WIDTH),)


def two_sequences(leading: Leading) -> tuple[Tensor, ...]:
    return normal(*leading, LENGTH, WIDTH), normal(*leading, MEMORY, WIDTH, seed=1)


def placed(leading: Leading) -> tuple[Tensor, ...]:
    """A sequence, and a place of its own for each token."""
    return normal(*leading, LENGTH, WIDTH), torch.randint(ROWS, (*leading, LENGTH))


def padded(leading: Leading) -> tuple[Tensor, ...]:
    """A sequence, and which of its slots are real."""
    return normal(*leading, LENGTH, WIDTH), torch.rand(*leading, LENGTH) < 0.7


def ids(leading: Leading) -> tuple[Tensor, ...]:
    return (torch.randint(ROWS, leading),)


def rows_of_ids(leading: Leading) -> tuple[Tensor, ...]:
    return (torch.randint(ROWS, (*leading, LENGTH)),)


def placed_ids(leading: Leading) -> tuple[Tensor, ...]:
    return torch.randint(ROWS, (*leading, LENGTH)), torch.randint(ROWS, (*leading, LENGTH))


def made(module: torch.nn.Module) -> torch.nn.Module:
    return randomise(module).double()


def rotary(pairing: str, width: int = WIDTH) -> gf.RotaryPositionalEmbedding:
    return gf.RotaryPositionalEmbedding(100.0, width, ROWS, pairing=pairing)


sinusoidal, learned = gf.SinusoidalPositionalEncoding(WIDTH), made(gf.LearnedPositionalEmbedding(ROWS, WIDTH))

POSITION_WISE: dict[str, tuple[Function, Inputs]] = {
    "linear": (made(gf.Linear(WIDTH, 5, bias=True)), vectors),
    "embedding": (made(gf.Embedding(ROWS, WIDTH)), ids),
    "RMSNorm": (made(gf.RMSNorm(WIDTH)), vectors),
    "LayerNorm": (made(gf.LayerNorm(WIDTH)), vectors),
    "feed-forward": (made(gf.FeedForward(WIDTH, HIDDEN)), vectors),
    "gated feed-forward": (made(gf.FeedForward(WIDTH, HIDDEN, gated=True)), vectors),
    "SwiGLU": (made(gf.SwiGLU(WIDTH, HIDDEN)), vectors),
    "softmax": (lambda x: gf.softmax(x, -1), vectors),
    "softmax of the axis before": (lambda x: gf.softmax(x, -2), sequence),
    "silu": (gf.silu, vectors),
    "gelu": (gf.gelu, vectors),
    "rotary": (rotary("interleaved"), sequence),
    "rotary by halves": (rotary("halves"), sequence),
    "placed rotary": (rotary("interleaved"), placed),
    "placed rotary by halves": (rotary("halves"), placed),
    "sinusoidal": (sinusoidal, sequence),
    "placed sinusoidal": (sinusoidal, placed),
    "learned": (learned, sequence),
    "placed learned": (learned, placed),
}


def mixing(path: str) -> dict[str, tuple[Function, Inputs]]:
    """Blocks in which tokens meet, on one of the two paths of attention."""
    head, heads = made(gf.AttentionHead(WIDTH, 5)), made(gf.MultiHeadAttention(WIDTH, HEADS))
    shared = made(gf.MultiHeadAttention(WIDTH, 4, kv_heads=2))
    causal = made(gf.CausalMultiHeadSelfAttention(WIDTH, HEADS, ROWS, 100.0))
    encoder, decoder = made(gf.EncoderLayer(WIDTH, HEADS, HIDDEN)), made(gf.DecoderLayer(WIDTH, HEADS, HIDDEN))
    block = made(gf.TransformerBlock(WIDTH, HEADS, HIDDEN, ROWS, 100.0))
    model = made(gf.TransformerLM(ROWS, ROWS, WIDTH, 2, HEADS, HIDDEN))

    def attend(q: Tensor, k: Tensor, mask: masks.Mask | None = None) -> Tensor:
        return gf.scaled_dot_product_attention(q, k, k, mask, path=path)

    return {
        "attention": (attend, two_sequences),
        "causal attention": (lambda q, k: attend(q, k, masks.causal()), two_sequences),
        "padded attention": (lambda x, real: attend(x, x, masks.padding(real)), padded),
        "head": (lambda x, y: head(x, y, path=path), two_sequences),
        "padded head": (lambda x, real: head(x, mask=masks.padding(real), path=path), padded),
        "heads": (lambda x, y: heads(x, y, path=path), two_sequences),
        "padded heads": (lambda x, real: heads(x, mask=masks.padding(real), path=path), padded),
        "heads in groups": (lambda x, y: shared(x, y, path=path), two_sequences),
        "causal heads": (lambda x, at=None: causal(x, at, path=path), sequence),
        "placed causal heads": (lambda x, at: causal(x, at, path=path), placed),
        "encoder layer": (lambda x, real: encoder(x, masks.padding(real), path=path), padded),
        "decoder layer": (lambda x, y: decoder(x, y, path=path), two_sequences),
        "block": (lambda x: block(x, path=path), sequence),
        "placed block": (lambda x, at: block(x, at, path=path), placed),
        "language model": (lambda x: model(x, path=path), rows_of_ids),
        "placed language model": (lambda x, at: model(x, at, path=path), placed_ids),
    }


CASES = POSITION_WISE | {f"{name}, {path}": case for path in PATHS for name, case in mixing(path).items()}

LAYERS = ("encoder layer", "decoder layer", "block", "placed block", "language model", "placed language model")
LATER = [f"{name}, eager" for name in LAYERS]  # their two paths differ in attention alone, which is there by itself


@pytest.mark.parametrize("name", some_at_once(CASES, lambda name: name not in LATER))
@given(leading=st.lists(st.integers(0, 3), max_size=3).map(tuple))
def test_blocks_equal_a_loop_over_the_leading_axes(name, leading):
    function, inputs = CASES[name]
    given_inputs = inputs(leading)
    with torch.no_grad():
        whole, single = function(*given_inputs), function(*inputs(()))
        assert whole.shape == (*leading, *single.shape)
        for index in itertools.product(*map(range, leading)):
            alone = function(*(x[index] for x in given_inputs))
            assert largest_difference(whole[index], alone) < 1e-12
