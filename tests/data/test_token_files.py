"""Row 25 of the known silent bugs and the rest of what a file of token ids promises."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data import token_files
from glassformer.data.token_files import TokenFileError, encoded, open_tokens, tokenizer_fingerprint, write_tokens
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.vocabularies import Vocabulary
from tests.helpers import types_unchecked

DOCUMENTS = [[1, 2, 3], [4], [5, 6]]


def written(folder: Path, documents: Any = DOCUMENTS, vocab_size: int = 10) -> Path:
    path = folder / "corpus.bin"
    write_tokens(path, documents, vocab_size=vocab_size, tokenizer="abc")
    return path


def word_tokenizer(*words: str) -> Tokenizer:
    vocab = {word: number for number, word in enumerate(["?", "<end>", *words])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="?"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["?", "<end>"])
    return Tokenizer(Vocabulary(backend, {"unk": "?", "eos": "<end>"}))


@given(
    documents=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=1, max_size=9),
    buffer=st.integers(1, 9),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], buffer: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_files, "_BUFFER", buffer)
        path = written(tmp_path_factory.mktemp("tokens"), documents)
    result = open_tokens(path, tokenizer="abc", vocab_size=10, verify=True)
    assert [result[number].tolist() for number in range(len(result))] == documents
    assert result.lengths.tolist() == [len(document) for document in documents]
    flat = [token for document in documents for token in document]
    assert result.tokens.tolist() == flat
    for number, document in enumerate(documents):
        middle = len(document) // 2
        assert result.part(number, middle, len(document)).tolist() == document[middle:]
        assert result.part(number, 0, middle).tolist() == document[:middle]


@pytest.mark.parametrize(("vocab_size", "size"), [(2, 2), (65_535, 2), (65_536, 4), (65_537, 4), (250_112, 4)])
def test_row_25_the_integer_type_fits_the_vocabulary(tmp_path: Path, vocab_size: int, size: int) -> None:
    path = written(tmp_path, [[0, vocab_size - 1, 1]], vocab_size)
    assert path.stat().st_size == 3 * size
    assert open_tokens(path)[0].tolist() == [0, vocab_size - 1, 1]
    assert open_tokens(path)[0].dtype == torch.int64


@pytest.mark.parametrize("wrong", [10, 65_536, -1, 2**40, 2**70])
def test_row_25_an_id_outside_the_vocabulary_is_an_error(tmp_path: Path, wrong: int) -> None:
    with pytest.raises(TokenFileError, match=r"document 1 (has id .* at position 2, outside|must hold integers)"):
        written(tmp_path, [[1], [2, 3, wrong]])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [[], [[1]], [0.5], ["a"]])
def test_documents_are_lists_of_whole_numbers(tmp_path: Path, wrong: Any) -> None:
    with types_unchecked(), pytest.raises(TokenFileError, match=r"document 1 must"):
        written(tmp_path, [[1], wrong])
    with pytest.raises(TokenFileError, match="no documents"):
        written(tmp_path, [])


def test_an_earlier_file_stays_whole_until_the_new_one_is(tmp_path: Path) -> None:
    path = written(tmp_path)

    def breaks() -> Iterator[list[int]]:
        yield [9, 9]
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        written(tmp_path, breaks())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["corpus.bin", "corpus.ends.bin", "corpus.json"]
    assert open_tokens(path, verify=True)[0].tolist() == [1, 2, 3]
    written(tmp_path, [[9]])
    assert open_tokens(path, verify=True)[0].tolist() == [9]


@pytest.mark.parametrize("moved", [1, 2])
def test_a_power_cut_between_two_files_leaves_nothing_that_could_be_read_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    path = written(tmp_path)
    calls = 0

    def replace(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls > moved:
            raise OSError("no power")
        source.rename(target)

    monkeypatch.setattr(token_files.os, "replace", replace)
    with pytest.raises(OSError, match="no power"):
        written(tmp_path, [[7, 7, 7], [8], [9, 9]])  # of the same size, so that no length could tell
    with pytest.raises(TokenFileError, match="has no manifest"):
        open_tokens(path)


def test_the_manifest_says_what_is_there(tmp_path: Path) -> None:
    path = written(tmp_path)
    manifest = json.loads((tmp_path / "corpus.json").read_text())
    assert (manifest["dtype"], manifest["tokens"], manifest["documents"], manifest["vocab_size"]) == (
        "uint16",
        6,
        3,
        10,
    )
    assert manifest["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.read_bytes() == np.array([1, 2, 3, 4, 5, 6], dtype="<u2").tobytes()


def test_truncated_foreign_and_changed_files_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    data, manifest = path.read_bytes(), (tmp_path / "corpus.json").read_text()

    def refused(match: str, **settings: Any) -> None:
        with pytest.raises(TokenFileError, match=match):
            open_tokens(path, **settings)

    refused("written with tokenizer abc, not xyz", tokenizer="xyz")
    refused("written with vocab_size 10, not 11", vocab_size=11)
    path.write_bytes(data[:-1])
    refused("has 11 bytes where its manifest lists 6 numbers of 2 bytes")
    path.write_bytes(data[:-2] + b"\x01\x00")
    refused("sha256 differs", verify=True)
    path.write_bytes(data)
    for text, match in (
        ("{", "is not JSON"),
        ("[]", "no manifest of tokens"),
        ('{"tokens": 6}', "no manifest of tokens"),
        (manifest.replace('"uint16"', '"int16"'), "garbles dtype"),
        (manifest.replace('"tokens": 6', '"tokens": "6"'), "garbles tokens"),
        (manifest.replace('"documents": 3', '"documents": 4'), r"ends\.bin has 24 bytes"),
    ):
        (tmp_path / "corpus.json").write_text(text)
        refused(match)
    (tmp_path / "corpus.json").write_text(manifest)
    (tmp_path / "corpus.ends.bin").write_bytes(np.array([3, 4, 5], dtype="<u8").tobytes())
    refused("the last document ends at 5, the file at 6")
    (tmp_path / "corpus.ends.bin").unlink()
    refused("is missing, but its manifest exists")
    (tmp_path / "corpus.json").unlink()
    refused("has no manifest")
    for name in ("corpus", "corpus.ends.bin"):
        with pytest.raises(TokenFileError, match="is named"):
            open_tokens(tmp_path / name)


def test_arrays_and_tensors_are_documents_too(tmp_path: Path) -> None:
    result = open_tokens(written(tmp_path, [np.array([1, 2], dtype=np.uint8), torch.tensor([3]), (4, 5)]))
    assert [result[number].tolist() for number in range(3)] == [[1, 2], [3], [4, 5]]


def test_places_outside_are_refused(tmp_path: Path) -> None:
    result = open_tokens(written(tmp_path))
    for number in (3, -1):
        with pytest.raises(IndexError, match="3 documents"):
            result[number]
    for start, stop in ((0, 4), (-1, 2), (2, 1)):
        with pytest.raises(IndexError, match="document 0 has 3 tokens"):
            result.part(0, start, stop)


def test_progress_is_told_and_ends_with_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "_BUFFER", 4)
    calls: list[tuple[int, int]] = []
    write_tokens(tmp_path / "a.bin", [[1, 1]] * 5, vocab_size=2, tokenizer="", progress=lambda *now: calls.append(now))
    assert calls == [(2, 4), (4, 8), (5, 10)]


def test_documents_are_taken_one_at_a_time_and_written_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "_BUFFER", 100)
    largest = 0

    def documents() -> Iterator[list[int]]:
        nonlocal largest
        for _ in range(50):
            yield [1] * 30
            (file,) = tmp_path.glob(".writing-*/ids")
            largest = max(largest, file.stat().st_size)

    written(tmp_path, documents())
    assert largest >= 2 * (50 * 30 - 200)


def test_the_fingerprint_is_of_ids_and_boundaries(tmp_path: Path) -> None:
    def fingerprint(name: str, documents: list[list[int]]) -> str:
        return write_tokens(tmp_path / name / "a.bin", documents, vocab_size=9, tokenizer="").fingerprint

    first = fingerprint("a", [[1, 2], [3]])
    assert first == fingerprint("b", [[1, 2], [3]])
    assert len({first, fingerprint("c", [[1], [2, 3]]), fingerprint("d", [[1, 2], [4]])}) == 3


def test_texts_are_encoded_bare_with_an_end_of_their_own() -> None:
    tokenizer = word_tokenizer("a", "b")
    texts = ["a b", "b <end> a", "a"]
    assert list(encoded(iter(texts), tokenizer, chunk=2)) == [[2, 3], [3, 0, 2], [2]]
    assert list(encoded(texts, tokenizer, end=tokenizer.eos)) == [[2, 3, 1], [3, 0, 2, 1], [2, 1]]
    assert list(encoded(texts, tokenizer, allow_special=True))[1] == [3, 1, 2]
    with pytest.raises(ValueError, match="0 to 3; got 4"):
        list(encoded(texts, tokenizer, end=4))


def test_tokenizers_are_told_apart(tmp_path: Path) -> None:
    first = tokenizer_fingerprint(word_tokenizer("a", "b"))
    assert first == tokenizer_fingerprint(word_tokenizer("a", "b"))
    assert first != tokenizer_fingerprint(word_tokenizer("b", "a"))
    word_tokenizer("a", "b").save(tmp_path)
    assert first == tokenizer_fingerprint(Tokenizer.load(tmp_path))
