"""Masking words: which tokens of a row are hidden, and what stands in their place (Devlin et al., 2018, section 3.1).

How many are hidden differs between the papers' programs, and ``count`` says which way to go:

* ``fixed``: round(share · tokens), at least 1: BERT's and ELECTRA's programs.
* ``rounded``: ⌊share · tokens + u⌋ for a random u in [0, 1), so that the share is exact on average: RoBERTa's.
* ``independent``: every token by itself with chance ``share``: XLM's.

In the first two, tokens of the frame count towards the length, as in those programs, though they are never hidden
themselves. In each of the three at least one token of a row is hidden, if any can be. Left out: a largest number of
hidden tokens per row (their programs need it for fixed shapes), and XLM's preference for rare words.

Shapes: ``T`` tokens of one row, no padding.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.config.checks import check_choice, check_positive, check_probability
from glassformer.data.objectives.base import IGNORE
from glassformer.text.tokenizer import Tokenizer

Count = Literal["fixed", "rounded", "independent"]
COUNTS = ("fixed", "rounded", "independent")


@dataclass(frozen=True)
class Vocabulary:
    """What masking must know of a vocabulary."""

    size: int
    mask: int  # the id of the mask token
    special: frozenset[int]  # ids that are never hidden and never put in the place of a word

    def __post_init__(self) -> None:
        check_positive(size=self.size)
        wrong = [number for number in (self.mask, *self.special) if not 0 <= number < self.size]
        if wrong:
            raise ValueError(f"special ids {wrong} are outside a vocabulary of {self.size}.")
        if len(self.special) == self.size:
            raise ValueError(f"all {self.size} ids are special; none is left to stand for a random word.")

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Vocabulary":
        """That of a tokenizer: every token with a role, and every other that it marks as special."""
        if tokenizer.mask is None:
            raise ValueError("this tokenizer has no mask token, so words cannot be hidden; add one to its vocabulary.")
        added = tokenizer.backend.get_added_tokens_decoder()
        marked = {number for number, token in added.items() if token.special and number < tokenizer.vocab_size}
        return cls(
            tokenizer.vocab_size,
            tokenizer.mask,
            frozenset(marked | set(map(tokenizer.id_of, tokenizer.special.values()))),
        )

    @cached_property
    def is_ordinary(self) -> Bool[Tensor, "_"]:
        """True at the ids that are not special."""
        return torch.ones(self.size, dtype=torch.bool).index_fill(0, torch.tensor(sorted(self.special)).long(), False)

    @cached_property
    def ordinary(self) -> Int[Tensor, "_"]:
        """The ids that are not special."""
        return self.is_ordinary.nonzero().squeeze(-1)


def choose_tokens(
    maskable: Bool[Tensor, "T"],
    share: float,
    generator: torch.Generator,
    *,
    count: Count = "fixed",
    words: Int[Tensor, "T"] | None = None,
) -> Bool[Tensor, "T"]:
    """Which tokens to hide, of those that may be.

    With ``words``, the number of each token's word, all tokens of a word are hidden or none; with a fixed number of
    tokens, a word that would exceed it is passed over, unless nothing else is hidden.
    """
    found, sizes = maskable.nonzero().squeeze(-1), None  # what is drawn: places, or numbers of words
    if words is not None:
        found, sizes = torch.unique(words[maskable], return_counts=True)
    if not len(found):
        return torch.zeros_like(maskable)
    order = torch.randperm(len(found), generator=generator)
    if count == "independent":
        taken = order[torch.rand(len(found), generator=generator) < share]
    else:
        uniform = float(torch.rand((), generator=generator, dtype=torch.float64)) if count == "rounded" else None
        length = share * len(maskable)
        budget = max(1, round(length) if uniform is None else math.floor(length + uniform))
        taken = order[:budget] if sizes is None else order[_within(sizes[order], budget)]
    drawn = found[taken if len(taken) else order[:1]]
    if words is not None:
        return torch.isin(words, drawn) & maskable
    return torch.zeros_like(maskable).index_fill(0, drawn, True)


def _within(sizes: Int[Tensor, "W"], budget: int) -> Bool[Tensor, "W"]:
    """Which words to take, in this order, so that their tokens are no more than ``budget``."""
    taken = []
    for size in sizes.tolist():
        taken.append(size <= budget)
        budget -= size if taken[-1] else 0
    return torch.tensor(taken)


def replace_tokens(
    ids: Int[Tensor, "T"],
    chosen: Bool[Tensor, "T"],
    vocabulary: Vocabulary,
    generator: torch.Generator,
    split: tuple[float, float, float] = (0.8, 0.1, 0.1),
) -> Int[Tensor, "T"]:
    """Ids with the chosen ones replaced: by the mask token, by a random ordinary token, or by themselves.

    ``split`` are the chances of the three; each token draws for itself, also within a word.
    """
    number = int(chosen.sum())
    uniform = torch.rand(number, generator=generator, dtype=torch.float64)
    random = vocabulary.ordinary[torch.randint(len(vocabulary.ordinary), (number,), generator=generator)]
    instead = ids[chosen].where(uniform >= split[0] + split[1], random).where(uniform >= split[0], vocabulary.mask)
    return ids.masked_scatter(chosen, instead)


@dataclass(frozen=True, kw_only=True)
class Masking:
    """How words are hidden."""

    vocabulary: Vocabulary
    share: float = 0.15
    split: tuple[float, float, float] = (0.8, 0.1, 0.1)  # mask token, random token, the token itself
    count: Count = "fixed"
    whole_words: bool = False

    def __post_init__(self) -> None:
        check_probability(share=self.share)
        check_choice("count", self.count, COUNTS)
        if min(self.split) < 0 or not math.isclose(sum(self.split), 1):
            raise ValueError(
                f"split is the chances of mask, random and same token, which add up to 1; got {self.split}."
            )

    def hide(
        self, ids: Int[Tensor, "T"], generator: torch.Generator, words: Int[Tensor, "T"] | None = None
    ) -> tuple[Int[Tensor, "T"], Int[Tensor, "T"]]:
        """(What is read, what is to be guessed: the original id where one was chosen, else ``IGNORE``)."""
        if self.whole_words and words is None:
            raise ValueError("whole_words needs to know which tokens make a word: say words, a number per token.")
        maskable = self.vocabulary.is_ordinary[ids]
        if words is not None:
            maskable &= words >= 0
        chosen = choose_tokens(
            maskable, self.share, generator, count=self.count, words=words if self.whole_words else None
        )
        noisy = replace_tokens(ids, chosen, self.vocabulary, generator, self.split)
        return noisy, ids.where(chosen, IGNORE)
