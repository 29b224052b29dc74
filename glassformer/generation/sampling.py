"""Choosing the next token from its scores: chances, random numbers, the draw; and writing on token by token.

A draw is split in two so that it can be repeated anywhere: ``SeededRNG`` throws one number per text from a stream that
belongs to that text alone, ``draw`` turns numbers and chances into tokens without any randomness of its own.

Shapes: ``...`` batch axes, ``R`` rows (texts that are being written), ``V`` vocabulary, ``T`` tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from glassformer.generation import filters
from glassformer.nn.attention import softmax
from glassformer.nn.norm import upcast


def probs(scores: Float[Tensor, "... V"]) -> Float[Tensor, "... V"]:
    """Probabilities of the tokens, in at least float32; a token whose score is −inf has exactly 0."""
    return softmax(upcast(scores), dim=-1)


class SeededRNG:
    """A stream of random numbers for each text: what one text draws depends on nothing else in the batch.

    The n-th number of a stream is a hash of (seed, sample number, n). Streams are thus independent of each other
    for any seeds, however large or alike, and the same on every machine and device; the usual generator would use
    but the lower 32 bits of a seed.
    """

    def __init__(self, streams: Sequence[tuple[int, int]]):
        self._streams = [f"{seed} {sample}" for seed, sample in streams]
        self._thrown = [0] * len(self._streams)

    def roll(self, rows: Sequence[int]) -> Float64[Tensor, "R"]:
        """The next number in [0, 1) of each of the streams ``rows``, on the CPU."""
        return torch.tensor([self._next(row) for row in rows], dtype=torch.float64)

    def _next(self, row: int) -> float:
        if not 0 <= row < len(self._streams):
            raise ValueError(f"there is no stream {row}; these dice have {len(self._streams)}, counted from 0.")
        name = f"{self._streams[row]} {self._thrown[row]}"
        self._thrown[row] += 1
        bits = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
        return (bits >> 11) * 2.0**-53  # as many bits as a float64 holds, so that no number rounds up to 1


def draw(probs: Float[Tensor, "R V"], uniforms: Float64[Tensor, "R"]) -> Int[Tensor, "R"]:
    """The token of each row on which a number in [0, 1) falls when the chances are laid end to end.

    Sums are in float64; a token of chance 0 is never drawn, not even by 0 or the largest number below 1.
    """
    if not bool(((uniforms >= 0) & (uniforms < 1)).all()):
        raise ValueError(f"a draw needs numbers of at least 0 and below 1, got {uniforms.tolist()}.")
    # A sum in parallel may differ in its last bit from the one before though nothing was added: such steps are undone.
    ends = probs.double().cumsum(-1).masked_fill(probs == 0, 0.0).cummax(-1).values
    total = ends.amax(-1, keepdim=True)
    if not bool((total > 0).all()):
        raise ValueError("a row has no token with a chance above 0, or a chance that is not a number.")
    # The largest float64 below 1 is 1 − 2⁻⁵³, whose product with the total rounds to less than the total.
    return torch.searchsorted(ends, uniforms.to(ends.device)[:, None] * total, right=True).squeeze(-1)


def sample_next(
    logits: Float[Tensor, "... V"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "..."]:
    """Draw one token per row of ``logits``.

    ``temperature`` divides the logits: below 1 the likely become likelier, 0 takes the likeliest. ``top_k`` leaves the
    k likeliest tokens in the draw; the others have probability exactly 0.
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
    """Endless continuation of ``prompt``, one token at a time; the model sees the last ``context_length`` tokens."""
    if prompt.numel() == 0:
        raise ValueError("the prompt has no tokens; a model needs at least one to continue from.")
    rng = SeededRNG([(seed, 0)])
    tokens = prompt
    while True:
        logits = model(tokens[None, -context_length:])[:, -1]
        token = _pick(logits, temperature, top_k, rng.roll([0]))
        tokens = torch.cat((tokens, token))[-context_length:]
        yield int(token)
