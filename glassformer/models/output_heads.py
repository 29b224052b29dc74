"""Heads: from the vectors of a stack to an answer, as a page of facts says.

Shapes: ``B`` batch, ``T`` tokens, ``D`` model width, ``E`` width of the embedding table, ``V`` vocabulary, ``C``
labels.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer import config
from glassformer.config.checks import check_choice
from glassformer.nn.dropout import dropout
from glassformer.nn.feedforward import activation_named
from glassformer.nn.linear import Embedding, Linear, linear
from glassformer.nn.norm import make_norm, upcast


class LMHead(nn.Module):
    """(linear map → activation → norm) → logits over the vocabulary.

    A tied head owns no matrix: it is handed the embedding table at each call, so there is nothing to keep equal.
    """

    fused = False

    def __init__(self, facts: config.LMHead, model: config.Model) -> None:
        super().__init__()
        self.facts = facts
        narrow = facts.tied or facts.transform is not None  # the transform ends at the width of the embeddings
        width = (model.embed.width or model.width) if narrow else model.width
        self.transform = Linear(model.width, width, bias=True) if facts.transform is not None else None
        self.norm = make_norm(model.norm, width) if facts.transform is not None else None
        self.out = None if facts.tied else Linear(width, model.vocab)
        bias = torch.empty(model.vocab) if facts.bias else None
        if facts.bias_trained:
            self.bias = None if bias is None else nn.Parameter(bias)
        else:
            self.register_buffer("bias", bias)
        decoder = facts.mask_decoder
        self.position = Embedding(decoder.length, model.width) if decoder is not None else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A bias of 0; the parts have starting values of their own."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, x: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None, table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "B T V"]:
        """Logits for every token; softmax is the caller's."""
        del real  # every token gets its own answer
        if self.transform is not None and self.norm is not None:
            x = self.norm(activation_named(self.facts.transform or "", fused=self.fused)(self.transform(x)))
        if self.facts.scale != 1.0:
            x = x * self.facts.scale
        if self.out is None:
            return linear(x, table, self.bias, fused=self.fused)
        logits = self.out(x)
        return logits if self.bias is None else logits + self.bias.to(logits.dtype)


class TaskHead(nn.Module):
    """pool → (linear map → activation) → scores of the labels; see ``config.TaskHead``."""

    fused = False

    def __init__(self, facts: config.TaskHead, model: config.Model) -> None:
        super().__init__()
        self.facts = facts
        self.hidden = Linear(model.width, model.width, bias=True) if facts.hidden is not None else None
        self.out = Linear(model.width, len(facts.labels), bias=facts.bias) if facts.labels else None

    def forward(
        self, x: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None, table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "B ..."]:
        """``(B, C)`` for a whole sequence, ``(B, T, C)`` per token; ``(B, T)`` where the question is yes or no."""
        del table
        if self.facts.pool is not None:
            x = pool(x, real, self.facts.pool)
        if self.hidden is not None:
            x = self.hidden(dropout(x, self.facts.input_dropout, self.training))
            x = activation_named(self.facts.hidden or "", fused=self.fused)(x)
        if self.out is None:
            return x
        scores = self.out(dropout(x, self.facts.dropout, self.training))
        return scores.squeeze(-1) if self.facts.task == "replaced" else scores


class EmbeddingHead(nn.Module):
    """One vector per sequence, of length 1 if asked: their products are cosines."""

    def __init__(self, facts: config.EmbeddingHead, model: config.Model) -> None:
        super().__init__()
        del model
        self.facts = facts

    def forward(
        self, x: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None, table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "B D"]:
        """The pooled vector of each row."""
        del table
        x = pool(x, real, self.facts.pool)
        if not self.facts.normalise:
            return x
        wide = upcast(x)
        return (wide / wide.norm(dim=-1, keepdim=True).clamp(min=1e-12)).to(x.dtype)


class PretrainingHead(nn.Module):
    """A language-model head and a head for pairs of sentences side by side."""

    def __init__(self, facts: config.PretrainingHead, model: config.Model) -> None:
        super().__init__()
        self.lm = LMHead(facts.lm, model)
        self.pair = TaskHead(facts.pair, model)

    def forward(
        self, x: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None, table: Float[Tensor, "V E"]
    ) -> tuple[Float[Tensor, "B T V"], Float[Tensor, "B C"]]:
        """(Logits over the vocabulary, scores of the pair)."""
        return self.lm(x, real, table), self.pair(x, real, table)


AnyHead = LMHead | TaskHead | EmbeddingHead | PretrainingHead


def make_head(model: config.Model) -> AnyHead | None:
    """The head that the facts ask for."""
    facts = model.head
    if facts is None:
        return None
    if isinstance(facts, config.LMHead):
        return LMHead(facts, model)
    if isinstance(facts, config.TaskHead):
        return TaskHead(facts, model)
    if isinstance(facts, config.EmbeddingHead):
        return EmbeddingHead(facts, model)
    if isinstance(facts, config.PretrainingHead):
        return PretrainingHead(facts, model)
    raise TypeError(f"no head is built from {type(facts).__name__}.")


def pool(x: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None, how: str) -> Float[Tensor, "B D"]:
    """One vector per row: that of its first or last real token, or the mean over real tokens.

    Which slots are real is said by the mask, never guessed from ids, so the side of the padding does not matter.
    """
    check_choice("pool", how, ("first", "last", "mean"))
    if real is None:
        return x.mean(-2) if how == "mean" else x[:, 0 if how == "first" else -1]
    if how == "mean":
        total = upcast(x).where(real.unsqueeze(-1), 0.0).sum(-2)  # half precision cannot hold long sums
        return (total / real.sum(-1, keepdim=True).clamp(min=1)).to(x.dtype)
    slots = torch.arange(real.shape[-1], device=real.device).expand_as(real)
    last = slots.where(real, -1).amax(-1)
    chosen = slots.where(real, real.shape[-1]).amin(-1) if how == "first" else last
    return x[torch.arange(len(x), device=x.device), chosen.clamp(0, real.shape[-1] - 1)]
