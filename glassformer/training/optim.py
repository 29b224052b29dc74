"""Optimizers and the groups their parameters fall into."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from glassformer.config.checks import check_number
from glassformer.nn.linear import Embedding
from glassformer.training.muon import Muon
from glassformer.training.state import parameter_names


class Grouped(NamedTuple):
    """In which group a parameter is, and what that means for it."""

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
    """AdamW (Loshchilov and Hutter, 2019) that decays matrices and tables, and leaves gains and biases alone."""
    check_number(lr=lr)
    return AdamW(decay_groups(trained(model), weight_decay), lr=lr, betas=betas, eps=eps, fused=True)


def muon_and_adamw(
    model: nn.Module,
    lr: float,
    *,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
) -> list[Optimizer]:
    """Muon for the matrices inside the stacks; AdamW for tables, the matrix of a head, gains and biases."""
    inside = [p for name, p in model.named_parameters() if p.requires_grad and p.ndim == 2 and ".blocks." in name]
    if not inside:
        raise ValueError("Muon is for the matrices of a model's blocks, and this model has none.")
    tables = {m.weight for m in model.modules() if isinstance(m, Embedding)}
    matrices = [p for p in dict.fromkeys(inside) if p not in tables]
    rest = [p for p in trained(model) if p not in set(matrices)]
    other = AdamW(decay_groups(rest, weight_decay), lr=lr, betas=betas, eps=eps, fused=True)
    return [Muon(matrices, lr, weight_decay=weight_decay), other]


def decay_groups(parameters: Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: what has at least two axes decays, the rest does not. Each parameter is in exactly one."""
    every = list(dict.fromkeys(parameters))  # a shared one once
    return [
        {"params": [p for p in every if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in every if p.ndim < 2], "weight_decay": 0.0},
    ]


def list_groups(optimizers: Sequence[Optimizer], model: nn.Module) -> list[Grouped]:
    """Every trained parameter once, with its group; raises if one is in none or in several."""
    names = parameter_names(model)
    rows = [
        Grouped(
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
    found, wanted = sorted(row.name for row in rows), sorted(names[p] for p in trained(model))
    if found != wanted:
        wrong = sorted(name for name in {*found, *wanted} if found.count(name) != wanted.count(name))
        raise ValueError(f"each trained parameter belongs to one group of one optimizer; not so {', '.join(wrong)}.")
    return rows


def trained(model: nn.Module) -> list[Tensor]:
    """The parameters that learn, each once."""
    return [p for p in model.parameters() if p.requires_grad]
