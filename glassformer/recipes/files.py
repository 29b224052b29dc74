"""Recipes as YAML files: those of the package by name, others by path; changed by ``key=value``; written back.

``1e-3`` is a number here, and ``no``, ``yes``, ``on`` and ``off`` are strings, unlike in YAML 1.1. The format of data
files is set from the endings of their names unless it is stated.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from copy import deepcopy
from dataclasses import is_dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from glassformer.config import from_dict, to_dict
from glassformer.config.checks import SettingError
from glassformer.config.facts import FactTypeError
from glassformer.recipes.jobs import job_entry
from glassformer.recipes.recipe import Recipe

ENDINGS = {".txt": "text", ".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".conll": "conll", ".json": "squad"}
_PARTS = ("train", "valid", "test")
SMALL_MINUTES = 10  # a recipe that takes no longer on a CPU needs no smaller size
_OF_FORMAT = {"separator": ("csv", "tsv", "conll"), "quoted": ("csv", "tsv")}  # settings for these formats alone


def ending_of(file: str) -> str:
    """Return the suffix of a file's name, without .gz."""
    return Path(file.removesuffix(".gz")).suffix


def infer_format(page: dict[str, Any], changed: Collection[str], *, is_default: bool) -> str | None:
    """Set ``data.format`` from the endings of the files unless the user stated it; return a note on it.

    A format that comes from a change or from the files brings its own separator and quotes: those of the recipe are for
    other files.

    Args:
        page: the plain values of a recipe, changes included; changed in place.
        changed: the keys of the changes.
        is_default: the format of the page is only a default, because the user did not write the page.
    """
    note = _infer_format(page, changed, is_default=is_default)
    data = page.get("data")
    if isinstance(data, dict):
        for name, formats in _OF_FORMAT.items():
            is_stated = "data" in changed or f"data.{name}" in changed
            if is_stated and data.get(name) is not None and data.get("format") not in formats:
                raise ValueError(
                    f"data.{name} is for the formats {', '.join(formats)}, and data.format is {data.get('format')}; "
                    f"leave it out."
                )
    return note


def _infer_format(page: dict[str, Any], changed: Collection[str], *, is_default: bool) -> str | None:
    data = page.get("data")
    if not isinstance(data, dict) or "data" in changed:
        return None
    # Another format comes with its own separator and quotes.
    stated = {name: data[name] for name in _OF_FORMAT if f"data.{name}" in changed}
    own = {name: value for name, value in data.items() if name not in _OF_FORMAT} | stated
    if "data.format" in changed:
        page["data"] = own
        return None
    if "format" in data and not is_default:
        return None
    format_ = _by_ending(page)
    if format_ is None:
        return None
    page["data"] = {**(own if is_default else data), "format": format_}
    if page["data"] == data:
        return None
    return f"the files are read as data.format={format_}, by their ending"


def _by_ending(page: dict[str, Any]) -> str | None:
    """Return the format of all files by the endings of their names, if it can hold rows for the recipe's job."""
    from glassformer.recipes.rows import holds

    parts = [(part, page["data"][part]) for part in _PARTS if page["data"].get(part) is not None]
    if not parts:
        return None
    record = job_entry(str(page.get("job"))).rows
    formats: dict[str, str] = {}
    for part, files in parts:
        names = {name for name in _formats(files) if name is not None and holds(name, record)}
        formats |= dict.fromkeys(names, f"data.{part}")
    if len(formats) > 1:
        readings = " and ".join(f"{part} as {name}" for name, part in formats.items())
        raise ValueError(f"the endings of the files suggest several formats: {readings}; set data.format, one for all.")
    return next(iter(formats), None)


def _formats(files: Any) -> Iterator[str | None]:
    if isinstance(files, dict):
        yield "parallel"
        return
    for file in [files] if isinstance(files, str) else files:
        yield ENDINGS.get(ending_of(str(file)))


_HOME = resources.files("glassformer.recipes")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class RecipeError(SettingError):
    """A recipe that cannot be read, or an unknown change."""


# Types as a recipe writes them.
TYPES = {
    "str": "a text", "int": "an integer", "float": "a number", "bool": "true or false", "None": "null",
    "tuple": "a list such as [a, b]", "dict": "a table such as {a: b}", "Aligned": "two files, source and target",
    **{kind.__name__: "a table of keys and values" for kind in get_type_hints(Recipe).values()
       if isinstance(kind, type) and is_dataclass(kind)},
}  # fmt: skip


