"""Perplexity and bits, from a sum of negative log-likelihoods and a count: never from means of batches.

Perplexity is at least 1. Models with different tokenizers can be compared only by bits per byte.
"""

from dataclasses import dataclass

from glassformer.config.checks import check_positive
from glassformer.tasks.perplexity import bits_of, perplexity_of

_ROUNDING = 1e-4  # nats per token by which a sum of rounded numbers may fall below 0


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """How surprised a model is by a text."""

    nll: float  # Σ −ln p(token), in nats
    tokens: int  # that were predicted
    text_bytes: int | None = None  # of the same text in UTF-8

    def __post_init__(self) -> None:
        check_positive(tokens=self.tokens, text_bytes=1 if self.text_bytes is None else self.text_bytes)
        if self.nll < -_ROUNDING * self.tokens:
            raise ValueError(f"nll must be at least 0, got {self.nll}: of log-probabilities, give the negative sum.")

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nll / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss); inf where that overflows."""
        return perplexity_of(self.loss)

    @property
    def bits_per_token(self) -> float:
        """The loss to the base 2."""
        return bits_of(self.loss)

    @property
    def bits_per_byte(self) -> float | None:
        """The bits of the whole text over its bytes, if they are known."""
        return None if self.text_bytes is None else bits_of(self.nll) / self.text_bytes

    def metrics(self) -> dict[str, float]:
        """Perplexity and bits; lower is better."""
        metrics = {"perplexity": self.perplexity, "bits per token": self.bits_per_token}
        bits_per_byte = self.bits_per_byte
        return metrics if bits_per_byte is None else metrics | {"bits per byte": bits_per_byte}


def perplexity(nll: float, tokens: int, *, text_bytes: int | None = None) -> Perplexity:
    """How surprised a model is by a text.

    Args:
        nll: the sum of −ln p over all predicted tokens of all batches.
        tokens: how many were predicted.
        text_bytes: how many bytes of UTF-8 these tokens stand for.
    """
    return Perplexity(nll=nll, tokens=tokens, text_bytes=text_bytes)
