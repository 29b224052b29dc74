"""Low-rank adapters (LoRA; Hu et al., 2021): a frozen model learns by small additions to some of its linear layers.

W x becomes W x + (alpha / rank) · B A x with A ``(rank, d_in)`` and B ``(d_out, rank)``; only A and B are trained. B
starts at zero, so that training starts from the model as it was. ``merge`` adds the product to W and removes A and B.

Names: ``decoder.blocks.0.attention.q`` keeps its ``weight`` and ``bias`` and gets ``lora_a`` and ``lora_b``.

On disk a folder holds ``adapters.safetensors`` (A and B, and what else was trained) and ``adapters.json``: rank, alpha,
dropout, the names of the layers, and a fingerprint of the frozen weights, without which A and B mean nothing. The names
are ours, and layers that other libraries keep as one matrix (queries, keys and values, say) are adapted one by one; so
these are not PEFT's files, and no renaming would make them so. For other libraries, merge first.

Shapes: ``...`` any leading axes, ``d_in`` and ``d_out`` vector widths.
"""

import copy
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.config.checks import check_positive_integer, check_positive_number, check_probability
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.nn.linear import Linear
from glassformer.weights.files import WeightsError, open_weights, some
from glassformer.weights.fingerprint import fingerprint
from glassformer.weights.saving import replacing, write_weights

AnyModel = TypeVar("AnyModel", bound=nn.Module)
TARGETS = ("attention.q", "attention.v")  # what the paper adapts


class AdaptedLinear(Linear):
    """A linear layer with an adapter; it shares the parameters of the layer that it replaces.

    The adapter is in at least float32, whatever the type of the layer: its updates are small.
    """

    def __init__(self, linear: Linear, rank: int, alpha: float, dropout: float = 0.0) -> None:
        nn.Module.__init__(self)  # not Linear's own, which would make a weight
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.rank, self.alpha, self.fused = rank, alpha, linear.fused
        self.dropout = nn.Dropout(dropout)
        like = self.weight.detach()
        dtype = torch.promote_types(like.dtype, torch.float32)
        # A keeps the norm of its input vectors; the paper says normal and leaves the deviation open.
        initial = like.new_empty(rank, self.in_features, dtype=dtype).normal_(0, self.in_features**-0.5)
        self.lora_a = nn.Parameter(initial)
        self.lora_b = nn.Parameter(like.new_zeros(self.out_features, rank, dtype=dtype))
        self.train(linear.training)

    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_out"]:
        """W x + b + (alpha / rank) · B A dropout(x)."""
        y = super().forward(x)
        low = self.dropout(x).to(self.lora_a.dtype) @ rearrange(self.lora_a, "r d_in -> d_in r")
        return y + (low @ rearrange(self.lora_b, "d_out r -> r d_out") * (self.alpha / self.rank)).to(y.dtype)

    @torch.no_grad()
    def merged(self) -> Linear:
        """Return the plain layer W + (alpha / rank) · B A, in the memory of W."""
        added = self.lora_b @ self.lora_a * (self.alpha / self.rank)
        self.weight.copy_(self.weight.to(added.dtype) + added)
        with torch.device("meta"):  # no memory: both parameters are there already
            plain = Linear(self.in_features, self.out_features)
        plain.weight, plain.bias, plain.fused = self.weight, self.bias, self.fused
        return plain.train(self.training)

    def extra_repr(self) -> str:
        """Return what print(model) shows in the brackets."""
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
    """Add adapters to linear layers of a model and freeze everything else; return their names.

    Make optimizers and averages afterwards. ``A`` is drawn from torch's default generator.

    Args:
        model: changed in place; its outputs are not changed.
        rank: of the product B A.
        alpha: the product is scaled by alpha / rank, so that learning rates carry over to other ranks.
        dropout: share of the adapters' inputs set to zero while training.
        targets: names of linear layers, or the ends of names, as ``attention.q``; ``*`` matches anything.
        also: other parameters to train, as ``head.*``: a new head must not be frozen.
    """
    check_positive_integer(rank=rank)
    check_positive_number(alpha=alpha)
    check_probability(dropout=dropout)
    if adapted(model):
        raise ValueError("this model has adapters already; merge them before others are added.")
    # Freeze all parameters but ``also``, then replace the chosen layers.
    layers = {name: part for name, part in model.named_modules() if isinstance(part, Linear)}
    chosen = _choose("linear layer", targets, layers)
    trained = set(_choose("parameter", also, [name for name, _ in model.named_parameters()]))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    for name in chosen:
        _replace(model, name, AdaptedLinear(layers[name], rank, alpha, dropout))
    return chosen


