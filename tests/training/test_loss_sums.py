"""Sums of losses and metrics over batches."""

from typing import NoReturn

import pytest
import torch
from torch import Tensor

from glassformer.objectives.base import Loss, LossTerm
from glassformer.training.loss_sums import LossAccumulator


class OnAppleGPU(Tensor):
    """A tensor on the CPU that pretends to be on a device without float64."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("mps")

    def double(self) -> NoReturn:
        raise TypeError("the MPS framework doesn't support float64")

    def cpu(self) -> Tensor:  # type: ignore[override]
        return self.as_subclass(Tensor)


@pytest.mark.parametrize("kind", [Tensor, OnAppleGPU])
def test_sums_are_in_float64_on_every_device(kind: type[Tensor]) -> None:
    losses = LossAccumulator()
    for total in (2.0**24, 1.0, 1.0):  # in float32, the ones would be lost
        number = torch.tensor(total).as_subclass(kind)
        losses.add(Loss({"next": LossTerm(number, 1, weight=3.0)}, {"odd": (number, 2)}))
    assert losses.stacked().tolist() == [2**24 + 2, 2**24 + 2, 3, 6]
    means = losses.means()
    assert means.loss == 2**24 + 2
    assert means.metrics == {"odd": (2**24 + 2) / 6}
