"""Train a Unigram vocabulary: the pieces with the highest likelihood of the corpus (Kudo 2018, section 3.2).

Start with all frequent substrings. Expectation-maximisation estimates the probability of each; then the quarter whose
removal reduces the likelihood least is pruned, until the vocabulary has its size. Single characters are never pruned.

The trainer of the ``tokenizers`` library adds floats in an order that differs from run to run; here the same words give
the same pieces, bit for bit.

All words form one lattice. Node (p, w) is the position before character p of word w; an edge is a piece between two
positions. Words are sorted by length, the longest first, so that the nodes of one p are neighbours: ``first[p] + w``.

Shapes: ``W`` words, ``C`` characters of all words, ``N`` nodes, ``E`` edges, ``P`` pieces.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, log

import numpy as np
from numpy.typing import NDArray

LONGEST_PIECE = 16  # characters
LONGEST_WORD = 1_000  # characters; a longer word is split
MAX_CHARACTERS = 2_000_000  # of distinct words: keeps memory below a gigabyte; rare words are left out first
MAX_SEEDS = 500_000  # initial substrings besides single characters
KEPT = 0.75  # share of the pieces after each pruning
ROUNDS = 2  # EM iterations before each pruning
SPARE = 1.1  # pruning ends at this multiple of the vocabulary size
LEAST = 0.5  # a piece with a lower expected count is removed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Edges = NDArray[np.int32]  # there are many of them


def learn_unigram(
    counts: Mapping[str, int], size: int, min_frequency: int = 2, progress: Callable[[int], None] | None = None
) -> list[tuple[str, float]]:
    """At most ``size`` pieces, including all characters, with their log-probabilities; the most probable first.

    Args:
        counts: the number of occurrences of each word.
        size: of the vocabulary.
        min_frequency: how often a piece of several characters must occur.
        progress: called with the number of pieces after each round.
    """
    lattice, texts, coverage = _build(_parts(counts), min_frequency)
    single = np.array([len(text) == 1 for text in texts])
    scores = np.log(coverage) - np.log(coverage.sum())

    def reduce_to(keep: NDArray[np.bool_], values: Floats) -> None:
        nonlocal texts, single, scores
        lattice.keep(keep)
        texts = [text for text, kept in zip(texts, keep, strict=True) if kept]
        single, scores = single[keep], values[keep]

    while True:
        # EM: expected counts, then scores.
        for _ in range(ROUNDS):
            expected = lattice.flow(scores, best=False)
            keep = single | (expected >= LEAST)
            expected = np.maximum(expected, LEAST)
            # ψ in place of the logarithm: a prior that favours few pieces (Liang and Klein 2007), as SentencePiece has.
            reduce_to(keep, _digamma(expected) - _digamma(expected[keep].sum(keepdims=True)))
        if progress is not None:
            progress(len(texts))
        # Prune, unless the size is reached.
        if len(texts) <= SPARE * size:
            break
        left = max(int(SPARE * size), int(KEPT * len(texts)))
        reduce_to(_most_useful(texts, scores, lattice.flow(scores, best=True), left), scores)
    ranked = sorted(zip(~single, -scores, texts, strict=True))[:size]  # single characters first: all are kept
    return sorted(((text, -float(cost)) for _, cost, text in ranked), key=lambda piece: (-piece[1], piece[0]))


@dataclass
class _Lattice:
    """The edges of all words, sorted by target node."""

    counts: Floats  # (W,)
    ends: Ints  # (W,) the last node of each word
    first: Ints  # (longest word + 2,) the first node of each position
    source: Edges  # (E,)
    target: Edges  # (E,)
    piece: Edges  # (E,)

    def keep(self, pieces: NDArray[np.bool_]) -> None:
        """Remove the edges of all other pieces, and renumber the pieces."""
        edges, numbers = pieces[self.piece], np.cumsum(pieces, dtype=np.int32) - 1
        self.source, self.target = self.source[edges], self.target[edges]
        self.piece = numbers[self.piece[edges]]

    def flow(self, scores: Floats, *, best: bool) -> Floats:
        """Return the expected count of each piece (P,) over all segmentations, or over the best ones (``best``)."""
        into = np.searchsorted(self.target, np.arange(self.first[-1] + 1))  # the first edge into each node
        # Forward: log-sums (or maxima) per node, and the share of each edge in its target.
        level, share = np.zeros(self.first[-1]), np.zeros(len(self.piece))
        for nodes, edges in self._positions(into):
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
        # Backward: the count of a node is distributed over its incoming edges by their shares.
        mass = np.zeros(self.first[-1])
        mass[self.ends] = self.counts
        for _, edges in reversed(list(self._positions(into))):
            share[edges] *= mass[self.target[edges]]
            np.add.at(mass, self.source[edges], share[edges])
        return np.bincount(self.piece, weights=share, minlength=len(scores)).astype(np.float64)

    def _positions(self, into: Ints) -> Iterator[tuple[slice, slice]]:
        """Yield the nodes of each position after the first, and their incoming edges."""
        for position in range(1, len(self.first) - 1):
            start, stop = int(self.first[position]), int(self.first[position + 1])
            yield slice(start, stop), slice(int(into[start]), int(into[stop]))


def _parts(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the words to train on, the longest first: split if too long, the most frequent ones if too many."""
    parts: dict[str, int] = {}
    for word, count in counts.items():
        for start in range(0, len(word), LONGEST_WORD):
            part = word[start : start + LONGEST_WORD]
            parts[part] = parts.get(part, 0) + count
    kept, characters, alphabet = list[tuple[str, int]](), 0, set[str]()
    for word, count in sorted(parts.items(), key=lambda item: (-item[1], item[0])):
        characters += len(word)
        if characters <= MAX_CHARACTERS:
            kept.append((word, count))
            alphabet.update(word)
        elif new := "".join(sorted(set(word) - alphabet)):  # a word that is left out keeps its new characters
            kept += [(character, count) for character in new]
            alphabet.update(new)
    return sorted(kept, key=lambda item: (-len(item[0]), item[0]))


