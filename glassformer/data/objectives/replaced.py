"""Replaced tokens: a small generator guesses hidden words, a discriminator tells which tokens are not the original's.

Clark et al., 2020 (ELECTRA); the shared but disentangled embeddings are from He et al., 2021 (DeBERTaV3, section 3.3).
The two are trained together, on the mean cross-entropy of the generator plus 50 times the mean binary cross-entropy of
the discriminator over all real tokens; no gradient goes from one to the other through the drawn words.

Shapes: ``B`` rows, ``T`` tokens, ``N`` hidden words, ``V`` vocabulary.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from glassformer.config import LMHead, TaskHead
from glassformer.config.checks import check_choice, check_number
from glassformer.data.objectives.base import IGNORE, Batch, Loss, Term
from glassformer.data.objectives.cross_entropy import token_cross_entropy
from glassformer.data.objectives.masked import hide_words
from glassformer.data.objectives.masking import Masking
from glassformer.data.objectives.model_io import ModelRequirement
from glassformer.data.objectives.rows import Ids, Padding, Text, as_text
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast

GENERATES = ModelRequirement("ReplacedTokens (its generator)", LMHead, families=("encoder",))
DISCRIMINATES = ModelRequirement("ReplacedTokens (its discriminator)", TaskHead, ("replaced",), ("encoder",))
TABLE = "embed.token.weight"
SHARED = ("token", "position", "segment")  # tables that the paper's two models have in common


class GeneratorAndDiscriminator(nn.Module):
    """The two models as one, so that one optimiser trains both.

    ``share`` says what of their embeddings is common:

    * ``none``: nothing.
    * ``tied``: the tables themselves, trained by both (ELECTRA).
    * ``disentangled``: the discriminator reads the generator's table of tokens plus a difference of its own, which
      starts at 0; only the difference is trained by it (DeBERTaV3). ``finished`` gives the sum back as one table.
    """

    def __init__(
        self,
        generator: Transformer,
        discriminator: Transformer,
        share: Literal["none", "tied", "disentangled"] = "tied",
    ) -> None:
        super().__init__()
        check_choice("share", share, ("none", "tied", "disentangled"))
        GENERATES.check(generator)
        DISCRIMINATES.check(discriminator)
        self.generator, self.discriminator, self.share = generator, discriminator, share
        if share == "tied":
            for name in SHARED:
                self._tie(name)
        if share == "disentangled":
            self._tie("token")  # checks that they fit
            difference = torch.zeros_like(generator.embed.get_parameter("token.weight"))
            discriminator.embed.get_submodule("token").weight = nn.Parameter(difference)

    def _tie(self, name: str) -> None:
        mine, theirs = getattr(self.generator.embed, name), getattr(self.discriminator.embed, name)
        if mine is None and theirs is None:
            return
        if mine is None or theirs is None or mine.weight.shape != theirs.weight.shape:
            sizes = ["none" if one is None else str(tuple(one.weight.shape)) for one in (mine, theirs)]
            raise ValueError(
                f"share={self.share!r} needs tables of one size; those of the {name}s are {sizes[0]} in the generator "
                f"and {sizes[1]} in the discriminator. Set embed.width of both alike, or share='none'."
            )
        theirs.weight = mine.weight

    def discriminate(self, inputs: Mapping[str, Tensor]) -> Float[Tensor, "B T"]:
        """The score of each token, above zero where it looks replaced."""
        if self.share != "disentangled":
            return self.discriminator(**inputs)
        own = self.discriminator.get_parameter(TABLE)
        table = self.generator.get_parameter(TABLE).detach() + own
        return functional_call(self.discriminator, {TABLE: table}, kwargs=dict(inputs))

    def finished(self) -> Transformer:
        """A copy of the discriminator that stands alone."""
        alone = copy.deepcopy(self.discriminator)
        if self.share == "disentangled":
            with torch.no_grad():
                alone.get_parameter(TABLE).add_(self.generator.get_parameter(TABLE))
        return alone


def draw_tokens(logits: Float[Tensor, "N V"], seed: int) -> Int[Tensor, "N"]:
    """A token for each row, by its softmax: the highest of the scores plus Gumbel noise (Gumbel, 1954).

    The noise comes from the seed and the device alone; a CPU and a GPU draw different noise from the same seed.
    """
    generator = torch.Generator(logits.device).manual_seed(seed)
    scores = upcast(logits.detach())
    waiting = torch.empty_like(scores).exponential_(generator=generator)
    return (scores - waiting.log()).argmax(-1)


@dataclass(frozen=True, kw_only=True)
class ReplacedTokens:
    """Train a ``GeneratorAndDiscriminator``.

    The paper's program puts the mask token in 85 % of the chosen places and leaves the others as they are:
    ``Masking(vocabulary, split=(0.85, 0.0, 0.15))``.
    """

    masking: Masking
    weight: float = 50.0  # of the discriminator
    padding: Padding = field(default_factory=Padding)

    def __post_init__(self) -> None:
        check_number(weight=self.weight)

    def prepare(self, examples: Sequence[Ids | Text], generator: torch.Generator) -> Batch:
        """Framed texts, in which words are hidden anew at every call, and a seed for the draws."""
        batch = hide_words([as_text(example) for example in examples], self.masking, generator, self.padding)
        seed = int(torch.randint(2**62, (), generator=generator))
        counts = {"generator": batch.counts["masked"], "discriminator": batch.tokens}
        return replace(batch, labels={"generator": batch.labels["masked"]}, counts=counts, seed=seed)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Two terms, ``generator`` over hidden words and ``discriminator`` over all real tokens."""
        if not isinstance(model, GeneratorAndDiscriminator):
            raise TypeError(f"ReplacedTokens trains a GeneratorAndDiscriminator, and this is a {type(model).__name__}.")
        logits = model.generator(**batch.inputs)
        guessed = token_cross_entropy(logits, batch.labels["generator"])
        drawn, is_replaced = _draw(logits, batch)
        scores = upcast(model.discriminate(batch.inputs | {"ids": drawn}))
        each = F.binary_cross_entropy_with_logits(scores, is_replaced.to(scores.dtype), reduction="none")
        real = batch.inputs.get("mask", torch.ones_like(is_replaced))
        told = (((scores > 0) == is_replaced) & real).sum()
        words, tokens = batch.counts["generator"], batch.counts["discriminator"]
        terms = {
            "generator": Term(guessed.total, words),
            "discriminator": Term(each.where(real, 0.0).sum(), tokens, self.weight),
        }
        accuracy = {"generator accuracy": (guessed.right, words), "discriminator accuracy": (told, tokens)}
        return Loss(terms, accuracy | {"replaced": (is_replaced.sum(), words)})


def _draw(logits: Float[Tensor, "B T V"], batch: Batch) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """The row with the generator's words in the hidden places, and where that is not what stood there."""
    labels = batch.labels["generator"]
    hidden = labels != IGNORE
    original = labels.where(hidden, batch.inputs["ids"])  # what was not hidden is still there
    drawn = original.masked_scatter(hidden, draw_tokens(logits[hidden], batch.seed))
    return drawn, drawn != original
