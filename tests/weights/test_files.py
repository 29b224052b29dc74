"""Files of weights: what is written comes back bit by bit, and what is damaged, unsafe or half there is refused."""

import errno
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from glassformer.weights import files, saving
from glassformer.weights.files import Stored, WeightsError, check_finite, open_weights
from glassformer.weights.saving import write_text, write_weights

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip
LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks /proc about this process")


def some_tensors() -> dict[str, Tensor]:
    return {"b": torch.randn(3, 2), "a": torch.arange(4), "scalar": torch.tensor(2.5), "none": torch.zeros(0, 3)}


def raw(path: Path, header: object, data: bytes = b"") -> Path:
    """A safetensors file with any header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(shape: list[Any], start: Any, stop: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def index(folder: Path, weight_map: object, name: str = "model.safetensors.index.json") -> Path:
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder / name


def read_all(path: Path, *, allow_pickle: bool = False) -> dict[str, Tensor]:
    with open_weights(path, allow_pickle=allow_pickle) as weights:
        return {name: weights.read(name) for name in weights.entries}


def refuse(path: Path, *messages: str, allow_pickle: bool = False) -> None:
    """The weights cannot be read, and the error names the file and has all ``messages``."""
    with pytest.raises(WeightsError) as caught:
        read_all(path, allow_pickle=allow_pickle)
    for text in (path.name, *messages):
        assert text in str(caught.value)


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether names, dtypes, shapes and every bit agree, those of NaN too."""

    def bits(tensors: Mapping[str, Tensor]) -> dict[str, object]:
        flat = {name: t.detach().contiguous().reshape(-1).view(torch.uint8) for name, t in tensors.items()}
        return {name: (t.dtype, t.shape, flat[name].tolist()) for name, t in tensors.items()}

    return bits(a) == bits(b)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# ---------------------------------------------------------------------------------------------------------- round trip


def test_every_dtype_comes_back_bit_by_bit(tmp_path: Path) -> None:
    tensors = {}
    for dtype in DTYPES:
        bits = torch.randint(0, 2 if dtype == torch.bool else 256, (3, 5 * dtype.itemsize), dtype=torch.uint8)
        tensors[str(dtype)] = bits.view(dtype)
        tensors[f"{dtype} scalar"] = bits[0, : dtype.itemsize].clone().view(dtype)[0].clone()
        tensors[f"{dtype} none"] = torch.empty(2, 0, 3, dtype=dtype)
    (path,) = write_weights(tmp_path, tensors)
    assert same(read_all(tmp_path), tensors)
    assert same(load_file(path), tensors)


def test_files_of_others_are_read_alike(tmp_path: Path) -> None:
    save_file(some_tensors(), tmp_path / "x.safetensors", metadata={"format": "pt", "made": "elsewhere"})
    with open_weights(tmp_path / "x.safetensors") as weights:
        assert weights.metadata == {"format": "pt", "made": "elsewhere"}
    assert same(read_all(tmp_path / "x.safetensors"), load_file(tmp_path / "x.safetensors"))


def test_entries_say_what_is_there_before_it_is_read(tmp_path: Path) -> None:
    write_weights(tmp_path, some_tensors())
    with open_weights(tmp_path) as weights:
        assert set(weights.entries) == {"a", "b", "scalar", "none"}
        assert weights.entries["b"] == Stored("b", torch.float32, (3, 2), tmp_path / "model.safetensors")
        assert {name: stored.nbytes for name, stored in weights.entries.items()} == {
            "a": 32, "b": 24, "scalar": 4, "none": 0
        }  # fmt: skip


def test_a_file_without_tensors_is_a_file(tmp_path: Path) -> None:
    write_weights(tmp_path, {})
    assert read_all(tmp_path) == {}


def test_what_is_read_has_memory_of_its_own(tmp_path: Path) -> None:
    (path,) = write_weights(tmp_path, {"x": torch.ones(1000)})
    before = path.read_bytes()
    with open_weights(path) as weights:
        first, second = weights.read("x"), weights.read("x")
        first.zero_()
        assert first._base is None
        assert first.is_contiguous()
        assert torch.equal(weights.read("x"), second)
    first.add_(1)  # the mapping is gone, the tensor is not
    assert torch.equal(first, second)
    assert path.read_bytes() == before


