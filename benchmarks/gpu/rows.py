"""Rows of the table: what is measured, and the form in which a result is stored.

A module registers its rows with ``row``; ``MODULES`` lists the modules. A row measures ours and its peers one after the
other in one process and returns a ``Result``, which is written as JSON. ``benchmarks.report`` makes pages of these.
"""

import json
import platform
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.timing import Ceilings, Timing, measure_ceilings, release
from benchmarks.report import GROUPS
from glassformer.config.checks import check_choice

MODULES = ("benchmarks.gpu.training", "benchmarks.gpu.encoding", "benchmarks.gpu.long_context")  # that register rows


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Where and how long a row is measured, and where the peers are that no package holds."""

    device: str = "cuda"
    quick: bool = False  # tiny sizes and two steps, to see that it runs; the numbers say nothing
    peers: dict[str, Path] = field(default_factory=dict)  # by name: folders

    @property
    def compiles(self) -> bool:
        """Whether models are compiled: not in quick runs on a CPU, where that takes longest."""
        return not (self.quick and self.device == "cpu")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One contestant of a row."""

    name: str
    rate: float | None = None  # units per second; None: not measured, and the note says why
    seconds: float | None = None  # median
    peak_bytes: int | None = None  # of tensors, beyond those that were there before
    warmup_seconds: float | None = None  # of the runs before, which also compile
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row of the table. The first measurement is ours, the second the peer that the ratio is of."""

    title: str
    settings: str
    unit: str  # what a rate counts: "tokens"
    measurements: list[Measurement]
    floor_seconds: float | None = None  # no less is possible at the machine's ceilings
    values: dict[str, float] = field(default_factory=dict)  # further numbers by name


Measure = Callable[[Setup, Ceilings], Result]


@dataclass(frozen=True)
class Row:
    """A registered row."""

    name: str
    group: str
    measure: Measure


ROWS: dict[str, Row] = {}


def row(name: str, group: str) -> Callable[[Measure], Measure]:
    """Register a function that measures one row."""
    check_choice("group", group, GROUPS)

    def register(measure: Measure) -> Measure:
        ROWS[name] = Row(name, group, measure)
        return measure

    return register


def all_rows() -> dict[str, Row]:
    """Return every row by its name, in the order of the table."""
    for module in MODULES:
        import_module(module)
    return ROWS


def contestant(name: str, build: Callable[[], Timing], units: float, note: str = "") -> Measurement:
    """Build and time one contestant; what it cannot do is its note. Its memory is free again afterwards.

    Args:
        name: as the table shows it.
        build: makes everything, times it and keeps nothing.
        units: per step, for the rate.
        note: how it was run.
    """
    try:
        timing = build()
    except Exception as error:  # the other contestants are measured all the same
        traceback.print_exc()
        first_line = str(error).partition("\n")[0]
        return Measurement(name=name, note=f"failed: {type(error).__name__}: {first_line:.120}")
    finally:
        release()
    return Measurement(
        name=name,
        rate=units / timing.seconds,
        seconds=timing.seconds,
        peak_bytes=timing.peak_bytes,
        warmup_seconds=timing.warmup_seconds,
        note=note,
    )


def not_measured(name: str, reason: str) -> Measurement:
    """Return the place of a contestant that is not there."""
    return Measurement(name=name, note=f"not measured: {reason}")


def run_row(name: str, setup: Setup, folder: Path) -> Result:
    """Measure a row and write ``folder/NAME.json``."""
    entry, ceilings = all_rows()[name], measure_ceilings(setup.device)
    result = entry.measure(setup, ceilings)
    page: dict[str, Any] = {
        "row": name,
        "group": entry.group,
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": {"device": ceilings.name, "product_flops": ceilings.product, "copy_bytes": ceilings.copy},
        "versions": versions(),
        **asdict(result),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return result


def versions() -> dict[str, str]:
    """Return the versions of everything that a speed depends on."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("triton", "transformers"):
        if find_spec(package) is not None:
            found[package] = import_module(package).__version__
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    return found
