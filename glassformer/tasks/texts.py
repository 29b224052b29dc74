"""Texts as tokens, with the special tokens around them (the frame) apart from those of the text; and windows.

A text can be cut, or read window by window, and keep its frame. Errors name a text by its index in the list.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from glassformer.config.checks import check_choice, check_positive
from glassformer.generation.prompts import check_text
from glassformer.generation.settings import Side
from glassformer.tasks.batches import Row
from glassformer.text.tokenizer import Tokenizer

Pair = tuple[str, str]


class Token(NamedTuple):
    """One token of a text, or of the frame around it."""

    id: int
    segment: int
    start: int  # the characters [start, end) of its text that it covers
    end: int
    word: int | None  # index of its word, as the tokenizer splits the text first; None in the frame


Tokens = tuple[Token, ...]


@dataclass(frozen=True)
class Framed:
    """The tokens of a text or a pair of texts, and of the frame before, between and after; missing parts are empty."""

    name: str  # of the text in errors
    before: Tokens
    first: Tokens
    between: Tokens
    second: Tokens
    after: Tokens

    @property
    def tokens(self) -> Tokens:
        """All tokens in order."""
        return self.before + self.first + self.between + self.second + self.after

    @property
    def frame(self) -> int:
        """How many tokens the frame has."""
        return len(self.before) + len(self.between) + len(self.after)

    @property
    def row(self) -> Row:
        """The model's input."""
        return Row([token.id for token in self.tokens], [token.segment for token in self.tokens])


def frame(tokenizer: Tokenizer, text: str, pair: str | None = None, *, name: str) -> Framed:
    """The tokens of ``tokenizer.encode(text, pair)``, part by part; a text without tokens is an error."""
    encoding = tokenizer.backend.encode(text, pair)
    parts: list[list[Token]] = [[], [], [], [], []]  # before, first, between, second, after
    part = 0
    spans = zip(encoding.offsets, encoding.word_ids, strict=True)
    for sequence, token_id, segment, ((start, end), word) in zip(
        encoding.sequence_ids, encoding.ids, encoding.type_ids, spans, strict=True
    ):
        part = {None: 2 * ((part + 1) // 2), 0: 1, 1: 3}[sequence]  # frame tokens have no sequence
        parts[part].append(Token(token_id, segment, start, end, word))
    if pair is None:
        parts[2], parts[4] = [], parts[2]  # the frame after a single text
    before, first, between, second, after = map(tuple, parts)
    # A text that itself holds a token of the frame does not get it twice; the one in the text counts as the frame's.
    if len(before) == 1 and first and first[0].id == before[0].id:
        first = first[1:]
    last = first if pair is None else second
    if len(after) == 1 and last and last[-1].id == after[0].id:
        last = last[:-1]
    first, second = (last, second) if pair is None else (first, last)
    for tokens, content in ((first, text), (second, pair)):
        if content is not None and not tokens:
            raise ValueError(f"{name} gives no token: {content!r:.60}. Leave it out.")
    return Framed(name, before, first, between, second, after)


def fit(framed: Framed, longest: int | None, truncate: Side | None) -> Framed:
    """Cut the text on the side that ``truncate`` names, so that it fits the model; of a pair the longer text first."""
    check_choice("truncate", "left" if truncate is None else truncate, ("left", "right"))
    size = len(framed.tokens)
    if longest is None or size <= longest:
        return framed
    if truncate is None:
        raise ValueError(
            f"{framed.name} has {size} tokens, {framed.frame} of them special, and this model takes {longest}. "
            f"Shorten it by {size - longest} tokens, or set truncate='right' (or 'left') to cut that side."
        )
    available = longest - framed.frame
    if available < (2 if framed.second else 1):
        raise ValueError(f"this model takes {longest} tokens, too few for {framed.frame} special tokens and a text.")
    first, second = len(framed.first), len(framed.second)
    kept = min(first, max(available - second, available - available // 2))
    return replace(
        framed,
        first=_cut(framed.first, kept, truncate),
        second=_cut(framed.second, min(second, available - kept), truncate),
    )


def _cut(tokens: Tokens, kept: int, side: Side) -> Tokens:
    return tokens[:kept] if side == "right" else tokens[len(tokens) - kept :]


def trim(text: str, start: int, end: int) -> tuple[int, int]:
    """The characters [start, end) without white space at either end: many tokens hold the space before a word."""
    span = text[start:end]
    return start + len(span) - len(span.lstrip()), max(start, end - len(span) + len(span.rstrip()))


def check_pair(name: str, value: object, wanted: str = "a pair (text, text)") -> None:
    """Raise unless this is a pair of texts; ``wanted`` describes what is expected."""
    if not isinstance(value, tuple | list):
        hint = f" Put pairs in a list: [{wanted[wanted.index('(') :]}, …]." if isinstance(value, str) else ""
        raise TypeError(f"{name} must be {wanted}, got {value!r:.40} ({type(value).__name__}).{hint}")
    if len(value) != 2:
        raise ValueError(f"{name} must be {wanted}, got {len(value)} parts: {value!r:.60}.")
    for part, text in zip(("first", "second"), value, strict=True):
        check_text(f"the {part} part of {name}", text)


def check_text_or_pair(name: str, value: object) -> None:
    """Raise unless this is a text or a pair of texts."""
    if isinstance(value, tuple | list):
        check_pair(name, value, "a text or a pair (text, text)")
    else:
        check_text(name, value, "a text or a pair (text, text)")


# --- windows ---------------------------------------------------------------------------------------------------------


class Window(NamedTuple):
    """Tokens [start, end) of a sequence; those from ``new`` on are in no earlier window."""

    start: int
    new: int
    end: int


def sliding(length: int, window: int, stride: int) -> list[Window]:
    """Windows over ``length`` tokens, each ``stride`` further than the one before, the last only to the end."""
    windows = [Window(0, 0, min(window, length))]
    while (reached := windows[-1].end) < length:
        end = min(reached + stride, length)
        windows.append(Window(end - window, reached, end))
    return windows


def check_windows(window: int | None, stride: int | None, longest: int | None, length: int) -> tuple[int, int]:
    """Check window and stride; None: the most that the model takes, and half of the window.

    For a model without a limit, the default is one window over the whole ``length``.
    """
    check_positive(window=1 if window is None else window, stride=1 if stride is None else stride)
    if window is not None and longest is not None and window > longest:
        raise ValueError(f"window={window} tokens are more than this model takes: {longest}.")
    size = max(2, length) if longest is None else longest
    size = size if window is None else window
    step = max(1, size // 2) if stride is None else stride
    if size < 2 or step >= size:
        raise ValueError(f"stride={step} must be less than window={size}, so that every predicted token has context.")
    return size, step


def overlapping(sizes: Sequence[int], max_tokens: int, overlap: int) -> list[tuple[int, int]]:
    """Ranges [first, last) of words that have at most ``max_tokens`` tokens each and share about ``overlap`` tokens.

    ``sizes``: how many tokens each word has, at most ``max_tokens``.
    """
    ranges, first = [], 0
    while True:
        last, used = first, 0
        while last < len(sizes) and used + sizes[last] <= max_tokens:
            used += sizes[last]
            last += 1
        ranges.append((first, last))
        if last == len(sizes):
            return ranges
        again, shared = last, 0
        while again - 1 > first and shared + sizes[again - 1] <= min(overlap, max_tokens - sizes[last]):
            again -= 1
            shared += sizes[again]
        first = again
