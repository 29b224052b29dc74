"""PyTorch's fused operators for everything except attention (see ``attention``): the same values in one pass."""

import platform
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

linear = F.linear  # (x, weight, bias): W x (+ b)
MAX_INT8_ROWS = 16  # rows up to which a product with int8 weights is faster than one with the weights as floats
MIN_ONEDNN_SIZE = 2**19  # multiplications from which oneDNN's product is faster than that of F.linear
MIN_ONEDNN_SIZE_WITH_GRADIENTS = 2**22  # the same, where the gradients add Python overhead
MAX_ONEDNN_ROWS = {"AVX512": inf, "AVX2": 1}  # rows up to which it is faster, by instruction set
CAPABILITY = torch.backends.cpu.get_cpu_capability()


def processor_vendor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return text that names the maker of this processor, such as "AuthenticAMD" (in a file on Linux)."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as file:
            return file.read(1024)  # it is the second line
    except OSError:
        return platform.processor()


PREFERS_ONEDNN: bool = torch._C._has_mkldnn and CAPABILITY in MAX_ONEDNN_ROWS and "AuthenticAMD" in processor_vendor()
layer_norm = torch.layer_norm  # (x, shape, weight, bias, eps): all tensors of one dtype
embedding = F.embedding  # (ids, table): rows; repeated rows get their gradients summed in a fixed order

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "tanh": torch.tanh,
}


def use_int8(x: Tensor) -> bool:
    """Whether ``int8_product`` is the faster way to multiply these vectors: a few of them, on a CPU, without gradients.

    The kernel loads up to 16 numbers at a time from aligned addresses, beyond the end of a vector whose width is not a
    multiple of that; multiples of 32 leave a margin.
    """
    width = x.shape[-1]
    is_plain = not (x.requires_grad and torch.is_grad_enabled()) and not torch.is_autocast_enabled("cpu")
    return x.is_cpu and is_plain and width % 32 == 0 and 0 < x.numel() <= MAX_INT8_ROWS * width


def int8_product(x: Tensor, values: Tensor) -> Tensor:
    """x valuesᵀ for vectors (..., d_in) and int8 values (d_out, d_in), which are not converted to floats first.

    The vectors are rounded to bfloat16: the int8 kernel for float32 is slower than an ordinary float product.
    """
    rows, ones = x.reshape(-1, x.shape[-1]), torch.ones(len(values), dtype=torch.bfloat16, device=x.device)
    y = torch._weight_int8pack_mm(rows.bfloat16().contiguous(), values, ones)
    return y.to(x.dtype).reshape(*x.shape[:-1], len(values))


def use_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether ``onednn_linear`` is the faster way to multiply these vectors: a large product in float32.

    ``F.linear`` calls MKL for float32. On AMD processors oneDNN is up to twice as fast, for one vector as for many,
    except for several vectors on a processor with AVX2 only; on Intel processors MKL is faster (benchmarks/LOG.md).
    Autocast has no rule for oneDNN's operator, nor does whatever intercepts operators (tracers, compilers, dispatch
    modes such as FLOP counters, the transforms of ``torch.func``); they see ``F.linear`` instead.
    """
    has_gradients = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return (
        PREFERS_ONEDNN
        and type(x) is Tensor
        and type(weight) in (Tensor, nn.Parameter)
        and x.dtype == weight.dtype == torch.float32
        and x.is_cpu
        and weight.is_cpu
        and x.layout == weight.layout == torch.strided
        and x.numel() * weight.shape[0] >= (MIN_ONEDNN_SIZE_WITH_GRADIENTS if has_gradients else MIN_ONEDNN_SIZE)
        and x.numel() <= MAX_ONEDNN_ROWS[CAPABILITY] * x.shape[-1]
        # The operator reads a bias as consecutive numbers.
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
        and not is_transformed()  # before the next line, which no compiler traces
        and torch._C._get_mkldnn_enabled()  # torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
    )


def is_transformed() -> bool:
    """Whether something intercepts operators: a tracer, a compiler, a dispatch mode, a transform of ``torch.func``."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None  # of torch.jit.trace
        or torch._C._len_torch_dispatch_stack() > 0
        or has_transforms()
    )


def has_transforms() -> bool:
    """Whether a transform of ``torch.func``, or forward-mode differentiation, is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x (+ b) by oneDNN; the weights are used as they are, without a packed copy."""
    needs_grad = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and needs_grad:
        y: Tensor = _OneDNNLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y
    return _onednn(x, weight, bias)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """W x for vectors as rows, by the faster of oneDNN and PyTorch's own choice."""
    return onednn_linear(x, weight, None) if use_onednn(x, weight) else x @ weight.mT


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


class _OneDNNLinear(torch.autograd.Function):
    """The operator with the gradients of a linear layer, which are products too; it has none of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        ctx.shape = x.shape
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        # y = x Wᵀ, so dx = g W and dW = gᵀ x. Gradients of gradients go through operators that have them.
        multiply = (lambda a, b: a @ b.mT) if torch.is_grad_enabled() or is_transformed() else _onednn
        rows = grad.reshape(-1, grad.shape[-1])  # N d_out
        return (
            None if weight is None else multiply(rows, weight.mT).view(ctx.shape),
            None if x is None else multiply(rows.mT, x.reshape(-1, x.shape[-1]).mT),
            rows.sum(0) if ctx.needs_input_grad[2] else None,
        )


# ---- modules that kernels may stand in for

_SHARED: Any = nn.modules.module
_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (  # never replaced, only filled
    _SHARED._global_forward_hooks,
    _SHARED._global_forward_pre_hooks,
    _SHARED._global_backward_hooks,
    _SHARED._global_backward_pre_hooks,
)


def runs_plain_forward(module: nn.Module) -> bool:
    """Whether a call of ``module`` runs its class's ``forward`` and no hooks of its own; global ones do not count."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not any(hooks) and "forward" not in module.__dict__


def has_global_hooks() -> bool:
    """Whether there are hooks that every call of any module runs."""
    return any(_GLOBAL_HOOKS)


def set_fused(module: nn.Module, fused: bool) -> None:
    """Choose kernels (True) or formulas (False) for every submodule of ``module`` that has the choice."""
    for part in module.modules():
        if part is not module and hasattr(part, "fused"):
            part.fused = fused  # type: ignore[assignment]  # a plain attribute, not a submodule
