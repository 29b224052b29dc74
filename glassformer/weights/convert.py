"""Between their names and ours: plan which tensor goes where, with every key accounted for, then carry it out.

Nothing is loaded before the whole plan stands, so a bad folder never leaves half a model behind.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from glassformer.config import LMHead, Model, shapes
from glassformer.config.checks import Setting
from glassformer.config.shapes import Shape
from glassformer.weights.files import WeightsError
from glassformer.weights.lineage import HeadFormat, Lineage
from glassformer.weights.matching import LoadOptions, alternative, fitting, is_fresh, matches
from glassformer.weights.rules import Rule, Same

WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}  # put into names by wrappers
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
OLD_NAMES = ((re.compile(r"\.gamma$"), ".weight"), (re.compile(r"\.beta$"), ".bias"))  # of norms, years ago


@dataclass
class Plan:
    """Which rules serve which tensors, and what became of the rest."""

    rules: list[Rule]
    spare: dict[str, str] = field(default_factory=dict)  # their names that are not used: the reason
    stored: dict[str, str] = field(default_factory=dict)  # their name: the name in the file, wrappers and all
    zeros: list[str] = field(default_factory=list)  # ours that the file may lack and does: see rules.Rule
    fresh: list[str] = field(default_factory=list)  # ours that are to start anew


def plan(
    lineage: Lineage,
    facts: Model,
    kind: str,
    found: Mapping[str, Shape],
    options: LoadOptions = LoadOptions(),  # noqa: B008
) -> Plan:
    """Match the tensors ``found`` in a file with the weights that the facts ask for; raise unless all is accounted for.

    ``kind`` names the head; tensors of the lineage's other heads are spare.
    """
    _check_depth(facts, found, options)
    stored, wanted = plain_names(found), shapes(facts)
    rules = expand(lineage, kind, _prefix(lineage, lineage.form(kind), stored), wanted)
    served = {name for rule in rules for name in rule.ours}
    missing = [f"(nothing tells how to fill {name})" for name in wanted if name not in served]
    rules, outgrown = fitting(rules, stored, found, options, wanted)

    def reason(name: str) -> str | None:
        return outgrown.get(name) or _reason(lineage, kind, name)

    return _match(rules, stored, found, options, reason, f"a {lineage.name} model", missing)


def plan_ours(facts: Model, found: Mapping[str, Shape], options: LoadOptions = LoadOptions()) -> Plan:  # noqa: B008
    """The same for a file under our own part names."""
    _check_depth(facts, found, options)
    stored, wanted = plain_names(found), shapes(facts)
    rules, outgrown = fitting([Rule((name,), (name,)) for name in wanted], stored, found, options, wanted)

    def reason(name: str) -> str | None:
        return outgrown.get(name, "belongs to a head that was not asked for" if name.startswith("head.") else None)

    return _match(rules, stored, found, options, reason, "the model", [])


def _check_depth(facts: Model, found: Mapping[str, Shape], options: LoadOptions) -> None:
    """Raise where there are fewer tensors than layers, each of which has some, before anything is done by layers."""
    stacks = [stack for stack in (facts.encoder, facts.decoder) if stack is not None]
    layers = sum(stack.unique_layers or stack.layers for stack in stacks)
    if layers > len(found) and not options.fresh:
        raise WeightsError(
            f"the config asks for {layers} layers with weights of their own, and the file holds {len(found)} tensors. "
            f"Config and weights are not of the same model."
        )


def check_sizes(plan: Plan, facts: Model, found: Mapping[str, Shape]) -> None:
    """Raise unless what a rule reads and what it fills are of one size: no change of form adds or drops numbers.

    So a model is built only if the file holds its numbers: what a config promises alone may be beyond all memory.
    """
    wanted, faults = shapes(facts), []
    for rule in plan.rules:
        theirs = [tuple(found[plan.stored[name]]) for name in rule.theirs]
        ours = [wanted[name] for name in rule.ours]
        if sum(map(prod, theirs)) != sum(map(prod, ours)) or (isinstance(rule.how, Same) and theirs != ours):
            asked, given = (" + ".join(map(str, sizes)) for sizes in (ours, theirs))
            faults.append(_mismatch(rule, rule.ours, asked, given))
    if faults:
        more = f"; and {len(faults) - 4} more" if len(faults) > 4 else ""
        raise WeightsError(f"{'; '.join(faults[:4])}{more}. Config and weights are not of the same model.")


def _mismatch(rule: Rule, ours: Iterable[str], asked: object, given: object) -> str:
    names = f"{' + '.join(rule.theirs)} has the wrong shape for {' + '.join(ours)}"
    return f"{names}: the config asks for {asked}, the file gives {given}"


def _match(
    rules: list[Rule],
    stored: dict[str, str],
    found: Mapping[str, Shape],
    options: LoadOptions,
    reason: Callable[[str], str | None],
    what: str,
    missing: list[str],
) -> Plan:
    """Rules and tensors that belong together; what is left on either side needs a reason, or the file is refused."""
    result = Plan([], stored=stored)
    unknown = []
    for rule in rules:
        there = alternative(rule, stored)
        if there is not None:
            result.rules.append(there)
        elif rule.zeros:
            result.zeros += rule.ours
        elif is_fresh(rule, options):
            result.fresh += rule.ours
        else:
            missing.append(f"{' + '.join(rule.theirs)} (for {' + '.join(rule.ours)})")
    used = {name for rule in result.rules for name in (*rule.theirs, *rule.also)}
    for name in (name for name in stored if name not in used):
        asked = any(matches(pattern, name) for pattern in options.ignore)
        why = "asked to be ignored" if asked else reason(name)
        if why is None:
            unknown.append(f"{stored[name]} {tuple(found[stored[name]])}")
        else:
            result.spare[name] = why
    if missing or unknown:
        raise _misfit(what, missing, unknown)
    return result


def expand(lineage: Lineage, kind: str, prefix: str, wanted: Mapping[str, Shape]) -> list[Rule]:
    """The rules of body and head, one per layer, that serve weights which the model has.

    Where several serve the same weights, as for a part that is called otherwise when another part is there, the first
    one counts whose weights the model has all of.
    """
    head = lineage.form(kind)
    body = [rule.with_prefix(prefix) for rule in (*lineage.weights, *head.inner)]
    if not {"head.out.weight", "head.lm.out.weight"} & wanted.keys():  # a tied head may have stored the table again
        body = [replace(r, also=(*r.also, *head.tied)) if r.ours == ("embed.token.weight",) else r for r in body]
    numbers = sorted({int(number) for name in wanted for number in re.findall(r"blocks\.(\d+)\.", name)})
    rules: list[Rule] = []
    left = set(wanted)
    for rule in (*body, *head.weights):
        for one in [rule.of_layer(number) for number in numbers] if rule.is_per_layer else [rule]:
            if left.issuperset(one.ours):
                left.difference_update(one.ours)
                rules.append(one)
    return rules


def settle_tie(
    lineage: Lineage, facts: Model, kind: str, found: Mapping[str, Shape], read: Callable[[str], Tensor]
) -> Model:
    """The facts with a head of its own where the file holds one, though its config could only say that it is tied."""
    form = lineage.form(kind)
    if not form.ties_if_equal or not isinstance(facts.head, LMHead) or not facts.head.tied:
        return facts
    stored = plain_names(found)
    prefix = _prefix(lineage, form, stored)
    table = next(rule.with_prefix(prefix) for rule in lineage.weights if rule.ours == ("embed.token.weight",))
    names = [name for name in (*table.theirs, *table.also) if name in stored][:1]
    copies = [name for name in form.tied if name in stored]
    if not names or all(torch.equal(read(stored[names[0]]), read(stored[copy])) for copy in copies):
        return facts
    return replace(facts, head=replace(facts.head, tied=False))


@runtime_checkable
class TensorSource(Protocol):
    """Where tensors lie: one is copied to its place, or borrowed until the next one is."""

    def read(self, name: str, /) -> Tensor:
        """A tensor in memory of its own."""
        ...

    def borrow(self, name: str, /) -> Tensor:
        """A tensor in memory that the next one borrowed may write over."""
        ...

    def copy_into(self, name: str, out: Tensor, /) -> None:
        """Copy a tensor to its place."""
        ...


@dataclass
class Held:
    """A shelf of tensors that are in memory already."""

    weights: Mapping[str, Tensor]

    def read(self, name: str) -> Tensor:
        """The tensor itself."""
        return self.weights[name]

    borrow = read

    def copy_into(self, name: str, out: Tensor) -> None:
        """Copy a tensor to its place."""
        out.copy_(self.weights[name])


@torch.no_grad()
def copy_weights(
    plan: Plan, facts: Model, source: TensorSource, room: Callable[[str, Shape], Tensor], found: Mapping[str, Shape]
) -> None:
    """Bring every planned tensor into form and into the place that ``room`` makes for it; the largest first.

    What needs no change of form is copied a little at a time; the rest is borrowed, so that memory holds the weights
    once and one tensor besides.
    """
    wanted = shapes(facts)
    served = [*plan.zeros, *plan.fresh, *(name for rule in plan.rules for name in rule.ours)]
    assert sorted(served) == sorted(wanted), "a plan serves every weight once"
    for rule in sorted(plan.rules, key=lambda r: -sum(prod(found[plan.stored[name]]) for name in r.theirs)):
        stored = [plan.stored[name] for name in rule.theirs]
        _check_copies(plan, rule, source)
        if isinstance(rule.how, Same):
            for name, theirs_name in zip(rule.ours, stored, strict=True):
                source.copy_into(theirs_name, room(name, wanted[name]))
            continue
        theirs = [source.borrow(name) if len(stored) == 1 else source.read(name) for name in stored]
        try:
            ours = rule.how.ours(theirs, facts)
        except RuntimeError as error:
            raise WeightsError(f"{', '.join(rule.theirs)} cannot be brought into form: {error}") from error
        for name, tensor in zip(rule.ours, ours, strict=True):
            _check_shape(rule, name, tuple(tensor.shape), wanted)
            room(name, wanted[name]).copy_(tensor)
    for name in (*plan.zeros, *plan.fresh):
        room(name, wanted[name]).zero_()  # fresh ones are drawn later


def _check_shape(rule: Rule, name: str, shape: Shape, wanted: Mapping[str, Shape]) -> None:
    if tuple(shape) != wanted[name]:
        fault = _mismatch(rule, [name], wanted[name], tuple(shape))
        raise WeightsError(f"{fault}. Config and weights are not of the same model.")


def _check_copies(plan: Plan, rule: Rule, source: TensorSource) -> None:
    """Raise unless all that a file stores of one tied tensor is the same."""
    for name in rule.also:
        if name in plan.stored and name not in rule.theirs:
            first, copy = source.read(plan.stored[rule.theirs[0]]), source.read(plan.stored[name])
            if not torch.equal(first, copy.to(first.dtype)):
                raise WeightsError(
                    f"{rule.theirs[0]} and {name} should be one tied tensor, but they differ. If the model was trained "
                    f"with its head untied, say so in config.json: tie_word_embeddings=false; else say which of them "
                    f"not to read: ignore_keys=[{name!r}]."
                )


def prevailing_dtype(found: Mapping[str, Shape], dtypes: Mapping[str, torch.dtype], used: Iterable[str]) -> torch.dtype:
    """The type that most of the numbers are stored in; raise where one is no number that a model computes with."""
    numbers: Counter[torch.dtype] = Counter()
    for name in used:
        if dtypes[name] not in FLOATS:
            raise WeightsError(
                f"{name} is stored as {dtypes[name]}; weights are float64, float32, float16 or bfloat16. "
                f"Quantised weights have to be turned back into one of these first."
            )
        numbers[dtypes[name]] += prod(found[name])
    return max(numbers, key=lambda dtype: numbers[dtype])


def to_theirs(lineage: Lineage, facts: Model, kind: str, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under their names and in their form."""
    head = lineage.form(kind)
    prefix = lineage.prefix if head.prefix is None else head.prefix
    written: dict[str, Tensor] = {}
    rules = expand(lineage, kind, prefix, shapes(facts))
    for rule in rules:
        tensors = rule.how.theirs([ours[name] for name in rule.ours], facts)
        written |= {name: tensor.contiguous() for name, tensor in zip(rule.theirs, tensors, strict=True)}
    if left := set(shapes(facts)) - {name for rule in rules for name in rule.ours}:
        raise ValueError(f"{lineage.name} has no place for {', '.join(sorted(left))}.")
    return written