def test_a_tensor_longer_than_one_chunk_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHUNK", 5000)
    tensors = {"a": torch.randn(7), "x": torch.randn(20_000), "z": torch.randn(3000)}
    write_weights(tmp_path, tensors)
    assert same(read_all(tmp_path), tensors)


def test_a_default_device_does_not_move_what_is_read(tmp_path: Path) -> None:
    write_weights(tmp_path, {"x": torch.ones(2)})
    with torch.device("meta"):
        assert read_all(tmp_path)["x"].device.type == "cpu"


@LINUX
def test_closing_lets_go_of_file_and_mapping(tmp_path: Path) -> None:
    def held() -> bool:
        descriptors = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return str(path) in Path("/proc/self/maps").read_text() or str(path) in descriptors

    (path,) = write_weights(tmp_path, {"x": torch.ones(3)})
    weights = open_weights(path)
    weights.read("x")
    assert held()
    weights.close()
    weights.close()  # twice is once
    assert not held()
    bad = index(tmp_path, {"x": path.name, "y": path.name}, "bad.json")
    with pytest.raises(WeightsError, match="lacks"):
        open_weights(bad)
    assert not held()


def test_reading_what_is_not_there_or_closed(tmp_path: Path) -> None:
    write_weights(tmp_path, {"x": torch.ones(3)})
    with open_weights(tmp_path) as weights, pytest.raises(WeightsError, match=r"model\.safetensors.*'y'.*\.entries"):
        weights.read("y")
    with pytest.raises(WeightsError, match=r"model\.safetensors: closed.*with statement"):
        weights.read("x")


@LINUX
def test_reading_never_holds_the_file_twice(tmp_path: Path) -> None:
    """Small tensors, then one of half the file, into a dict, in a process that does nothing else."""
    shapes = [2_500_000] * 10 + [25_000_000]  # 200 MB
    save_file({f"t{i:02}": torch.ones(n) for i, n in enumerate(shapes)}, tmp_path / "big.safetensors")
    save_file({"x": torch.ones(9)}, tmp_path / "small.safetensors")
    code = """
import sys
from pathlib import Path
from glassformer.weights.files import open_weights

def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

def read(path):
    with open_weights(path) as weights:
        return {name: weights.read(name) for name in weights.entries}

folder = Path(sys.argv[1])
read(folder / "small.safetensors")  # whatever the first call imports is not the weights
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts again from here
before = status("VmRSS")
tensors = read(folder / "big.safetensors")
print(status("VmHWM") - before, sum(t.nbytes for t in tensors.values()))
"""
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    growth, weights = map(int, run.stdout.split())
    assert weights == 4 * sum(shapes)
    assert growth <= 1.1 * weights


# ------------------------------------------------------------------------------------------------- which file is opened


def test_which_file_of_a_folder_is_opened(tmp_path: Path) -> None:
    """Each file that is added wins over all before it."""
    torch.save({"x": torch.tensor(0)}, tmp_path / "pytorch_model.bin")
    torch.save({"x": torch.tensor(1)}, tmp_path / "shard.bin")
    save_file({"x": torch.tensor(2)}, tmp_path / "shard")  # named by an index: not taken for "any single other"
    in_order: list[Callable[[], object]] = [
        lambda: None,
        lambda: index(tmp_path, {"x": "shard.bin"}, "pytorch_model.bin.index.json"),
        lambda: save_file({"x": torch.tensor(2)}, tmp_path / "other.safetensors"),
        lambda: save_file({"x": torch.tensor(3)}, tmp_path / "model.safetensors"),
        lambda: save_file({"x": torch.tensor(4)}, tmp_path / "four.safetensors"),
    ]
    for expected, add in enumerate(in_order[:-1]):
        add()
        assert read_all(tmp_path, allow_pickle=True)["x"].item() == expected
    in_order[-1]()
    index(tmp_path, {"x": "four.safetensors"})
    assert read_all(tmp_path)["x"].item() == 4


def test_nothing_to_open(tmp_path: Path) -> None:
    refuse(tmp_path, "no weights here", "model.safetensors.index.json", "pytorch_model.bin", "Name the folder")
    refuse(tmp_path / "gone.safetensors", "no such file", "Name a weights file")


