"""Output heads: from the hidden states of a stack to logits over the vocabulary or of labels, or to sentence vectors.

Shapes: ``B`` batch, ``T`` tokens, ``D`` model width, ``E`` width of the embedding table, ``V`` vocabulary, ``C``
labels.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer import config
from glassformer.config.checks import check_choice
from glassformer.nn.cross_entropy import TokenLoss, token_cross_entropy
from glassformer.nn.feedforward import ACTIVATIONS
from glassformer.nn.kernels import operators
from glassformer.nn.kernels.cross_entropy import linear_cross_entropy
from glassformer.nn.kernels.operators import runs_plain_forward
from glassformer.nn.kernels.quantized import QuantizedLinear
from glassformer.nn.linear import Embedding, Linear, linear
from glassformer.nn.norm import make_norm, product_dtype, upcast


class Targets(NamedTuple):
    """Labels: a language-model head that gets them returns its loss instead of logits; see ``linear_cross_entropy``."""

    labels: Int[Tensor, "B T"]
    smoothing: float = 0.0
    chunk: int | None = None


class LMHead(nn.Module):
    """(linear layer → activation → norm) → logits over the vocabulary.

    A tied head owns no matrix: the embedding table is an argument of each call, so there is nothing to keep equal.
    """

    fused = False

    def __init__(self, facts: config.LMHead, model_config: config.ModelConfig) -> None:
        super().__init__()
        self.facts = facts
        # The logits of a tied head are products with the embedding table; a transform maps to the width of that table.
        at_table_width = facts.tied or facts.transform is not None
        width = (model_config.embed.width or model_config.width) if at_table_width else model_config.width
        self.transform = Linear(model_config.width, width, bias=True) if facts.transform is not None else None
        self.norm = make_norm(model_config.norm, width) if facts.transform is not None else None
        self.out: Linear | QuantizedLinear | None = None if facts.tied else Linear(width, model_config.vocab)
        bias = torch.empty(model_config.vocab) if facts.bias else None
        if facts.bias_trained:
            self.bias = None if bias is None else nn.Parameter(bias)
        else:
            self.register_buffer("bias", bias)
        decoder = facts.mask_decoder
        self.position = Embedding(decoder.length, model_config.width) if decoder is not None else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the bias to 0; the submodules have their own initialisation."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def fuses_loss(self, x: Tensor) -> bool:
        """Whether this head can compute its loss of vectors such as ``x`` without holding all logits.

        It can if it is fused and nothing else needs the logits. These do: a hook on the head or its matrix (but not a
        global hook, such as one that counts operators), a replaced ``forward``, another module in place of the matrix
        (an adapter, int8 weights), and float16, whose gradients are scaled.
        """
        is_plain = self.out is None or (type(self.out) is Linear and runs_plain_forward(self.out))
        return self.fused and is_plain and runs_plain_forward(self) and product_dtype(x) != torch.float16

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        token_mask: Bool[Tensor, "B T"] | None,
        table: Float[Tensor, "V E"],
        targets: Targets | None = None,
    ) -> Float[Tensor, "B T V"] | TokenLoss:
        """Return logits for every token, before softmax; with ``targets``, their cross-entropy."""
        del token_mask  # every token gets its own logits
        # Linear layer, activation, norm: B T E.
        if self.transform is not None and self.norm is not None:
            activation = (operators.ACTIVATIONS if self.fused else ACTIVATIONS)[self.facts.transform or ""]
            x = self.norm(activation(self.transform(x)))
        if self.facts.scale != 1.0:
            x = x * self.facts.scale
        # Cross-entropy, without holding all logits where that is possible.
        if targets is not None:
            labels, smoothing, chunk = targets
            if not self.fuses_loss(x):
                return token_cross_entropy(self._logits(x, table), labels, smoothing)
            matrix = table if self.out is None else self.out.weight
            return linear_cross_entropy(x, matrix, self.bias, labels, smoothing=smoothing, fused=True, chunk=chunk)
        return self._logits(x, table)

    def _logits(self, x: Float[Tensor, "B T D"], table: Float[Tensor, "V E"]) -> Float[Tensor, "B T V"]:
        """Return one logit per row of the embedding table (where D = E), or of the head's own matrix."""
        if self.out is None:
            return linear(x, table, self.bias, fused=self.fused)
        logits = self.out(x)
        return logits if self.bias is None else logits + self.bias.to(logits.dtype)


