"""Cross-entropy of the vectors before the head, without holding all logits; see ``nn.cross_entropy`` for the formula.

The logits of a language model are its largest values: N · V numbers, several times in a training step. With ``fused``,
``linear_cross_entropy`` computes logits, loss and gradients of a chunk of rows before it goes on to the next chunk.
d total / d logits is softmax − target, so all that is left for the backward pass is to multiply by one number.

Shapes: ``...`` any axes, ``N`` positions, ``D`` width, ``V`` vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.config.checks import check_positive_integer, check_probability
from glassformer.nn.cross_entropy import IGNORE, TokenLoss, correct_predictions, token_cross_entropy
from glassformer.nn.kernels import operators
from glassformer.nn.linear import linear
from glassformer.nn.norm import product_dtype, without_autocast

# How many logits a chunk has by default, and its minimum number of rows: each chunk adds to all of W's gradient, so
# very short chunks are slow. On a CPU chunks are small, so that its caches may hold them.
CPU_CHUNK, CHUNK = (2**24, 256), (2**27, 2048)
PARTS = 8  # of the vocabulary, one at a time, in which a chunk's gradient is added to W's: this takes less memory
COMPILED_CHUNK = (2**30, 2048)  # compiled code holds a chunk's logits and their gradients, but no float32 copy of them


def linear_cross_entropy(
    x: Float[Tensor, "... D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    labels: Int[Tensor, "..."],
    *,
    smoothing: float = 0.0,
    fused: bool = False,
    chunk: int | None = None,
) -> TokenLoss:
    """``token_cross_entropy`` of the logits W x (+ b).

    Args:
        x: vectors before the head's matrix.
        weight: W; its gradient is summed in float32 at least.
        bias: b.
        labels: the target at each position, or ``IGNORE``.
        smoothing: label smoothing.
        fused: make the logits of a few rows at a time, and the gradients in the forward pass. Not for float16, whose
            gradients must be scaled before they are rounded. Under a transform of ``torch.func`` the formula is used.
        chunk: positions at a time; by default chosen for speed.
    """
    if not fused or (not torch.compiler.is_compiling() and operators.has_transforms()):
        return token_cross_entropy(linear(x, weight, bias), labels, smoothing)
    if not 0.0 <= smoothing < 1.0:
        check_probability(smoothing=smoothing)
    dtype = product_dtype(x)
    if dtype == torch.float16:
        raise ValueError("float16 needs fused=False: its gradients underflow unless the loss is scaled before them.")
    logits, rows = CPU_CHUNK if x.is_cpu else COMPILED_CHUNK if torch.compiler.is_compiling() else CHUNK
    if chunk is None:
        chunk = max(rows, logits // weight.shape[0])
    elif chunk < 1:
        check_positive_integer(chunk=chunk)
    flat, targets = x.reshape(-1, x.shape[-1]), labels.reshape(-1)  # N D, N
    with without_autocast(x):
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
            sums = _LinearCrossEntropy.apply(flat, weight, bias, targets, smoothing, chunk, dtype)  # type: ignore[no-untyped-call]
            return TokenLoss(*sums)
        return _Sums(flat, weight, bias, dtype).add_all(targets, smoothing, chunk, ties=torch.is_grad_enabled())


class _Sums:
    """Loss, correct predictions and the gradients that are needed, summed over chunks of rows."""

    def __init__(
        self,
        x: Float[Tensor, "N D"],
        weight: Float[Tensor, "V D"],
        bias: Float[Tensor, "V"] | None,
        dtype: torch.dtype,
        needs: tuple[bool, bool, bool] = (False, False, False),
    ) -> None:
        self.x, self.weight = x.to(dtype), weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)
        self.wide = torch.promote_types(dtype, torch.float32)
        self.needs_x, self.needs_weight, self.needs_bias = needs
        self.x_grad = torch.empty_like(x) if self.needs_x else None
        self.weight_grad: Tensor | None = None
        self.bias_grad: Tensor | None = None

    def add_all(self, labels: Int[Tensor, "N"], smoothing: float, chunk: int, *, ties: bool) -> TokenLoss:
        """Add all rows, in chunks of about equal size, at most ``chunk`` rows each."""
        count, vocab = len(labels), len(self.weight)
        counted = (labels != IGNORE).unsqueeze(-1)  # N 1
        vectors = self.x.masked_fill(~counted, 0.0)  # ignored positions add nothing to W's gradient, not even NaN
        chunk = -(-count // max(1, -(-count // chunk)))
        # All chunks share two buffers: newly allocated memory is slow to touch. A compiler plans memory itself.
        is_compiled = torch.compiler.is_compiling()
        allocates = is_compiled or operators.use_onednn(vectors[:chunk], self.weight, self.bias)
        logits_buffer = None if allocates else self.x.new_empty(chunk, vocab)
        reuses_probs = self.wide == self.x.dtype and not is_compiled
        probs_buffer = self.x.new_empty(chunk, vocab) if reuses_probs else None
        total, correct = self.x.new_zeros((), dtype=self.wide), labels.new_zeros(())
        for start in range(0, count, max(1, chunk)):
            rows = slice(start, min(start + chunk, count))
            x, targets = vectors[rows], labels[rows]
            out = None if logits_buffer is None else logits_buffer[: len(x)]
            logits = _logits(x, self.weight, self.bias, out)  # n V
            if probs_buffer is not None:
                log_probs = torch.log_softmax(logits, -1, out=probs_buffer[: len(x)])
            else:
                log_probs = torch.log_softmax(logits, -1, dtype=self.wide)
            total = total + _total(log_probs, targets, counted[rows], smoothing)
            correct = correct + correct_predictions(logits, targets, ties=ties)
            if self.needs_x or self.needs_weight or self.needs_bias:
                self.add_gradients(log_probs, x, targets, counted[rows], rows, smoothing)
            del logits, log_probs  # before those of the next chunk are made
        if self.needs_weight and self.weight_grad is None:  # there are no rows
            self.weight_grad = torch.zeros_like(self.weight, dtype=self.wide)
        if self.needs_bias and self.bias_grad is None and self.bias is not None:
            self.bias_grad = torch.zeros_like(self.bias, dtype=self.wide)
        return TokenLoss(total, correct)

    def add_gradients(
        self, log_probs: Tensor, x: Tensor, targets: Tensor, counted: Tensor, rows: slice, smoothing: float
    ) -> None:
        """Add the gradients of some rows; the logits' gradients overwrite the log-probabilities."""
        # The gradient of the logits: softmax − target.
        vocab, label = log_probs.shape[-1], targets.clamp(min=0).unsqueeze(-1)  # n 1, any where IGNORE
        if torch.compiler.is_compiling():  # element by element, in the pass that computes the softmax
            is_label = torch.arange(vocab, device=label.device) == label
            grad = log_probs.exp() - is_label.to(log_probs.dtype) * (1 - smoothing) - smoothing / vocab  # n V
        else:
            grad = log_probs.exp_().sub_(smoothing / vocab) if smoothing > 0 else log_probs.exp_()
            grad.scatter_(-1, label, grad.gather(-1, label) - (1 - smoothing))
        grad = grad.to(x.dtype)
        # From it, the gradients of b, W and x.
        if self.needs_bias:
            bias_grad = (grad.mT @ counted.to(grad.dtype)).squeeze(-1).to(self.wide)  # V
            self.bias_grad = bias_grad if self.bias_grad is None else self.bias_grad.add_(bias_grad)
        if self.needs_weight and self.weight_grad is None:
            self.weight_grad = operators.product(grad.mT, x.mT).to(self.wide)  # V D
        elif self.weight_grad is not None and x.dtype == self.wide and not operators.use_onednn(grad.mT, x.mT):
            self.weight_grad.addmm_(grad.mT, x)
        elif self.weight_grad is not None:
            # A part of the vocabulary at a time, so that the product to be added takes little memory.
            for part, some in zip(self.weight_grad.chunk(PARTS), grad.mT.chunk(PARTS), strict=True):
                part.add_(operators.product(some, x.mT))
        if self.x_grad is not None:
            self.x_grad[rows] = operators.product(grad, self.weight.mT).masked_fill_(~counted, 0.0)


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None) -> Float[Tensor, "n V"]:
    """Return W x (+ b), written into ``out`` if it is given."""
    if out is None:
        use_onednn = operators.use_onednn(x, weight, bias)
        return (operators.onednn_linear if use_onednn else operators.linear)(x, weight, bias)
    return torch.mm(x, weight.mT, out=out) if bias is None else torch.addmm(bias, x, weight.mT, out=out)


