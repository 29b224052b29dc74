"""Makes the pictures of the documentation from the real thing.

Usage: python docs/pictures.py [WIDTH FILE.svg], which draws ``glassformer demo`` on a terminal of that many columns;
without arguments, it writes docs/images/demo.svg.
"""

import io
import os
import re
import sys
from contextlib import redirect_stdout
from html import escape, unescape
from itertools import groupby
from pathlib import Path
from unittest import mock

from rich.cells import cell_len
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from glassformer.cli.main import app

IMAGES = Path(__file__).parent / "images"
CHARACTER = 12.2  # width of a column in rich's drawings
_TEXT = re.compile(r'<text ([^>]*)x="([\d.]+)" (y="[\d.]+") textLength="[\d.]+" ([^>]*)>([^<]*)</text>')


class Screen(io.StringIO):
    """What a program prints on a terminal, with its control codes."""

    def isatty(self) -> bool:
        """Yes, so that the program prints colours and breaks lines."""
        return True


def printed(command: str, width: int) -> str:
    """What a command of the program prints on a terminal of so many columns."""
    terminal = {"COLUMNS": str(width), "TERM": "xterm-256color"}
    no_browser = mock.patch("glassformer.cli.demo.has_browser", return_value=False)
    with mock.patch.dict(os.environ, terminal), no_browser, redirect_stdout(Screen()) as screen:
        app(command.split()[1:], prog_name="glassformer", standalone_mode=False)
    return screen.getvalue()


def draw(command: str, width: int, path: Path) -> None:
    """Draw a terminal with a command and what it prints."""
    console = Console(record=True, width=width, highlight=False, file=io.StringIO())
    console.print(f"$ {command}", style="bold")
    console.print(Text.from_ansi(printed(command, width)))
    svg = console.export_svg(title=command, theme=DIMMED_MONOKAI)
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # the reader's own monospace font, not a download
    path.write_text(_TEXT.sub(_split, svg), encoding="utf-8")


def _split(found: re.Match[str]) -> str:
    """A run of text with its wide characters apart, each of two columns: rich gives them one."""
    style, x, y, clip, content = found.groups()
    elements, left = [], float(x)
    for _, characters in groupby(unescape(content), cell_len):
        text = "".join(characters)
        width = cell_len(text) * CHARACTER
        shown = escape(text).replace("\xa0", "&#160;")
        elements.append(f'<text {style}x="{left:g}" {y} textLength="{width:g}" {clip}>{shown}</text>')
        left += width
    return "".join(elements)


if __name__ == "__main__":
    columns, file = (int(sys.argv[1]), Path(sys.argv[2])) if len(sys.argv) == 3 else (96, IMAGES / "demo.svg")
    draw("glassformer demo", columns, file)
