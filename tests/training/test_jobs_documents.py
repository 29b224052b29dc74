"""Token files of a run: written once for the same rows, and again where it is not certain that they are the same."""

from pathlib import Path

import pytest

from glassformer.objectives import examples
from glassformer.objectives.examples import DatasetSlice, token_file
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.training import train_tokenizer


@pytest.fixture
def letters() -> Tokenizer:
    return train_tokenizer([], kind="bytes")


def rows_of(folder: Path, texts: list[str], source: str, tokenizer: Tokenizer) -> list[str]:
    file = token_file(folder, "train", texts, source, tokenizer)
    return [tokenizer.decode(file[number].tolist()) for number in range(len(file))]


def test_the_same_rows_are_written_once_and_others_anew(tmp_path: Path, letters: Tokenizer) -> None:
    assert rows_of(tmp_path, ["one", "two"], "a", letters) == ["one", "two"]
    assert rows_of(tmp_path, ["not asked for"], "a", letters) == ["one", "two"]
    assert rows_of(tmp_path, ["three"], "b", letters) == ["three"]


@pytest.mark.parametrize("note", [b"", b'{"rows": "a", "tok', b"\xff\xfe", b"[]"])
def test_a_damaged_note_is_none(tmp_path: Path, letters: Tokenizer, note: bytes) -> None:
    rows_of(tmp_path, ["one"], "a", letters)
    (tmp_path / "train.source.json").write_bytes(note)
    assert rows_of(tmp_path, ["two"], "a", letters) == ["two"]
    assert rows_of(tmp_path, ["three"], "a", letters) == ["two"]


def test_the_note_comes_last_and_whole(tmp_path: Path, letters: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path, text: str) -> None:
        assert path == tmp_path / "train.source.json"
        assert (tmp_path / "train.bin").is_file()
        assert '"rows": "a"' in text
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(examples, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            rows_of(tmp_path, ["one"], "a", letters)
    assert not (tmp_path / "train.source.json").exists()
    assert rows_of(tmp_path, ["two"], "a", letters) == ["two"]


def test_a_part_ends_where_the_next_begins() -> None:
    part = DatasetSlice("abcdef", 1, 4, "some")
    assert ("".join(part), len(part), part.fingerprint) == ("bcd", 3, "some")
    for number in (-1, 3):
        with pytest.raises(IndexError, match=f"there are 3 rows, numbered from 0; got {number}"):
            part[number]
