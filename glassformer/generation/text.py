"""Text in, text out: a tokenizer around ``api.generate``, which works on token ids.

``generate_text``, ``stream_text``, ``reply`` and ``translate_text`` are ``glassformer.generate``, ``stream``, ``chat``
and ``translate``. For each of them: the special tokens that the model expects are in a prompt exactly once; a text ends
before a stop string; special tokens are not in it unless asked for; the text for a prompt does not depend on the other
prompts of the batch.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from numbers import Integral
from typing import Any, Unpack, cast, overload

from glassformer.config.checks import Setting, SettingError, check_positive_integer
from glassformer.config.options import with_listed_options
from glassformer.generation.api import generate, generate_stream
from glassformer.generation.defaults import DEFAULT_LENGTH, advice, settings_for
from glassformer.generation.prompts import (
    FewShot,
    Prompt,
    PromptInput,
    SourceText,
    check_can,
    check_prompt,
    check_texts,
    fit_prompt,
    read_prompt,
    special_ids,
)
from glassformer.generation.search import GenerationOutput
from glassformer.generation.settings import GenerationSettings, TextOptions
from glassformer.generation.stops import StopFilter, Wording, cut_at
from glassformer.hub import Loaded
from glassformer.text.languages import Languages, TaskPrefix, find_translation, languages_of, tasks_of
from glassformer.text.tokenizer import Tokenizer

API_OPTIONS = ("path", "chunk", "decoding", "draft", "start")  # passed on to ``api.generate`` as they are
REPLY_LENGTH = 512  # new tokens of a chat reply where neither user nor folder says how many
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Text:
    """A generated text; ``print`` shows the text alone."""

    text: str  # up to a stop string, without special tokens
    written: GenerationOutput  # all new tokens, including the end token
    prompt_tokens: int  # fed to the model
    cut_tokens: int = 0  # cut off the prompt because it was too long

    def __str__(self) -> str:
        return self.text


@overload
def generate_text(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
    loaded: Loaded,
    prompts: str,
    *,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[TextOptions],
) -> Text: ...


@overload
def generate_text(
    loaded: Loaded,
    prompts: Sequence[PromptInput],
    *,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[TextOptions],
) -> list[list[Text]]: ...


@with_listed_options
def generate_text(
    loaded: Loaded,
    prompts: str | Sequence[PromptInput],
    *,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[TextOptions],
) -> Text | list[list[Text]]:
    """Continue prompts; an encoder-decoder generates from them as sources.

    Args:
        loaded: a decoder or encoder-decoder with a language-model head, and its tokenizer.
        prompts: one text, which gives one ``Text``; or a list of texts or token ids, which gives for each, in order, a
            list of its samples or best beams.
        batch_size: prompts per batch, those of similar length together.
        progress: called with the number of prompts done and their total.
        options: see below.
    """
    check_can(loaded, "generate")
    if isinstance(prompts, str):
        _check_single(options)
        return generate_text(loaded, [prompts], batch_size=batch_size, progress=progress, **options)[0][0]
    check_texts(loaded, prompts, check_prompt, "prompt")
    check_positive_integer(batch_size=batch_size)
    # Encode all prompts, so that a wrong one raises before the first text is generated.
    job = _TextJob(loaded, options)
    rows = [job.row(prompt, number) for number, prompt in enumerate(prompts)]
    job.check_seeds(len(rows))
    # Generate in batches of similar length, and return the texts in the order of the prompts.
    texts: dict[int, list[Text]] = {}
    for batch in _batches(rows, batch_size):
        for row, outputs in zip(batch, job.generate(batch), strict=True):
            texts[row.prompt.number] = outputs
        if progress is not None:
            progress(len(texts), len(rows))
    return [texts[number] for number in range(len(rows))]


@with_listed_options
def stream_text(loaded: Loaded, prompt: PromptInput, **options: Unpack[TextOptions]) -> Generator[str, None, Text]:
    """Continue one prompt, yielding the text piece by piece; greedy search or a single sample.

    No piece holds half a character, a special token, or a part of a stop string. The pieces joined are the ``Text``
    that the generator returns. Wrong settings raise at once, before the first piece is asked for.
    """
    check_can(loaded, "stream")
    check_prompt("the prompt", prompt)
    job = _TextJob(loaded, options)
    row = job.row(prompt, 0)
    job.check_seeds(1)
    if row.settings.samples > 1:
        several = Setting("samples", row.settings.samples)
        raise SettingError("one text can be streamed at a time, not {}; leave it at 1, or do not stream.", several)
    if row.settings.mode == "beam":
        raise SettingError(
            "a beam search decides at its end, so its text cannot be streamed; leave {} at 1, or do not stream.",
            Setting("beam_size"),
        )
    return _pieces(job, row)


@with_listed_options
def reply(loaded: Loaded, messages: str | Sequence[Message], **options: Unpack[TextOptions]) -> Text:
    """Reply to a conversation, by the tokenizer's chat template.

    Args:
        loaded: a model with a language-model head, and a tokenizer with a chat template.
        messages: of the form {"role": "user", "content": "…"}, or one text as the only message of a user.
        options: see below; ``default_length`` is 512.
    """
    return generate_text(loaded, [_conversation(loaded, messages)], **_reply_options(options))[0][0]


@with_listed_options
def stream_reply(
    loaded: Loaded, messages: str | Sequence[Message], **options: Unpack[TextOptions]
) -> Generator[str, None, Text]:
    """Like ``reply``, yielding the text piece by piece."""
    return stream_text(loaded, _conversation(loaded, messages), **_reply_options(options))


@with_listed_options
def answer_like(
    loaded: Loaded, few_shot: FewShot, texts: Sequence[str], **options: Unpack[TextOptions]
) -> list[list[Text]]:
    """Return outputs for texts as inputs of a few-shot prompt, in the order of the texts."""
    check_texts(loaded, texts)
    stop = options.get("stop", ())
    options = {**options, "stop": [*([stop] if isinstance(stop, str) else stop), few_shot.separator]}
    answers = generate_text(loaded, [few_shot.prompt(text) for text in texts], **options)
    return [[replace(text, text=text.text.lstrip(" ")) for text in samples] for samples in answers]


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


@with_listed_options
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
        source: code or name of the language of the texts; None for a model of a single pair of languages, or of
            English and Chinese, which infers both languages of each text from its script.
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
    """Return the text for the encoder, and the options that make the decoder generate the target language.

    Some models take the languages as tokens, others as words before the text; a model of a single pair of languages
    needs neither.
    """
    check_can(loaded, "translate")
    check_texts(loaded, texts)
    # The vocabulary has a token for each language.
    languages = languages_of(loaded.tokenizer, loaded.folder)
    if languages.ids:
        return _language_prompts(languages, texts, source, target)
    # The folder's config.json has a prefix for each pair of languages.
    tasks = {name: task for name, task in tasks_of(loaded.folder).items() if task.prefix.startswith("translate ")}
    if tasks:
        task = _task(tasks, source, target)
        return [task.write(text) for text in texts], {"task": task.options}
    if source is not None or target is not None:
        raise SettingError(
            "this model takes no languages: its vocabulary has no tokens for them and its config.json no prefixes. "
            "It translates as it was trained; leave out {} and {}.",
            Setting("source", source),
            Setting("target", target),
        )
    return list(texts), {}


def _check_single(options: TextOptions) -> None:
    """Raise if the options request several texts for a single prompt."""
    for name in ("samples", "top_beams"):
        count = options.get(name, 1)
        if isinstance(count, int) and count > 1:
            template = "{} requests several texts, but a single prompt returns one; pass a list: [prompt]."
            raise SettingError(template, Setting(name, count))


def _conversation(loaded: Loaded, messages: str | Sequence[Message]) -> list[int]:
    """Return the ids of a conversation, with the special tokens of the chat template."""
    check_can(loaded, "chat")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return loaded.tokenizer.chat(messages)


def _reply_options(options: TextOptions) -> TextOptions:
    return cast(TextOptions, {"default_length": REPLY_LENGTH, **options})


def _language_prompts(
    languages: Languages, texts: Sequence[str], source: str | None, target: str | None
) -> tuple[list[PromptInput], dict[str, Any]]:
    """Return the ids of texts with their language tokens, and the options for the decoder's first tokens."""
    directions = [languages.direction(text, source, target) for text in texts]
    prompts = [languages.source(text, source) for text, (source, _) in zip(texts, directions, strict=True)]
    targets = {target for _, target in directions}
    if languages.infers_direction and len(targets) != 1:  # texts in both languages, or no text
        pairs = zip(prompts, directions, strict=True)
        return [SourceText(ids, languages.resolve(str(target))) for ids, (_, target) in pairs], {}
    return list(prompts), _first_tokens(languages, next(iter(targets), target))


