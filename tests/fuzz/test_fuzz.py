"""Damaged files by the thousand: each is read, or refused by an error that the package documents, in little time."""

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer import hub
from glassformer.families import lineages
from glassformer.models.transformer import Transformer
from tests.configs import CONFIGS
from tests.fuzz.child import KINDS
from tests.objectives.models import facts_of
from tests.parity.cases import CASES
from tests.tasks.models import save_tokenizer
from tests.weights.test_single_file import llama, write_gguf, write_llama2c

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits processes as Linux does")
IN_ALL = {
    "config": 25_000, "own_config": 10_000, "safetensors": 20_000, "tokenizer": 15_000, "gguf": 10_000,
    "llama2c": 5_000, "template": 15_000,
}  # fmt: skip
BATCH = 1_000  # inputs of one process
SHORT = 60  # inputs of each kind in the usual tests


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole files of every kind."""
    place = tmp_path_factory.mktemp("originals")
    for name, lineage in lineages().items():
        cases = [case for case in CASES if case.architecture in {form.architecture for form in lineage.heads.values()}]
        for case in cases[:2] if lineage.model_type is not None else ():
            hub.save(Transformer(facts_of(case)), place / "hf" / _folder(place, name), to="hf", lineage=name)
    for name in ("bert", "llama", "t5"):
        hub.save(Transformer(CONFIGS[name]), place / "own" / name)
    for kind in ("words", "angled", "bytes"):
        save_tokenizer(kind, place / "saved" / kind)
        shutil.move(place / "saved" / kind / "parts", place / "tokenizers" / f"{kind}-parts")
        shutil.move(place / "saved" / kind, place / "tokenizers" / kind)
    tokens = [f"<{number}>" for number in range(50)]
    (place / "gguf").mkdir()
    more = {
        "tokenizer__ggml__model": "llama", "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__scores": [-float(number) for number in range(50)],
        "tokenizer__ggml__token_type": [2, 3, 3] + [1] * 47,
    }  # fmt: skip
    write_gguf(place / "gguf" / "words.gguf", llama(), **more)
    write_gguf(place / "gguf" / "quantised.gguf", llama(), "Q8_0")
    (place / "llama2c").mkdir()
    write_llama2c(place / "llama2c" / "model.bin", llama(tied=True))
    _write_vocabulary(place / "llama2c" / "tokenizer.bin")
    return place


def _folder(place: Path, name: str) -> str:
    return name if not (place / "hf" / name).exists() else f"{name}-2"


def _write_vocabulary(path: Path) -> None:
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256)), " ", "a", "b", "ab"]
    data = struct.pack("<i", 10)
    for number, piece in enumerate(pieces):
        data += struct.pack("<fi", -float(number), len(piece.encode())) + piece.encode()
    path.write_bytes(data)


def run(kind: str, originals: Path, first: int, times: int) -> None:
    command = [sys.executable, "-m", "tests.fuzz.child", kind, str(originals), str(first), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = done.stdout
    assert "undocumented" not in output, output[output.index("undocumented") :][:3000]
    last = output.splitlines()[-1:]
    assert output.endswith("done\n"), f"{last}: the process ended with {done.returncode}: {done.stderr[-2000:]}"


@pytest.mark.slow
def test_some_damaged_files_are_read_or_refused(originals: Path) -> None:
    run(",".join(KINDS), originals, 0, SHORT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first"), [(kind, first) for kind in KINDS for first in range(0, IN_ALL[kind], BATCH)]
)
def test_many_damaged_files_are_read_or_refused(kind: str, first: int, originals: Path) -> None:
    run(kind, originals, first, BATCH)


def test_there_are_a_hundred_thousand_of_them() -> None:
    assert sum(IN_ALL.values()) == 100_000
    assert IN_ALL.keys() == KINDS.keys()
