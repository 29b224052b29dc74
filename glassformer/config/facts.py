"""Facts (the values of a config) as plain data: to JSON and back, read and changed by path. Standard library only.

The path of a fact is the names of the fields that lead to it: ``decoder.attention.heads``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from glassformer.config.checks import Setting, SettingError, check_choice, check_known

T = TypeVar("T")


def to_dict(facts: Any) -> dict[str, Any]:
    """Return facts as dicts, lists, strings and numbers.

    Where a field may hold dataclasses of several types, the dict has a key ``type``.
    """
    data: dict[str, Any] = {}
    hints = get_type_hints(type(facts))
    for field in fields(facts):
        with_type = len([option for option in _allowed_types(hints[field.name]) if is_dataclass(option)]) > 1
        data[field.name] = _plain(getattr(facts, field.name), with_type)
    return data


def from_dict(kind: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """Reverse ``to_dict``. Errors name the path of a fact that is unknown, missing or of the wrong type."""
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    noun = "field" if kind.__module__.startswith(__package__) else "key"  # the sections of a recipe are read here, too
    if not isinstance(data, Mapping):
        raise TypeError(f"{where or kind.__name__} must be a mapping, got {data!r}.")
    for name in data:
        check_known(where or f"a {kind.__name__ if noun == 'field' else kind.__name__.lower()}", noun, name, names)
    required = {
        field.name
        for field in fields(kind)  # type: ignore[arg-type]
        if field.default is MISSING and field.default_factory is MISSING
    }
    if missing := sorted(required - set(data)):
        raise ValueError(f"{where or kind.__name__} lacks {', '.join(missing)}.")
    values = {name: _convert(hints[name], value, f"{where}.{name}".lstrip(".")) for name, value in data.items()}
    try:
        return kind(**values)
    except SettingError as error:  # the checks in __post_init__ do not know the path
        if noun == "field" and where:
            raise error.prefixed(f"{where}: ") from None
        raise


def leaves(facts: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every fact that is not itself a dataclass, with its path: ``("encoder.attention.heads", 12)``."""
    for field in fields(facts):
        value, path = getattr(facts, field.name), f"{where}.{field.name}".lstrip(".")
        if is_dataclass(value):
            yield from leaves(value, path)
        else:
            yield path, value


def get_fact(facts: Any, path: str, default: Any = None) -> Any:
    """Return the fact at a path; ``default`` if the path leads nowhere."""
    for name in path.split("."):
        if not hasattr(facts, name):
            return default
        facts = getattr(facts, name)
    return facts


def change(facts: T, path: str, value: Any) -> T:
    """Return a copy of ``facts`` with another value at ``path``; the copy is checked like new facts."""
    return _change(facts, path, value, path)


def _change(facts: T, path: str, value: Any, where: str) -> T:
    """Change the fact at ``path`` in ``facts``; errors name ``where``, the same path from the outermost facts."""
    name, _, rest = path.partition(".")
    if not is_dataclass(facts):
        raise ValueError(f"cannot set {where}: {where.removesuffix(path).rstrip('.')} is {facts!r:.60}.")
    kind = type(facts).__name__
    check_known(f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}", "field", name, {field.name for field in fields(facts)})
    if rest:
        value = _change(getattr(facts, name), rest, value, where)
    else:
        value = _convert(get_type_hints(type(facts))[name], value, where)
    try:
        return replace(facts, **{name: value})  # type: ignore[type-var]
    except SettingError as error:  # the checks in __post_init__ do not know the path
        outer = where.removesuffix(path).rstrip(".")
        raise (error.prefixed(f"{outer}: ") if outer else error) from None


def merge(facts: T, changes: Mapping[str, Any], where: str = "") -> T:
    """Return a copy with several facts changed at once; ``changes`` are nested dictionaries, as ``to_dict`` returns.

    A dictionary changes the facts that it names and keeps the others. Where ``facts`` have None, or a dataclass of
    another ``type``, it replaces that. Only the result is checked.
    """
    return from_dict(type(facts), _merge_dicts(to_dict(facts), changes), where)


def _merge_dicts(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(data)
    for name, value in changes.items():
        old = data.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("type") in (None, old.get("type")):
            value = _merge_dicts(old, value)
        merged[name] = value
    return merged


def for_json(value: Any) -> Any:
    """Return any data in a form that JSON can express: dataclasses as dictionaries, NaN and infinities as null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): for_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any, with_type: bool = False) -> Any:
    if is_dataclass(value):
        data = to_dict(value)
        return {"type": type(value).__name__, **data} if with_type else data
    if isinstance(value, tuple):
        return [_plain(item, with_type) for item in value]
    return value


class FactTypeError(TypeError):
    """A value of the wrong type, with the names of the types that its key takes.

    Args:
        key: the path of the value, such as ``decoder.attention.heads``.
        types: names of types as Python writes them.
        value: what was read.
    """

    def __init__(self, key: str, types: Sequence[str], value: object) -> None:
        self.key, self.types, self.value = key, types, value
        super().__init__(self.message({}))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.types, self.value)

    def message(self, names_of_types: Mapping[str, str]) -> str:
        """Return the message, with other names for Python's types, such as ``{"bool": "true or false"}``."""
        articles = {"int": "an int", "float": "a float", "bool": "a bool", "str": "a str"}
        wanted = " or ".join((articles | dict(names_of_types)).get(name, name) for name in self.types)
        return f"{self.key} must be {wanted}, got {self.value!r}."


def _allowed_types(hint: Any) -> tuple[Any, ...]:
    """Return the types that a hint allows; for tuples, those of their items."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(inner for option in get_args(hint) for inner in _allowed_types(option))
    if get_origin(hint) is tuple:
        return _allowed_types(get_args(hint)[0])
    return (hint,)


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Convert plain data to the type of a hint; raise an error with the path ``where`` if it does not fit."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    # A mapping becomes a dataclass; where several are allowed, its key "type" names one.
    kinds = [option for option in _allowed_types(hint) if is_dataclass(option)]
    if isinstance(value, Mapping) and kinds:
        kind = kinds[0]
        if len(kinds) > 1:
            by_name = {getattr(option, "__name__", ""): option for option in kinds}
            if "type" not in value:
                raise SettingError("{} needs a key `type`: one of {}.", Setting(where), ", ".join(sorted(by_name)))
            check_choice(f"{where}.type", str(value["type"]), by_name)
            kind, value = by_name[value["type"]], {name: item for name, item in value.items() if name != "type"}
        return from_dict(kind, value, where)  # type: ignore[arg-type]
    # A list becomes a tuple.
    if isinstance(value, (list, tuple)):
        tuples = [option for option in options if get_origin(option) is tuple]
        if tuples:
            return tuple(_convert(get_args(tuples[0])[0], item, where) for item in value)
    # Strings, numbers and None are checked.
    for option in options:
        if _is_instance(option, value):
            return float(value) if option is float else value
    words = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
    if words and isinstance(value, str):
        check_choice(where, value, words)
    raise FactTypeError(where, [_type_name(option) for option in options], value)


def _type_name(option: Any) -> str:
    if get_origin(option) is Literal:
        return " or ".join(map(repr, get_args(option)))
    return "None" if option is NoneType else getattr(option, "__name__", str(option))


def _is_instance(option: Any, value: Any) -> bool:
    if get_origin(option) is Literal:
        return value in get_args(option)
    if option in (None, NoneType):
        return value is None
    if get_origin(option) is dict:
        return isinstance(value, dict)
    if option is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(option, type) and isinstance(value, option)
