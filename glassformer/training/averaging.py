"""Averages of weights: a moving average during a run, and the mean of saved checkpoints.

The mean of weights from late in a run is better than any of them (Polyak and Juditsky, 1992); the mean over the last
checkpoints is how the first Transformer was evaluated (Vaswani et al., 2017, section 6.1).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.config import to_dict
from glassformer.config.checks import check_probability
from glassformer.models.transformer import unwrapped
from glassformer.training.checkpoint_contents import differences
from glassformer.training.checkpoint_folders import CheckpointError, check
from glassformer.training.optim import parameter_names
from glassformer.weights.files import some
from glassformer.weights.source import ModelSource, open_source


class MovingAverage:
    """An exponential moving average of the trained weights: average ← d · average + (1 − d) · weight.

    d = min(decay, (1 + n) / (10 + n)) at the n-th update, as TensorFlow's ``ExponentialMovingAverage`` has it: the
    initial weights are nearly forgotten after a few updates, where a fixed 0.999 would keep them for thousands.

    In at least float32: in bfloat16 a step of 0.001 of the difference would round away. A shared weight is averaged
    once. Buffers have no average: while the averaged weights are applied, buffers stay as they are.

    Args:
        model: the one in training, with its adapters and on its devices already: the parameters that require
            gradients now are averaged.
        decay: the largest d.
    """

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        check_probability(decay=decay)
        self.decay, self.updates = decay, 0
        self._weights = {name: p for p, name in parameter_names(model).items() if p.requires_grad}
        if not self._weights:
            raise ValueError("no parameter of this model requires a gradient, so there is nothing to average.")
        self._averages = {name: _float32(weight).clone() for name, weight in self._weights.items()}
        self._is_applied = False

    @torch.no_grad()
    def update(self) -> None:
        """Update the averages with the current weights; call it after every step."""
        if self._is_applied:
            raise RuntimeError("the model has its averaged weights now; update after the with statement has ended.")
        self.updates += 1
        rate = 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, weight in self._weights.items():
            self._averages[name].lerp_(_float32(weight), rate)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the averaged weights inside the ``with`` block; afterwards, restore the model's own bit for bit."""
        if self._is_applied:
            raise RuntimeError("the averaged weights are applied already.")
        own = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._is_applied = True
        try:
            self._copy(self._averages)
            yield
        finally:
            self._copy(own)
            self._is_applied = False

    @torch.no_grad()
    def _copy(self, values: Mapping[str, Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.copy_(values[name])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the averages by the names of their parameters, and how many updates were made."""
        return dict(self._averages), {"updates": self.updates, "decay": self.decay}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore what ``state`` gave."""
        if unmatched := tensors.keys() ^ self._averages.keys():
            raise ValueError(f"these averages are of another model; only one of the two has {some(unmatched)}.")
        if values["decay"] != self.decay:
            raise ValueError(f"these averages were made with decay={values['decay']}, and this run has {self.decay}.")
        for name, average in self._averages.items():
            if tensors[name].shape != average.shape:
                shapes = f"{tuple(tensors[name].shape)} were saved, and the model has {tuple(average.shape)}"
                raise ValueError(f"the averages of {name} do not fit: {shapes}.")
        for name, average in self._averages.items():
            average.copy_(tensors[name])
        self.updates = values["updates"]


def _float32(weight: Tensor) -> Tensor:
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


def average_checkpoints(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of several checkpoints of one model, by name and in the type they are stored in.

    Every file is verified by its checksum first. Sums are in float64; besides the result only one tensor is in memory
    at a time.
    """
    if not folders:
        raise ValueError("there are no checkpoints to average.")
    for folder in folders:
        check(folder)
    with ExitStack() as opened:
        # All must be of the same model; then average tensor by tensor.
        sources = [opened.enter_context(open_source(folder, check_finite=True)) for folder in folders]
        for source in sources:
            _check_same(sources[0], source)
        return {name: _mean(name, sources) for name in sources[0].weights.shapes}


def load_average(model: nn.Module, folders: Sequence[Path]) -> None:
    """Load the mean of several checkpoints into a model of the same facts."""
    inner = unwrapped(model)
    weights = average_checkpoints(folders)
    with open_source(folders[0]) as first:
        _check_facts(folders[0], first.config["model"], "the model", to_dict(inner.config))
    inner.load_state_dict(weights)


def _mean(name: str, sources: Sequence[ModelSource]) -> Tensor:
    total = sources[0].weights.read(name).double()
    for source in sources[1:]:
        total += source.weights.read(name)
    return (total / len(sources)).to(sources[0].weights.dtypes[name])


def _check_same(first: ModelSource, other: ModelSource) -> None:
    """Raise unless both are checkpoints in our format, of the same facts, with the same tensors."""
    if not other.is_ours:
        raise CheckpointError(f"{other.path} is not a checkpoint of a run; only those are averaged.")
    _check_facts(first.path, first.config["model"], str(other.path), other.config["model"])
    for kind, ours, theirs in (
        ("shape", first.weights.shapes, other.weights.shapes),
        ("type", first.weights.dtypes, other.weights.dtypes),
    ):
        if names := ours.keys() ^ theirs.keys():
            raise CheckpointError(f"{some(names)} are in only one of {first.path} and {other.path}.")
        for name in ours:
            if ours[name] != theirs[name]:
                raise CheckpointError(
                    f"{name} has the {kind} {ours[name]} in {first.path}, but {theirs[name]} in {other.path}."
                )


def _check_facts(path: Path, facts: Any, other_path: str, other: Any) -> None:
    if changed := list(differences(facts, other)):
        lines = "\n".join(f"  {name}: {value!r}, and {other_value!r}" for name, value, other_value in changed)
        raise CheckpointError(f"{path} and {other_path} are of different models, which have no mean:\n{lines}")
