"""Speeds on a GPU: ours, and what people use instead, measured in the same process.

Usage: python -m benchmarks.gpu [--rows a,b,c] [--out FOLDER] [--peer nanogpt=FOLDER] [--list] [--check] [--quick]
[--device cpu]. Each row runs in a process of its own, so that none depends on what another left; it writes
FOLDER/ROW.json. At the end FOLDER/table.md has the rows of the folder as one table. ``python -m benchmarks.report``
makes docs/performance.md from such files.

A row takes one to three minutes, most of it compiling.

--check measures nothing: it compares every fast path with the formula on random shapes and types, forward and backward,
and training steps as CUDA graphs and compiled whole. With --rows "TEXT;TEXT", only the checks whose names contain one
of the texts.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.check import run_checks
from benchmarks.gpu.peers import FROM_FOLDERS
from benchmarks.gpu.rows import Setup, all_rows, run_row
from benchmarks.hardware import describe
from benchmarks.report import read_results, table


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", help="names, separated by commas; all by default")
    options.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder for JSON files and the table")
    options.add_argument("--peer", action="append", default=[], metavar="NAME=FOLDER", help="where a peer is")
    options.add_argument("--device", default="cuda")
    options.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it runs; the numbers say nothing"
    )
    options.add_argument("--list", action="store_true", help="list the rows and exit")
    options.add_argument("--check", action="store_true", help="compare every fast path with the formula instead")
    options.add_argument("--minutes", type=float, default=4.0, help="after which a row is given up")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)  # measure here
    return options


def run_apart(name: str, asked: argparse.Namespace) -> str:
    """Measure a row in a process of its own; return why it failed, or nothing."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--child", "--rows", name, "--out", str(asked.out)]
    command += ["--device", asked.device, *(["--quick"] if asked.quick else [])]
    command += [part for peer in asked.peer for part in ("--peer", peer)]
    try:
        return "" if subprocess.run(command, timeout=60 * asked.minutes).returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        return f"took more than {asked.minutes:g} minutes"


def measure(names: list[str], setup: Setup, asked: argparse.Namespace) -> int:
    """Measure rows, then print and write the table of all rows in the folder; return how many failed."""
    failed = 0
    for name in names:
        start = time.perf_counter()
        if asked.child:
            run_row(name, setup, asked.out)
            continue
        problem = run_apart(name, asked)
        failed += bool(problem)
        print(f"{name}: {problem or 'measured'} in {time.perf_counter() - start:.0f} s", flush=True)
    if not asked.child:
        text = table(read_results(asked.out))
        (asked.out / "table.md").write_text(text, encoding="utf-8")
        print(text)
    return failed


def main() -> None:
    """Measure what was asked for."""
    options = parser()
    asked = options.parse_args()
    peers = dict(peer.split("=", 1) for peer in asked.peer if "=" in peer)
    if len(peers) != len(asked.peer):
        options.error(f"--peer takes NAME=FOLDER, got {asked.peer}.")
    if unknown_peers := peers.keys() - set(FROM_FOLDERS):
        options.error(f"no row has a peer called {', '.join(sorted(unknown_peers))}; known: {', '.join(FROM_FOLDERS)}.")
    if asked.check:
        print(describe())
        sys.exit(run_checks(asked.device, quick=asked.quick, only=asked.rows or ""))
    rows = all_rows()
    if asked.list:
        print("\n".join(f"{name:24}{entry.group}" for name, entry in rows.items()))
        return
    names = [*rows] if asked.rows is None else asked.rows.split(",")
    if unknown := [name for name in names if name not in rows]:
        options.error(f"there is no row called {', '.join(unknown)}; --list shows all.")
    setup = Setup(device=asked.device, quick=asked.quick, peers={name: Path(at) for name, at in peers.items()})
    asked.out.mkdir(parents=True, exist_ok=True)
    sys.exit(1 if measure(names, setup, asked) else 0)


if __name__ == "__main__":
    main()
