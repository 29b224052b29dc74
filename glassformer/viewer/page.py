"""The page as HTML: for the server, or as one file with everything inside it."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from glassformer.viewer.bundle import bundle
from glassformer.viewer.encode import script_json

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".woff2": "font/woff2",
}
BOOTSTRAP = "<!-- bootstrap -->"
STYLE = '<link rel="stylesheet" href="static/style.css">'
SCRIPT = '<script type="module" src="static/js/main.js"></script>'
CHARSET = '<meta charset="utf-8">'


@cache
def static_files() -> dict[str, tuple[Path, str]]:
    """Return the files that may be served, by their path below ``static/``, with their type.

    Nothing else is ever read.
    """
    files = sorted(path for path in STATIC.rglob("*") if path.is_file() and path.suffix in TYPES)
    return {path.relative_to(STATIC).as_posix(): (path, TYPES[path.suffix]) for path in files}


def served_page(bootstrap: dict[str, Any]) -> str:
    """Return the page for the server, which loads its scripts from there."""
    return _replace_once(_index(), BOOTSTRAP, bootstrap_element(bootstrap))


def whole_page(bootstrap: dict[str, Any]) -> str:
    """Return the page with its scripts, styles and answers inside it: no part of it comes from anywhere else.

    The policy in its head lets the browser run these scripts and styles, known by their hashes, and nothing else.
    """
    script = inline_script()
    style = re.sub("</(?=style)", r"<\\/", (STATIC / "style.css").read_text(encoding="utf-8"), flags=re.IGNORECASE)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    html = _replace_once(
        _index(), CHARSET, f'{CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    )
    html = _replace_once(html, STYLE, f"<style>{style}</style>")
    html = _replace_once(html, SCRIPT, f"<script>{script}</script>")
    return _replace_once(html, BOOTSTRAP, bootstrap_element(bootstrap))


def inline_script() -> str:
    """Return the modules of the page as one script that is safe to inline in a ``<script>``."""
    script = bundle(module_sources(), "js/main.js")
    return re.sub("<(?=/script|script|!--)", r"\\x3c", script, flags=re.IGNORECASE)


def module_sources() -> dict[str, str]:
    """Return the text of every module by its path."""
    files = {path: file for path, (file, _) in static_files().items() if file.suffix == ".js"}
    return {path: file.read_text(encoding="utf-8") for path, file in files.items()}


def bootstrap_element(bootstrap: dict[str, Any]) -> str:
    """Return the data that the script starts from, as inert JSON in a ``<script>``."""
    return f'<script type="application/json" id="bootstrap">{script_json(bootstrap)}</script>'


def _index() -> str:
    return (STATIC / "index.html").read_text(encoding="utf-8")


def _replace_once(html: str, old: str, new: str) -> str:
    """Replace the one occurrence of an element; raise if there is none, or several."""
    before, found, after = html.partition(old)
    if not found or old in after:
        raise ValueError(f"index.html must have {old} exactly once.")
    return before + new + after


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
