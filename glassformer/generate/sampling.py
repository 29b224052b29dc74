"""Choosing the next token from its logits, and writing on token by token.

Shapes: ``...`` batch axes, ``V`` vocabulary, ``T`` tokens.
"""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.config.checks import check_positive
from glassformer.nn.attention import softmax
from glassformer.nn.norm import at_least_float32


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
    if temperature < 0:
        raise ValueError(f"temperature must be 0 (always the likeliest token) or above, got {temperature}.")
    if temperature == 0:
        return logits.argmax(-1)
    if top_k is not None:
        check_positive(top_k=top_k)
        likeliest = logits.topk(min(top_k, logits.shape[-1]), dim=-1).indices
        logits = torch.full_like(logits, -torch.inf).scatter(-1, likeliest, logits.gather(-1, likeliest))
    # Taking off the largest first changes no chance and keeps a tiny temperature from overflowing.
    below = at_least_float32(logits) - logits.amax(-1, keepdim=True)
    chances = softmax(below / max(temperature, torch.finfo(torch.float32).tiny), dim=-1)
    rows = chances.reshape(-1, chances.shape[-1])
    return torch.multinomial(rows, 1, generator=generator).reshape(chances.shape[:-1])


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
    generator = torch.Generator(prompt.device).manual_seed(seed)
    tokens = prompt
    while True:
        logits = model(tokens[None, -context_length:])[0, -1]
        token = sample_next(logits, temperature=temperature, top_k=top_k, generator=generator)
        tokens = torch.cat((tokens, token[None]))[-context_length:]
        yield int(token)
