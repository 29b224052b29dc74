"""Match the tensors of a file with the weights of a model, account for every name, then copy them.

Variables called ``ours`` are this library's names and tensors, ``theirs`` those of the file. Nothing is copied before
the plan is complete, so a bad folder never leaves half a model behind.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol

import torch
from torch import Tensor, nn

from glassformer.config import LMHead, ModelConfig, shapes
from glassformer.config.checks import Setting
from glassformer.config.shapes import Shape
from glassformer.models.transformer import Transformer
from glassformer.weights.files import WeightsError
from glassformer.weights.lineage import HeadFormat, Lineage
from glassformer.weights.rules import Rule, Same

WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}  # put into names by wrappers
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
OLD_NAMES = ((re.compile(r"\.gamma$"), ".weight"), (re.compile(r"\.beta$"), ".bias"))  # of norms in old checkpoints


@dataclass(frozen=True)
class LoadOptions:
    """File names to ignore, and our names that may be newly initialised; ``*`` matches anything."""

    ignore: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()


@dataclass
class Plan:
    """The rules that fill the model from the file, and what happens to all other names."""

    rules: list[Rule]
    unused: dict[str, str] = field(default_factory=dict)  # names in the file that are not loaded: the reason
    file_names: dict[str, str] = field(default_factory=dict)  # plain name: the name in the file, with its wrappers
    zeros: list[str] = field(default_factory=list)  # our names of optional weights that the file lacks: see rules.Rule
    fresh: list[str] = field(default_factory=list)  # our names of weights to initialise


class TensorSource(Protocol):
    """Named tensors that can be copied one at a time, such as ``files.WeightFiles``."""

    shapes: dict[str, Shape]

    def read(self, name: str, /) -> Tensor:
        """Return a new tensor."""
        ...

    def borrow(self, name: str, /) -> Tensor:
        """Return a tensor whose memory the next call of ``borrow`` may overwrite."""
        ...

    def copy_into(self, name: str, out: Tensor, /) -> None:
        """Copy a tensor into ``out``."""
        ...


# --- plan ------------------------------------------------------------------------------------------------------------


def plan(
    lineage: Lineage,
    facts: ModelConfig,
    kind: str,
    file_shapes: Mapping[str, Shape],
    options: LoadOptions = LoadOptions(),  # noqa: B008
) -> Plan:
    """Match the tensors of a file with the weights of a model of this lineage; raise unless all are accounted for.

    ``kind`` is the kind of head; tensors of the lineage's other heads are unused.
    """
    _check_depth(facts, file_shapes, options)
    file_names, model_shapes = plain_names(file_shapes), shapes(facts)
    rules = expand(lineage, kind, _prefix(lineage, lineage.head_format(kind), file_names), model_shapes)
    filled = {name for rule in rules for name in rule.ours}
    missing = [f"(no rule fills {name})" for name in model_shapes if name not in filled]

    def reason(name: str) -> str | None:
        return _reason(lineage, kind, name)

    return _match(rules, file_names, (file_shapes, model_shapes), options, reason, f"a {lineage.name} model", missing)


def plan_ours(
    facts: ModelConfig,
    file_shapes: Mapping[str, Shape],
    options: LoadOptions = LoadOptions(),  # noqa: B008
) -> Plan:
    """``plan`` for a file under our own parameter names."""
    _check_depth(facts, file_shapes, options)
    file_names, model_shapes = plain_names(file_shapes), shapes(facts)
    rules = [Rule((name,), (name,)) for name in model_shapes]

    def reason(name: str) -> str | None:
        return "belongs to a head that is not loaded" if name.startswith("head.") else None

    return _match(rules, file_names, (file_shapes, model_shapes), options, reason, "the model", [])


def _check_depth(facts: ModelConfig, file_shapes: Mapping[str, Shape], options: LoadOptions) -> None:
    """Raise if the file has fewer tensors than the model has layers, before any work is done per layer."""
    stacks = [stack for stack in (facts.encoder, facts.decoder) if stack is not None]
    layers = sum(stack.unique_layers or stack.layers for stack in stacks)
    if layers > len(file_shapes) and not options.fresh:
        raise WeightsError(
            f"the config has {layers} layers with weights, but the file has only {len(file_shapes)} tensors. "
            f"Config and weights do not belong to the same model."
        )


def _match(
    rules: list[Rule],
    file_names: dict[str, str],
    sizes: tuple[Mapping[str, Shape], Mapping[str, Shape]],
    options: LoadOptions,
    reason: Callable[[str], str | None],
    description: str,
    missing: list[str],
) -> Plan:
    """Match rules with the names of a file; raise if a weight is missing or a name has no ``reason`` to be ignored.

    ``sizes`` are the shapes of the file and of the model.
    """
    result = Plan([], file_names=file_names)
    file_shapes, model_shapes = sizes
    # Every weight of the model: from the file, zero, newly initialised, or missing.
    for rule in rules:
        match = _stored_form(rule, file_names)
        may_be_fresh = all(any(matches(pattern, name) for pattern in options.fresh) for name in rule.ours)
        if match is not None and may_be_fresh and len(match.theirs) == len(match.ours) == 1:
            (theirs,), (ours,) = match.theirs, match.ours
            if sorted(file_shapes[file_names[theirs]]) != sorted(model_shapes[ours]):  # such as a head for other labels
                result.unused[theirs] = f"of another size than {ours}, which is newly initialised"
                match = None
        if match is not None:
            result.rules.append(match)
        elif rule.zeros:
            result.zeros += rule.ours
        elif may_be_fresh:
            result.fresh += rule.ours
        else:
            missing.append(f"{' + '.join(rule.theirs)} (for {' + '.join(rule.ours)})")
    # Every name of the file: used, unused, or unknown.
    unknown = []
    used = {name for rule in result.rules for name in (*rule.theirs, *rule.also)}
    for name in (name for name in file_names if name not in used and name not in result.unused):
        ignored = any(matches(pattern, name) for pattern in options.ignore)
        why = "in ignore_keys" if ignored else reason(name)
        if why is None:
            unknown.append(f"{file_names[name]} {tuple(file_shapes[file_names[name]])}")
        else:
            result.unused[name] = why
    if missing or unknown:
        raise _mismatch_error(description, missing, unknown)
    return result


def _mismatch_error(description: str, missing: list[str], unknown: list[str]) -> WeightsError:
    """Return the error for missing or unknown weights."""

    def some(names: list[str]) -> str:
        more = f"; and {len(names) - 12} more" if len(names) > 12 else ""
        return "; ".join(sorted(names)[:12]) + more

    text = f"the weights do not fit {description} as its config describes it."
    if missing:
        text += f" Missing ({len(missing)}): {some(missing)}."
    if unknown:
        text += f" Unknown ({len(unknown)}): {some(unknown)}."
    return WeightsError(
        "{} Check that config and weights belong together. Choose another head with {}, list names to ignore in "
        "{}, and parameters to initialise in {} (as {}).",
        text,
        Setting("head"),
        Setting("ignore_keys"),
        Setting("fresh"),
        Setting("fresh", ["head.*"]),
    )


def _stored_form(rule: Rule, file_names: Mapping[str, str]) -> Rule | None:
    """Return the rule under the names that the file has; for a tied tensor, any of its names.

    None if the file has none.
    """
    if all(name in file_names for name in rule.theirs):
        return rule
    return next((replace(rule, theirs=(name,)) for name in rule.also if name in file_names), None)


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a name: ``*`` is anything, ``{i}`` a number."""
    escaped = re.escape(pattern).replace(r"\{i\}", r"\d+").replace(r"\*", ".*")
    return re.fullmatch(escaped, name) is not None


