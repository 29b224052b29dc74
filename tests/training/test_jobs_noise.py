"""Jobs that spoil text: rows are filled, nothing of a text is lost, and each learns within seconds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models

from glassformer.data.records import TextRecord as Row
from glassformer.objectives.examples import SentenceRows, sentences_of
from glassformer.objectives.span_corruption import SpanSizes as Cuts
from glassformer.objectives.span_corruption import fill_gaps, sentinels
from glassformer.recipes.files import read_recipe
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.vocabularies import Vocabulary
from tests.training.small_runs import (
    COLOURS,
    DOCUMENTS,
    NUMBERS,
    fell,
    ready,
    recipe_of,
    records,
    samples,
    train,
    vocabulary,
)

ROWS = [Row(text) for text in DOCUMENTS]
SPANS = {
    "lineage": "t5",
    "sizes": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "dropout_rate": 0.0},
}
NOISE = {
    "lineage": "bart",
    "sizes": {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "max_position_embeddings": 64,
        "init_std": 0.1,
        "dropout": 0.0,
    },
}


def with_sentinels() -> Tokenizer:
    return vocabulary("unigram", "t5")


def with_mask() -> Tokenizer:
    return vocabulary("bpe", "bart")


# Spans


def test_rows_fill_the_encoder_and_nothing_is_lost(tmp_path: Path) -> None:
    tokenizer = with_sentinels()
    job, context = ready(recipe_of("spans", SPANS, length=24), tokenizer, tmp_path)
    rows = job.examples(context, {"train": records(ROWS)})["train"]
    made = [rows[number].tolist() for number in range(len(rows))]
    stream = [token for text in DOCUMENTS for token in tokenizer.encode(text, special=False)]
    assert [token for row in made for token in row] == stream
    objective = job.objective(context)
    batch = objective.prepare([rows[0], rows[1]], torch.Generator().manual_seed(0))
    assert batch.inputs["ids"].shape == (2, 24)  # full, no padding
    assert "mask" not in batch.inputs
    assert rows.lengths.tolist()[:-1] == [24] * (len(rows) - 1)
    assert batch.inputs["target"][:, 0].tolist() == [tokenizer.pad] * 2  # where this lineage's decoder starts
    left, target = (
        batch.inputs["ids"][0].tolist(),
        [token for token in batch.labels["target"][0].tolist() if token >= 0],
    )
    assert left[-1] == target[-1] == tokenizer.eos
    assert put_back(left[:-1], target[:-1], *sentinels(tokenizer)) == made[0]


def put_back(left: list[int], target: list[int], first: int, count: int) -> list[int]:
    """The text from what is left of it and what was cut out."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if first - count < token <= first:
            spans[token] = []
        else:
            spans[next(reversed(spans))].append(token)
    return [piece for token in left for piece in spans.get(token, [token])]


@pytest.mark.parametrize(("left_over", "rows"), [(1, 1), (2, 2)])
def test_a_last_row_of_one_token_is_left_out(left_over: int, rows: int, tmp_path: Path) -> None:
    tokenizer = with_sentinels()
    room = Cuts().longest_text(12)
    ids = (tokenizer.encode(NUMBERS, special=False) * 3)[: room + left_over]
    text = tokenizer.decode(ids)
    assert tokenizer.encode(text, special=False) == ids
    job, context = ready(recipe_of("spans", SPANS, length=12), tokenizer, tmp_path)
    made = job.examples(context, {"train": records([Row(text)])})["train"]
    assert len(made) == len(made.lengths) == rows
    job.objective(context).prepare([made[number] for number in range(rows)], torch.Generator())


def test_sentinels_are_found_and_counted() -> None:
    tokenizer = with_sentinels()
    assert sentinels(tokenizer) == (tokenizer.vocab_size - 1, 100)
    with pytest.raises(ValueError, match=r"needs? a tokenizer with sentinels"):
        sentinels(with_mask())
    upwards = Backend(models.WordLevel({"a": 0, "<extra_id_0>": 1, "<extra_id_1>": 2}, unk_token="a"))
    with pytest.raises(ValueError, match="<extra_id_1> does not"):
        sentinels(Tokenizer(Vocabulary(upwards, {})))


def test_more_spans_than_sentinels_are_refused(tmp_path: Path) -> None:
    job, context = ready(recipe_of("spans", SPANS, length=1200, objective={"mean": 1.0}), with_sentinels(), tmp_path)
    with pytest.raises(ValueError, match=r"batch.length=1200 have \d+ spans, and the tokenizer has 100 sentinels"):
        job.objective(context)


def test_gaps_are_filled_with_what_was_written_for_them() -> None:
    tokenizer = with_sentinels()
    first, _ = sentinels(tokenizer)
    item, two, three = (tokenizer.encode(word, special=False) for word in ("one", "two", "three"))
    gaps = [*item, first, *three, first - 1, 1]
    assert fill_gaps(tokenizer, gaps, [first, *two, first - 1, *item, 1]) == (
        "one ____ three ____",
        "one [two] three [one]",
    )
    assert fill_gaps(tokenizer, gaps, [*two, first - 1, 1])[1] == "one [] three []"