def test_several_files_without_an_index_are_not_guessed_at(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / "model-00001-of-00002.safetensors")
    refuse(tmp_path, "'model-00001-of-00002.safetensors'", "no model.safetensors.index.json", "Download the index")
    (tmp_path / "model-00001-of-00002.safetensors").rename(tmp_path / "one.safetensors")
    (tmp_path / "._one.safetensors").write_bytes(b"left by some file managers")
    assert set(read_all(tmp_path)) == {"x"}
    save_file({"y": torch.ones(1)}, tmp_path / "two.safetensors")
    refuse(tmp_path, "'one.safetensors', 'two.safetensors'", "name one file")
    assert set(read_all(tmp_path / "two.safetensors")) == {"y"}


# ------------------------------------------------------------------------------------------------------- damaged files

DAMAGE: dict[str, tuple[object, bytes, str]] = {
    "truncated": ({"x": entry([4], 0, 16)}, b"1234567", "lists 16 bytes of tensors, but the file has 7"),
    "too long": ({"x": entry([1], 0, 4)}, b"1234567", "lists 4 bytes of tensors, but the file has 7"),
    "gap": ({"x": entry([1], 4, 8)}, bytes(8), "leaves a gap"),
    "hole between": ({"x": entry([1], 0, 4), "y": entry([1], 8, 12)}, bytes(12), "'y' starts at 8, not 4"),
    "overlap": ({"x": entry([2], 0, 8), "y": entry([1], 4, 8)}, bytes(8), "overlaps"),
    "length": ({"x": entry([3], 0, 8)}, bytes(8), "has 12 bytes, but data_offsets 0 to 8 are 8"),
    "backwards": ({"x": entry([0], 8, 4)}, bytes(8), "are -4"),
    "overflow": ({"x": entry([0, 2**40, 2**40], 0, 0)}, b"", "has 0 bytes"),
    "negative": ({"x": entry([-1, -1], 0, 4)}, bytes(4), "needs dtype, shape and two data_offsets"),
    "fraction": ({"x": entry([1.0], 0, 4)}, bytes(4), "needs dtype, shape"),
    "boolean size": ({"x": entry([True], 0, 4)}, bytes(4), "needs dtype, shape"),
    "no dtype": ({"x": {"shape": [], "data_offsets": [0, 0]}}, b"", "needs dtype, shape"),
    "no entry": ({"x": [1, 2]}, b"", "needs dtype, shape"),
    "three offsets": ({"x": {"dtype": "F32", "shape": [], "data_offsets": [0, 4, 8]}}, b"", "needs dtype, shape"),
    "list": ([1, 2], b"", "must be a JSON object, found list"),
    "not json": (b"{nonsense", b"", "not valid JSON"),
    "not text": (b'{"\xff": 1}', b"", "not valid JSON"),
    "deep": (b"[" * 100_000, b"", "not valid JSON"),
    "twice": (b'{"x": {}, "x": {}}', b"", "names 'x' twice"),
    "metadata": ({"__metadata__": {"format": 1}}, b"", "must map names to text"),
    "metadata list": ({"__metadata__": ["pt"]}, b"", "must map names to text"),
    "booleans": ({"x": entry([2], 0, 2, "BOOL")}, b"\1\2", "bytes 0 and 1"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_file_is_refused(tmp_path: Path, case: str) -> None:
    header, data, message = DAMAGE[case]
    refuse(raw(tmp_path / "bad.safetensors", header, data), message, "download or save it again")


def test_an_unknown_dtype_is_named(tmp_path: Path) -> None:
    path = raw(tmp_path / "bad.safetensors", {"x": entry([1], 0, 4, "F4_NEW")}, bytes(4))
    refuse(path, "'x'", "'F4_NEW'", "BF16", "Convert it")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file has 0 more"),
        (b"1234567", "the file has 0 more"),
        ((10**6).to_bytes(8, "little") + b"{}", "should have 1000000 bytes; the file has 2 more"),
        (b"\xff" * 64, "the limit is 100000000"),
    ],
)
def test_an_absurd_header_length_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.safetensors").write_bytes(content)
    refuse(tmp_path / "bad.safetensors", message, "download or save it again")


