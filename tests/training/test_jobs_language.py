"""Text behind control codes: a label whose code was not learned is named by its row."""

from pathlib import Path

import pytest

from glassformer.data.records import Labelled, Origin
from glassformer.text.special_tokens import style
from glassformer.text.training import train_tokenizer
from glassformer.training.build_model import make_model
from glassformer.training.objectives.job import as_loaded
from tests.training.small_runs import COLOURS, NUMBERS, ready, recipe_of, records

SIZES = {"n_layer": 1, "n_head": 2, "n_embd": 16, "dff": 16, "n_positions": 64}
TRAINED = [Labelled(NUMBERS, "number"), Labelled(COLOURS, "colour")]


def test_a_label_that_no_training_row_has_is_told_by_its_row(tmp_path: Path) -> None:
    recipe = recipe_of("controlled", {"lineage": "ctrl", "sizes": SIZES})
    special = style("gpt").with_further("<|colour|>", "<|number|>")
    made = train_tokenizer([NUMBERS, COLOURS], kind="bpe", vocab_size=300, special=special, min_frequency=1)
    job, kit = ready(recipe, made, tmp_path)
    assert job.special(TRAINED) == special.further
    assert len(job.examples(kit, {"train": records(TRAINED)})["train"]) == 2
    odd = [*TRAINED, Labelled(NUMBERS, "anger", origin=Origin("valid.csv", 7))]
    loaded = as_loaded(job.shown(make_model(kit, job, None)), made, tmp_path)
    assert 0 <= job.figures(kit, loaded, TRAINED)["code accuracy"] <= 1
    told = r"valid\.csv:7: the label 'anger' has no token '<\|anger\|>' .* Correct it, or train on rows that have it"
    for ask in (lambda: job.examples(kit, {"valid": records(odd)}), lambda: job.figures(kit, loaded, odd)):
        with pytest.raises(ValueError, match=told):
            ask()
