"""Blanks: the guesses of the reference, and the best fillings of several blanks without trying them all."""

from itertools import islice, product
from math import prod

import pytest
import tokenizers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from glassformer import load
from glassformer.tasks.fill import best_products, fill
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.vocabularies import Vocabulary, set_template
from tests.real.places import data
from tests.tasks.models import make

BLANKS = [
    "The [MASK] of the function.",
    "[MASK]",
    "In Python a [MASK] is a list, déjà vu",
    "two [MASK]s [MASK]",
]


@pytest.fixture(scope="module", params=["BertForMaskedLM", "BertForPreTraining", "RobertaForMaskedLM"])
def both(request, tmp_path_factory):
    kind = "angled" if request.param.startswith("Roberta") else "words"
    extra = {"pad_token_id": 1} if kind == "angled" else {}
    return make(tmp_path_factory.mktemp("fill"), request.param, kind, **extra)


def spelt(loaded, texts):
    return [text.replace("[MASK]", loaded.tokenizer.special["mask"]) for text in texts]


def test_guesses_are_the_references(both) -> None:
    loaded, theirs = both
    tokenizer = transformers.AutoTokenizer.from_pretrained(loaded.path)
    texts = spelt(loaded, BLANKS)
    for text, filled in zip(texts, fill(loaded, texts, top=7), strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            out = theirs(**inputs)
        logits = out.prediction_logits if "prediction_logits" in out else out.logits
        indices = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
        best = logits[0, indices].softmax(-1).topk(7)
        assert len(indices) == len(filled.blanks) == text.count(tokenizer.mask_token)
        for values, indices, blank in zip(*best, filled.blanks, strict=True):
            assert [guess.id for guess in blank.guesses] == indices.tolist()
            assert [guess.probability for guess in blank.guesses] == pytest.approx(values.tolist(), abs=1e-9)
            assert [guess.token for guess in blank.guesses] == tokenizer.convert_ids_to_tokens(indices.tolist())
            assert text[blank.start : blank.end] == tokenizer.mask_token


def test_one_blank_equals_the_pipeline(tmp_path) -> None:
    loaded, theirs = make(tmp_path, "BertForMaskedLM", "words")
    tokenizer = transformers.AutoTokenizer.from_pretrained(loaded.path)
    pipeline = transformers.pipeline("fill-mask", model=theirs, tokenizer=tokenizer)
    for text, filled in zip(BLANKS[:3], fill(loaded, BLANKS[:3], top=4), strict=True):
        expected = pipeline(text, top_k=4)
        (blank,) = filled.blanks
        assert [guess.id for guess in blank.guesses] == [item["token"] for item in expected]
        assert [guess.probability for guess in blank.guesses] == pytest.approx([e["score"] for e in expected], abs=1e-6)
        assert [guess.text for guess in blank.guesses] == [item["sequence"] for item in expected]


def test_several_blanks_alone_and_together(both) -> None:
    loaded, _ = both
    (filled,) = fill(loaded, spelt(loaded, ["the [MASK] of a [MASK] is [MASK]"]), top=6)
    probs = [[guess.probability for guess in blank.guesses] for blank in filled.blanks]
    expected = sorted((prod(chosen) for chosen in product(*probs)), reverse=True)[:6]
    assert [item.probability for item in filled.fillings] == pytest.approx(expected, rel=1e-9)
    mask = loaded.tokenizer.special["mask"]
    assert all(guess.text.count(mask) == 2 for blank in filled.blanks for guess in blank.guesses if guess.token != mask)
    best = filled.fillings[0]
    assert best.tokens == tuple(blank.guesses[0].token for blank in filled.blanks)
    assert mask not in best.text
    assert best.ids == tuple(blank.guesses[0].id for blank in filled.blanks)


@given(st.lists(st.lists(st.floats(0.001, 1), min_size=1, max_size=4), min_size=1, max_size=4))
def test_best_products_come_once_and_in_order(lists) -> None:
    lists = [sorted(values, reverse=True) for values in lists]
    choices = list(best_products(lists))
    assert sorted(choices) == sorted(product(*(range(len(values)) for values in lists)))
    values = [prod(item[index] for item, index in zip(lists, chosen, strict=True)) for chosen in choices]
    assert values == pytest.approx(sorted(values, reverse=True), rel=1e-9)


def test_best_products_do_not_try_them_all() -> None:
    lists = [[0.5, 0.3, 0.2] for _ in range(400)]  # 3 ** 400 choices
    assert len(set(islice(best_products(lists), 20))) == 20


def test_order_and_batches_do_not_matter(both) -> None:
    loaded, _ = both
    texts = spelt(loaded, BLANKS)
    item = fill(loaded, texts, batch_size=1)
    for many in (fill(loaded, texts), fill(loaded, texts[::-1], batch_size=3)[::-1]):
        for a, b in zip(item, many, strict=True):
            assert a.text == b.text
            assert [[g.id for g in blank.guesses] for blank in a.blanks] == [
                [g.id for g in blank.guesses] for blank in b.blanks
            ]
            for x, y in zip(a.fillings, b.fillings, strict=True):
                assert x.probability == pytest.approx(y.probability, rel=1e-9)


def test_rows_beyond_the_vocabulary_are_no_guess(tmp_path) -> None:
    loaded, theirs = make(tmp_path, "BertForMaskedLM", "words", vocab_size=1000)
    (filled,) = fill(loaded, ["a [MASK]"], top=2000)
    guesses = filled.blanks[0].guesses
    assert {guess.id for guess in guesses} == set(range(loaded.tokenizer.vocab_size))
    assert sum(guess.probability for guess in guesses) < 0.999  # the rest is where no token is
    assert theirs.config.vocab_size == 1000 > loaded.tokenizer.vocab_size


def test_another_string_for_the_blank(both) -> None:
    loaded, _ = both
    assert fill(loaded, ["a ___ b"], blank="___") == fill(loaded, spelt(loaded, ["a [MASK] b"]))
    with pytest.raises(ValueError, match="text 1 does not hold blank='___'"):
        fill(loaded, ["a ___ b", "a b"], blank="___")
    with pytest.raises(ValueError, match="blank=''"):
        fill(loaded, ["a b"], blank="")


def test_errors(both, tmp_path) -> None:
    loaded, _ = both
    mask = loaded.tokenizer.special["mask"]
    with pytest.raises(ValueError, match=rf"text 1 has no blank. Mark it by '{mask}'".replace("[", r"\[")):
        fill(loaded, [f"a {mask}", "a b"])
    with pytest.raises(ValueError, match="takes 40"):
        fill(loaded, [f"{mask} " + "a " * 60])
    assert len(fill(loaded, [f"{mask} " + "a " * 60], truncate="right")[0].blanks) == 1
    with pytest.raises(ValueError, match="1 of the 1 blanks of text 0 would be cut off"):
        fill(loaded, [f"{mask} " + "a " * 60], truncate="left")
    with pytest.raises(ValueError, match="text 0 has no blank"):
        fill(loaded, "a b")
    with pytest.raises(ValueError, match="top must be at least 1"):
        fill(loaded, [mask], top=0)
    other, _ = make(tmp_path / "tag", "BertForTokenClassification", "words")
    with pytest.raises(ValueError, match=r"\('lm' or 'pretraining'\); this model has a 'tag' head.*head='lm'"):
        fill(other, ["[MASK]"])
    decoder, _ = make(tmp_path / "decoder", "GPT2LMHeadModel", "bytes")
    with pytest.raises(ValueError, match="needs an encoder; this model is a decoder"):
        fill(decoder, ["[MASK]"])


def test_a_real_model_of_chemistry() -> None:
    folder = data("rxnmapper-albert")
    loaded = load(folder, allow_pickle=True)
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    backend = tokenizers.Tokenizer(models.WordLevel({token: n for n, token in enumerate(vocabulary)}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["[CLS]", "[SEP]", "[MASK]"])
    set_template(backend, ["[CLS]"], ["[SEP]"])
    loaded.tokenizer = Tokenizer(Vocabulary(backend, {"mask": "[MASK]"}))  # its own cuts formulas, not words
    tokens = ["C", "C", "(", "=", "O", ")", "O", ".", "C", "O", ">>", "C", "C", "(", "=", "O", ")", "O", "C"]
    texts = [" ".join("[MASK]" if n == hidden else token for n, token in enumerate(tokens)) for hidden in range(19)]
    right = [
        filled.blanks[0].guesses[0].token == token for filled, token in zip(fill(loaded, texts), tokens, strict=True)
    ]
    assert sum(right) > 9
