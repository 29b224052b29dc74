"""What an account is asked about, as a module: facts are built without memory, other models are taken as they are."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from glassformer.config import Model
from glassformer.hub import Loaded
from glassformer.inspect.account.account import WIDTHS
from glassformer.inspect.account.trace import Inputs
from glassformer.inspect.facts import facts_of
from glassformer.models.language_model import TransformerLM
from glassformer.models.transformer import Transformer


@dataclass(frozen=True)
class Subject:
    """A module, its name and, of a Transformer of this library, its facts."""

    name: str
    module: nn.Module
    dtype: str
    config: Model | None = None

    @property
    def transformer(self) -> Transformer:
        """The module of one that has facts."""
        assert isinstance(self.module, Transformer)
        return self.module

    def inputs_of(self, inputs: Inputs | None, batch: int, context: int | None) -> Inputs:
        """What the module is called with; ids for a language model whose inputs are plain."""
        if inputs is not None:
            return inputs
        if not isinstance(self.module, TransformerLM):
            raise ValueError(
                f"a {type(self.module).__name__} is accounted for with the inputs of its forward: "
                f"account(module, inputs), a tensor, several of them, or a dictionary by name."
            )
        return torch.zeros(batch, context or self.module.context_length, dtype=torch.long)


def subject_of(model: Model | str | Path | nn.Module | Loaded, dtype: str | None) -> Subject:
    """The module that is meant; facts are built in ``dtype``, float32 unless given, and on no device."""
    if isinstance(model, Loaded):
        model = model.model
    if not isinstance(model, nn.Module):
        facts = model if isinstance(model, Model) else facts_of(model)
        name, dtype = "model" if isinstance(model, Model) else str(model), dtype or "float32"
        return Subject(name, Transformer(facts, "meta", getattr(torch, dtype)), dtype, facts)
    own = _dtype(model)
    if dtype is not None and dtype != own:
        raise ValueError(f"this module is of {own}, not {dtype}; convert it with module.to(torch.{dtype}).")
    if own not in WIDTHS:
        raise ValueError(f"this module is of {own}, and accounts are of {', '.join(WIDTHS)}; convert it with .to().")
    config = model.config if isinstance(model, Transformer) else None
    return Subject(type(model).__name__, model, own, config)


def _dtype(module: nn.Module) -> str:
    """The type of a module's first floating-point parameter; float32 if it has none."""
    floating = (one.dtype for one in module.parameters() if one.is_floating_point())
    return str(next(floating, torch.float32)).removeprefix("torch.")
