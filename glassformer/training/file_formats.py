"""The format of a recipe's files: as stated, or told by the endings of their names."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

ENDINGS = {".txt": "text", ".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".conll": "conll", ".json": "squad"}
_PARTS = ("train", "valid", "test")
_OF_FORMAT = ("separator", "quoted")  # what a format has of its own


def ending_of(file: str) -> str:
    """The ending of a file's name, without that of its compression."""
    return Path(file.removesuffix(".gz")).suffix


def settle_format(page: dict[str, Any], changed: Collection[str], *, is_default: bool) -> str | None:
    """Set ``data.format`` from the endings of the files where nobody has stated it; return what to tell of it.

    A format that is stated by a change, or told by the files, brings its own separator and quotes: those of the recipe
    are for other files.

    Args:
        page: the plain values of a recipe, changes included; changed in place.
        changed: the keys of the changes.
        is_default: the format of the page is a mere default, for it was not written by the user.
    """
    data = page.get("data")
    if not isinstance(data, dict) or "data" in changed:
        return None
    said = {name: data[name] for name in _OF_FORMAT if f"data.{name}" in changed}
    own = {name: value for name, value in data.items() if name not in _OF_FORMAT} | said
    if "data.format" in changed:
        page["data"] = own
        return None
    if "format" in data and not is_default:
        return None
    found = _by_ending(page)
    if found is None:
        return None
    page["data"] = {**(own if is_default else data), "format": found}
    if page["data"] == data:
        return None
    return f"the files are read as data.format={found}, by their ending"


def _by_ending(page: dict[str, Any]) -> str | None:
    """The one format that the names of all files tell, of those that hold rows for the recipe's job."""
    from glassformer.training.objectives.job import record_of  # not above: this reads a recipe without loading PyTorch
    from glassformer.training.reading import holds

    named = [(part, page["data"][part]) for part in _PARTS if page["data"].get(part) is not None]
    if not named:
        return None
    record = record_of(str(page.get("job")))
    found: dict[str, str] = {}
    for part, files in named:
        kinds = {kind for kind in _kinds(files) if kind is not None and holds(kind, record)}
        found |= dict.fromkeys(kinds, f"data.{part}")
    if len(found) > 1:
        told = " and ".join(f"{part} as {kind}" for kind, part in found.items())
        raise ValueError(f"by their endings, files of {told} would be read; say the one data.format that all have.")
    return next(iter(found), None)


def _kinds(files: Any) -> Iterator[str | None]:
    if isinstance(files, dict):
        yield "parallel"
        return
    for file in [files] if isinstance(files, str) else files:
        yield ENDINGS.get(ending_of(str(file)))