def _total(log_probs: Tensor, targets: Tensor, counted: Tensor, smoothing: float) -> Float[Tensor, ""]:
    """Return the sum of cross-entropies."""
    total = F.nll_loss(log_probs, targets, ignore_index=IGNORE, reduction="sum")
    if smoothing == 0:
        return total
    mean = -log_probs.mean(-1).where(counted.squeeze(-1), 0.0).sum()  # over the vocabulary
    return (1 - smoothing) * total + smoothing * mean


class _LinearCrossEntropy(torch.autograd.Function):
    """The gradients are made in the forward pass; the backward pass multiplies them by that of the loss."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        chunk: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        sums = _Sums(x, weight, bias, dtype, ctx.needs_input_grad[:3])
        total, correct = sums.add_all(labels, smoothing, chunk, ties=True)
        ctx.save_for_backward(sums.x_grad, sums.weight_grad, sums.bias_grad)
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(ctx: Any, factor: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError("the fused loss has no gradients of its gradients; set fused = False on the model.")
        # Without retain_graph nothing uses the gradients again, so they are scaled in place; but not by several factors
        # at once (``is_grads_batched``, ``vmap``): those products need more memory than the gradients have.
        functorch = torch._C._functorch
        is_last = (
            not torch.compiler.is_compiling()
            and not torch._C._autograd._get_current_graph_task_keep_graph()
            and not (functorch.is_legacy_batchedtensor(factor) or functorch.is_batchedtensor(factor))
        )
        gradients = [
            None if gradient is None else (gradient.mul_(factor) if is_last else gradient * factor).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *gradients, None, None, None, None
