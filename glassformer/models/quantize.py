"""Int8 or fp8 weights for inference: the linear layers of a model, replaced by ``QuantizedLinear``."""

from typing import get_args

from torch import nn

from glassformer.config.checks import check_choice
from glassformer.config.options import Quantization
from glassformer.models.output_heads import LMHead
from glassformer.models.transformer import Transformer
from glassformer.nn.kernels.operators import runs_plain_forward
from glassformer.nn.kernels.quantized import QuantizedLinear
from glassformer.nn.linear import Linear


def quantize(model: Transformer, kind: Quantization = "int8") -> None:
    """Replace every linear layer of a model by one with int8 or fp8 weights, in place; the embedding table stays.

    A head that is tied to the table gets its own copy in that type, because it reads all of it for every token.
    """
    check_choice("quantize", kind, get_args(Quantization))
    if is_quantized(model):
        raise ValueError("this model is quantised already; load it again to choose other weights.")
    modules = list(model.named_modules(remove_duplicate=False))  # a layer may have several names
    layers = {name: module for name, module in modules if isinstance(module, Linear)}
    for name, layer in layers.items():
        if type(layer) is not Linear or not runs_plain_forward(layer):
            raise ValueError(
                f"{name} is not a plain Linear: it is of the class {type(layer).__name__}, or has hooks or another "
                f"forward method, which quantised weights would remove. Merge adapters and remove hooks first."
            )
    quantized = {id(layer): QuantizedLinear(layer.weight, layer.bias, kind) for layer in layers.values()}
    for name, layer in layers.items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, quantized[id(layer)].train(layer.training))
    for head in (module for module in model.modules() if isinstance(module, LMHead) and module.out is None):
        assert model.embed.token is not None
        head.out = QuantizedLinear(model.embed.token.weight, kind=kind).train(head.training)
    model.requires_grad_(False)
    model.fused = model.fused  # for the new modules


def is_quantized(model: nn.Module) -> bool:
    """Whether a model has been quantised."""
    return any(isinstance(module, QuantizedLinear) for module in model.modules())
