"""Low-rank adapters (LoRA; Hu et al., 2021): a frozen model learns by small additions to some of its linear maps.

W x becomes W x + (alpha / rank) · B A x with A ``(rank, d_in)`` and B ``(d_out, rank)``; only A and B learn. B starts
at zero, so that training starts from the model as it was. ``merge`` puts the product into W, and no trace is left.

Names: ``decoder.blocks.0.attention.q`` keeps its ``weight`` and ``bias`` and gets ``lora_a`` and ``lora_b`` besides.
Files are ``adapter_files``'s. Shapes: ``...`` any leading axes, ``d_in`` and ``d_out`` vector widths.
"""

import copy
import re
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from typing import TypeVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.config.checks import check_number, check_positive, check_probability
from glassformer.nn.linear import Linear

AnyModel = TypeVar("AnyModel", bound=nn.Module)
TARGETS = ("attention.q", "attention.v")  # what the paper adapts


class AdaptedLinear(Linear):
    """A linear map with an adapter; it keeps the very parameters of the map it takes the place of.

    The adapter is kept in at least float32, whatever the map is stored in: its steps are small.
    """

    def __init__(self, linear: Linear, rank: int, alpha: float, dropout: float = 0.0) -> None:
        nn.Module.__init__(self)  # not Linear's own, which would make a weight
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.rank, self.alpha, self.fused = rank, alpha, linear.fused
        self.dropout = nn.Dropout(dropout)
        like = self.weight.detach()
        dtype = torch.promote_types(like.dtype, torch.float32)
        # A keeps the size of the vectors that it reads; the paper says normal and leaves the deviation open.
        drawn = like.new_empty(rank, self.in_features, dtype=dtype).normal_(0, self.in_features**-0.5)
        self.lora_a = nn.Parameter(drawn)
        self.lora_b = nn.Parameter(like.new_zeros(self.out_features, rank, dtype=dtype))
        self.train(linear.training)

    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_out"]:
        """W x + b + (alpha / rank) · B A dropout(x)."""
        y = super().forward(x)
        low = self.dropout(x).to(self.lora_a.dtype) @ rearrange(self.lora_a, "r d_in -> d_in r")
        return y + (low @ rearrange(self.lora_b, "d_out r -> r d_out") * (self.alpha / self.rank)).to(y.dtype)

    @torch.no_grad()
    def merged(self) -> Linear:
        """The plain map W + (alpha / rank) · B A, in the memory of W."""
        added = self.lora_b @ self.lora_a * (self.alpha / self.rank)
        self.weight.copy_(self.weight.to(added.dtype) + added)
        with torch.device("meta"):  # no memory: both parameters are there already
            plain = Linear(self.in_features, self.out_features)
        plain.weight, plain.bias, plain.fused = self.weight, self.bias, self.fused
        return plain.train(self.training)

    def extra_repr(self) -> str:
        """What print(model) shows in the brackets."""
        return f"{super().extra_repr()}, rank={self.rank}, alpha={self.alpha:g}"


def add_adapters(
    model: nn.Module,
    *,
    rank: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.0,
    targets: Collection[str] = TARGETS,
    also: Collection[str] = (),
) -> list[str]:
    """Give linear maps of a model adapters and freeze everything else; return the names of the maps.

    Make optimizers and averages afterwards. ``A`` is drawn from torch's own generator.

    Args:
        model: changed in place; what it answers is not changed.
        rank: of the product B A.
        alpha: the product is scaled by alpha / rank, so that learning rates carry over to other ranks.
        dropout: share of the adapters' inputs set to zero while training.
        targets: names of linear maps, or the ends of names, as ``attention.q``; ``*`` matches anything.
        also: parameters that learn besides, as ``head.*``: a fresh head is of no use frozen.
    """
    check_positive(rank=rank)
    check_number(alpha=alpha)
    check_probability(dropout=dropout)
    if adapted(model):
        raise ValueError("this model has adapters already; merge them before others are added.")
    maps = {name: part for name, part in model.named_modules() if isinstance(part, Linear)}
    chosen = _choose("linear map", targets, maps)
    learning = set(_choose("parameter", also, [name for name, _ in model.named_parameters()]))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in learning)
    for name in chosen:
        _put(model, name, AdaptedLinear(maps[name], rank, alpha, dropout))
    return chosen


def adapted(model: nn.Module) -> dict[str, AdaptedLinear]:
    """The linear maps with adapters, by name."""
    return {name: part for name, part in model.named_modules() if isinstance(part, AdaptedLinear)}


def merge(model: nn.Module) -> None:
    """Put the adapters into the weights, in place: the model is a plain one again, and all of it can learn."""
    found = adapted(model)
    if not found:
        raise ValueError("this model has no adapters to merge.")
    for name, part in found.items():
        _put(model, name, part.merged())
    model.requires_grad_(True)


def merged(model: AnyModel) -> AnyModel:
    """A copy with its adapters merged, to be saved while the model itself goes on training."""
    twin = copy.deepcopy(model)
    merge(twin)
    return twin


def _put(model: nn.Module, name: str, part: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, part)


def _choose(what: str, patterns: Collection[str], names: Iterable[str]) -> list[str]:
    """The names that any pattern matches, in the model's order; a pattern that matches none is an error."""
    if isinstance(patterns, str):
        raise TypeError(f"patterns are a collection of names; for one of them say ({patterns!r},).")
    names = list(names)
    tests = {pattern: _matcher(pattern) for pattern in patterns}
    for pattern, matches in tests.items():
        if not any(map(matches, names)):
            kinds = sorted({_kind(name) for name in names})
            near = get_close_matches(_kind(pattern), kinds, n=3, cutoff=0.4) or kinds
            raise ValueError(f"no {what} of this model is called {pattern!r}. Near it: {', '.join(near[:30])}.")
    return [name for name in names if any(matches(name) for matches in tests.values())]


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name is the pattern, or ends in a dot and the pattern."""
    written = re.compile(r"(.*\.)?" + re.escape(pattern).replace(r"\*", ".*"))
    return lambda name: written.fullmatch(name) is not None


def _kind(name: str) -> str:
    """A name without the part before and of the number of its block: the same for all layers."""
    return re.sub(r"^.*\.\d+\.", "", name)
