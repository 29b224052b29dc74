"""Texts as framed tokens: the ids are those of the tokenizer, and cutting spares the frame."""

from itertools import pairwise

import pytest

from glassformer.tasks.answer import answer
from glassformer.tasks.batches import Batch, Row, run_in_batches
from glassformer.tasks.classify import classify
from glassformer.tasks.embed import embed
from glassformer.tasks.fill import fill
from glassformer.tasks.score import score, score_file, score_masked
from glassformer.tasks.tag import tag
from glassformer.tasks.texts import check_windows, fit, frame, overlapping, sliding, trim
from tests.helpers import types_unchecked
from tests.tasks.models import TEXTS, make, save_tokenizer
from tests.text.test_tokenizer import HOSTILE

TASKS = [fill, score, score_masked, embed, classify, tag, answer]
KINDS = ["words", "angled", "bytes", "bytes with bos"]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request, tmp_path_factory):
    return save_tokenizer(request.param, tmp_path_factory.mktemp("tokenizer"))


def test_ids_and_segments_are_those_of_the_tokenizer(tokenizer) -> None:
    frames = [token for token in tokenizer.special.values() if token in ("[CLS]", "[SEP]", "<s>", "</s>")]
    texts = [*HOSTILE, *(text.format(token) for token in frames for text in ("{} a b", "a {} b", "a b {}"))]
    texts = [text for text in texts if tokenizer.encode(text, special=False)]
    assert len(texts) > 60
    for text in texts:
        assert frame(tokenizer, text, name="it").row.ids == tokenizer.encode(text)
        both = frame(tokenizer, text, "and more", name="it").row
        assert (both.ids, both.segments) == tokenizer.encode_pair(text, "and more")
        other = frame(tokenizer, "and more", text, name="it")
        assert other.row.ids == tokenizer.encode_pair("and more", text)[0]
        assert [token.id for token in other.first] == tokenizer.encode("and more", special=False)


def test_a_framing_token_in_the_text_counts_as_the_frame(tmp_path) -> None:
    tokenizer = save_tokenizer("words", tmp_path)
    framed = frame(tokenizer, "[CLS] a b [SEP]", name="it")
    assert [len(part) for part in (framed.before, framed.first, framed.after)] == [1, 2, 1]
    with pytest.raises(ValueError, match=r"it gives no token: '\[CLS\]'"):
        frame(tokenizer, "[CLS]", name="it")


@pytest.mark.parametrize("empty", ["", "   "])
def test_a_text_without_tokens_is_named(tmp_path, empty) -> None:
    tokenizer = save_tokenizer("words", tmp_path)
    for pair in ((empty, None), (empty, "a"), ("a", empty)):
        with pytest.raises(ValueError, match=f"text 7 gives no token: {empty!r}. Leave it out"):
            frame(tokenizer, *pair, name="text 7")


def test_cutting_spares_the_frame(tmp_path) -> None:
    tokenizer = save_tokenizer("words", tmp_path)
    whole = frame(tokenizer, "a b c d e f g", name="text 0")
    right, left = (tokenizer.tokens(fit(whole, 5, side).row.ids) for side in ("right", "left"))
    assert right == ["[CLS]", "a", "b", "c", "[SEP]"]
    assert left == ["[CLS]", "e", "f", "g", "[SEP]"]
    assert fit(whole, 9, None) is whole
    with pytest.raises(ValueError, match=r"text 0 has 9 tokens, 2 of them .* takes 8. Shorten it by 1 tokens"):
        fit(whole, 8, None)
    with pytest.raises(ValueError, match="too few"):
        fit(whole, 2, "right")


@pytest.mark.parametrize(
    ("first", "second", "kept"), [(1, 7, (1, 4)), (7, 1, (4, 1)), (7, 7, (3, 2)), (2, 4, (2, 3)), (3, 3, (3, 2))]
)
def test_of_a_pair_the_longer_text_is_cut(tmp_path, first, second, kept) -> None:
    tokenizer = save_tokenizer("words", tmp_path)
    cut = fit(frame(tokenizer, "a " * first, "b " * second, name="it"), 8, "right")
    assert (len(cut.first), len(cut.second)) == kept


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("decoder"), "GPT2LMHeadModel", "bytes")[0]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, r"(texts|questions) must be a list, got None"),
        ("ada", r"must be a list of texts, got one text, 'ada'\. Put it in brackets"),
        (b"ada", "must be a list of texts, got one text, b'ada'"),
        ({"ada"}, r"must be a list, got \{'ada'\} \(set\)"),
        ([None], r"(text|question) 0 must be a .*, got None"),
        ([1, 2], r"(text|question) 0 must be a .*, got 1 \(int\)"),
        ([b"ada"], "(text|question) 0 must be a .*, got b"),
    ],
)
def test_what_is_no_list_of_texts(decoder, task, texts, message) -> None:
    with types_unchecked(), pytest.raises(TypeError, match=message):
        task(decoder, texts)


