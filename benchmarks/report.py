"""docs/performance.md, made from the stored results of ``benchmarks.gpu``.

Usage: python -m benchmarks.report [FOLDER] writes the page from the JSON files in benchmarks/results/gpu; those of
FOLDER are first copied there. A test holds that the page in the repository is the one that this writes.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "gpu", ROOT / "docs" / "performance.md"
GROUPS = ("training", "encoding", "long context")
HEADER = """\
# Performance

This page is made by `python -m benchmarks.report` from the JSON files in `benchmarks/results/gpu`, which
`python -m benchmarks.gpu` writes. Glassformer and its peers run in one process, one after the other, on the same
inputs; times are medians of {timed} steps after {untimed} warm-up steps. Training has dropout 0, bfloat16 by autocast,
fused AdamW and clipped gradients; Glassformer is trained by its own Trainer, as a recipe uses it. *Of ceiling*: the
share of the speed that would be possible if all products of a step ran at the measured rate of a large product, and
AdamW at that of a copy. *Ratio*: Glassformer's speed divided by that row's.
"""
Page = Mapping[str, Any]


def missing(pages: Iterable[Page]) -> str:
    """Return a line with the registered rows that no page has."""
    from benchmarks.gpu.rows import all_rows

    known = {page["row"] for page in pages}
    names = [f"`{name}`" for name in sorted(all_rows()) if name not in known]
    return f"\nNot measured yet: {', '.join(names)}.\n" if names else ""


def read_results(folder: Path) -> list[Page]:
    """Return the stored rows of a folder, by group and name."""
    pages = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return sorted(pages, key=lambda page: (GROUPS.index(page["group"]), page["row"]))


def hardware_lines(pages: Iterable[Page]) -> list[str]:
    """Return one line per machine and versions that any row was measured with."""
    measured: dict[str, list[Page]] = {}
    for page in pages:
        versions = ", ".join(f"{name} {version}" for name, version in page["versions"].items())
        measured.setdefault(f"{page['hardware']['device']}; {versions}", []).append(page)
    return [f"{machine}. Ceilings measured: {_ceilings(rows)}." for machine, rows in measured.items()]


def _ceilings(pages: list[Page]) -> str:
    """Return what the device reached when rows were measured: products, copies and the date of each session."""
    sessions = {
        (
            page["date"],
            f"{page['hardware']['product_flops'] / 1e12:.0f} TFLOP/s",
            f"{page['hardware']['copy_bytes'] / 1e12:.1f} TB/s",
        )
        for page in pages
    }
    return "; ".join(f"{products}, {copies} ({date})" for date, products, copies in sorted(sessions))


def table(pages: list[Page]) -> str:
    """Return hardware, versions and all rows in Markdown."""
    lines = [*hardware_lines(pages), ""] if pages else ["No row is measured yet."]
    for group in GROUPS:
        rows = [page for page in pages if page["group"] == group]
        if rows:
            lines += [f"## {group.capitalize()}", ""]
        for page in rows:
            lines += [f"**{page['title']}** (`{page['row']}`): {page['settings']}.", "", *row_table(page), ""]
    return "\n".join(lines).rstrip() + "\n"


def row_table(page: Page) -> list[str]:
    """Return the contestants of one row as a table, and its further values."""
    unit, ours = page["unit"], page["measurements"][0]
    lines = [f"| | {unit}/s | time | memory | of ceiling | ratio |", "|---|---|---|---|---|---|"]
    for found in page["measurements"]:
        if found["rate"] is None:
            lines.append(f"| {found['name']} | {found['note']} | | | | |")
            continue
        floor = page["floor_seconds"]
        share = "" if floor is None else f"{floor / found['seconds']:.0%}"
        ratio = "" if found is ours or ours["rate"] is None else f"{ours['rate'] / found['rate']:.2f}"
        memory = "" if found["peak_bytes"] is None else f"{found['peak_bytes'] / 2**30:.1f} GiB"
        cells = (found["name"], f"{found['rate']:,.0f}", _time(found["seconds"]), memory, share, ratio)
        lines.append(f"| {' | '.join(cells)} |")
    if page["values"]:
        lines += ["", "; ".join(f"{name}: {value:.3g}" for name, value in page["values"].items()) + "."]
    return lines


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def page_text(folder: Path = RESULTS) -> str:
    """Return docs/performance.md."""
    from benchmarks.gpu.timing import TIMED, UNTIMED

    pages = read_results(folder)
    return HEADER.format(timed=TIMED, untimed=UNTIMED) + "\n" + table(pages) + missing(pages)


def main() -> None:
    """Write the page."""
    if len(sys.argv) > 1:
        RESULTS.mkdir(parents=True, exist_ok=True)
        for path in Path(sys.argv[1]).glob("*.json"):
            shutil.copy(path, RESULTS)
    PAGE.write_text(page_text(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
