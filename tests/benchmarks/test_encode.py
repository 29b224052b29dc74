"""The benchmark of encoding runs and says what it measured. No figure is checked."""

import sys
from pathlib import Path

import pytest
import torch

from benchmarks import encode


@pytest.fixture
def small(tmp_path: Path) -> Path:
    encode.write_small_model(tmp_path)
    return tmp_path


def test_every_library_gets_its_line(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = str(torch.get_num_threads())
    arguments = ["encode", "--model", str(small), "--texts", "5", "--rounds", "1", "--threads", threads]
    monkeypatch.setattr(sys, "argv", arguments)
    encode.main()
    lines = capsys.readouterr().out.splitlines()
    assert "transformers 5" in lines[0]
    for who in ("glassformer", "transformers", "sorted"):
        (line,) = [line for line in lines[1:] if line.strip().startswith(who)]
        assert "texts per CPU second" in line


def test_texts_have_the_lengths_that_were_drawn(small: Path) -> None:
    lengths = encode.draw_lengths(300)
    assert 80 < sum(lengths) / len(lengths) < 100
    assert encode.SHORTEST <= min(lengths) < max(lengths) <= encode.LONGEST
    tokenizer = encode.load(small, head="none").tokenizer
    assert [len(ids) for ids in tokenizer.encode_batch(encode.draw_texts(small, lengths[:9]))] == lengths[:9]


def test_libraries_that_differ_are_not_timed(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = encode.ours
    monkeypatch.setattr(encode, "ours", lambda folder, texts: right(folder, texts[::-1]))
    with pytest.raises(RuntimeError, match="do not do the same"):
        encode.measure(small, "wrong", 5, 1)


def test_padding_is_counted() -> None:
    assert encode.padded([1, 3, 2], [(0, 1), (2,)]) == (2 * 3 + 2) / 6
