"""A truecaser by rules and counts: capital letters for lower-case English, learned from text that has them.

A word at the start of a sentence is capitalised; "i" always is. Any other word is capitalised if the learned text does
so after the same preceding word, or, where that pair is rare, in most positions inside sentences. A word that follows
"named", "name was" or "called" is a name, for the rest of the document, unless the learned text has it in lower case.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_SPEECH = {
    "said", "says", "asked", "replied", "answered", "shouted", "cried", "exclaimed", "yelled", "whispered", "called",
    "screamed", "thought", "laughed", "giggled", "sobbed", "begged", "explained", "agreed", "repeated", "squealed",
}  # fmt: skip
_NAMING = re.compile(r"(?:named|name was|name is|called|names were)\s+$")
_SENTENCE_END = re.compile(r"""[.!?…]["')]*\s+["'(]*$""")
_AFTER_QUESTION = re.compile(r"""[!?]["']\s+$""")
_OPENING_QUOTE = re.compile(r"""(?:^|[\s(,:])"$""")
RARE = 3  # occurrences of a pair of words, below which the word alone decides


class Truecaser:
    """Learns from cased documents, and restores capital letters of lower-case ones."""

    def __init__(self, documents: Iterable[str]) -> None:
        self._words: Counter[tuple[str, bool]] = Counter()  # (word, is capitalised), inside sentences
        self._pairs: Counter[tuple[str, str, bool]] = Counter()
        for document in documents:
            for word, before, previous in _words(document):
                if not _starts_sentence(before, word, ""):
                    is_capital = word[0].isupper()
                    self._words[word.lower(), is_capital] += 1
                    self._pairs[previous, word.lower(), is_capital] += 1

    def restore(self, document: str) -> str:
        """The document with capital letters."""
        names = {word for word, before, _ in _words(document) if _NAMING.search(before) and not self._is_common(word)}
        parts, end = [], 0
        for match in WORD.finditer(document):
            word, before = match.group(), document[max(0, match.start() - 24) : match.start()]
            previous = _last_word(before)
            after = document[match.end() : match.end() + 40]
            is_capital = (
                word.split("'")[0] == "i"
                or word.removesuffix("'s") in names
                or _starts_sentence(before, word, after)
                or self._is_capital(previous, word)
            )
            parts += [document[end : match.start()], word[0].upper() + word[1:] if is_capital else word]
            end = match.end()
        return "".join(parts) + document[end:]

    def _is_capital(self, previous: str, word: str) -> bool:
        for capital, small in (
            (self._pairs[previous, word, True], self._pairs[previous, word, False]),
            (self._words[word, True], self._words[word, False]),
        ):
            if capital + small >= RARE:
                return capital > small
        return self._words[word, True] > self._words[word, False]

    def _is_common(self, word: str) -> bool:
        """Whether the learned text has the word mostly in lower case."""
        return self._words[word, False] > self._words[word, True]


def _words(document: str) -> Iterator[tuple[str, str, str]]:
    """Each word, the characters before it, and the word before it in lower case."""
    for match in WORD.finditer(document):
        before = document[max(0, match.start() - 24) : match.start()]
        yield match.group(), before, _last_word(before)


def _last_word(before: str) -> str:
    words = WORD.findall(before)
    return words[-1].lower() if words else ""


def _starts_sentence(before: str, word: str, after: str) -> bool:
    """Whether a word begins a sentence; ``after``: the text that follows it, which shows 'she said' after a quote."""
    if not before.strip() or before.rstrip(" \t\"'(").endswith("\n"):
        return True
    if _OPENING_QUOTE.search(before):
        return True
    if _AFTER_QUESTION.search(before):  # "Why?" she asked; "Why?" She ran
        following = [word.lower(), *(match.lower() for match in WORD.findall(after.split(".")[0])[:3])]
        return not _SPEECH & set(following)
    return bool(_SENTENCE_END.search(before))


def word_accuracy(truecaser: Truecaser, documents: Iterable[str]) -> float:
    """The share of words of cased documents that come back as they were, after they were written in lower case."""
    right = total = 0
    for document in documents:
        restored = WORD.findall(truecaser.restore(document.lower()))
        original = WORD.findall(document)
        right += sum(a[0] == b[0] for a, b in zip(restored, original, strict=True))
        total += len(original)
    return right / max(1, total)
