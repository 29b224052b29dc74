"""Text in, text out: the tokenizer before and after every search.

What holds for each function here: the model's own tokens stand around a prompt exactly once; a text ends before a stop
string; special tokens are not in it unless asked for; what is written for a prompt does not depend on the prompts
beside it. ``options`` are the settings of ``settings.Settings`` (tokens may be named by their text), what the folder
recommends for those not given (``defaults``), and besides:

* ``path``, ``chunk``, ``draft``, ``start``: how to compute and what an encoder-decoder begins with, see ``writing``;
* ``task``: recommendations for one task, ``default_length``: new tokens where nobody says how many.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from numbers import Integral
from typing import Any

from glassformer.config.checks import Setting, SettingError, check_positive
from glassformer.generation.api import generate, generate_stream
from glassformer.generation.decoder import check_writes
from glassformer.generation.defaults import DEFAULT_LENGTH, advice, settings_for
from glassformer.generation.prompts import (
    Given,
    Prompt,
    Side,
    check_loaded,
    check_prompt,
    check_texts,
    fit_prompt,
    read_prompt,
    special_ids,
)
from glassformer.generation.record import GenerationOutput
from glassformer.generation.settings import GenerationSettings
from glassformer.generation.stops import StopFilter, Wording, cut_at
from glassformer.hub import Loaded
from glassformer.text.tokenizer import Tokenizer

FOR_WRITING = ("path", "chunk", "draft", "start")
FOR_DEFAULTS = ("task", "default_length")


@dataclass(frozen=True)
class Text:
    """What was written for one prompt."""

    text: str  # up to a stop string, without special tokens
    written: GenerationOutput  # all of its tokens, those of the end included
    prompt_tokens: int  # read by the model
    cut_tokens: int = 0  # of the prompt, cut off because it was too long


def generate_text(
    loaded: Loaded,
    prompts: Sequence[Given],
    *,
    truncate: Side | None = None,
    batch_size: int = 8,
    keep_special: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> list[list[Text]]:
    """Continue prompts (an encoder-decoder: answer sources); for each, in the given order, its samples or best beams.

    Args:
        loaded: a decoder or encoder-decoder with a language-model head, and its tokenizer.
        prompts: texts, or lists of ids that are complete as they are.
        truncate: the side on which to cut prompts that are too long; unless given, they are an error.
        batch_size: prompts at a time, those of about the same length together.
        keep_special: show special tokens in the texts.
        progress: called with how many prompts are done, and of how many.
        options: how to write, see above.
    """
    check_texts(loaded, prompts, check_prompt, "prompt")
    check_positive(batch_size=batch_size)
    job = _Job(loaded, keep_special, truncate, options)
    rows = [job.row(given, number) for number, given in enumerate(prompts)]
    job.check_seeds(len(rows))
    found: dict[int, list[Text]] = {}
    for batch in _batches(rows, batch_size):
        for row, texts in zip(batch, job.write(batch), strict=True):
            found[row.prompt.number] = texts
        if progress is not None:
            progress(len(found), len(rows))
    return [found[number] for number in range(len(rows))]


def stream_text(
    loaded: Loaded, prompt: Given, *, truncate: Side | None = None, keep_special: bool = False, **options: Any
) -> Generator[str, None, Text]:
    """One text, piece by piece as it is written; the pieces joined are its ``Text``, which is the generator's return.

    No piece holds half a character, a special token, or a part of a stop string. For greedy search and a single sample.
    What is wrong is said at once, before the first piece is asked for.
    """
    check_loaded(loaded)
    check_prompt("the prompt", prompt)
    job = _Job(loaded, keep_special, truncate, options)
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


def _pieces(job: "_Job", row: "_Row") -> Generator[str, None, Text]:
    wording = job.wording(row)
    stream, stops = wording.stream(), StopFilter(row.settings.stop)
    model, is_done = job.loaded.model, job.is_done([row])
    tokens = generate_stream(model, [row.prompt.ids], row.settings, is_done=is_done, **job.for_writing)
    shown = ""
    while True:
        try:
            token = next(tokens).token
        except StopIteration as end:
            written = end.value[0][0]
            break
        if wording.is_shown(token) and (piece := stops.add(stream.add(token))):
            shown += piece
            yield piece
    if piece := stops.add(stream.end()) + stops.end():
        shown += piece
        yield piece
    return Text(shown, written, len(row.prompt.ids), row.prompt.cut)


@dataclass(frozen=True)
class _Row:
    """A prompt, and how to write on from it."""

    prompt: Prompt
    settings: GenerationSettings


class _Job:
    """What one call asks for."""

    def __init__(self, loaded: Loaded, keep_special: bool, truncate: Side | None, options: Mapping[str, Any]) -> None:
        check_writes(loaded.model)
        self.loaded, self.keep_special, self.truncate = loaded, keep_special, truncate
        self.for_writing = {name: options[name] for name in FOR_WRITING if options.get(name) is not None}
        rest = {name: value for name, value in options.items() if name not in FOR_WRITING}
        self._options = _with_numbers(loaded.tokenizer, rest)
        self._special = set() if keep_special else special_ids(loaded.tokenizer)
        self._advised = advice(loaded, rest.get("task"))
        usual = rest.get("default_length", DEFAULT_LENGTH)  # of which a prompt that is cut need not leave room for all
        usual = usual if loaded.config.longest is None else min(usual, loaded.config.longest // 2)
        self._answer = rest.get("max_new_tokens", self._advised.options.get("max_new_tokens", usual))
        self._settings: dict[int, GenerationSettings] = {}  # by the tokens that a text begins with

    def row(self, given: Given, number: int) -> _Row:
        """A prompt as it fits the model, with the settings for its length."""
        prompt = fit_prompt(self.loaded, read_prompt(self.loaded, given, number), self.truncate, self._answer)
        begun = len(prompt.ids) if self.loaded.config.encoder is None else len(self.for_writing.get("start", (0,)))
        if begun not in self._settings:
            self._settings[begun], _ = settings_for(self.loaded, begun=begun, advised=self._advised, **self._options)
        return _Row(prompt, self._settings[begun])

    def check_seeds(self, prompts: int) -> None:
        """Raise unless there is one seed, or one for each prompt."""
        seeds = self._options.get("seed")
        if isinstance(seeds, tuple | list) and len(seeds) != prompts:
            raise ValueError(f"{len(seeds)} seeds were given for {prompts} prompts; give one for all, or one each.")

    def write(self, batch: Sequence[_Row]) -> list[list[Text]]:
        """The texts for rows whose settings are the same."""
        settings = batch[0].settings
        if isinstance(settings.seed, tuple):
            settings = replace(settings, seed=tuple(settings.seed_of(row.prompt.number) for row in batch))
        prompts = [row.prompt.ids for row in batch]
        found = generate(self.loaded.model, prompts, settings, is_done=self.is_done(batch), **self.for_writing)
        return [[self._text(row, written) for written in some] for row, some in zip(batch, found, strict=True)]

    def wording(self, row: _Row) -> Wording:
        """How the tokens of a row read."""
        after = row.prompt.ids if self.loaded.config.encoder is None else ()
        hidden = set() if self.keep_special else self._special | set(row.settings.eos)
        return Wording(self.loaded.tokenizer, after, hidden)

    def is_done(self, batch: Sequence[_Row]) -> Callable[[int, Sequence[int]], bool] | None:
        """Whether a text has come to a stop string; None where there are none."""
        stops = batch[0].settings.stop
        if not stops:
            return None
        wordings = [self.wording(row) for row in batch]
        return lambda number, ids: wordings[number].ends_with_stop(ids, stops)

    def _text(self, row: _Row, written: GenerationOutput) -> Text:
        text = cut_at(self.wording(row).text(written.ids), row.settings.stop)
        return Text(text, written, len(row.prompt.ids), row.prompt.cut)


def _batches(rows: Sequence[_Row], size: int) -> list[list[_Row]]:
    """Rows of about the same length together, the longest first; never rows whose settings differ."""
    order = sorted(rows, key=lambda row: -len(row.prompt.ids))
    batches = []
    for _, same in groupby(order, key=lambda row: row.settings):
        some = list(same)
        batches += [some[first : first + size] for first in range(0, len(some), size)]
    return batches


def _with_numbers(tokenizer: Tokenizer, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with ids where they name tokens by words; a single end token or stop string is a list of one."""
    found = dict(options)
    for name in ("eos", "stop"):
        if isinstance(options.get(name), str | Integral):
            found[name] = [options[name]]
    for name in ("bad_words", "suppress", "eos", "stop"):
        if not isinstance(found.get(name, ()), list | tuple):
            raise TypeError(f"{name} must be a list, got {found[name]!r:.40}. Put it in brackets: {name}=[…].")
    if "bad_words" in options:
        spelt = (_spellings(tokenizer, word) if isinstance(word, str) else [word] for word in options["bad_words"])
        found["bad_words"] = [ids for some in spelt for ids in some]
    for name in ("eos", "suppress"):
        if name in options:
            found[name] = [_number(tokenizer, token) for token in found[name]]
    for name in ("forced_first", "forced_last"):
        if isinstance(options.get(name), str):
            found[name] = _number(tokenizer, options[name])
    if isinstance(options.get("logit_bias"), Mapping):
        bias = options["logit_bias"].items()
        found["logit_bias"] = {_number(tokenizer, token): value for token, value in bias}
    return found


def _spellings(tokenizer: Tokenizer, word: str) -> list[list[int]]:
    """The ids of a word, at the beginning of a text and after a space."""
    spaced = f" {word.lstrip()}" if word.strip() else word  # a line break is forbidden alone, not all spaces with it
    both = [tokenizer.encode(text, special=False) for text in (word, spaced)]
    found = [ids for place, ids in enumerate(both) if ids and ids not in both[:place]]
    if not found:
        raise ValueError(f"bad_words holds {word!r}, which gives no token to forbid; leave it out.")
    return found


def _number(tokenizer: Tokenizer, token: str | int) -> int:
    """The id of a token under the name that the vocabulary has for it, or of a text that is one token."""
    if not isinstance(token, str):
        return token
    ids = tokenizer.encode(token, special=False)
    if len(ids) == 1 and tokenizer.backend.token_to_id(token) is None:
        return ids[0]
    return tokenizer.id_of(token)
