"""Answers: the best run of the context by the reference's logits, with exact characters."""

import pytest
import torch
import transformers

from glassformer.tasks.answer import answer
from tests.helpers import types_unchecked
from tests.tasks.models import LONGEST, TEXTS, make

CASES = {
    "BertForQuestionAnswering": "words",
    "RobertaForQuestionAnswering": "angled",
    "GPT2ForQuestionAnswering": "bytes",
    "BartForQuestionAnswering": "angled",
}
QUESTIONS = [
    ("What is it?", "日本語 and 😀, déjà vu!"),
    ("Has it", "Python has lists and tuples"),
    ("Is 日?", "The value of it is 😀😀 日本."),
]
# The second half in another order: windows with the same words would tie.
LONG = ("What?", " ".join([*TEXTS, *(" ".join(reversed(text.split())) for text in TEXTS)]))


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory):
    kind = CASES[request.param]
    extra = {"pad_token_id": 1} if kind == "angled" else {}
    return make(tmp_path_factory.mktemp("answer"), request.param, kind, **extra)


def their_spans(loaded, theirs, question: str, context: str, longest: int, window: slice = slice(None)):
    """{(first, last) token of the context: logits}, and the logits of the first token, from one call."""
    backend = loaded.tokenizer.backend.encode(question, context)
    sources = backend.sequence_ids
    inside = [index for index, source in enumerate(sources) if source == 1]
    kept = inside[window]
    indices = [index for index in range(len(sources)) if index not in inside or index in kept]
    inputs = {"input_ids": torch.tensor([[backend.ids[index] for index in indices]])}
    if loaded.config.embed.segments > 1:
        inputs["token_type_ids"] = torch.tensor([[backend.type_ids[index] for index in indices]])
    with torch.no_grad():
        out = theirs(**inputs)
    start, end = out.start_logits[0], out.end_logits[0]
    at = {inside.index(index): indices.index(index) for index in kept}
    spans = {(i, j): float(start[at[i]] + end[at[j]]) for i in at for j in at if i <= j < i + longest}
    return spans, float(start[0] + end[0]), [backend.offsets[index] for index in inside]


def expected_answers(spans, offsets, context: str, extra: list[float]):
    """[(start, end, logits, probability)] by falling logits; runs over the same characters count once."""
    total = torch.tensor([*spans.values(), *extra]).double().logsumexp(0)
    answered: dict[tuple[int, int], tuple[float, float]] = {}
    for (i, j), value in sorted(spans.items(), key=lambda item: -item[1]):
        start, end = offsets[i][0], offsets[j][1]
        while start < end and context[start].isspace():
            start += 1
        while start < end and context[end - 1].isspace():
            end -= 1
        if start < end:
            answered.setdefault((start, end), (value, float((value - total).exp())))
    return [(*index, *values) for index, values in answered.items()]


@pytest.mark.parametrize("longest", [1, 3, 50])
def test_answers_are_the_best_runs(both, longest) -> None:
    loaded, theirs = both
    answered = answer(loaded, QUESTIONS, top=6, max_answer_tokens=longest, batch_size=2)
    for (question, context), result in zip(QUESTIONS, answered, strict=True):
        spans, _, offsets = their_spans(loaded, theirs, question, context, longest)
        expected = expected_answers(spans, offsets, context, [])[:6]
        assert [(a.start, a.end) for a in result.answers] == [(start, end) for start, end, _, _ in expected]
        assert [a.score for a in result.answers] == pytest.approx([e[2] for e in expected], abs=1e-6)
        assert [a.probability for a in result.answers] == pytest.approx([e[3] for e in expected], abs=1e-6)
        assert all(a.text == context[a.start : a.end] and a.text for a in result.answers)
        assert result.no_answer is None


def their_windows(loaded, theirs, stride: int):
    """The best logits of each run of LONG over all windows, those of the first token in each, and the characters."""
    backend = loaded.tokenizer.backend.encode(*LONG)
    length = backend.sequence_ids.count(1)
    window = LONGEST - (len(backend.ids) - length)
    ends = [*range(window, length, stride), length]
    assert len(ends) > 3
    best: dict[tuple[int, int], float] = {}
    nothing = []
    for end in ends:
        spans, first, offsets = their_spans(loaded, theirs, *LONG, 4, slice(end - window, end))
        best = {key: max(best.get(key, -1e9), spans.get(key, -1e9)) for key in {*best, *spans}}
        nothing.append(first)
    return best, nothing, offsets


def test_long_contexts_are_read_in_windows(both) -> None:
    loaded, theirs = both
    (answered,) = answer(loaded, [LONG], top=5, max_answer_tokens=4, stride=7)
    best, _, offsets = their_windows(loaded, theirs, 7)
    expected = expected_answers(best, offsets, LONG[1], [])[:5]
    assert [(a.start, a.end) for a in answered.answers] == [(start, end) for start, end, _, _ in expected]
    assert [a.probability for a in answered.answers] == pytest.approx([e[3] for e in expected], abs=1e-6)


