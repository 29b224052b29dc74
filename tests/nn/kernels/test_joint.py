"""Layers that read the same vectors: one product in compiled training, each layer by itself where it must be called."""

import pytest
import torch

from glassformer.models.transformer import Transformer
from glassformer.training.block_calls import compile_model
from tests.configs import CONFIGS, tokens
from tests.helpers import largest_difference, randomise, types_unchecked


def output(model: Transformer) -> torch.Tensor:
    result: torch.Tensor = model(tokens(2, 7))
    return result


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # the compiler's own, of its inputs
@pytest.mark.parametrize("name", ["attention.q", "attention.v", "ffn.up"])
@pytest.mark.parametrize("kind", ["hook", "pre-hook", "global", "forward"])
def test_compiled_blocks_call_hooks_and_replaced_forwards(name: str, kind: str) -> None:
    torch._dynamo.reset()  # which does not look at hooks when it uses a graph again
    with types_unchecked():  # the compiler cannot trace the checks
        compare(name, kind)


def compare(name: str, kind: str) -> None:
    model = randomise(Transformer(CONFIGS["llama"]))
    plain = output(model)
    layer = model.get_submodule(f"decoder.blocks.0.{name}")
    if kind == "hook":
        layer.register_forward_hook(zeros)
    elif kind == "pre-hook":
        layer.register_forward_pre_hook(lambda _, args: (args[0] * 0,))
    elif kind == "forward":
        forward = layer.forward
        layer.forward = lambda x: forward(x) * 0
    if kind == "global":
        with torch.nn.modules.module.register_module_forward_hook(
            lambda module, args, y: zeros(module, args, y) if type(module) is type(layer) else None
        ):
            check(model, plain)
    else:
        check(model, plain)


def zeros(_module: torch.nn.Module, _args: tuple[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    return y * 0


def check(model: Transformer, plain: torch.Tensor) -> None:
    expected = output(model)
    assert largest_difference(expected, plain) > 1e-3
    compile_model(model, backend="eager")
    assert largest_difference(output(model), expected) < 1e-5
