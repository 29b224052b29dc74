"""Why a number of an account is what it is: every term of it with its formula and the values filled in."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from glassformer.inspect.account.account import Account, Part
from glassformer.inspect.account.formulas import Formula, Terms, evaluate, of_product, of_weight
from glassformer.inspect.account.memory import BLOCK

SUBJECTS = ("flops", "memory")  # besides the parts


class Line(NamedTuple):
    """One term: ``formula`` in names, ``numbers`` the same filled in, which come to ``value``."""

    what: str
    formula: str
    numbers: str
    value: int


class Section(NamedTuple):
    """Terms of one kind, and what they come to: their sum, unless it is None."""

    title: str
    unit: str
    lines: list[Line]
    total: int | None
    share: float | None = None  # of the whole model's


class Explanation(NamedTuple):
    """What is explained, and how."""

    subject: str
    sections: list[Section]


def explain(account: Account, subject: str) -> Explanation:
    """Every number of a part, by its path or the end of it, of the model by its name, or of ``flops`` or ``memory``."""
    if subject == "memory":
        return Explanation(subject, [Section("memory", "bytes", list(_memory(account)), None)])
    try:
        part = account.root if subject in ("flops", account.name) else account.find(subject)
    except ValueError as error:
        raise ValueError(f"{error} Besides parts, there are: {', '.join(SUBJECTS)}.") from error
    kinds = [_products(account, part), *_training(account, part)]
    if subject != "flops":
        kinds = [_parameters(account, part), *kinds, *_amounts(account, part)]
    return Explanation(part.path or subject, [one for one in kinds if one.lines])


def _parameters(account: Account, part: Part) -> Section:
    found = (
        (_name(part, weight), of_weight(account, one, weight, shape))
        for one in part.walk()
        for weight, shape in one.weights.items()
    )
    share = None if part is account.root else part.parameters / account.parameters
    return Section("parameters", "parameters", _counted(found), part.parameters, share)


def _products(account: Account, part: Part) -> Section:
    found = ((_name(part, one.name), of_product(one)) for inside in part.walk() for one in inside.products)
    share = None if part is account.root else part.flops / account.forward_flops
    return Section("matrix products, forward", "FLOPs", _counted(found), part.flops, share)


def _training(account: Account, part: Part) -> list[Section]:
    if account.mode != "train" or not part.flops:
        return []
    forward, total = f"{part.flops:,}", 3 * part.flops
    lines = [
        Line("forward", "", forward, part.flops),
        Line("backward", "2 (the gradient of either side) · forward", f"2 · {forward}", 2 * part.flops),
    ]
    return [Section("matrix products, training step", "FLOPs", lines, total)]


def _amounts(account: Account, part: Part) -> Iterator[Section]:
    """Element-wise work, and what is held for the way back."""
    terms = Terms(account)
    for what, title, unit, total in (
        ("elementwise", "element-wise operations, forward", "operations", part.elementwise),
        ("saved", "held for the way back", "bytes", part.activation_bytes),
    ):
        found = ((_name(part, one.path), terms.of(one, what)) for one in part.walk())
        lines = _counted((name, formula) for name, formula in found if formula is not None)
        yield Section(title, unit, lines, total)


def _name(part: Part, path: str) -> str:
    """A path as seen from a part, the numbers of blocks left out."""
    inside = part.name if path == part.path else path.removeprefix(f"{part.path}.")
    return re.sub(r"(^|\bblocks\.)\d+(?=\.)", r"\1*", inside)


def _counted(found: Iterator[tuple[str, Formula]]) -> list[Line]:
    """Equal terms of several blocks as one."""
    return [_line(name, formula.times(count, "blocks")) for (name, formula), count in Counter(found).items()]


def _line(what: str, formula: Formula) -> Line:
    return Line(what, formula.names, formula.numbers, evaluate(formula.numbers))


def _memory(account: Account) -> Iterator[Line]:
    memory, width = account.memory, account.bytes_per_number
    numbers = f"{account.parameters:,} · {width}"
    yield _line("weights", Formula("parameters · bytes of a number", numbers))
    if memory.gradients:
        yield _line("gradients", Formula("parameters · bytes of a number", numbers))
        yield _optimizer(account, width)
    yield from _cache(account, width)
    held = {"weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer}
    held = {name: size for name, size in (held | {"cache": memory.kv_cache}).items() if size}
    yield _line("held from pass to pass", _sum(held))
    if memory.activations:
        parts = {part.name: part.activation_bytes for part in account.root.parts if part.activation_bytes}
        yield _line("activations, held for the way back", _sum(parts))
        kept = "the input of every block + the inside of one at a time + the rest"
        yield Line("the same if blocks run again", kept, f"{memory.checkpointed:,}", memory.checkpointed)
    stays = {name: size for name, size in held.items() if name != "gradients"}  # which come as activations go
    inside = "activations and gradients" if account.mode == "train" else "what a pass has in hand"
    yield _line("peak", _sum(stays | {f"{inside} at the highest": memory.peak - sum(stays.values())}))


def _optimizer(account: Account, width: int) -> Line:
    count = f"{account.parameters:,}"
    formulas = {
        "adamw": Formula("two means · parameters · bytes of a number", f"2 · {count} · {width}"),
        "adamw-master": Formula("(two means + a copy) · parameters · 4 bytes", f"3 · {count} · 4"),
        "adamw-8bit": Formula(
            f"two means · (parameters · 1 byte + a scale of 4 bytes for each {BLOCK})",
            f"2 · ({count} + 4 · {-(-account.parameters // BLOCK):,})",
        ),
        "none": Formula("", "0"),
    }
    return _line(f"optimizer ({account.optimizer})", formulas[account.optimizer])


def _cache(account: Account, width: int) -> Iterator[Line]:
    decoder = account.config.decoder
    if decoder is None or not account.memory.kv_cache_per_token:
        return
    facts = decoder.attention
    names = "layers · (key + value) · key/value heads · head · bytes of a number"
    heads = facts.kv_heads or facts.heads
    numbers = f"{decoder.layers} · 2 · {heads} · {facts.head_dim} · {width}"
    yield _line("KV cache of one token", Formula(names, numbers))
    if account.memory.kv_cache:
        slots = ("tokens", f"{account.context:,}")
        if account.config.encoder is not None:
            slots = ("(tokens + source)", f"({account.context:,} + {account.source:,})")
        numbers = f"{account.batch:,} · {slots[1]} · {account.memory.kv_cache_per_token:,}"
        yield _line("KV cache", Formula(f"batch · {slots[0]} · that", numbers))


def _sum(terms: dict[str, int]) -> Formula:
    return Formula(" + ".join(terms), " + ".join(f"{size:,}" for size in terms.values()))
