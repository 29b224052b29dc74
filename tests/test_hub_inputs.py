"""What a user may hand to load and save by mistake, and what is left when a disk is full."""

import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from glassformer import hub
from glassformer.models.transformer import Transformer
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights.files import WeightsError
from tests.helpers import types_unchecked
from tests.pages import PAGES
from tests.tasks.models import make
from tests.weights.test_foreign import llama, write_llama2c


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hub.save(Transformer(PAGES["gpt2"]), tmp_path_factory.mktemp("model"))


def test_what_is_no_place_is_refused(folder: Path) -> None:
    with types_unchecked():
        for wrong in (5, 2.5, ["a"], Transformer(PAGES["gpt2"])):
            with pytest.raises(TypeError, match="where must be a path or a name, got"):
                hub.load(wrong)
        with pytest.raises(TypeError, match="config must be a path or what"):
            hub.load(config=5, weights=folder)
        with pytest.raises(TypeError, match="weights must be a path"):
            hub.load(config=folder, weights=5)
        with pytest.raises(TypeError, match="folder must be a path, got 5"):
            hub.save(Transformer(PAGES["gpt2"]), 5)


def test_devices_that_are_none_are_refused(folder: Path) -> None:
    for wrong in ("cudaa", "cpu:x", ""):
        with pytest.raises(ValueError, match=r"device .*cannot be used here"):
            hub.load(folder, device=wrong)
    with types_unchecked(), pytest.raises(TypeError, match="device must be a name"):
        hub.load(folder, device=0)
    assert hub.load(folder, device=torch.device("cpu")).model is not None


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "torch.float16"])
def test_types_may_be_named(folder: Path, name: str) -> None:
    model = hub.load(folder, dtype=name).model
    assert {str(p.dtype) for p in model.parameters()} == {"torch." + name.removeprefix("torch.")}


def test_types_that_are_none_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"dtype must be one of .*Did you mean 'float16'"):
        hub.load(folder, dtype="flaot16")
    with types_unchecked():
        for wrong in (torch.int8, torch.float8_e4m3fn, 16, float):
            with pytest.raises(TypeError, match=r"floating type such as torch\.bfloat16"):
                hub.load(folder, dtype=wrong)


def test_a_model_is_not_saved_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_text("root")
    for place in (file, file / "inside"):
        with pytest.raises(WeightsError, match=r"passwd is a file, and a model is saved to a folder"):
            hub.save(Transformer(PAGES["gpt2"]), place)
    assert file.read_text() == "root"


def test_a_folder_with_one_model_of_llama2c_loads(tmp_path: Path) -> None:
    write_llama2c(tmp_path / "stories.bin", llama(tied=True))
    (tmp_path / "tokenizer.bin").write_bytes(bytes(40))
    (tmp_path / "notes.bin").write_bytes(b"PK\x03\x04" + bytes(100))
    assert hub.load(tmp_path).place == tmp_path / "stories.bin"
    shutil.copy(tmp_path / "stories.bin", tmp_path / "again.bin")
    with pytest.raises(ValueError, match=r"config\.json: there is no such file"):
        hub.load(tmp_path)


@pytest.mark.parametrize("kept", [28, 100, 20_000])
def test_a_model_of_llama2c_that_is_cut_short_is_called_so(tmp_path: Path, kept: int) -> None:
    path = write_llama2c(tmp_path / "stories.bin", llama(tied=True))
    path.write_bytes(path.read_bytes()[:kept])
    for where in (path, tmp_path):
        with pytest.raises(WeightsError, match=rf"stories\.bin: .* and it has {kept:,}\. It is cut short: download"):
            hub.load(where)


# ---- a full disk


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: what writes more meets an error of the system, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX systems do")
@pytest.mark.parametrize("to", ["glassformer", "hf"])
def test_a_full_disk_leaves_whole_files_alone_and_names_the_one_that_failed(tmp_path: Path, to: str) -> None:
    source = make(tmp_path / "source", "GPT2LMHeadModel", "bytes")[0]
    (source.folder / "generation_config.json").write_text('{"max_new_tokens": 5}' + " " * 30)
    loaded = hub.load(source.folder)
    assert isinstance(loaded.tokenizer, Tokenizer)
    whole = {path.name: path.stat().st_size for path in hub.save(loaded, tmp_path / "whole", to=to).iterdir()}
    failed = set()
    for number, size in enumerate(sorted({0, 10, *(size - 1 for size in whole.values())})):
        place = tmp_path / f"full{number}"
        with pytest.raises(OSError) as error, at_most(size):  # noqa: PT011  # the system's own words
            hub.save(loaded, place, to=to)
        failed.add(Path(error.value.filename).relative_to(place).as_posix())
        left = {path.name: path.stat().st_size for path in place.rglob("*")}
        assert left.items() <= whole.items(), (size, left)
    assert failed <= {*whole}
    assert len(failed) >= 2


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX systems do")
def test_a_full_disk_leaves_an_earlier_save_as_it_was(tmp_path: Path) -> None:
    place = hub.save(Transformer(PAGES["gpt2"]), tmp_path / "model")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(OSError, match=r"model\.safetensors|glassformer\.json"), at_most(1000):
        hub.save(Transformer(PAGES["bert"]), place)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
