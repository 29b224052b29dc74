"""From nats to perplexity and bits. Standard library only: metrics need no tensors for it."""

import math


def perplexity_of(loss: float) -> float:
    """exp of nats per token; inf where that is too great for a number."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def bits_of(nats: float) -> float:
    """The same to the base 2."""
    return nats / math.log(2)
