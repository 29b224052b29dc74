"""The adapters that docs/course.md shows, as it shows them."""

import re
from types import SimpleNamespace

from tests.contracts.rules import REPOSITORY, source

PAGE = source(REPOSITORY / "docs" / "course.md")


def documented() -> SimpleNamespace:
    """What the page's first snippet defines."""
    names: dict[str, object] = {}
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    exec(compile(code, "docs/course.md", "exec"), names)
    return SimpleNamespace(**names)


adapters = documented()