def test_a_header_longer_than_the_format_allows_is_not_even_read(tmp_path: Path) -> None:
    with (tmp_path / "bad.safetensors").open("wb") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(200_000_000)  # sparse: takes no room on the disk
    refuse(tmp_path / "bad.safetensors", "the limit is 100000000", "download or save it again")


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"])
def test_what_came_instead_of_the_weights_is_recognised(tmp_path: Path, name: str) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 548105171\n"
    (tmp_path / name).write_bytes(pointer)
    refuse(tmp_path / name, "this is a Git LFS pointer, not the weights", "run git lfs pull", allow_pickle=True)
    for page in (b"<!DOCTYPE html>\n<html>", b"\n <html lang='en'>", b"<?xml version='1.0'?><Error>Denied</Error>"):
        (tmp_path / name).write_bytes(page)
        refuse(tmp_path / name, "this is a web page, not the weights", "download it again", allow_pickle=True)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_corruption_is_an_error_or_tensors(tmp_path: Path, data: st.DataObject) -> None:
    """Never another exception, never a crash: what is read has the shape and dtype that the entries say."""
    if not (tmp_path / "good.safetensors").exists():
        tensors = some_tensors() | {"flag": torch.tensor([True, False]), "half": torch.ones(2, dtype=torch.bfloat16)}
        write_weights(tmp_path, tensors, file_name="good.safetensors")
    content = bytearray((tmp_path / "good.safetensors").read_bytes())
    for _ in range(data.draw(st.integers(1, 4), label="flips")):
        content[data.draw(st.integers(0, len(content) - 1), label="at")] = data.draw(st.integers(0, 255), label="byte")
    if data.draw(st.booleans(), label="truncate"):
        del content[data.draw(st.integers(0, len(content)), label="length") :]
    (tmp_path / "bad.safetensors").write_bytes(content)
    try:
        with open_weights(tmp_path / "bad.safetensors") as weights:
            for name, stored in weights.entries.items():
                tensor = weights.read(name)
                assert (tensor.dtype, tuple(tensor.shape), tensor.nbytes) == (stored.dtype, stored.shape, stored.nbytes)
                tensor.clone().reshape(-1).tolist()
    except WeightsError as error:
        assert "bad.safetensors" in str(error)  # noqa: PT017  both ends are right; only this one has a message


# -------------------------------------------------------------------------------------------------------------- shards


def test_shards_are_written_and_read_as_one(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.randn(10) for i in range(5)} | {"large": torch.randn(100), "none": torch.zeros(0)}
    paths = write_weights(tmp_path, tensors, shard_bytes=90)
    shards = [f"model-0000{n}-of-00004.safetensors" for n in range(1, 5)]
    assert [path.name for path in paths] == [*shards, "model.safetensors.index.json"]
    assert names(tmp_path) == {path.name for path in paths}
    assert same(read_all(tmp_path), tensors)
    assert same(read_all(paths[-1]), tensors)
    assert [set(load_file(path)) for path in paths[:-1]] == [{"large"}, {"none", "t0", "t1"}, {"t2", "t3"}, {"t4"}]
    facts = json.loads(paths[-1].read_text())
    assert facts["metadata"] == {"total_size": 600}
    assert facts["weight_map"]["t4"] == shards[-1]
    with open_weights(tmp_path) as weights:
        assert weights.metadata == {"format": "pt"}
        assert weights.entries["large"].file == paths[0]


def test_a_single_tensor_above_the_limit_is_one_file(tmp_path: Path) -> None:
    assert [p.name for p in write_weights(tmp_path, {"x": torch.ones(9)}, shard_bytes=1)] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "the index is not valid JSON"),
        ("[]", "must be a JSON object, found list"),
        ("{}", "needs a weight_map"),
        ('{"weight_map": ["x"]}', "needs a weight_map"),
        ('{"weight_map": {"x": 1}}', "needs a weight_map"),
        ('{"weight_map": {"x": "a", "x": "b"}}', "names 'x' twice"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    refuse(path, message, "download or save it again")


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "a/b", "a\\b", "C:x", "..", ".", ""])
def test_an_index_does_not_lead_out_of_its_folder(tmp_path: Path, shard: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors")
    refuse(index(inner, {"x": shard}), repr(shard), "plain file name", "Do not trust it")


@pytest.mark.parametrize("shard", ["gone.safetensors", "nul\0", "x" * 5000, "\ud800"])
def test_missing_shards_are_listed(tmp_path: Path, shard: str) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / "here.safetensors")
    path = index(tmp_path, {"x": "here.safetensors", "y": shard, "z": "away.safetensors"})
    refuse(path, "2 of 3 shards are missing", f"Download {', '.join(map(repr, sorted(['away.safetensors', shard])))}")


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1), "y": torch.ones(1)}, tmp_path / "one.safetensors")
    save_file({"y": torch.ones(1)}, tmp_path / "two.safetensors")

    def disagree(weight_map: dict[str, str], *messages: str) -> None:
        index(tmp_path, weight_map)
        with pytest.raises(WeightsError) as caught:
            open_weights(tmp_path)
        assert all(text in str(caught.value) for text in (*messages, "download or save all again"))

    disagree({"x": "one.safetensors"}, "one.safetensors", "also holds 'y'")
    disagree({"x": "one.safetensors", "y": "two.safetensors"}, "one.safetensors", "also holds 'y'")  # y comes twice
    disagree(dict.fromkeys("xyz", "one.safetensors"), "one.safetensors", "lacks 'z'")