def adapted(model: nn.Module) -> dict[str, AdaptedLinear]:
    """Return the linear layers with adapters, by name."""
    return {name: part for name, part in model.named_modules() if isinstance(part, AdaptedLinear)}


def merge(model: nn.Module) -> None:
    """Merge the adapters into the weights, in place: the model is a plain one again, and all of it is trainable."""
    layers = adapted(model)
    if not layers:
        raise ValueError("this model has no adapters to merge.")
    for name, part in layers.items():
        _replace(model, name, part.merged())
    model.requires_grad_(True)


def merged(model: AnyModel) -> AnyModel:
    """Return a copy with its adapters merged, to be saved while the model itself trains on."""
    duplicate = copy.deepcopy(model)
    merge(duplicate)
    return duplicate


def _replace(model: nn.Module, name: str, part: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, part)


def _choose(kind: str, patterns: Collection[str], names: Iterable[str]) -> list[str]:
    """Return the names that any pattern matches, in the model's order; raise if a pattern matches none."""
    if isinstance(patterns, str):
        raise TypeError(f"patterns are a collection of names; for a single one write ({patterns!r},).")
    names = list(names)
    tests = {pattern: _matcher(pattern) for pattern in patterns}
    for pattern, matches in tests.items():
        if not any(map(matches, names)):
            kinds = sorted({_kind(name) for name in names})
            near = get_close_matches(_kind(pattern), kinds, n=3, cutoff=0.4) or kinds
            raise ValueError(f"no {kind} of this model is called {pattern!r}. Similar names: {', '.join(near[:30])}.")
    return [name for name in names if any(matches(name) for matches in tests.values())]


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name is the pattern, or ends in a dot and the pattern."""
    regex = re.compile(r"(.*\.)?" + re.escape(pattern).replace(r"\*", ".*"))
    return lambda name: regex.fullmatch(name) is not None


def _kind(name: str) -> str:
    """Return the part of a name after its block number, which is the same for all layers."""
    return re.sub(r"^.*\.\d+\.", "", name)


FACTS, TENSORS = "adapters.json", "adapters.safetensors"
KEYS = {"format", "rank", "alpha", "dropout", "targets", "also", "base"}


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters of an adapted model, by name: A and B of every adapter, and those of ``also``."""
    inner = unwrapped(model)
    if not adapted(inner):
        raise ValueError("this model has no adapters; add_adapters gives it some.")
    return {name: parameter.detach() for name, parameter in inner.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def restore_adapters(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy what ``adapter_state`` gave into a model with the same adapters; all or nothing."""
    own = adapter_state(model)
    _check_shapes("these adapters", {n: t.shape for n, t in tensors.items()}, {n: t.shape for n, t in own.items()})
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def save_adapters(model: nn.Module, folder: Path, *, base: str | None = None) -> None:
    """Save the adapters of a model; ``base`` is the fingerprint of its frozen weights, if it is known."""
    tensors, parts = adapter_state(model), adapted(unwrapped(model))
    first = next(iter(parts.values()))
    own = {f"{name}.{leaf}" for name in parts for leaf in ("lora_a", "lora_b")}
    settings = {
        "format": 1,
        "rank": first.rank,
        "alpha": first.alpha,
        "dropout": first.dropout.p,
        "targets": list(parts),
        "also": [name for name in tensors if name not in own],
        "base": fingerprint(model, tensors.keys()) if base is None else base,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / FACTS) as temporary:  # complete before the tensors change, so that the two change together
        temporary.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        write_weights(folder, tensors, file_name=TENSORS)


def load_adapters(model: nn.Module, folder: Path, *, any_base: bool = False) -> list[str]:
    """Add the adapters in a folder to a plain model; return the names of the layers that have them now.

    The model must be the one they were trained on, bit for bit; ``any_base`` accepts another, such as the same in half
    precision. Nothing is changed unless everything fits.
    """
    inner, settings, tensors = unwrapped(model), _read_settings(folder / FACTS), _tensors(folder)
    parameters = dict(inner.named_parameters())
    expected = {name: parameters[name].shape for name in settings["also"] if name in parameters}
    for name in settings["targets"]:
        rows, columns = getattr(parameters.get(f"{name}.weight"), "shape", (0, 0))
        expected |= {f"{name}.lora_a": torch.Size((settings["rank"], columns))}
        expected |= {f"{name}.lora_b": torch.Size((rows, settings["rank"]))}
    _check_shapes(str(folder), {name: tensor.shape for name, tensor in tensors.items()}, expected)
    if not any_base and fingerprint(inner, settings["also"]) != settings["base"]:
        raise WeightsError(
            f"{folder}: these adapters were trained on other weights than this model has. Load the model that they "
            f"were trained on, in the same precision, or pass any_base=True to use them anyway."
        )
    chosen = add_adapters(inner, **{key: settings[key] for key in ("rank", "alpha", "dropout", "targets", "also")})
    restore_adapters(inner, tensors)
    return chosen


@torch.no_grad()
def merged_with(model: nn.Module, folders: Sequence[Path]) -> Transformer:
    """Return a plain copy of an adapted model, with the adapters of a folder merged instead of the current ones.

    With several folders, the mean of the merged models, summed in float64 as in ``averaging``.
    """
    duplicate = copy.deepcopy(unwrapped(model))
    names = [*adapter_state(duplicate), *(f"{name}.weight" for name in adapted(duplicate))]
    restore_adapters(duplicate, _tensors(folders[0]))
    result = merged(duplicate)
    weights = {name: weight for name, weight in result.named_parameters() if name in names}
    totals = {name: weight.double() for name, weight in weights.items()}
    for folder in folders[1:]:
        restore_adapters(duplicate, _tensors(folder))
        other = dict(merged(duplicate).named_parameters())
        for name, total in totals.items():
            total += other[name]
    for name, weight in weights.items():
        weight.copy_(totals[name] / len(folders))
    return result


def _tensors(folder: Path) -> dict[str, Tensor]:
    with open_weights(folder / TENSORS) as stored:
        return {name: stored.read(name) for name in stored.entries}


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise WeightsError(f"{path}: there is no such file. Pass a folder that save_adapters wrote.")
    try:
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        missing = KEYS - settings.keys()
    except (ValueError, AttributeError, TypeError) as error:
        raise WeightsError(f"{path} is damaged: {error}. Save the adapters again.") from error
    if missing or settings["format"] != 1:
        raise WeightsError(f"{path} must have format 1 and {', '.join(sorted(KEYS))}; this one is of another version.")
    return settings


def _check_shapes(source: str, shapes: Mapping[str, torch.Size], expected: Mapping[str, torch.Size]) -> None:
    if unmatched := shapes.keys() ^ expected.keys():
        raise WeightsError(
            f"{source}: these adapters are for another model; only one of the two has {some(unmatched)}."
        )
    if wrong := [f"{name} {tuple(shapes[name])}" for name in expected if shapes[name] != expected[name]]:
        raise WeightsError(f"{source}: these adapters do not have the shapes that this model needs: {some(wrong)}.")