def _about(name: str, error: Exception) -> RecipeError:
    """Rephrase an error in terms of recipe keys, with the name of the recipe before it."""
    if isinstance(error, SettingError) and error.values:
        return RecipeError("recipe {}: " + error.template, name, *error.values)
    return RecipeError(f"recipe {name}: {error.message(TYPES) if isinstance(error, FactTypeError) else error}")


class _Loader(yaml.SafeLoader):
    """YAML with numbers such as 1e-3 and strings such as no, without repeated keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a table; a repeated key is an error, not a silent choice."""
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        repeated = {str(key) for key in keys if keys.count(key) > 1}
        if repeated:
            raise RecipeError(f"line {node.start_mark.line + 1}: {', '.join(sorted(repeated))} is stated twice.")
        return super().construct_mapping(node, deep)


_FLOAT, _BOOL = "tag:yaml.org,2002:float", "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in (_FLOAT, _BOOL)]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_NUMBERS = _FLOAT, re.compile(f"^({_NUMBER.pattern})$"), list("-+.0123456789")
_Loader.add_implicit_resolver(*_NUMBERS)
_Loader.add_implicit_resolver(_BOOL, re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


class _Dumper(yaml.SafeDumper):
    """Quotes strings that YAML 1.1 or ``_Loader`` would read as something else."""


_Dumper.add_implicit_resolver(*_NUMBERS)


def parse_yaml(text: str) -> Any:
    """Parse the YAML of recipes: 1e-3 is a number, no and yes are strings, and a repeated key raises an error."""
    return yaml.load(text, _Loader)


def recipe_names() -> list[str]:
    """Return the recipes of the package."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _HOME.iterdir() if entry.name.endswith(".yaml"))


def read_recipe(
    source: str | Path, changes: Iterable[str] = (), *, notes: list[str] | None = None, **values: Any
) -> Recipe:
    """Return a recipe of the package by its name, or a YAML file by its path, with ``key=value`` changes on top.

    Args:
        source: the name or the path.
        changes: ``key=value``. ``run.size=small`` takes the values of that size; other changes go on top of them,
            in any order. What follows from them is set as well: the format from the files' endings, a shorter
            warm-up if the run is shorter than the warm-up.
        notes: gets a sentence for everything that followed from the changes.
        **values: further changes, as values and not as text: ``**{"model.start": folder}``.
    """
    name, page = _page(source)
    pairs = [*map(parse_change, changes), *values.items()]
    pairs = _apply_size(name, page, pairs)
    steps = _number(page, "run", "steps")
    for path, value in pairs:
        _set(page, path, value)
    changed = {path for path, _ in pairs}
    followed = [_fit_warmup(page, changed, steps)]
    try:
        followed.append(infer_format(page, changed, is_default=str(source) in recipe_names()))
    except (TypeError, ValueError) as error:
        raise _about(name, error) from error
    if notes is not None:
        notes += [note for note in followed if note is not None]
    return recipe_of(name, page)


def recipe_sizes(source: str | Path) -> list[str]:
    """Return the sizes of a recipe that ``run.size`` can name."""
    return list(_sizes(*_page(source)))


def unused_sizes(recipe: Recipe) -> list[str]:
    """Return the sizes that ``run.size`` could name for a recipe of the package in its full size.

    Each states its result.
    """
    if recipe.name not in recipe_names() or recipe.expected != read_recipe(recipe.name).expected:
        return []
    return recipe_sizes(recipe.name)


def _sizes(name: str, page: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the changes of each size of a recipe, as nested tables."""
    sizes = page.get("sizes") or {}
    if not isinstance(sizes, dict) or not all(isinstance(values, dict) for values in sizes.values()):
        raise RecipeError(f"recipe {name}: sizes is a table of sizes, each a table of values.")
    return sizes


def _apply_size(name: str, page: dict[str, Any], pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Merge the values of the size that ``run.size`` names into a page; return the other changes.

    A recipe that was written back has the values of its size and names none.
    """
    sizes = _sizes(name, page)
    page.pop("sizes", None)
    section = page.get("run")
    size = section.pop("size", None) if isinstance(section, dict) else None
    # The size may come as run.size=small or as run={size: small}; the last one counts.
    others: list[tuple[str, Any]] = []
    for path, value in pairs:
        if path == "run.size":
            size = value
        elif path == "run" and isinstance(value, Mapping) and "size" in value:
            size, rest = value["size"], {key: inner for key, inner in value.items() if key != "size"}
            others += [(path, rest)] if rest else []
        else:
            others.append((path, value))
    if size is not None:
        if not isinstance(size, str):
            raise RecipeError(f"recipe {name}: run.size is the name of a size, such as small; got {size!r}.")
        if size not in sizes:
            raise RecipeError(f"recipe {name} has no size {size!r} (run.size): {_known_sizes(page, sizes)}.")
        _merge(page, sizes[size])
    return others


def _known_sizes(page: Mapping[str, Any], sizes: Mapping[str, Any]) -> str:
    """Return which sizes there are, for an error message."""
    if sizes:
        return f"it has {', '.join(sizes)}"
    minutes = page["expected"].get("cpu_minutes") if isinstance(page.get("expected"), dict) else None
    if isinstance(minutes, int | float) and minutes <= SMALL_MINUTES:
        return f"its only size is already small, {minutes:g} min on a CPU"
    return "it has none"


def _merge(page: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set the values of nested tables in a page; what they do not name stays."""
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(page.get(key), dict):
            _merge(page[key], value)
        else:
            page[key] = deepcopy(value)


def _fit_warmup(page: dict[str, Any], changed: Set[str], stated: int | None) -> str | None:
    """Shorten the warm-up in proportion if the run was made shorter than it; return a note on it.

    ``stated``: the steps that the recipe states.
    """
    steps, warmup = _number(page, "run", "steps"), _number(page, "optimizer", "warmup")
    if stated is None or steps is None or warmup is None or changed & {"optimizer", "optimizer.warmup"}:
        return None
    if not 1 <= steps <= warmup < stated:
        return None
    fitted = min(max(1, steps * warmup // stated), steps - 1)
    _set(page, "optimizer.warmup", fitted)
    shares = f"{warmup} of {stated:,} steps"
    return f"optimizer.warmup={fitted}: the recipe warms up for {shares}, and run.steps={steps} is shorter"


def _number(page: Mapping[str, Any], section: str, name: str) -> int | None:
    inner = page.get(section)
    value = inner.get(name) if isinstance(inner, Mapping) else None
    return value if isinstance(value, int) else None


def recipe_of(name: str, page: dict[str, Any], changes: Iterable[str] = (), **values: Any) -> Recipe:
    """Return a recipe from a page of plain values, with ``key=value`` changes on top, and further changes as values."""
    for path, value in (*map(parse_change, changes), *values.items()):
        _set(page, path, value)
    try:
        return from_dict(Recipe, {"name": name, **page})
    except (TypeError, ValueError) as error:
        raise _about(name, error) from error


def write_recipe(recipe: Recipe) -> str:
    """Return a recipe as YAML; ``read_recipe`` reads it back unchanged."""
    return yaml.dump(to_dict(recipe), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _page(source: str | Path) -> tuple[str, dict[str, Any]]:
    name = str(source)
    # A recipe of the package, or a file.
    if name in recipe_names():
        text = (_HOME / f"{name}.yaml").read_text(encoding="utf-8")
    elif name.endswith((".yaml", ".yml")):
        path = Path(source)
        if not path.is_file():
            raise RecipeError(f"{path}: there is no such file.")
        try:
            name, text = path.stem, path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise RecipeError(f"{path} is not UTF-8: {error}.") from error
    else:
        near = get_close_matches(name, recipe_names(), n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Recipes: {', '.join(recipe_names())}."
        raise RecipeError(f"no recipe is called {name!r} (your own recipe files must end in .yaml). {hint}")
    try:
        page = parse_yaml(text)
    except (yaml.YAMLError, RecipeError) as error:
        raise RecipeError(f"recipe {name} is not YAML: {error}") from error
    # A mapping of keys to values.
    if not isinstance(page, dict):
        raise RecipeError(f"recipe {name} must be a mapping of keys to values, got a {type(page).__name__}.")
    return str(page.pop("name", name)), page


def parse_change(change: str) -> tuple[str, Any]:
    """Return the key and the value of ``key.inner=value``."""
    path, equals, text = change.partition("=")
    if not equals or not path:
        raise RecipeError(f"a change is written key=value, as optimizer.lr=1e-3; got {change!r}.")
    if " #" in text or (text and not text.strip()) or text[:1] in ("|", ">", "#"):
        return path, text  # taken literally: YAML would drop white space and comments
    try:
        value = parse_yaml(text) if text else None
    except (yaml.YAMLError, RecipeError):
        value = text  # such as a path with a bracket
    if isinstance(value, dict | list) and not text.lstrip().startswith(("{", "[")):
        value = text  # "en:" and "- a" are strings here
    return path, value


def _set(page: dict[str, Any], path: str, value: Any) -> None:
    """Set a value in a page; unknown keys are found when the page is read."""
    *outer, last = path.split(".")
    inner = page
    for name in outer:
        table = inner.get(name)
        inner[name] = deepcopy(table) if isinstance(table, Mapping) else {}
        inner = inner[name]
    inner[last] = value
