"""How languages and tasks are passed to a translation model: by language tokens, or by a prefix in words.

A multilingual model reads tokens for the source and the target language; without them, or with them at the wrong end,
it translates badly without an error. So both languages are the caller's choice, except for a model of exactly English
and Chinese, which the script of a text tells apart:

* ``__en__`` (M2M-100), ``eng_Latn`` (NLLB-200), ``en_XX`` (mBART-50): language, text, EOS; the decoder's first token is
  forced to be the language to write.
* ``en_XX`` (mBART) and NLLB-200's older layout: text, EOS, language.
* XLM has no such tokens, but a language id per token (``embedded_languages``).

T5 reads ``translate English to German: …`` or ``summarize: …``. The prefixes that a model was trained with are in its
``config.json`` under ``task_specific_params``, with the options of generation for the task (``max_length``,
``num_beams``, ``length_penalty``, ``early_stopping`` …): ``tasks_of``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from glassformer.config.checks import Setting, SettingError
from glassformer.text.pieces import TokenizerError
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.tokenizer_folder import read_json

_FIRST, _LAST = "first", "last"
MAX_SHOWN = 12  # languages that an error lists
_UNDERSCORED, _SCRIPTS, _REGIONS = "__([a-z]{2,3})__", "([a-z]{3}_[A-Z][a-z]{3})", "([a-z]{2}_[A-Z]{2})"
# kind -> pattern of its tokens, position of the source language, tokenizer class
KINDS: dict[str, tuple[str, str, str]] = {
    "m2m100": (_UNDERSCORED, _FIRST, "M2M100Tokenizer"),
    "nllb": (_SCRIPTS, _FIRST, "NllbTokenizer"),
    "nllb_legacy": (_SCRIPTS, _LAST, ""),  # as "nllb", if tokenizer_config.json has legacy_behaviour
    "mbart50": (_REGIONS, _FIRST, "MBart50Tokenizer"),
    "mbart": (_REGIONS, _LAST, "MBartTokenizer"),
}
# A model of exactly these two languages infers the direction from the script of a text.
_OTHER = {"en": "zh", "zh": "en"}
_HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af]")
_LATIN_WORD = re.compile("[A-Za-z\u00c0-\u024f']+")


@dataclass(frozen=True)
class Languages:
    """The languages of a model; empty for a vocabulary without language tokens."""

    ids: Mapping[str, int]  # code -> id of its token, or for XLM its language id
    tokens: Mapping[str, int]  # token -> id: "__en__" for the code "en"
    kind: str | None = None  # one of KINDS; None without language tokens
    tokenizer: Tokenizer | None = None

    def resolve(self, name: str) -> int:
        """Return the id of a language by its code or its token; raise if it is unknown."""
        if not self.ids:
            raise TokenizerError(f"this vocabulary has no language tokens, so {name!r} cannot be set; leave it out.")
        token_id = self.ids.get(name, self.tokens.get(name))
        if token_id is None:
            codes, near = sorted(self.ids), get_close_matches(name, self.ids, n=3, cutoff=0.4)
            shown = near if near and len(codes) > MAX_SHOWN else codes[:MAX_SHOWN]
            which = "nearest" if shown is near else "all" if len(shown) == len(codes) else "the first"
            raise TokenizerError(
                f"the language {name!r} is not one of the {len(codes)} of this model; {which}: {', '.join(shown)}."
            )
        return token_id

    def source(self, text: str | Sequence[int], language: str | None, *, allow_special: bool = True) -> list[int]:
        """Return the ids of a text to translate, with the language token and EOS, each once.

        Args:
            text: a text, or its ids.
            language: code or token of its language; None for a vocabulary without languages, which adds its usual
                special tokens to a text and leaves ids unchanged.
            allow_special: as in ``Tokenizer.encode``.
        """
        vocabulary = self._vocabulary()
        if not self.ids and language is None:
            return vocabulary.encode(text, allow_special=allow_special) if isinstance(text, str) else list(text)
        token, eos = self.resolve(self._required(language, "source")), vocabulary.eos
        if eos is None:
            raise TokenizerError("this vocabulary has language tokens but no EOS, which ends every source text.")
        if isinstance(text, str):
            body = vocabulary.encode(text, special=False, allow_special=allow_special)
        else:
            vocabulary.tokens(body := list(text))  # raises on ids that are not in the vocabulary
        body = self._without_frame(body, token, eos)
        first = self.kind is not None and KINDS[self.kind][1] == _FIRST
        return [token, *body, eos] if first else [*body, eos, token]

    @property
    def infers_direction(self) -> bool:
        """Whether the languages of a translation may be left out: for English and Chinese only."""
        return self.ids.keys() == _OTHER.keys()

    def direction(self, text: str, source: str | None, target: str | None) -> tuple[str | None, str | None]:
        """Return the source and the target language of a text; inferred where they are None, if this model infers them.

        A text with at least as many Chinese characters as Latin words is Chinese.
        """
        if not self.infers_direction or (source is not None and target is not None):
            return source, target
        codes = {number: code for code, number in self.ids.items()}
        if target is not None:
            return _OTHER[codes[self.resolve(target)]], target
        if source is None:
            characters, words = len(_HAN.findall(text)), len(_LATIN_WORD.findall(text))
            if not characters and not words:
                template = f"{text!r:.40} has neither Chinese characters nor Latin letters; set {{}} and {{}}."
                raise SettingError(template, Setting("source"), Setting("target"))
            source = "zh" if characters >= words else "en"
        return source, _OTHER[codes[self.resolve(source)]]

    @property
    def starts_with_language(self) -> bool:
        """Whether the decoder starts with the target's language token instead of a start token."""
        return self.kind == "mbart"

    def forced_first(self, language: str | None) -> int | None:
        """Return the id of the target language, which is forced as the decoder's first token after its start token.

        None for a vocabulary without languages.
        """
        self._vocabulary()
        if not self.ids and language is None:
            return None
        token = self.resolve(self._required(language, "target"))
        if self.starts_with_language:
            raise TokenizerError(
                f"this model's decoder starts with the language token, so none is forced after it: start it with "
                f"resolve({language!r}), token {token}."
            )
        return token

    def _required(self, language: str | None, role: str) -> str:
        if language is None:
            few = ", ".join(sorted(self.ids)[:3])
            template = f"this model has {len(self.ids)} languages ({few} …); set {{}}."
            raise TokenizerError(template, Setting(f"the {role} language", external_name=role))
        return language

    def _vocabulary(self) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError("this model reads a language id per token, languages=, and has no language tokens.")
        return self.tokenizer

    def _without_frame(self, ids: list[int], token: int, eos: int) -> list[int]:
        """Return the ids without language token and EOS; raise if they have the token of another language."""
        known = set(self.ids.values())
        for end in (0, -1):
            if not ids or ids[end] not in known:
                continue
            if (other := ids.pop(end)) != token:
                names = {number: code for code, number in self.ids.items()}
                raise TokenizerError(
                    f"the source language is {names[token]!r}, but the text has the token of {names[other]!r}; "
                    "remove that token from the text, or set the other language."
                )
        return ids[:-1] if ids[-1:] == [eos] else ids


