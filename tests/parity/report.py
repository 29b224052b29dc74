"""``make parity``: the largest difference from Hugging Face for every lineage and precision, as docs/parity.md.

The viewer shows these numbers, too (``badges``).

Exits with 1 if one is past its bound.
"""

import os
import platform
import sys
import tempfile
from pathlib import Path

# Some virtual machines advertise AMX and then stop the process at its first instruction. Read when torch is first used.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
import transformers
from rich.console import Console
from rich.table import Table

from tests.parity import badges
from tests.parity.cases import CASES
from tests.parity.harness import BOUNDS, Case, Pair

SIDES = ("none", "right", "left")
PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
INTRODUCTION = """# Parity

How far Glassformer's numbers are from Hugging Face's: the largest difference of the model's output and of all hidden
states, at real tokens. The models are tiny, with every parameter randomised. The columns are: without padding, with
padding on the right and with padding on the left, in float64; then float32 and bfloat16, with padding on the right and
both libraries in that precision.

The bound in float64 is `1e-9`, or `1e-5` where the reference itself computes in float32 (norms, angles, softmax).
In float32 the bound is {float32:g}, in bfloat16 {bfloat16:g}.

"""


def measure(case: Case) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair.make(case, Path(folder))
        tokens, targets = pair.inputs()
        exact = [pair.compare(tokens, targets, side) for side in SIDES]
        return exact + [pair.cast(dtype).compare(tokens, targets, "right") for dtype in BOUNDS]


def main() -> int:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    table = Table("model", "class", "bound", "no padding", "right", "left", "float32", "bfloat16")
    lines = ["| model | class | bound | no padding | right | left | float32 | bfloat16 |", "|" + "---|" * 8]
    failures = 0
    for case in CASES:
        gaps = measure(case)
        limits = [case.bound] * len(SIDES) + list(BOUNDS.values())
        failures += sum(not gap <= limit for gap, limit in zip(gaps, limits, strict=True))
        cells = [case.name, case.architecture, f"{case.bound:g}", *(f"{gap:.0e}" for gap in gaps)]
        table.add_row(*cells)
        lines.append(f"| {' | '.join(cells)} |")
    Console(width=140).print(table)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}"
    bounds = {str(dtype).removeprefix("torch."): bound for dtype, bound in BOUNDS.items()}
    page = INTRODUCTION.format(**bounds) + "\n".join(lines) + f"\n\nMade by `make parity` with {versions} on the CPU.\n"
    PAGE.write_text(page, encoding="utf-8")
    badges.write()
    print(f"{len(CASES)} models, {failures} differences past their bound; wrote {PAGE}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
