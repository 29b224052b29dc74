"""``GPUKernels``: dropout, by itself and inside attention, as the single operators that a GPU has for it.

* Dropout on a CPU draws a factor for each number and keeps it; a GPU's kernel keeps one byte for each. Every call is
  accounted as that kernel, ``native_dropout``.
* ``F.scaled_dot_product_attention`` with dropout is computed by its formula on a CPU, which writes scores and masks
  down; on a GPU it is one kernel, which draws its random numbers again in the backward pass and keeps nothing for them.
  It is accounted as that kernel wherever PyTorch has a fused kernel for the same call without dropout. Elsewhere the
  formula is run, and its mask is accounted with a byte for each number (see ``Rule.is_mask``).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from threading import Lock
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
DROPOUT = ("input", "p", "training", "inplace")
_LOCK = Lock()
OVERRIDES = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class GPUKernels(TorchFunctionMode):
    """Inside, calls of attention and of dropout go through those operators.

    ``probing`` gives a context in which operators are not counted, and the list of their names.
    """

    def __init__(self, probing: Callable[[], AbstractContextManager[list[str]]]) -> None:
        super().__init__()
        self._probing = probing

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Attention and dropout by their rules; the one function of PyTorch that calls both is looked into."""
        del types
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attend(dict(zip(ATTENTION, args, strict=False)) | kwargs)
        if func is F.dropout:
            return self._drop(**(dict(zip(DROPOUT, args, strict=False)) | kwargs))
        if func is F.multi_head_attention_forward:
            with self:
                return _without_override(func)(*args, **kwargs)
        if func is torch.lstm:
            with _without_mkldnn():
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def _drop(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        if not training or p in (0.0, 1.0) or inplace:
            return F.dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    def _attend(self, given: dict[str, Any]) -> Any:
        if given.get("dropout_p"):
            plain = given | {"dropout_p": 0.0}
            with self._probing() as operators:
                F.scaled_dot_product_attention(**plain)
            if any("_scaled_dot_product" in name for name in operators):
                given = plain
        return F.scaled_dot_product_attention(**given)


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """An LSTM is run step by step and not as one operator of that library. The setting is one for all threads."""
    with _LOCK:
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            yield
        finally:
            torch._C._set_mkldnn_enabled(before)


@cache
def _without_override(func: FunctionType) -> FunctionType:
    """The same function, which does not ask whether somebody overrides it: in a mode it would call itself for ever."""
    names = {**func.__globals__, **dict.fromkeys(OVERRIDES, lambda *_: False)}
    same = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    same.__kwdefaults__ = func.__kwdefaults__
    return same
