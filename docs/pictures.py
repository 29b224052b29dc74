"""Makes the pictures of the documentation from the real thing. Usage: python docs/pictures.py"""

import io
from pathlib import Path

from rich.console import Console

from glassformer.cli.demo import Wishes, run

IMAGES = Path(__file__).parent / "images"


def demo() -> None:
    """The terminal after ``make demo``."""
    console = Console(record=True, width=96, force_terminal=True, highlight=False, file=io.StringIO())
    console.print("$ make demo", style="bold")
    run(console, Wishes(seconds=60.0, steps=None, prompt="The ", length=400, temperature=0.7, seed=0))
    console.save_svg(str(IMAGES / "demo.svg"), title="glassformer demo")


if __name__ == "__main__":
    demo()
