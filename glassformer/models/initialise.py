"""Initial weights of a model, by the scheme in ``config.Init``."""

import math
from collections.abc import Collection

from torch import nn

from glassformer import config
from glassformer.nn.feedforward import Convolution
from glassformer.nn.linear import Embedding, Linear


def initialise(model: nn.Module, facts: config.ModelConfig, only: Collection[str] | None = None) -> None:
    """Initialise all weights in place; they may be uninitialised memory before.

    With ``only``, a collection of weight names, initialise just the modules all of whose weights are in it.

    Linear layers, convolutions and embeddings start from N(0, std²), truncated at ±3σ; without a ``std`` each by its
    default. Biases start at 0 and norms at 1. With ``residual_scaling`` the std of projections that write into the
    residual stream is divided by √(number of such projections) (Radford et al., 2019). With ``by_inputs`` the std of
    each linear layer is divided by √d_in, and that of queries also by the factor by which their scores lack the usual
    scale (Raffel et al., 2019).
    """
    for name, module in model.named_modules():
        own = {f"{name}.{weight}" for weight, _ in module.named_parameters(recurse=False)}
        own |= {f"{name}.{weight}" for weight, _ in module.named_buffers(recurse=False)} & config.buffers(facts)
        if only is not None and not own <= set(only):
            continue
        if isinstance(module, Embedding):
            module.reset_parameters(_table_std(name, facts))
        elif isinstance(module, Linear | Convolution):
            module.reset_parameters(_layer_std(name, module, facts))
        elif own:
            module.reset_parameters()  # every module with its own parameters has this method


def _table_std(name: str, facts: config.ModelConfig) -> float:
    init = facts.init
    if init.std is not None and init.by_inputs and name.endswith(".relative"):  # a bias on scores, not vectors
        return init.std / math.sqrt(facts.width)
    std = init.std if init.table_std is None else init.table_std
    return 1.0 if std is None else std


def _layer_std(name: str, module: Linear | Convolution, facts: config.ModelConfig) -> float | None:
    init = facts.init
    if init.std is None:
        return None
    std = init.std / math.sqrt(_residual_writes(name, facts))
    fan_in = module.weight[0].numel()
    return std / math.sqrt(fan_in) / _missing_scale(name, facts) if init.by_inputs else std


def _residual_writes(name: str, facts: config.ModelConfig) -> int:
    """Return how many projections write into the same residual stream as this one; 1 for layers that are not scaled."""
    stack = _stack(name, facts)
    if stack is None or not facts.init.residual_scaling or name.rsplit(".", 1)[-1] not in ("o", "down"):
        return 1
    return stack.layers * (3 if stack.cross else 2)


def _missing_scale(name: str, facts: config.ModelConfig) -> float:
    """Return the attention scale of these queries relative to the usual head_dim^-½; 1 for all other layers."""
    stack = _stack(name, facts)
    if stack is None or stack.attention.scale is None or name.rsplit(".", 1)[-1] != "q":
        return 1.0
    return stack.attention.scale * math.sqrt(stack.attention.head_dim)


def _stack(name: str, facts: config.ModelConfig) -> config.Stack | None:
    return {"encoder": facts.encoder, "decoder": facts.decoder}.get(name.split(".")[0])
