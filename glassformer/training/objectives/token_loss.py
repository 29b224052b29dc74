"""Cross-entropy of tokens, and how objectives call a model to get it.

Label smoothing (Szegedy et al., 2016, section 7) gives the label the probability 1 − ε and spreads ε evenly over the
whole vocabulary, the label included. A position whose label is ``IGNORE`` adds exactly 0.

Shapes: ``...`` any axes, ``B`` rows, ``T`` tokens (of an encoder-decoder: of its decoder), ``V`` vocabulary, ``D``
model width, ``N`` positions that are counted in the loss.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glassformer.config.checks import check_positive, check_probability
from glassformer.config.model import Model
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.nn.norm import upcast
from glassformer.training.objectives.base import IGNORE


class TokenLoss(NamedTuple):
    """Sums over the positions that are counted in the loss."""

    total: Float[Tensor, ""]  # cross-entropy in nats
    right: Int[Tensor, ""]  # the number of correct predictions; during training a tie counts as correct


def token_cross_entropy(
    logits: Float[Tensor, "... V"], labels: Int[Tensor, "..."], smoothing: float = 0.0
) -> TokenLoss:
    """Cross-entropy and correct predictions, summed; positions with the label ``IGNORE`` add exactly 0."""
    check_probability(smoothing=smoothing)
    rows, flat = upcast(logits).reshape(-1, logits.shape[-1]), labels.reshape(-1)
    total = F.cross_entropy(rows, flat, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    return TokenLoss(total, _count_right(logits.detach(), labels, exactly=not torch.is_grad_enabled()))


def _count_right(logits: Tensor, labels: Tensor, exactly: bool) -> Tensor:
    if exactly:
        return ((logits.argmax(-1) == labels) & (labels != IGNORE)).sum()
    # In training this runs every step, and amax is several times faster than argmax.
    own = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)  # any score where the label is IGNORE
    return ((own >= logits.amax(-1)) & (labels != IGNORE)).sum()


def token_losses(
    logits: Float[Tensor, "... V"], labels: Int[Tensor, "..."], smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], int]:
    """(Sum of the cross-entropies in nats, number of positions)."""
    return token_cross_entropy(logits, labels, smoothing).total, int((labels != IGNORE).sum())


def chunked_cross_entropy(
    hidden: Float[Tensor, "... D"],
    head: Callable[[Tensor], Tensor],
    labels: Int[Tensor, "..."],
    chunk: int,
    smoothing: float = 0.0,
) -> TokenLoss:
    """``token_cross_entropy`` of ``head(hidden)``, with the logits of at most ``chunk`` positions in memory.

    Logits are recomputed in the backward pass, which costs one more product with the vocabulary. Positions that are not
    counted in the loss are left out before the head, which for masked words saves most of its work.

    Args:
        hidden: vectors before the head.
        head: from vectors ``(1, N, D)`` to logits ``(1, N, V)``, each position by itself.
        labels: the target at each position, or ``IGNORE``.
        chunk: positions at a time.
        smoothing: as in ``token_losses``.
    """
    check_positive(chunk=chunk)

    def chunk_loss(vectors: Tensor, targets: Tensor) -> TokenLoss:
        return token_cross_entropy(head(vectors[None]), targets[None], smoothing)

    counted = labels != IGNORE
    vectors, targets = hidden[counted], labels[counted]  # N D, N
    parts = [
        TokenLoss(*checkpoint(chunk_loss, *both, use_reentrant=False, preserve_rng_state=False))
        for both in zip(torch.split(vectors, chunk), torch.split(targets, chunk), strict=True)
    ]
    if not len(targets):
        parts = [TokenLoss(vectors.sum(), targets.sum())]  # 0, but still a function of the parameters
    return TokenLoss(torch.stack([p.total for p in parts]).sum(), torch.stack([p.right for p in parts]).sum())


def chunked_token_loss(
    hidden: Float[Tensor, "... D"],
    head: Callable[[Tensor], Tensor],
    labels: Int[Tensor, "..."],
    chunk: int,
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], int]:
    """``token_losses`` of ``head(hidden)``: the same number and gradients in less memory."""
    return chunked_cross_entropy(hidden, head, labels, chunk, smoothing).total, int((labels != IGNORE).sum())


class ModelRequirement(NamedTuple):
    """The family and head of the models that an objective can train."""

    objective: str  # its name, for the error
    head: type
    tasks: tuple[str, ...] = ()  # allowed tasks of a TaskHead
    families: tuple[str, ...] = ("encoder", "decoder", "encoder-decoder")

    def check(self, model: nn.Module) -> Model:
        """The facts of the model; raise if its family or head does not fit."""
        facts = unwrapped(model).config
        task = getattr(facts.head, "task", "")
        if isinstance(facts.head, self.head) and facts.family in self.families and task in (self.tasks or (task,)):
            return facts
        wanted = _named(self.head, " or ".join(self.tasks))
        has = "none" if facts.head is None else _named(type(facts.head), task)
        raise ValueError(
            f"{self.objective} trains a model of the family {' or '.join(self.families)} with the head {wanted}; this "
            f"one is of the family {facts.family} and its head is {has}. Set head with glassformer.config.change."
        )


def _named(head: type, tasks: str) -> str:
    return f"{head.__name__} for {tasks}" if tasks else head.__name__


def final_hidden(model: Transformer, inputs: Mapping[str, Tensor]) -> Float[Tensor, "B T D"]:
    """The final hidden states, which the head reads."""
    own: dict[str, Any] = {name: tensor for name, tensor in inputs.items() if name not in ("target", "target_mask")}
    if model.config.encoder is None:
        return model.decode(**own)
    hidden = model.encode(**own)
    if model.config.decoder is None:
        return hidden
    return model.decode(inputs["target"], inputs.get("target_mask"), memory=hidden, memory_mask=inputs.get("mask"))


def model_token_loss(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    labels: Int[Tensor, "B T"],
    *,
    smoothing: float = 0.0,
    chunk: int | None = None,
) -> TokenLoss:
    """Cross-entropy of a model with a head over the vocabulary, ``chunk`` positions at a time or all at once.

    Positions that are not counted in the loss are left out before the head wherever the model can be called in two
    parts.
    """
    inner = unwrapped(model)
    if chunk is not None:
        return chunked_cross_entropy(final_hidden(inner, inputs), inner.apply_head, labels, chunk, smoothing)
    if _is_bare(model):
        counted = (labels != IGNORE).nonzero(as_tuple=True)  # before the forward pass: on a GPU this synchronises
        if 0 < len(counted[0]) < labels.numel():  # if none is, the whole call gives the head gradients of 0
            hidden = final_hidden(inner, inputs)[counted]  # N D
            return token_cross_entropy(inner.apply_head(hidden[None]), labels[counted][None], smoothing)
    return token_cross_entropy(model(**inputs), labels, smoothing)


def _is_bare(model: nn.Module) -> bool:
    """Whether ``model(...)`` may be bypassed: it has no wrapper, no hooks and is not compiled as a whole."""
    hooks = (model._forward_pre_hooks, model._forward_hooks, model._backward_pre_hooks, model._backward_hooks)
    return type(model) is Transformer and model._compiled_call_impl is None and not any(hooks)


def head_output(model: nn.Module, inputs: dict[str, Tensor]) -> Any:
    """The output of a task head; an encoder-decoder's decoder reads the same text after its start token."""
    facts = unwrapped(model).config
    if facts.family != "encoder-decoder":
        return model(**inputs)
    if facts.tokens.start is None:
        raise ValueError("the facts of this model do not say its decoder's start token; set tokens.start.")
    ids = inputs["ids"]
    mask = inputs.get("mask", torch.ones_like(ids, dtype=torch.bool))
    return model(**inputs, target=_shift_right(ids, mask, facts.tokens.start), target_mask=mask)


def _shift_right(ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], start: int) -> Int[Tensor, "B T"]:
    """The tokens of each row shifted right by one, after a start token, on either side of the padding."""
    before = mask.roll(1, -1)
    before[:, 0] = False
    return ids.roll(1, -1).where(before, start)
