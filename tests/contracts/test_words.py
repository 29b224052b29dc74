"""Names that were replaced by the field's own words stay out of the package; a class name has one meaning."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.contracts.rules import PACKAGE, REPOSITORY, offenders, source

RETIRED = {
    "Turns", "rotary_turns", "quieten_padding", "Resolved", "bias_hides", "look_around", "look_across", "_think",
    "at_least_float32", "finite_in_half", "write_stream", "Written", "Steps", "Dice", "chances", "Wishes", "Shelf",
    "room_in", "judge_tokens", "Judged", "Judge", "Needs", "Together", "Sums", "everywhere", "Kit", "rehearse", "Tally",
    "of_letters", "check_said", "Walk", "Leaf", "Looking", "memory_real", "forgets", "said", "find_place",
    "people", "pools", "read_complete", "reach", "BODY", "verb", "computing_verb", "Framed", "frame_row", "has_edits",
    "EDITS", "fate", "Fate", "_fewest", "_misfit", "faults", "settle_tie", "Identity", "HasIdentity", "identity_of",
    "export_remedy", "footnotes", "TRIANGLE", "SEVEN", "tally", "spell", "write_tag", "lm_weights", "LM_WEIGHTS",
    "calls_only_itself", "RECOMPUTES", "as_fairseq", "COMPILED_SAVES", "COMPILING", "takes_onednn", "takes_matvec",
    "takes_int8", "takes_packed", "takes_attend", "takes_transposed", "settle_format", "page_for", "thread_watches",
    "must", "wishes", "judged",
}  # fmt: skip
EXTREMES = ("MOST_", "LEAST_")  # beginnings of constants that are limits: MAX_ and MIN_


def names(code: str) -> Iterator[str]:
    """Every name that a module defines or uses."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]


def retired(path: Path) -> set[str]:
    return {name for name in names(source(path)) if name in RETIRED or name.startswith(EXTREMES)}


def noun_phrases(code: str) -> Iterator[str]:
    """Functions with a result whose docstring begins with an article instead of a verb; properties may."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.FunctionDef) or node.returns is None or ast.unparse(node.returns) == "None":
            continue
        first = (ast.get_docstring(node) or "").partition(" ")[0]
        decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
        if first in ("The", "A", "An") and not decorators & {"property", "cached_property", "contextmanager"}:
            yield node.name


def shared_names(classes: dict[str, list[str]]) -> dict[str, list[str]]:
    """Names of several classes, except those of facts and of the one module that is built from them."""

    def is_fact_and_module(packages: list[str]) -> bool:
        return len(packages) == 2 and packages[0] == "config" and packages[1] in ("models", "nn")

    return {name: where for name, where in classes.items() if len(where) > 1 and not is_fact_and_module(sorted(where))}


def class_names(code: str) -> Iterator[str]:
    """The classes of a module, and its names for types: ``Name = Literal[…]``; not ``Name = TypeVar("Name")``."""
    module = ast.parse(code)
    yield from (node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef))
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and not isinstance(node.value, ast.Call):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name for name in map(ast.unparse, targets) if re.fullmatch("[A-Z][a-z][A-Za-z]*", name))


def test_a_class_name_has_one_meaning() -> None:
    classes = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in class_names(source(path)):
            classes[name].append(path.relative_to(PACKAGE).parts[0])
    assert len(classes) > 200
    assert shared_names(classes) == {}


def test_a_shared_class_name_would_be_seen() -> None:
    classes = {"Stack": ["config", "models"], "Job": ["training", "viewer"], "Mask": ["nn"], "Norm": ["config"] * 2}
    assert set(shared_names(classes)) == {"Job", "Norm"}
    code = "class Job: ...\nFile = Annotated[str, 'a path']\nfile = open('x')\nItem = TypeVar('Item')\nIds: A = list\n"
    assert list(class_names(code)) == ["Job", "File", "Ids"]


def test_retired_names_stay_out() -> None:
    assert offenders(sorted(PACKAGE.rglob("*.py")), retired) == {}


def test_retired_names_stay_out_of_tests_and_benchmarks() -> None:
    found = offenders(
        sorted([*(REPOSITORY / "tests").rglob("*.py"), *(REPOSITORY / "benchmarks").rglob("*.py")]), retired
    )
    own = {path: names for path, names in found.items() if set(names) != {"Identity"}}  # torch.nn.Identity
    assert own == {}


def test_a_retired_name_would_be_seen() -> None:
    code = "class Kit:\n    def rehearse(self, chances): return self.turned.everywhere(Dice)\n"
    assert RETIRED.intersection(names(code)) == {"Kit", "rehearse", "chances", "everywhere", "Dice"}


def test_docstrings_say_what_a_function_does() -> None:
    assert offenders(sorted(PACKAGE.rglob("*.py")), lambda path: noun_phrases(source(path))) == {}


def test_a_docstring_without_a_verb_would_be_seen() -> None:
    code = 'def facts() -> int:\n    """{} facts."""\n'
    assert list(noun_phrases(code.format("The"))) == ["facts"]
    assert list(noun_phrases(code.format("Return the"))) == []
    assert list(noun_phrases("@property\n" + code.format("The"))) == []