def _first_tokens(languages: Languages, target: str | None) -> dict[str, Any]:
    """Return the options for the decoder's first tokens."""
    if not languages.starts_with_language:
        return {"forced_first": languages.forced_first(target)}
    if target is None:
        raise SettingError("set the language to translate into: {}.", Setting("target"))
    return {"start": [languages.resolve(target)], "forced_first": None}


def _task(tasks: dict[str, TaskPrefix], source: str | None, target: str | None) -> TaskPrefix:
    if source is None or target is None:
        known = ", ".join(repr(task.prefix) for task in tasks.values())
        template = "set both languages, {} and {}; this model's config.json states {}."
        raise SettingError(template, Setting("source"), Setting("target"), known)
    return find_translation(tasks, source, target)


def _pieces(job: "_TextJob", row: "_TextRow") -> Generator[str, None, Text]:
    wording = job.wording(row)
    stream, stops = wording.stream(), StopFilter(row.settings.stop)
    model, is_done = job.loaded.model, job.is_done([row])
    tokens = generate_stream(model, [row.prompt.ids], row.settings, is_done=is_done, **job.api_options)
    # Yield text as soon as it is certain: whole characters that cannot become part of a stop string.
    shown = ""
    while True:
        try:
            token = next(tokens).token
        except StopIteration as end:
            output = end.value[0][0]
            break
        if wording.is_shown(token) and (piece := stops.add(stream.add(token))):
            shown += piece
            yield piece
    # What was held back at the end.
    if piece := stops.add(stream.end()) + stops.end():
        shown += piece
        yield piece
    return Text(shown, output, len(row.prompt.ids), row.prompt.cut)


