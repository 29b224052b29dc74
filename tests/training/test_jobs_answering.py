"""Answers in texts: which tokens of which window they are, that using a model asks what training taught, learning."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from glassformer.data.records import BadRowError, Origin, QuestionRecord
from glassformer.models.transformer import Transformer
from glassformer.objectives.job import as_loaded, job_of
from glassformer.objectives.question_answering import WIDER, answer_tokens, best_answer
from glassformer.tasks.answer import Answer, Answered, answer
from glassformer.tasks.batches import text_tokens
from tests.helpers import largest_difference, randomise, types_unchecked
from tests.training.test_jobs_labels import (
    FILLERS,
    job_and_kit,
    prepared,
    recipe_of,
    records,
    shown,
    tokenizer_of,
    trained,
)

TWELVE = FILLERS[:12]  # words of one token each


def asked(context: str, text: str | None, question: str = "good sun", line: int = 1) -> QuestionRecord:
    answers = () if text is None else ((text, context.index(text)),)
    return QuestionRecord(f"q{line}", question, context, answers, Origin("s.json", line))


def trips(unanswerable: bool = False) -> list[QuestionRecord]:
    """The answer is the name of a town, wherever it stands; every fourth may have none."""
    result = []
    for number in range(48):
        town = ("Paris", "London", "New York")[number % 3]
        words = [FILLERS[(number * 5 + step * 7) % len(FILLERS)] for step in range(4 + number % 5)]
        if unanswerable and number % 4 == 0:
            result.append(asked(" ".join(words), None, "rain town", number))
        else:
            path = number % len(words)
            context = " ".join([*words[:path], town, *words[path:]])
            result.append(asked(context, town, "rain town", number))
    return result


# ---- places


def test_the_answer_is_its_first_and_last_token() -> None:
    row = asked("we saw New York again", "New York")
    job, run_context = job_and_kit("answer", [row])
    examples, batch = prepared(job, run_context, [row])
    tokens = ["[CLS]", "good", "sun", "[SEP]", "we", "saw", "New", "York", "again", "[SEP]"]
    assert shown(run_context, examples[0].text.ids) == tokens
    assert examples[0].text.segments.tolist() == [0] * 4 + [1] * 6
    assert (batch.labels["start"].tolist(), batch.labels["end"].tolist()) == ([6], [7])


def test_a_long_context_is_read_in_windows_that_overlap() -> None:
    row = asked(" ".join(TWELVE), " ".join(TWELVE[5:7]))
    job, run_context = job_and_kit("answer", [row], length=10, stride=2)
    examples, batch = prepared(job, run_context, [row])
    # Beside 2 tokens of the question and 3 of the frame there is room for 5.
    windows = [(0, 5), (2, 7), (4, 9), (6, 11), (7, 12)]
    assert [shown(run_context, item.text.ids)[4:-1] for item in examples] == [[*TWELVE[a:b]] for a, b in windows]
    assert [item.answer for item in examples] == [None, (4 + 5 - 2, 4 + 6 - 2), (4 + 5 - 4, 4 + 6 - 4), None, None]
    assert batch.labels["start"].tolist() == [0, 7, 5, 0, 0]
    assert batch.labels["end"].tolist() == [0, 8, 6, 0, 0]


def test_windows_reach_half_of_what_fits_further_unless_told() -> None:
    row = asked(" ".join(TWELVE), TWELVE[0])
    job, run_context = job_and_kit("answer", [row], length=11)
    examples, _ = prepared(job, run_context, [row])
    assert [shown(run_context, item.text.ids)[4] for item in examples] == [TWELVE[0], TWELVE[3], TWELVE[6]]


def test_windows_without_the_answer_can_be_left_out() -> None:
    row = asked(" ".join(TWELVE), " ".join(TWELVE[5:7]))
    job, run_context = job_and_kit("answer", [row], length=10, stride=2, without="leave out")
    examples, _ = prepared(job, run_context, [row])
    assert [item.answer for item in examples] == [(7, 8), (5, 6)]


def test_a_question_without_an_answer_keeps_all_windows() -> None:
    row = asked(" ".join(TWELVE), None)
    job, run_context = job_and_kit("answer", [row], length=10, stride=5, without="leave out")
    examples, batch = prepared(job, run_context, [row])
    assert [item.answer for item in examples] == [None] * 3
    assert batch.labels["start"].tolist() == [0] * 3


def test_of_several_answers_the_first_is_learned() -> None:
    context = "we saw Paris and London"
    row = QuestionRecord("q", "good", context, (("London", 17), ("Paris", 7)))
    job, run_context = job_and_kit("answer", [row])
    examples, _ = prepared(job, run_context, [row])
    first, last = examples[0].answer
    assert shown(run_context, examples[0].text.ids)[first : last + 1] == ["London"]


def test_an_answer_inside_a_token_takes_the_whole_token_and_is_counted() -> None:
    rows = [asked("we saw London again", "Lond"), asked("we saw London again", "London"), asked("we saw it", None)]
    job, run_context = job_and_kit("answer", rows)
    result = job.examples(run_context, {"train": records(rows)})["train"]
    assert result[0].answer == result[1].answer == (6, 6)
    assert result.notes == [f"1 {WIDER}"]


@pytest.mark.parametrize(("pieces", "style"), [("wordpiece", "bert"), ("bpe", "roberta"), ("unigram", "t5")])
def test_tokens_hold_all_characters_of_any_answer(pieces: str, style: str) -> None:
    context = "We saw  déjà-vu (in 日本), New York's sun; 😀 it was good."
    tokens = text_tokens(tokenizer_of(pieces, style), "good", context, name="it").second
    for start in range(len(context)):
        for end in range(start + 1, min(len(context), start + 9) + 1):
            text = context[start:end]
            if text != text.strip():
                continue
            first, last = answer_tokens(tokens, QuestionRecord("q", "good", context, ((text, start),)))
            assert tokens[first].start <= start < tokens[first].end
            assert tokens[last].start < end <= tokens[last].end


# ---- faults


def test_an_answer_that_the_tokenizer_drops_stops_the_run_or_is_left_out_and_counted() -> None:
    context = "we saw \u200bNew York again"
    lost = asked(context, "\u200bNew York", line=5)
    good = asked("we saw Paris", "Paris")
    job, run_context = job_and_kit("answer", [lost])
    with pytest.raises(BadRowError, match=r"s\.json:5: an answer without a token: .* of question 'q5'"):
        job.examples(run_context, {"train": records([lost])})
    job, run_context = job_and_kit("answer", [lost], skip=True)
    result = job.examples(run_context, {"train": records([good, lost])})["train"]
    assert len(result) == 1
    assert result.notes[0].startswith("1 rows; left out 1: 1 × an answer without a token")
    loaded = as_loaded(Transformer(run_context.facts), run_context.tokenizer, run_context.folder)
    assert len(job.samples(run_context, loaded, [good, lost])) == 2  # it can be asked, only not learned


def test_an_answer_that_no_window_holds_is_a_bad_row() -> None:
    row = asked(" ".join(TWELVE), " ".join(TWELVE[2:8]), line=3)
    job, run_context = job_and_kit("answer", [row], length=10, stride=2)
    with pytest.raises(BadRowError, match=r"s\.json:3: an answer that no window holds: .*Lower objective\.stride"):
        job.examples(run_context, {"train": records([row])})


def test_a_question_that_leaves_no_room_is_a_bad_row() -> None:
    row = asked("we saw Paris", "Paris", " ".join(TWELVE), line=4)
    job, run_context = job_and_kit("answer", [row], length=15)
    with pytest.raises(BadRowError, match=r"s\.json:4: a question that is too long: 12 tokens leave no space"):
        job.examples(run_context, {"train": records([row])})
    job, run_context = job_and_kit("answer", [row], length=20, stride=8)
    with pytest.raises(BadRowError, match=r"stride=8 would skip tokens: beside the question, 5 of"):
        job.examples(run_context, {"train": records([row])})


def test_without_a_token_before_the_question_no_answer_cannot_be_said() -> None:
    row = asked("we saw it", None)
    job, run_context = job_and_kit("answer", [row])
    run_context = replace(run_context, tokenizer=tokenizer_of("unigram", "t5"), facts=run_context.facts)
    with pytest.raises(ValueError, match=r"s\.json:1: a window without an answer .*objective\.without='leave out'"):
        job.examples(run_context, {"train": records([row])})


@pytest.mark.parametrize(
    ("options", "message"),
    [({"without": "drop"}, r"objective\.without"), ({"stride": 0}, "stride"), ({"max_answer_tokens": 0}, "max_answer")],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with types_unchecked(), pytest.raises((ValueError, TypeError), match=message):
        job_of(recipe_of("answer", options))


# ---- using what was learned


def test_the_best_answer_is_none_where_that_is_likelier() -> None:
    some = Answer("Paris", 7, 12, 1.0, 0.3)
    assert best_answer(Answered("q", "c", (some,), None)) == "Paris"
    assert best_answer(Answered("q", "c", (some,), 0.2)) == "Paris"
    assert best_answer(Answered("q", "c", (some,), 0.4)) == ""


@pytest.mark.parametrize("family", ["encoder", "encoder without segments", "encoder-decoder"])
def test_answer_asks_a_model_what_training_showed_it(family: str) -> None:
    rows = trips()[:5]
    job, run_context = job_and_kit("answer", rows, family=family)
    model = randomise(Transformer(run_context.facts).double()).eval()
    loaded = as_loaded(model, run_context.tokenizer, run_context.folder)
    for row in rows:
        examples, batch = prepared(job, run_context, [row])
        first, last = examples[0].answer
        # One token more could be white space after the answer, which is the same text.
        (item,) = answer(loaded, [(row.question, row.context)], top=500, max_answer_tokens=last - first + 1)
        (same,) = (result for result in item.answers if (result.text, result.start) == row.answers[0])
        assert len(item.answers) > 1
        loss = job.objective(run_context).loss(model, batch)
        scores = _scores(model, batch)
        # What training judges is log softmax; the logits themselves are the scores of answers.
        expected = scores.logsumexp(0).sum() - loss.terms["start"].total - loss.terms["end"].total
        assert largest_difference(expected, torch.tensor(same.score)) < 1e-6
        assert largest_difference(expected, scores[first, 0] + scores[last, 1]) < 1e-9


def _scores(model: Any, batch: Any) -> torch.Tensor:
    """The logits of one row's tokens as start and as end."""
    inputs = dict(batch.inputs)
    if model.config.family == "encoder-decoder":
        start = torch.full_like(inputs["ids"][:, :1], model.config.tokens.start)
        inputs["target"] = torch.cat((start, inputs["ids"][:, :-1]), -1)
    scores: torch.Tensor = model(**inputs)[0]
    return scores


