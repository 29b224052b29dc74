"""Replaced tokens: a small generator predicts masked tokens, a discriminator predicts which tokens were replaced.

Clark et al., 2020; shared but disentangled embeddings: He et al., 2021, section 3.3. The two are trained together, on
the mean cross-entropy of the generator plus 50 times the mean binary cross-entropy of the discriminator over all real
tokens; no gradient flows from one to the other through the sampled tokens.

Shapes: ``B`` rows, ``T`` tokens, ``N`` masked tokens, ``V`` vocabulary.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from glassformer.config import LMHead, ModelConfig, TaskHead
from glassformer.config.checks import check_choice, check_positive_number
from glassformer.config.model import a_family
from glassformer.families import lineages
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.nn.norm import upcast
from glassformer.objectives.base import (
    IGNORE,
    Batch,
    Ids,
    Loss,
    LossTerm,
    ModelRequirement,
    Padding,
    TokenRow,
    as_ids,
    as_token_row,
    token_cross_entropy,
)
from glassformer.objectives.job import RunContext
from glassformer.objectives.masking import (
    Masking,
    MaskingJob,
    MaskingOptions,
    RowFill,
    masked_batch,
    predict_row,
    show_ids,
    show_token,
)
from glassformer.recipes.new_models import check_new, new_facts

GENERATES = ModelRequirement("ReplacedTokens (its generator)", LMHead, families=("encoder",))
DISCRIMINATES = ModelRequirement("ReplacedTokens (its discriminator)", TaskHead, ("replaced",), ("encoder",))
TABLE = "embed.token.weight"
SHARED = ("token", "position", "segment")  # embedding tables that the paper's two models share


class GeneratorAndDiscriminator(nn.Module):
    """The two models as one module, so that one optimiser trains both.

    ``share`` says which embeddings they share:

    * ``none``: nothing.
    * ``tied``: the tables themselves, trained by both (Clark et al., 2020).
    * ``disentangled``: the discriminator reads the generator's table of tokens plus a learned difference, which
      starts at 0; it trains only the difference (He et al., 2021). ``finished`` adds the two tables up.
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
            sizes = ["none" if table is None else str(tuple(table.weight.shape)) for table in (mine, theirs)]
            raise ValueError(
                f"share={self.share!r} needs tables of one size; those of the {name}s are {sizes[0]} in the generator "
                f"and {sizes[1]} in the discriminator. Give both the same embed.width, or share='none'."
            )
        theirs.weight = mine.weight

    def discriminate(self, inputs: Mapping[str, Tensor]) -> Float[Tensor, "B T"]:
        """Return the logit of each token; positive: predicted as replaced."""
        if self.share != "disentangled":
            return self.discriminator(**inputs)
        own = self.discriminator.get_parameter(TABLE)
        table = self.generator.get_parameter(TABLE).detach() + own
        return functional_call(self.discriminator, {TABLE: table}, kwargs=dict(inputs))

    def finished(self) -> Transformer:
        """Return a copy of the discriminator that does not need the generator."""
        model = copy.deepcopy(self.discriminator)
        if self.share == "disentangled":
            with torch.no_grad():
                model.get_parameter(TABLE).add_(self.generator.get_parameter(TABLE))
        return model


def draw_tokens(logits: Float[Tensor, "N V"], seed: int) -> Int[Tensor, "N"]:
    """Return a token sampled from the softmax of each row: the argmax of the logits plus Gumbel noise (Gumbel, 1954).

    The noise depends on the seed and the device alone; a CPU and a GPU draw different noise from the same seed.
    """
    generator = torch.Generator(logits.device).manual_seed(seed)
    scores = upcast(logits.detach())
    exponential = torch.empty_like(scores).exponential_(generator=generator)
    return (scores - exponential.log()).argmax(-1)


