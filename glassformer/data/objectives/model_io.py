"""What objectives ask of a model: the right head, the vectors before it, its judgement of tokens.

Shapes: ``B`` rows, ``T`` tokens that are answered (of an encoder-decoder: of its decoder), ``D`` model width, ``N``
places that are judged.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config.model import Model
from glassformer.data.objectives.base import IGNORE
from glassformer.data.objectives.cross_entropy import TokenLoss, judge_in_chunks, token_cross_entropy
from glassformer.models.transformer import Transformer, unwrapped


class ModelRequirement(NamedTuple):
    """The kind of model that an objective can train."""

    who: str  # the objective, for the error
    head: type
    tasks: tuple[str, ...] = ()  # where the head is a TaskHead: those that will do
    families: tuple[str, ...] = ("encoder", "decoder", "encoder-decoder")

    def check(self, model: nn.Module) -> Model:
        """The facts of the model, which must be of such a family and have such a head."""
        facts = unwrapped(model).config
        task = getattr(facts.head, "task", "")
        if isinstance(facts.head, self.head) and facts.family in self.families and task in (self.tasks or (task,)):
            return facts
        wanted = _named(self.head, " or ".join(self.tasks))
        has = "none" if facts.head is None else _named(type(facts.head), task)
        raise ValueError(
            f"{self.who} trains a model of the family {' or '.join(self.families)} with the head {wanted}; this one is "
            f"of the family {facts.family} and its head is {has}. Set head with glassformer.config.change."
        )


def _named(head: type, tasks: str) -> str:
    return f"{head.__name__} for {tasks}" if tasks else head.__name__


def vectors(model: Transformer, inputs: Mapping[str, Tensor]) -> Float[Tensor, "B T D"]:
    """The vectors that the head reads."""
    own: dict[str, Any] = {name: tensor for name, tensor in inputs.items() if name not in ("target", "target_mask")}
    if model.config.encoder is None:
        return model.decode(**own)
    hidden = model.encode(**own)
    if model.config.decoder is None:
        return hidden
    return model.decode(inputs["target"], inputs.get("target_mask"), memory=hidden, memory_mask=inputs.get("mask"))


def ask_tokens(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    labels: Int[Tensor, "B T"],
    *,
    smoothing: float = 0.0,
    chunk: int | None = None,
) -> TokenLoss:
    """How a model with a head over the vocabulary judges tokens; ``chunk`` places at a time, or all at once.

    Places that are not judged are left out before the head wherever the model can be asked in two parts.
    """
    inner = unwrapped(model)
    if chunk is not None:
        return judge_in_chunks(vectors(inner, inputs), inner.apply_head, labels, chunk, smoothing)
    if _is_bare(model):
        judged = (labels != IGNORE).nonzero(as_tuple=True)  # before the model is asked: on a GPU this waits
        if 0 < len(judged[0]) < labels.numel():  # with none, every parameter of the head still gets a gradient, of 0
            some = vectors(inner, inputs)[judged]  # N D
            return token_cross_entropy(inner.apply_head(some[None]), labels[judged][None], smoothing)
    return token_cross_entropy(model(**inputs), labels, smoothing)


def _is_bare(model: nn.Module) -> bool:
    """Whether nothing hangs on ``model(...)``: no wrapper, shards, hooks of its own or graph of the whole."""
    hooks = (model._forward_pre_hooks, model._forward_hooks, model._backward_pre_hooks, model._backward_hooks)
    return type(model) is Transformer and model._compiled_call_impl is None and not any(hooks)
