"""Makes the pictures of the documentation from the real thing. Usage: python docs/pictures.py"""

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from glassformer.cli.demo import LoadOptions, run

IMAGES = Path(__file__).parent / "images"


def demo() -> None:
    """What ``make demo`` prints, as a drawn terminal."""
    console = Console(record=True, width=96, highlight=False, file=io.StringIO())
    console.print("$ make demo", style="bold")
    run(console, LoadOptions(seconds=60.0, steps=None, prompt="The ", length=400, temperature=0.7, seed=0))
    svg = console.export_svg(title="glassformer demo", theme=DIMMED_MONOKAI)
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # the reader's own monospace font, not a download
    (IMAGES / "demo.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    demo()
