"""Passes of a model in which values are seen by name, one row at a time."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from glassformer.inspect.listeners import Listener, attached
from glassformer.models.transformer import Transformer
from glassformer.nn.observer import PartCall
from glassformer.viewer import work

See = Callable[[str, Tensor], None]  # the name of a value, and the value without its batch axis


class _EnoughError(Exception):
    """All values that are wanted were seen: the rest of the pass is not needed."""


@contextmanager
def seeing(model: Transformer, names: Iterable[str], see: See) -> Iterator[None]:
    """Show the values of the only row of a batch to ``see``, in a pass that ends with the last of them.

    A query that is not wanted any more ends here, too.
    """
    missing = set(names)

    def show(name: str, value: Tensor) -> Tensor:
        work.check()
        see(name, value[0] if name.rpartition(".")[2] != "bias" or value.ndim == 4 else value)
        missing.discard(name)
        if not missing:
            raise _EnoughError
        return value

    def begin(call: PartCall) -> Callable[[str, Tensor], Tensor]:  # noqa: ARG001
        return show

    listener = Listener(frozenset(missing), begin, is_recorder=True)
    with attached(model, lambda _: listener), suppress(_EnoughError):
        yield


def kept(value: Tensor) -> Tensor:
    """Return a copy of a value in float32 on the CPU."""
    with torch.inference_mode(False), torch.no_grad():
        return torch.empty(value.shape, dtype=torch.float32).copy_(value)
