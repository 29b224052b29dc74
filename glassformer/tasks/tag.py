"""A label for every word of a text, and the entities that the labels mark.

Shapes: ``B`` windows, ``T`` tokens, ``C`` labels.
"""

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from glassformer.config import TaskHead
from glassformer.config.checks import check_count
from glassformer.generation.prompts import check_text, check_texts
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import Batch, Progress, Row, ask_in_batches, vectors
from glassformer.tasks.entities import Entity, Word, join_entities
from glassformer.tasks.texts import Framed, Token, Tokens, check_head, frame, trim
from glassformer.tasks.windows import overlapping
from glassformer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Tagged:
    """A text with its words and entities; words that were given are joined by single spaces."""

    text: str
    words: tuple[Word, ...]
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class _Span:
    """A word without its label: the characters [start, end), its tokens, and which of them speaks for it."""

    start: int
    end: int
    tokens: Tokens
    speaker: int = 0


@dataclass(frozen=True)
class _Text:
    """A text cut into words."""

    text: str
    framed: Framed
    spans: tuple[_Span, ...]


@dataclass(frozen=True)
class _Part:
    """The words [first, last) of a text, which fit into the model together."""

    whole: _Text
    first: int
    last: int

    @property
    def row(self) -> Row:
        """The tokens of these words in the frame of the text."""
        spans = self.whole.spans[self.first : self.last]
        return replace(self.whole.framed, first=tuple(token for span in spans for token in span.tokens)).row

    @property
    def places(self) -> list[int]:
        """Where in the row the tokens stand that speak for the words."""
        found, place = [], len(self.whole.framed.before)
        for span in self.whole.spans[self.first : self.last]:
            found.append(place + span.speaker)
            place += len(span.tokens)
        return found

    def context(self, word: int) -> float:
        """How many words stand beside this one on its poorer side; at an end of the text nothing is missing."""
        left = inf if self.first == 0 else word - self.first
        return min(left, inf if self.last == len(self.whole.spans) else self.last - 1 - word)


