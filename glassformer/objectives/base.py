"""What every training objective shares: batches, padding, losses and the cross-entropy of tokens.

An objective takes examples and returns a batch (``prepare``), then takes a model and a batch and returns a loss
(``loss``). A loss is never averaged here. It is a set of terms, each a sum over positions together with their number. A
training step minimises Σ weight · total / count, where total and count are those of the whole step, over all
micro-batches and processes: a mean of means would weight a token by the length of its neighbours.

Shapes: ``...`` any axes, ``B`` rows, ``T`` tokens of the longest row (of an encoder-decoder: of its decoder), ``N``
tokens of one row or positions that are counted in the loss, ``V`` vocabulary, ``D`` model width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glassformer.config.checks import check_choice, check_positive_integer
from glassformer.config.model import ModelConfig, a_family
from glassformer.models.output_heads import Targets
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.nn.cross_entropy import IGNORE as IGNORE
from glassformer.nn.cross_entropy import TokenLoss as TokenLoss
from glassformer.nn.cross_entropy import token_cross_entropy as token_cross_entropy

Example = TypeVar("Example", contravariant=True)
Count = int | Tensor  # a number of positions; a scalar on the device in a step whose code may not depend on its value
Ids = Sequence[int] | Integer[Tensor, "_"]
PER_TOKEN = ("segments", "languages", "positions")  # further inputs of a model, one number per token


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Padded rows, ready for a model and its loss."""

    inputs: dict[str, Tensor]  # arguments of the model: ids, mask, target, target_mask, segments, languages, positions
    labels: dict[str, Tensor]  # the target at each position; IGNORE where nothing is counted in the loss
    counts: Mapping[str, Count]  # the number of positions that each term of the loss is a sum over
    tokens: int  # real tokens that are fed to the model
    seed: int = 0  # of random numbers drawn while the loss is computed
    counted: dict[str, Tensor] = field(default_factory=dict)  # per label: positions to compute (``counted_positions``)
    per_token: bool = True  # labels belong to tokens; else to rows, whatever their shape

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the same batch on another device; on a GPU with the positions that are counted in the loss.

        Which these are is known here, on the CPU; to ask the GPU would make the CPU wait for it in every step.
        """
        batch = self
        if torch.device(device).type != "cpu" and not self.counted:
            found = {
                name: counted_positions(labels, most=0.5, steps=16)
                for name, labels in self.labels.items()
                if labels.is_cpu
            }
            batch = replace(self, counted={name: at for name, at in found.items() if at is not None})
        return batch.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Return the same batch in pinned memory; torch's DataLoader calls a method of this name."""
        return self.map(torch.Tensor.pin_memory)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the same batch with every tensor changed."""
        inputs, labels, counted = (
            {name: change(tensor) for name, tensor in tensors.items()}
            for tensors in (self.inputs, self.labels, self.counted)
        )
        return replace(self, inputs=inputs, labels=labels, counted=counted)

    def with_counts(self, counts: Mapping[str, Count]) -> "Batch":
        """Return the same batch with other numbers for its counts."""
        return replace(self, counts=counts)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the batch, in a fixed order."""
        groups = {"inputs": self.inputs, "labels": self.labels, "counted": self.counted}
        return {f"{group}.{name}": tensors[name] for group, tensors in groups.items() for name in sorted(tensors)}

    def enlarged(self, longest: int | None = None) -> "Batch":
        """Return the same rows with more padding, on the right and in rows of padding alone, so that few shapes occur.

        Rows are rounded up by less than an eighth and lengths by less than a quarter, but not beyond ``longest``, so
        the batch grows by two fifths at most. Batches with inputs or labels that are not one per token of the ids or of
        the target are returned as they are.
        """
        sides = [(ids, mask) for ids, mask in (("ids", "mask"), ("target", "target_mask")) if ids in self.inputs]
        shapes = {self.inputs[ids].shape for ids, _ in sides}
        if not self.per_token or not all(x.shape in shapes for x in (*self.inputs.values(), *self.labels.values())):
            return self
        inputs = dict(self.inputs)
        for ids, mask in sides:
            inputs.setdefault(mask, torch.ones_like(inputs[ids], dtype=torch.bool))
        inputs = {name: _enlarge(tensor, 0, longest) for name, tensor in inputs.items()}
        labels = {name: _enlarge(tensor, IGNORE, longest) for name, tensor in self.labels.items()}
        return replace(self, inputs=inputs, labels=labels, counted={})  # other positions now, which ``to`` finds


