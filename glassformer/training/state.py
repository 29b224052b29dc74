"""What a run must remember besides its weights to go on as if it had never stopped: optimizer and random numbers.

Tensors go into safetensors files, everything else into JSON; no pickle is written or read. Optimizer states go by the
names of their parameters, so that they find their places again, be these whole or shared out among processes.
"""

import random
from collections.abc import Mapping
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from glassformer.training.shards import is_shard, shared_out
from glassformer.weights.convert import plain_names

Tensors = dict[str, Tensor]


@runtime_checkable
class Stateful(Protocol):
    """Something else that a run must remember: a moving average of the weights, a count of validations …"""

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        """Its tensors by name, and whatever else it remembers, as JSON can write it."""

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from there. A tensor that ``state`` gives as a shard comes as this process's shard."""


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> tuple[Tensors, dict[str, Any]]:
    """The tensors of an optimizer by ``parameter/what``, and everything else it remembers."""
    names = parameter_names(model)
    tensors: Tensors = {}
    numbers: dict[str, Any] = {}
    for parameter, remembered in optimizer.state.items():
        for what, value in remembered.items():
            (tensors if isinstance(value, Tensor) else numbers)[f"{names[parameter]}/{what}"] = value
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        | {"params": [names[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    return tensors, {"numbers": numbers, "groups": groups}


def restore_optimizer(
    optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Put an optimizer of the same model into the state that was saved; its tensors move to the parameters' device."""
    names = parameter_names(model)
    parameters = {name: parameter for parameter, name in names.items()}
    for number, (group, saved) in enumerate(zip(optimizer.param_groups, facts["groups"], strict=False)):
        here = [names[parameter] for parameter in group["params"]]
        if here != saved["params"]:
            other = sorted(set(here) ^ set(saved["params"])) or ["the same, in another order"]
            raise ValueError(f"group {number} of the optimizer holds other parameters than were saved: {other[:5]}.")
        group |= {key: _as_was(group.get(key), value) for key, value in saved.items() if key != "params"}
    if len(optimizer.param_groups) != len(facts["groups"]):
        raise ValueError(f"{len(facts['groups'])} groups were saved; this optimizer has {len(optimizer.param_groups)}.")
    optimizer.state.clear()
    for key, value in chain(tensors.items(), facts["numbers"].items()):  # tensors may be read one by one
        name, _, what = key.rpartition("/")
        parameter = parameters[name]
        if isinstance(value, Tensor) and value.ndim:  # a step counter stays where the optimizer keeps it
            if is_shard(parameter) and value.shape != parameter.shape:
                raise ValueError(f"{key} has not the shape of its parameter, so it cannot be shared out with it.")
            value = shared_out(value, parameter).to(parameter.device)
        elif isinstance(value, Tensor):
            value = value.to(parameter.device if _counts_on_device(optimizer, parameter) else "cpu")
        optimizer.state[parameter][what] = value


def parameter_names(model: nn.Module) -> dict[Tensor, str]:
    """The name of each parameter, without what compilation and distribution put before it."""
    named = dict(model.named_parameters())
    return {named[name]: plain for plain, name in plain_names(named).items()}


def _as_was(here: object, saved: Any) -> Any:
    return tuple(saved) if isinstance(here, tuple) else saved  # JSON knows no tuples


def _counts_on_device(optimizer: Optimizer, parameter: Tensor) -> bool:
    group = next(group for group in optimizer.param_groups if any(parameter is one for one in group["params"]))
    return bool(group.get("fused") or group.get("capturable"))


def random_state(device: torch.device | None = None) -> Tensors:
    """The state of every generator of random numbers that training on a device draws from."""
    version, numbers, gauss = random.getstate()
    state = {"torch.cpu": torch.get_rng_state(), "python": torch.tensor([version, *numbers], dtype=torch.int64)}
    if gauss is not None:
        state["python.gauss"] = torch.tensor(gauss, dtype=torch.float64)
    if device is not None and device.type == "cuda":
        state["torch.cuda"] = torch.cuda.get_rng_state(device)  # of this GPU alone: others are other processes'
    return state


def restore_random(state: Mapping[str, Tensor], device: torch.device | None = None) -> None:
    """Let random numbers go on from where they were."""
    version, *numbers = state["python"].tolist()
    gauss = state["python.gauss"].item() if "python.gauss" in state else None
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch.cpu"])
    if "torch.cuda" in state and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["torch.cuda"], device)
