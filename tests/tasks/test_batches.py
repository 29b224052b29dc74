"""Texts as encoded tokens: the ids are those of the tokenizer, and cutting spares the frame."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
import torch

from glassformer.config.checks import Item
from glassformer.tasks import batches
from glassformer.tasks.answer import answer
from glassformer.tasks.batches import (
    BATCH_TOKENS,
    PADDING_SHARE,
    TaskBatch,
    TaskRow,
    all_text_tokens,
    check_windows,
    fit,
    overlapping,
    plan_batches,
    run_in_batches,
    sliding,
    text_rows,
    text_tokens,
    trim,
)
from glassformer.tasks.classify import classify
from glassformer.tasks.embed import embed
from glassformer.tasks.fill import fill
from glassformer.tasks.score import score, score_file, score_masked
from glassformer.tasks.tag import tag
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
        assert text_tokens(tokenizer, text, name="it").row.ids == tokenizer.encode(text)
        both = text_tokens(tokenizer, text, "and more", name="it").row
        assert (both.ids, both.segments) == tokenizer.encode_pair(text, "and more")
        other = text_tokens(tokenizer, "and more", text, name="it")
        assert other.row.ids == tokenizer.encode_pair("and more", text)[0]
        assert [token.id for token in other.first] == tokenizer.encode("and more", special=False)


def test_a_framing_token_in_the_text_counts_as_the_frame(tmp_path) -> None:
    tokenizer = save_tokenizer("words", tmp_path)
    encoded = text_tokens(tokenizer, "[CLS] a b [SEP]", name="it")
    assert [len(part) for part in (encoded.before, encoded.first, encoded.after)] == [1, 2, 1]
    with pytest.raises(ValueError, match=r"it gives no token: '\[CLS\]'"):
        text_tokens(tokenizer, "[CLS]", name="it")


@pytest.mark.parametrize("empty", ["", "   "])
def test_a_text_without_tokens_is_named(tmp_path, empty) -> None:
    tokenizer = save_tokenizer("words", tmp_path)
    for pair in ((empty, None), (empty, "a"), ("a", empty)):
        with pytest.raises(ValueError, match=f"text 7 gives no token: {empty!r}. Leave it out"):
            text_tokens(tokenizer, *pair, name="text 7")


def test_cutting_spares_the_frame(tmp_path) -> None:
    tokenizer = save_tokenizer("words", tmp_path)
    whole = text_tokens(tokenizer, "a b c d e f g", name="text 0")
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
    cut = fit(text_tokens(tokenizer, "a " * first, "b " * second, name="it"), 8, "right")
    assert (len(cut.first), len(cut.second)) == kept


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("decoder"), "GPT2LMHeadModel", "bytes")[0]


ABLE = {  # a model that can, of each task
    fill: ("BertForMaskedLM", "words"),
    score: ("GPT2LMHeadModel", "bytes"),
    score_masked: ("BertForMaskedLM", "words"),
    embed: ("GPT2LMHeadModel", "bytes"),
    classify: ("BertForSequenceClassification", "words"),
    tag: ("BertForTokenClassification", "words"),
    answer: ("BertForQuestionAnswering", "words"),
}


@pytest.fixture(scope="module")
def able(tmp_path_factory):
    made = {kind: make(tmp_path_factory.mktemp(kind[0]), *kind)[0] for kind in set(ABLE.values())}
    return {task: made[kind] for task, kind in ABLE.items()}


@pytest.mark.parametrize("task", ABLE)
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, r"(texts|questions) must be a list, got None"),
        (b"ada", "must be a list of texts, got one text, b'ada'"),
        ({"ada"}, r"must be a list, got \{'ada'\} \(set\)"),
        ([None], r"(text|question) 0 must be a .*, got None"),
        ([1, 2], r"(text|question) 0 must be a .*, got 1 \(int\)"),
        ([b"ada"], "(text|question) 0 must be a .*, got b"),
    ],
)
def test_what_is_no_list_of_texts(able, task, texts, message) -> None:
    with types_unchecked(), pytest.raises(TypeError, match=message):
        task(able[task], texts)


def test_a_question_alone_has_no_context(able) -> None:
    with types_unchecked(), pytest.raises(TypeError, match=r"got one text, '(ada ){10}' …\."):
        answer(able[answer], "ada " * 20)


@pytest.mark.parametrize("task", [task for task in ABLE if task is not answer])
def test_bytes_are_to_be_decoded(able, task) -> None:
    with types_unchecked(), pytest.raises(TypeError, match=r"text 1 must be a .*Decode them: .decode\('utf-8'\)"):
        task(able[task], ["a", b"a"])


@pytest.mark.parametrize("task", [*TASKS, score_file])
def test_what_is_not_a_loaded_model(decoder, task) -> None:
    for wrong, message in ((decoder.model, r"\(Transformer\)"), ("folder", "'folder'"), (None, "None")):
        with types_unchecked(), pytest.raises(TypeError, match=rf"(?s)got .*{message}.*Pass what glassformer.load"):
            task(wrong, ["a"])


@pytest.mark.parametrize("task", [classify, score])
def test_a_pair_is_two_texts(able, task) -> None:
    with (
        types_unchecked(),
        pytest.raises(ValueError, match=r"text 0 must be a text or a pair \(text, text\), got 3 parts"),
    ):
        task(able[task], [("a", "b", "c")])
    with types_unchecked(), pytest.raises(TypeError, match="the second part of text 1 must be a text, got None"):
        task(able[task], ["a", ("a", None)])


def test_trim() -> None:
    assert trim("a  b ", 1, 5) == (3, 4)
    assert trim("a  b ", 3, 4) == (3, 4)
    start, end = trim("a  b", 1, 3)
    assert start >= end  # nothing but white space


@pytest.mark.parametrize(("length", "window", "stride"), [(1, 4, 2), (4, 4, 2), (5, 4, 3), (17, 4, 1), (23, 7, 5)])
def test_sliding_windows_cover_every_token_once_with_all_they_can_hold(length, window, stride) -> None:
    windows = sliding(length, window, stride)
    assert [index for span in windows for index in range(span.new, span.end)] == list(range(length))
    assert all(span.end - span.start == min(window, length) for span in windows)
    assert all(span.end - span.new <= stride for span in windows[1:])


@pytest.mark.parametrize(
    ("window", "stride", "longest", "message"),
    [(50, None, 40, "window=50"), (8, 8, 40, "stride=8"), (1, None, 40, "window=1"), (8, 0, 40, "at least 1")],
)
def test_wrong_windows(window, stride, longest, message) -> None:
    with pytest.raises(ValueError, match=message):
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
    rows = [TaskRow(list(range(length)), [0] * length) for length in (3, 9, 1, 7, 7, 2)]
    shapes = []

    def ask(_, batch: TaskBatch) -> list[tuple[int, int]]:
        shapes.append(tuple(batch.ids.shape))
        assert batch.segments is None
        return [(int(real.sum()), int(ids[real].sum())) for ids, real in zip(batch.ids, batch.mask, strict=True)]

    results = run_in_batches(loaded.model, rows, ask, 2)
    assert results == [(length, sum(range(length))) for length in (3, 9, 1, 7, 7, 2)]
    assert shapes == [(2, 9), (2, 7), (2, 2)]
    assert run_in_batches(loaded.model, [], ask, 2) == []
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        run_in_batches(loaded.model, rows, ask, 0)


@pytest.mark.parametrize("seed", range(6))
def test_batches_are_planned_by_tokens_with_little_padding(seed) -> None:
    """Every row once, the longest first; a batch within the budget, and too large with the next row."""
    draw = Random(seed)
    lengths = [min(3000, max(8, round(draw.lognormvariate(4.1, 0.85)))) for _ in range(draw.choice([1, 60, 900]))]
    lengths += [3000] if seed % 2 else []
    plan = list(plan_batches(lengths))
    assert sorted(number for batch in plan for number in batch) == list(range(len(lengths)))
    firsts = [lengths[batch[0]] for batch in plan]
    assert firsts == sorted(firsts, reverse=True)
    for batch, following in pairwise([*plan, ()]):
        assert _padding(lengths, batch) <= BATCH_TOKENS // PADDING_SHARE
        assert len(batch) * lengths[batch[0]] <= BATCH_TOKENS or len(batch) == 1
        if following:
            larger = (*batch, following[0])
            assert (
                len(larger) * lengths[batch[0]] > BATCH_TOKENS
                or _padding(lengths, larger) > BATCH_TOKENS // PADDING_SHARE
            )
    assert list(plan_batches([])) == []
    assert list(plan_batches([5] * 5, 2)) == [(0, 1), (2, 3), (4,)]


def _padding(lengths: Sequence[int], batch: Sequence[int]) -> int:
    longest = max(lengths[number] for number in batch)
    return sum(longest - lengths[number] for number in batch)


def test_the_longer_side_of_a_row_counts(tmp_path) -> None:
    """A short source with a long target would otherwise be put into a batch with many others."""
    loaded, _ = make(tmp_path, "GPT2Model", "bytes")
    rows = [TaskRow([1], [0], target=[2] * length) for length in (1500, 3, 1500)]
    shapes = []

    def ask(_, batch: TaskBatch) -> list[int]:
        shapes.append(tuple(batch.target.shape))
        return list(batch.numbers)

    assert run_in_batches(loaded.model, rows, ask) == [0, 1, 2]
    assert shapes == [(1, 1500), (1, 1500), (1, 3)]


def test_many_texts_are_encoded_as_each_of_them(tmp_path, monkeypatch) -> None:
    loaded, _ = make(tmp_path, "BertModel", "words")
    monkeypatch.setattr(batches, "ENCODED_TEXTS", 2)
    texts = [*TEXTS[:3], (TEXTS[0], TEXTS[1]), [TEXTS[1], TEXTS[2]]]
    with types_unchecked():  # a list of two texts is a pair, too
        found = all_text_tokens(loaded.tokenizer, texts)
    for number, (text, tokens) in enumerate(zip(texts, found, strict=True)):
        pair = (text,) if isinstance(text, str) else text
        assert tokens == text_tokens(loaded.tokenizer, *pair, name=Item("text", number))
    with pytest.raises(ValueError, match=r"question 2 .*gives no token"):
        all_text_tokens(loaded.tokenizer, [*TEXTS[:2], "", TEXTS[0]], "question")


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


@pytest.mark.parametrize(("architecture", "kind"), [("BertModel", "words"), ("GPT2Model", "bytes")])
def test_rows_are_packed_where_there_is_a_kernel_for_it(architecture, kind, tmp_path, monkeypatch) -> None:
    """The vectors of the tokens are the same, and the model reads no padding."""
    loaded, _ = make(tmp_path, architecture, kind)
    rows = [TaskRow([*range(3, 3 + length)], [0] * length) for length in (4, 9, 2)]
    batch = batches._make_batch(loaded.model, rows, (0, 1, 2))
    read = []

    def note(_, arguments) -> None:  # type: ignore[no-untyped-def]
        read.append(arguments[0].shape[:2])

    stack = loaded.model.decoder if loaded.model.encoder is None else loaded.model.encoder
    stack.register_forward_pre_hook(note)
    with torch.no_grad():
        padded = batches.encode(loaded.model, batch)
        monkeypatch.setattr(type(stack), "has_packed_kernel", lambda *_: True)
        packed = batches.encode(loaded.model, batch)
    assert read == [(3, 9), (1, 15)]
    assert packed.shape == padded.shape
    torch.testing.assert_close(packed[batch.mask], padded[batch.mask], rtol=1e-5, atol=1e-5)


def test_rows_of_whole_texts_are_those_of_their_tokens(tokenizer) -> None:
    frames = [token for token in tokenizer.special.values() if token in ("[CLS]", "[SEP]", "<s>", "</s>")]
    texts = [*HOSTILE, *(text.format(token) for token in frames for text in ("{} a b", "a {} b", "a b c d e f {}"))]
    texts = [text for text in texts if tokenizer.encode(text, special=False)]
    expected = [fit(text, 7, "right").row for text in all_text_tokens(tokenizer, texts)]
    assert [(row.ids, row.segments) for row in text_rows(tokenizer, texts, 7, "right")] == [
        (row.ids, row.segments) for row in expected
    ]
    with pytest.raises(ValueError, match=r"text 1 has .* tokens"):
        text_rows(tokenizer, ["a", "a b c d e f g h i j k l m n o"], 5, None)
    with pytest.raises(ValueError, match="text 1 gives no token"):
        text_rows(tokenizer, ["a", ""], 5, None)
    for texts in ([], ["a b c d e f g"]):  # also where nothing must be cut
        with types_unchecked(), pytest.raises(ValueError, match="truncate must be"):
            text_rows(tokenizer, texts, 100, "middle")