@pytest.mark.parametrize("task", [fill, score, score_masked, embed, classify, tag])
def test_bytes_are_to_be_decoded(decoder, task) -> None:
    with types_unchecked(), pytest.raises(TypeError, match=r"text 1 must be a .*Decode them: .decode\('utf-8'\)"):
        task(decoder, ["a", b"a"])


@pytest.mark.parametrize("task", [*TASKS, score_file])
def test_what_is_not_a_loaded_model(decoder, task) -> None:
    for wrong, told in ((decoder.model, r"\(Transformer\)"), ("folder", "'folder'"), (None, "None")):
        with types_unchecked(), pytest.raises(TypeError, match=rf"(?s)got .*{told}.*Pass what glassformer.load"):
            task(wrong, ["a"])


@pytest.mark.parametrize("task", [classify, score])
def test_a_pair_is_two_texts(decoder, task) -> None:
    with (
        types_unchecked(),
        pytest.raises(ValueError, match=r"text 0 must be a text or a pair \(text, text\), got 3 parts"),
    ):
        task(decoder, [("a", "b", "c")])
    with types_unchecked(), pytest.raises(TypeError, match="the second part of text 1 must be a text, got None"):
        task(decoder, ["a", ("a", None)])


def test_trim() -> None:
    assert trim("a  b ", 1, 5) == (3, 4)
    assert trim("a  b ", 3, 4) == (3, 4)
    start, end = trim("a  b", 1, 3)
    assert start >= end  # nothing but white space


@pytest.mark.parametrize(("length", "window", "stride"), [(1, 4, 2), (4, 4, 2), (5, 4, 3), (17, 4, 1), (23, 7, 5)])
def test_sliding_windows_cover_every_token_once_with_all_they_can_hold(length, window, stride) -> None:
    found = sliding(length, window, stride)
    assert [place for one in found for place in range(one.new, one.end)] == list(range(length))
    assert all(one.end - one.start == min(window, length) for one in found)
    assert all(one.end - one.new <= stride for one in found[1:])


@pytest.mark.parametrize(
    ("window", "stride", "longest", "said"),
    [(50, None, 40, "window=50"), (8, 8, 40, "stride=8"), (1, None, 40, "window=1"), (8, 0, 40, "at least 1")],
)
def test_wrong_windows(window, stride, longest, said) -> None:
    with pytest.raises(ValueError, match=said):
        check_windows(window, stride, longest, 100)


def test_usual_windows() -> None:
    assert check_windows(None, None, 40, 100) == (40, 20)
    assert check_windows(None, None, None, 100)[0] == 100
    assert check_windows(10, 3, None, 100) == (10, 3)


def test_overlapping_words() -> None:
    sizes = [3, 1, 2, 4, 1, 1, 5, 2, 2]
    ranges = overlapping(sizes, 6, 3)
    assert {word for first, last in ranges for word in range(first, last)} == set(range(9))
    assert all(sum(sizes[first:last]) <= 6 for first, last in ranges)
    assert all(later[1] > earlier[1] for earlier, later in pairwise(ranges))
    assert any(earlier[1] > later[0] for earlier, later in pairwise(ranges))
    assert overlapping([1] * 5, 5, 2) == [(0, 5)]
    assert overlapping([1] * 7, 5, 2) == [(0, 5), (3, 7)]


def test_rows_are_sorted_by_length_and_put_back(tmp_path) -> None:
    loaded, _ = make(tmp_path, "GPT2Model", "bytes")
    rows = [Row(list(range(length)), [0] * length) for length in (3, 9, 1, 7, 7, 2)]
    shapes = []

    def ask(_, batch: Batch) -> list[tuple[int, int]]:
        shapes.append(tuple(batch.ids.shape))
        assert batch.segments is None
        return [(int(real.sum()), int(ids[real].sum())) for ids, real in zip(batch.ids, batch.mask, strict=True)]

    found = run_in_batches(loaded.model, rows, ask, 2)
    assert found == [(length, sum(range(length))) for length in (3, 9, 1, 7, 7, 2)]
    assert shapes == [(2, 9), (2, 7), (2, 2)]
    assert run_in_batches(loaded.model, [], ask, 2) == []
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        run_in_batches(loaded.model, rows, ask, 0)


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_a_model_is_left_as_it_was_and_can_still_be_trained(tmp_path, architecture) -> None:
    loaded, _ = make(tmp_path, architecture, "bytes", **({"resid_pdrop": 0.5} if "GPT2" in architecture else {}))
    model = loaded.model.train()
    model.embed.eval()
    first, second = score(loaded, TEXTS[:1]), score(loaded, TEXTS[:1])
    assert first == second  # no dropout
    assert (model.training, model.embed.training, model.decoder.training) == (True, False, True)
    ids, mask = loaded.tokenizer.batch(TEXTS[:2], pad=0)
    model(ids, mask).sum().backward()
    assert model.embed.token.weight.grad is not None
