"""The three kinds of attention, and the names of their values."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from glassformer.config import Stack
from glassformer.viewer.errors import QueryError

if TYPE_CHECKING:
    from glassformer.viewer.subject import Subject

AttentionKind = Literal["encoder", "decoder", "cross"]


def stack_of(subject: "Subject", kind: AttentionKind) -> Stack:
    """Return the facts of the stack whose queries attend; raise if the model has no such attention."""
    stack = subject.facts.encoder if kind == "encoder" else subject.facts.decoder
    if stack is None or (kind == "cross" and not stack.cross):
        raise QueryError(f"this model has no attention of the kind {kind}; it has {', '.join(kinds_of(subject))}.")
    return stack


def kinds_of(subject: "Subject") -> list[AttentionKind]:
    """Return the kinds of attention that a model has."""
    facts = subject.facts
    kinds: list[AttentionKind] = ["encoder"] if facts.encoder is not None else []
    if facts.decoder is not None:
        kinds += ["decoder", "cross"] if facts.decoder.cross else ["decoder"]
    return kinds


def layers_of(subject: "Subject", kind: AttentionKind) -> int:
    """Return how many layers run; a mask decoder runs the last one again."""
    facts, stack = subject.facts, stack_of(subject, kind)
    again = 0 if kind != "encoder" or facts.lm is None or facts.lm.mask_decoder is None else facts.lm.mask_decoder.steps
    return stack.layers + max(0, again - 1)


def stack_name(kind: AttentionKind) -> str:
    """Return the name of the stack whose queries attend."""
    return "encoder" if kind == "encoder" else "decoder"


def name_of(kind: AttentionKind, layer: int) -> str:
    """Return the name of an attention sublayer: ``decoder.blocks.3.attention``."""
    return f"{stack_name(kind)}.blocks.{layer}.{'cross' if kind == 'cross' else 'attention'}"


def check_layer(subject: "Subject", kind: AttentionKind, layer: int) -> None:
    """Raise unless the model has this layer."""
    layers = layers_of(subject, kind)
    if not 0 <= layer < layers:
        raise QueryError(f"layer must be from 0 to {layers - 1}, got {layer}.")


def check_rows(rows: Sequence[int] | None, count: int) -> tuple[int, int]:
    """Return the rows [start, stop) that a query asks for, null being all of them; raise unless there are such rows."""
    if rows is None:
        return 0, count
    if len(rows) != 2 or not 0 <= rows[0] < rows[1] <= count:
        raise QueryError(f"rows is [start, stop] within 0 to {count}, or null; got {list(rows)[:4]}.")
    return rows[0], rows[1]


def check_head(subject: "Subject", kind: AttentionKind, layer: int, head: int) -> None:
    """Raise unless the model has this head."""
    check_layer(subject, kind, layer)
    heads = stack_of(subject, kind).attention.heads
    if not 0 <= head < heads:
        raise QueryError(f"head must be from 0 to {heads - 1}, got {head}.")
