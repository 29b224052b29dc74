"""The rows of a recipe's data: how columns are named, how far is read, and what is told of rows that are left out."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from glassformer.data.records import BadRowError, LabelledRecord, PairRecord, QuestionRecord, TaggedRecord, TextRecord
from glassformer.recipes.files import read_recipe
from glassformer.recipes.recipe import Aligned, Data
from glassformer.recipes.rows import read_part, read_parts
from tests.helpers import types_unchecked


def put(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("column", ["no", "yes", "on", "off", "n", "null!", '"true"', '"null"'])
def test_a_column_may_be_called_no(tmp_path: Path, column: str) -> None:
    """In YAML 1.1 it would be false, which to Python is 0: the first column."""
    name = column.strip('"')
    path = put(tmp_path / "a.csv", f"other,text,{name}\nsad,sun,joy\n")
    changes = ["data.format=csv", "data.separator=null", f"data.train={path}", f"data.columns.label={column}"]
    (row,) = read_parts(read_recipe("classify", changes).data, LabelledRecord, hold_out=False)["train"]
    assert row == LabelledRecord("sun", "joy")


@pytest.mark.parametrize("column", ["true", "false", "null", "1.5", "2020-01-31", "[a]"])
def test_what_is_no_name_or_number_of_a_column(tmp_path: Path, column: str) -> None:
    path = put(tmp_path / "a.csv", "label,text\njoy,sun\n")
    changes = ["data.format=csv", f"data.train={path}", f"data.columns={{text: text, label: {column}}}"]
    with pytest.raises(ValueError, match=r"data.columns.label must be the name or the number.*Quote a name"):
        read_parts(read_recipe("classify", changes).data, LabelledRecord)
    changes = ["data.format=conll", f"data.train={path}", f"data.columns={{words: {column}}}"]
    with pytest.raises(ValueError, match=r"data.columns.words must be the name or the number"):
        read_parts(read_recipe("tag", changes).data, TaggedRecord)


def test_norwegian_is_a_language(tmp_path: Path) -> None:
    files = [f"data.train.{side}={put(tmp_path / side, 'a')}" for side in ("source", "target")]
    (row,) = read_part(read_recipe("translate", [*files, "data.languages=[en, no]"]).data, "train", PairRecord)
    assert (row.source_language, row.target_language) == ("en", "no")


def test_if_all_rows_are_bad_it_is_told_why(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", "{a\n{b\n{}\n")
    data = Data(format="jsonl", train=path, on_bad_row="skip")
    with pytest.raises(
        ValueError, match=r"(?s)data\.train has no valid rows: .*left out 3: 2 × invalid JSON.*jsonl:1:"
    ):
        read_parts(data, TextRecord)
    with pytest.raises(ValueError, match=r"data\.train has no rows: .*jsonl\.$"):
        read_parts(Data(format="jsonl", train=put(tmp_path / "a.jsonl", "")), TextRecord)


GOOD = {
    "jsonl": ('{"text": "a"}', TextRecord),
    "csv": ("a", TextRecord),
    "tsv": ("a", TextRecord),
    "text": ("a\n", TextRecord),
    "conll": ("a\tO\n", TaggedRecord),
}


@pytest.mark.parametrize("form", GOOD)
def test_a_limit_ends_the_reading(tmp_path: Path, form: Any) -> None:
    good, kind = GOOD[form]
    lines = [*(["text"] if form in ("csv", "tsv") else []), good, good, "\ufffd"]
    path = tmp_path / "a"
    path.write_bytes("\n".join(lines).encode().replace("\ufffd".encode(), b"\xff"))
    assert len(read_part(Data(format=form, train=str(path), limit=2), "train", kind)) == 2
    with pytest.raises(BadRowError, match="invalid UTF-8"):
        read_part(Data(format=form, train=str(path), limit=3), "train", kind)
    skipping: Any = read_part(Data(format=form, train=str(path), limit=3, on_bad_row="skip"), "train", kind)
    assert len(skipping) == 2


def test_a_limit_ends_the_reading_of_aligned_files_and_of_questions(tmp_path: Path) -> None:
    sides = [put(tmp_path / "a", "1\n2\n3\n"), put(tmp_path / "b", "1\n2\n")]
    pair = Aligned(source=sides[0], target=sides[1])
    assert len(read_part(Data(format="parallel", train=pair, limit=2), "train", PairRecord)) == 2
    with pytest.raises(ValueError, match="ends after line 2"):
        read_part(Data(format="parallel", train=pair), "train", PairRecord)
    asked = [{"id": str(n), "question": "q", "answers": [{"text": "a", "answer_start": n}]} for n in range(3)]
    page = {"data": [{"paragraphs": [{"context": "a", "qas": asked}]}]}
    questions = put(tmp_path / "q.json", json.dumps(page))
    assert [row.id for row in read_part(Data(format="squad", train=questions, limit=1), "train", QuestionRecord)] == [
        "0"
    ]
    assert len(read_parts(Data(format="toy", limit=1), PairRecord, hold_out=False)["train"]) == 1


def test_what_lies_behind_a_limit_does_not_change_the_rows(tmp_path: Path) -> None:
    data = Data(format="jsonl", train=put(tmp_path / "a", '{"text": "a"}\n{"text": "b"}\n'), limit=1)
    first = read_part(data, "train", TextRecord).fingerprint
    put(tmp_path / "a", '{"text": "a"}\n{"text": "c"}\n')
    assert read_part(data, "train", TextRecord).fingerprint == first
    put(tmp_path / "a", '{"text": "c"}\n{"text": "b"}\n')
    assert read_part(data, "train", TextRecord).fingerprint != first


class Table:
    """What a ``datasets.Dataset`` offers, as far as it is used."""

    def __init__(self, *labels: int) -> None:
        self.rows = [{"text": "sun", "label": label} for label in labels]
        self.column_names = ["text", "label"]
        self.features = {"text": SimpleNamespace(), "label": SimpleNamespace(names=["joy", "fear"])}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.rows[number]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tables and one with splits, as the package would read them if it were there."""
    folders = {"train": Table(0, 1), "valid": Table(1), "both": {"train": Table(0, 1, 1), "validation": Table(0)}}
    for name in folders:
        (tmp_path / name).mkdir()
    package = ModuleType("datasets")
    vars(package)["load_from_disk"] = lambda location: folders[Path(location).name]
    monkeypatch.setitem(sys.modules, "datasets", package)
    return tmp_path


