"""ROUGE (Lin, 2004) of summaries: which n-grams and which longest common subsequence a text shares with a reference.

Every figure is a share from 0 to 1, the mean over texts of each text's own. Equal to the package ``rouge-score``, which
publications use: in how texts are cut into words, in which of several longest subsequences is taken, and in that a word
which was written once counts once in ROUGE-Lsum.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glassformer.training.metrics.base import Found, check_aligned, check_strings, mean, several
from glassformer.training.metrics.stemming import stem as stem_of

Words = Sequence[str]
Cut = Callable[[str], Words]


@dataclass(frozen=True)
class Shared:
    """What texts and references share; means over texts. The mean of F1 is not the F1 of the means."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, kw_only=True)
class Rouge:
    """ROUGE by single words, by pairs, by the longest common subsequence of a text and of each of its sentences."""

    rouge1: Shared
    rouge2: Shared
    rouge_l: Shared
    rouge_lsum: Shared
    texts: int

    def figures(self) -> dict[str, float]:
        """The four F1, from 0 to 1."""
        return {
            "rouge-1": self.rouge1.f1,
            "rouge-2": self.rouge2.f1,
            "rouge-l": self.rouge_l.f1,
            "rouge-lsum": self.rouge_lsum.f1,
        }


def words(text: str) -> list[str]:
    """Runs of the letters a to z and digits, in lower case; every other sign separates, letters with accents too."""
    return re.findall("[a-z0-9]+", text.lower())


def rouge(
    written: Sequence[str],
    references: Sequence[str | Sequence[str]],
    *,
    stem: bool = False,
    tokenize: Cut = words,
) -> Rouge:
    """ROUGE-1, -2, -L and -Lsum, the mean over texts.

    Args:
        written: what a model wrote; for ROUGE-Lsum a line is a sentence.
        references: for each text a summary by people, or a list of several, of which the one with the best F1 counts.
        stem: whether words of more than three letters are compared by their stems. For English; say so beside the
            figures, which are mostly higher then.
        tokenize: cuts a text into words; the usual ``words`` knows no letters besides a to z.
    """
    check_aligned(written, references, "written texts", "references")
    check_strings("written text", written)
    lists = several(references)
    cut = _stemming(tokenize) if stem else tokenize
    _check_script([one for some in lists for one in some], cut)
    texts = [_cut_up(text, cut) for text in written]
    wanted = [[_cut_up(one, cut) for one in some] for some in lists]
    found = [
        [max((measure(text, one) for one in some), key=_f1) for text, some in zip(texts, wanted, strict=True)]
        for measure in (_ngrams(1), _ngrams(2), _by_text, _by_sentence)
    ]
    rouge1, rouge2, rouge_l, rouge_lsum = map(_means, found)
    return Rouge(rouge1=rouge1, rouge2=rouge2, rouge_l=rouge_l, rouge_lsum=rouge_lsum, texts=len(written))


def _f1(found: Found) -> float:
    return found.f1


def _means(found: Sequence[Found]) -> Shared:
    return Shared(*(mean([getattr(one, name) for one in found]) for name in ("precision", "recall", "f1")))


def _stemming(tokenize: Cut) -> Cut:
    return lambda text: [stem_of(word) if len(word) > 3 else word for word in tokenize(text)]


def _check_script(texts: Sequence[str], cut: Cut) -> None:
    """Raise if references are in a script of which the tokenisation sees nothing: all figures would be 0."""
    if any(letter.isalpha() for text in texts for letter in text) and not any(map(cut, texts)):
        raise ValueError(
            f"none of the {len(texts)} references has a word by this tokenisation, as {max(texts, key=len)!r:.60}. "
            f"The usual one knows a to z and digits; give tokenize= a function that cuts such texts."
        )


@dataclass(frozen=True)
class _Text:
    whole: Words
    sentences: list[Words]


def _cut_up(text: str, cut: Cut) -> _Text:
    """A text as words, whole and line by line."""
    return _Text(cut(text), [cut(line) for line in text.split("\n")])


def _ngrams(size: int) -> Callable[[_Text, _Text], Found]:
    def count(text: _Text) -> Counter[tuple[str, ...]]:
        return Counter(zip(*(text.whole[start:] for start in range(size)), strict=False))

    def measure(written: _Text, reference: _Text) -> Found:
        given, gold = count(written), count(reference)
        return Found((given & gold).total(), given.total(), gold.total())

    return measure


def _by_text(written: _Text, reference: _Text) -> Found:
    common = len(_common_places(written.whole, reference.whole))
    return Found(common, len(written.whole), len(reference.whole))


def _by_sentence(written: _Text, reference: _Text) -> Found:
    """Section 3.2: of each sentence of the reference, the words that it shares in order with any sentence written."""
    given, gold = (Counter(word for line in text.sentences for word in line) for text in (written, reference))
    shared: Counter[str] = Counter()
    for line in reference.sentences:
        places = {place for other in written.sentences for place in _common_places(other, line)}
        shared.update(line[place] for place in places)
    # A word that one sentence written shares with several of the reference counts as often as it was written.
    return Found((shared & given).total(), given.total(), gold.total())


def _common_places(written: Words, reference: Words) -> list[int]:
    """The places in the reference of a longest subsequence that both have; of several, the one met from the end."""
    lengths = [[0] * (len(written) + 1)]  # lengths[i][j]: of the first i words of the reference and j written
    for word in reference:
        before, row, left = lengths[-1], [0], 0
        for other, corner, above in zip(written, before, before[1:], strict=False):
            left = corner + 1 if word == other else (left if left > above else above)  # max, without a call
            row.append(left)
        lengths.append(row)
    found = []
    i, j = len(reference), len(written)
    while i and j:
        if reference[i - 1] == written[j - 1]:
            i, j = i - 1, j - 1
            found.append(i)
        elif lengths[i][j - 1] > lengths[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return found[::-1]
