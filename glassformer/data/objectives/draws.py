"""Small draws from a generator, each one number."""

import torch


def flip(chance: float, generator: torch.Generator) -> bool:
    """True with this chance."""
    return float(torch.rand((), generator=generator, dtype=torch.float64)) < chance


def pick(low: int, high: int, generator: torch.Generator) -> int:
    """A whole number of at least ``low`` and at most ``high``, each as likely."""
    return int(torch.randint(low, high + 1, (), generator=generator))
