"""Weights in one byte a number, for inference: the linear layers of a model, replaced by ``QuantizedLinear``."""

from typing import get_args

from torch import nn

from glassformer.config.checks import check_choice
from glassformer.config.options import Quantization
from glassformer.models.output_heads import LMHead
from glassformer.models.transformer import Transformer
from glassformer.nn.kernels.quantized import QuantizedLinear
from glassformer.nn.linear import Linear


def quantize(model: Transformer, kind: Quantization = "int8") -> None:
    """Replace every linear layer of a model by one with int8 or fp8 weights, in place; the embedding table stays.

    A head that is tied to the table gets its own copy in that type, because it reads all of it for every token.
    """
    check_choice("quantize", kind, get_args(Quantization))
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear):
                setattr(module, name, QuantizedLinear(child.weight, child.bias, kind))
    for head in (module for module in model.modules() if isinstance(module, LMHead) and module.out is None):
        assert model.embed.token is not None
        head.out = QuantizedLinear(model.embed.token.weight, kind=kind)
    model.requires_grad_(False)
    model.fused = model.fused  # for the new modules


def is_quantized(model: nn.Module) -> bool:
    """Whether a model has been quantised."""
    return any(isinstance(module, QuantizedLinear) for module in model.modules())