def expand(lineage: Lineage, kind: str, prefix: str, model_shapes: Mapping[str, Shape]) -> list[Rule]:
    """Return the rules of body and head for the weights that the model has, one rule per layer.

    If several rules fill the same weights, as for a part whose name depends on another part, the first counts all of
    whose weights the model has.
    """
    # Rules of the body with its prefix; a tied head may be stored as a second copy of the embedding table.
    head = lineage.head_format(kind)
    body = [rule.with_prefix(prefix) for rule in (*lineage.weight_rules, *head.body_rules)]
    if not {"head.out.weight", "head.lm.out.weight"} & model_shapes.keys():
        body = [replace(r, also=(*r.also, *head.tied)) if r.ours == ("embed.token.weight",) else r for r in body]
    # One rule per layer, each weight filled once.
    layers = sorted({int(number) for name in model_shapes for number in re.findall(r"blocks\.(\d+)\.", name)})
    rules: list[Rule] = []
    unfilled = set(model_shapes)
    for pattern in (*body, *head.weight_rules):
        for rule in [pattern.of_layer(layer) for layer in layers] if pattern.is_per_layer else [pattern]:
            if unfilled.issuperset(rule.ours):
                unfilled.difference_update(rule.ours)
                rules.append(rule)
    return rules


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Return each name without the prefixes of wrappers, and old names as today's, mapped to the original name."""
    plain: dict[str, str] = {}
    for name in names:
        short = ".".join(part for part in name.split(".") if part not in WRAPPERS)
        for old, new in OLD_NAMES:
            short = old.sub(new, short)
        if short in plain:
            raise WeightsError(f"{plain[short]} and {name} name the same weight; remove one of them.")
        plain[short] = name
    return plain


