"""A task shown by examples: prompts that hold a few questions with their answers, then a question without one.

Examples are rows of a JSON Lines file: objects with ``input`` and ``output``, or ``prompt`` and ``completion``, or
``question`` and ``answer``.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glassformer.generation.prompts import check_texts
from glassformer.generation.text import Text, generate_text
from glassformer.hub import Loaded

KEYS = (("input", "output"), ("prompt", "completion"), ("question", "answer"))
TEMPLATE = "{input}\n{output}\n\n"


@dataclass(frozen=True)
class Example:
    """One question with its answer."""

    input: str
    output: str


@dataclass(frozen=True)
class FewShot:
    """How examples are written out. What stands after ``{output}`` parts them, and ends the model's answer."""

    examples: tuple[Example, ...]
    template: str = TEMPLATE

    def __post_init__(self) -> None:
        unknown = set(re.findall(r"\{\w+\}", self.template)) - {"{input}", "{output}"}
        if unknown:
            raise ValueError(
                f"a template's fields are {{input}} and {{output}}, and {self.template!r} also has "
                f"{', '.join(sorted(unknown))}; write that without braces."
            )
        if self.template.count("{input}") != 1 or self.template.count("{output}") != 1:
            raise ValueError(f"a template holds {{input}} once and {{output}} once, got {self.template!r}.")
        if self.template.index("{output}") < self.template.index("{input}"):
            raise ValueError(f"{{input}} comes before {{output}} in a template, got {self.template!r}.")
        if not self.separator:
            raise ValueError(
                f"the template {self.template!r} ends with {{output}}, so that nothing says where an answer ends; "
                r"put something after it, such as two line breaks."
            )
        if not self.examples:
            raise ValueError("there are no examples; a task is shown by at least one.")

    @property
    def separator(self) -> str:
        """What ends an answer."""
        return self.template.partition("{output}")[2]

    def prompt(self, text: str) -> str:
        """The examples and a text without its answer.

        Spaces before the answer are left to the model, as they are part of its first word to most tokenizers.
        """
        shown = "".join(self._question(one.input) + one.output + self.separator for one in self.examples)
        return shown + self._question(text).rstrip(" ")

    def _question(self, text: str) -> str:
        before, _, rest = self.template.partition("{input}")
        return before + text + rest.partition("{output}")[0]


def read_examples(path: Path | str) -> tuple[Example, ...]:
    """The examples in a JSON Lines file; a bad row is an error that names file and line."""
    found = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            found.append(_example(line, f"{path}, line {number}"))
    if not found:
        raise ValueError(f"{path} holds no examples.")
    return tuple(found)


def answer_like(loaded: Loaded, shown: FewShot, texts: Sequence[str], **options: Any) -> list[list[Text]]:
    """Answers to texts in the manner of the examples, in their order; ``options`` as for ``generate_text``."""
    check_texts(loaded, texts)
    given = options.pop("stop", ())
    stop = [*([given] if isinstance(given, str) else given), shown.separator]
    found = generate_text(loaded, [shown.prompt(text) for text in texts], stop=stop, **options)
    return [[replace(text, text=text.text.lstrip(" ")) for text in some] for some in found]


def _example(line: str, where: str) -> Example:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON ({error}).") from error
    for first, second in KEYS:
        if isinstance(row, dict) and {first, second} <= row.keys():
            if not (isinstance(row[first], str) and isinstance(row[second], str)):
                raise ValueError(
                    f"{where}: {first} and {second} must be texts, got {row[first]!r} and {row[second]!r}."
                )
            return Example(row[first], row[second])
    known = ", or ".join(" and ".join(pair) for pair in KEYS)
    raise ValueError(f"{where}: an example is an object with {known}; got {line.strip():.60}")