def test_no_answer_is_one_more_choice(both) -> None:
    loaded, theirs = both
    if not loaded.tokenizer.encode("", special=True):
        with pytest.raises(ValueError, match="no_answer reads the token before the question"):
            answer(loaded, QUESTIONS, no_answer=True)
        return
    question, context = QUESTIONS[0]
    (answered,) = answer(loaded, [QUESTIONS[0]], no_answer=True, top=10_000)
    spans, nothing, offsets = their_spans(loaded, theirs, question, context, 30)
    total = torch.tensor([*spans.values(), nothing]).double().logsumexp(0)
    assert answered.no_answer == pytest.approx(float((nothing - total).exp()), abs=1e-6)
    expected = expected_answers(spans, offsets, context, [nothing])
    assert [a.probability for a in answered.answers] == pytest.approx([e[3] for e in expected], abs=1e-6)
    (windows,) = answer(loaded, [LONG], no_answer=True, max_answer_tokens=4, stride=7)
    best, every, _ = their_windows(loaded, theirs, 7)
    total = torch.tensor([*best.values(), min(every)]).double().logsumexp(0)
    assert max(every) - min(every) > 1e-3
    assert windows.no_answer == pytest.approx(float((min(every) - total).exp()), rel=1e-5)


def test_order_and_batches_do_not_matter(both) -> None:
    loaded, _ = both
    questions = [*QUESTIONS, LONG]
    result = answer(loaded, questions, batch_size=1, top=3)
    for other in (answer(loaded, questions, top=3), answer(loaded, questions[::-1], top=3, batch_size=8)[::-1]):
        for a, b in zip(result, other, strict=True):
            assert (a.question, a.context) == (b.question, b.context)
            assert [(x.start, x.end) for x in a.answers] == [(x.start, x.end) for x in b.answers]
            assert [x.score for x in a.answers] == pytest.approx([x.score for x in b.answers], abs=1e-9)


def test_an_answer_never_comes_from_the_question(tmp_path) -> None:
    loaded, _ = make(tmp_path, "BertForQuestionAnswering", "words")
    with torch.no_grad():  # the head likes the first tokens best: the question's
        loaded.model.head.out.weight.zero_()
    (answered,) = answer(loaded, [("who who who", "a")], top=9)
    assert [(a.text, a.start, a.end, a.probability) for a in answered.answers] == [("a", 0, 1, 1.0)]


def test_errors(both, tmp_path) -> None:
    loaded, _ = both
    with pytest.raises(ValueError, match=r"question 1 has .* leaves no tokens"):
        answer(loaded, [QUESTIONS[0], ("why " * 60, "a")])
    with pytest.raises(ValueError, match="question 0 gives no token: ''"):
        answer(loaded, [("why", "")])
    with pytest.raises(ValueError, match="stride=39 would skip tokens"):
        answer(loaded, [LONG], stride=39)
    for wrong in ({"top": 0}, {"max_answer_tokens": 0}, {"stride": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be at least 1"):
            answer(loaded, QUESTIONS, **wrong)
    with (
        types_unchecked(),
        pytest.raises(
            TypeError,
            match=r"question 0 must be a pair \(question, context\), got 'who' .*a list: \[\(question, context\), …\]",
        ),
    ):
        answer(loaded, ["who", "ada"])
    with types_unchecked(), pytest.raises(ValueError, match=r"question 1 must be .*, got 3 parts"):
        answer(loaded, [QUESTIONS[0], ("who", "ada", "b")])
    other, _ = make(tmp_path / "tag", "BertForTokenClassification", "words")
    with pytest.raises(
        ValueError, match=r"answer needs .*\('span'\); this model has a 'tag' head and supports: tag, embed\."
    ):
        answer(other, QUESTIONS)


def test_the_best_answer_is_the_reference_decoding(tmp_path) -> None:
    """Start and end by the usual recipe: the best pair of a product of softmaxes over the context."""
    loaded, theirs = make(tmp_path, "BertForQuestionAnswering", "words")
    tokenizer = transformers.AutoTokenizer.from_pretrained(loaded.path)
    for (question, context), answered in zip(QUESTIONS, answer(loaded, QUESTIONS, max_answer_tokens=5), strict=True):
        inputs = tokenizer(
            question, context, return_tensors="pt", return_offsets_mapping=True, return_token_type_ids=True
        )
        offsets = inputs.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            out = theirs(**inputs)
        outside = torch.tensor([source != 1 for source in inputs.sequence_ids(0)])
        start, end = (x[0].masked_fill(outside, -1e9).softmax(-1) for x in (out.start_logits, out.end_logits))
        pairs = (start[:, None] * end[None]).triu().tril(4)
        first, last = divmod(int(pairs.argmax()), len(offsets))
        assert (answered.answers[0].start, answered.answers[0].end) == (offsets[first][0], offsets[last][1])