def _prefix(lineage: Lineage, head: HeadFormat, file_names: Mapping[str, str]) -> str:
    """Return the prefix of the body's names; a body that was saved without a head has none."""
    for prefix in (head.prefix, lineage.prefix):
        if prefix and any(name.startswith(prefix) for name in file_names):
            return prefix
    return ""


def _reason(lineage: Lineage, kind: str, name: str) -> str | None:
    """Return why a tensor may be ignored; None if it may not."""
    for ignored in lineage.ignored_weights:
        if matches(ignored.theirs, name) or matches(lineage.prefix + ignored.theirs, name):
            return ignored.reason
    # The decoder, if only the encoder is loaded.
    body = [theirs for rule in lineage.weight_rules for theirs in (*rule.theirs, *rule.also)]
    if lineage.head_format(kind).only_encoder and any(matches(theirs, name) for theirs in body):
        return "belongs to the decoder, which is not loaded"
    # The lineage's other heads.
    others = {other: head for other, head in lineage.heads.items() if other != kind}
    for other, head in others.items():
        inner = [rule.with_prefix(prefix) for prefix in ("", lineage.prefix) for rule in head.body_rules]
        names = [theirs for rule in (*inner, *head.weight_rules) for theirs in (*rule.theirs, *rule.also)]
        if any(matches(theirs, name) for theirs in (*names, *head.tied)):
            return f"belongs to the head {other!r}, which is not loaded"
    return None


def untie_if_different(lineage: Lineage, facts: ModelConfig, kind: str, source: TensorSource) -> ModelConfig:
    """Untie the head in the facts if the file has a head that differs from the embedding table.

    For lineages whose config.json cannot state that a head is untied (``HeadFormat.ties_if_equal``).
    """
    head_format = lineage.head_format(kind)
    if not head_format.ties_if_equal or not isinstance(facts.head, LMHead) or not facts.head.tied:
        return facts
    # Compare the stored head with the embedding table.
    file_names = plain_names(source.shapes)
    prefix = _prefix(lineage, head_format, file_names)
    table = next(rule.with_prefix(prefix) for rule in lineage.weight_rules if rule.ours == ("embed.token.weight",))
    names = [name for name in (*table.theirs, *table.also) if name in file_names][:1]
    copies = [name for name in head_format.tied if name in file_names]
    if not names or all(
        torch.equal(source.read(file_names[names[0]]), source.read(file_names[copy])) for copy in copies
    ):
        return facts
    return replace(facts, head=replace(facts.head, tied=False))


# --- check and copy --------------------------------------------------------------------------------------------------


def check_sizes(plan: Plan, facts: ModelConfig, file_shapes: Mapping[str, Shape]) -> None:
    """Raise unless the tensors that a rule reads have as many values as those it fills.

    So no model is built from a config whose sizes are not those of the file: it might not fit into memory.
    """
    model_shapes, mismatches = shapes(facts), []
    for rule in plan.rules:
        theirs = [tuple(file_shapes[plan.file_names[name]]) for name in rule.theirs]
        ours = [model_shapes[name] for name in rule.ours]
        if sum(map(prod, theirs)) != sum(map(prod, ours)) or (isinstance(rule.how, Same) and theirs != ours):
            expected, actual = (" + ".join(map(str, sizes)) for sizes in (ours, theirs))
            mismatches.append(_mismatch(rule, rule.ours, expected, actual))
    if mismatches:
        more = f"; and {len(mismatches) - 4} more" if len(mismatches) > 4 else ""
        raise WeightsError(f"{'; '.join(mismatches[:4])}{more}. Config and weights do not belong to the same model.")


def _mismatch(rule: Rule, ours: Iterable[str], expected: object, actual: object) -> str:
    names = f"{' + '.join(rule.theirs)} has the wrong shape for {' + '.join(ours)}"
    return f"{names}: expected {expected} by the config, the file has {actual}"


