"""BLEU and chrF: sacreBLEU's numbers for references that are given text by text, signature included."""

import importlib
import math
import random

import pytest
import sacrebleu

from glassformer.metrics import text as text_metrics
from glassformer.metrics.text import bleu, chrf

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat,", "runs.", "quickly", "Über", "Straße", "12.5", "don't"]


def texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 14))) for _ in range(count)]


def spoiled(inputs: list[str], seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(w if draw.random() < 0.8 else draw.choice(WORDS) for w in text.split()) for text in inputs]


REFERENCES = texts(40, 0)
WRITTEN = spoiled(REFERENCES, 1)


def test_by_hand() -> None:
    """6 words against 8; 5 of 6 words, 3 of 5 pairs, 2 of 4 triples, 1 of 3 fours."""
    result = bleu(["the cat sat on a mat"], ["the cat sat on the old red mat"])
    assert result.precisions == pytest.approx([100 * 5 / 6, 100 * 3 / 5, 100 * 2 / 4, 100 * 1 / 3])
    assert result.brevity_penalty == pytest.approx(math.exp(1 - 8 / 6))
    product = (5 / 6) * (3 / 5) * (2 / 4) * (1 / 3)
    assert result.score == pytest.approx(100 * math.exp(1 - 8 / 6) * product**0.25)
    assert (result.generated_tokens, result.reference_tokens) == (6, 8)
    assert result.metrics() == {"bleu": result.score}


def test_a_word_counts_as_often_as_the_reference_has_it() -> None:
    result = bleu(["the the the the the the the"], ["The cat is on the mat."], lowercase=True)
    assert result.precisions[0] == pytest.approx(100 * 2 / 7)  # the example of the paper


@pytest.mark.parametrize("tokenize", ["13a", "intl", "char", "none", "zh"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_equal_to_sacrebleu(tokenize: str, lowercase: bool) -> None:
    reference = sacrebleu.corpus_bleu(WRITTEN, [REFERENCES], tokenize=tokenize, lowercase=lowercase)
    result = bleu(WRITTEN, REFERENCES, tokenize=tokenize, lowercase=lowercase)
    assert (result.score, result.brevity_penalty) == (reference.score, reference.bp)
    assert list(result.precisions) == reference.precisions
    assert f"|tok:{tokenize}|" in result.signature
    assert f"|case:{'lc' if lowercase else 'mixed'}|" in result.signature
    assert result.signature == f"nrefs:1|{result.signature.split('|', 1)[1]}"
    assert result.signature.endswith(f"version:{sacrebleu.__version__}")


def test_chrf_is_sacrebleus() -> None:
    for order, name in ((0, "chrf"), (2, "chrf++")):
        result = chrf(WRITTEN, REFERENCES, word_order=order)
        assert result.metrics() == {name: sacrebleu.corpus_chrf(WRITTEN, [REFERENCES], word_order=order).score}
        assert f"|nw:{order}|" in result.signature
    assert chrf(["ABC"], ["abc"], lowercase=True).score == pytest.approx(100.0)
    assert chrf(["ABC"], ["abc"]).score == 0


def test_several_references_go_by_text() -> None:
    """As many references of each text as texts: lists of the wrong direction would not be noticed by their counts."""
    second = spoiled(REFERENCES, 5)
    reference = sacrebleu.corpus_bleu(WRITTEN, [REFERENCES, second])
    pairs = list(zip(REFERENCES, second, strict=True))
    assert bleu(WRITTEN, pairs).score == reference.score
    assert bleu(WRITTEN[:2], pairs[:2]).score != bleu(WRITTEN[:2], list(zip(*pairs[:2], strict=True))).score
    assert bleu(WRITTEN, pairs).signature.startswith("nrefs:2|")
    assert chrf(WRITTEN, pairs).score == sacrebleu.corpus_chrf(WRITTEN, [REFERENCES, second]).score


def test_texts_may_have_more_or_fewer_references() -> None:
    result = bleu(["a b c d e", "f g h i j"], [["x y", "a b c d e"], "f g h i j"])
    assert result.score == pytest.approx(100.0)
    assert result.signature.startswith("nrefs:var|")
    assert chrf(["a b c d e", "f g h i j"], [["x y", "a b c d e"], "f g h i j"]).score == pytest.approx(100.0)


def test_it_is_of_the_corpus_and_no_mean_of_sentences() -> None:
    single = [bleu([text], [other]).score for text, other in zip(WRITTEN, REFERENCES, strict=True)]
    assert abs(bleu(WRITTEN, REFERENCES).score - sum(single) / len(single)) > 1
    halves = [bleu(WRITTEN[:30], REFERENCES[:30]).score, bleu(WRITTEN[30:], REFERENCES[30:]).score]
    assert abs(bleu(WRITTEN, REFERENCES).score - sum(halves) / 2) > 1e-3


def test_nothing_written_is_zero() -> None:
    assert bleu(["", ""], ["a b", "c d"]).score == 0
    assert chrf(["", ""], ["a b", "c d"]).score == 0


@pytest.mark.parametrize("compare", [bleu, chrf])
def test_an_empty_reference_is_named(compare) -> None:
    for empty in ("", "  ", ["b", ""]):
        with pytest.raises(ValueError, match="text 1 has an empty reference"):
            compare(["a", "b"], ["a", empty])


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match=r"tokenize must be one of .*13a.*; got '13b'. Did you mean '13a'"):
        bleu(["a"], ["a"], tokenize="13b")
    with pytest.raises(ValueError, match="word_order must be an integer of at least 0, got -1"):
        chrf(["a"], ["a"], word_order=-1)


@pytest.mark.parametrize(("compare", "name"), [(bleu, "BLEU"), (chrf, "chrF")])
def test_without_the_package_the_error_says_what_helps(compare, name: str, monkeypatch) -> None:
    def missing(expected: str) -> object:
        if expected.split(".")[0] == "sacrebleu":
            raise ImportError(f"No module named {expected!r}")
        return importlib.import_module(expected)

    monkeypatch.setattr(text_metrics, "import_module", missing)
    with pytest.raises(ImportError, match=rf"^{name} needs the package sacrebleu.*pip install 'glassformer\[train\]'"):
        compare(["a"], ["a"])
