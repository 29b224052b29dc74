"""Which names of a file a rule reads, and which parts of a model start anew."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from glassformer.config.shapes import Shape
from glassformer.weights.rules import Rule


@dataclass(frozen=True)
class LoadOptions:
    """What the caller allows: their names to pass over, our names that may start anew; ``*`` matches anything."""

    ignore: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()


def fitting(
    rules: list[Rule],
    stored: Mapping[str, str],
    found: Mapping[str, Shape],
    options: LoadOptions,
    wanted: Mapping[str, Shape],
) -> tuple[list[Rule], dict[str, str]]:
    """The rules, of which those for parts that may start anew read nothing where the file has another size of it; and
    the names in the file that are passed over for that: a head for other labels, say."""
    result, outgrown = [], {}
    for rule in rules:
        there = alternative(rule, stored)
        if there is not None and is_fresh(rule, options) and len(there.theirs) == len(there.ours) == 1:
            sizes = [sorted(shape) for shape in (found[stored[there.theirs[0]]], wanted[there.ours[0]])]
            if sizes[0] != sizes[1]:
                outgrown[there.theirs[0]] = f"of another size than {there.ours[0]}, which starts anew"
                rule = replace(rule, theirs=("",), also=())  # a name that no file has
        result.append(rule)
    return result, outgrown


def is_fresh(rule: Rule, options: LoadOptions) -> bool:
    """Whether all that a rule fills may start anew."""
    return all(any(matches(pattern, name) for pattern in options.fresh) for name in rule.ours)


def alternative(rule: Rule, stored: Mapping[str, str]) -> Rule | None:
    """The rule, reading from another name of a tied tensor where the first is not there; None if none is."""
    if all(name in stored for name in rule.theirs):
        return rule
    for name in rule.also:
        if name in stored:
            return replace(rule, theirs=(name,))
    return None


def matches(pattern: str, name: str) -> bool:
    """Whether a name is one that a pattern means; ``*`` is anything, ``{i}`` a number."""
    escaped = re.escape(pattern).replace(r"\{i\}", r"\d+").replace(r"\*", ".*")
    return re.fullmatch(escaped, name) is not None
