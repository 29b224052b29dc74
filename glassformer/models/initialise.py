"""Where training starts: the weights of a fresh model, as a page of facts says."""

import math

from torch import nn

from glassformer import config
from glassformer.nn.linear import Embedding, Linear, truncated_normal_


def initialise(model: nn.Module, facts: config.Model) -> None:
    """Draw linear maps and tables from N(0, std²), cut at ±3σ; biases start at 0 and norms at 1 as they are built.

    Without a ``std`` they stay as the blocks made them. With ``residual_scaling`` the projections that write into
    the residual stream start smaller by √(number of such writes) (Radford et al., 2019).
    """
    std = facts.init.std
    table_std = std if facts.init.table_std is None else facts.init.table_std
    for module in model.modules():
        if isinstance(module, Linear) and std is not None:
            truncated_normal_(module.weight, std)
        if isinstance(module, Embedding) and table_std is not None:
            truncated_normal_(module.weight, table_std)
    if std is None or not facts.init.residual_scaling:
        return
    for stack in (facts.encoder, facts.decoder):
        if stack is None:
            continue
        writes = stack.layers * (3 if stack.cross else 2)
        part = model.get_submodule("encoder" if stack is facts.encoder else "decoder")
        for name, module in part.named_modules():
            if isinstance(module, Linear) and name.rsplit(".", 1)[-1] in ("o", "down"):
                truncated_normal_(module.weight, std / math.sqrt(writes))
