"""ROUGE (Lin, 2004) of summaries: which n-grams and which longest common subsequence a text shares with a reference.

Every metric is from 0 to 1, the mean over texts of each text's own. Equal to the package ``rouge-score``, which
publications use: in how texts are split into words, in which of several longest subsequences is taken, in that a word
which occurs once counts once in ROUGE-Lsum, and in its stemmer, NLTK's Porter stemmer.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from glassformer.training.metrics.base import F1Score, check_aligned, check_strings, mean, reference_lists

Words = Sequence[str]
Tokenize = Callable[[str], Words]


@dataclass(frozen=True)
class RougeScore:
    """Overlap of texts and references; means over texts. The mean of F1 is not the F1 of the means."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, kw_only=True)
class Rouge:
    """ROUGE by single words, by pairs, by the longest common subsequence of a text and of each of its sentences."""

    rouge1: RougeScore
    rouge2: RougeScore
    rouge_l: RougeScore
    rouge_lsum: RougeScore
    texts: int

    def metrics(self) -> dict[str, float]:
        """The four F1, from 0 to 1."""
        return {
            "rouge-1": self.rouge1.f1,
            "rouge-2": self.rouge2.f1,
            "rouge-l": self.rouge_l.f1,
            "rouge-lsum": self.rouge_lsum.f1,
        }


def words(text: str) -> list[str]:
    """Runs of the letters a to z and digits, in lower case; every other character separates, accented letters too."""
    return re.findall("[a-z0-9]+", text.lower())


def rouge(
    generated: Sequence[str],
    references: Sequence[str | Sequence[str]],
    *,
    stem: bool = False,
    tokenize: Tokenize = words,
) -> Rouge:
    """ROUGE-1, -2, -L and -Lsum, the mean over texts.

    Args:
        generated: what a model generated; for ROUGE-Lsum a line is a sentence.
        references: for each text a summary by people, or a list of several, of which the one with the best F1 counts.
        stem: whether words of more than three letters are compared by their stems. For English; state it with the
            results, which are mostly higher then. Needs the package nltk.
        tokenize: splits a text into words; the default ``words`` has no letters besides a to z.
    """
    check_aligned(generated, references, "generated texts", "references")
    check_strings("generated text", generated)
    lists = reference_lists(references)
    split = _with_stems(tokenize) if stem else tokenize
    _check_script([text for texts in lists for text in texts], split)
    candidates = [_tokenised(text, split) for text in generated]
    expected = [[_tokenised(text, split) for text in texts] for texts in lists]
    scores = [
        [
            max((measure(text, other) for other in others), key=_f1)
            for text, others in zip(candidates, expected, strict=True)
        ]
        for measure in (_ngrams(1), _ngrams(2), _by_text, _by_sentence)
    ]
    rouge1, rouge2, rouge_l, rouge_lsum = map(_means, scores)
    return Rouge(rouge1=rouge1, rouge2=rouge2, rouge_l=rouge_l, rouge_lsum=rouge_lsum, texts=len(generated))


def _f1(score: F1Score) -> float:
    return score.f1


def _means(scores: Sequence[F1Score]) -> RougeScore:
    return RougeScore(*(mean([getattr(score, name) for score in scores]) for name in ("precision", "recall", "f1")))


def _with_stems(tokenize: Tokenize) -> Tokenize:
    try:
        stem = lru_cache(1 << 16)(import_module("nltk.stem.porter").PorterStemmer().stem)
    except ImportError as error:
        raise ImportError(
            "ROUGE with stems needs the package nltk, which is not installed: pip install 'glassformer[train]'."
        ) from error
    return lambda text: [stem(word) if len(word) > 3 else word for word in tokenize(text)]


def _check_script(texts: Sequence[str], split: Tokenize) -> None:
    """Raise if references are in a script in which the tokenisation finds no word: all metrics would be 0."""
    if any(character.isalpha() for text in texts for character in text) and not any(map(split, texts)):
        raise ValueError(
            f"none of the {len(texts)} references has a word by this tokenisation, as {max(texts, key=len)!r:.60}. "
            f"The default has a to z and digits; pass tokenize= a function that splits such texts."
        )


@dataclass(frozen=True)
class _Text:
    whole: Words
    sentences: list[Words]


def _tokenised(text: str, split: Tokenize) -> _Text:
    """A text as words, whole and line by line."""
    return _Text(split(text), [split(line) for line in text.split("\n")])


def _ngrams(size: int) -> Callable[[_Text, _Text], F1Score]:
    def count(text: _Text) -> Counter[tuple[str, ...]]:
        return Counter(zip(*(text.whole[start:] for start in range(size)), strict=False))

    def measure(generated: _Text, reference: _Text) -> F1Score:
        own, gold = count(generated), count(reference)
        return F1Score((own & gold).total(), own.total(), gold.total())

    return measure


def _by_text(generated: _Text, reference: _Text) -> F1Score:
    common = len(_common_subsequence(generated.whole, reference.whole))
    return F1Score(common, len(generated.whole), len(reference.whole))


def _by_sentence(generated: _Text, reference: _Text) -> F1Score:
    """Section 3.2: of each sentence of the reference, the words that it shares in order with any sentence generated."""
    own, gold = (Counter(word for line in text.sentences for word in line) for text in (generated, reference))
    shared: Counter[str] = Counter()
    for line in reference.sentences:
        indices = {index for other in generated.sentences for index in _common_subsequence(other, line)}
        shared.update(line[index] for index in indices)
    # A word that one sentence generated shares with several of the reference counts as often as it was generated.
    return F1Score((shared & own).total(), own.total(), gold.total())


def _common_subsequence(generated: Words, reference: Words) -> list[int]:
    """Indices in the reference of a longest common subsequence; of several, the one found from the end."""
    lengths = [[0] * (len(generated) + 1)]  # lengths[i][j]: of the first i words of the reference and j generated
    for word in reference:
        before, row, left = lengths[-1], [0], 0
        for other, corner, above in zip(generated, before, before[1:], strict=False):
            left = corner + 1 if word == other else (left if left > above else above)  # max, without a call
            row.append(left)
        lengths.append(row)
    indices = []
    i, j = len(reference), len(generated)
    while i and j:
        if reference[i - 1] == generated[j - 1]:
            i, j = i - 1, j - 1
            indices.append(i)
        elif lengths[i][j - 1] > lengths[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return indices[::-1]
