"""Tasks that are told in words: T5 reads ``translate English to German: …`` or ``summarize: …``, and answers.

Which words a model was trained with, its ``config.json`` says under ``task_specific_params``, beside the options of
generating that suit the task (``max_length``, ``num_beams``, ``length_penalty``, ``early_stopping`` …).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from glassformer.text.tokenizer_folder import read_json

# ISO 639-1 and the English name, as the prefixes write it.
_NAMES = """
    ar Arabic; bg Bulgarian; bn Bengali; ca Catalan; cs Czech; da Danish; de German; el Greek; en English; es Spanish;
    et Estonian; fa Persian; fi Finnish; fr French; ga Irish; he Hebrew; hi Hindi; hr Croatian; hu Hungarian;
    id Indonesian; is Icelandic; it Italian; ja Japanese; ko Korean; lt Lithuanian; lv Latvian; mt Maltese; nl Dutch;
    no Norwegian; pl Polish; pt Portuguese; ro Romanian; ru Russian; sk Slovak; sl Slovenian; sr Serbian; sv Swedish;
    sw Swahili; ta Tamil; th Thai; tr Turkish; uk Ukrainian; ur Urdu; vi Vietnamese; zh Chinese
"""
NAMES: dict[str, str] = dict(entry.split() for entry in _NAMES.split(";"))


@dataclass(frozen=True)
class Task:
    """What stands before a text to say the task, and the options of generating, as config.json has them."""

    prefix: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, text: str) -> str:
        """The text with the prefix before it, once."""
        return text if text.startswith(self.prefix) else self.prefix + text


def tasks_of(folder: Path | str) -> dict[str, Task]:
    """The tasks in a folder's ``config.json``, empty where it names none. A task without a prefix has an empty one."""
    path = Path(folder) / "config.json"
    said = read_json(path).get("task_specific_params") or {}
    if not isinstance(said, dict) or not all(isinstance(options, dict) for options in said.values()):
        raise ValueError(f"{path}: task_specific_params must be an object with an object per task, got {said!r}.")
    tasks = {}
    for name, options in said.items():
        prefix = options.get("prefix", "")
        if not isinstance(prefix, str):
            raise ValueError(f"{path}: the prefix of the task {name!r} must be text, got {prefix!r}.")
        tasks[name] = Task(prefix, {key: value for key, value in options.items() if key != "prefix"})
    return tasks


def find_task(tasks: Mapping[str, Task], name: str) -> Task:
    """The task of a name; one that the model does not state is an error that says which it does."""
    if name not in tasks:
        known = f"It states {', '.join(tasks)}." if tasks else "It states none."
        raise ValueError(f"this model's config.json has no task {name!r}. {known} Another prefix: Task('words: ').")
    return tasks[name]


def find_translation(tasks: Mapping[str, Task], source: str, target: str) -> Task:
    """The task that translates from one language to another, by their names or codes."""
    prefix = translation_prefix(source, target)
    for task in tasks.values():
        if task.prefix == prefix:
            return task
    known = [repr(task.prefix) for task in tasks.values() if task.prefix.startswith("translate ")]
    raise ValueError(f"this model's config.json has no {prefix!r}; its translations: {', '.join(known) or 'none'}.")


def translation_prefix(source: str, target: str) -> str:
    """``translate English to German: `` from ``en`` and ``de`` or ``English`` and ``German``."""
    names = [_name(language) for language in (source, target)]
    if names[0] == names[1]:
        raise ValueError(f"source and target must be two languages; both {source!r} and {target!r} are {names[0]}.")
    return f"translate {names[0]} to {names[1]}: "


def _name(language: str) -> str:
    names = NAMES | {name.lower(): name for name in NAMES.values()}
    found = names.get(language.lower())
    if found is None:
        near = get_close_matches(language.lower(), names, n=3)
        hint = f" Nearest: {', '.join(repr(names[name]) for name in near)}." if near else ""
        raise ValueError(f"{language!r} is not one of the {len(NAMES)} languages that are known by name or code.{hint}")
    return found
