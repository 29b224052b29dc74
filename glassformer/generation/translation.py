"""Translation by encoder-decoders: ``translate_text`` is ``glassformer.translate``.

Some models read the languages from tokens, others from words before the text; a model of a single pair of languages
needs neither.
"""

from collections.abc import Callable, Sequence
from typing import Any, Unpack, cast, overload

from glassformer.config.checks import Setting, SettingError
from glassformer.config.options import lists_options
from glassformer.generation.prompts import PromptInput, check_texts
from glassformer.generation.settings import TextOptions
from glassformer.generation.text import Text, generate_text
from glassformer.hub import Loaded
from glassformer.loaded import check_ability
from glassformer.text.languages import Languages, languages_of
from glassformer.text.prefixes import Task, find_translation, tasks_of


@overload
def translate_text(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
    loaded: Loaded,
    texts: str,
    *,
    source: str | None = None,
    target: str | None = None,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[TextOptions],
) -> Text: ...


@overload
def translate_text(
    loaded: Loaded,
    texts: Sequence[str],
    *,
    source: str | None = None,
    target: str | None = None,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[TextOptions],
) -> list[list[Text]]: ...


@lists_options
def translate_text(
    loaded: Loaded,
    texts: str | Sequence[str],
    *,
    source: str | None = None,
    target: str | None = None,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[TextOptions],
) -> Text | list[list[Text]]:
    """Translate one text, or a list of texts; the results are those of ``generate``.

    Args:
        loaded: an encoder-decoder with a language-model head, and its tokenizer.
        texts: what to translate.
        source: code or name of the language of the texts; None for a model of a single pair of languages.
        target: code or name of the language to translate into.
        batch_size: texts per batch.
        progress: called with the number of texts done and their total.
        options: see below.
    """
    several = [texts] if isinstance(texts, str) else texts
    prompts, language_options = prepare_translation(loaded, several, source, target)
    options = cast(TextOptions, {**language_options, **options})
    if isinstance(texts, str):
        return generate_text(loaded, prompts, batch_size=batch_size, progress=progress, **options)[0][0]
    return generate_text(loaded, prompts, batch_size=batch_size, progress=progress, **options)


def prepare_translation(
    loaded: Loaded, texts: Sequence[str], source: str | None, target: str | None
) -> tuple[list[PromptInput], dict[str, Any]]:
    """What the encoder reads, and the options that make the decoder generate the target language."""
    check_texts(loaded, texts)
    check_ability(loaded.config, "translate")
    languages = languages_of(loaded.tokenizer, loaded.folder)
    if languages.ids:
        return [languages.source(text, source) for text in texts], _first_tokens(languages, target)
    tasks = {name: task for name, task in tasks_of(loaded.folder).items() if task.prefix.startswith("translate ")}
    if tasks:
        task = _task(tasks, source, target)
        return [task.write(text) for text in texts], {"task": task.options}
    if source is not None or target is not None:
        raise ValueError(
            f"this model takes no languages: its vocabulary has no tokens for them and its config.json no prefixes. "
            f"It translates as it was trained; leave out source={source!r} and target={target!r}."
        )
    return list(texts), {}


def _first_tokens(languages: Languages, target: str | None) -> dict[str, Any]:
    """The options for the decoder's first tokens."""
    if not languages.starts_with_language:
        return {"forced_first": languages.forced_first(target)}
    if target is None:
        raise SettingError("say which language to translate into: {}.", Setting("target"))
    return {"start": [languages.resolve(target)], "forced_first": None}


def _task(tasks: dict[str, Task], source: str | None, target: str | None) -> Task:
    if source is None or target is None:
        known = ", ".join(repr(task.prefix) for task in tasks.values())
        template = "say both languages, {} and {}; this model's config.json states {}."
        raise SettingError(template, Setting("source"), Setting("target"), known)
    return find_translation(tasks, source, target)