def _enlarge(x: Tensor, fill: int, longest: int | None) -> Tensor:
    rows, length = x.shape
    wider = round_up(length, 4) if longest is None else max(length, min(longest, round_up(length, 4)))
    new = x.new_full((round_up(rows, 8), wider), fill)  # False in a mask
    new[:rows, :length] = x
    return new


def round_up(size: int, parts: int) -> int:
    """Round up to a multiple of the largest power of two that is at most 1 / ``parts`` of the size."""
    step = 1 << max(0, (size // parts).bit_length() - 1)
    return -(-size // step) * step


@dataclass(frozen=True, eq=False)
class LossTerm:
    """One part of the loss: a sum over ``count`` positions, which enters the loss as weight · total / count."""

    total: Tensor  # a differentiable scalar, in float32 at least
    count: Count
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss of a model on one batch: the terms that it is trained on, and metrics such as accuracy.

    ``metrics`` are for logs: a detached sum and its count, so that they can be added up over batches too.
    """

    terms: dict[str, LossTerm]
    metrics: dict[str, tuple[Tensor, Count]] = field(default_factory=dict)

    def mean(self, counts: Mapping[str, Count] | None = None) -> Tensor:
        """Σ weight · total / count.

        With the ``counts`` of a whole step, over all of its micro-batches, this is the batch's share of the step's
        loss: the shares add up to the loss of one large batch, and so do their gradients.
        """
        means = [
            term.total * (term.weight / _at_least_one(term.count if counts is None else counts[name]))
            for name, term in self.terms.items()
        ]
        return torch.stack(means).sum()


class Means(NamedTuple):
    """Mean loss over some batches, with its terms and metrics such as accuracy."""

    loss: float
    terms: dict[str, float]
    metrics: dict[str, float]


def _at_least_one(count: Count) -> Count:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(1, count)


@runtime_checkable
class Objective(Protocol[Example]):
    """What a model is trained for.

    An objective is a frozen value with settings and no state: all randomness comes from the caller's generator, so that
    a batch can be made again exactly. Examples are tokenised already, and are never changed.
    """

    def prepare(self, examples: Sequence[Example], generator: torch.Generator) -> Batch:
        """Return a batch of these examples, noise included."""

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return the loss of the model on a batch.

        Some objectives call parts of the model, past wrappers: a wrapper that must see every call (for distributed
        training) has to wrap model and objective together.
        """


def is_traceable(objective: Objective[Any]) -> bool:
    """Whether the loss of an objective is a function of tensors, whose values its code never inspects.

    Such an objective has an attribute ``traceable = True``. Its whole step can be compiled, or captured as a CUDA
    graph.
    """
    return bool(getattr(objective, "traceable", False))


def count_tensors(counts: Mapping[str, Count], device: torch.device) -> dict[str, Tensor]:
    """Return counts as scalars on a device."""
    return {
        name: count if isinstance(count, Tensor) else torch.full((), count, device=device)
        for name, count in counts.items()
    }


@dataclass(frozen=True, eq=False)
class TokenRow:
    """The ids of a text with its special tokens, and further numbers per token, all as long as the ids."""

    ids: Ids
    segments: Ids | None = None
    languages: Ids | None = None
    positions: Ids | None = None  # None: counted from 0
    words: Ids | None = None  # the number of each token's word, −1 for special tokens around the text

    def __post_init__(self) -> None:
        for name in (*PER_TOKEN, "words"):
            numbers = getattr(self, name)
            if numbers is not None and len(numbers) != len(self.ids):
                raise ValueError(f"{name} are one number per token: {len(self.ids)} ids, but {len(numbers)} {name}.")


def as_ids(ids: Ids) -> Int[Tensor, "N"]:
    """Return numbers as a tensor of one axis; a tensor is not copied, so the result must not be written to."""
    tensor = torch.as_tensor(ids) if len(ids) else torch.zeros(0, dtype=torch.long)
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise TypeError(f"a row of ids is integers in one axis; got {tensor.dtype} of shape {tuple(tensor.shape)}.")
    return tensor.long()


def as_token_row(example: Ids | TokenRow) -> TokenRow:
    """Turn ids alone into a row without further numbers."""
    return example if isinstance(example, TokenRow) else TokenRow(as_ids(example))


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How rows are padded to one length. What is real follows from the lengths, never from an id."""

    side: Literal["right", "left"] = "right"
    multiple: int = 1  # the length is rounded up to a multiple: 8 or 64 are faster on some hardware
    fill: int = 0  # the id in padding; it has no effect, because the mask is False there

    def __post_init__(self) -> None:
        check_choice("side", self.side, ("right", "left"))
        check_positive_integer(multiple=self.multiple)

    def padded(self, rows: Sequence[Integer[Tensor, "_"]], fill: int) -> Int[Tensor, "B T"]:
        """Return rows padded with ``fill``."""
        token_mask = self.mask(rows)
        padded = torch.full(token_mask.shape, fill)
        padded[token_mask] = torch.cat([*rows]).long()  # all at once: faster for many short rows
        return padded

    def mask(self, rows: Sequence[Integer[Tensor, "_"]]) -> Bool[Tensor, "B T"]:
        """True where a row has a token."""
        if not rows:
            raise ValueError("a batch needs at least one example, got none.")
        lengths = [row.shape[0] for row in rows]
        width = -(-max(1, *lengths) // self.multiple) * self.multiple
        positions, count = torch.arange(width), torch.tensor(lengths)[:, None]
        return positions < count if self.side == "right" else positions >= width - count

    def labels(self, rows: Sequence[Integer[Tensor, "_"]]) -> Int[Tensor, "B T"]:
        """Return labels of tokens; padding is not counted in the loss."""
        return self.padded(rows, IGNORE)

    def inputs(self, texts: Sequence[TokenRow]) -> dict[str, Tensor]:
        """Return the arguments with which a model is fed these texts.

        There is no mask if nothing is padded: attention is faster without one.
        """
        rows = [as_ids(text.ids) for text in texts]
        inputs = {"ids": self.padded(rows, self.fill)}
        if min(row.shape[0] for row in rows) < inputs["ids"].shape[-1]:
            inputs["mask"] = self.mask(rows)
        for name in PER_TOKEN:
            present = [getattr(text, name) for text in texts if getattr(text, name) is not None]
            if present and len(present) < len(texts):
                raise ValueError(f"{len(present)} of the {len(texts)} texts of a batch have {name}; set them for all.")
            if present:
                inputs[name] = self.padded([as_ids(numbers) for numbers in present], 0)
        return inputs


def flip(probability: float, generator: torch.Generator) -> bool:
    """True with this probability."""
    return float(torch.rand((), generator=generator, dtype=torch.float64)) < probability


def pick(low: int, high: int, generator: torch.Generator) -> int:
    """Return a uniformly distributed integer from ``low`` to ``high``, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


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
        smoothing: label smoothing.
    """
    check_positive_integer(chunk=chunk)

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
    return TokenLoss(torch.stack([p.total for p in parts]).sum(), torch.stack([p.correct for p in parts]).sum())


class ModelRequirement(NamedTuple):
    """The family and head of the models that an objective can train."""

    objective: str  # its name, for the error
    head: type
    tasks: tuple[str, ...] = ()  # allowed tasks of a TaskHead
    families: tuple[str, ...] = ("encoder", "decoder", "encoder-decoder")

    def check(self, model: nn.Module) -> ModelConfig:
        """Return the facts of the model; raise if its family or head does not fit."""
        transformer = unwrapped(model)
        facts, family = transformer.config, transformer.family
        task = getattr(facts.head, "task", "")
        if isinstance(facts.head, self.head) and family in self.families and task in (self.tasks or (task,)):
            return facts
        wanted = _named(self.head, " or ".join(self.tasks))
        has = "none" if facts.head is None else _named(type(facts.head), task)
        raise ValueError(
            f"{self.objective} trains {' or '.join(map(a_family, self.families))} with the head {wanted}; this model "
            f"is {a_family(family)} and its head is {has}. Set head with glassformer.config.change."
        )


def _named(head: type, tasks: str) -> str:
    return f"{head.__name__} for {tasks}" if tasks else head.__name__


def final_hidden(model: Transformer, inputs: Mapping[str, Tensor]) -> Float[Tensor, "B T D"]:
    """Return the final hidden states, the input of the head."""
    own: dict[str, Any] = {name: tensor for name, tensor in inputs.items() if name not in ("target", "target_mask")}
    if model.config.encoder is None:
        return model.decode(**own)
    hidden = model.encode(**own)
    if model.config.decoder is None:
        return hidden
    return model.decode(inputs["target"], inputs.get("target_mask"), memory=hidden, memory_mask=inputs.get("mask"))


def counted_positions(labels: Int[Tensor, "..."], *, most: float = 1.0, steps: int | None = None) -> Tensor | None:
    """Return the flat positions (N,) that are counted in the loss, or None where all should be computed.

    Args:
        labels: on the CPU.
        most: above this share of all positions all are computed.
        steps: round the number of positions up to a multiple of 1 / ``steps`` of all, by repeating one that is not
            counted, so that most batches of one shape have equally many: on a GPU the shapes of a step should not
            change.
    """
    flat = labels.reshape(-1)
    is_counted = flat != IGNORE
    positions = is_counted.nonzero().squeeze(-1)  # N
    step = 1 if steps is None else -(-len(flat) // steps)
    wanted = -(-len(positions) // step) * step
    if not 0 < wanted < len(flat) or wanted > most * len(flat):  # none: all give the head gradients of 0
        return None
    if wanted == len(positions):
        return positions
    ignored = is_counted.logical_not().int().argmax().expand(wanted - len(positions))
    return torch.cat((positions, ignored))


def model_token_loss(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    labels: Int[Tensor, "B T"],
    *,
    counted: Int[Tensor, "N"] | None = None,
    smoothing: float = 0.0,
    chunk: int | None = None,
) -> TokenLoss:
    """Return cross-entropy of a model with a head over the vocabulary.

    A fused language-model head never holds all logits (``Transformer.fuses_loss``), but those of ``chunk`` positions or
    of as many as are fast. Other heads compute those of ``chunk`` positions at a time, or all at once. Positions that
    are not counted in the loss are left out before the head wherever the model can be called in two parts: those
    outside of ``counted``, which a batch on a GPU brings with it (``counted_positions``).
    """
    inner = unwrapped(model)
    # The head alone may be called if the model has no wrapper, no hooks and is not compiled as a whole.
    hooks = (model._forward_pre_hooks, model._forward_hooks, model._backward_pre_hooks, model._backward_hooks)
    in_parts = type(model) is Transformer and model._compiled_call_impl is None and not any(hooks)
    if chunk is None and not in_parts:
        return token_cross_entropy(model(**inputs), labels, smoothing)
    if counted is None and labels.is_cpu and not torch.compiler.is_compiling():
        counted = counted_positions(labels)
    hidden = final_hidden(inner, inputs)
    is_fused = inner.fuses_loss(hidden)
    if counted is not None and (is_fused or chunk is None):
        hidden = hidden.flatten(0, -2).index_select(0, counted)[None]  # 1 N D
        labels = labels.flatten().index_select(0, counted)[None]  # 1 N
    if is_fused:
        return inner.token_loss(hidden, Targets(labels, smoothing, chunk))
    if chunk is not None:
        return chunked_cross_entropy(hidden, inner.apply_head, labels, chunk, smoothing)
    return token_cross_entropy(inner.apply_head(hidden), labels, smoothing)


def label_loss(model: nn.Module, batch: Batch, name: str, *, smoothing: float = 0.0, chunk: int | None = None) -> Loss:
    """Return a loss of one term: the cross-entropy of the labels ``name``, with the accuracy as a metric."""
    labels, counted, count = batch.labels[name], batch.counted.get(name), batch.counts[name]
    result = model_token_loss(model, batch.inputs, labels, counted=counted, smoothing=smoothing, chunk=chunk)
    return Loss({name: LossTerm(result.total, count)}, {"accuracy": (result.correct, count)})


def head_output(model: nn.Module, inputs: dict[str, Tensor]) -> Any:
    """Return the output of a task head; an encoder-decoder's decoder is fed the same text after its start token."""
    facts = unwrapped(model).config
    if facts.family != "encoder-decoder":
        return model(**inputs)
    if facts.tokens.start is None:
        raise ValueError("the config of this model has no start token for its decoder; set tokens.start.")
    ids = inputs["ids"]
    mask = inputs.get("mask", torch.ones_like(ids, dtype=torch.bool))
    return model(**inputs, target=_shift_right(ids, mask, facts.tokens.start), target_mask=mask)


def _shift_right(ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], start: int) -> Int[Tensor, "B T"]:
    """Return the tokens of each row shifted right by one, after a start token, on either side of the padding."""
    before = mask.roll(1, -1)
    before[:, 0] = False
    return ids.roll(1, -1).where(before, start)
