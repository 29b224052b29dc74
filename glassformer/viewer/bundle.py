"""Joins the ES modules of the page into one classic script, because browsers load no modules from ``file://``.

Each module becomes a function that is called once, after those that it imports. Only the forms of import and export
below are understood, each at the beginning of a line; everything else is an error that names file and line. An import
is a copy of the exported value, made when the module is run: modules do not import each other in a circle, and export
no variables that change.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

NAME = r"[A-Za-z_$][\w$]*"
_WHAT = rf"(?P<default>{NAME})|\* as (?P<all>{NAME})|\{{(?P<names>[^}}]*)\}}"
IMPORT = re.compile(rf'^import (?:(?:{_WHAT}) from )?"(?P<path>[^"\n]+)";?[ \t]*$', re.MULTILINE)
_FUNCTION = rf"(?:async )?function\*? (?P<function>{NAME})"
_KINDS = rf"{_FUNCTION}|class (?P<class>{NAME})|const (?P<const>{NAME})\b"
DECLARED = re.compile(rf"^export (?={_KINDS})", re.MULTILINE)
DEFAULT = re.compile(rf"^export default (?:(?P<start>{_FUNCTION})|(?!class {NAME}))", re.MULTILINE)
LIST = re.compile(r"^export \{(?P<names>[^}]*)\};?[ \t]*$", re.MULTILINE)
REST = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)
COMMENTS = re.compile(r"/\*.*?\*/|(?<![:\"'`\\])//[^\n]*", re.DOTALL)
DYNAMIC = re.compile(r"\bimport\s*[(.]")


class BundleError(ValueError):
    """A script that cannot be joined."""


def bundle(sources: Mapping[str, str], entry: str) -> str:
    """Return one script that does what the module ``entry`` does.

    Args:
        sources: the text of every module by its path, ``js/main.js``.
        entry: the path of the module that starts the page.
    """
    order: list[str] = []
    _visit(sources, entry, order, [])
    numbers = {path: number for number, path in enumerate(order)}
    parts = ["(function () {", '"use strict";']
    for path in order:
        parts.append(
            f"// {path}\nconst $module{numbers[path]} = (function () {{\n{_rewrite(path, sources[path], numbers)}}})();"
        )
    return "\n".join([*parts, "})();"]) + "\n"


def imports_of(path: str, source: str) -> list[str]:
    """Return the paths of the modules that a module imports."""
    return [_resolve(path, found["path"]) for found in IMPORT.finditer(source)]


def _visit(sources: Mapping[str, str], path: str, order: list[str], above: list[str]) -> None:
    """Put a module after those that it imports."""
    if path in order:
        return
    if path in above:
        circle = " → ".join([*above[above.index(path) :], path])
        raise BundleError(f"modules import each other in a circle: {circle}.")
    if path not in sources:
        raise BundleError(f"{above[-1] if above else 'the page'} imports {path}, which does not exist.")
    for imported in imports_of(path, sources[path]):
        _visit(sources, imported, order, [*above, path])
    order.append(path)


def _resolve(path: str, imported: str) -> str:
    if not imported.startswith(("./", "../")):
        raise BundleError(f"{path} imports {imported!r}; only relative paths are possible.")
    parts: list[str] = []
    for part in (PurePosixPath(path).parent / imported).parts:
        if part == "..":
            if not parts:
                raise BundleError(f"{path} imports {imported!r}, which is outside the page.")
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _rewrite(path: str, source: str, numbers: Mapping[str, int]) -> str:
    """Return the body of the function that stands for a module."""
    exported: dict[str, str] = {}

    def take_import(found: re.Match[str]) -> str:
        module = f"$module{numbers[_resolve(path, found['path'])]}"
        lines = "\n" * found[0].count("\n")  # so that lines keep their numbers
        if found["default"]:
            return f"const {found['default']} = {module}.default;{lines}"
        if found["all"]:
            return f"const {found['all']} = {module};{lines}"
        names = ", ".join(f"{a}: {b}" if a != b else a for a, b in _names(path, found["names"] or ""))
        return f"const {{{names}}} = {module};{lines}" if names else lines

    def take_declaration(found: re.Match[str]) -> str:
        name = found["function"] or found["class"] or found["const"]
        exported[name] = name
        return ""

    def take_default(found: re.Match[str]) -> str:
        exported["default"] = "$default"
        named = found["function"]
        return f"const $default = {named}; {found['start']}" if named else "const $default = "

    def take_list(found: re.Match[str]) -> str:
        exported.update({b: a for a, b in _names(path, found["names"])})
        return "\n" * found[0].count("\n")

    body = IMPORT.sub(take_import, source)
    for pattern, take in ((DECLARED, take_declaration), (DEFAULT, take_default), (LIST, take_list)):
        body = pattern.sub(take, body)
    _check_rest(path, body)
    shown = ", ".join(f"{name}: {value}" if name != value else name for name, value in exported.items())
    return f"{body.rstrip()}\nreturn {{{shown}}};\n"


def _names(path: str, text: str) -> list[tuple[str, str]]:
    """Return the pairs of ``a, b as c``: [(a, a), (b, c)]."""
    pairs = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        found = re.fullmatch(rf"({NAME})(?:\s+as\s+({NAME}))?", item)
        if found is None:
            raise BundleError(f"{path}: {item!r} is no name in an import or export.")
        pairs.append((found[1], found[2] or found[1]))
    return pairs


def _check_rest(path: str, body: str) -> None:
    """Raise if there is an import or export that was not understood."""
    without = COMMENTS.sub(lambda comment: "\n" * comment[0].count("\n"), body)
    for pattern in (REST, DYNAMIC):
        if (found := pattern.search(without)) is not None:
            line = without.count("\n", 0, found.start()) + 1
            raise BundleError(f"{path}, line {line}: {found[0].strip()[:60]!r} is a form that cannot be joined.")