def languages_of(tokenizer: Tokenizer, folder: Path | str | None = None, *, kind: str | None = None) -> Languages:
    """Return the languages that a vocabulary has special tokens for.

    Args:
        tokenizer: with the language tokens.
        folder: of the model; its ``tokenizer_config.json`` may name the layout.
        kind: the layout, one of ``KINDS``; None: that of the folder, or the only one with such tokens. mBART and
            mBART-50 have the same tokens.
    """
    special = {token.content: number for number, token in _special(tokenizer).items()}
    patterns = {name: re.compile(facts[0]) for name, facts in KINDS.items()}
    fits = [name for name, pattern in patterns.items() if any(map(pattern.fullmatch, special))]
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}.")
    kind = kind or _kind_in(folder) or _only(fits)
    if kind is None:
        return Languages({}, {}, None, tokenizer)
    if kind not in fits:
        raise TokenizerError(f"this should be a vocabulary of {kind!r}, but it has no token like {KINDS[kind][0]}.")
    matches = [match for match in map(patterns[kind].fullmatch, special) if match]
    ids = {match.group(1): special[match.string] for match in matches}
    return Languages(ids, {match.string: special[match.string] for match in matches}, kind, tokenizer)


def embedded_languages(folder: Path | str) -> Languages:
    """Return the languages of XLM: ``lang2id`` of ``config.json``.

    ``resolve`` returns the id for the model's languages=.
    """
    path = Path(folder) / "config.json"
    numbers = read_json(path).get("lang2id")
    if not isinstance(numbers, dict) or not numbers:
        raise TokenizerError(f"{path} has no languages: lang2id is missing or empty.")
    return Languages({str(code): int(number) for code, number in numbers.items()}, {})


