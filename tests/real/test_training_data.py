"""The recipes read real data sets as they lie there: every row, with the settings that their pages name."""

import pytest

from glassformer.objectives.job import job_of
from glassformer.recipes.files import read_recipe
from glassformer.recipes.rows import read_parts
from tests.real.places import data_set


@pytest.mark.parametrize(
    ("recipe", "changes", "rows"),
    [
        ("classify", ["data.train={}/emotion/train.txt", "data.valid={}/emotion/val.txt"], (16_000, 2_000)),
        ("tag", ["data.train={}/wikiann-en/train", "data.valid={}/wikiann-en/dev"], (20_000, 10_000)),
        ("answer", ["data.train={}/squad/train.json", "data.held_out=0.1"], (4_465, 496)),
        (
            "translate",
            [f"data.{part}.{side}={{}}/multi30k/{name}.{code}.gz"
             for part, name in (("train", "train"), ("valid", "val"))
             for side, code in (("source", "en"), ("target", "de"))],
            (29_000, 1_014),
        ),
        (
            "lm-bpe",
            ["data.format=text", "data.train={}/tinystories/tinystories_2M_cased.txt", "data.documents=marker",
             "data.marker=<|endoftext|>"],
            (2_317, None),
        ),
    ],
)  # fmt: skip
def test_real_data_is_read_whole(recipe: str, changes: list[str], rows: tuple[int, int | None]) -> None:
    place = data_set("emotion").parent
    found = read_recipe(recipe, [change.format(place) for change in changes])
    job = job_of(found)
    parts = read_parts(found.data, job.record, hold_out=job.holds_out_rows)
    assert (len(parts["train"]), len(parts["valid"]) if "valid" in parts else None) == rows
