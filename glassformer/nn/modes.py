"""Training and evaluation mode: dropout, and running a model in evaluation mode without changing its own mode."""

from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def dropout(x: Float[Tensor, "..."], share: float, training: bool) -> Float[Tensor, "..."]:
    """Set a share of the numbers to zero and scale up the rest, in training mode; otherwise return ``x`` itself.

    The same as ``F.dropout``, whose checks are a noticeable part of a decoding step.
    """
    return F.dropout(x, share) if training else x


def evaluation_view(model: M, *, detached: bool = False) -> M:
    """Return ``model`` itself if all of its modules are in evaluation mode, else a view of it that is.

    A view is a second tree of module objects around the same parameters, buffers and hooks, so that a model in training
    mode can be evaluated from any number of threads without changing it. ``detached`` makes a view in any case, for
    generators, between whose steps the caller may change the mode of the model. Hooks are called with the modules of
    the view, which are not identical to those they were registered on but have the same names and weights.
    """
    if not detached and not any(part.training for part in model.modules()):
        return model
    return _view(model, {})


def _view(module: M, views: dict[nn.Module, nn.Module]) -> M:
    if module in views:  # shared by several parents
        return views[module]  # type: ignore[return-value]
    compiled = module._modules.get("_orig_mod")
    if compiled is not None:  # the wrapper of torch.compile would call the module that it wraps, not its view
        return _view(compiled, views)  # type: ignore[return-value]
    # nn.Module's __new__ instead of the class's: that of PyTorch's sharded modules runs __init__.
    view = views[module] = nn.Module.__new__(module.__class__)
    attributes = dict(module.__dict__)
    attributes["training"] = False
    attributes["_compiled_call_impl"] = None  # it calls the module it was compiled for
    attributes["_modules"] = {
        name: None if part is None else _view(part, views) for name, part in module._modules.items()
    }
    if "forward" in attributes:
        attributes["forward"] = _rebind_forward(module, view)
    view.__dict__.update(attributes)
    return view


def _rebind_forward(module: nn.Module, view: nn.Module) -> Callable[..., Any]:
    """Rebind a forward method that was set on an instance to its view; a plain function is guarded instead."""
    forward = module.forward
    if isinstance(forward, MethodType) and forward.__self__ is module:
        return MethodType(forward.__func__, view)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if any(part.training for part in module.modules()):
            raise ValueError(
                f"the forward method of a {type(module).__name__} was replaced by a function, which would run in "
                f"training mode; call model.eval() first."
            )
        return forward(*args, **kwargs)

    return guarded


class Evaluating:
    """Context manager: the model itself in evaluation mode, and afterwards every module in its former mode. Reusable.

    For the owner of the model, such as a training loop: other threads see the switch. All others use an
    ``evaluation_view``.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parts = list(model.modules())
        self._training: list[nn.Module] = []

    def __enter__(self) -> None:
        self._training = [part for part in self._parts if part.training]
        for part in self._training:
            part.training = False

    def __exit__(self, *_: object) -> None:
        for part in self._training:
            part.training = True
