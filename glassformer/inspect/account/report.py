"""An account as data: a dictionary for JSON, rows for tables with folded layers, and numbers with units.

A prefix of a unit is a power of 1,000: 1 GB = 10⁹ bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from glassformer.inspect.account.account import Account
from glassformer.inspect.account.tree import AMOUNTS, Multiplication, PartCost

KINDS = ("projections", "attention", "ffn", "head")  # always reported; the rest is "other"
PART_COLUMNS = (
    "model", "path", "level", "parameters", "flops", "share", "forward_flops", "recomputed_flops", "elementwise",
    "bytes_moved", "activation_bytes",
)  # fmt: skip

PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
LARGEST = 10_000  # of a column: above it the next prefix is used


class Share(NamedTuple):
    """Forward FLOPs of one kind of work, and its share of all FLOPs and of those of the layers."""

    kind: str
    flops: int
    of_all: float
    of_layers: float | None  # None: outside the layers


def shares_of(account: Account) -> list[Share]:
    """Return the share of every kind of work, the main kinds first."""
    flops, inside = account.shares(), account.layer_shares()
    layers = sum(inside.values())
    names = [*(kind for kind in KINDS if kind in flops), *(kind for kind in flops if kind not in KINDS)]
    return [
        Share(kind, flops[kind], flops[kind] / account.forward_flops, inside[kind] / layers if kind in inside else None)
        for kind in names
    ]


def main_kinds(flops: dict[str, int]) -> dict[str, int]:
    """Return the FLOPs by main kind, the others summed up as "other"; without kinds that a model does not have."""
    main = {kind: flops[kind] for kind in KINDS if flops.get(kind)}
    other = sum(flops.values()) - sum(main.values())
    return main | ({"other": other} if other else {})


def as_dict(account: Account, depth: int | None = None) -> dict[str, Any]:
    """Return an account as plain data with parts down to ``depth`` levels, as ``glassformer account --json`` prints it.

    FLOPs, parameters and bytes are integers, shares are between 0 and 1.
    """
    memory = asdict(account.memory) | {"resident": account.memory.resident}
    return {
        "name": account.name,
        "family": None if account.config is None else account.config.family,
        "mode": account.mode,
        "batch": account.batch,
        "context": account.context,
        "source": account.source if account.has_source else None,
        "dtype": account.dtype,
        "attention": account.attention,
        "causal": account.causal,
        "optimizer": account.optimizer if account.mode == "train" else None,
        "parameters": account.parameters,
        "trainable_parameters": account.trainable_parameters,
        "flops": account.flops,
        "memory_bytes": account.memory_bytes,
        "tokens": account.tokens,
        "forward_flops": account.forward_flops,
        "backward_flops": account.backward_flops,
        "recomputed_flops": account.recomputed_flops,
        "elementwise": account.root.elementwise,
        "bytes_moved": account.root.bytes_moved,
        "shares": {
            kind: {"flops": flops, "of_all": of_all, "of_layers": of_layers}
            for kind, flops, of_all, of_layers in shares_of(account)
        },
        "kv_cache_bytes": account.memory.kv_cache,
        "kv_cache_bytes_per_token": account.memory.kv_cache_per_token,
        "memory": memory,
        "parts": [_part(account, part, depth) for part in account.root.parts if _shown(part, depth)],
    }


def _shown(part: PartCost, depth: int | None) -> bool:
    return depth is None or level(part.path) <= depth


def _part(account: Account, part: PartCost, depth: int | None) -> dict[str, Any]:
    row = part_row(account, part)
    return {name: row[name] for name in PART_COLUMNS if name not in ("model", "level")} | {
        "weights": {name: list(shape) for name, shape in part.weights.items()},
        "products": [_product(product) for product in part.products],
        "parts": [_part(account, inner, depth) for inner in part.parts if _shown(inner, depth)],
    }


def _product(multiplication: Multiplication) -> dict[str, Any]:
    sizes = {name: getattr(multiplication.product, name) for name in ("m", "n", "p", "times", "pairs")}
    return {"name": multiplication.name, **sizes, "runs": multiplication.runs, "flops": multiplication.flops}


def level(path: str) -> int:
    """Return the depth of a part; the index of a layer does not count as a level."""
    return sum(not (name.isdigit() or name == "*") for name in path.split("."))


def part_row(account: Account, part: PartCost) -> dict[str, Any]:
    """Return one part as a row.

    ``flops`` are of the whole pass or training step, the later columns of the forward pass.
    """
    flops = part.flops + part.backward_flops
    row = (
        account.name, part.path, 0 if part is account.root else level(part.path), part.parameters, flops,
        flops / account.flops if account.flops else 0.0, part.flops, part.recomputed, part.elementwise,
        part.bytes_moved, part.activation_bytes,
    )  # fmt: skip
    return dict(zip(PART_COLUMNS, row, strict=True))


def part_rows(account: Account, depth: int | None = None) -> list[dict[str, Any]]:
    """Return one row per part, outermost first, every layer separately."""
    root = account.root
    return [part_row(account, part) for part in root.walk() if part is root or _shown(part, depth)]


def summary_row(account: Account) -> dict[str, Any]:
    """Return one account as a row: sizes, FLOPs, shares of FLOPs by kind, memory."""
    data = as_dict(account, depth=0)
    flops = main_kinds(account.shares())
    columns = ("name", "mode", "batch", "context", "source", "dtype", "parameters", "flops", "memory_bytes")
    return (
        {name: data[name] for name in columns}
        | {f"{kind}_share": flops.get(kind, 0) / account.forward_flops for kind in (*KINDS, "other")}
        | {f"{name}_bytes": value for name, value in asdict(account.memory).items()}
    )


class TableRow(NamedTuple):
    """A row of the table of parts."""

    label: str
    level: int
    part: PartCost


def table_rows(account: Account, depth: int | None = None, *, full: bool = False) -> Iterator[TableRow]:
    """Yield the parts, outermost first; the layers of a module list are summed up into one unless ``full``."""
    root = account.root if full else fold(account.root)
    for part in root.walk():
        if part is not root and _shown(part, depth):
            yield TableRow(_label(part, full=full), level(part.path), part)


def _label(part: PartCost, *, full: bool) -> str:
    if not part.calls or full:
        return f"layer {part.name}" if part.name.isdigit() else part.name
    shared = "" if part.layers == part.calls else f", weights of {part.layers}"
    return f"{part.name} × {part.calls}{shared}"


def fold(part: PartCost) -> PartCost:
    """Return the same tree with the layers of each module list summed up into one: ``decoder.blocks.*.ffn``."""
    if not part.calls:
        return replace(part, parts=[fold(inner) for inner in part.parts])
    folded = _sum_parts(part.parts, f"{part.path}.*")
    return replace(folded, path=part.path, calls=part.calls, layers=len(part.parts))


def _sum_parts(parts: Sequence[PartCost], path: str) -> PartCost:
    """Sum the parts of the same name over several layers, and collect all of their products."""
    total = PartCost(path)
    for field in AMOUNTS:
        setattr(total, field, sum(getattr(part, field) for part in parts))
    for part in parts:
        total.weights |= part.weights
        total.products += part.products
    names = dict.fromkeys(inner.name for part in parts for inner in part.parts)
    total.parts = [
        _sum_parts([inner for part in parts for inner in part.parts if inner.name == name], f"{path}.{name}")
        for name in names
    ]
    return total


# ---- numbers with units


class UnitScale(NamedTuple):
    """The unit of a column of numbers."""

    unit: str
    factor: int

    def __call__(self, value: float) -> str:
        """Format a number in that unit: "" for 0, "< 0.001" if it is too small."""
        if value == 0:
            return ""
        if self.factor == 1:
            return f"{value:,.0f}"
        return f"{value / self.factor:,.3f}" if value >= self.factor / 2000 else "< 0.001"


def scale_for(largest: float, unit: str) -> UnitScale:
    """Return the unit in which the largest number of a column has at most four digits before the point."""
    power = 0
    while largest >= LARGEST * 1000**power and power < len(PREFIXES) - 1:
        power += 1
    return UnitScale(PREFIXES[power] + unit, 1000**power)


def human(value: float, unit: str) -> str:
    """Format with four digits and a prefix: ``4.513 TFLOP``; integers below 1,000 without one."""
    power = 0
    while abs(value) >= 999.95 * 1000**power and power < len(PREFIXES) - 1:
        power += 1
    if power == 0 and value == int(value):
        return f"{int(value):,} {unit}"
    number = value / 1000**power
    decimals = 3 if abs(number) < 9.9995 else 2 if abs(number) < 99.995 else 1
    return f"{number:,.{decimals}f} {PREFIXES[power]}{unit}"


def duration(seconds: float) -> str:
    """Format seconds in s, ms, µs or ns."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor:
            return f"{seconds / factor:,.4g} {unit}"
    return f"{seconds / 1e-9:,.4g} ns"
