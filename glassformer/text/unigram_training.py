"""Unigram: the pieces that make a corpus likeliest (Kudo 2018, Subword Regularization, section 3.2).

It begins with all frequent substrings. Expectation and maximisation give each a likelihood; then those go that the
corpus misses least, a quarter at a time, until as many are left as were asked for. Letters never go.

This is done here and not by the ``tokenizers`` library, whose trainer adds numbers up in an order that differs from
run to run: here the same words give the same pieces, to the bit.

All words are one lattice. Node (p, w) is the place before letter p of word w; an edge is a piece between two places.
Words are sorted by length, the longest first, so that the nodes of one p lie side by side: number ``first[p] + w``.

Shapes: ``W`` words, ``C`` letters of all words, ``N`` nodes, ``E`` edges, ``P`` pieces.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, log

import numpy as np
from numpy.typing import NDArray

LONGEST_PIECE = 16  # letters
LONGEST_WORD = 1_000  # letters; a longer one is learnt from in parts
MOST_LETTERS = 2_000_000  # of different words together: keeps it within a gigabyte; rare words are left out first
MOST_SEEDS = 500_000  # substrings to begin with, besides the letters
KEPT = 0.75  # of the pieces, after each round
ROUNDS = 2  # of expectation and maximisation before some pieces go
SPARE = 1.1  # how many more than asked for may be left when the last round is over
LEAST = 0.5  # a piece that is expected less often goes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Edges = NDArray[np.int32]  # there are many of them


def learn_unigram(
    counts: Mapping[str, int], size: int, min_frequency: int = 2, progress: Callable[[int], None] | None = None
) -> list[tuple[str, float]]:
    """At most ``size`` pieces, all letters among them, with the logarithms of their likelihoods; the best first.

    ``counts`` are words and how often each occurs; a piece of several letters must occur ``min_frequency`` times.
    ``progress`` is told how many pieces are left after each round.
    """
    lattice, texts, worth = _build(_parts(counts), min_frequency)
    single = np.array([len(text) == 1 for text in texts])
    scores = np.log(worth) - np.log(worth.sum())

    def reduce_to(keep: NDArray[np.bool_], values: Floats) -> None:
        nonlocal texts, single, scores
        lattice.keep(keep)
        texts = [text for text, kept in zip(texts, keep, strict=True) if kept]
        single, scores = single[keep], values[keep]

    while True:
        for _ in range(ROUNDS):
            expected = lattice.flow(scores, best=False)
            keep = single | (expected >= LEAST)
            expected = np.maximum(expected, LEAST)
            # ψ in place of the logarithm: a prior that favours few pieces (Liang and Klein 2007), as SentencePiece has.
            reduce_to(keep, _digamma(expected) - _digamma(expected[keep].sum(keepdims=True)))
        if progress is not None:
            progress(len(texts))
        if len(texts) <= SPARE * size:
            break
        left = max(int(SPARE * size), int(KEPT * len(texts)))
        reduce_to(_most_missed(texts, scores, lattice.flow(scores, best=True), left), scores)
    ranked = sorted(zip(~single, -scores, texts, strict=True))[:size]  # the letters first: none of them goes
    return sorted(((text, -float(cost)) for _, cost, text in ranked), key=lambda piece: (-piece[1], piece[0]))


@dataclass
class _Lattice:
    """The edges of all words, in the order of the nodes that they lead to."""

    counts: Floats  # (W,)
    ends: Ints  # (W,) the last node of each word
    first: Ints  # (longest word + 2,) the first node of each place
    source: Edges  # (E,)
    target: Edges  # (E,)
    piece: Edges  # (E,)

    def keep(self, pieces: NDArray[np.bool_]) -> None:
        """Leave out the edges of all other pieces, and number the pieces anew."""
        edges, numbers = pieces[self.piece], np.cumsum(pieces, dtype=np.int32) - 1
        self.source, self.target = self.source[edges], self.target[edges]
        self.piece = numbers[self.piece[edges]]

    def flow(self, scores: Floats, *, best: bool) -> Floats:
        """How often each piece (P,) stands in the corpus: in all cuts of a word by their likelihood, or in the best."""
        into = np.searchsorted(self.target, np.arange(self.first[-1] + 1))  # the first edge into each node
        level, share = np.zeros(self.first[-1]), np.zeros(len(self.piece))
        for nodes, edges in self._places(into):
            value = level[self.source[edges]] + scores[self.piece[edges]]
            owner, begins = self.target[edges] - nodes.start, into[nodes] - edges.start
            top = np.maximum.reduceat(value, begins)
            if best:
                winners = np.flatnonzero(value == top[owner])
                share[edges.start + winners[np.unique(owner[winners], return_index=True)[1]]] = 1
                level[nodes] = top
            else:
                odds = np.exp(value - top[owner])
                total = np.add.reduceat(odds, begins)
                share[edges] = odds / total[owner]
                level[nodes] = top + np.log(total)
        # What arrives at a node is handed back over the edges that led there, each its share.
        mass = np.zeros(self.first[-1])
        mass[self.ends] = self.counts
        for _, edges in reversed(list(self._places(into))):
            share[edges] *= mass[self.target[edges]]
            np.add.at(mass, self.source[edges], share[edges])
        return np.bincount(self.piece, weights=share, minlength=len(scores)).astype(np.float64)

    def _places(self, into: Ints) -> Iterator[tuple[slice, slice]]:
        """The nodes of each place but the first, and the edges that lead to them."""
        for place in range(1, len(self.first) - 1):
            start, stop = int(self.first[place]), int(self.first[place + 1])
            yield slice(start, stop), slice(int(into[start]), int(into[stop]))


def _parts(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The words to learn from, the longest first: none too long, and the most frequent if they are too many."""
    cut: dict[str, int] = {}
    for word, count in counts.items():
        for start in range(0, len(word), LONGEST_WORD):
            part = word[start : start + LONGEST_WORD]
            cut[part] = cut.get(part, 0) + count
    kept, letters, alphabet = list[tuple[str, int]](), 0, set[str]()
    for word, count in sorted(cut.items(), key=lambda item: (-item[1], item[0])):
        letters += len(word)
        if letters <= MOST_LETTERS:
            kept.append((word, count))
            alphabet.update(word)
        elif new := "".join(sorted(set(word) - alphabet)):  # of a word that is left out, its letters stay
            kept += [(letter, count) for letter in new]
            alphabet.update(new)
    return sorted(kept, key=lambda item: (-len(item[0]), item[0]))


