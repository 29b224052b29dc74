"""From texts to the tokens of a row, with the model's own tokens around them known apart from those of the text.

A text can then be cut, or looked at window by window, and keep its frame. Errors name a text by its place in the list.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from glassformer import config
from glassformer.config.checks import Setting, SettingError, check_choice
from glassformer.generation.prompts import Side, check_text
from glassformer.tasks.batches import Row
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights.lineage import head_kind

Pair = tuple[str, str]


class Token(NamedTuple):
    """One token of a text, or of the frame around it."""

    id: int
    segment: int
    start: int  # the characters [start, end) of its text that it covers
    end: int
    word: int | None  # which of the words that the tokenizer cut first; None in the frame


Tokens = tuple[Token, ...]


@dataclass(frozen=True)
class Framed:
    """before, a text, between, a second text, after; what there is not is empty."""

    name: str  # how errors call it
    before: Tokens
    first: Tokens
    between: Tokens
    second: Tokens
    after: Tokens

    @property
    def tokens(self) -> Tokens:
        """All in their order."""
        return self.before + self.first + self.between + self.second + self.after

    @property
    def frame(self) -> int:
        """How many tokens are the model's own."""
        return len(self.before) + len(self.between) + len(self.after)

    @property
    def row(self) -> Row:
        """What the model is given."""
        return Row([token.id for token in self.tokens], [token.segment for token in self.tokens])


def frame(tokenizer: Tokenizer, text: str, pair: str | None = None, *, name: str) -> Framed:
    """The tokens of ``tokenizer.encode(text, pair)``, part by part; a text without any is an error."""
    found = tokenizer.backend.encode(text, pair)
    parts: list[list[Token]] = [[], [], [], [], []]  # before, first, between, second, after
    now = 0
    spans = zip(found.offsets, found.word_ids, strict=True)
    for source, number, segment, ((start, end), word) in zip(
        found.sequence_ids, found.ids, found.type_ids, spans, strict=True
    ):
        now = {None: 2 * ((now + 1) // 2), 0: 1, 1: 3}[source]
        parts[now].append(Token(number, segment, start, end, word))
    if pair is None:
        parts[2], parts[4] = [], parts[2]  # what stands after the only text
    before, first, between, second, after = map(tuple, parts)
    # A text that brings the framing token along does not get it twice; the one in the text counts as the frame's.
    if len(before) == 1 and first and first[0].id == before[0].id:
        first = first[1:]
    last = first if pair is None else second
    if len(after) == 1 and last and last[-1].id == after[0].id:
        last = last[:-1]
    first, second = (last, second) if pair is None else (first, last)
    for part, words in ((first, text), (second, pair)):
        if words is not None and not part:
            raise ValueError(f"{name} gives no token: {words!r:.60}. Leave it out.")
    return Framed(name, before, first, between, second, after)


def fit(framed: Framed, longest: int | None, truncate: Side | None) -> Framed:
    """Cut the text on the side that ``truncate`` names, as far as the model asks; of a pair the longer one first."""
    check_choice("truncate", "left" if truncate is None else truncate, ("left", "right"))
    size = len(framed.tokens)
    if longest is None or size <= longest:
        return framed
    if truncate is None:
        raise ValueError(
            f"{framed.name} has {size} tokens, {framed.frame} of them the model's own, and this model takes {longest}. "
            f"Shorten it by {size - longest} tokens, or say truncate='right' (or 'left') to have that side cut off."
        )
    room = longest - framed.frame
    if room < (2 if framed.second else 1):
        raise ValueError(f"this model takes {longest} tokens, too few for the {framed.frame} of its own and a text.")
    first, second = len(framed.first), len(framed.second)
    kept = min(first, max(room - second, room - room // 2))
    return replace(
        framed, first=_cut(framed.first, kept, truncate), second=_cut(framed.second, min(second, room - kept), truncate)
    )


def _cut(tokens: Tokens, kept: int, side: Side) -> Tokens:
    return tokens[:kept] if side == "right" else tokens[len(tokens) - kept :]


def trim(text: str, start: int, end: int) -> tuple[int, int]:
    """The characters [start, end) without white space at either end: many tokens carry the space before a word."""
    found = text[start:end]
    return start + len(found) - len(found.lstrip()), max(start, end - len(found) + len(found.rstrip()))


def check_pair(name: str, value: object, wanted: str = "a pair (text, text)") -> None:
    """Raise unless these are two texts; ``wanted`` says what would do."""
    if not isinstance(value, tuple | list):
        hint = f" Put pairs in a list: [{wanted[wanted.index('(') :]}, …]." if isinstance(value, str) else ""
        raise TypeError(f"{name} must be {wanted}, got {value!r:.40} ({type(value).__name__}).{hint}")
    if len(value) != 2:
        raise ValueError(f"{name} must be {wanted}, got {len(value)} parts: {value!r:.60}.")
    for part, one in zip(("first", "second"), value, strict=True):
        check_text(f"the {part} part of {name}", one)


def check_text_or_pair(name: str, value: object) -> None:
    """Raise unless this is a text, or two."""
    if isinstance(value, tuple | list):
        check_pair(name, value, "a text or a pair (text, text)")
    else:
        check_text(name, value, "a text or a pair (text, text)")


def check_head(facts: config.Model, needed: Sequence[str], what: str, families: Sequence[str] = ()) -> None:
    """Raise unless the model has a head of one of the kinds ``needed``, and is of a family that is named, if any is."""
    kind = head_kind(facts.head)
    if kind not in needed:
        raise SettingError(
            f"{what} needs a model with a head of the kind {' or '.join(needed)}; this one's is of the kind {kind}. "
            "Load it with {} if the folder has the weights of such a head.",
            Setting("head", needed[0]),
        )
    if families and facts.family not in families:
        raise ValueError(f"{what} needs a model of the family {' or '.join(families)}; this one is: {facts.family}.")