@dataclass(frozen=True)
class _TextRow:
    """A prompt, and the settings to continue it with."""

    prompt: Prompt
    settings: GenerationSettings


class _TextJob:
    """One call: the model, its tokenizer and the options."""

    def __init__(self, loaded: Loaded, options: TextOptions) -> None:
        rest: dict[str, Any] = dict(options)
        self.loaded = loaded
        self.truncate, self.keep_special = rest.pop("truncate", None), rest.pop("keep_special", False)
        chosen = {name: rest.pop(name, None) for name in API_OPTIONS}
        self.api_options = {name: value for name, value in chosen.items() if value is not None}
        self._options = _with_ids(loaded.tokenizer, rest)
        self._special = set() if self.keep_special else special_ids(loaded.tokenizer)
        self._advised = advice(loaded, rest.get("task"))
        # A prompt that is cut leaves half of the positions at least, unless max_new_tokens says how many are needed.
        default = rest.get("default_length", DEFAULT_LENGTH)
        default = default if loaded.config.max_length is None else min(default, loaded.config.max_length // 2)
        self._new_tokens = rest.get("max_new_tokens", self._advised.options.get("max_new_tokens", default))
        # By the length of what the decoder is fed first, and the language token to generate first.
        self._settings: dict[tuple[int, int | None], GenerationSettings] = {}

    def row(self, prompt: PromptInput, number: int) -> _TextRow:
        """Return a prompt as it fits the model, with the settings for its length."""
        fitted = fit_prompt(self.loaded, read_prompt(self.loaded, prompt, number), self.truncate, self._new_tokens)
        is_decoder = self.loaded.config.encoder is None
        length = len(fitted.ids) if is_decoder else len(self.api_options.get("start", (0,)))
        language = prompt.forced_first if isinstance(prompt, SourceText) else None
        if (length, language) not in self._settings:
            options = self._options if language is None else {**self._options, "forced_first": language}
            self._settings[length, language], _ = settings_for(
                self.loaded, prefix_length=length, advised=self._advised, **options
            )
        return _TextRow(fitted, self._settings[length, language])

    def check_seeds(self, prompts: int) -> None:
        """Raise unless there is one seed, or one for each prompt."""
        seeds = self._options.get("seed")
        if isinstance(seeds, tuple | list) and len(seeds) != prompts:
            raise ValueError(f"got {len(seeds)} seeds for {prompts} prompts; pass one for all, or one for each.")

    def generate(self, batch: Sequence[_TextRow]) -> list[list[Text]]:
        """Return the texts for rows whose settings are the same."""
        settings = batch[0].settings
        if isinstance(settings.seed, tuple):
            settings = replace(settings, seed=tuple(settings.seed_of(row.prompt.number) for row in batch))
        prompts = [row.prompt.ids for row in batch]
        outputs = generate(self.loaded.model, prompts, settings, is_done=self.is_done(batch), **self.api_options)
        return [[self._text(row, output) for output in some] for row, some in zip(batch, outputs, strict=True)]

    def wording(self, row: _TextRow) -> Wording:
        """Return the decoder from ids to text for a row."""
        after = row.prompt.ids if self.loaded.config.encoder is None else ()
        hidden = set() if self.keep_special else self._special | set(row.settings.eos)
        return Wording(self.loaded.tokenizer, after, hidden)

    def is_done(self, batch: Sequence[_TextRow]) -> Callable[[int, Sequence[int]], bool] | None:
        """Whether a text has reached a stop string; None if there are no stop strings."""
        stops = batch[0].settings.stop
        if not stops:
            return None
        wordings = [self.wording(row) for row in batch]
        return lambda number, ids: wordings[number].ends_with_stop(ids, stops)

    def _text(self, row: _TextRow, output: GenerationOutput) -> Text:
        text = cut_at(self.wording(row).text(output.ids), row.settings.stop)
        return Text(text, output, len(row.prompt.ids), row.prompt.cut)


def _batches(rows: Sequence[_TextRow], size: int) -> list[list[_TextRow]]:
    """Return rows of similar length together, the longest first; rows of a batch have the same settings."""
    order = sorted(rows, key=lambda row: (row.settings.forced_first or 0, -len(row.prompt.ids)))
    batches = []
    for _, same in groupby(order, key=lambda row: row.settings):
        group = list(same)
        batches += [group[first : first + size] for first in range(0, len(group), size)]
    return batches


def _with_ids(tokenizer: Tokenizer, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with ids instead of tokens named by text, and a list instead of a single end token or stop."""
    result = dict(options)
    # A single value stands for a list.
    for name in ("eos", "stop"):
        if isinstance(options.get(name), str | Integral):
            result[name] = [options[name]]
    for name in ("bad_words", "suppress", "eos", "stop"):
        if not isinstance(result.get(name, ()), list | tuple):
            raise TypeError(f"{name} must be a list, got {result[name]!r:.40}. Put it in brackets: {name}=[…].")
    # Texts become ids: words in each of their spellings, single tokens by name.
    if "bad_words" in options:
        spelt = (_spellings(tokenizer, word) if isinstance(word, str) else [word] for word in options["bad_words"])
        result["bad_words"] = [ids for spellings in spelt for ids in spellings]
    for name in ("eos", "suppress"):
        if name in options:
            result[name] = [_token_id(tokenizer, token) for token in result[name]]
    for name in ("forced_first", "forced_last"):
        if isinstance(options.get(name), str):
            result[name] = _token_id(tokenizer, options[name])
    if isinstance(options.get("logit_bias"), Mapping):
        bias = options["logit_bias"].items()
        result["logit_bias"] = {_token_id(tokenizer, token): value for token, value in bias}
    return result


def _spellings(tokenizer: Tokenizer, word: str) -> list[list[int]]:
    """Return the ids of a word at the beginning of a text, and after a space."""
    spaced = f" {word.lstrip()}" if word.strip() else word  # forbidding a line break does not forbid spaces
    both = [tokenizer.encode(text, special=False) for text in (word, spaced)]
    spellings = [ids for index, ids in enumerate(both) if ids and ids not in both[:index]]
    if not spellings:
        template = "{} holds {}, which gives no token to forbid; leave it out."
        raise SettingError(template, Setting("bad_words"), repr(word))
    return spellings


def _token_id(tokenizer: Tokenizer, token: str | int) -> int:
    """Return the id of a token by its name in the vocabulary, or of a text that is a single token."""
    if not isinstance(token, str):
        return token
    ids = tokenizer.encode(token, special=False)
    if len(ids) == 1 and tokenizer.backend.token_to_id(token) is None:
        return ids[0]
    return tokenizer.id_of(token)