def _build(words: list[tuple[str, int]], min_frequency: int) -> tuple[_Lattice, list[str], Floats]:
    """The lattice of the letters and of frequent substrings, their texts, and how many letters each covers (P,)."""
    counts = np.array([count for _, count in words], dtype=np.float64)
    lengths = np.array([len(word) for word, _ in words])
    first = np.concatenate([[0], np.cumsum([np.count_nonzero(lengths >= p) for p in range(lengths[0] + 1)])])
    joined = "".join(word for word, _ in words)
    word = np.repeat(np.arange(len(words)), lengths)  # (C,) the word of each letter
    place = np.arange(len(joined)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # (C,) and its place there
    columns = list[Edges](), list[Edges](), list[Edges]()  # source, target, piece
    texts, covered = list[str](), list[Floats]()
    letters = 0
    for length, at, number, examples in _substrings(joined, counts[word], lengths[word] - place, min_frequency):
        ways = first[place[at]] + word[at], first[place[at] + length] + word[at], len(texts) + number
        for column, values in zip(columns, ways, strict=True):
            column.append(values.astype(np.int32))
        texts += [joined[start : start + length] for start in examples]
        covered.append(np.bincount(number, weights=length * counts[word[at]]).astype(np.float64))
        letters = letters or len(texts)
    source, target, piece = map(np.concatenate, columns)
    order = np.argsort(target, kind="stable")
    ends = first[lengths] + np.arange(len(words))
    lattice, worth = _Lattice(counts, ends, first, source[order], target[order], piece[order]), np.concatenate(covered)
    keep = np.arange(len(texts)) < letters
    keep[letters + np.argsort(-worth[letters:], kind="stable")[:MOST_SEEDS]] = True
    lattice.keep(keep)
    return lattice, [text for text, kept in zip(texts, keep, strict=True) if kept], worth[keep]


def _substrings(
    joined: str, counts: Floats, rest: Ints, min_frequency: int
) -> Iterator[tuple[int, Ints, Ints, list[int]]]:
    """All letters, then the frequent substrings of two letters, of three …: length, where each begins, its number among
    those of this length, and where the first of each number begins.

    ``counts`` and ``rest`` (C,) are how often the word of each letter occurs, and how far its end is. Substrings grow
    by a letter at a time: one can only be frequent if what it begins with is.
    """
    alphabet, letter = np.unique(np.frombuffer(joined.encode("utf-32-le"), dtype=np.uint32), return_inverse=True)
    at, key = np.arange(len(joined)), letter.astype(np.int64)
    for length in range(1, LONGEST_PIECE + 1):
        _, examples, number = np.unique(key, return_index=True, return_inverse=True)
        frequent = np.bincount(number, weights=counts[at]) >= (1 if length == 1 else min_frequency)
        examples, stays = at[examples[frequent]], frequent[number]
        at, number = at[stays], (np.cumsum(frequent) - 1)[number[stays]]
        if not len(at):
            return
        yield length, at, number, examples.tolist()
        longer = rest[at] > length
        at = at[longer]
        key = number[longer] * len(alphabet) + letter[at + length]


def _most_missed(texts: list[str], scores: Floats, used: Floats, left: int) -> NDArray[np.bool_]:
    """Which ``left`` pieces stay: the letters, and those without which the likelihood would fall most.

    ``used`` (P,) is how often each is in the best cuts; without a piece, its places go to the best cut of itself.
    """
    number = {text: i for i, text in enumerate(texts)}
    known, frequency, total = scores.tolist(), used.tolist(), float(used.sum())
    loss = np.full(len(texts), inf)
    for i, text in enumerate(texts):
        if len(text) == 1:
            continue
        if not frequency[i]:
            loss[i] = -inf  # the first to go
            continue
        parts = _cut(text, number, known)
        after = log(total + frequency[i] * (len(parts) - 1))
        instead = sum(log(frequency[part] + frequency[i]) - after for part in parts)
        loss[i] = frequency[i] * (log(frequency[i]) - log(total) - instead)
    stays = np.zeros(len(texts), dtype=bool)
    stays[np.argsort(-loss, kind="stable")[:left]] = True
    return stays


def _cut(text: str, number: Mapping[str, int], scores: list[float]) -> list[int]:
    """The best cut of a piece into others."""
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # of the letters so far: score, where the last part starts, it
    for end in range(1, len(text) + 1):
        starts = range(1 if end == len(text) else 0, end)  # not the piece itself
        parts = ((start, number.get(text[start:end])) for start in starts)
        best.append(max((best[start][0] + scores[part], start, part) for start, part in parts if part is not None))
    found, end = list[int](), len(text)
    while end:
        _, end, part = best[end]
        found.append(part)
    return found


def _digamma(x: Floats) -> Floats:
    """ψ(x), the derivative of ln Γ, for x of at least LEAST: ψ(x) = ψ(x + 1) − 1/x until its series converges."""
    below = np.zeros_like(x)
    for _ in range(8):
        below, x = below + 1 / x, x + 1
    square = 1 / (x * x)
    return np.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square / 252)) - below
