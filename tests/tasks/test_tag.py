"""Labels of words: the reference's for each first token, exact characters, windows that lose nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.cli.errors import message
from glassformer.tasks.entities import Word, join_entities
from glassformer.tasks.tag import tag
from tests.helpers import types_unchecked
from tests.tasks.models import TEXTS, make
from tests.text.test_tokenizer import HOSTILE

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
NAMES = {"id2label": dict(enumerate(LABELS)), "label2id": {name: n for n, name in enumerate(LABELS)}}
CASES = {
    "BertForTokenClassification": "words",
    "RobertaForTokenClassification": "angled",
    "GPT2ForTokenClassification": "bytes",
}
SHORT = [TEXTS[0], TEXTS[2], TEXTS[1], TEXTS[4]]


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory):
    kind = CASES[request.param]
    extra = {"pad_token_id": 1} if kind == "angled" else {}
    return make(tmp_path_factory.mktemp("tag"), request.param, kind, **NAMES, **extra)


def their_probs(loaded, theirs, text: str) -> list[tuple[int, int, torch.Tensor]]:
    """(start, end, probabilities) of each token of the text itself."""
    tagged = loaded.tokenizer.backend.encode(text)
    with torch.no_grad():
        probs = theirs(torch.tensor([tagged.ids])).logits[0].softmax(-1)
    tokens = zip(tagged.sequence_ids, tagged.offsets, probs, strict=True)
    return [(*offset, row) for source, offset, row in tokens if source is not None]


def test_a_word_has_the_label_of_its_first_token(both) -> None:
    loaded, theirs = both
    for text, tagged in zip(SHORT, tag(loaded, SHORT, batch_size=3), strict=True):
        tokens, reached = their_probs(loaded, theirs, text), 0
        for word in tagged.words:
            assert word.text == text[word.start : word.end]
            first = next(row for start, _, row in tokens if start >= reached)
            reached = word.end
            assert word.label == LABELS[int(first.argmax())]
            assert word.probability == pytest.approx(float(first.max()), abs=1e-9)


def test_words_of_a_text(tmp_path) -> None:
    loaded, _ = make(tmp_path, "BertForTokenClassification", "words", **NAMES)
    (tagged,) = tag(loaded, ["日本語 and 😀, déjà  vu (unbelievably)!"])
    expected = ["日", "本", "語", "and", "😀", ",", "déjà", "vu", "(", "unbelievably", ")", "!"]
    assert [word.text for word in tagged.words] == expected


def test_characters_are_exact_in_all_texts(both) -> None:
    loaded, _ = both
    texts = [text for text in HOSTILE if text.strip("\n\r\t \x01\x1b") and len(loaded.tokenizer.encode(text)) < 38]
    texts = [text for text in texts if any(a != b for a, b in loaded.tokenizer.offsets(text))]
    assert len(texts) > 30
    for text, tagged in zip(texts, tag(loaded, texts), strict=True):
        end = 0
        for word in tagged.words:
            assert end <= word.start < word.end <= len(text)
            assert word.text == text[word.start : word.end]
            assert not word.text[0].isspace()
            assert not word.text[-1].isspace()
            end = word.end
        for entity in tagged.entities:
            assert entity.text == text[entity.start : entity.end]


def test_a_word_is_never_split_by_its_tokens(both) -> None:
    loaded, _ = both
    (tagged,) = tag(loaded, ["an unbelievably longwinded 😀 antidisestablishment"])
    assert [word.text for word in tagged.words] == ["an", "unbelievably", "longwinded", "😀", "antidisestablishment"]


def test_given_words_keep_their_number(both) -> None:
    loaded, theirs = both
    words = ["Don't", "U.S.", "日本語", "😀", "vu!"]
    (tagged,) = tag(loaded, [words])
    assert [word.text for word in tagged.words] == words
    assert tagged.text == "Don't U.S. 日本語 😀 vu!"
    assert [(word.start, word.end) for word in tagged.words] == [(0, 5), (6, 10), (11, 14), (15, 16), (17, 20)]
    tokens, reached = their_probs(loaded, theirs, tagged.text), 0
    for word in tagged.words:  # a token of the space before a word is the first of the word
        first = next(row for start, _, row in tokens if start >= reached)
        reached = word.end
        assert (word.label, word.probability) == (
            LABELS[int(first.argmax())],
            pytest.approx(float(first.max()), abs=1e-9),
        )
    with pytest.raises(ValueError, match="word 1 of text 0, '', gives no token") as caught:
        tag(loaded, [["a", "", "b"]])
    assert message(caught.value).startswith("word 2 of text 1, '', gives no token")


def test_long_texts_are_read_in_windows(both) -> None:
    loaded, theirs = both
    words = " ".join(TEXTS * 2).split()
    (tagged,) = tag(loaded, [words], overlap=12)
    assert [word.text for word in tagged.words] == words  # no word is lost or doubled
    start = their_probs(loaded, theirs, " ".join(words[:6]))[0][2]
    causal = loaded.config.family == "decoder"
    if causal:  # the first word sees nothing but itself
        assert tagged.words[0].probability == pytest.approx(float(start.max()), abs=1e-9)
    for size in (1, 4):
        (again,) = tag(loaded, [words], overlap=12, batch_size=size)
        assert [w.label for w in again.words] == [w.label for w in tagged.words]
        assert [w.probability for w in again.words] == pytest.approx([w.probability for w in tagged.words], abs=1e-9)


def test_a_word_in_two_windows_is_judged_where_it_has_more_beside_it(tmp_path) -> None:
    loaded, theirs = make(tmp_path, "BertForTokenClassification", "words", **NAMES)
    words = [chr(ord("a") + n % 26) for n in range(60)]  # one token each; 38 fit beside the frame
    (tagged,) = tag(loaded, [words], overlap=20)
    # Windows: words 0 to 37 and 18 to 59 less what does not fit: 18 to 55, then 36 to 59.
    for word, (first, last) in {
        0: (0, 38),
        26: (0, 38),
        29: (18, 56),
        44: (18, 56),
        47: (36, 60),
        59: (36, 60),
    }.items():
        row = their_probs(loaded, theirs, " ".join(words[first:last]))[word - first][2]
        assert tagged.words[word].probability == pytest.approx(float(row.max()), abs=1e-9), word


def test_order_does_not_matter(both) -> None:
    loaded, _ = both
    texts = [*SHORT, " ".join(TEXTS)]
    for a, b in zip(tag(loaded, texts, batch_size=1), tag(loaded, texts[::-1])[::-1], strict=True):
        assert [(w.text, w.start, w.label) for w in a.words] == [(w.text, w.start, w.label) for w in b.words]
        assert [(e.kind, e.start, e.end) for e in a.entities] == [(e.kind, e.start, e.end) for e in b.entities]


def test_errors(both, tmp_path) -> None:
    loaded, _ = both
    with pytest.raises(ValueError, match=r"text 1 has a word of \d+ tokens, .* A word cannot be read in parts"):
        tag(loaded, ["a", "xq" * 45])
    with pytest.raises(ValueError, match=r"text 0 (gives no token|has no word)"):
        tag(loaded, ["  "])
    with types_unchecked(), pytest.raises(TypeError, match=r"word 1 of text 0 must be a text, got 3"):
        tag(loaded, [["a", 3]])
    available = 40 - len(loaded.tokenizer.encode("a")) + len(loaded.tokenizer.encode("a", special=False))
    long = " ".join(TEXTS)
    for overlap in (available, 500):
        message = rf"overlap={overlap} leaves .*takes 40 tokens, {available} .*Set overlap to {available - 1} at most"
        with pytest.raises(ValueError, match=message):
            tag(loaded, [long], overlap=overlap)
    assert [word.text for word in tag(loaded, [long], overlap=available - 1)[0].words] == [
        word.text for word in tag(loaded, [long])[0].words
    ]
    other, _ = make(tmp_path / "span", "BertForQuestionAnswering", "words")
    with pytest.raises(
        ValueError, match=r"tag needs a token-classification head \('tag'\); this model has a 'span' head"
    ):
        tag(other, ["a"])


# ---- entities


def joined(*labels: str) -> list[tuple[str, int, int]]:
    words = [Word("w", 2 * n, 2 * n + 1, label, 0.5) for n, label in enumerate(labels)]
    return [(e.kind, e.start // 2, e.end // 2 + 1) for e in join_entities("w " * len(labels), words)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["O", "B-A", "I-A", "O"], [("A", 1, 3)]),
        (["B-A", "B-A"], [("A", 0, 1), ("A", 1, 2)]),
        (["I-A", "I-A"], [("A", 0, 2)]),  # an I after O begins one
        (["B-A", "I-B", "I-B"], [("A", 0, 1), ("B", 1, 3)]),  # as does an I of another kind
        (["B-A", "O", "I-A"], [("A", 0, 1), ("A", 2, 3)]),
        (["B-A", "I-A", "E-A", "I-A"], [("A", 0, 3), ("A", 3, 4)]),
        (["S-A", "I-A", "E-A", "E-A"], [("A", 0, 1), ("A", 1, 3), ("A", 3, 4)]),
        (["B-A", "S-A", "E-A"], [("A", 0, 1), ("A", 1, 2), ("A", 2, 3)]),
        (["B-geo-nam", "I-geo-nam"], [("geo-nam", 0, 2)]),
        (["B", "I", "O", "I"], [("", 0, 2), ("", 3, 4)]),
        (["NOUN", "NOUN", "VERB"], [("NOUN", 0, 2), ("VERB", 2, 3)]),
        ([], []),
    ],
)
def test_entities(labels, expected) -> None:
    assert joined(*labels) == expected


@given(st.lists(st.sampled_from(["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in "XY")]), max_size=12))
def test_every_word_that_is_not_outside_is_in_one_entity(labels) -> None:
    covered = [index for _, start, end in joined(*labels) for index in range(start, end)]
    assert covered == [index for index, label in enumerate(labels) if label != "O"]
    for kind, start, end in joined(*labels):
        assert {label[2:] for label in labels[start:end]} == {kind}
        assert all(label[0] in "IE" for label in labels[start + 1 : end])
        assert all(label[0] in "BI" for label in labels[start : end - 1])
