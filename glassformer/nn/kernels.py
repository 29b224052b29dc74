"""PyTorch's fused kernels for what the other modules write out: the same numbers in one pass over memory.

By itself ``nn`` computes its formulas. A model built from a page of facts that is asked along ``path="sdpa"`` computes
within ``along("sdpa")``, where linear maps, tables, LayerNorms and activations go through these kernels as attention
does, and so does what hooks on its parts call; along ``eager`` all of it is by formula. What is compiled is made of the
formulas: the compiler fuses more than these kernels do.

Whoever lets PyTorch run parts of a model again on the way back hands over how they were run:
``torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False, context_fn=as_now)``, as ``train.memory`` does.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "tanh": torch.tanh,
}


def linear(
    x: Float[Tensor, "... d_in"], weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, "d_out"] | None
) -> Float[Tensor, "... d_out"]:
    """W x (+ b)."""
    return F.linear(x, weight, bias)


def look_up(table: Float[Tensor, "V d"], ids: Int[Tensor, "N"]) -> Float[Tensor, "N d"]:
    """Rows of a table; repeated ones are added up in a fixed order on the way back, and ids outside are refused."""
    return F.embedding(ids, table)


def layer_norm(
    x: Float[Tensor, "... d"], weight: Float[Tensor, "d"], bias: Float[Tensor, "d"] | None, eps: float
) -> Float[Tensor, "... d"]:
    """(x − mean) / √(variance + eps) · weight (+ bias), of tensors of one type."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


class _Thread(threading.local):
    in_use = False


_thread = _Thread()


def in_use() -> bool:
    """Whether what is computed now, in this thread, goes through kernels."""
    return not torch.compiler.is_compiling() and _thread.in_use


def lose_sums(x: Tensor, *learned: Tensor | None) -> bool:
    """Whether gradients that are sums over rows would come out wrong, were ``x`` given to a kernel with the others.

    Those of a CPU add narrow numbers up in the narrow type itself: over 4,096 rows half of a bias's gradient is lost.
    """
    differentiable = any(one is not None and one.requires_grad for one in (x, *learned))
    return differentiable and torch.is_grad_enabled() and x.dtype.itemsize < 4


def along(path: str) -> AbstractContextManager[None]:
    """What a path of attention means for everything else: ``eager`` is the formulas, any other these kernels."""
    return nullcontext() if torch.compiler.is_compiling() else _Said(path != "eager")


def as_now() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """(Nothing to do now, the same way again later): for ``context_fn`` of PyTorch's checkpointing."""
    return nullcontext(), _Said(in_use())


class _Said(AbstractContextManager[None]):
    """Within it kernels are in use, or not. Can be entered again."""

    def __init__(self, now: bool) -> None:
        self._now = now
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_thread.in_use)
        _thread.in_use = self._now

    def __exit__(self, *_: object) -> None:
        _thread.in_use = self._before.pop()


def along_its_path(call: Callable[P, R]) -> Callable[P, R]:
    """For a function with the keyword ``path``: what it calls follows that path too."""

    @wraps(call)
    def follow(*args: P.args, **kwargs: P.kwargs) -> R:
        with along(str(kwargs.get("path", "sdpa"))):
            return call(*args, **kwargs)

    return follow