def tag(
    loaded: Loaded,
    texts: Sequence[str | Sequence[str]],
    *,
    overlap: int | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> list[Tagged]:
    """The labels of the words of texts, in the order of the texts.

    The label of a word, and its probability, are those of its first token. A text is cut into words where the tokenizer
    cuts, at white space, and around punctuation. A text that is longer than the model is read in windows that begin and
    end between words; a word that is in two of them gets its label where more words stand beside it.

    Args:
        loaded: a model with a head of the kind tag, and its tokenizer.
        texts: texts, or lists of words.
        overlap: tokens that neighbouring windows share at most; a quarter of the window unless given.
        batch_size: windows at a time.
        progress: called with how many are done, and of how many.
    """
    check_texts(loaded, texts, _check_text_or_words)
    check_count(overlap=0 if overlap is None else overlap)
    model = loaded.model
    check_head(model.config, ("tag",), "tag")
    head = model.config.head
    assert isinstance(head, TaskHead)
    wholes = [_cut(loaded.tokenizer, text, f"text {number}") for number, text in enumerate(texts)]
    parts = [_parts(whole, model.config.longest, overlap) for whole in wholes]
    asked = [part for some in parts for part in some]

    def ask(model: Transformer, batch: Batch) -> list[list[tuple[str, float]]]:
        probs = upcast(model.apply_head(*vectors(model, batch))).softmax(-1)  # B T C
        found = []
        for row, number in zip(probs, batch.numbers, strict=True):
            best = row[asked[number].places].max(-1)
            names = [head.labels[index] for index in best.indices.tolist()]
            found.append(list(zip(names, best.values.tolist(), strict=True)))
        return found

    labels = iter(ask_in_batches(model, [part.row for part in asked], ask, batch_size, progress))
    return [_tagged(whole, [(part, next(labels)) for part in some]) for whole, some in zip(wholes, parts, strict=True)]


def _check_text_or_words(name: str, value: object) -> None:
    if isinstance(value, tuple | list):
        for number, word in enumerate(value):
            check_text(f"word {number} of {name}", word)
    else:
        check_text(name, value, "a text or a list of words")


def _tagged(whole: _Text, found: Sequence[tuple[_Part, list[tuple[str, float]]]]) -> Tagged:
    """Each word with its label from the window in which most words stand beside it."""
    words = []
    for number, span in enumerate(whole.spans):
        holding = [one for one in found if one[0].first <= number < one[0].last]
        part, labels = max(holding, key=lambda one: one[0].context(number))
        words.append(Word(whole.text[span.start : span.end], span.start, span.end, *labels[number - part.first]))
    return Tagged(whole.text, tuple(words), join_entities(whole.text, words))


def _parts(whole: _Text, longest: int | None, overlap: int | None) -> list[_Part]:
    sizes = [len(span.tokens) for span in whole.spans]
    room = sum(sizes) if longest is None else longest - whole.framed.frame
    if longest is not None and overlap is not None and overlap >= room:
        raise ValueError(
            f"overlap={overlap} leaves nothing new for the next window: this model takes {longest} tokens, {room} of "
            f"them of the text. Set overlap to {room - 1} at most."
        )
    for span, size in zip(whole.spans, sizes, strict=True):
        if size > room:
            raise ValueError(
                f"{whole.framed.name} has a word of {size} tokens, {whole.text[span.start : span.end]!r:.40}, and this "
                f"model takes {room} besides its own. A word cannot be read in parts; shorten it."
            )
    return [_Part(whole, *ends) for ends in overlapping(sizes, room, room // 4 if overlap is None else overlap)]


def _cut(tokenizer: Tokenizer, given: str | Sequence[str], name: str) -> _Text:
    text = given if isinstance(given, str) else " ".join(given)
    framed = frame(tokenizer, text, name=name)
    return _Text(text, framed, _find_words(text, framed) if isinstance(given, str) else take_words(given, framed))


def _find_words(text: str, framed: Framed) -> tuple[_Span, ...]:
    """Words by the tokens' own characters. Tokens of nothing but white space go with the word before them."""
    groups: list[list[Token]] = []
    for number, token in enumerate(framed.first):
        if number and not _begins_word(text, framed.first[number - 1], token):
            groups[-1].append(token)
        else:
            groups.append([token])
    spans: list[_Span] = []
    silent: Tokens = ()  # white space before the first word: read with it, but not asked for its label
    for group in groups:
        start, end = trim(text, group[0].start, group[-1].end)
        if start < end:
            spans.append(_Span(start, end, (*silent, *group), len(silent)))
            silent = ()
        elif spans:
            spans[-1] = replace(spans[-1], tokens=(*spans[-1].tokens, *group))
        else:
            silent = (*silent, *group)
    if not spans:
        raise ValueError(f"{framed.name} has no word: {text!r:.60}. Leave it out.")
    return tuple(spans)


def _begins_word(text: str, before: Token, token: Token) -> bool:
    if token.start < before.end:  # parts of one character
        return False
    between = text[before.end : token.start + 1]
    if before.word != token.word or any(letter.isspace() for letter in between):
        return True
    if not text[before.start : before.end].strip():  # the space before a word, as a token of its own
        return False
    return any(_is_punctuation(text[place : place + 1]) for place in (before.end - 1, token.start))


def _is_punctuation(letter: str) -> bool:
    """Punctuation and symbols, by Unicode's categories."""
    return bool(letter) and unicodedata.category(letter)[0] in "PS"


def take_words(words: Sequence[str], framed: Framed) -> tuple[_Span, ...]:
    """The words that were given; a token belongs to the word in which its first letter stands."""
    text = " ".join(words)
    starts = [sum(len(word) + 1 for word in words[:number]) for number in range(len(words))]
    groups: list[list[Token]] = [[] for _ in words]
    for token in framed.first:
        groups[max(0, bisect_right(starts, trim(text, token.start, token.end)[0]) - 1)].append(token)
    for number, (word, group) in enumerate(zip(words, groups, strict=True)):
        if not group or not word.strip():
            raise ValueError(f"word {number} of {framed.name}, {word!r:.40}, gives no token of its own. Leave it out.")
    return tuple(
        _Span(start, start + len(word), tuple(group)) for start, word, group in zip(starts, words, groups, strict=True)
    )
