"""Whether a module is called as its class says, so that a kernel may compute what it would without calling it."""

from typing import Any

from torch import nn

_SHARED: Any = nn.modules.module
_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (  # never replaced, only filled
    _SHARED._global_forward_hooks,
    _SHARED._global_forward_pre_hooks,
    _SHARED._global_backward_hooks,
    _SHARED._global_backward_pre_hooks,
)


def calls_only_itself(module: nn.Module) -> bool:
    """Whether a call of ``module`` runs the ``forward`` of its class and no hooks but those of all modules."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not any(hooks) and "forward" not in module.__dict__


def has_global_hooks() -> bool:
    """Whether there are hooks that every call of any module runs."""
    return any(_GLOBAL_HOOKS)
