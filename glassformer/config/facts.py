"""Pages of facts as plain data: to JSON and back, changed at a path, compared fact by fact. Standard library only."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from glassformer.config.checks import check_choice

T = TypeVar("T")


def to_dict(facts: Any) -> dict[str, Any]:
    """A page of facts as dicts, lists, strings and numbers; a part that may be of several types says its ``type``."""
    page: dict[str, Any] = {}
    hints = get_type_hints(type(facts))
    for item in fields(facts):
        several = len([option for option in _options(hints[item.name]) if is_dataclass(option)]) > 1
        page[item.name] = _plain(getattr(facts, item.name), several)
    return page


def from_dict(kind: type[T], page: Mapping[str, Any], where: str = "") -> T:
    """The reverse of ``to_dict``. Unknown, missing and ill-typed facts are refused, by their path."""
    hints = get_type_hints(kind)
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(page, Mapping):
        raise TypeError(f"{where or kind.__name__} must be a table of facts, got {page!r}.")
    for name in page:
        check_choice(f"a fact of {where or kind.__name__}", name, names)
    needed = {
        item.name
        for item in fields(kind)  # type: ignore[arg-type]
        if item.default is MISSING and item.default_factory is MISSING
    }
    if missing := sorted(needed - set(page)):
        raise ValueError(f"{where or kind.__name__} lacks {', '.join(missing)}.")
    return kind(**{name: _typed(hints[name], value, f"{where}.{name}".lstrip(".")) for name, value in page.items()})


def leaves(facts: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every single fact with its path, depth first: ``("encoder.attention.heads", 12)``."""
    for item in fields(facts):
        value, path = getattr(facts, item.name), f"{where}.{item.name}".lstrip(".")
        if is_dataclass(value):
            yield from leaves(value, path)
        else:
            yield path, value


def look(facts: Any, path: str, absent: Any = None) -> Any:
    """The fact at a path; ``absent`` where a part on the way is missing or has no such fact."""
    for name in path.split("."):
        if not hasattr(facts, name):
            return absent
        facts = getattr(facts, name)
    return facts


def change(facts: T, path: str, value: Any) -> T:
    """A copy with another value at a path, checked like any page of facts."""
    name, _, rest = path.partition(".")
    if not is_dataclass(facts):
        raise ValueError(f"there is no {name!r} here to change: the part before it is {facts!r:.60}.")
    check_choice(f"a fact of {type(facts).__name__}", name, {item.name for item in fields(facts)})
    if rest:
        value = change(getattr(facts, name), rest, value)
    else:
        value = _typed(get_type_hints(type(facts))[name], value, path)
    return replace(facts, **{name: value})  # type: ignore[type-var]


def merge(facts: T, changes: Mapping[str, Any], where: str = "") -> T:
    """A copy with several facts changed at once: nested tables as ``to_dict`` writes them, checked as a whole.

    A table changes the facts that it names and leaves the others; where there is none yet, or one of another ``type``,
    it takes the place of the whole part.
    """
    return from_dict(type(facts), _merged(to_dict(facts), changes), where)


def _merged(page: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(page)
    for name, value in changes.items():
        old = page.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("type") in (None, old.get("type")):
            value = _merged(old, value)
        merged[name] = value
    return merged


def for_json(value: Any) -> Any:
    """Any data as what JSON can write: dataclasses as tables, and null for NaN and infinities, which it has not."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): for_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any, several: bool = False) -> Any:
    if is_dataclass(value):
        page = to_dict(value)
        return {"type": type(value).__name__, **page} if several else page
    if isinstance(value, tuple):
        return [_plain(item, several) for item in value]
    return value


def _options(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, tuples opened: what may stand in one place."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(inner for option in get_args(hint) for inner in _options(option))
    if get_origin(hint) is tuple:
        return _options(get_args(hint)[0])
    return (hint,)


def _typed(hint: Any, value: Any, where: str) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    tables = [option for option in _options(hint) if is_dataclass(option)]
    if isinstance(value, Mapping) and tables:
        table = tables[0]
        if len(tables) > 1:
            named = {getattr(option, "__name__", ""): option for option in tables}
            check_choice(f"{where}.type", str(value.get("type")), named)
            table, value = named[value["type"]], {name: item for name, item in value.items() if name != "type"}
        return from_dict(table, value, where)  # type: ignore[arg-type]
    if isinstance(value, (list, tuple)):
        rows = [option for option in options if get_origin(option) is tuple]
        if rows:
            return tuple(_typed(get_args(rows[0])[0], item, where) for item in value)
    for option in options:
        if _is(option, value):
            return float(value) if option is float else value
    words = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
    if words and isinstance(value, str):
        check_choice(where, value, words)
    wanted = " or ".join(_name(option) for option in options)
    raise TypeError(f"{where} must be {wanted}, got {value!r}.")


def _name(option: Any) -> str:
    if get_origin(option) is Literal:
        return " or ".join(map(repr, get_args(option)))
    return "None" if option is NoneType else getattr(option, "__name__", str(option))


def _is(option: Any, value: Any) -> bool:
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
