"""Rotary positions as config.json states them: rope_parameters, or in older files rope_theta and rope_scaling.

Data only; no tensor library.
"""

from collections.abc import Mapping
from math import log
from typing import Any

from glassformer.config import Rotary, RotaryScaling
from glassformer.weights.reader import ConfigError, Reader

_KEYS = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
    "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim",
    "truncate",
}  # fmt: skip
_KINDS = {"linear": "linear", "llama3": "smooth", "yarn": "yarn"}  # theirs: ours


def read_rotary(c: Reader, head_dim: int, *, partial: float | None = None, theta: float = 10_000.0) -> Rotary:
    """Rotary positions: all in rope_parameters, or in older files as rope_theta and rope_scaling.

    ``partial`` is the share of each head that is rotated and ``theta`` the base where neither is stated there; without
    ``partial``, heads of this lineage are always rotated as a whole.
    """
    older, newer = c.get("rope_scaling", None), c.get("rope_parameters", None)
    said: Mapping[str, Any] = older or newer or {}
    if strange := sorted(set(said) - _KEYS):
        raise ConfigError(f"config.json says {', '.join(strange)} of its rotary positions, which is not known here.")
    only = {"truncate": True} if partial is not None else {"truncate": True, "partial_rotary_factor": 1.0}
    if partial is None:
        c.must("partial_rotary_factor", 1.0, "in this lineage heads turn as a whole")
    for key, value in only.items():
        if said.get(key, value) != value:
            raise ConfigError(f"config.json says {key}={said[key]!r} of its rotary positions; only {value} is known.")
    return Rotary(
        dim=head_dim if partial is None else int(head_dim * said.get("partial_rotary_factor", partial)),
        length=c.max_position_embeddings,
        theta=said.get("rope_theta") or c.get("rope_theta", theta),
        scaling=_scaling(c, said),
    )


def _scaling(c: Reader, said: Mapping[str, Any]) -> RotaryScaling | None:
    """How rotary positions are stretched to longer contexts, if they are."""
    original = c.get("original_max_position_embeddings", said.get("original_max_position_embeddings"))
    kind = said.get("rope_type", said.get("type", "default"))
    if kind == "default":
        return None
    if kind == "dynamic":
        raise ConfigError(
            "config.json stretches its rotary positions dynamically: the angles of earlier tokens would change with "
            "the length seen so far, and a text would not read the same in one piece and in several."
        )
    if kind not in _KINDS:
        raise ConfigError(f"config.json says rope_type={kind!r}; known are default, {', '.join(_KINDS)}.")
    needed = ("factor", "low_freq_factor", "high_freq_factor") if kind == "llama3" else ("factor",)
    if lacking := [key for key in needed if said.get(key) is None]:
        raise ConfigError(f"config.json stretches its rotary positions ({kind}) and lacks {', '.join(lacking)}.")
    factor, length = float(said["factor"]), original or c.max_position_embeddings
    if kind == "linear":
        return RotaryScaling(kind="linear", factor=factor)
    if kind == "llama3":
        low, high = float(said["low_freq_factor"]), float(said["high_freq_factor"])
        return RotaryScaling(kind="smooth", factor=factor, original_length=length, low=low, high=high)
    low, high = float(said.get("beta_slow") or 1), float(said.get("beta_fast") or 32)
    longer = _longer(factor, said)
    return RotaryScaling(kind="yarn", factor=factor, original_length=length, low=low, high=high, attention=longer)


def _longer(factor: float, said: Mapping[str, Any]) -> float:
    """How much longer queries and keys become: as said, or as Peng et al. (2023) found for a context stretched so."""
    if said.get("attention_factor") is not None:
        return float(said["attention_factor"])
    growth = 0.1 * log(factor) if factor > 1 else 0.0
    if said.get("mscale") and said.get("mscale_all_dim"):
        return float((growth * said["mscale"] + 1) / (growth * said["mscale_all_dim"] + 1))
    return growth + 1


def write_rotary(facts: Rotary) -> dict[str, Any]:
    """The reverse, in rope_parameters and in the older keys too: an older reader would not miss them, but guess."""
    said: dict[str, Any] = {"rope_type": "default"}
    stretch = facts.scaling
    if stretch is not None:
        kind = next(theirs for theirs, ours in _KINDS.items() if ours == stretch.kind)
        said |= {"rope_type": kind, "factor": stretch.factor}
        if kind != "linear":
            said["original_max_position_embeddings"] = stretch.original_length
        if kind == "llama3":
            said |= {"low_freq_factor": stretch.low, "high_freq_factor": stretch.high}
        if kind == "yarn":
            said |= {"beta_slow": stretch.low, "beta_fast": stretch.high, "attention_factor": stretch.attention}
    return {
        "rope_parameters": {**said, "rope_theta": facts.theta},
        "rope_theta": facts.theta,
        "rope_scaling": None if stretch is None else said,
    }
