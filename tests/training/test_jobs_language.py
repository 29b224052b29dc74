"""Language models: text behind control codes, whose labels must have been learned, and samples of a run."""

from pathlib import Path

import pytest

from glassformer.data.records import AnyRecord, LabelledRecord, Origin, TextRecord
from glassformer.objectives.job import as_loaded
from glassformer.text.training import style, train_tokenizer
from glassformer.training.build_model import make_model
from tests.training.small_runs import COLOURS, NUMBERS, ready, recipe_of, records

SIZES = {"n_layer": 1, "n_head": 2, "n_embd": 16, "dff": 16, "n_positions": 64}
TRAINED = [LabelledRecord(NUMBERS, "number"), LabelledRecord(COLOURS, "colour")]


def test_a_label_that_no_training_row_has_is_told_by_its_row(tmp_path: Path) -> None:
    recipe = recipe_of("controlled", {"lineage": "ctrl", "sizes": SIZES})
    special = style("gpt").with_further("<|colour|>", "<|number|>")
    made = train_tokenizer([NUMBERS, COLOURS], kind="bpe", vocab_size=300, special=special, min_frequency=1)
    job, context = ready(recipe, made, tmp_path)
    assert job.special(TRAINED) == special.further
    assert len(job.examples(context, {"train": records(TRAINED)})["train"]) == 2
    odd = [*TRAINED, LabelledRecord(NUMBERS, "anger", origin=Origin("valid.csv", 7))]
    loaded = as_loaded(job.saved_model(make_model(context, job, None)), made, tmp_path)
    assert 0 <= job.metrics(context, loaded, TRAINED)["code accuracy"] <= 1
    message = r"valid\.csv:7: the label 'anger' has no token '<\|anger\|>' .* Correct it, or train on rows that have it"
    for ask in (lambda: job.examples(context, {"valid": records(odd)}), lambda: job.metrics(context, loaded, odd)):
        with pytest.raises(ValueError, match=message):
            ask()


@pytest.mark.parametrize(
    ("kind", "lineage", "row"),
    [("language", "gpt2", TextRecord(NUMBERS)), ("controlled", "ctrl", LabelledRecord(NUMBERS, "number"))],
)
def test_samples_after_the_same_prompt_differ(tmp_path: Path, kind: str, lineage: str, row: AnyRecord) -> None:
    sizes = SIZES if lineage == "ctrl" else {name: size for name, size in SIZES.items() if name != "dff"}
    special = style("gpt").with_further("<|number|>")
    made = train_tokenizer([NUMBERS, COLOURS], kind="bpe", vocab_size=300, special=special, min_frequency=1)
    job, context = ready(recipe_of(kind, {"lineage": lineage, "sizes": sizes}), made, tmp_path)
    loaded = as_loaded(job.saved_model(make_model(context, job, None)), made, tmp_path)
    first, second = job.samples(context, loaded, [row, row])
    assert first != second
    assert job.samples(context, loaded, [row]) == [first]
