"""What a run must remember besides its weights to go on as if it had never stopped: optimizer and random numbers.

Tensors go into safetensors files, everything else into JSON; no pickle is written or read. Optimizer states go by the
names of their parameters, so that they find their places again.
"""

import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Tensors = dict[str, Tensor]


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
    for key, value in {**tensors, **facts["numbers"]}.items():
        name, _, what = key.rpartition("/")
        parameter = parameters[name]
        if isinstance(value, Tensor) and value.ndim:  # a step counter stays where the optimizer keeps it
            value = value.to(parameter.device)
        elif isinstance(value, Tensor):
            value = value.to(parameter.device if _counts_on_device(optimizer, parameter) else "cpu")
        optimizer.state[parameter][what] = value


def parameter_names(model: nn.Module) -> dict[Tensor, str]:
    """The name of each parameter, without what compilation and distribution put before it."""
    return {
        parameter: name.replace("_orig_mod.", "").removeprefix("module.")
        for name, parameter in model.named_parameters()
    }


def _as_was(here: object, saved: Any) -> Any:
    return tuple(saved) if isinstance(here, tuple) else saved  # JSON knows no tuples


def _counts_on_device(optimizer: Optimizer, parameter: Tensor) -> bool:
    group = next(group for group in optimizer.param_groups if any(parameter is one for one in group["params"]))
    return bool(group.get("fused") or group.get("capturable"))


def random_state() -> Tensors:
    """The state of every generator of random numbers that training draws from."""
    version, numbers, gauss = random.getstate()
    state = {"torch.cpu": torch.get_rng_state(), "python": torch.tensor([version, *numbers], dtype=torch.int64)}
    if gauss is not None:
        state["python.gauss"] = torch.tensor(gauss, dtype=torch.float64)
    if torch.cuda.is_available():
        state |= {f"torch.cuda.{number}": one for number, one in enumerate(torch.cuda.get_rng_state_all())}
    return state


def restore_random(state: Mapping[str, Tensor]) -> None:
    """Let random numbers go on from where they were."""
    version, *numbers = state["python"].tolist()
    gauss = state["python.gauss"].item() if "python.gauss" in state else None
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch.cpu"])
    for name, one in state.items():
        place = name.removeprefix("torch.cuda.")
        if place != name and int(place) < torch.cuda.device_count():
            torch.cuda.set_rng_state(one, int(place))
