"""Choosing the next token from its scores: probabilities, random numbers, sampling, the largest scores.

Sampling has two steps so that it can be reproduced anywhere: ``SeededRNG`` gives one number per text from a stream of
that text's own, ``draw`` turns numbers and probabilities into tokens without any randomness of its own.

Shapes: ``...`` batch axes, ``R`` rows (texts being generated), ``V`` vocabulary, ``T`` tokens, ``C`` tokens of a piece
of the vocabulary, ``P`` pieces, ``n`` tokens wanted.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from glassformer.generation import filters
from glassformer.nn.attention import softmax
from glassformer.nn.norm import upcast

PIECE = 128  # tokens


def probs(scores: Float[Tensor, "... V"]) -> Float[Tensor, "... V"]:
    """Probabilities of the tokens, in at least float32; a token whose score is −inf has exactly 0."""
    return softmax(upcast(scores), dim=-1)


class SeededRNG:
    """A stream of random numbers for each text, which does not depend on the rest of the batch.

    The n-th number of a stream is a hash of (seed, sample number, n). Streams are thus independent of each other
    for any seeds, however large or similar, and the same on every machine and device; a ``torch.Generator`` would use
    only the lower 32 bits of a seed.
    """

    def __init__(self, streams: Sequence[tuple[int, int]]):
        self._streams = [f"{seed} {sample}" for seed, sample in streams]
        self._used = [0] * len(self._streams)

    def roll(self, rows: Sequence[int]) -> Float64[Tensor, "R"]:
        """The next number in [0, 1) of each of the streams ``rows``, on the CPU."""
        return torch.tensor([self._next(row) for row in rows], dtype=torch.float64)

    def _next(self, row: int) -> float:
        if not 0 <= row < len(self._streams):
            raise ValueError(f"there is no stream {row}; there are {len(self._streams)}, counted from 0.")
        name = f"{self._streams[row]} {self._used[row]}"
        self._used[row] += 1
        bits = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
        return (bits >> 11) * 2.0**-53  # as many bits as a float64 holds, so that no number rounds up to 1


def draw(probs: Float[Tensor, "R V"], uniforms: Float64[Tensor, "R"]) -> Int[Tensor, "R"]:
    """Sample a token for each row by inverting the cumulative distribution at a number in [0, 1).

    Sums are in float64; a token of probability 0 is never sampled, not even by 0 or the largest number below 1.
    """
    if not bool(((uniforms >= 0) & (uniforms < 1)).all()):
        raise ValueError(f"sampling needs numbers of at least 0 and below 1, got {uniforms.tolist()}.")
    # A parallel sum may change in its last bit where probabilities are 0: such steps are undone.
    ends = probs.double().cumsum(-1).masked_fill(probs == 0, 0.0).cummax(-1).values
    total = ends.amax(-1, keepdim=True)
    if not bool((total > 0).all()):
        raise ValueError("a row has no token with a probability above 0, or one that is not a number.")
    # The largest float64 below 1 is 1 − 2⁻⁵³, whose product with the total rounds to less than the total.
    return torch.searchsorted(ends, uniforms.to(ends.device)[:, None] * total, right=True).squeeze(-1)


def largest(scores: Float[Tensor, "... V"], count: int) -> tuple[Float[Tensor, "... n"], Int[Tensor, "... n"]]:
    """The ``count`` largest scores (all, if there are fewer) and their tokens, the largest first.

    The same as ``scores.topk``, which on a CPU sorts the whole vocabulary with one thread per row. Here the vocabulary
    is cut into pieces; only the ``count`` pieces with the largest maxima are sorted, since no other can hold a result.
    """
    vocabulary = scores.shape[-1]
    pieces = vocabulary // PIECE
    if pieces <= 2 * count or scores.device.type != "cpu":
        top = scores.topk(min(count, vocabulary), dim=-1)
        return top.values, top.indices
    whole = pieces * PIECE
    # Choose the pieces.
    cut = torch.unflatten(scores[..., :whole], -1, (pieces, PIECE))  # ... P C
    chosen = cut.amax(-1).topk(count, dim=-1).indices.unsqueeze(-1)  # ... n 1
    # Scores and tokens of the chosen pieces, and of the tokens after the last piece.
    offsets = torch.arange(PIECE, device=scores.device)
    candidates = cut.gather(-2, chosen.expand(*chosen.shape[:-1], PIECE)).flatten(-2)  # ... n·C
    tokens = (chosen * PIECE + offsets).flatten(-2)  # ... n·C
    rest = torch.arange(whole, vocabulary, device=scores.device).expand(*scores.shape[:-1], -1)
    candidates, tokens = torch.cat((candidates, scores[..., whole:]), -1), torch.cat((tokens, rest), -1)
    top = candidates.topk(count, dim=-1)
    return top.values, tokens.gather(-1, top.indices)


def most_probable(scores: Float[Tensor, "... V"]) -> Int[Tensor, "..."]:
    """The token with the largest score, the first of equals: ``scores.argmax``, computed as in ``largest``."""
    pieces = scores.shape[-1] // PIECE
    if pieces <= 2 or scores.device.type != "cpu":
        return scores.argmax(-1)
    whole = pieces * PIECE
    cut = torch.unflatten(scores[..., :whole], -1, (pieces, PIECE))  # ... P C
    piece = cut.amax(-1).argmax(-1, keepdim=True)  # ... 1
    inside = cut.gather(-2, piece.unsqueeze(-1).expand(*piece.shape, PIECE)).squeeze(-2)  # ... C
    index = torch.cat((inside, scores[..., whole:]), -1).argmax(-1, keepdim=True)
    return torch.where(index < PIECE, piece * PIECE + index, whole - PIECE + index).squeeze(-1)


def sample_next(
    logits: Float[Tensor, "... V"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "..."]:
    """Sample one token per row of ``logits``.

    ``temperature`` divides the logits: below 1 the distribution becomes sharper, 0 takes the most probable token.
    ``top_k`` keeps the k most probable tokens; the others have probability exactly 0.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    device = logits.device if generator is None else generator.device
    uniforms = torch.rand(len(rows), generator=generator, dtype=torch.float64, device=device)
    return _pick(rows, temperature, top_k, uniforms).reshape(logits.shape[:-1])


def _pick(
    logits: Float[Tensor, "R V"], temperature: float, top_k: int | None, uniforms: Float64[Tensor, "R"]
) -> Int[Tensor, "R"]:
    scores = filters.temperature(logits, temperature)
    if top_k is not None:
        scores = filters.top_k(scores, top_k)
    return draw(probs(scores), uniforms)


@torch.no_grad()
def write_on(
    model: Callable[[Tensor], Tensor],
    prompt: Int[Tensor, "T"],
    *,
    context_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Continue ``prompt`` without end, one token at a time; the model sees the last ``context_length`` tokens."""
    if prompt.numel() == 0:
        raise ValueError("the prompt has no tokens; a model needs at least one to continue from.")
    rng = SeededRNG([(seed, 0)])
    tokens = prompt
    while True:
        logits = model(tokens[None, -context_length:])[:, -1]
        token = _pick(logits, temperature, top_k, rng.roll([0]))
        tokens = torch.cat((tokens, token))[-context_length:]
        yield int(token)
