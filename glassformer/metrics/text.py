"""Metrics of text: BLEU and chrF of translations, ROUGE of summaries, perplexity and bits of any text.

BLEU (Papineni et al., 2002) and chrF (Popović, 2015) come from the package ``sacrebleu`` (Post, 2018): scores of the
whole corpus from 0 to 100, not means of sentences. Each carries its signature: without it two scores cannot be
compared. Texts are detokenised, as people would read them.

ROUGE (Lin, 2004) measures which n-grams and which longest common subsequence a text shares with a reference. Every
metric is from 0 to 1, the mean over texts. The numbers are those of the package ``rouge-score``, which publications
use: words are split as it does, the same one of several longest subsequences is taken, a word that occurs once counts
once in ROUGE-Lsum, and the stemmer is NLTK's Porter stemmer.

Perplexity and bits come from a sum of negative log-likelihoods and a count, never from means of batches. Perplexity is
at least 1. Models with different tokenizers can be compared only by bits per byte.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import zip_longest
from typing import Any

from glassformer.config.checks import Item, SettingError, check_choice, check_count, check_positive_integer
from glassformer.metrics.base import F1Score, check_aligned, check_strings, mean, reference_lists
from glassformer.tasks.perplexity import bits_of, perplexity_of


@dataclass(frozen=True, kw_only=True)
class Bleu:
    """BLEU = brevity penalty · geometric mean of the precisions of 1- to 4-grams; from 0 to 100."""

    score: float
    signature: str
    brevity_penalty: float  # at most 1; less if too little was generated
    precisions: tuple[float, ...]  # of 1-grams, 2-grams …, in percent
    generated_tokens: int
    reference_tokens: int  # of the reference nearest in length

    def metrics(self) -> dict[str, float]:
        """Return the score, from 0 to 100."""
        return {"bleu": self.score}


@dataclass(frozen=True, kw_only=True)
class Chrf:
    """chrF: an F-score over n-grams of characters in which recall weighs double; from 0 to 100."""

    score: float
    signature: str
    word_order: int

    def metrics(self) -> dict[str, float]:
        """Return the score, from 0 to 100, under its usual name: chrf, or chrf++ with pairs of words."""
        return {"chrf" + "+" * self.word_order: self.score}


def bleu(
    generated: Sequence[str],
    references: Sequence[str | Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Bleu:
    """Return BLEU of all texts together.

    Args:
        generated: what a model generated.
        references: for each text a translation by people, or a list of several. sacreBLEU itself takes lists of all
            first, all second … references; ``zip(*lists)`` transposes those.
        tokenize: sacreBLEU's tokenisation: 13a, intl, zh, char …; none for texts that are tokenised already.
        lowercase: whether capitals are ignored.
    """
    sacrebleu = _load("BLEU")
    check_choice("tokenize", tokenize, list(sacrebleu.BLEU.TOKENIZERS))
    metric = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    result = metric.corpus_score(list(generated), _streams(generated, references))
    return Bleu(
        score=float(result.score),
        signature=str(metric.get_signature()),
        brevity_penalty=float(result.bp),
        precisions=tuple(map(float, result.precisions)),
        generated_tokens=int(result.sys_len),
        reference_tokens=int(result.ref_len),
    )


def chrf(
    generated: Sequence[str],
    references: Sequence[str | Sequence[str]],
    *,
    word_order: int = 0,
    lowercase: bool = False,
) -> Chrf:
    """chrF of all texts together; it needs no tokenisation and works for every language.

    Args:
        generated: what a model generated.
        references: for each text a translation by people, or a list of several.
        word_order: longest n-gram of words that counts besides characters; 2 gives chrF++ (Popović, 2017).
        lowercase: whether capitals are ignored.
    """
    check_count(word_order=word_order)
    sacrebleu = _load("chrF")
    metric = sacrebleu.CHRF(word_order=word_order, lowercase=lowercase)
    result = metric.corpus_score(list(generated), _streams(generated, references))
    return Chrf(score=float(result.score), signature=str(metric.get_signature()), word_order=word_order)


def _streams(generated: Sequence[str], references: Sequence[str | Sequence[str]]) -> list[list[str | None]]:
    """Return a list of the first reference of each text, one of the second … with None where a text has fewer."""
    check_aligned(generated, references, "generated texts", "references")
    check_strings("generated text", generated)
    lists = reference_lists(references)
    for number, texts in enumerate(lists):
        if not all(map(str.strip, texts)):  # versions of sacreBLEU differ in whether an empty one counts
            template = "{} has an empty reference; leave it out or give it another."
            raise SettingError(template, Item("text", number))
    return [list(stream) for stream in zip_longest(*lists)]


def _load(metric: str) -> Any:
    try:
        return import_module("sacrebleu.metrics")
    except ImportError as error:
        raise ImportError(
            f"{metric} needs the package sacrebleu, which is not installed: pip install 'glassformer[train]'."
        ) from error


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
        """Return the four F1, from 0 to 1."""
        return {
            "rouge-1": self.rouge1.f1,
            "rouge-2": self.rouge2.f1,
            "rouge-l": self.rouge_l.f1,
            "rouge-lsum": self.rouge_lsum.f1,
        }


def words(text: str) -> list[str]:
    """Return runs of a to z and digits, in lower case; every other character separates words, accented ones too."""
    return re.findall("[a-z0-9]+", text.lower())


def rouge(
    generated: Sequence[str],
    references: Sequence[str | Sequence[str]],
    *,
    stem: bool = False,
    tokenize: Tokenize = words,
) -> Rouge:
    """Return ROUGE-1, -2, -L and -Lsum, the mean over texts.

    Args:
        generated: what a model generated; for ROUGE-Lsum a line is a sentence.
        references: for each text a summary by people, or a list of several, of which the one with the best F1 counts.
        stem: whether words of more than three characters are compared by their stems. For English; state it with the
            results, which are mostly higher then. Needs the package nltk.
        tokenize: splits a text into words; the default ``words`` has no characters besides a to z and digits.
    """
    check_aligned(generated, references, "generated texts", "references")
    check_strings("generated text", generated)
    lists = reference_lists(references)
    split = _with_stems(tokenize) if stem else tokenize
    _check_script([text for texts in lists for text in texts], split)
    # Score each text against its best reference, by each measure.
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
    """Return a text as words, whole and line by line."""
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
    """Return the indices in the reference of a longest common subsequence; of several, the last."""
    lengths = [[0] * (len(generated) + 1)]  # lengths[i][j]: of the first i words of the reference and j generated
    for word in reference:
        before, row, left = lengths[-1], [0], 0
        for other, corner, above in zip(generated, before, before[1:], strict=False):
            left = corner + 1 if word == other else (left if left > above else above)  # max, without a call
            row.append(left)
        lengths.append(row)
    # Trace a longest subsequence back from the end.
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


_ROUNDING = 1e-4  # nats per token by which a sum of rounded numbers may fall below 0


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """How surprised a model is by a text."""

    nll: float  # Σ −ln p(token), in nats
    tokens: int  # that were predicted
    text_bytes: int | None = None  # of the same text in UTF-8

    def __post_init__(self) -> None:
        check_positive_integer(tokens=self.tokens, text_bytes=1 if self.text_bytes is None else self.text_bytes)
        if self.nll < -_ROUNDING * self.tokens:
            raise ValueError(f"nll must be at least 0, got {self.nll}: of log-probabilities, give the negative sum.")

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nll / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss); inf where that overflows."""
        return perplexity_of(self.loss)

    @property
    def bits_per_token(self) -> float:
        """The loss to the base 2."""
        return bits_of(self.loss)

    @property
    def bits_per_byte(self) -> float | None:
        """The bits of the whole text over its bytes, if they are known."""
        return None if self.text_bytes is None else bits_of(self.nll) / self.text_bytes

    def metrics(self) -> dict[str, float]:
        """Return perplexity and bits; lower is better."""
        metrics = {"perplexity": self.perplexity, "bits per token": self.bits_per_token}
        bits_per_byte = self.bits_per_byte
        return metrics if bits_per_byte is None else metrics | {"bits per byte": bits_per_byte}


def perplexity(nll: float, tokens: int, *, text_bytes: int | None = None) -> Perplexity:
    """Return how surprised a model is by a text.

    Args:
        nll: the sum of −ln p over all predicted tokens of all batches.
        tokens: how many were predicted.
        text_bytes: bytes of the same text in UTF-8.
    """
    return Perplexity(nll=nll, tokens=tokens, text_bytes=text_bytes)