def labels(parts: Any) -> dict[str, list[str]]:
    return {part: [row.label for row in rows] for part, rows in parts.items()}


def test_a_data_set_without_splits_is_the_part_that_names_it(saved: Path) -> None:
    folder, other = str(saved / "train"), str(saved / "valid")
    alone = read_parts(Data(format="dataset", train=folder), LabelledRecord, hold_out=False)
    assert labels(alone) == {"train": ["joy", "fear"]}
    assert str(alone["train"][1].origin) == f"{folder}:2"
    assert labels(read_parts(Data(format="dataset", train=folder, valid=other), LabelledRecord))["valid"] == ["fear"]
    with pytest.raises(ValueError, match=r"has no splits, so it cannot be both data\.train and data\.valid"):
        read_parts(Data(format="dataset", train=folder, valid=folder), LabelledRecord)


def test_a_data_set_with_splits_gives_each_part_its_own(saved: Path) -> None:
    both = str(saved / "both")
    parts = read_parts(Data(format="dataset", train=both, valid=both), LabelledRecord)
    assert labels(parts) == {"train": ["joy", "fear", "fear"], "valid": ["joy"]}
    assert str(parts["valid"][0].origin) == f"{both}[validation]:1"
    with pytest.raises(ValueError, match="has the splits train, validation"):
        read_parts(Data(format="dataset", train=both, test=both), LabelledRecord)
    with types_unchecked(), pytest.raises(ValueError, match="is one folder"):
        read_parts(Data(format="dataset", train=(both,)), LabelledRecord)