@pytest.mark.slow  # the recipe of this job is among those that learn at once
def test_answers_are_learned() -> None:
    rows = trips()
    job, run_context = job_and_kit("answer", rows)
    model, fell = trained(job, run_context, rows, 50)
    loaded = as_loaded(model, run_context.tokenizer, run_context.folder)
    figures = job.metrics(run_context, loaded, rows)
    assert fell > 3
    assert figures.keys() == {"exact match", "answer f1"}
    assert min(figures.values()) >= 0.95
    assert job.samples(run_context, loaded, rows[:1]) == ["rain town\n  → Paris\n  = Paris"]


@pytest.mark.slow
def test_that_there_is_no_answer_is_learned() -> None:
    rows = trips(unanswerable=True)
    job, run_context = job_and_kit("answer", rows)
    model, fell = trained(job, run_context, rows, 60)
    loaded = as_loaded(model, run_context.tokenizer, run_context.folder)
    figures = job.metrics(run_context, loaded, rows)
    assert fell > 3
    assert figures["exact match"] >= 0.95
    assert figures["exact match of unanswerable"] >= 0.9
    assert job.samples(run_context, loaded, rows[:1]) == ["rain town\n  → no answer\n  = no answer"]
    forced, _ = job_and_kit("answer", rows, no_answer=False)
    assert forced.metrics(run_context, loaded, rows)["exact match of unanswerable"] == 0.0


@pytest.mark.slow
def test_answers_in_long_contexts_are_found_through_windows() -> None:
    rows = [
        replace(row, context=f"{row.context} {' '.join(TWELVE)}", origin=Origin("s.json", number))
        for number, row in enumerate(trips())
    ]
    job, run_context = job_and_kit("answer", rows, length=16, stride=6)
    assert len(job.examples(run_context, {"train": records(rows)})["train"]) > len(rows)
    run_context = replace(run_context, facts=_shorter(run_context.facts, 16))
    model, fell = trained(job, run_context, rows, 50)
    loaded = as_loaded(model, run_context.tokenizer, run_context.folder)
    assert fell > 3
    assert job.metrics(run_context, loaded, rows)["exact match"] >= 0.9


def _shorter(facts: Any, length: int) -> Any:
    return replace(facts, embed=replace(facts.embed, position=replace(facts.embed.position, length=length)))
