"""Learning-rate schedules: a linear warm-up from ``start`` to 1 over the fraction ``warmup`` of a run, then a decay."""

import math
from collections.abc import Callable
from functools import partial

from glassformer.config.checks import check_choice, check_probability

Schedule = Callable[[float], float]  # from the fraction of a run that is done to a factor on the learning rate


def warmup_cosine(progress: float, *, warmup: float = 0.05, start: float = 0.05, floor: float = 0.05) -> float:
    """Return half a cosine wave down to ``floor`` (Loshchilov and Hutter, 2017)."""
    if progress < warmup:
        return start + (1 - start) * progress / warmup
    decay = min(1.0, (progress - warmup) / (1 - warmup))  # 0 at the end of the warm-up, 1 at the end of the run
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * decay))


def warmup_linear(progress: float, *, warmup: float = 0.05, start: float = 0.05, floor: float = 0.0) -> float:
    """Return a straight line down to ``floor`` (Devlin et al., 2019)."""
    if progress < warmup:
        return start + (1 - start) * progress / warmup
    return 1 - (1 - floor) * min(1.0, (progress - warmup) / (1 - warmup))


def warmup_constant(progress: float, *, warmup: float = 0.05, start: float = 0.05) -> float:
    """No change after the warm-up."""
    return start + (1 - start) * progress / warmup if progress < warmup else 1.0


def warmup_inverse_sqrt(progress: float, *, warmup: float = 0.05, start: float = 0.0) -> float:
    """√(warm-up steps / steps): the schedule of Vaswani et al. (2017), section 5.3, with its peak as 1.

    Theirs is d_model^−0.5 · min(step^−0.5, step · warmup^−1.5); its peak, the learning rate to set here, is
    (d_model · warm-up steps)^−0.5.
    """
    if warmup == 0:
        raise ValueError("this schedule decays from the end of its warm-up; warmup must be more than 0.")
    return start + (1 - start) * progress / warmup if progress < warmup else math.sqrt(warmup / progress)


SCHEDULES: dict[str, Callable[..., float]] = {
    "cosine": warmup_cosine,
    "linear": warmup_linear,
    "inverse-sqrt": warmup_inverse_sqrt,
    "constant": warmup_constant,
}


def schedule(name: str, **options: float) -> Schedule:
    """Return a schedule by its name, with its options filled in."""
    check_choice("schedule", name, SCHEDULES)
    check_probability(**{key: options[key] for key in ("warmup", "start") if key in options})
    scheduler = partial(SCHEDULES[name], **options)
    scheduler(0.0)  # a wrong option is an error now, not at the first step
    return scheduler
