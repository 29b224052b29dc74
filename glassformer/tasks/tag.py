"""A label for every word of a text, and the entities that the labels mark.

Shapes: ``B`` windows, ``T`` tokens, ``C`` labels.
"""

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import overload

from glassformer.config import TaskHead
from glassformer.config.checks import Item, Setting, SettingError, check_count
from glassformer.generation.prompts import check_can, check_text, check_texts
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import (
    Progress,
    TaskBatch,
    TaskRow,
    TextToken,
    TextTokens,
    TokenTuple,
    all_text_tokens,
    batch_tokens,
    head_input,
    overlapping,
    run_in_batches,
    trim,
)
from glassformer.tasks.entities import Entity, Word, join_entities


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
    tokens: TokenTuple
    labelled: int = 0  # index of that token


@dataclass(frozen=True)
class _Words:
    """A text split into words."""

    text: str
    encoded: TextTokens
    spans: tuple[_WordTokens, ...]


@dataclass(frozen=True)
class _Part:
    """The words [first, last) of a text, which fit the model together."""

    whole: _Words
    first: int
    last: int

    @property
    def row(self) -> TaskRow:
        """The tokens of these words, with the special tokens of the text."""
        spans = self.whole.spans[self.first : self.last]
        return replace(self.whole.encoded, first=tuple(token for span in spans for token in span.tokens)).row

    @property
    def label_indices(self) -> list[int]:
        """For each word, the index in the row of the token that has its label."""
        indices, start = [], len(self.whole.encoded.before)
        for span in self.whole.spans[self.first : self.last]:
            indices.append(start + span.labelled)
            start += len(span.tokens)
        return indices

    def context(self, word: int) -> float:
        """Return the number of words before or after this one in the part, whichever is smaller.

        Inf at an end of the text.
        """
        left = inf if self.first == 0 else word - self.first
        return min(left, inf if self.last == len(self.whole.spans) else self.last - 1 - word)


