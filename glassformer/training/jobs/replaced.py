"""Replaced tokens: a small model guesses hidden words, and the model that is kept tells which tokens are not the
original's (Clark et al., 2020; with shared but disentangled embeddings: He et al., 2021)."""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import nn

from glassformer.config import Model, TaskHead
from glassformer.config.checks import check_number
from glassformer.data.objectives import IGNORE, GeneratorAndDiscriminator, Masking, ReplacedTokens
from glassformer.data.objectives import Text as Row
from glassformer.data.objectives.rows import as_ids
from glassformer.families import lineages
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.training.build_model import check_new, new_facts
from glassformer.training.jobs.base import RunContext
from glassformer.training.jobs.hiding import Filled, Hiding, answer_of, readable, word
from glassformer.training.jobs.masked import HiddenWords


@dataclass(frozen=True, kw_only=True)
class ReplacedOptions:
    """What the two models share of their embeddings, and how words are hidden from the first."""

    share: Literal["none", "tied", "disentangled"] = "tied"
    weight: float = 50.0  # of the loss that tells replaced tokens, beside that of the guessed words
    masking: Hiding = field(default_factory=lambda: Hiding(split=(0.85, 0.0, 0.15)))
    rows: Filled = "full"

    def __post_init__(self) -> None:
        check_number(weight=self.weight)


class Replaced(HiddenWords):
    """``model.sizes`` are those of the model that is kept; ``model.helper`` says what is different in the other."""

    head = "none"  # that of ``finish``: not every lineage names a head that tells replaced tokens
    options_type = ReplacedOptions
    keeps_all = False

    def check(self) -> None:
        """Raise unless both models are new and can be made."""
        super().check()
        if self.recipe.model.start is not None:
            raise ValueError("the job replaced builds two new models; say model.lineage in place of model.start.")
        check_new(self.recipe.model, "lm", **self.recipe.model.helper)

    def finish(self, facts: Model) -> Model:
        """A head with one score per token."""
        if facts.encoder is None or facts.decoder is not None:
            raise ValueError(f"the job replaced trains an encoder; this model is of the family {facts.family}.")
        head = TaskHead(task="replaced", labels=("replaced",), hidden=facts.encoder.ffn.activation)
        return replace(facts, head=head)

    def export_remedy(self) -> str | None:
        """Not every lineage has a head that tells replaced tokens, and what is taught later gets another."""
        return "Without its head it can: glassformer convert --head none."

    def build(self, kit: RunContext) -> nn.Module:
        """Both models as one."""
        plan = self.recipe.model
        assert plan.lineage is not None
        sizes = {**plan.sizes, **plan.helper}
        helper = new_facts(lineages()[plan.lineage], sizes, "lm", kit.tokenizer)
        return GeneratorAndDiscriminator(Transformer(helper), Transformer(kit.facts), self.options.share)

    def shown(self, model: nn.Module) -> Transformer:
        """The model that tells replaced tokens, on its own."""
        return model.finished() if isinstance(model, GeneratorAndDiscriminator) else unwrapped(model)

    def objective(self, kit: RunContext) -> ReplacedTokens:
        """Cross-entropy of the guessed words, and of which tokens are replaced."""
        return ReplacedTokens(masking=self.options.masking.masking(kit.tokenizer), weight=self.options.weight)

    def sample(self, loaded: Loaded, text: Row, masking: Masking) -> str:
        """A row with random tokens put in, and below it which look replaced to the model."""
        words = None if text.words is None else as_ids(text.words)
        random = replace(masking, split=(0.0, 1.0, 0.0))
        seen, labels = random.hide(as_ids(text.ids), torch.Generator().manual_seed(0), words)
        marked = answer_of(loaded, replace(text, ids=seen))[0].cpu() > 0
        changed = (labels != IGNORE) & (labels != seen)  # a random token may be the very one
        found = {
            "found": marked & changed,
            "missed": ~marked & changed,
            "wrongly marked": marked & ~changed,
        }
        names = {
            kind: ", ".join(word(loaded.tokenizer, number) for number in seen[places].tolist())
            for kind, places in found.items()
        }
        told = " · ".join(f"{kind}: {some}" for kind, some in names.items() if some)
        return f"{readable(loaded.tokenizer, seen.tolist())}\n  → {told}"
