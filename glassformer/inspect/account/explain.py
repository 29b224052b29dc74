"""Why a number of an account is what it is: every term of it with its formula and the values filled in."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from glassformer.inspect.account.account import Account
from glassformer.inspect.account.counts import OpCount
from glassformer.inspect.account.formulas import Formula, Formulas, evaluate
from glassformer.inspect.account.memory import BLOCK
from glassformer.inspect.account.tree import Part

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
    formulas = Formulas(account)
    found = (
        (_name(part, weight), formulas.of_weight(one, weight, shape))
        for one in part.walk()
        for weight, shape in one.weights.items()
    )
    share = None if part is account.root else part.parameters / account.parameters
    return Section("parameters", "parameters", _counted(found), part.parameters, share)


def _products(account: Account, part: Part) -> Section:
    formulas = Formulas(account)
    found = ((_name(part, one.name), formulas.of_product(one)) for inside in part.walk() for one in inside.products)
    share = None if part is account.root else part.flops / account.forward_flops
    return Section("matrix products, forward", "FLOPs", _counted(found), part.flops, share)


def _training(account: Account, part: Part) -> list[Section]:
    if account.mode != "train" or not part.flops:
        return []
    forward, backward = part.flops, part.backward_flops
    formula = Formula("", f"{backward:,}")
    if backward == 2 * forward:
        formula = Formula("2 (the gradient of either side) · forward", f"2 · {forward:,}")
    lines = [Line("forward", "", f"{forward:,}", forward), _line("backward", formula)]
    return [Section("matrix products, training step", "FLOPs", lines, forward + backward)]


def _amounts(account: Account, part: Part) -> Iterator[Section]:
    """Element-wise work, and what is kept for the backward pass, operator by operator."""
    formulas = Formulas(account)
    ops = [(one, op) for one in part.walk() for op in one.ops]
    worked = ((_of(part, one, op), formulas.of_elementwise(op)) for one, op in ops if op.work.elementwise)
    kept = (
        (_of(part, one, op), formulas.of_saved(op, shape, size)) for one, op in ops for shape, size in op.saved if size
    )
    for title, unit, found, total in (
        ("element-wise operations, forward", "operations", worked, part.elementwise),
        ("kept for the backward pass", "bytes", kept, part.activation_bytes),
    ):
        yield Section(title, unit, _counted(found, "calls"), total)


def _of(part: Part, inside: Part, op: OpCount) -> str:
    """A part, as seen from another, and the operator."""
    return f"{_name(part, inside.path)} ({op.operator.removeprefix('aten.').strip('_')})"


def _name(part: Part, path: str) -> str:
    """A path as seen from a part, the numbers of layers left out."""
    inside = part.name or "model" if path == part.path else path.removeprefix(f"{part.path}.")
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", inside)


def _counted(found: Iterable[tuple[str, Formula]], what: str = "layers") -> list[Line]:
    """Equal terms of several layers or calls as one."""
    return [_line(name, formula.times(count, what)) for (name, formula), count in Counter(found).items()]


def _line(what: str, formula: Formula) -> Line:
    return Line(what, formula.names, formula.numbers, evaluate(formula.numbers))


def _memory(account: Account) -> Iterator[Line]:
    memory, width = account.memory, account.bytes_per_number
    numbers = f"{account.parameters:,} · {width}"
    weights = Formula("parameters · bytes of a number", numbers)
    is_plain = memory.weights == account.parameters * width  # one type, and no buffers
    yield _line("weights", weights if is_plain else Formula("parameters and buffers", f"{memory.weights:,}"))
    if memory.gradients:
        is_plain = memory.gradients == account.parameters * width
        yield _line("gradients", weights if is_plain else Formula("trained parameters", f"{memory.gradients:,}"))
        yield _optimizer(account, width)
    yield from _cache(account)
    held = {"weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer}
    held = {name: size for name, size in (held | {"cache": memory.kv_cache}).items() if size}
    yield _line("held from pass to pass", _sum(held))
    if memory.activations:
        parts = {part.name: part.activation_bytes for part in account.root.parts if part.activation_bytes}
        yield _line("activations, kept for the backward pass", _sum(parts))
        kept = "the input of every layer + the inside of one at a time + the rest"
        yield Line("the same if layers run again", kept, f"{memory.checkpointed:,}", memory.checkpointed)
    stays = {name: size for name, size in held.items() if name != "gradients"}  # which come as activations go
    inside = "activations and gradients" if account.mode == "train" else "what a pass has in hand"
    yield _line("peak", _sum(stays | {f"{inside} at the highest": memory.peak - sum(stays.values())}))


def _optimizer(account: Account, width: int) -> Line:
    states, count = account.memory.optimizer, account.memory.gradients // width
    formulas = {
        "adamw": Formula("two means · parameters · bytes of a number", f"2 · {count:,} · {width}"),
        "adamw-master": Formula("(two means + a copy) · parameters · 4 bytes", f"3 · {count:,} · 4"),
        "adamw-8bit": Formula(
            f"two means · (parameters · 1 byte + a scale of 4 bytes for each {BLOCK})",
            f"2 · ({count:,} + 4 · {-(-count // BLOCK):,})",
        ),
        "none": Formula("", "0"),
    }
    formula = formulas[account.optimizer]
    is_plain = evaluate(formula.numbers) == states  # parameters of one type
    return _line(f"optimizer ({account.optimizer})", formula if is_plain else Formula("its states", f"{states:,}"))


def _cache(account: Account) -> Iterator[Line]:
    per_token = account.memory.kv_cache_per_token
    decoder = None if account.config is None else account.config.decoder
    if decoder is None or not per_token:
        return
    layer = Formula("layers · keys and values of one", f"{decoder.layers} · {per_token // decoder.layers:,}")
    yield _line("KV cache of one token", layer)
    if account.memory.kv_cache:
        slots = ("(tokens + source)", f"({account.context:,} + {account.source:,})")
        if not account.has_source:
            slots = ("tokens", f"{account.context:,}")
        formula = Formula(f"batch · {slots[0]} · that", f"{account.batch:,} · {slots[1]} · {per_token:,}")
        is_plain = evaluate(formula.numbers) == account.memory.kv_cache
        yield _line("KV cache", formula if is_plain else Formula("its tensors", f"{account.memory.kv_cache:,}"))


def _sum(terms: dict[str, int]) -> Formula:
    return Formula(" + ".join(terms), " + ".join(f"{size:,}" for size in terms.values()))