@pytest.mark.slow
def test_spans_are_learned(tmp_path: Path) -> None:
    """The loss falls to less than half."""
    job, context = ready(recipe_of("spans", SPANS), with_sentinels(), tmp_path)
    model, reports = train(job, context, ROWS, steps=80, lr=1e-2)
    assert fell(reports) > 2
    (shown,) = samples(job, context, model, ROWS[:1])
    blanks, filled, right = shown.split("\n")
    assert "____" in blanks
    assert filled.startswith("  → ")
    assert "[" in filled
    assert right == f"  = {NUMBERS}"
    assert samples(job, context, model, [Row("")]) == []


# The noises


def test_rows_are_whole_sentences() -> None:
    documents = [[[1, 2], [3], []], [[4, 5, 6, 7, 8]], [[9]]]
    across = SentenceRows(documents, 4, across=True, source="a")
    assert [[ids.tolist() for ids in across[n]] for n in range(len(across))] == [
        [[1, 2], [3]],
        [[4, 5, 6, 7]],
        [[8], [9]],
    ]
    assert across.lengths.tolist() == [5, 6, 4]  # BOS and EOS included
    assert across.fingerprint == "a"
    apart = SentenceRows(documents, 8, across=False, source="a")
    assert [[ids.tolist() for ids in apart[n]] for n in range(len(apart))] == [[[1, 2], [3]], [[4, 5, 6, 7, 8]], [[9]]]
    with pytest.raises(IndexError, match="there are 3 rows"):
        apart[3]
    with pytest.raises(ValueError, match="no text to corrupt"):
        SentenceRows([[], [[]]], 4, across=True, source="a")


def test_the_decoder_writes_the_text_and_the_encoder_reads_it_spoiled(tmp_path: Path) -> None:
    tokenizer = with_mask()
    options = {"rows": "documents", "infill": 0.5}
    job, context = ready(recipe_of("denoising", NOISE, objective=options), tokenizer, tmp_path)
    rows = job.examples(context, {"train": records(ROWS[:2])})["train"]
    assert [ids.tolist() for ids in rows[1]] == sentences_of(tokenizer, COLOURS, "marks")
    batch = job.objective(context).prepare([rows[0]], torch.Generator().manual_seed(0))
    assert batch.labels["target"][0].tolist() == tokenizer.encode(NUMBERS)
    read = batch.inputs["ids"][0].tolist()
    assert read != tokenizer.encode(NUMBERS)
    assert (read[0], read[-1]) == (tokenizer.bos, tokenizer.eos)
    assert tokenizer.mask in read
    assert rows.lengths.tolist()[0] == len(tokenizer.encode(NUMBERS))


@pytest.mark.slow
def test_spoiled_text_is_restored(tmp_path: Path) -> None:
    """The loss falls to less than a tenth, and the text is written as it was."""
    job, context = ready(recipe_of("denoising", NOISE, objective={"rows": "documents"}), with_mask(), tmp_path)
    model, reports = train(job, context, ROWS, steps=80, lr=1e-2)
    assert fell(reports) > 10
    (shown,) = samples(job, context, model, ROWS[:1])
    spoiled, written, right = shown.split("\n")
    assert "____" in spoiled
    assert written == f"  → {NUMBERS}"
    assert right == f"  = {NUMBERS}"
    assert samples(job, context, model, [Row(" ")]) == []


# Options


@pytest.mark.parametrize(
    ("job", "model", "options", "complaint"),
    [
        ("spans", SPANS, {"density": 1.5}, "density"),
        ("spans", SPANS, {"mean": 0.0}, "mean"),
        ("spans", SPANS, {"dense": 0.2}, "density"),
        ("denoising", NOISE, {"infill": -0.1}, "infill"),
        ("denoising", NOISE, {"rows": "windows"}, "documents"),
        ("denoising", NOISE, {"permuted": True}, "Did you mean 'permute'"),
    ],
)
def test_wrong_options_are_refused(job: str, model: Any, options: Any, complaint: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        ready(recipe_of(job, model, objective=options), with_mask(), tmp_path)


def test_a_tokenizer_without_the_tokens_of_the_noise_is_refused(tmp_path: Path) -> None:
    job, context = ready(recipe_of("denoising", NOISE), with_sentinels(), tmp_path)
    with pytest.raises(ValueError, match="needs a tokenizer with a token for mask"):
        job.objective(context)


@pytest.mark.parametrize("name", ["t5-span", "bart-denoise"])
def test_the_recipes_can_be_built(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(name)
    assert recipe.tokenizer.style is not None
    job, context = ready(recipe, vocabulary(recipe.tokenizer.kind, recipe.tokenizer.style), tmp_path)
    assert job.build(context) is not None
    assert job.objective(context) is not None
