"""Texts to begin with for the model of a run: what the last samples in its log were made from."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

TEXTS = 4
WORDS = 12  # of a text that the model wrote itself
CHARACTERS = 400
MARKED = re.compile(r"\[[^\[\]:]+: ([^\[\]]*)\]")  # [PER: Marie Curie], as samples of a tagger have it


def run_texts(run: Path, mask: str | None) -> list[str]:
    """Return the texts of a run's last samples; none where it has no samples yet.

    ``mask``: the mask token, which takes the place of blanks.
    """
    newest = dict(_samples(run / "log.jsonl"))
    texts = [read_text(newest[number], mask) for number in sorted(newest)]
    return list(dict.fromkeys(filter(None, texts)))[:TEXTS]


def read_text(sample: str, mask: str | None) -> str:
    """Return what a sample was made from: its first line, or the beginning of a text that a language model wrote."""
    from glassformer.objectives.masking import BLANK

    if sample.startswith("→ "):  # the sentence of a tagger, with its tags
        text = MARKED.sub(r"\1", sample[2:].partition("\n")[0])
    elif "\n  " in sample.lstrip("\n"):  # the text, and what the model made of it in further lines
        text = sample.lstrip("\n").partition("\n")[0].partition(" | ")[0]
    else:
        line = next((line for line in sample.splitlines() if line.strip()), "")
        text = " ".join(line.split()[:WORDS])
    return (text if mask is None else text.replace(BLANK, mask)).strip()[:CHARACTERS]


def _samples(log: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of the samples of a log, as far as it can be read."""
    if not log.is_file():
        return
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if '"sample"' not in line:
                continue
            try:
                read = json.loads(line)
                yield int(read.get("number", 1)), str(read.get("text", ""))
            except (ValueError, AttributeError):  # half a line of a run that goes on, or another file
                return
