"""Translation by encoder-decoders: how the languages are said is the model's own affair, which they are the caller's.

A model is told its languages by tokens, or by words before the text; or it knows one pair only and is told nothing.
"""

from collections.abc import Sequence
from typing import Any

from glassformer.config.checks import Setting, SettingError
from glassformer.generation.prompts import Given, check_texts
from glassformer.generation.text import Text, generate_text
from glassformer.hub import Loaded
from glassformer.text.languages import Languages, languages_of
from glassformer.text.prefixes import Task, find_translation, tasks_of


def translate_text(
    loaded: Loaded,
    texts: Sequence[str],
    *,
    source: str | None = None,
    target: str | None = None,
    **options: Any,
) -> list[list[Text]]:
    """Translations of texts, in their order; ``options`` as for ``generate_text``.

    ``source`` and ``target`` are codes or names of languages: both for a model that knows several, neither for one that
    was trained for a single pair.
    """
    given, asked = prepare_translation(loaded, texts, source, target)
    return generate_text(loaded, given, **{**asked, **options})


def prepare_translation(
    loaded: Loaded, texts: Sequence[str], source: str | None, target: str | None
) -> tuple[list[Given], dict[str, Any]]:
    """What the encoder is to read, and the options that make the decoder write the target language."""
    check_texts(loaded, texts)
    if loaded.config.family != "encoder-decoder":
        raise ValueError(f"translate needs an encoder-decoder; this model's family is: {loaded.config.family}.")
    languages = languages_of(loaded.tokenizer, loaded.folder)
    if languages.ids:
        return [languages.source(text, source) for text in texts], _first_tokens(languages, target)
    tasks = {name: task for name, task in tasks_of(loaded.folder).items() if task.prefix.startswith("translate ")}
    if tasks:
        task = _task(tasks, source, target)
        return [task.write(text) for text in texts], {"task": task.options}
    if source is not None or target is not None:
        raise ValueError(
            f"this model is told no languages: its vocabulary has no tokens for them and its config.json no prefixes. "
            f"It translates as it was trained; leave out source={source!r} and target={target!r}."
        )
    return list(texts), {}


def _first_tokens(languages: Languages, target: str | None) -> dict[str, Any]:
    """What the decoder begins with."""
    if languages.starts_with_language:
        return {"start": [languages.resolve(_said(target))], "forced_first": None}
    return {"forced_first": languages.forced_first(target)}


def _said(target: str | None) -> str:
    if target is None:
        raise SettingError("say which language to translate into: {}.", Setting("target"))
    return target


def _task(tasks: dict[str, Task], source: str | None, target: str | None) -> Task:
    if source is None or target is None:
        known = ", ".join(repr(task.prefix) for task in tasks.values())
        template = "say both languages, {} and {}; this model's config.json states {}."
        raise SettingError(template, Setting("source"), Setting("target"), known)
    return find_translation(tasks, source, target)