def _special(tokenizer: Tokenizer) -> dict[int, AddedToken]:
    """Return the special tokens by id, without those that have a role (``__pad__`` is not a language)."""
    roles = set(tokenizer.special.values())
    added = tokenizer.backend.get_added_tokens_decoder()
    return {number: token for number, token in added.items() if token.special and token.content not in roles}


def _kind_in(folder: Path | str | None) -> str | None:
    """Return the kind of the tokenizer class that a folder's files name, or None."""
    if folder is None:
        return None
    options = read_json(Path(folder) / "tokenizer_config.json")
    name = options.get("tokenizer_class") or read_json(Path(folder) / "config.json").get("tokenizer_class")
    for kind, (_, _, tokenizer_class) in KINDS.items():
        if tokenizer_class and str(name or "").removesuffix("Fast") == tokenizer_class:
            return "nllb_legacy" if kind == "nllb" and options.get("legacy_behaviour") else kind
    return None


def _only(fits: Sequence[str]) -> str | None:
    """Return the only kind that fits the tokens, or None; for NLLB the current layout, as in the reference."""
    present = [kind for kind in fits if kind != "nllb_legacy"]
    if len(present) > 1:
        raise TokenizerError(
            f"the language tokens may be those of {' or '.join(present)}, which put them at different ends; "
            "pass {}, or the folder whose tokenizer_config.json names the kind.",
            Setting("kind", external_name="tokenizer_kind"),
        )
    return present[0] if present else None


# --- task prefixes ----------------------------------------------------------------------------------------------------

# ISO 639-1 codes and the English names that prefixes use.
_NAMES = """
    ar Arabic; bg Bulgarian; bn Bengali; ca Catalan; cs Czech; da Danish; de German; el Greek; en English; es Spanish;
    et Estonian; fa Persian; fi Finnish; fr French; ga Irish; he Hebrew; hi Hindi; hr Croatian; hu Hungarian;
    id Indonesian; is Icelandic; it Italian; ja Japanese; ko Korean; lt Lithuanian; lv Latvian; mt Maltese; nl Dutch;
    no Norwegian; pl Polish; pt Portuguese; ro Romanian; ru Russian; sk Slovak; sl Slovenian; sr Serbian; sv Swedish;
    sw Swahili; ta Tamil; th Thai; tr Turkish; uk Ukrainian; ur Urdu; vi Vietnamese; zh Chinese
"""
NAMES: dict[str, str] = dict(entry.split() for entry in _NAMES.split(";"))


@dataclass(frozen=True)
class TaskPrefix:
    """The prefix of a task, and the options of generation in config.json for it."""

    prefix: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, text: str) -> str:
        """Return the text with the prefix, once."""
        return text if text.startswith(self.prefix) else self.prefix + text


def tasks_of(folder: Path | str) -> dict[str, TaskPrefix]:
    """Return the tasks in a folder's ``config.json``; a task without a prefix has an empty one."""
    path = Path(folder) / "config.json"
    params = read_json(path).get("task_specific_params") or {}
    if not isinstance(params, dict) or not all(isinstance(options, dict) for options in params.values()):
        raise ValueError(f"{path}: task_specific_params must be an object with an object per task, got {params!r}.")
    tasks = {}
    for name, options in params.items():
        prefix = options.get("prefix", "")
        if not isinstance(prefix, str):
            raise ValueError(f"{path}: the prefix of the task {name!r} must be text, got {prefix!r}.")
        tasks[name] = TaskPrefix(prefix, {key: value for key, value in options.items() if key != "prefix"})
    return tasks


def find_task(tasks: Mapping[str, TaskPrefix], name: str) -> TaskPrefix:
    """Return the task of a name; the error for an unknown name lists the tasks."""
    if name not in tasks:
        known = f"no task {name!r}, only {', '.join(tasks)}" if tasks else "no tasks"
        template = f"this model's config.json defines {known}. Set a prefix of your own with {{}}."
        raise SettingError(template, Setting('Task("words: ")', external_name="prefix"))
    return tasks[name]


def find_translation(tasks: Mapping[str, TaskPrefix], source: str, target: str) -> TaskPrefix:
    """Return the task that translates from one language to another, each by its name or code."""
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
    name = names.get(language.lower())
    if name is None:
        near = get_close_matches(language.lower(), names, n=3)
        hint = f" Nearest: {', '.join(repr(names[key]) for key in near)}." if near else ""
        raise ValueError(f"{language!r} is not one of the {len(NAMES)} known languages (names or codes).{hint}")
    return name