class TaskHead(nn.Module):
    """pool → (linear layer → activation) → logits of the labels; see ``config.TaskHead``."""

    fused = False

    def __init__(self, facts: config.TaskHead, model_config: config.ModelConfig) -> None:
        super().__init__()
        self.facts = facts
        self.hidden = Linear(model_config.width, model_config.width, bias=True) if facts.hidden is not None else None
        self.out = Linear(model_config.width, len(facts.labels), bias=facts.bias) if facts.labels else None

    def forward(
        self, x: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None, table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "B ..."]:
        """Return ``(B, C)`` logits per sequence or ``(B, T, C)`` per token; ``(B, T)`` for a yes-or-no label."""
        del table
        # One vector per sequence: B D.
        if self.facts.pool is not None:
            x = pool(x, token_mask, self.facts.pool)
        # Linear layer and activation.
        if self.hidden is not None:
            x = self.hidden(F.dropout(x, self.facts.input_dropout, self.training))
            x = (operators.ACTIVATIONS if self.fused else ACTIVATIONS)[self.facts.hidden or ""](x)
        if self.out is None:
            return x
        # Logits of the labels.
        logits = self.out(F.dropout(x, self.facts.dropout, self.training))
        return logits.squeeze(-1) if self.facts.task == "replaced" else logits


class EmbeddingHead(nn.Module):
    """One vector per sequence; with ``normalise`` its length is 1, so that the dot product of two is their cosine."""

    def __init__(self, facts: config.EmbeddingHead, model_config: config.ModelConfig) -> None:
        super().__init__()
        del model_config
        self.facts = facts

    def forward(
        self, x: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None, table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "B D"]:
        """Return the pooled vector of each row."""
        del table
        x = pool(x, token_mask, self.facts.pool)
        if not self.facts.normalise:
            return x
        wide = upcast(x)
        return (wide / wide.norm(dim=-1, keepdim=True).clamp(min=1e-12)).to(x.dtype)


class PretrainingHead(nn.Module):
    """A language-model head and a head for pairs of sentences side by side."""

    def __init__(self, facts: config.PretrainingHead, model_config: config.ModelConfig) -> None:
        super().__init__()
        self.lm = LMHead(facts.lm, model_config)
        self.pair = TaskHead(facts.pair, model_config)

    def forward(
        self, x: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None, table: Float[Tensor, "V E"]
    ) -> tuple[Float[Tensor, "B T V"], Float[Tensor, "B C"]]:
        """Return the logits over the vocabulary and those of the pair."""
        return self.lm(x, token_mask, table), self.pair(x, token_mask, table)


AnyHead = LMHead | TaskHead | EmbeddingHead | PretrainingHead


def make_head(model_config: config.ModelConfig) -> AnyHead | None:
    """Build the head that the facts describe."""
    facts = model_config.head
    if facts is None:
        return None
    if isinstance(facts, config.LMHead):
        return LMHead(facts, model_config)
    if isinstance(facts, config.TaskHead):
        return TaskHead(facts, model_config)
    if isinstance(facts, config.EmbeddingHead):
        return EmbeddingHead(facts, model_config)
    if isinstance(facts, config.PretrainingHead):
        return PretrainingHead(facts, model_config)
    raise TypeError(f"no head is built from {type(facts).__name__}.")


def pool(x: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None, how: str) -> Float[Tensor, "B D"]:
    """Return one vector per row: that of its first or last real token, or the mean over real tokens.

    The mask alone decides which tokens are real, so padding may be on either side.
    """
    check_choice("pool", how, ("first", "last", "mean"))
    if token_mask is None:
        return x.mean(-2) if how == "mean" else x[:, 0 if how == "first" else -1]
    # The mean in at least float32: half precision cannot hold long sums.
    if how == "mean":
        total = upcast(x).where(token_mask.unsqueeze(-1), 0.0).sum(-2)  # B D
        return (total / token_mask.sum(-1, keepdim=True).clamp(min=1)).to(x.dtype)
    # The slot of the first or last real token of each row.
    slots = torch.arange(token_mask.shape[-1], device=token_mask.device).expand_as(token_mask)  # B T
    last = slots.where(token_mask, -1).amax(-1)
    chosen = slots.where(token_mask, token_mask.shape[-1]).amin(-1) if how == "first" else last
    return x[torch.arange(len(x), device=x.device), chosen.clamp(0, token_mask.shape[-1] - 1)]
