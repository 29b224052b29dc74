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
from glassformer.loaded import check_ability
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import Batch, Progress, Row, head_input, run_in_batches
from glassformer.tasks.entities import Entity, Word, join_entities
from glassformer.tasks.texts import Framed, Token, Tokens, frame, overlapping, trim
from glassformer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Tagged:
    """A text with its words and entities; a list of words is joined by single spaces."""

    text: str
    words: tuple[Word, ...]
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class _WordTokens:
    """A word without its label: the characters [start, end), its tokens, and the token that has its label."""

    start: int
    end: int
    tokens: Tokens
    labelled: int = 0  # index of that token


@dataclass(frozen=True)
class _Words:
    """A text split into words."""

    text: str
    framed: Framed
    spans: tuple[_WordTokens, ...]


@dataclass(frozen=True)
class _Part:
    """The words [first, last) of a text, which fit the model together."""

    whole: _Words
    first: int
    last: int

    @property
    def row(self) -> Row:
        """The tokens of these words in the frame of the text."""
        spans = self.whole.spans[self.first : self.last]
        return replace(self.whole.framed, first=tuple(token for span in spans for token in span.tokens)).row

    @property
    def label_indices(self) -> list[int]:
        """For each word, the index in the row of the token that has its label."""
        indices, start = [], len(self.whole.framed.before)
        for span in self.whole.spans[self.first : self.last]:
            indices.append(start + span.labelled)
            start += len(span.tokens)
        return indices

    def context(self, word: int) -> float:
        """The number of words before or after this one in the part, whichever is smaller; inf at an end of the text."""
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

    The label of a word, and its probability, are those of its first token. A text is split into words where the
    tokenizer splits it, at white space, and around punctuation. A text that is longer than the model takes is read in
    windows that begin and end between words; a word in two windows gets its label where it has more context.

    Args:
        loaded: a model with a head of the kind tag, and its tokenizer.
        texts: texts, or lists of words.
        overlap: tokens that neighbouring windows share at most; None: a quarter of the window.
        batch_size: windows per batch.
        progress: called with the number done and the total.
    """
    check_texts(loaded, texts, _check_text_or_words)
    check_count(overlap=0 if overlap is None else overlap)
    model = loaded.model
    check_ability(model.config, "tag")
    head = model.config.head
    assert isinstance(head, TaskHead)
    wholes = [_split(loaded.tokenizer, text, f"text {number}") for number, text in enumerate(texts)]
    parts = [_parts(whole, model.config.longest, overlap) for whole in wholes]
    all_parts = [part for parts_of_text in parts for part in parts_of_text]

    def run(model: Transformer, batch: Batch) -> list[list[tuple[str, float]]]:
        probs = upcast(model.apply_head(*head_input(model, batch))).softmax(-1)  # (B, T, C)
        labels = []
        for row, number in zip(probs, batch.numbers, strict=True):
            best = row[all_parts[number].label_indices].max(-1)  # (words,)
            names = [head.labels[index] for index in best.indices.tolist()]
            labels.append(list(zip(names, best.values.tolist(), strict=True)))
        return labels

    labels = iter(run_in_batches(model, [part.row for part in all_parts], run, batch_size, progress))
    return [
        _tagged(whole, [(part, next(labels)) for part in parts_of_text])
        for whole, parts_of_text in zip(wholes, parts, strict=True)
    ]


def _check_text_or_words(name: str, value: object) -> None:
    if isinstance(value, tuple | list):
        for number, word in enumerate(value):
            check_text(f"word {number} of {name}", word)
    else:
        check_text(name, value, "a text or a list of words")


def _tagged(whole: _Words, parts: Sequence[tuple[_Part, list[tuple[str, float]]]]) -> Tagged:
    """Each word with its label from the window in which it has most context."""
    words = []
    for number, span in enumerate(whole.spans):
        holding = [(part, labels) for part, labels in parts if part.first <= number < part.last]
        part, labels = max(holding, key=lambda pair: pair[0].context(number))
        words.append(Word(whole.text[span.start : span.end], span.start, span.end, *labels[number - part.first]))
    return Tagged(whole.text, tuple(words), join_entities(whole.text, words))


def _parts(whole: _Words, longest: int | None, overlap: int | None) -> list[_Part]:
    sizes = [len(span.tokens) for span in whole.spans]
    max_tokens = sum(sizes) if longest is None else longest - whole.framed.frame
    if longest is not None and overlap is not None and overlap >= max_tokens:
        raise ValueError(
            f"overlap={overlap} leaves nothing new for the next window: this model takes {longest} tokens, "
            f"{max_tokens} of them of the text. Set overlap to {max_tokens - 1} at most."
        )
    for span, size in zip(whole.spans, sizes, strict=True):
        if size > max_tokens:
            raise ValueError(
                f"{whole.framed.name} has a word of {size} tokens, {whole.text[span.start : span.end]!r:.40}, and this "
                f"model takes {max_tokens} beside special tokens. A word cannot be read in parts; shorten it."
            )
    shared = max_tokens // 4 if overlap is None else overlap
    return [_Part(whole, *ends) for ends in overlapping(sizes, max_tokens, shared)]


def _split(tokenizer: Tokenizer, words: str | Sequence[str], name: str) -> _Words:
    text = words if isinstance(words, str) else " ".join(words)
    framed = frame(tokenizer, text, name=name)
    return _Words(text, framed, _find_words(text, framed) if isinstance(words, str) else take_words(words, framed))


def _find_words(text: str, framed: Framed) -> tuple[_WordTokens, ...]:
    """Words by the characters of the tokens. Tokens of white space alone belong to the word before them."""
    groups: list[list[Token]] = []
    for number, token in enumerate(framed.first):
        if number and not _begins_word(text, framed.first[number - 1], token):
            groups[-1].append(token)
        else:
            groups.append([token])
    spans: list[_WordTokens] = []
    leading: Tokens = ()  # white space before the first word: read with it, but not labelled
    for group in groups:
        start, end = trim(text, group[0].start, group[-1].end)
        if start < end:
            spans.append(_WordTokens(start, end, (*leading, *group), len(leading)))
            leading = ()
        elif spans:
            spans[-1] = replace(spans[-1], tokens=(*spans[-1].tokens, *group))
        else:
            leading = (*leading, *group)
    if not spans:
        raise ValueError(f"{framed.name} has no word: {text!r:.60}. Leave it out.")
    return tuple(spans)


def _begins_word(text: str, before: Token, token: Token) -> bool:
    if token.start < before.end:  # parts of one character
        return False
    between = text[before.end : token.start + 1]
    if before.word != token.word or any(character.isspace() for character in between):
        return True
    if not text[before.start : before.end].strip():  # the space before a word, as a token of its own
        return False
    return any(_is_punctuation(text[index : index + 1]) for index in (before.end - 1, token.start))


def _is_punctuation(character: str) -> bool:
    """Punctuation and symbols, by Unicode's categories."""
    return bool(character) and unicodedata.category(character)[0] in "PS"


def take_words(words: Sequence[str], framed: Framed) -> tuple[_WordTokens, ...]:
    """The tokens of a list of words; a token belongs to the word that holds its first character."""
    text = " ".join(words)
    starts = [sum(len(word) + 1 for word in words[:number]) for number in range(len(words))]
    groups: list[list[Token]] = [[] for _ in words]
    for token in framed.first:
        groups[max(0, bisect_right(starts, trim(text, token.start, token.end)[0]) - 1)].append(token)
    for number, (word, group) in enumerate(zip(words, groups, strict=True)):
        if not group or not word.strip():
            raise ValueError(f"word {number} of {framed.name}, {word!r:.40}, gives no token of its own. Leave it out.")
    return tuple(
        _WordTokens(start, start + len(word), tuple(group))
        for start, word, group in zip(starts, words, groups, strict=True)
    )
