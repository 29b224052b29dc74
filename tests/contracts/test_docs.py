"""The guides agree with the package and with each other: snippets, recipes, titles, links, bounds."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator

import glassformer
from glassformer.families import lineages
from glassformer.loaded import NEEDS, Loaded
from glassformer.recipes.files import recipe_names
from tests.contracts.rules import REPOSITORY, offenders, source
from tests.contracts.test_imports import ORDER
from tests.parity.cases import CASES

GUIDES = sorted((REPOSITORY / "docs").glob("*.md"))
TEXTS = [*GUIDES, *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]


def snippets(text: str) -> list[str]:
    """The Python of a page: its python blocks, and what is typed in its pycon blocks."""
    typed = [
        "\n".join(line[4:] for line in block.splitlines() if line.startswith((">>> ", "... ")))
        for block in re.findall(r"```pycon\n(.*?)```", text, re.DOTALL)
    ]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL) + typed


def syntax_errors(text: str) -> list[str]:
    wrong = []
    for code in snippets(text):
        try:
            ast.parse(code)
        except SyntaxError as error:
            wrong.append(f"{error.text}: {error.msg}")
    return wrong


def test_python_in_the_documentation_parses() -> None:
    """test_readme.py runs it: the README's always, the guides' with the long tests."""
    assert sum(len(snippets(source(page))) for page in TEXTS) > 15
    assert offenders(TEXTS, lambda page: syntax_errors(source(page))) == {}


def calls(text: str) -> Iterator[ast.Call]:
    """The calls in a page's pycon blocks, which no test runs."""
    for block in re.findall(r"```pycon\n(.*?)```", text, re.DOTALL):
        (code,) = snippets(f"```pycon\n{block}```")
        yield from (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))


def called(call: ast.Call) -> Callable[..., object] | None:
    """The function of the root, or the method of a loaded model, that a call names; None: another one."""
    if not isinstance(call.func, ast.Attribute):
        return None
    owner, name = ast.unparse(call.func.value), call.func.attr
    if owner == "glassformer":
        return getattr(glassformer, name)
    return getattr(Loaded, name) if name in NEEDS else None


def misfit(call: ast.Call) -> str:
    """What is wrong with a call: an unknown function or argument, or one text for a list of texts; "" if nothing."""
    try:
        function = called(call)
        if function is None:
            return ""
        owner = [] if ast.unparse(call.func).startswith("glassformer.") else ["self"]
        signature = inspect.signature(function)
        bound = signature.bind(*owner, *call.args, **{str(word.arg): word.value for word in call.keywords})
    except (AttributeError, TypeError) as error:
        return str(error)
    texts = {name for name, value in bound.arguments.items() if isinstance(value, ast.Constant | ast.JoinedStr)}
    types = {name: str(signature.parameters[name].annotation) for name in texts}
    lists = [name for name, annotation in types.items() if re.match(r"(collections\.abc\.)?Sequence\[", annotation)]
    return f"{', '.join(lists)}: one text for a list of texts" if lists else ""


def wrong_calls(text: str) -> list[str]:
    return [f"{ast.unparse(call)}: {wrong}" for call in calls(text) if (wrong := misfit(call))]


def test_calls_that_no_test_runs_fit_their_functions() -> None:
    assert sum(1 for page in TEXTS for _ in calls(source(page))) >= 2
    assert offenders(TEXTS, lambda page: wrong_calls(source(page))) == {}


def test_a_wrong_snippet_would_be_seen() -> None:
    assert len(syntax_errors("```python\nsizes = {}  # the sizes model =\nTransformer(x) y = 1\n```")) == 1
    lines = ["glassformer.num_parameters()", "m.account(contxt=1)", "glassformer.trains()", 'm.translate("Hi")']
    assert len(wrong_calls("```pycon\n" + "".join(f">>> {line}\n" for line in lines) + "```")) == 3


def wrong_counts(text: str) -> list[str]:
    stated = re.findall(r"\b(\d+) (?:YAML )?recipes\b", text)
    return [f"{number} recipes" for number in stated if int(number) != len(recipe_names())]


def test_a_stated_number_of_recipes_is_that_of_the_files() -> None:
    assert wrong_counts("23 YAML recipes")
    assert offenders(TEXTS, lambda page: wrong_counts(source(page))) == {}


def test_the_table_of_recipes_has_them_all() -> None:
    table = source(REPOSITORY / "docs" / "training.md").partition("| recipes |")[2].partition("\n\n")[0]
    first = [row.split("|")[1] for row in table.splitlines()[2:]]
    listed = [name for cell in first for name in re.findall(r"`([\w-]+)`", cell)]
    assert sorted(listed) == sorted(recipe_names())


def test_titles_are_the_same_in_the_navigation_on_the_pages_and_in_the_links() -> None:
    stated = re.findall(r"^  - (.+): (\w+\.md)$", source(REPOSITORY / "mkdocs.yml"), re.MULTILINE)
    navigation = {page: title for title, page in stated if page != "index.md"}
    titles = {page.name: source(page).splitlines()[0].removeprefix("# ") for page in GUIDES if page.stem != "index"}
    links = re.findall(r"^\* \[(.+?)\]\((\w+\.md)\)", source(REPOSITORY / "docs" / "index.md"), re.MULTILINE)
    assert navigation == titles
    assert {page: title for title, page in links} == titles


def test_the_order_of_imports_is_stated_as_it_is() -> None:
    for page in (REPOSITORY / "docs" / "architecture.md", REPOSITORY / "CONTRIBUTING.md"):
        (stated,) = re.findall(r"`(config → [^`]+)`", source(page))
        assert stated.replace("\n", " ").split(" → ") == ORDER


def test_the_readme_states_the_bounds_of_parity_and_what_hugging_face_lacks() -> None:
    text = source(REPOSITORY / "README.md")
    assert {float(bound) for bound in re.findall(r"\b1e-\d+\b", text)} == {case.bound for case in CASES}
    (here,) = re.findall(r"\(all but ([^)]+)\)", text)
    names = {name.lower().replace("-", "").replace(" ", "") for name in here.split(", ")}
    assert names == {name for name, lineage in lineages().items() if lineage.model_type is None}