@dataclass(frozen=True, kw_only=True)
class ReplacedTokens:
    """Train a ``GeneratorAndDiscriminator``.

    The paper's program replaces 85 % of the chosen tokens by the mask token and leaves the others as they are:
    ``Masking(vocabulary, split=(0.85, 0.0, 0.15))``.
    """

    masking: Masking
    weight: float = 50.0  # of the discriminator
    padding: Padding = field(default_factory=Padding)

    def __post_init__(self) -> None:
        check_positive_number(weight=self.weight)

    def prepare(self, examples: Sequence[Ids | TokenRow], generator: torch.Generator) -> Batch:
        """Return rows with special tokens; tokens are masked anew at every call, and a seed for sampling is drawn."""
        batch = masked_batch([as_token_row(example) for example in examples], self.masking, generator, self.padding)
        seed = int(torch.randint(2**62, (), generator=generator))
        counts = {"generator": batch.counts["masked"], "discriminator": batch.tokens}
        return replace(batch, labels={"generator": batch.labels["masked"]}, counts=counts, seed=seed)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return two terms, ``generator`` over masked tokens and ``discriminator`` over all real tokens."""
        if not isinstance(model, GeneratorAndDiscriminator):
            raise TypeError(f"ReplacedTokens trains a GeneratorAndDiscriminator, and this is a {type(model).__name__}.")
        # The generator predicts the masked tokens, and its samples replace them.
        logits = model.generator(**batch.inputs)  # B T V
        generated = token_cross_entropy(logits, batch.labels["generator"])
        ids, is_replaced = _sample_ids(logits, batch)  # B T, B T
        # The discriminator predicts which tokens were replaced.
        scores = upcast(model.discriminate(batch.inputs | {"ids": ids}))  # B T
        each = F.binary_cross_entropy_with_logits(scores, is_replaced.to(scores.dtype), reduction="none")
        token_mask = batch.inputs.get("mask", torch.ones_like(is_replaced))
        right = (((scores > 0) == is_replaced) & token_mask).sum()
        masked, tokens = batch.counts["generator"], batch.counts["discriminator"]
        terms = {
            "generator": LossTerm(generated.total, masked),
            "discriminator": LossTerm(each.where(token_mask, 0.0).sum(), tokens, self.weight),
        }
        accuracy = {"generator accuracy": (generated.correct, masked), "discriminator accuracy": (right, tokens)}
        return Loss(terms, accuracy | {"replaced": (is_replaced.sum(), masked)})


def _sample_ids(logits: Float[Tensor, "B T V"], batch: Batch) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Return the ids with the generator's samples in the masked positions, and where these differ from the original."""
    labels = batch.labels["generator"]
    masked = labels != IGNORE
    original = labels.where(masked, batch.inputs["ids"])
    ids = original.masked_scatter(masked, draw_tokens(logits[masked], batch.seed))
    return ids, ids != original


@dataclass(frozen=True, kw_only=True)
class ReplacedTokensOptions:
    """Which embeddings the two models share, and how tokens are masked for the generator."""

    share: Literal["none", "tied", "disentangled"] = "tied"
    weight: float = 50.0  # of the discriminator's loss; the generator's has weight 1
    masking: MaskingOptions = field(default_factory=lambda: MaskingOptions(split=(0.85, 0.0, 0.15)))
    rows: RowFill = "full"

    def __post_init__(self) -> None:
        check_positive_number(weight=self.weight)


class ReplacedTokensJob(MaskingJob):
    """``model.sizes`` are those of the discriminator, which is saved; ``model.helper`` changes the generator's."""

    head = "none"  # ``finish`` adds it: not every lineage has a head for replaced tokens
    options_type = ReplacedTokensOptions
    keeps_all = False

    def check(self) -> None:
        """Raise unless both models are new and can be built."""
        super().check()
        if self.recipe.model.start is not None:
            raise ValueError("the job replaced builds two new models; set model.lineage instead of model.start.")
        check_new(self.recipe.model, "lm", **self.recipe.model.helper)

    def finish(self, facts: ModelConfig) -> ModelConfig:
        """Return the facts with a head that has one score per token."""
        if facts.encoder is None or facts.decoder is not None:
            raise ValueError(f"the job replaced trains an encoder; this model is {a_family(facts.family)}.")
        head = TaskHead(task="replaced", labels=("replaced",), hidden=facts.encoder.ffn.activation)
        return replace(facts, head=head)

    def export_remedies(self, facts: ModelConfig) -> Iterable[tuple[ModelConfig, str]]:
        """Return the body: few lineages have a head for replaced tokens, and fine-tuning replaces it anyway."""
        return [(replace(facts, head=None), "Without its head it can: glassformer convert --head none.")]

    def build(self, run: RunContext) -> nn.Module:
        """Return the generator and the discriminator as one module."""
        plan = self.recipe.model
        assert plan.lineage is not None
        sizes = {**plan.sizes, **plan.helper}
        helper = new_facts(lineages()[plan.lineage], sizes, "lm", run.tokenizer)
        return GeneratorAndDiscriminator(Transformer(helper), Transformer(run.facts), self.options.share)

    def saved_model(self, model: nn.Module) -> Transformer:
        """Return the discriminator on its own."""
        return model.finished() if isinstance(model, GeneratorAndDiscriminator) else unwrapped(model)

    def objective(self, run: RunContext) -> ReplacedTokens:
        """Return the objective: cross-entropy of masked tokens, and of whether each token was replaced."""
        return ReplacedTokens(masking=self.options.masking.masking(run.tokenizer), weight=self.options.weight)

    def sample(self, loaded: Loaded, text: TokenRow, masking: Masking) -> str:
        """Return a row with random tokens in it, and those that the model predicts as replaced."""
        words = None if text.words is None else as_ids(text.words)
        random = replace(masking, split=(0.0, 1.0, 0.0))
        ids, labels = random.apply(as_ids(text.ids), torch.Generator().manual_seed(0), words)
        marked = predict_row(loaded, replace(text, ids=ids))[0].cpu() > 0
        changed = (labels != IGNORE) & (labels != ids)  # a random token may equal the original
        groups = {
            "found": marked & changed,
            "missed": ~marked & changed,
            "wrongly marked": marked & ~changed,
        }
        names = {
            kind: ", ".join(show_token(loaded.tokenizer, number) for number in ids[positions].tolist())
            for kind, positions in groups.items()
        }
        summary = " · ".join(f"{kind}: {tokens}" for kind, tokens in names.items() if tokens)
        return f"{show_ids(loaded.tokenizer, ids.tolist())}\n  → {summary}"