def plain_names(found: Iterable[str]) -> dict[str, str]:
    """Each name without the marks of wrappers and in today's spelling: the name as it stands in the file."""
    plain: dict[str, str] = {}
    for name in found:
        short = ".".join(part for part in name.split(".") if part not in WRAPPERS)
        for old, new in OLD_NAMES:
            short = old.sub(new, short)
        if short in plain:
            raise WeightsError(f"{plain[short]} and {name} are two names of one weight; which of them counts?")
        plain[short] = name
    return plain


def _prefix(lineage: Lineage, head: HeadFormat, stored: Mapping[str, str]) -> str:
    """The prefix of the body's names: a body that was saved alone has none."""
    for prefix in (head.prefix, lineage.prefix):
        if prefix and any(name.startswith(prefix) for name in stored):
            return prefix
    return ""


def _reason(lineage: Lineage, kind: str, name: str) -> str | None:
    """Why a tensor may be passed over; None if nothing says so."""
    for ignored in lineage.ignored_weights:
        if matches(ignored.theirs, name) or matches(lineage.prefix + ignored.theirs, name):
            return ignored.reason
    body = [theirs for rule in lineage.weights for theirs in (*rule.theirs, *rule.also)]
    if lineage.form(kind).only_encoder and any(matches(theirs, name) for theirs in body):
        return "belongs to the decoder, which was not asked for"
    others = {other: head for other, head in lineage.heads.items() if other != kind}
    for other, head in others.items():
        inner = [rule.with_prefix(prefix) for prefix in ("", lineage.prefix) for rule in head.inner]
        names = [theirs for rule in (*inner, *head.weights) for theirs in (*rule.theirs, *rule.also)]
        if any(matches(theirs, name) for theirs in (*names, *head.tied)):
            return f"belongs to the head {other!r}, which was not asked for"
    return None


def _misfit(what: str, missing: list[str], unknown: list[str]) -> WeightsError:
    """The error for weights that are missing or left over, with what can be done about it."""

    def some(names: list[str]) -> str:
        more = f"; and {len(names) - 12} more" if len(names) > 12 else ""
        return "; ".join(sorted(names)[:12]) + more

    text = f"the weights do not fit {what} as its config describes it."
    if missing:
        text += f" Missing ({len(missing)}): {some(missing)}."
    if unknown:
        text += f" Unknown ({len(unknown)}): {some(unknown)}."
    return WeightsError(
        "{} Check that config and weights belong together. Another head is asked for with {}, names that may be passed "
        "over go into {}, and parts that are to start anew into {} (as {}).",
        text,
        Setting("head"),
        Setting("ignore_keys"),
        Setting("fresh"),
        Setting("fresh", ["head.*"]),
    )