@torch.no_grad()
def copy_weights(
    plan: Plan, model: Transformer, source: TensorSource, dtype: torch.dtype, device: torch.device
) -> None:
    """Allocate every weight of the model and fill it from the file, the largest first.

    Tensors that need no change are copied in chunks; the others are borrowed, so that memory holds the weights and one
    tensor more.
    """
    model_shapes = shapes(model.config)
    filled = [*plan.zeros, *plan.fresh, *(name for rule in plan.rules for name in rule.ours)]
    assert sorted(filled) == sorted(model_shapes), "a plan fills every weight once"

    def allocate(name: str) -> Tensor:
        module_name, _, attribute = name.rpartition(".")
        module = model.get_submodule(module_name)
        tensor = torch.empty(model_shapes[name], dtype=dtype, device=device)
        is_buffer = attribute in dict(module.named_buffers(recurse=False))
        setattr(module, attribute, tensor if is_buffer else nn.Parameter(tensor))
        return tensor

    for rule in sorted(plan.rules, key=lambda r: -sum(prod(source.shapes[plan.file_names[name]]) for name in r.theirs)):
        stored = [plan.file_names[name] for name in rule.theirs]
        _check_copies(plan, rule, source)
        # Tensors that are the same on both sides.
        if isinstance(rule.how, Same):
            for name, stored_name in zip(rule.ours, stored, strict=True):
                source.copy_into(stored_name, allocate(name))
            continue
        # Tensors to transpose, split or reshape.
        theirs = [source.borrow(name) if len(stored) == 1 else source.read(name) for name in stored]
        try:
            ours = rule.how.ours(theirs, model.config)
        except RuntimeError as error:
            raise WeightsError(f"{', '.join(rule.theirs)} cannot be converted: {error}") from error
        for name, tensor in zip(rule.ours, ours, strict=True):
            if tuple(tensor.shape) != model_shapes[name]:
                mismatch = _mismatch(rule, [name], model_shapes[name], tuple(tensor.shape))
                raise WeightsError(f"{mismatch}. Config and weights do not belong to the same model.")
            allocate(name).copy_(tensor)
    for name in (*plan.zeros, *plan.fresh):
        allocate(name).zero_()  # those in ``fresh`` are initialised later


def _check_copies(plan: Plan, rule: Rule, source: TensorSource) -> None:
    """Raise unless all stored copies of a tied tensor are equal."""
    for name in rule.also:
        if name in plan.file_names and name not in rule.theirs:
            first, copy = source.read(plan.file_names[rule.theirs[0]]), source.read(plan.file_names[name])
            if not torch.equal(first, copy.to(first.dtype)):
                raise WeightsError(
                    "{} and {} should be one tied tensor, but they differ. If the model was trained with its head "
                    "untied, set tie_word_embeddings=false in config.json; otherwise ignore one of them: {}.",
                    rule.theirs[0],
                    name,
                    Setting("ignore_keys", [name]),
                )


def prevailing_dtype(
    file_shapes: Mapping[str, Shape], dtypes: Mapping[str, torch.dtype], names: Iterable[str]
) -> torch.dtype:
    """Return the dtype of most of the values of the named tensors; raise if one of them is not floating point."""
    sizes: Counter[torch.dtype] = Counter()
    for name in names:
        if dtypes[name] not in FLOATS:
            raise WeightsError(
                f"{name} is stored as {dtypes[name]}; weights are float64, float32, float16 or bfloat16. "
                f"Dequantise the weights first."
            )
        sizes[dtypes[name]] += prod(file_shapes[name])
    return max(sizes, key=lambda dtype: sizes[dtype])


def to_theirs(lineage: Lineage, facts: ModelConfig, kind: str, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our weights under the lineage's names and in its layout."""
    head = lineage.head_format(kind)
    prefix = lineage.prefix if head.prefix is None else head.prefix
    converted: dict[str, Tensor] = {}
    rules = expand(lineage, kind, prefix, shapes(facts))
    for rule in rules:
        tensors = rule.how.theirs([ours[name] for name in rule.ours], facts)
        converted |= {name: tensor.contiguous() for name, tensor in zip(rule.theirs, tensors, strict=True)}
    if unfilled := set(shapes(facts)) - {name for rule in rules for name in rule.ours}:
        raise ValueError(f"{lineage.name} has no names for {', '.join(sorted(unfilled))}.")
    return converted
