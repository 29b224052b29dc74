"""Prompts as token ids, with the special tokens that the model expects exactly once; and few-shot prompts.

A decoder's prompt keeps the special tokens that the tokenizer puts before a text, and not those after it, since the
text continues. A prompt that is too long is cut between its special tokens, and only on request. The ``check_``
functions refuse what is not text before it reaches a tokenizer, here and in ``tasks``.

Few-shot prompts hold a few inputs with their outputs, then an input without one. Examples are rows of a JSON Lines
file: objects with ``input`` and ``output``, or ``prompt`` and ``completion``, or ``question`` and ``answer``.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path

from torch import nn

from glassformer.config.checks import Item, Setting, SettingError, check_choice
from glassformer.generation.settings import Side
from glassformer.hub import Loaded
from glassformer.loaded import check_ability
from glassformer.text.tokenizer import Tokenizer

EXAMPLE_KEYS = (("input", "output"), ("prompt", "completion"), ("question", "answer"))
TEMPLATE = "{input}\n{output}\n\n"


@dataclass(frozen=True)
class SourceText:
    """The ids of a text to translate, and the language token to generate first."""

    ids: Sequence[int]
    forced_first: int


PromptInput = str | Sequence[int] | SourceText  # ids have all special tokens, as those of a rendered conversation


@dataclass(frozen=True)
class Prompt:
    """The tokens of a text, and apart from them the special tokens before and after it."""

    number: int  # its index among the prompts, for errors
    before: tuple[int, ...]
    body: tuple[int, ...]
    after: tuple[int, ...] = ()
    cut: int = 0  # tokens of the text that were cut off

    @property
    def ids(self) -> list[int]:
        """All tokens in order."""
        return [*self.before, *self.body, *self.after]


def check_loaded(loaded: object) -> None:
    """Raise unless this is what ``glassformer.load`` returns."""
    if not isinstance(loaded, Loaded):
        alone = " For token ids and a model alone: glassformer.generation.generate(model, ids)."
        raise TypeError(
            f"the first argument must be a model with its tokenizer, got {_shown(loaded)}. "
            f"Pass what glassformer.load(...) returned, unchanged.{alone if isinstance(loaded, nn.Module) else ''}"
        )


def check_can(
    loaded: object, name: str, heads: Sequence[str] | None = None, families: Sequence[str] | None = None
) -> None:
    """Raise unless this is what ``glassformer.load`` returns, and a model that can do what ``name`` says."""
    check_loaded(loaded)
    assert isinstance(loaded, Loaded)
    check_ability(loaded, name, heads, families)


def check_text(name: str, value: object, wanted: str = "a text") -> None:
    """Raise unless this is a string; ``wanted`` describes what is expected."""
    if isinstance(value, bytes | bytearray):
        raise TypeError(f"{name} must be {wanted}, got bytes, {value!r:.40}. Decode them: .decode('utf-8').")
    if not isinstance(value, str):
        raise TypeError(f"{name} must be {wanted}, got {_shown(value)}.")


def check_prompt(name: str, value: object) -> None:
    """Raise unless this is a string or a list of token ids."""
    wanted = "a text or a list of token ids"
    if isinstance(value, SourceText):
        value = value.ids
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence):
        if isinstance(value, Integral) and not isinstance(value, bool):
            wanted += " (one list for each prompt)"
        check_text(name, value, wanted)
        return
    for token in value:
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise TypeError(f"{name} must be {wanted}, got a list that holds {_shown(token)}.")


def check_texts(
    loaded: object, texts: object, check: Callable[[str, object], None] = check_text, name: str = "text"
) -> None:
    """Raise unless this is a loaded model and a list of texts, or of what ``check`` accepts."""
    check_loaded(loaded)
    if isinstance(texts, str | bytes | bytearray):  # its characters would be taken for texts
        shown = repr(texts) if len(texts) <= 40 else f"{texts[:40]!r} …"
        raise TypeError(f"{name}s must be a list of texts, got one text, {shown}. Put it in brackets: [text].")
    if not isinstance(texts, Sequence):
        raise TypeError(f"{name}s must be a list, got {_shown(texts)}. Pass a list, [text, …].")
    for number, text in enumerate(texts):
        check(f"{name} {number}", text)


def _shown(value: object) -> str:
    shown = " ".join(repr(value).split())  # the repr of a model has many lines
    return "None" if value is None else f"{shown:.40} ({type(value).__name__})"


def read_prompt(loaded: Loaded, prompt: PromptInput, number: int = 0) -> Prompt:
    """Return the tokens of a prompt. For an empty text without tokens, a decoder begins with the vocabulary's BOS."""
    tokenizer = loaded.tokenizer
    if isinstance(prompt, str):
        before, body, after = _encode(tokenizer, prompt)
        if loaded.config.encoder is None:
            after = ()
    else:
        before, body, after = _split(tokenizer, list(prompt.ids if isinstance(prompt, SourceText) else prompt))
    if not (before or body or after):
        if tokenizer.bos is None or loaded.config.encoder is not None:
            template = "{} has no tokens, and {}; pass at least one word to continue from."
            raise SettingError(template, Item("prompt", number), _why_no_bos(tokenizer))
        before = (tokenizer.bos,)
    return Prompt(number, before, body, after)


