"""AdamW, Muon, their parameter groups, and their state by the names of parameters.

Shapes: ``m`` × ``n`` a matrix of weights.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from glassformer.config.checks import check_positive_number, check_probability
from glassformer.nn.linear import Embedding
from glassformer.training.parallel import is_shard, shard_like
from glassformer.weights.convert import plain_names


class GroupedParameter(NamedTuple):
    """A parameter with the optimizer and the group that it is in."""

    name: str
    shape: tuple[int, ...]
    optimizer: str
    group: int
    weight_decay: float
    lr: float


def adamw(
    model: nn.Module,
    lr: float,
    *,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
) -> AdamW:
    """AdamW (Loshchilov and Hutter, 2019) with weight decay for matrices and tables, not for gains and biases."""
    check_positive_number(lr=lr)
    return AdamW(decay_groups(trained(model), weight_decay), lr=lr, betas=betas, eps=eps, fused=True)


def muon_and_adamw(
    model: nn.Module,
    lr: float,
    *,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
) -> list[Optimizer]:
    """Muon for the matrices in the blocks; AdamW for embedding tables, the matrix of a head, gains and biases."""
    in_blocks = [p for name, p in model.named_parameters() if p.requires_grad and p.ndim == 2 and ".blocks." in name]
    if not in_blocks:
        raise ValueError("Muon is for the matrices of a model's blocks, and this model has none.")
    tables = {m.weight for m in model.modules() if isinstance(m, Embedding)}
    matrices = [p for p in dict.fromkeys(in_blocks) if p not in tables]
    rest = [p for p in trained(model) if p not in set(matrices)]
    adam = AdamW(decay_groups(rest, weight_decay), lr=lr, betas=betas, eps=eps, fused=True)
    return [Muon(matrices, lr, weight_decay=weight_decay), adam]


def decay_groups(parameters: Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups: parameters with at least two axes decay, the others do not.

    Each parameter is in exactly one.
    """
    unique = list(dict.fromkeys(parameters))  # a shared parameter once
    return [
        {"params": [p for p in unique if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in unique if p.ndim < 2], "weight_decay": 0.0},
    ]


def list_groups(optimizers: Sequence[Optimizer], model: nn.Module) -> list[GroupedParameter]:
    """Return every trained parameter once, with its group; raises if one is in none or in several."""
    names = parameter_names(model)
    rows = [
        GroupedParameter(
            names[p],
            tuple(p.shape),
            type(optimizer).__name__,
            number,
            float(group["weight_decay"]),
            float(group["lr"]),
        )
        for optimizer in optimizers
        for number, group in enumerate(optimizer.param_groups)
        for p in group["params"]
    ]
    # Every trained parameter occurs exactly once.
    grouped, expected = sorted(row.name for row in rows), sorted(names[p] for p in trained(model))
    if grouped != expected:
        wrong = sorted(name for name in {*grouped, *expected} if grouped.count(name) != expected.count(name))
        raise ValueError(
            f"each trained parameter must be in exactly one group of one optimizer; these are not: {', '.join(wrong)}."
        )
    return rows


def trained(model: nn.Module) -> list[Tensor]:
    """Return the parameters that require a gradient, each once."""
    return [p for p in model.parameters() if p.requires_grad]


class Muon(Optimizer):
    """Momentum whose update is made an orthogonal matrix (Jordan et al., 2024): its singular values become about 1.

    The update is scaled by 0.2 · √(larger side), which gives it about the norm of AdamW's (Liu et al., 2025), so that
    learning rates carry over. ``torch.optim.Muon`` iterates in bfloat16 on every device; here the iteration runs in the
    parameter's own type, but on a GPU in bfloat16.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, *, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        check_positive_number(lr=lr)
        check_probability(momentum=momentum)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError(f"Muon is for matrices; a parameter of shape {tuple(p.shape)} belongs to AdamW.")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)
        return loss

    def _update(self, p: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        state["momentum"].lerp_(gradient, 1 - group["momentum"])
        nesterov = gradient.lerp(state["momentum"], group["momentum"])
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(orthogonal(nesterov).to(p.dtype), alpha=-group["lr"] * 0.2 * math.sqrt(max(p.shape)))


def orthogonal(matrix: Float[Tensor, "m n"], iterations: int = 5) -> Float[Tensor, "m n"]:
    """Return a matrix with the same singular vectors and singular values of about 1 (0.7 to 1.2), by Newton-Schulz."""
    a, b, c = 3.4445, -4.7750, 2.0315  # the quintic with the steepest slope at 0 (Jordan et al., 2024)
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T  # (m, m), m ≤ n
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of an optimizer's state by ``parameter/key``, and everything else in it."""
    names = parameter_names(model)
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            (tensors if isinstance(value, Tensor) else numbers)[f"{names[parameter]}/{key}"] = value
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        | {"params": [names[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    return tensors, {"numbers": numbers, "groups": groups}


def restore_optimizer(
    optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> None:
    """Restore the saved state of an optimizer of the same model; its tensors move to the parameters' device."""
    # Settings of the groups, which must hold the same parameters.
    names = parameter_names(model)
    parameters = {name: parameter for parameter, name in names.items()}
    for number, (group, saved) in enumerate(zip(optimizer.param_groups, values["groups"], strict=False)):
        current = [names[parameter] for parameter in group["params"]]
        if current != saved["params"]:
            changed = sorted(set(current) ^ set(saved["params"])) or ["the same, in another order"]
            raise ValueError(
                f"group {number} of the optimizer holds different parameters from those saved: {changed[:5]}."
            )
        group |= {
            key: tuple(value) if isinstance(group.get(key), tuple) else value  # JSON has no tuples
            for key, value in saved.items()
            if key != "params"
        }
    if len(optimizer.param_groups) != len(values["groups"]):
        raise ValueError(
            f"{len(values['groups'])} groups were saved; this optimizer has {len(optimizer.param_groups)}."
        )
    # State of each parameter, sharded like it and on its device.
    optimizer.state.clear()
    for key, value in chain(tensors.items(), values["numbers"].items()):  # tensors may be read one by one
        name, _, entry = key.rpartition("/")
        parameter = parameters[name]
        if isinstance(value, Tensor) and value.ndim:  # a step counter stays where the optimizer keeps it
            if is_shard(parameter) and value.shape != parameter.shape:
                raise ValueError(f"{key} does not have the shape of its parameter, so it cannot be sharded like it.")
            value = shard_like(value, parameter).to(parameter.device)
        elif isinstance(value, Tensor):
            value = value.to(parameter.device if _has_step_on_device(optimizer, parameter) else "cpu")
        optimizer.state[parameter][entry] = value


def parameter_names(model: nn.Module) -> dict[Tensor, str]:
    """Return the name of each parameter, without the prefixes of compiled and distributed modules."""
    named = dict(model.named_parameters())
    return {named[name]: plain for plain, name in plain_names(named).items()}


def _has_step_on_device(optimizer: Optimizer, parameter: Tensor) -> bool:
    group = next(group for group in optimizer.param_groups if any(parameter is p for p in group["params"]))
    return bool(group.get("fused") or group.get("capturable"))
