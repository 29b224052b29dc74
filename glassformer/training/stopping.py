"""When to stop: after several validations in a row that brought nothing better (Prechelt, 1998)."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from glassformer.config.checks import check_positive


class EarlyStopping:
    """Remembers the best value so far, and how often in a row none was better.

    Args:
        patience: so many validations in a row without a better value, and it is over.
        smaller_is_better: True for a loss, False for a score.
        least_change: a value must be better than the best by more than this. Small steps still add up: they are
            measured from the best that counted, not from the value before.
    """

    def __init__(self, patience: int, *, smaller_is_better: bool = True, least_change: float = 0.0) -> None:
        check_positive(patience=patience)
        if not 0 <= least_change < math.inf:
            raise ValueError(f"least_change must be a finite number of at least 0, got {least_change}.")
        self.patience, self.smaller_is_better, self.least_change = patience, smaller_is_better, least_change
        self.best: float | None = None
        self.waited = 0

    def better(self, value: float) -> bool:
        """Take note of one validation; whether it was better than all before. NaN and the worst infinity never are."""
        sign = -1.0 if self.smaller_is_better else 1.0
        before = -math.inf if self.best is None else sign * self.best
        is_better = sign * value > before + (0.0 if self.best is None else self.least_change)
        if is_better:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return is_better

    @property
    def is_over(self) -> bool:
        """Whether patience is at its end."""
        return self.waited >= self.patience

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What to remember when a run stops for another reason: tensors, of which there are none, and facts."""
        return {}, {"best": self.best, "waited": self.waited}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        del tensors
        self.best, self.waited = facts["best"], facts["waited"]
