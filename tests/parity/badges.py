"""The numbers of docs/parity.md by lineage, as the viewer shows them: glassformer/viewer/parity.json."""

import json
from pathlib import Path
from typing import Any

from glassformer.families import lineages

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
FILE = Path(__file__).parents[2] / "glassformer" / "viewer" / "parity.json"


def badges(page: str) -> dict[str, dict[str, Any]]:
    """For each lineage in the table: the bound, the largest differences, and the number of models compared."""
    classes = {form.architecture: name for name, lineage in lineages().items() for form in lineage.heads.values()}
    found: dict[str, dict[str, Any]] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 8 or cells[1] not in classes:
            continue
        bound, *gaps, single, half = map(float, cells[2:])
        badge = found.setdefault(
            classes[cells[1]], {"bound": 0.0, "error": 0.0, "float32": 0.0, "bfloat16": 0.0, "cases": 0}
        )
        for name, value in (("bound", bound), ("error", max(gaps)), ("float32", single), ("bfloat16", half)):
            badge[name] = max(badge[name], value)
        badge["cases"] += 1
    return found


def write() -> None:
    """Write the file of the viewer from the page."""
    text = json.dumps(badges(PAGE.read_text(encoding="utf-8")), indent=1, sort_keys=True)
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
