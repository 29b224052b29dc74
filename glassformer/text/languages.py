"""The languages of a translation model: which its vocabulary knows, and where their tokens go.

A model for many languages is told by tokens what it reads and what to write; a text without them, or with them at the
wrong end, is translated all the same, badly. Nothing here is guessed: both languages are always the caller's to say.

* ``__en__`` (M2M-100), ``eng_Latn`` (NLLB-200), ``en_XX`` (mBART-50): language, text, EOS; the decoder's first token is
  forced to be the language to write.
* ``en_XX`` (mBART) and NLLB-200's older layout: text, EOS, language.
* XLM has no such tokens: a number per token says the language (``embedded_languages``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from tokenizers import AddedToken

from glassformer.config.checks import Setting
from glassformer.text.pieces import TokenizerError
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.tokenizer_folder import read_json

_FIRST, _LAST = "first", "last"
_UNDERSCORED, _SCRIPTS, _REGIONS = "__([a-z]{2,3})__", "([a-z]{3}_[A-Z][a-z]{3})", "([a-z]{2}_[A-Z]{2})"
# kind -> how its tokens are written, where a source text has its language, the tokenizer class that means it
KINDS: dict[str, tuple[str, str, str]] = {
    "m2m100": (_UNDERSCORED, _FIRST, "M2M100Tokenizer"),
    "nllb": (_SCRIPTS, _FIRST, "NllbTokenizer"),
    "nllb_legacy": (_SCRIPTS, _LAST, ""),  # as "nllb", where tokenizer_config.json says legacy_behaviour
    "mbart50": (_REGIONS, _FIRST, "MBart50Tokenizer"),
    "mbart": (_REGIONS, _LAST, "MBartTokenizer"),
}


@dataclass(frozen=True)
class Languages:
    """The languages of a model; none at all for a vocabulary that has no tokens for them."""

    ids: Mapping[str, int]  # code -> the id of its token, or for XLM the number of its vector
    tokens: Mapping[str, int]  # the same under the names of the tokens: "__en__" where the code is "en"
    kind: str | None = None  # one of KINDS; None where languages are not told by tokens
    tokenizer: Tokenizer | None = None

    def resolve(self, name: str) -> int:
        """The id of a language under its code or its token's name; one that is not there is an error."""
        if not self.ids:
            raise TokenizerError(
                f"this vocabulary has no tokens for languages, so {name!r} cannot be said; leave it out."
            )
        found = self.ids.get(name, self.tokens.get(name))
        if found is None:
            near = get_close_matches(name, self.ids, n=3, cutoff=0.4)
            hint = f"Nearest: {', '.join(map(repr, near))}" if near else f"They begin {', '.join(sorted(self.ids)[:3])}"
            raise TokenizerError(
                f"the language {name!r} is not one of the {len(self.ids)} that this model knows. {hint}; Languages.ids "
                "has them all."
            )
        return found

    def source(self, text: str | Sequence[int], language: str | None, *, allow_special: bool = True) -> list[int]:
        """The ids of a text to translate, or of ids without a frame, with language and EOS each in its place, once.

        A vocabulary without languages takes None: it frames a text in its own way, and leaves ids as they are.
        ``allow_special=False`` is for text from strangers, as in ``Tokenizer.encode``.
        """
        vocabulary = self._vocabulary()
        if not self.ids and language is None:
            return vocabulary.encode(text, allow_special=allow_special) if isinstance(text, str) else list(text)
        token, eos = self.resolve(self._said(language, "source")), vocabulary.eos
        if eos is None:
            raise TokenizerError("this vocabulary has languages but no EOS, which ends every text to translate.")
        if isinstance(text, str):
            body = vocabulary.encode(text, special=False, allow_special=allow_special)
        else:
            vocabulary.tokens(body := list(text))  # refuses ids that are not in the vocabulary
        body = self._unframed(body, token, eos)
        first = self.kind is not None and KINDS[self.kind][1] == _FIRST
        return [token, *body, eos] if first else [*body, eos, token]

    @property
    def starts_with_language(self) -> bool:
        """Whether the target's token takes the place of the decoder's start token, and none is forced after it."""
        return self.kind == "mbart"

    def forced_first(self, language: str | None) -> int | None:
        """The id that the decoder must write first, after its start token: that of the language to translate into.

        None for a vocabulary without languages, where nothing is forced.
        """
        self._vocabulary()
        if not self.ids and language is None:
            return None
        token = self.resolve(self._said(language, "target"))
        if self.starts_with_language:
            raise TokenizerError(
                f"this model's decoder starts with the language itself, nothing is forced after it: start it with "
                f"resolve({language!r}), token {token}."
            )
        return token

    def _said(self, language: str | None, role: str) -> str:
        if language is None:
            few = ", ".join(sorted(self.ids)[:3])
            raise TokenizerError(f"this model knows {len(self.ids)} languages ({few} …); say which the {role} is.")
        return language

    def _vocabulary(self) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError("this model is told the language by a number per token, languages=, not by a token.")
        return self.tokenizer

    def _unframed(self, ids: list[int], token: int, eos: int) -> list[int]:
        """Take a frame off that is already there; one that names another language is an error."""
        known = set(self.ids.values())
        for end in (0, -1):
            if not ids or ids[end] not in known:
                continue
            if (other := ids.pop(end)) != token:
                names = {number: code for code, number in self.ids.items()}
                raise TokenizerError(
                    f"the source is said to be {names[token]!r}, but the text itself says {names[other]!r}; "
                    "take that token out of the text, or say the other language."
                )
        return ids[:-1] if ids[-1:] == [eos] else ids


