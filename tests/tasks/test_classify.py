"""Labels of texts and pairs: the reference's probabilities."""

import pytest
import torch
import transformers

from glassformer.tasks.classify import classify
from glassformer.text.tokenizer import TokenizerError
from tests.helpers import types_unchecked
from tests.tasks.models import TEXTS, make

SHORT = [TEXTS[0], TEXTS[2], TEXTS[1], TEXTS[4]]
PAIRS = list(zip(SHORT, SHORT[::-1], strict=True))
NAMES = {"id2label": {0: "bad", 1: "good", 2: "odd"}, "label2id": {"bad": 0, "good": 1, "odd": 2}}


CASES = {
    "BertForSequenceClassification": "words",
    "RobertaForSequenceClassification": "angled",
    "GPT2ForSequenceClassification": "bytes",
    "BartForSequenceClassification": "angled",
}


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory):
    kind = CASES[request.param]
    extra = {"pad_token_id": 1} if kind == "angled" else {}
    return make(tmp_path_factory.mktemp("classify"), request.param, kind, **NAMES, **extra)


def their_logits(loaded, theirs, text: str, pair: str | None = None) -> torch.Tensor:
    result = loaded.tokenizer.analyse(text, pair)
    inputs = {"input_ids": torch.tensor([result.ids])}
    if loaded.config.embed.segments > 1:
        inputs["token_type_ids"] = torch.tensor([result.segments])
    with torch.no_grad():
        return theirs(**inputs).logits[0]


@pytest.mark.parametrize("multi_label", [False, True])
def test_probabilities_are_the_references(both, multi_label) -> None:
    loaded, theirs = both
    examples = [*SHORT, *PAIRS]
    for text, result in zip(examples, classify(loaded, examples, multi_label=multi_label, batch_size=3), strict=True):
        logits = their_logits(loaded, theirs, *((text,) if isinstance(text, str) else text))
        expected = logits.sigmoid() if multi_label else logits.softmax(-1)
        by_name = {label.name: label for label in result.labels}
        assert [by_name[n].probability for n in ("bad", "good", "odd")] == pytest.approx(expected.tolist(), abs=1e-9)
        assert [by_name[n].score for n in ("bad", "good", "odd")] == pytest.approx(logits.tolist(), abs=1e-9)
        probs = [label.probability for label in result.labels]
        assert probs == sorted(probs, reverse=True)
        assert (result.text, result.pair) == ((text, None) if isinstance(text, str) else text)


def test_labels_equal_the_pipeline(tmp_path) -> None:
    loaded, theirs = make(tmp_path, "BertForSequenceClassification", "words", **NAMES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(loaded.path)
    pipeline = transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer)
    for text, result in zip(SHORT, classify(loaded, SHORT), strict=True):
        expected = pipeline(text, top_k=None)
        assert [label.name for label in result.labels] == [single["label"] for single in expected]
        assert [label.probability for label in result.labels] == pytest.approx(
            [single["score"] for single in expected], abs=1e-6
        )


def test_order_and_batches_do_not_matter(both) -> None:
    loaded, _ = both
    single = classify(loaded, SHORT, batch_size=1)
    for other in (classify(loaded, SHORT), classify(loaded, SHORT[::-1], batch_size=2)[::-1]):
        for a, b in zip(single, other, strict=True):
            assert [label.name for label in a.labels] == [label.name for label in b.labels]
            assert [x.score for x in a.labels] == pytest.approx([x.score for x in b.labels], abs=1e-9)


def test_pairs_need_pairs(tmp_path) -> None:
    loaded, theirs = make(tmp_path, "BertForNextSentencePrediction", "words")
    for pair, result in zip(PAIRS, classify(loaded, PAIRS), strict=True):
        expected = their_logits(loaded, theirs, *pair).softmax(-1).tolist()
        by_name = {label.name: label.probability for label in result.labels}
        assert [by_name["next"], by_name["random"]] == pytest.approx(expected, abs=1e-9)
    with pytest.raises(ValueError, match=r"text 0 is a single text: pass \(text, text\)"):
        classify(loaded, SHORT)


def test_one_label_is_a_question_of_yes_or_no(tmp_path) -> None:
    loaded, theirs = make(tmp_path, "BertForSequenceClassification", "words", num_labels=1)
    with pytest.raises(ValueError, match="multi_label=True"):
        classify(loaded, SHORT)
    ((label,),) = (result.labels for result in classify(loaded, SHORT[:1], multi_label=True))
    logit = their_logits(loaded, theirs, SHORT[0])
    assert label.probability == pytest.approx(float(logit.sigmoid()), abs=1e-9)


def test_errors(both, tmp_path) -> None:
    loaded, _ = both
    with pytest.raises(ValueError, match=r"text 0 has .* takes 40"):
        classify(loaded, ["a b c " * 30])
    assert len(classify(loaded, ["a b c " * 30, ("a " * 90, "b")], truncate="left")) == 2
    with types_unchecked(), pytest.raises(ValueError, match="truncate must be one of left, right"):
        classify(loaded, ["a"], truncate="middle")
    other, _ = make(tmp_path / "lm", "GPT2LMHeadModel", "bytes")
    with pytest.raises(
        ValueError, match=r"classify needs a classification head \('classify' or 'pair'\); this model has an 'lm' head"
    ):
        classify(other, ["a"])
    bare, _ = make(tmp_path / "bare", "BertForSequenceClassification", "words", num_labels=2)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare.path / name).unlink()
    with pytest.raises(TokenizerError):
        classify(bare, ["a"])
