"""Plain text without a tokenizer: sentences, text to display, and a corpus that needs no download."""

import re
import unicodedata
from typing import Literal

from glassformer.config.checks import check_choice

By = Literal["marks", "lines"]
# "marks": a full stop with closing quotes or brackets before white space; one of a script without spaces; a blank line.
_ENDS = {
    "marks": re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*|(?=\n[^\S\n]*\n)"),
    "lines": re.compile(r"(?=\n)"),
}


def cut_sentences(text: str, by: By = "marks") -> list[str]:
    """Split a text into sentences, each with the white space before it; joined again they are the text.

    Only punctuation is considered: "e.g. this" is two sentences, as is "J. Smith", and a sentence without a full stop
    goes on to the next mark or blank line. Split text with one sentence per line by lines. White space alone gives no
    sentence.

    Args:
        text: any text.
        by: ``marks``: at . ! ? … before white space, after 。！？, and at blank lines. ``lines``: at ends of lines.
    """
    check_choice("by", by, _ENDS)
    sentences, start = [], 0
    for end in (*(match.end() for match in _ENDS[by].finditer(text)), len(text)):
        if text[start:end].strip():  # white space alone goes to the next sentence
            sentences.append(text[start:end])
            start = end
    if sentences:
        sentences[-1] += text[start:]
    return sentences


def visible(text: str, keep: str = "\n\t") -> str:
    """Return text that is safe on a terminal: control characters other than ``keep`` become a dot."""
    return "".join(c if c in keep or unicodedata.category(c) not in ("Cc", "Cs") else "·" for c in text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 layer``, ``12 layers``."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def python_topics() -> list[str]:
    """Return the topics of Python's ``help()``, about half a megabyte of English and code.

    Tables and underlines are left out. The text differs a little between versions of Python, and minimal installations
    do not have it.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise RuntimeError(
            "this Python comes without pydoc_data.topics, the text of help(). On Debian and Ubuntu install "
            "libpython3-stdlib; elsewhere use a full Python."
        ) from error
    drawings = ("+-", "+=", "|", "==", "**", "--")
    return [
        "\n".join(line for line in topics[name].splitlines() if not line.startswith(drawings))
        for name in sorted(topics)
    ]


def python_documentation() -> bytes:
    """Return all topics, joined by blank lines, as UTF-8 bytes."""
    return "\n\n".join(python_topics()).encode()
