"""A text cut into sentences; joined again they are the text, every character of it.

Limits: marks are all that is looked at. "e.g. this" is two sentences, as is "J. Smith"; a sentence without a full stop
goes on to the next mark or blank line. Text with one sentence per line is better cut by lines.
"""

import re
from typing import Literal

from glassformer.config.checks import check_choice

By = Literal["marks", "lines"]
# A full stop with what closes behind it, if white space follows; one of a script that has no spaces; a blank line.
_ENDS = {
    "marks": re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*|(?=\n[^\S\n]*\n)"),
    "lines": re.compile(r"(?=\n)"),
}


def cut_sentences(text: str, by: By = "marks") -> list[str]:
    """The sentences of a text, each with the white space before it; a text of white space is none.

    Args:
        text: any text.
        by: ``marks``: at . ! ? … before white space, after 。！？, and at blank lines. ``lines``: at ends of lines.
    """
    check_choice("by", by, _ENDS)
    found, start = [], 0
    for end in (*(match.end() for match in _ENDS[by].finditer(text)), len(text)):
        if text[start:end].strip():  # white space alone waits for what comes after it
            found.append(text[start:end])
            start = end
    if found:
        found[-1] += text[start:]
    return found