def languages_of(tokenizer: Tokenizer, folder: Path | str | None = None, *, kind: str | None = None) -> Languages:
    """The languages that a vocabulary has special tokens for.

    What their layout is, ``kind`` says (``KINDS``), or ``tokenizer_config.json`` in the folder, or the tokens alone
    where they are of one kind only. That of mBART and of mBART-50 look the same.
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
    found = {match: special[match.string] for match in map(patterns[kind].fullmatch, special) if match}
    ids = {match.group(1): number for match, number in found.items()}
    return Languages(ids, {match.string: number for match, number in found.items()}, kind, tokenizer)


def embedded_languages(folder: Path | str) -> Languages:
    """The languages of XLM: ``lang2id`` in ``config.json``; ``resolve`` gives the number for the model's languages=."""
    path = Path(folder) / "config.json"
    numbers = read_json(path).get("lang2id")
    if not isinstance(numbers, dict) or not numbers:
        raise TokenizerError(f"{path} names no languages: lang2id, their numbers, is missing or empty.")
    return Languages({str(code): int(number) for code, number in numbers.items()}, {})


def _special(tokenizer: Tokenizer) -> dict[int, AddedToken]:
    """The special tokens by number, without those that have a role (``__pad__`` is no language)."""
    roles = set(tokenizer.special.values())
    added = tokenizer.backend.get_added_tokens_decoder()
    return {number: token for number, token in added.items() if token.special and token.content not in roles}


def _kind_in(folder: Path | str | None) -> str | None:
    """The kind that a folder's files name, None where they name none."""
    if folder is None:
        return None
    options = read_json(Path(folder) / "tokenizer_config.json")
    named = options.get("tokenizer_class") or read_json(Path(folder) / "config.json").get("tokenizer_class")
    for kind, (_, _, tokenizer_class) in KINDS.items():
        if tokenizer_class and str(named or "").removesuffix("Fast") == tokenizer_class:
            return "nllb_legacy" if kind == "nllb" and options.get("legacy_behaviour") else kind
    return None


def _only(fits: Sequence[str]) -> str | None:
    """The kind of a vocabulary by its tokens alone; today's layout of NLLB, as the reference takes it to be."""
    present = [kind for kind in fits if kind != "nllb_legacy"]
    if len(present) > 1:
        raise TokenizerError(
            f"the tokens for languages may be those of {' or '.join(present)}, which put them in different places; "
            "pass {}, or the folder whose tokenizer_config.json says which.",
            Setting("kind", outside="tokenizer_kind"),
        )
    return present[0] if present else None
