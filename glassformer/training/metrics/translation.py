"""BLEU (Papineni et al., 2002) and chrF (Popović, 2015) of translations, by the package ``sacrebleu`` (Post, 2018).

Scores are those of the whole corpus on sacreBLEU's scale from 0 to 100, not means of sentences. Each carries its
signature: without it two scores cannot be compared. Texts are detokenised, as people would read them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import zip_longest
from typing import Any

from glassformer.config.checks import check_choice, check_count
from glassformer.training.metrics.base import check_aligned, check_strings, reference_lists


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
        """The score, from 0 to 100."""
        return {"bleu": self.score}


@dataclass(frozen=True, kw_only=True)
class Chrf:
    """chrF: an F-score over n-grams of characters in which recall weighs double; from 0 to 100."""

    score: float
    signature: str
    word_order: int

    def metrics(self) -> dict[str, float]:
        """The score, from 0 to 100, under its usual name: chrf, or chrf++ with pairs of words."""
        return {"chrf" + "+" * self.word_order: self.score}


def bleu(
    generated: Sequence[str],
    references: Sequence[str | Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Bleu:
    """BLEU of all texts together.

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
    """Lists of all first, all second … references; None where a text has fewer."""
    check_aligned(generated, references, "generated texts", "references")
    check_strings("generated text", generated)
    lists = reference_lists(references)
    for number, texts in enumerate(lists):
        if not all(map(str.strip, texts)):  # versions of sacreBLEU differ in whether an empty one counts
            raise ValueError(f"text {number} has an empty reference; leave it out or give it another.")
    return [list(stream) for stream in zip_longest(*lists)]


def _load(metric: str) -> Any:
    try:
        return import_module("sacrebleu.metrics")
    except ImportError as error:
        raise ImportError(
            f"{metric} needs the package sacrebleu, which is not installed: pip install 'glassformer[train]'."
        ) from error
