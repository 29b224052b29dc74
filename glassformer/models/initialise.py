"""Where training starts: the weights of a fresh model, as a page of facts says."""

import math
from collections.abc import Collection

from torch import nn

from glassformer import config
from glassformer.nn.convolution import Convolution
from glassformer.nn.linear import Embedding, Linear


def initialise(model: nn.Module, facts: config.Model, only: Collection[str] | None = None) -> None:
    """Give every weight its starting value: each is drawn once, whatever it held before, be it nothing.

    With ``only``, names of weights, just the modules all of whose weights are among them.

    Linear maps, convolutions and tables start from N(0, std²), cut at ±3σ; without a ``std`` by the rule of their own.
    Biases start at 0 and norms at 1. With ``residual_scaling`` the projections that write into the residual stream
    start smaller by √(number of such writes) (Radford et al., 2019); with ``by_inputs`` each map by √d_in, and queries
    by what their scores are not scaled besides (Raffel et al., 2019).
    """
    for name, module in model.named_modules():
        own = {f"{name}.{weight}" for weight, _ in module.named_parameters(recurse=False)}
        own |= {f"{name}.{weight}" for weight, _ in module.named_buffers(recurse=False)} & config.buffers(facts)
        if only is not None and not own <= set(only):
            continue
        if isinstance(module, Embedding):
            module.reset_parameters(_std_of_table(name, facts))
        elif isinstance(module, Linear | Convolution):
            module.reset_parameters(_std_of_map(name, module, facts))
        elif own:
            module.reset_parameters()  # whoever owns parameters must say how they start


def _std_of_table(name: str, facts: config.Model) -> float:
    init = facts.init
    if init.std is not None and init.by_inputs and name.endswith(".relative"):  # what scores get, and no vectors
        return init.std / math.sqrt(facts.width)
    given = init.std if init.table_std is None else init.table_std
    return 1.0 if given is None else given


def _std_of_map(name: str, module: Linear | Convolution, facts: config.Model) -> float | None:
    init = facts.init
    if init.std is None:
        return None
    std = init.std / math.sqrt(_writes(name, facts))
    return std / math.sqrt(module.weight[0].numel()) / _unscaled(name, facts) if init.by_inputs else std


def _writes(name: str, facts: config.Model) -> int:
    """How many projections share the residual stream that this one writes into; 1 if it is to start like any other."""
    stack = _stack(name, facts)
    if stack is None or not facts.init.residual_scaling or name.rsplit(".", 1)[-1] not in ("o", "down"):
        return 1
    return stack.layers * (3 if stack.cross else 2)


def _unscaled(name: str, facts: config.Model) -> float:
    """How much larger scores of these queries would be than with the usual scale, head_dim^-½; 1 for all other maps."""
    stack = _stack(name, facts)
    if stack is None or stack.attention.scale is None or name.rsplit(".", 1)[-1] != "q":
        return 1.0
    return stack.attention.scale * math.sqrt(stack.attention.head_dim)


def _stack(name: str, facts: config.Model) -> config.Stack | None:
    return {"encoder": facts.encoder, "decoder": facts.decoder}.get(name.split(".")[0])