# -------------------------------------------------------------------------------------------------------------- pickle


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "x.pt", "x.pth", "x.ckpt", "x.BIN"])
def test_a_pickle_is_refused_unless_asked_for(tmp_path: Path, name: str) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / name)
    refuse(tmp_path / name, "can run code", "set allow_pickle=True")
    assert torch.equal(read_all(tmp_path / name, allow_pickle=True)["x"], torch.ones(2))


def test_an_index_does_not_let_a_pickle_in(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "shard.bin")
    index(tmp_path, {"x": "shard.bin"})
    with pytest.raises(WeightsError, match=r"shard\.bin: a pickle.*allow_pickle=True"):
        open_weights(tmp_path)
    assert set(read_all(tmp_path, allow_pickle=True)) == {"x"}


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_never_run(tmp_path: Path, zipped: bool) -> None:
    path, target = tmp_path / "evil.bin", tmp_path / "harm"
    torch.save({"x": Bomb(target)}, path, _use_new_zipfile_serialization=zipped)
    refuse(path, "can run code", "allow_pickle=True")
    refuse(path, "could run code", "Save it as safetensors", allow_pickle=True)
    path.write_bytes(pickle.dumps(Bomb(target)))
    refuse(path, "could run code", "Save it as safetensors", allow_pickle=True)
    assert not target.exists()
    pickle.loads(path.read_bytes())  # the bomb is a real one
    assert target.exists()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04nonsense"])
def test_a_damaged_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.bin").write_bytes(content)
    refuse(tmp_path / "x.bin", "not a pickle of tensors only", "download it again", allow_pickle=True)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
def test_wrappings_are_taken_off(tmp_path: Path, wrap: str | None, zipped: bool) -> None:
    state = {"x": torch.randn(3, 2).T, "p": torch.nn.Parameter(torch.ones(2)), "model": torch.ones(1)}
    wrapped = {wrap: state, "epoch": 3} if wrap else state
    torch.save(wrapped, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    loaded = read_all(tmp_path / "x.pt", allow_pickle=True)
    assert set(loaded) == set(state)
    assert torch.equal(loaded["x"], state["x"])
    assert all(t.is_contiguous() and not t.requires_grad for t in loaded.values())


@pytest.mark.filterwarnings("ignore::UserWarning")  # some versions of torch warn of sparse tensors
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": torch.ones(1), "epoch": 3}, "epoch (int)"),
        ({"x": {"y": torch.ones(1)}}, "x (dict)"),
        ({3: torch.ones(1)}, "3 (Tensor)"),
        ({"x": torch.ones(2).to_sparse()}, "x (Tensor)"),
        ([torch.ones(1)], "found list"),
        (torch.ones(1), "found Tensor"),
    ],
)
def test_a_pickle_of_anything_but_named_tensors_is_refused(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "x.pt")
    refuse(tmp_path / "x.pt", message, "Save only model.state_dict()", allow_pickle=True)


# ------------------------------------------------------------------------------------------------------------- writing


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    tensors, facts = some_tensors(), {key: f'é\n\x1f\x7f"\\{key}' for key in "dcbaß"}
    (path,) = write_weights(tmp_path, tensors, metadata=facts)
    first = path.read_bytes()
    for _ in range(5):
        write_weights(tmp_path, dict(reversed(tensors.items())), metadata=dict(reversed(facts.items())))
        assert path.read_bytes() == first
    assert same(load_file(path), tensors)
    with open_weights(path) as weights:
        assert weights.metadata == {"format": "pt", **facts}