def _build(words: list[tuple[str, int]], min_frequency: int) -> tuple[_Lattice, list[str], Floats]:
    """Return the lattice of characters and frequent substrings, their texts, and the characters each covers (P,)."""
    # Nodes: words and positions of all characters.
    counts = np.array([count for _, count in words], dtype=np.float64)
    lengths = np.array([len(word) for word, _ in words])
    first = np.concatenate([[0], np.cumsum([np.count_nonzero(lengths >= p) for p in range(lengths[0] + 1)])])
    joined = "".join(word for word, _ in words)
    word = np.repeat(np.arange(len(words)), lengths)  # (C,) the word of each character
    position = np.arange(len(joined)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # (C,) and its position in it
    # Edges: every occurrence of every character and frequent substring.
    columns = list[Edges](), list[Edges](), list[Edges]()  # source, target, piece
    texts, covered = list[str](), list[Floats]()
    single = 0
    for length, at, number, examples in _substrings(joined, counts[word], lengths[word] - position, min_frequency):
        edges = first[position[at]] + word[at], first[position[at] + length] + word[at], len(texts) + number
        for column, values in zip(columns, edges, strict=True):
            column.append(values.astype(np.int32))
        texts += [joined[start : start + length] for start in examples]
        covered.append(np.bincount(number, weights=length * counts[word[at]]).astype(np.float64))
        single = single or len(texts)
    # The lattice, sorted by target, with at most MAX_SEEDS substrings.
    source, target, piece = map(np.concatenate, columns)
    order = np.argsort(target, kind="stable")
    ends = first[lengths] + np.arange(len(words))
    lattice = _Lattice(counts, ends, first, source[order], target[order], piece[order])
    coverage = np.concatenate(covered)
    keep = np.arange(len(texts)) < single
    keep[single + np.argsort(-coverage[single:], kind="stable")[:MAX_SEEDS]] = True
    lattice.keep(keep)
    return lattice, [text for text, kept in zip(texts, keep, strict=True) if kept], coverage[keep]


def _substrings(
    joined: str, counts: Floats, rest: Ints, min_frequency: int
) -> Iterator[tuple[int, Ints, Ints, list[int]]]:
    """Yield all characters, then the frequent substrings of two characters, of three …

    ``counts`` and ``rest`` (C,) are the count of the word of each character, and the distance to its end. Substrings
    grow by one character at a time: one can be frequent only if its prefix is.

    Yields:
        length, the index of each occurrence, its number among the substrings of this length, and for each number the
        index of the first occurrence.
    """
    alphabet, character = np.unique(np.frombuffer(joined.encode("utf-32-le"), dtype=np.uint32), return_inverse=True)
    at, key = np.arange(len(joined)), character.astype(np.int64)
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
        key = number[longer] * len(alphabet) + character[at + length]


def _most_useful(texts: list[str], scores: Floats, used: Floats, left: int) -> NDArray[np.bool_]:
    """Return the ``left`` pieces to keep: single characters, and those whose removal would reduce the likelihood most.

    ``used`` (P,) are the counts in the best segmentations; a removed piece is replaced by its own best segmentation.
    """
    number = {text: i for i, text in enumerate(texts)}
    known, frequency, total = scores.tolist(), used.tolist(), float(used.sum())
    loss = np.full(len(texts), inf)
    for i, text in enumerate(texts):
        if len(text) == 1:
            continue
        if not frequency[i]:
            loss[i] = -inf  # pruned first
            continue
        parts = _segment(text, number, known)
        after = log(total + frequency[i] * (len(parts) - 1))
        instead = sum(log(frequency[part] + frequency[i]) - after for part in parts)
        loss[i] = frequency[i] * (log(frequency[i]) - log(total) - instead)
    stays = np.zeros(len(texts), dtype=bool)
    stays[np.argsort(-loss, kind="stable")[:left]] = True
    return stays


def _segment(text: str, number: Mapping[str, int], scores: list[float]) -> list[int]:
    """Return the best segmentation of a piece into other pieces."""
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # per prefix: score, start of the last part, its number
    for end in range(1, len(text) + 1):
        starts = range(1 if end == len(text) else 0, end)  # not the piece itself
        parts = ((start, number.get(text[start:end])) for start in starts)
        best.append(max((best[start][0] + scores[part], start, part) for start, part in parts if part is not None))
    segmentation, end = list[int](), len(text)
    while end:
        _, end, part = best[end]
        segmentation.append(part)
    return segmentation


def _digamma(x: Floats) -> Floats:
    """ψ(x), the derivative of ln Γ, for x of at least LEAST: ψ(x) = ψ(x + 1) − 1/x until its series converges."""
    below = np.zeros_like(x)
    for _ in range(8):
        below, x = below + 1 / x, x + 1
    square = 1 / (x * x)
    return np.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square / 252)) - below
