"""Labels of texts and of words: what rows become, that using a model asks what training taught, and that it learns."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.config import ModelConfig, TaskHead
from glassformer.data.batching import FixedPlan
from glassformer.data.loader import Loader
from glassformer.data.records import BadRowError, LabelledRecord, Origin, TaggedRecord
from glassformer.families import lineages
from glassformer.models.transformer import Transformer
from glassformer.objectives.base import IGNORE
from glassformer.objectives.classification import _correlation, _score_several
from glassformer.objectives.job import Job, RunContext, as_loaded, job_of
from glassformer.recipes.recipe import BatchSizes, Data, Expected, ModelPlan, Optimisation, Recipe, RunPlan
from glassformer.recipes.rows import Records
from glassformer.tasks.classify import classify
from glassformer.tasks.tag import tag
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.training import train_tokenizer
from glassformer.training.loop import Settings, Trainer
from glassformer.training.optim import adamw
from tests.helpers import largest_difference, randomise, types_unchecked

FILLERS = tuple("the film was long and we saw it again in a small town on one day with her old friend".split())  # noqa: SIM905
WORDS = (
    *FILLERS,
    "good",
    "great",
    "bad",
    "awful",
    "sun",
    "rain",
    "Paris",
    "London",
    "Ann",
    "Bob",
    "York",
    "New",
    "red",
)
BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
}
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "initializer_range": 0.1}
# lineage, its sizes, the kind of pieces and the frame around them
FAMILIES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "encoder": ("bert", BERT, "wordpiece", "bert"),
    "encoder without segments": ("roberta", {**BERT, "type_vocab_size": 1}, "bpe", "roberta"),
    "decoder": (
        "gpt2",
        {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "initializer_range": 0.1},
        "bpe",
        "gpt",
    ),
    "encoder-decoder": (
        "bart",
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "init_std": 0.1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
        },
        "unigram",
        "bart",
    ),
}


@cache
def tokenizer_of(pieces: str, style: str) -> Tokenizer:
    """Every word of WORDS is one piece of ``wordpiece``."""
    texts = [" ".join(WORDS)] * 20
    made: Tokenizer = train_tokenizer(texts, kind=pieces, vocab_size=420, special=style)  # type: ignore[arg-type]
    return made


def recipe_of(job: str, objective: dict[str, Any], length: int = 32, **data: Any) -> Recipe:
    return Recipe(
        name="tiny",
        about="",
        expected=Expected(result=""),
        job=job,
        data=Data(format="jsonl", **data),
        model=ModelPlan(lineage="bert"),
        batch=BatchSizes(examples=16, length=length),
        optimizer=Optimisation(lr=3e-3),
        run=RunPlan(steps=10),
        objective=objective,
    )


def records(rows: Sequence[Any]) -> Records[Any]:
    return Records(rows, np.arange(len(rows), dtype=np.int64))


def facts_of(family: str, head: str, labels: Sequence[str]) -> tuple[ModelConfig, Tokenizer]:
    lineage, sizes, pieces, style = FAMILIES[family]
    tokenizer = tokenizer_of(pieces, style)
    named = {"id2label": {str(number): label for number, label in enumerate(labels)}} if labels else {}
    facts = lineages()[lineage].facts({**sizes, **named, "vocab_size": tokenizer.vocab_size}, head)
    start = tokenizer.eos if family == "encoder-decoder" else None
    return replace(facts, tokens=replace(facts.tokens, start=start)), tokenizer


def job_and_kit(
    name: str, rows: Sequence[Any], *, family: str = "encoder", length: int = 32, skip: bool = False, **objective: Any
) -> tuple[Job[Any], RunContext]:
    recipe = recipe_of(name, objective, length, on_bad_row="skip" if skip else "stop")
    job = job_of(recipe)
    facts, tokenizer = facts_of(family, job.head, job.labels(rows))
    return job, RunContext(recipe, tokenizer, job.finish(facts), Path())


def prepared(job: Job[Any], context: RunContext, rows: Sequence[Any]) -> tuple[list[Any], Any]:
    """The examples of rows, and all of them as one batch."""
    actual = job.examples(context, {"train": records(rows)})["train"]
    examples = [actual[number] for number in range(len(actual))]
    return examples, job.objective(context).prepare(examples, torch.Generator())


def trained(
    job: Job[Any], context: RunContext, rows: Sequence[Any], steps: int, lr: float = 6e-3
) -> tuple[Transformer, float]:
    """A new model after some steps, and by how much the loss fell."""
    torch.manual_seed(0)
    model = Transformer(context.facts)
    objective, examples = job.objective(context), job.examples(context, {"train": records(rows)})["train"]
    batches = Loader(examples, objective.prepare, FixedPlan(len(examples), 16, seed=0), seed=0)
    trainer = Trainer(model, objective, batches, [adamw(model, lr)], Settings(steps=steps))
    losses = [report.loss for report in trainer]
    return model, losses[0] / max(1e-9, sum(losses[-3:]) / 3)


def shown(context: RunContext, ids: Any) -> list[str]:
    return context.tokenizer.tokens(ids.tolist())


GOOD = LabelledRecord("the film was good", "yes", origin=Origin("a.csv", 2))
BAD = LabelledRecord("we saw it", "no", origin=Origin("a.csv", 3))


def opinions(pairs: bool = False) -> list[LabelledRecord]:
    """Texts whose label hangs on one word; of pairs, on one of the second text."""
    label_of_word = {
        "good": "likes",
        "great": "likes",
        "bad": "hates",
        "awful": "hates",
        "sun": "neither",
        "rain": "neither",
    }
    rows = []
    for number in range(48):
        word = list(label_of_word)[number % 6]
        some = [FILLERS[(number * 5 + step * 7) % len(FILLERS)] for step in range(3 + number % 4)]
        text = " ".join([*some[:2], word, *some[2:]])
        other = " ".join(some[::-1])
        rows.append(
            LabelledRecord(other, label_of_word[word], text) if pairs else LabelledRecord(text, label_of_word[word])
        )
    return rows


# ---- labels of texts


def test_a_text_is_framed_and_its_label_is_its_place_among_all_labels() -> None:
    job, context = job_and_kit("classify", [GOOD, BAD])
    assert job.labels([GOOD, BAD]) == ("no", "yes")
    examples, batch = prepared(job, context, [GOOD, BAD])
    assert shown(context, examples[0].text.ids) == ["[CLS]", "the", "film", "was", "good", "[SEP]"]
    assert batch.labels["label"].tolist() == [1, 0]
    assert batch.inputs["mask"].tolist() == [[True] * 6, [True] * 5 + [False]]
    assert batch.inputs["segments"].tolist() == [[0] * 6] * 2
    assert batch.tokens == 11


def test_a_model_without_segments_gets_none() -> None:
    job, context = job_and_kit("classify", [GOOD, BAD], family="decoder")
    _, batch = prepared(job, context, [GOOD, BAD])
    assert "segments" not in batch.inputs


def test_a_pair_is_framed_as_one_and_the_longer_text_is_cut_first() -> None:
    row = LabelledRecord("good film", "yes", "we saw it again on one day")
    job, context = job_and_kit("classify", [row, BAD], length=9)
    actual = job.examples(context, {"train": records([row, LabelledRecord("sun", "no", "rain")])})["train"]
    first = actual[0].text
    assert shown(context, first.ids) == ["[CLS]", "good", "film", "[SEP]", "we", "saw", "it", "again", "[SEP]"]
    assert first.segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert actual.cut == 1
    assert actual.lengths.tolist() == [9, 5]
    assert actual.notes == []


def test_a_long_text_keeps_its_frame_and_its_beginning() -> None:
    job, context = job_and_kit("classify", [GOOD, BAD], length=4)
    examples, _ = prepared(job, context, [GOOD, BAD])
    assert shown(context, examples[0].text.ids) == ["[CLS]", "the", "film", "[SEP]"]


def test_a_label_that_is_not_trained_on_is_an_error_that_names_it_and_its_row() -> None:
    job, context = job_and_kit("classify", [GOOD, BAD], skip=True)
    odd = LabelledRecord("red sun", "perhaps", origin=Origin("valid.csv", 7))
    with pytest.raises(
        ValueError, match=r"valid\.csv:7: the label 'perhaps' is none of those that are learned, no, yes"
    ):
        job.examples(context, {"train": records([GOOD, BAD]), "valid": records([odd])})


def test_labels_that_are_all_the_same_are_an_error() -> None:
    job = job_of(recipe_of("classify", {}))
    with pytest.raises(ValueError, match=r"nothing to tell apart: the labels of the rows are yes\..*data\.columns"):
        job.labels([GOOD, GOOD])


def test_a_row_without_a_token_stops_the_run_or_is_left_out_and_counted() -> None:
    empty = LabelledRecord("\x07", "no", origin=Origin("a.csv", 9))
    job, context = job_and_kit("classify", [GOOD, BAD])
    with pytest.raises(BadRowError, match=r"a\.csv:9: no token: '\\x07'"):
        job.examples(context, {"train": records([GOOD, empty])})
    job, context = job_and_kit("classify", [GOOD, BAD], skip=True)
    actual = job.examples(context, {"train": records([GOOD, empty, BAD])})["train"]
    assert len(actual) == 2
    assert len(actual.notes) == 1
    assert actual.notes[0].startswith("2 rows; left out 1: 1 × no token")
    loaded = as_loaded(Transformer(context.facts), context.tokenizer, context.folder)
    assert len(job.samples(context, loaded, [GOOD, empty])) == 1
    assert job.metrics(context, loaded, [GOOD, empty]).keys() == {"accuracy", "macro f1"}


def test_a_row_that_the_model_cannot_hold_is_an_error() -> None:
    job, context = job_and_kit("classify", [GOOD, BAD], length=65)
    with pytest.raises(ValueError, match=r"takes 64 tokens; set batch\.length=64"):
        job.examples(context, {"train": records([GOOD])})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pairs", [False, True])
def test_classify_asks_a_model_what_training_showed_it(family: str, pairs: bool) -> None:
    rows = opinions(pairs)[:6]
    job, context = job_and_kit("classify", rows, family=family)
    model = randomise(Transformer(context.facts).double()).eval()
    examples, batch = prepared(job, context, rows)
    loss = job.objective(context).loss(model, batch)
    actual = classify(
        as_loaded(model, context.tokenizer, context.folder),
        [(row.text, row.second) if row.second is not None else row.text for row in rows],
    )
    both = zip(actual, rows, strict=True)
    probs = [{label.name: label.probability for label in item.labels}[row.label] for item, row in both]
    correct = -torch.tensor(probs, dtype=torch.float64).log().sum()
    assert largest_difference(loss.terms["label"].total, correct) < 1e-9
    assert len(examples) == len(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_are_learned_by_every_family(family: str) -> None:
    rows = opinions()
    job, context = job_and_kit("classify", rows, family=family, smoothing=0.02)
    model, fell = trained(job, context, rows, 40)
    loaded = as_loaded(model, context.tokenizer, context.folder)
    scores = job.metrics(context, loaded, rows)
    assert fell > 3
    assert scores["accuracy"] >= 0.95
    assert scores["macro f1"] >= 0.95
    sample = job.samples(context, loaded, rows[:1])[0]
    assert sample.startswith(f"{rows[0].text}\n  → likes (")
    assert sample.endswith("%)\n  = likes")


def test_pairs_are_learned() -> None:
    rows = opinions(pairs=True)
    job, context = job_and_kit("classify", rows)
    model, fell = trained(job, context, rows, 40)
    loaded = as_loaded(model, context.tokenizer, context.folder)
    assert fell > 3
    assert job.metrics(context, loaded, rows)["accuracy"] >= 0.95
    assert job.samples(context, loaded, rows[:1])[0].startswith(f"{rows[0].text} | {rows[0].second}\n  → likes")


def test_the_pooling_of_a_new_model_can_be_chosen() -> None:
    _, context = job_and_kit("classify", [GOOD, BAD], pool="mean")
    assert isinstance(context.facts.head, TaskHead)
    assert context.facts.head.pool == "mean"
    recipe = replace(recipe_of("classify", {"pool": "mean"}), model=ModelPlan(start="somewhere"))
    with pytest.raises(ValueError, match=r"objective\.pool is for new models"):
        job_of(recipe).check()


def test_several_labels_of_one_text() -> None:
    rows = [
        LabelledRecord(row.text, {"likes": "warm, loud", "hates": "loud", "neither": ","}[row.label])
        for row in opinions()
    ]
    job, context = job_and_kit("classify", rows, kind="several")
    assert job.labels(rows) == ("loud", "warm")
    _, batch = prepared(job, context, rows[:6])
    assert batch.labels["label"].tolist() == [[1, 1], [1, 1], [1, 0], [1, 0], [0, 0], [0, 0]]
    model, fell = trained(job, context, rows, 40)
    loaded = as_loaded(model, context.tokenizer, context.folder)
    assert fell > 3
    scores = job.metrics(context, loaded, rows)
    assert min(scores["subset accuracy"], scores["micro f1"], scores["macro f1"]) >= 0.95
    samples = job.samples(context, loaded, [rows[0], rows[4]])
    assert "loud (" in samples[0]
    assert "warm (" in samples[0]
    assert "→ none\n" in samples[1]


def test_a_number_for_each_text() -> None:
    rows = [LabelledRecord(row.text, {"likes": "1.5", "hates": "-1", "neither": "0"}[row.label]) for row in opinions()]
    job, context = job_and_kit("classify", rows, kind="number")
    assert job.labels(rows) == ("number",)
    _, batch = prepared(job, context, rows[:6])
    assert batch.labels["label"].tolist() == [1.5, 1.5, -1.0, -1.0, 0.0, 0.0]
    model, fell = trained(job, context, rows, 40)
    loaded = as_loaded(model, context.tokenizer, context.folder)
    assert fell > 3
    assert job.metrics(context, loaded, rows)["correlation"] > 0.95
    assert job.metrics(context, loaded, rows[:1]) == {"correlation": 0.0}
    assert float(job.samples(context, loaded, rows[:1])[0].split("→")[1].split("\n")[0]) > 0.5


def test_correlation_is_pearsons() -> None:
    assert _correlation([1.0, 2.0, 3.0, 5.0], [1.0, 3.0, 2.0, 7.0]) == pytest.approx(
        float(np.corrcoef([1.0, 2.0, 3.0, 5.0], [1.0, 3.0, 2.0, 7.0])[0, 1])
    )
    assert _correlation([1.0, 1.0], [0.0, 2.0]) == 0.0


@pytest.mark.parametrize("label", ["many", "nan", "inf"])
def test_a_label_that_is_no_number(label: str) -> None:
    row = LabelledRecord("good film", label, origin=Origin("n.csv", 4))
    job, context = job_and_kit("classify", [row], kind="number")
    with pytest.raises(BadRowError, match=rf"n\.csv:4: no number: the label is '{label}'"):
        job.examples(context, {"train": records([row])})


def test_counts_of_several_labels_by_hand() -> None:
    args = [{"a"}, {"a", "b"}, set(), {"c"}]
    gold = [{"a"}, {"b"}, set(), {"b"}]
    # a: 1 right of 2 given and 1 gold; b: 1 of 1 and 2; c: 0 of 1 and 0
    actual = _score_several(args, gold)
    assert actual == pytest.approx(
        {"subset accuracy": 2 / 4, "micro f1": 2 * 2 / (4 + 3), "macro f1": (2 / 3 + 2 / 3 + 0) / 3}
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "two"}, "objective.kind"),
        ({"pool": "middle"}, "objective.pool"),
        ({"smoothing": 2.0}, "smoothing"),
        ({"between": ""}, "separator of labels"),
        ({"smothing": 0.1}, "smoothing"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with types_unchecked(), pytest.raises((ValueError, TypeError), match=message):
        job_of(recipe_of("classify", options))


# ---- labels of words

TRIP = TaggedRecord(("Ann", "saw", "New", "York"), ("B-PER", "O", "B-LOC", "I-LOC"), Origin("t", 1))
DAY = TaggedRecord(("one", "day"), ("O", "O"), Origin("t", 6))


def sentences() -> list[TaggedRecord]:
    actual = []
    for number in range(48):
        person, path = ("Ann", "Bob")[number % 2], ((("Paris",), ("London",), ("New", "York"))[number % 3])
        some = [FILLERS[(number * 5 + step * 7) % len(FILLERS)] for step in range(2 + number % 3)]
        words = (*some[:1], person, *some[1:], *path)
        tags = ("O", "B-PER", *("O" for _ in some[1:]), "B-LOC", *("I-LOC" for _ in path[1:]))
        actual.append(TaggedRecord(words, tags))
    return actual


def test_each_word_has_its_tag_at_its_first_token() -> None:
    row = TaggedRecord(("Ann", "saw", "sunrain", "York"), ("B-PER", "O", "B-LOC", "I-LOC"))
    job, context = job_and_kit("tag", [row])
    assert job.labels([row]) == ("B-LOC", "B-PER", "I-LOC", "O")
    examples, batch = prepared(job, context, [row])
    text = examples[0].text
    assert shown(context, text.ids)[:3] == ["[CLS]", "Ann", "saw"]
    pieces = len(text.ids) - 5  # of the word that is not one piece
    assert pieces > 1
    assert text.words.tolist() == [-1, 0, 1, *[2] * pieces, 3, -1]
    assert batch.labels["tag"].tolist() == [[IGNORE, 1, 3, 0, *[IGNORE] * (pieces - 1), 2, IGNORE]]


def test_sentences_are_cut_between_words() -> None:
    row = TaggedRecord(("Ann", "sunrain", "saw"), ("B-PER", "O", "O"))
    _, wide = job_and_kit("tag", [row])
    pieces = len(wide.tokenizer.encode("sunrain", special=False))
    for room, words in ((pieces, 1), (pieces + 1, 2), (pieces + 2, 3)):
        job, context = job_and_kit("tag", [row], length=room + 2)
        actual = job.examples(context, {"train": records([row])})["train"]
        assert actual[0].text.words.max() == words - 1
        assert len(actual[0].tags) == words
        assert actual.cut == (words < 3)
        assert shown(context, actual[0].text.ids)[-1] == "[SEP]"


def test_a_first_word_that_does_not_fit_is_a_bad_row() -> None:
    row = TaggedRecord(("sunrain", "saw"), ("O", "O"), Origin("t", 3))
    job, context = job_and_kit("tag", [row], length=3)
    with pytest.raises(BadRowError, match=r"t:3: a word that is too long: the first, 'sunrain', has . tokens"):
        job.examples(context, {"train": records([row])})


def test_a_word_without_a_token_is_a_bad_row() -> None:
    row = TaggedRecord(("Ann", "\u200b", "saw"), ("B-PER", "O", "O"), Origin("t", 3))
    job, context = job_and_kit("tag", [TRIP])
    with pytest.raises(BadRowError, match=r"t:3: a word without a token: word 1 of t:3"):
        job.examples(context, {"train": records([row])})
    job, context = job_and_kit("tag", [TRIP], skip=True)
    actual = job.examples(context, {"train": records([TRIP, row])})["train"]
    assert len(actual) == 1
    assert "1 × a word without a token" in actual.notes[0]
    loaded = as_loaded(Transformer(context.facts), context.tokenizer, context.folder)
    assert len(job.samples(context, loaded, [TRIP, row])) == 1
    assert "entity f1" in job.metrics(context, loaded, [TRIP, row])


def test_a_tag_that_is_not_trained_on_is_an_error() -> None:
    job, context = job_and_kit("tag", [TRIP])
    odd = TaggedRecord(("red",), ("B-ORG",), Origin("dev", 12))
    with pytest.raises(ValueError, match=r"dev:12: the label 'B-ORG' is none of those that are learned, B-LOC"):
        job.examples(context, {"valid": records([odd])})


def test_tags_that_mark_no_entities_have_to_be_said() -> None:
    row = TaggedRecord(("Ann", "saw"), ("N-PROPER", "V-PAST"))
    with pytest.raises(ValueError, match=r"'V-PAST'.*objective\.entities=false|'N-PROPER'.*objective\.entities=false"):
        job_of(recipe_of("tag", {})).labels([row])
    job, context = job_and_kit("tag", [row], entities=False)
    loaded = as_loaded(Transformer(context.facts), context.tokenizer, context.folder)
    assert job.metrics(context, loaded, [row]).keys() == {"tag accuracy"}


@pytest.mark.parametrize("family", ["encoder", "encoder without segments", "decoder"])
def test_tag_asks_a_model_what_training_showed_it(family: str) -> None:
    rows = [
        *sentences()[:4],
        TaggedRecord(("Ann's", "(sunrain)", "Paris,", "日本", "it"), ("B-PER", "O", "B-LOC", "O", "O")),
    ]
    job, context = job_and_kit("tag", sentences(), family=family)
    model = randomise(Transformer(context.facts).double()).eval()
    _, batch = prepared(job, context, rows)
    probs = model(**batch.inputs).softmax(-1)
    actual = tag(as_loaded(model, context.tokenizer, context.folder), [row.words for row in rows])
    for row, ours, evaluated in zip(actual, probs, batch.labels["tag"] != IGNORE, strict=True):
        assert int(evaluated.sum()) == len(row.words)
        probabilities = torch.tensor([word.probability for word in row.words], dtype=torch.float64)
        assert largest_difference(ours[evaluated].amax(-1), probabilities) < 1e-9


@pytest.mark.slow  # the recipe of this job is among those that learn at once
def test_tags_are_learned() -> None:
    rows = sentences()
    job, context = job_and_kit("tag", rows)
    model, fell = trained(job, context, rows, 40)
    loaded = as_loaded(model, context.tokenizer, context.folder)
    scores = job.metrics(context, loaded, rows)
    assert fell > 3
    assert min(scores["entity f1"], scores["entity precision"], scores["tag accuracy"]) >= 0.95
    sample = job.samples(context, loaded, [TRIP])[0]
    assert sample.endswith("  = [PER: Ann] saw [LOC: New York]")
    assert sample.startswith("→ ")