def test_views_and_shared_memory_become_tensors_of_their_own(tmp_path: Path) -> None:
    whole = torch.randn(4, 6)
    tensors = {
        "a": whole,
        "b": whole,
        "row": whole[1],
        "t": whole.T,
        "column": whole[:, 2],
        "all": whole[:1].expand(3, 6),
    }
    (path,) = write_weights(tmp_path, tensors)
    assert same(load_file(path), tensors)
    assert same(read_all(path), tensors)
    write_weights(tmp_path, {"p": torch.nn.Parameter(whole)})
    assert torch.equal(read_all(tmp_path)["p"], whole)


def test_one_save_replaces_another_whatever_their_shards(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.zeros(4) for i in range(6)}
    (tmp_path / "model-notes.txt").write_text("not ours")
    save_file({"x": torch.ones(1)}, tmp_path / "other.safetensors")
    for value, limit in enumerate((16, 1000, 32, 32, 16, 48, 1000)):
        tensors = {name: torch.full((4,), float(value)) for name in tensors}
        written = write_weights(tmp_path, tensors, shard_bytes=limit)
        assert names(tmp_path) == {path.name for path in written} | {"model-notes.txt", "other.safetensors"}
        assert same(read_all(tmp_path), tensors)


def test_another_file_name_has_shards_of_that_name(tmp_path: Path) -> None:
    write_weights(tmp_path, {"x": torch.ones(1)})
    written = write_weights(tmp_path, {n: torch.ones(1) for n in "ab"}, shard_bytes=4, file_name="ema.safetensors")
    assert [path.name for path in written][-1] == "ema.safetensors.index.json"
    assert set(read_all(written[-1])) == {"a", "b"}
    assert set(read_all(tmp_path)) == {"x"}


@pytest.mark.parametrize("broken", ["save_file", "os.fsync", "os.replace"])
@pytest.mark.parametrize("limit", [8, 1000])
def test_a_failing_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, limit: int
) -> None:
    old = {n: torch.ones(2) for n in "ab"}
    write_weights(tmp_path, old)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    calls = []

    def fail(*arguments: Any, **_: Any) -> None:
        calls.append(arguments)
        if broken == "save_file":
            Path(arguments[1]).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(saving if broken == "save_file" else os, broken.removeprefix("os."), fail)
    with pytest.raises(OSError, match="No space left"):
        write_weights(tmp_path, {n: torch.zeros(2) for n in "abc"}, shard_bytes=limit)
    monkeypatch.undo()
    assert calls
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert same(read_all(tmp_path), old)


