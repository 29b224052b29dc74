"""Recipes as YAML files: those of the package by name, others by path; changed by ``key=value``; written back.

``1e-3`` is a number here, and ``no``, ``yes``, ``on`` and ``off`` are strings, unlike in YAML 1.1. The format of data
files is set from the endings of their names unless it is stated.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from copy import deepcopy
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from glassformer.config import from_dict, to_dict
from glassformer.training.recipe import Recipe

ENDINGS = {".txt": "text", ".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".conll": "conll", ".json": "squad"}
_PARTS = ("train", "valid", "test")
_OF_FORMAT = ("separator", "quoted")  # settings whose defaults depend on the format


def ending_of(file: str) -> str:
    """The suffix of a file's name, without .gz."""
    return Path(file.removesuffix(".gz")).suffix


def settle_format(page: dict[str, Any], changed: Collection[str], *, is_default: bool) -> str | None:
    """Set ``data.format`` from the endings of the files unless the user stated it; return a note on it.

    A format that comes from a change or from the files brings its own separator and quotes: those of the recipe are for
    other files.

    Args:
        page: the plain values of a recipe, changes included; changed in place.
        changed: the keys of the changes.
        is_default: the format of the page is only a default, because the user did not write the page.
    """
    data = page.get("data")
    if not isinstance(data, dict) or "data" in changed:
        return None
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
    """The format of all files by the endings of their names, if it can hold rows for the recipe's job."""
    from glassformer.training.objectives.job import record_of
    from glassformer.training.reading import holds

    parts = [(part, page["data"][part]) for part in _PARTS if page["data"].get(part) is not None]
    if not parts:
        return None
    record = record_of(str(page.get("job")))
    formats: dict[str, str] = {}
    for part, files in parts:
        names = {name for name in _formats(files) if name is not None and holds(name, record)}
        formats |= dict.fromkeys(names, f"data.{part}")
    if len(formats) > 1:
        readings = " and ".join(f"{part} as {name}" for name, part in formats.items())
        raise ValueError(f"by their endings, files of {readings} would be read; set one data.format for all.")
    return next(iter(formats), None)


def _formats(files: Any) -> Iterator[str | None]:
    if isinstance(files, dict):
        yield "parallel"
        return
    for file in [files] if isinstance(files, str) else files:
        yield ENDINGS.get(ending_of(str(file)))


_HOME = resources.files("glassformer.training") / "recipes"
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class RecipeError(ValueError):
    """A recipe that cannot be read, or an unknown change."""


class _Loader(yaml.SafeLoader):
    """YAML with numbers such as 1e-3 and strings such as no, without repeated keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """A table; a repeated key is an error, not a silent choice."""
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
    """What recipes hold as YAML: 1e-3 is a number, no and yes are strings, a repeated key is an error."""
    return yaml.load(text, _Loader)


def recipe_names() -> list[str]:
    """The recipes of the package."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _HOME.iterdir() if entry.name.endswith(".yaml"))


def read_recipe(
    source: str | Path, changes: Iterable[str] = (), *, notes: list[str] | None = None, **values: Any
) -> Recipe:
    """A recipe of the package by its name, or a YAML file by its path, with ``key=value`` changes on top.

    Args:
        source: the name or the path.
        changes: ``key=value``. What follows from them is set as well: the format from the files' endings, a shorter
            warm-up if the run is shorter than the warm-up.
        notes: gets a sentence for everything that followed from the changes.
        **values: further changes, as values and not as text: ``**{"model.start": folder}``.
    """
    name, page = _page(source)
    steps = _number(page, "run", "steps")
    pairs = [*map(_parsed, changes), *values.items()]
    for path, value in pairs:
        _set(page, path, value)
    changed = {path for path, _ in pairs}
    followed = [_fit_warmup(page, changed, steps)]
    try:
        followed.append(settle_format(page, changed, is_default=str(source) in recipe_names()))
    except (TypeError, ValueError) as error:
        raise RecipeError(f"recipe {name}: {error}") from error
    if notes is not None:
        notes += [note for note in followed if note is not None]
    return recipe_of(name, page)


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
    """A recipe from a page of plain values, with ``key=value`` changes on top, and further changes as values."""
    for path, value in (*map(_parsed, changes), *values.items()):
        _set(page, path, value)
    try:
        return from_dict(Recipe, {"name": name, **page})
    except (TypeError, ValueError) as error:
        raise RecipeError(f"recipe {name}: {error}") from error


def write_recipe(recipe: Recipe) -> str:
    """A recipe as YAML; ``read_recipe`` reads it back unchanged."""
    return yaml.dump(to_dict(recipe), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _page(source: str | Path) -> tuple[str, dict[str, Any]]:
    name = str(source)
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
        hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(recipe_names())}."
        raise RecipeError(f"no recipe is called {name!r}; a file of your own ends in .yaml. {hint}")
    try:
        page = parse_yaml(text)
    except (yaml.YAMLError, RecipeError) as error:
        raise RecipeError(f"recipe {name} is not YAML: {error}") from error
    if not isinstance(page, dict):
        raise RecipeError(f"recipe {name} must be a table of keys and values; it is a {type(page).__name__}.")
    return str(page.pop("name", name)), page


def _parsed(change: str) -> tuple[str, Any]:
    """The key and the value of ``key.inner=value``."""
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
