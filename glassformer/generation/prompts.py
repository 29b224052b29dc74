"""From texts to the ids that a model goes on from, or that its encoder reads; the model's own tokens exactly once.

A decoder's prompt keeps what the tokenizer puts before a text and not what it puts after it, since the text goes on. A
prompt that is too long is cut inside that frame, and only if that was asked for. The ``check_`` functions refuse what
is no text before it comes to a tokenizer: for prompts, and for everything else that reads texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal

from glassformer.config.checks import check_choice
from glassformer.hub import Loaded
from glassformer.text.tokenizer import Tokenizer

Side = Literal["left", "right"]
Given = str | Sequence[int]  # a text, or ids that are complete: a rendered conversation, a framed source


@dataclass(frozen=True)
class Prompt:
    """before, text, after: the frame's tokens apart from those of the text."""

    number: int  # its place among the prompts, for errors
    before: tuple[int, ...]
    body: tuple[int, ...]
    after: tuple[int, ...] = ()
    cut: int = 0  # tokens of the text that were cut off

    @property
    def ids(self) -> list[int]:
        """All tokens in their order."""
        return [*self.before, *self.body, *self.after]


def check_loaded(loaded: object) -> None:
    """Raise unless this is a model with its tokenizer."""
    if not isinstance(loaded, Loaded):
        raise TypeError(
            f"the first argument must be a model with its tokenizer, got {_told(loaded)}. "
            f"Give what glassformer.load(...) returned, as it is."
        )


def check_text(name: str, value: object, wanted: str = "a text") -> None:
    """Raise unless this is a text; ``wanted`` says what would do."""
    if isinstance(value, bytes | bytearray):
        raise TypeError(f"{name} must be {wanted}, got bytes, {value!r:.40}. Decode them: .decode('utf-8').")
    if not isinstance(value, str):
        raise TypeError(f"{name} must be {wanted}, got {_told(value)}.")


def check_prompt(name: str, value: object) -> None:
    """Raise unless this is a text or a list of ids."""
    wanted = "a text or a list of token ids"
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence):
        if isinstance(value, Integral) and not isinstance(value, bool):
            wanted += " (one list for each prompt)"
        check_text(name, value, wanted)
        return
    for one in value:
        if isinstance(one, bool) or not isinstance(one, Integral):
            raise TypeError(f"{name} must be {wanted}, got a list that holds {_told(one)}.")


def check_texts(
    loaded: object, texts: object, check: Callable[[str, object], None] = check_text, name: str = "text"
) -> None:
    """Raise unless there are a loaded model and a list of texts, or of what ``check`` lets pass under its name."""
    check_loaded(loaded)
    if isinstance(texts, str | bytes | bytearray):  # their letters would be taken for texts
        raise TypeError(f"{name}s must be a list of texts, got one text, {texts!r:.40}. Put it in brackets: [text].")
    if not isinstance(texts, Sequence):
        raise TypeError(f"{name}s must be a list, got {_told(texts)}. Give a list, [text, …].")
    for number, one in enumerate(texts):
        check(f"{name} {number}", one)


def _told(value: object) -> str:
    shown = " ".join(repr(value).split())  # that of a model has many lines
    return "None" if value is None else f"{shown:.40} ({type(value).__name__})"


def read_prompt(loaded: Loaded, given: Given, number: int = 0) -> Prompt:
    """The tokens of a prompt. Where an empty text has none, a decoder begins from the vocabulary's BOS alone."""
    tokenizer = loaded.tokenizer
    if isinstance(given, str):
        before, body, after = _framed(tokenizer, given)
        if loaded.config.encoder is None:
            after = ()
    else:
        before, body, after = _split(tokenizer, list(given))
    if not (before or body or after):
        if tokenizer.bos is None or loaded.config.encoder is not None:
            raise ValueError(
                f"prompt {number} has no tokens, and {_why_no_bos(tokenizer)}; give at least one word to go on from."
            )
        before = (tokenizer.bos,)
    return Prompt(number, before, body, after)


def fit_prompt(loaded: Loaded, prompt: Prompt, truncate: Side | None, answer: int) -> Prompt:
    """The prompt as it fits the model: unchanged, cut on the side that ``truncate`` names, or an error.

    ``answer``: new tokens that a decoder's prompt must leave room for when it is cut.
    """
    check_choice("truncate", "left" if truncate is None else truncate, ("left", "right"))
    longest, size = loaded.config.longest, len(prompt.ids)
    if longest is None:
        return prompt
    own = len(prompt.before) + len(prompt.after)
    writes_on = loaded.config.encoder is None
    if truncate is None:
        if size + writes_on <= longest:
            return prompt
        besides = ", of which at least one is for the answer" if writes_on else ""
        raise ValueError(
            f"prompt {prompt.number} has {size} tokens, and the model takes {longest}{besides}. Shorten it by "
            f"{size + writes_on - longest} tokens, or say truncate='left' (or 'right') to have that side cut off."
        )
    room = longest - own - (answer if writes_on else 0)
    if room < 1:
        raise ValueError(
            f"max_new_tokens={answer} leave no room for a prompt: the model takes {longest} tokens in all. "
            f"Set max_new_tokens to {longest - own - 1} at most."
        )
    if len(prompt.body) <= room:
        return prompt
    body = prompt.body[-room:] if truncate == "left" else prompt.body[:room]
    return replace(prompt, body=body, cut=len(prompt.body) - room)


def _framed(tokenizer: Tokenizer, text: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The tokens that the tokenizer puts before a text, those of the text, and those after it."""
    whole, body = tokenizer.encode(text), tokenizer.encode(text, special=False)
    for start in range(len(whole) - len(body) + 1):
        end = start + len(body)
        if whole[start:end] == body:
            if start == 0:  # a frame that the text itself brings along
                return _split(tokenizer, body, tuple(whole[end:]))
            return tuple(whole[:start]), tuple(body), tuple(whole[end:])
    return (), tuple(whole), ()


def _split(
    tokenizer: Tokenizer, ids: list[int], after: tuple[int, ...] = ()
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Ids with the special tokens at their ends apart: these are kept when the rest is cut."""
    special = special_ids(tokenizer)
    first = next((place for place, token in enumerate(ids) if token not in special), len(ids))
    last = next((place for place in range(len(ids), first, -1) if ids[place - 1] not in special), first)
    return tuple(ids[:first]), tuple(ids[first:last]), (*ids[last:], *after)


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """The ids of the tokens that are not text: BOS, EOS, languages …"""
    added = tokenizer.backend.get_added_tokens_decoder()
    return {number for number, token in added.items() if token.special}


def _why_no_bos(tokenizer: Tokenizer) -> str:
    return "its vocabulary has no BOS to begin with" if tokenizer.bos is None else "an encoder must read something"