def test_no_moment_mixes_two_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the folder after every rename and removal: the old save, the new one, or an error; never both."""
    replace, unlink = os.replace, Path.unlink
    seen: list[set[float] | None] = []

    def get_fact() -> None:
        try:
            seen.append({tensor[0].item() for tensor in read_all(tmp_path).values()})
        except WeightsError:
            seen.append(None)

    def replacing(source: Path, target: Path) -> None:
        replace(source, target)
        get_fact()

    def unlinking(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if path.parent == tmp_path:  # and not the folder where the new save is got ready
            get_fact()

    def write(value: float, limit: int) -> None:
        write_weights(tmp_path, {f"t{i}": torch.full((4,), value) for i in range(4)}, shard_bytes=limit)

    for before, after in [(16, 16), (16, 1000), (1000, 16), (16, 32), (32, 16), (1000, 1000)]:
        write(1.0, before)
        seen.clear()
        with monkeypatch.context() as watched:
            watched.setattr(os, "replace", replacing)
            watched.setattr(Path, "unlink", unlinking)
            write(2.0, after)
        same_names = before == after == 16  # the one case without a gentle way: for a moment there is no index
        assert all(values in ({1.0}, {2.0}) or (values is None and same_names) for values in seen)
        assert seen[-1] == {2.0}


def test_files_are_flushed_before_they_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def syncing(handle: int) -> None:
        fsync(handle)
        events.append("sync folder" if os.path.isdir(handle) else "sync file")

    def replacing(source: Path, target: Path) -> None:
        replace(source, target)
        events.append("rename")

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    write_weights(tmp_path, {n: torch.ones(1) for n in "ab"}, shard_bytes=4)
    assert events[:7] == ["sync file"] * 3 + ["rename"] * 3 + ["sync folder"]


def test_a_text_is_the_old_one_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.json"
    write_text(path, "old\n")
    assert (names(tmp_path), path.read_text(encoding="utf-8")) == ({"text.json"}, "old\n")

    def full_disk(*_: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="no space"):
            write_text(path, "new and long\n")
    assert path.read_text(encoding="utf-8") == "old\n"
    write_text(path, "öffnet\n")
    assert (names(tmp_path), path.read_text(encoding="utf-8")) == ({"text.json"}, "öffnet\n")


@pytest.mark.skipif(os.name != "posix", reason="asks for the permissions of POSIX files")
def test_others_may_read_a_file_as_they_may_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    for path in write_weights(tmp_path, {n: torch.ones(1) for n in "ab"}, shard_bytes=4):
        assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_is_made_where_there_is_none(tmp_path: Path) -> None:
    write_weights(tmp_path / "a" / "b", {"x": torch.ones(1)})
    assert names(tmp_path / "a" / "b") == {"model.safetensors"}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": torch.ones(1, dtype=torch.complex64)}, "'x'"),
        ({"x": torch.ones(2).to_sparse()}, "'x'"),
        ({"x": torch.ones(2, device="meta")}, "'x'"),
        ({"__metadata__": torch.ones(2)}, "'__metadata__'"),
    ],
)
def test_what_the_format_cannot_hold_is_not_written(tmp_path: Path, tensors: dict[str, Tensor], message: str) -> None:
    with pytest.raises(WeightsError) as caught:
        write_weights(tmp_path, {"good": torch.ones(1)} | tensors)
    assert all(text in str(caught.value) for text in ("model.safetensors", message, "Convert it"))
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["../x.safetensors", "a/b.safetensors", "model.bin", "", ".."])
def test_a_file_name_is_plain_and_says_safetensors(tmp_path: Path, name: str) -> None:
    with pytest.raises(WeightsError, match=r"plain name that ends in \.safetensors") as caught:
        write_weights(tmp_path, {}, file_name=name)
    assert repr(name) in str(caught.value)


def test_a_shard_holds_at_least_a_byte(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shard_bytes must be at least 1"):
        write_weights(tmp_path, {}, shard_bytes=0)


# -------------------------------------------------------------------------------------------------------------- finite


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_values_pass(dtype: torch.dtype) -> None:
    for tensor in (torch.ones(3, 2).to(dtype), torch.ones(()).to(dtype), torch.ones(0).to(dtype)):
        check_finite("x", tensor, Path("model.safetensors"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_values_that_are_not_finite_are_counted(dtype: torch.dtype) -> None:
    values = torch.tensor([[1.0, float("nan"), float("inf")], [float("-inf"), float("nan"), float("nan")]]).to(dtype)
    with pytest.raises(WeightsError) as caught:
        check_finite("deep.weight", values.T, Path("some/model.safetensors"))
    for text in ("model.safetensors", "'deep.weight'", "3 NaN and 2 infinite values among 6", "Download it again"):
        assert text in str(caught.value)


def test_every_part_of_a_large_tensor_is_looked_at() -> None:
    values = torch.zeros(2**22 * 2 + 5)
    values[[0, 2**22, -1]] = float("nan")
    with pytest.raises(WeightsError, match="3 NaN and 0 infinite"):
        check_finite("x", values, Path("model.safetensors"))
    with pytest.raises(WeightsError, match="1 NaN and 0 infinite"):
        check_finite("x", torch.tensor([float("nan")]).to(torch.float8_e4m3fn), Path("model.safetensors"))


def test_a_disk_that_is_full_while_tensors_are_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    """The library that writes them has an error of its own for it, which nobody would catch."""
    code = (
        "import resource, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from glassformer.weights.saving import write_weights\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "sys.dont_write_bytecode = True\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    write_weights(Path(sys.argv[1]), {'w': torch.zeros(1000)})\n"
        "except OSError as error:\n    print(error.errno, error.filename)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == str(errno.EFBIG)
    assert list(tmp_path.iterdir()) == []
