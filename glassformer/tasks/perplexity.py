"""Perplexity and bits from nats. Standard library only, so that metrics need no tensor library."""

import math


def perplexity_of(loss: float) -> float:
    """exp(nats per token); inf where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def bits_of(nats: float) -> float:
    """Return nats as bits."""
    return nats / math.log(2)
