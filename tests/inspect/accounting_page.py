"""Runs the commands of docs/accounting.md and writes their output below them.

``python -m tests.inspect.accounting_page`` rewrites the page and its plots; with a folder as argument, into that.
"""

import re
import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

from glassformer.cli.main import app

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "accounting.md"
PICTURES = "docs/images"
BLOCK = re.compile(r"```console\n\$ (glassformer .*)\n(?:.*\n)*?```")


def refreshed(page: str, pictures: Path) -> str:
    """The page with the output of every command; plots are written to a folder."""
    return BLOCK.sub(lambda match: f"```console\n$ {match[1]}\n{output(match[1], pictures)}```", page)


def output(command: str, pictures: Path) -> str:
    """What a command prints, notes included, for a terminal of 100 columns."""
    arguments = shlex.split(command.replace(PICTURES, str(pictures)))[1:]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"}, color=False)
    assert result.exit_code == 0, f"{command}: {result.output}"
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    notes = re.sub(r"note: wrote\s+\S+\n", "", result.stderr).splitlines()
    return "\n".join([*notes, *lines]) + "\n"


def main(folder: str | None = None) -> None:
    page, pictures = (PAGE, REPOSITORY / PICTURES) if folder is None else (Path(folder) / PAGE.name, Path(folder))
    page.write_text(refreshed(PAGE.read_text(encoding="utf-8"), pictures), encoding="utf-8")
    print(f"wrote {page}")


if __name__ == "__main__":
    main(*sys.argv[1:])