@overload
def tag(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
    loaded: Loaded,
    texts: str,
    *,
    overlap: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Tagged: ...


@overload
def tag(
    loaded: Loaded,
    texts: Sequence[str | Sequence[str]],
    *,
    overlap: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[Tagged]: ...


def tag(
    loaded: Loaded,
    texts: str | Sequence[str | Sequence[str]],
    *,
    overlap: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Tagged | list[Tagged]:
    """Return the labels of the words of a text, or of a list of texts in their order.

    The label of a word, and its probability, are those of its first token. A text is split into words where the
    tokenizer splits it, at white space, and around punctuation. A text that is longer than the model takes is read in
    windows that begin and end between words; a word in two windows gets its label where it has more context.

    Args:
        loaded: a model with a head of the kind tag, and its tokenizer.
        texts: one text, which gives one result, or a list of texts or lists of words.
        overlap: tokens that neighbouring windows share at most; None: a quarter of the window.
        batch_size: windows per batch; None: by their tokens, see ``tasks.batches``.
        progress: called with the number done and the total.
    """
    check_can(loaded, "tag")
    if isinstance(texts, str):
        return tag(loaded, [texts], overlap=overlap, batch_size=batch_size, progress=progress)[0]
    check_texts(loaded, texts, _check_text_or_words)
    check_count(overlap=0 if overlap is None else overlap)
    model = loaded.model
    head = model.config.head
    assert isinstance(head, TaskHead)
    # Words of every text, in windows that fit the model.
    joined = [text if isinstance(text, str) else " ".join(text) for text in texts]
    wholes = [
        _split(text, encoded) for text, encoded in zip(texts, all_text_tokens(loaded.tokenizer, joined), strict=True)
    ]
    parts = [_parts(whole, model.config.max_length, overlap) for whole in wholes]
    all_parts = [part for parts_of_text in parts for part in parts_of_text]

    def run(model: Transformer, batch: TaskBatch) -> list[list[tuple[str, float]]]:
        probs = upcast(model.apply_head(*head_input(model, batch))).softmax(-1)  # (B, T, C)
        labels = []
        for row, number in zip(probs, batch.numbers, strict=True):
            best = row[all_parts[number].label_indices].max(-1)  # (words,)
            names = [head.labels[index] for index in best.indices.tolist()]
            labels.append(list(zip(names, best.values.tolist(), strict=True)))
        return labels

    labels = iter(
        run_in_batches(model, [part.row for part in all_parts], run, batch_size, progress, tokens=batch_tokens(model))
    )
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
    """Return each word with its label from the window in which it has most context."""
    words = []
    for number, span in enumerate(whole.spans):
        holding = [(part, labels) for part, labels in parts if part.first <= number < part.last]
        part, labels = max(holding, key=lambda pair: pair[0].context(number))
        words.append(Word(whole.text[span.start : span.end], span.start, span.end, *labels[number - part.first]))
    return Tagged(whole.text, tuple(words), join_entities(whole.text, words))


def _parts(whole: _Words, longest: int | None, overlap: int | None) -> list[_Part]:
    sizes = [len(span.tokens) for span in whole.spans]
    max_tokens = sum(sizes) if longest is None else longest - whole.encoded.special_count
    if longest is not None and overlap is not None and overlap >= max_tokens:
        raise SettingError(
            f"{{}} leaves nothing new for the next window: this model takes {longest} tokens, "
            f"{max_tokens} of them of the text. Set {{}} to {max_tokens - 1} at most.",
            Setting("overlap", overlap),
            Setting("overlap"),
        )
    for span, size in zip(whole.spans, sizes, strict=True):
        if size > max_tokens:
            raise SettingError(
                f"{{}} has a word of {size} tokens, {{}}, and this "
                f"model takes {max_tokens} beside special tokens. A word cannot be read in parts; shorten it.",
                whole.encoded.name,
                f"{whole.text[span.start : span.end]!r:.40}",
            )
    shared = max_tokens // 4 if overlap is None else overlap
    return [_Part(whole, *ends) for ends in overlapping(sizes, max_tokens, shared)]


def _split(words: str | Sequence[str], encoded: TextTokens) -> _Words:
    text = words if isinstance(words, str) else " ".join(words)
    return _Words(text, encoded, _find_words(text, encoded) if isinstance(words, str) else take_words(words, encoded))


def _find_words(text: str, encoded: TextTokens) -> tuple[_WordTokens, ...]:
    """Return words by the characters of the tokens. Tokens of white space alone belong to the word before them."""
    # Groups of tokens between the beginnings of words.
    groups: list[list[TextToken]] = []
    for number, token in enumerate(encoded.first):
        if number and not _begins_word(text, encoded.first[number - 1], token):
            groups[-1].append(token)
        else:
            groups.append([token])
    # Words without the white space around them.
    spans: list[_WordTokens] = []
    leading: TokenTuple = ()  # white space before the first word: read with it, but not labelled
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
        raise SettingError("{} has no word: {}. Leave it out.", encoded.name, f"{text!r:.60}")
    return tuple(spans)


def _begins_word(text: str, before: TextToken, token: TextToken) -> bool:
    if token.start < before.end:  # parts of one character
        return False
    between = text[before.end : token.start + 1]
    if before.word != token.word or any(character.isspace() for character in between):
        return True
    if not text[before.start : before.end].strip():  # the space before a word, as a token of its own
        return False
    return any(_is_punctuation(text[index : index + 1]) for index in (before.end - 1, token.start))


def _is_punctuation(character: str) -> bool:
    """Whether a character is punctuation or a symbol (Unicode P* or S*)."""
    return bool(character) and unicodedata.category(character)[0] in "PS"


def take_words(words: Sequence[str], encoded: TextTokens) -> tuple[_WordTokens, ...]:
    """Return the tokens of a list of words; a token belongs to the word that holds its first character."""
    text = " ".join(words)
    # Tokens by the word of their first character.
    starts = [sum(len(word) + 1 for word in words[:number]) for number in range(len(words))]
    groups: list[list[TextToken]] = [[] for _ in words]
    for token in encoded.first:
        groups[max(0, bisect_right(starts, trim(text, token.start, token.end)[0]) - 1)].append(token)
    for number, (word, group) in enumerate(zip(words, groups, strict=True)):
        if not group or not word.strip():
            template = "{} of {}, {}, gives no token. Leave it out."
            raise SettingError(template, Item("word", number), encoded.name, f"{word!r:.40}")
    return tuple(
        _WordTokens(start, start + len(word), tuple(group))
        for start, word, group in zip(starts, words, groups, strict=True)
    )
