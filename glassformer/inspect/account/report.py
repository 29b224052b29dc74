"""An account as data: a dictionary for JSON, rows for tables, the layers of a list folded into one."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from glassformer.inspect.account.account import Account
from glassformer.inspect.account.tree import AMOUNTS, Multiplication, Part

KINDS = ("projections", "attention", "ffn", "head")  # that are always told; what is left is "other"
PART_COLUMNS = (
    "model", "path", "level", "parameters", "flops", "share", "forward_flops", "recomputed_flops", "elementwise",
    "bytes_moved", "activation_bytes",
)  # fmt: skip


class Share(NamedTuple):
    """FLOPs of one kind of work in one forward pass, and what part that is of all and of the layers alone."""

    kind: str
    flops: int
    of_all: float
    of_layers: float | None  # None: it is not in the layers


def shares_of(account: Account) -> list[Share]:
    """Every kind of work, the usual ones first."""
    found, inside = account.shares(), account.layer_shares()
    layers = sum(inside.values())
    names = [*(kind for kind in KINDS if kind in found), *(kind for kind in found if kind not in KINDS)]
    return [
        Share(kind, found[kind], found[kind] / account.forward_flops, inside[kind] / layers if kind in inside else None)
        for kind in names
    ]


def five_kinds(flops: dict[str, int]) -> dict[str, int]:
    """FLOPs by the kinds that are always told, and all others as one; without those that a model has not."""
    five = {kind: flops[kind] for kind in KINDS if flops.get(kind)}
    other = sum(flops.values()) - sum(five.values())
    return five | ({"other": other} if other else {})


def as_dict(account: Account, depth: int | None = None) -> dict[str, Any]:
    """An account as plain data, with parts down to ``depth`` levels: what ``glassformer account --json`` prints.

    FLOPs, parameters and bytes are whole numbers, shares are between 0 and 1.
    """
    memory = asdict(account.memory) | {"held": account.memory.held}
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
        "shares": {share.kind: _without_kind(share) for share in shares_of(account)},
        "kv_cache_bytes": account.memory.kv_cache,
        "kv_cache_bytes_per_token": account.memory.kv_cache_per_token,
        "memory": memory,
        "parts": [_part(account, part, depth) for part in account.root.parts if _shown(part, depth)],
    }


def _without_kind(share: Share) -> dict[str, Any]:
    return {name: value for name, value in share._asdict().items() if name != "kind"}


def _shown(part: Part, depth: int | None) -> bool:
    return depth is None or level(part.path) <= depth


def _part(account: Account, part: Part, depth: int | None) -> dict[str, Any]:
    row = part_row(account, part)
    return {name: row[name] for name in PART_COLUMNS if name not in ("model", "level")} | {
        "weights": {name: list(shape) for name, shape in part.weights.items()},
        "products": [_product(product) for product in part.products],
        "parts": [_part(account, inside, depth) for inside in part.parts if _shown(inside, depth)],
    }


def _product(one: Multiplication) -> dict[str, Any]:
    sizes = {name: getattr(one.product, name) for name in ("m", "n", "p", "times", "pairs")}
    return {"name": one.name, **sizes, "runs": one.runs, "flops": one.flops}


def level(path: str) -> int:
    """How deep a part lies; the number of a layer is no level of its own."""
    return sum(not (name.isdigit() or name == "*") for name in path.split("."))


def part_row(account: Account, part: Part) -> dict[str, Any]:
    """One part as a row. ``flops`` are of the whole pass or training step, what follows of the forward pass."""
    flops = part.flops + part.backward_flops
    row = (
        account.name, part.path, 0 if part is account.root else level(part.path), part.parameters, flops,
        flops / account.flops if account.flops else 0.0, part.flops, part.recomputed, part.elementwise,
        part.bytes_moved, part.activation_bytes,
    )  # fmt: skip
    return dict(zip(PART_COLUMNS, row, strict=True))


def part_rows(account: Account, depth: int | None = None) -> list[dict[str, Any]]:
    """One row per part, from the outside in, every layer on its own."""
    root = account.root
    return [part_row(account, part) for part in root.walk() if part is root or _shown(part, depth)]


def summary_row(account: Account) -> dict[str, Any]:
    """One account as a row: its sizes, FLOPs, shares of all FLOPs by kind, memory."""
    data = as_dict(account, depth=0)
    five = five_kinds(account.shares())
    named = ("name", "mode", "batch", "context", "source", "dtype", "parameters", "flops", "memory_bytes")
    return (
        {name: data[name] for name in named}
        | {f"{kind}_share": five.get(kind, 0) / account.forward_flops for kind in (*KINDS, "other")}
        | {f"{name}_bytes": value for name, value in asdict(account.memory).items()}
    )


class Row(NamedTuple):
    """A line of the table: its label, how deep it lies, and the part."""

    label: str
    level: int
    part: Part


def table_rows(account: Account, depth: int | None = None, *, full: bool = False) -> Iterator[Row]:
    """The parts from the outside in; the layers of a list as one, with all their numbers added up, unless ``full``."""
    root = account.root if full else fold(account.root)
    for part in root.walk():
        deep = 0 if part is root else level(part.path)
        if part is not root and (depth is None or deep <= depth):
            yield Row(_label(part, full=full), deep, part)


def _label(part: Part, *, full: bool) -> str:
    if not part.calls or full:
        return f"layer {part.name}" if part.name.isdigit() else part.name
    own = "" if part.layers == part.calls else f", weights of {part.layers}"
    return f"{part.name} × {part.calls}{own}"


def fold(part: Part) -> Part:
    """The same tree with the layers of a list laid on top of each other: ``decoder.blocks.*.ffn``."""
    if not part.calls:
        return replace(part, parts=[fold(inside) for inside in part.parts])
    folded = _together(part.parts, f"{part.path}.*")
    return replace(folded, path=part.path, calls=part.calls, layers=len(part.parts))


def _together(parts: Sequence[Part], path: str) -> Part:
    """Parts of the same name in several layers as one, every number added up; their products are all there."""
    total = Part(path)
    for field in AMOUNTS:
        setattr(total, field, sum(getattr(part, field) for part in parts))
    for part in parts:
        total.weights |= part.weights
        total.products += part.products
    names = dict.fromkeys(inside.name for part in parts for inside in part.parts)
    total.parts = [
        _together([inside for part in parts for inside in part.parts if inside.name == name], f"{path}.{name}")
        for name in names
    ]
    return total
