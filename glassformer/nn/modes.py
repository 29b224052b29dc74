"""The mode that a model is in: training, with dropout, or evaluation."""

from types import MethodType
from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def evaluation_view(model: M, *, detached: bool = False) -> M:
    """``model`` itself if all of its parts are in evaluation mode, else a view of it that is.

    A view is a second tree of module objects around the same parameters, buffers and hooks, so that a model in training
    mode can be evaluated from any number of threads while nothing about it changes. ``detached`` makes a view in any
    case, for a caller that hands control back between calls and cannot know which mode it finds the model in then.
    """
    if not detached and not any(part.training for part in model.modules()):
        return model
    return _view(model, {})


def _view(module: M, known: dict[nn.Module, nn.Module]) -> M:
    if module in known:  # shared by several parents
        return known[module]  # type: ignore[return-value]
    twin = known[module] = module.__class__.__new__(module.__class__)
    attributes = dict(module.__dict__)
    attributes["training"] = False
    attributes["_compiled_call_impl"] = None  # it calls the module it was compiled for
    attributes["_modules"] = {
        name: None if part is None else _view(part, known) for name, part in module._modules.items()
    }
    if "forward" in attributes:
        attributes["forward"] = _rebound(module, twin, attributes["forward"])
    twin.__dict__.update(attributes)
    return twin


def _rebound(module: nn.Module, twin: nn.Module, forward: object) -> object:
    """A forward method that was set on an instance, for its twin."""
    if isinstance(forward, MethodType) and forward.__self__ is module:
        return MethodType(forward.__func__, twin)
    if any(part.training for part in module.modules()):
        raise ValueError(
            f"the forward method of a {type(module).__name__} was replaced by a function, which would run in training "
            f"mode; call model.eval() first."
        )
    return forward


class Evaluating:
    """The model itself in evaluation mode; afterwards every part is in the mode it was in before. Can be entered again.

    For the one who owns the model, as a training loop does: other threads see the switch. All others take an
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