def fit_prompt(loaded: Loaded, prompt: Prompt, truncate: Side | None, new_tokens: int) -> Prompt:
    """Return the prompt as it fits the model: unchanged, cut on the side that ``truncate`` names, or an error.

    ``new_tokens``: how many positions a decoder's prompt must leave free when it is cut.
    """
    check_choice("truncate", "left" if truncate is None else truncate, ("left", "right"))
    max_length, size = loaded.config.max_length, len(prompt.ids)
    if max_length is None:
        return prompt
    special = len(prompt.before) + len(prompt.after)
    is_decoder = loaded.config.encoder is None  # the prompt and the new tokens share the positions
    # Without truncation a prompt fits, or is an error.
    if truncate is None:
        if size + is_decoder <= max_length:
            return prompt
        besides = ", of which at least one is for the answer" if is_decoder else ""
        raise SettingError(
            f"{{}} has {size} tokens, and the model takes {max_length}{besides}. Shorten it by "
            f"{size + is_decoder - max_length} tokens, or set {{}} (or 'right') to cut that side.",
            Item("prompt", prompt.number),
            Setting("truncate", "left"),
        )
    # Cut the text between its special tokens.
    kept = max_length - special - (new_tokens if is_decoder else 0)
    if kept < 1:
        raise SettingError(
            f"{{}} leaves no tokens for a prompt: the model takes {max_length} tokens in total. "
            f"Set {{}} to {max_length - special - 1} at most.",
            Setting("max_new_tokens", new_tokens),
            Setting("max_new_tokens"),
        )
    if len(prompt.body) <= kept:
        return prompt
    body = prompt.body[-kept:] if truncate == "left" else prompt.body[:kept]
    return replace(prompt, body=body, cut=len(prompt.body) - kept)


def _encode(tokenizer: Tokenizer, text: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens before a text, the tokens of the text, and the special tokens after it."""
    whole, body = tokenizer.encode(text), tokenizer.encode(text, special=False)
    for start in range(len(whole) - len(body) + 1):
        end = start + len(body)
        if whole[start:end] == body:
            if start == 0:  # the text itself holds the special tokens
                return _split(tokenizer, body, tuple(whole[end:]))
            return tuple(whole[:start]), tuple(body), tuple(whole[end:])
    return (), tuple(whole), ()


def _split(
    tokenizer: Tokenizer, ids: list[int], after: tuple[int, ...] = ()
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return ids, with the special tokens at either end apart: they are kept when the rest is cut."""
    special = special_ids(tokenizer)
    first = next((index for index, token in enumerate(ids) if token not in special), len(ids))
    last = next((index for index in range(len(ids), first, -1) if ids[index - 1] not in special), first)
    return tuple(ids[:first]), tuple(ids[first:last]), (*ids[last:], *after)


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """Return the ids of the tokens that are not text: BOS, EOS, languages …"""
    added = tokenizer.backend.get_added_tokens_decoder()
    return {token_id for token_id, token in added.items() if token.special}


def _why_no_bos(tokenizer: Tokenizer) -> str:
    return "its vocabulary has no BOS to begin with" if tokenizer.bos is None else "an encoder needs some input"


@dataclass(frozen=True)
class Example:
    """One input with its output."""

    input: str
    output: str


@dataclass(frozen=True)
class FewShot:
    """Examples and their template. The text after ``{output}`` separates them, and ends the model's output."""

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
                f"the template {self.template!r} ends with {{output}}, so the end of an answer cannot be recognised; "
                r"put something after it, such as two line breaks."
            )
        if not self.examples:
            raise ValueError("there are no examples; a few-shot prompt needs at least one.")

    @property
    def separator(self) -> str:
        """The text that ends an output."""
        return self.template.partition("{output}")[2]

    def prompt(self, text: str) -> str:
        """Return the examples, then an input without its output.

        A space before the output is left to the model: for most tokenizers it is part of the first word.
        """
        examples = "".join(self._before_output(e.input) + e.output + self.separator for e in self.examples)
        return examples + self._before_output(text).rstrip(" ")

    def _before_output(self, text: str) -> str:
        before, _, rest = self.template.partition("{input}")
        return before + text + rest.partition("{output}")[0]


def read_examples(path: Path | str) -> tuple[Example, ...]:
    """Return the examples in a JSON Lines file; the error for a bad row names file and line."""
    examples = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            examples.append(_example(line, f"{path}, line {number}"))
    if not examples:
        raise ValueError(f"{path} holds no examples.")
    return tuple(examples)


def _example(line: str, where: str) -> Example:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON ({error}).") from error
    for first, second in EXAMPLE_KEYS:
        if isinstance(row, dict) and {first, second} <= row.keys():
            if not (isinstance(row[first], str) and isinstance(row[second], str)):
                raise ValueError(
                    f"{where}: {first} and {second} must be texts, got {row[first]!r} and {row[second]!r}."
                )
            return Example(row[first], row[second])
    known = ", or ".join(" and ".join(pair) for pair in EXAMPLE_KEYS)
    raise ValueError(f"{where}: an example is an object with {known}; got {line.strip():.60}")
