"""Interventions: change values of a pass and show the effect; and what is computed from recorded values.

``ablate``, ``scale_heads``, ``replace``, ``patch`` and ``steer`` are context managers: inside the ``with`` block the
calls of the model in this thread run with the change, and afterwards the model is as it was. They combine with each
other, in the order in which they are entered, and with ``record``, which records the changed values.

    with ablate(model, {"decoder.blocks.3.attention": [0, 2]}), record(model, "head") as trace:
        model(ids)

``logit_lens``, ``attention_rollout`` and ``head_importance`` return tensors. Names are those of ``inspect.record``; an
*attention sublayer* is ``STACK.blocks.N.attention`` or ``STACK.blocks.N.cross``.

Shapes: ``B`` batch, ``T`` tokens, ``S`` keys, ``H`` heads, ``D`` model width, ``V`` vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer import config
from glassformer.config.checks import check_choice, check_probability
from glassformer.inspect.listeners import (
    AnyModel,
    Hook,
    Listener,
    StepCounter,
    attached,
    match_names,
    matches,
    value_names,
)
from glassformer.inspect.record import PER_HEAD, Trace
from glassformer.loaded import Loaded
from glassformer.models.transformer import Transformer, transformer_of
from glassformer.nn.modes import evaluation_view
from glassformer.nn.observer import PartCall, unobserved

Change = Callable[[Tensor], Tensor]  # a value to its replacement
ValueChanges = Iterator[tuple[str, Change]]  # by the name of the value
Globs = str | Sequence[str]


@contextmanager
def ablate(model: AnyModel, heads: Mapping[str, Sequence[int] | None]) -> Iterator[None]:
    """Set the output of heads to zero, as if their columns of the output projection were zero.

    Args:
        model: as in ``record``.
        heads: by attention sublayer (a glob), the numbers of the heads; None: all of them.
    """

    def changes(transformer: Transformer) -> ValueChanges:
        for name, several in _by_sublayer(transformer.config, heads).items():
            yield f"{name}.heads", _zero_heads(several)

    with _changed(model, changes):
        yield


@contextmanager
def scale_heads(model: AnyModel, factors: Mapping[str, Mapping[int, float] | Tensor]) -> Iterator[None]:
    """Multiply the output of heads by factors.

    Args:
        model: as in ``record``.
        factors: by attention sublayer (a glob), a factor for each head by its number, or a tensor of shape (H);
            gradients reach such a tensor. Where several globs match, all of their factors act.
    """

    def changes(transformer: Transformer) -> ValueChanges:
        for glob, several in factors.items():
            numbers = None if isinstance(several, Tensor) else list(several)
            for name, heads in _by_sublayer(transformer.config, {glob: numbers}).items():
                yield f"{name}.heads", _scale_heads(name, heads, several)

    with _changed(model, changes):
        yield


@contextmanager
def replace(
    model: AnyModel, values: Mapping[str, Tensor | Change], *, positions: Sequence[int] | None = None
) -> Iterator[None]:
    """Replace values, by tensors or by functions of what they replace.

    Args:
        model: as in ``record``.
        values: by name (a glob), a tensor that broadcasts to the value's shape, or a function from the value to another
            of the same shape. Where several globs match, their functions act one after the other; a tensor that would
            hide another change is an error.
        positions: replace the values of these tokens only. They count the slots of a row, from 0 and with those in a
            cache, and change in the call that reads them: in ``generate``, position 3 in the call that reads the
            prompt. Negative ones count from the end of each call. Tokens are the axis before the last; those of the
            head, which may read less than the whole call, are the call's last ones.
    """

    def changes(transformer: Transformer) -> ValueChanges:
        names, found = value_names(transformer.config), dict[str, str]()
        for glob, value in values.items():
            for name in match_names(glob, names):
                if isinstance(value, Tensor) and name in found:
                    raise ValueError(
                        f"{name!r} matches {found[name]!r} and {glob!r}, whose tensor would hide the first change."
                    )
                found[name] = glob
                yield name, _replacement(name, value)

    with _changed(model, changes, positions):
        yield


@contextmanager
def steer(
    model: AnyModel, vectors: Mapping[str, Tensor], scale: float = 1.0, *, positions: Sequence[int] | None = None
) -> Iterator[None]:
    """Add a vector, times ``scale``, to a value: usually to the residual stream, ``STACK.blocks.N.output``.

    Args:
        model: as in ``record``.
        vectors: by name (a glob), a tensor that broadcasts to the value's shape, such as (D) for all tokens. Where
            several globs match, all of their vectors are added.
        scale: factor on the vectors.
        positions: as in ``replace``.
    """

    def add(vector: Tensor) -> Change:
        return lambda value: value + scale * vector.to(value)

    with replace(model, {name: add(vector) for name, vector in vectors.items()}, positions=positions):
        yield


@contextmanager
def patch(
    model: AnyModel,
    trace: Trace,
    names: Globs = "*",
    *,
    heads: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
) -> Iterator[None]:
    """Put values of another run in place of the model's own (activation patching).

    Step i of the trace is put into call i of the model; a trace of one call, into every call.

    Args:
        model: as in ``record``.
        trace: the values, of inputs of the same shapes. One row serves all rows of a batch.
        names: the values of the trace that are put in.
        heads: of values per head (``q`` … ``heads``), put in these only; by default all that the trace has.
        positions: as in ``replace``.
    """
    chosen = match_names(names, trace.names)
    counter, tokens = StepCounter(), _Tokens(positions)

    def begin(call: PartCall) -> Hook:
        at_tokens = tokens.of(call)
        number = 0 if len(trace.steps) == 1 else counter.count(call)
        if number >= len(trace.steps):
            raise ValueError(f"the trace has {len(trace.steps)} steps, and this is call {number + 1} of the model.")
        step = trace.steps[number]

        def see(name: str, value: Tensor) -> Tensor:
            if name not in step:
                return value
            return at_tokens(name, value, _put_in(name, step[name], trace, heads))

        return see

    def listener(transformer: Transformer) -> Listener:
        match_names(chosen, value_names(transformer.config))
        return Listener(frozenset(chosen), begin)

    with attached(model, listener):
        yield


def logit_lens(
    model: AnyModel, trace: Trace, *, mask: Tensor | None = None, positions: Sequence[int] | None = None
) -> dict[str, Tensor]:
    """Return what the head reads from the residual stream after each layer (nostalgebraist, 2020).

    The final norm and the head are applied to every recorded ``STACK.blocks.N.output``, and to
    ``STACK.blocks.0.input``, the embeddings; STACK is the stack that the head reads. The last of them gives the model's
    own logits. None of this is recorded, nor changed by interventions.

    Args:
        model: as in ``record``.
        trace: has these values, of the model's last call.
        mask: True at real tokens, for heads that pool.
        positions: of these tokens only; the others cost memory, V numbers for each token and layer.

    Returns:
        by name, the output of the head, the first one if there are several: logits (B, T, V).
    """
    transformer = evaluation_view(_transformer(model))
    stack_name = "encoder" if transformer.decoder is None else "decoder"
    stack = getattr(transformer, stack_name)
    wanted = [f"{stack_name}.blocks.0.input", f"{stack_name}.blocks.*.output"]
    streams = [name for name in trace if any(matches(name, glob) for glob in wanted)]
    if not streams:
        raise ValueError(f"the trace has no residual stream to read; record {wanted[1]!r}.")
    weight, found = next(transformer.parameters()), {}
    with torch.no_grad(), unobserved():
        for name in streams:
            hidden = trace[name].to(weight.device, weight.dtype)
            hidden = hidden if stack.norm is None else stack.norm(hidden)
            output = transformer.apply_head(hidden if positions is None else hidden[:, list(positions)], mask)
            found[name] = output[0] if isinstance(output, tuple) else output
    return found


def attention_rollout(trace: Trace, stack: str | None = None, *, residual: float = 0.5) -> Tensor:
    """Return how much of each input token reaches each token through all layers (Abnar and Zuidema, 2020).

    Each layer mixes the tokens by ``residual`` · identity + (1 − ``residual``) · weights, averaged over the recorded
    heads; the rollout is the product over the layers. Its rows sum to 1; a query that attends to nothing keeps itself.

    Args:
        trace: has ``STACK.blocks.*.attention.weights`` of every layer, of a whole sequence.
        stack: ``encoder`` or ``decoder``; None: the only one there is.
        residual: the share of the residual connection.

    Returns:
        (B, T, T): row i is what token i is mixed of.
    """
    check_probability(residual=residual)
    facts = trace.facts
    have = [name for name in ("encoder", "decoder") if getattr(facts, name) is not None]
    if stack is None and len(have) > 1:
        raise ValueError("this model has an encoder and a decoder; choose one by stack=.")
    stack = have[0] if stack is None else stack
    check_choice("stack", stack, have)
    layers = [name for name in value_names(facts) if name.startswith(stack) and name.endswith("attention.weights")]
    last = getattr(facts, stack).layers - 1
    total = keys = None
    for number, name in enumerate(layers):
        weights = trace[name].double().mean(1)  # B T S
        if weights.shape[-1] != weights.shape[-2]:
            raise ValueError(f"the rollout needs a whole sequence in one call; {name} is {tuple(weights.shape)}.")
        if total is None:
            total = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device).expand_as(weights)
        # A mask decoder's repetitions of the last layer read the same keys.
        keys = total if keys is None or number <= last else keys
        total = residual * total + (1 - residual) * weights @ keys
        rows = total.sum(-1, keepdim=True)
        total = total / rows.where(rows > 0, 1.0)
    assert total is not None
    return total


def head_importance(
    model: AnyModel,
    run: Callable[[], Tensor],
    *,
    method: Literal["ablation", "gradient"] = "ablation",
    sublayers: Globs = "*",
) -> dict[str, Tensor]:
    """Return how much a loss rises without each head (Michel et al., 2019).

    Args:
        model: as in ``record``.
        run: calls the model and returns the loss, one number, such as ``lambda: loss(model(ids))``. It runs in this
            thread, in the mode the model is in; a ``record`` around it records all of its runs.
        method: ``ablation``, the loss with the head ablated minus the loss as it is: one run for each head.
            ``gradient``, its first-order estimate, minus the derivative of the loss by a factor on the head: one run
            and a backward pass for all heads.
        sublayers: globs of the attention sublayers to measure.

    Returns:
        by attention sublayer, one number for each head: (H).
    """
    check_choice("method", method, ("ablation", "gradient"))
    transformer = _transformer(model)
    facts, weight = transformer.config, next(transformer.parameters())
    counts = {name: _stack(facts, name).attention.heads for name in match_names(sublayers, _sublayers(facts))}
    # One run with each head ablated.
    if method == "ablation":
        with torch.no_grad():
            loss = _number(run())
            found = {}
            for name, count in counts.items():
                rises = []
                for head in range(count):
                    with ablate(model, {name: [head]}):
                        rises.append(_number(run()) - loss)
                found[name] = torch.stack(rises)
        return found
    # One backward pass to a factor of 1 on every head.
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "method='gradient' needs gradients, which torch.inference_mode excludes; call it outside of that, or use "
            "method='ablation'."
        )
    with torch.enable_grad():
        factors = {name: weight.new_ones(count, requires_grad=True) for name, count in counts.items()}
        with scale_heads(model, factors):
            loss = _number(run())
        if not loss.requires_grad:
            raise ValueError("method='gradient' needs gradients, and the loss that run returns has none.")
        gradients = torch.autograd.grad(loss, list(factors.values()), allow_unused=True)
    return {
        name: torch.zeros_like(factors[name]) if gradient is None else -gradient
        for name, gradient in zip(factors, gradients, strict=True)
    }


@contextmanager
def _changed(
    model: AnyModel, changes: Callable[[Transformer], ValueChanges], positions: Sequence[int] | None = None
) -> Iterator[None]:
    """Run a model with changed values, by name; those of one value act in their order."""

    def listener(transformer: Transformer) -> Listener:
        found: dict[str, list[Change]] = {}
        for name, change in changes(transformer):
            found.setdefault(name, []).append(change)
        tokens = _Tokens(positions)

        def begin(call: PartCall) -> Hook:
            at_tokens = tokens.of(call)

            def see(name: str, value: Tensor) -> Tensor:
                for change in found[name]:
                    value = at_tokens(name, value, change)
                return value

            return see

        return Listener(frozenset(found), begin)

    with attached(model, listener):
        yield


class _Tokens:
    """The tokens at which values change, by their positions; None: all of them."""

    def __init__(self, positions: Sequence[int] | None) -> None:
        self._positions = positions
        self._last: PartCall | None = None  # call of a stack

    def of(self, call: PartCall) -> Callable[[str, Tensor, Change], Tensor]:
        """Return what applies a change in this call of a part."""
        if call.part in ("encoder", "decoder"):
            self._last = call
        return partial(self._apply, call, self._last if call.part == "head" else None)

    def _apply(self, call: PartCall, stack: PartCall | None, name: str, value: Tensor, change: Change) -> Tensor:
        """Return the value as it is after the change; ``stack``: the call that a head reads, if it is one of a head."""
        if self._positions is None:
            return _checked(name, value, change(value))
        if value.ndim < 3:
            raise ValueError(f"{name!r} has the shape {tuple(value.shape)}: one for each row, so it has no positions.")
        # The position of the value's first token, and whether other calls have other tokens of the same row.
        length, whole = value.shape[-2], call if stack is None else stack
        first, is_all = whole.cached or 0, whole.cached is None
        if stack is not None:
            first, is_all = first + stack.tokens - length, is_all and length == stack.tokens
        if name.endswith((".cross.k", ".cross.v")):
            first, is_all = 0, True  # tokens of the memory
        slots = [length + position if position < 0 else position - first for position in self._positions]
        for position, slot in zip(self._positions, slots, strict=True):
            if is_all and not 0 <= slot < length:
                raise ValueError(f"there is no position {position} in a call of {length} tokens.")
        here = [slot for slot in slots if 0 <= slot < length]
        if not here:
            return value
        at = torch.zeros(length, 1, dtype=torch.bool, device=value.device)
        at[here] = True
        return torch.where(at, _checked(name, value, change(value)), value)


def _checked(name: str, value: Tensor, changed: Any) -> Tensor:
    """Raise unless the replacement has the shape of the value; return it in its dtype and on its device."""
    if not isinstance(changed, Tensor) or changed.shape != value.shape:
        got = f"shape {tuple(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
        raise ValueError(f"{name!r} has the shape {tuple(value.shape)}, and its replacement is of {got}.")
    return changed.to(value)


def _replacement(name: str, value: Tensor | Change) -> Change:
    if not isinstance(value, Tensor):
        return value

    def put(old: Tensor) -> Tensor:
        try:
            return value.to(old).expand_as(old)
        except RuntimeError:
            shapes = f"shape {tuple(value.shape)} for {tuple(old.shape)}"
            raise ValueError(f"{name!r} cannot be replaced by a tensor of another shape: {shapes}.") from None

    return put


def _zero_heads(heads: Sequence[int]) -> Change:
    def change(value: Tensor) -> Tensor:
        zeroed = torch.zeros(value.shape[-3], 1, 1, dtype=torch.bool, device=value.device)
        zeroed[list(heads)] = True
        return value.masked_fill(zeroed, 0.0)

    return change


def _scale_heads(name: str, heads: Sequence[int], factors: Mapping[int, float] | Tensor) -> Change:
    if isinstance(factors, Tensor) and factors.shape != (len(heads),):
        raise ValueError(f"{name} has {len(heads)} heads; got factors of shape {tuple(factors.shape)}.")

    def change(value: Tensor) -> Tensor:
        if isinstance(factors, Tensor):
            return value * factors.to(value)[:, None, None]
        every = value.new_ones(value.shape[-3])
        every[list(heads)] = value.new_tensor([factors[head] for head in heads])
        return value * every[:, None, None]

    return change


def _put_in(name: str, recorded: Tensor, trace: Trace, heads: Sequence[int] | None) -> Change:
    """Replace a value by a recorded one: all of it, or the heads that are wanted of those that were recorded."""
    per_head = name.split(".")[-1] in PER_HEAD

    def change(value: Tensor) -> Tensor:
        new = recorded.to(value)
        if name.endswith((".scores", ".weights")):
            new = new[..., -value.shape[-1] :]  # a window holds the last keys only
        if not per_head or (heads is None and trace.heads is None):
            return _replacement(name, new)(value)
        count = _stack(trace.facts, name).attention.heads
        have = list(range(count)) if trace.heads is None else list(trace.heads)
        wanted = have if heads is None else list(heads)
        if missing := [head for head in wanted if head not in have]:
            raise ValueError(f"the trace has no head {missing[0]}; it has {have}.")
        # Heads that share keys and values share a row of them.
        rows = [head * value.shape[-3] // count for head in wanted]
        from_rows = [
            have.index(head) if trace.heads is not None else row for head, row in zip(wanted, rows, strict=True)
        ]
        changed = value.clone()
        changed[..., rows, :, :] = _replacement(name, new[..., from_rows, :, :])(value[..., rows, :, :])
        return changed

    return change


def _sublayers(facts: config.ModelConfig) -> tuple[str, ...]:
    return tuple(name.removesuffix(".heads") for name in value_names(facts) if name.endswith(".heads"))


def _stack(facts: config.ModelConfig, name: str) -> config.Stack:
    """Return the stack of a value."""
    stack = facts.encoder if name.startswith("encoder.") else facts.decoder
    assert stack is not None
    return stack


def _by_sublayer(facts: config.ModelConfig, heads: Mapping[str, Sequence[int] | None]) -> dict[str, list[int]]:
    """Return the heads of each attention sublayer that the globs match."""
    found: dict[str, list[int]] = {}
    for glob, numbers in heads.items():
        for name in match_names(glob, _sublayers(facts)):
            count = _stack(facts, name).attention.heads
            chosen = list(range(count)) if numbers is None else list(numbers)
            if wrong := [head for head in chosen if not isinstance(head, int) or not 0 <= head < count]:
                raise ValueError(f"{name} has heads 0 to {count - 1}; got {wrong[0]!r}.")
            found[name] = sorted({*found.get(name, []), *chosen})
    return found


def _transformer(model: AnyModel) -> Transformer:
    return transformer_of(model.model if isinstance(model, Loaded) else model)


def _number(loss: Tensor) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"run must return the loss, one number; got {got}.")
    return loss.reshape(())
