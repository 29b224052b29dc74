"""Going on with a run: what is compared, when, and what may have moved."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from glassformer import hub
from glassformer.recipes.recipe import Recipe
from glassformer.training import build, build_model, session
from glassformer.training.checkpoint_folders import CheckpointError
from glassformer.training.logging.progress import Monitor
from glassformer.training.logging.sinks import read_log
from glassformer.training.session import Session
from glassformer.weights.fingerprint import fingerprint
from tests.training.small_sessions import (
    HERE,
    Listens,
    Stopped,
    StopsAt,
    assert_refused,
    content,
    losses,
    small,
    trained,
)
from tests.training.tiny_recipes import sentence

FEW = ("run.steps=4", "run.checkpoint_every=2", "evaluation.every=2", "optimizer.warmup=0")


def stopped(recipe: Recipe, out: Path) -> Path:
    with pytest.raises(Stopped):
        Session(recipe, out, HERE, StopsAt(3)).train()
    return out


@pytest.mark.parametrize("name", ["lm-bpe", "translate", "classify"])
def test_other_rows_are_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    recipe = small(name, tmp_path, *FEW)
    out = stopped(recipe, tmp_path / "out")
    before = content(out)
    path, row = {
        "lm-bpe": ("text.txt", "\na zebra is new."),
        "translate": ("a.en", "a zebra"),
        "classify": ("rows.jsonl", json.dumps({"text": "a zebra", "label": "animal"})),
    }[name]
    for file in {path, path.replace(".en", ".de")}:
        with (tmp_path / file).open("a") as grown:
            grown.write(f"{row}\n")
    with pytest.raises(CheckpointError, match="is of another run") as refused:
        trained(recipe, out, resume=True)
    was, now = {"lm-bpe": (24, 25), "translate": (22, 23), "classify": (29, 30)}[name]
    assert f"data.train ({tmp_path / path}" in str(refused.value)
    assert f"was '{was} rows" in str(refused.value)
    assert f"is '{now} rows" in str(refused.value)
    assert "model.start=" in str(refused.value)
    assert content(out) == before


def test_another_tokenizer_is_refused_before_tokens_are_written(tmp_path: Path) -> None:
    out = stopped(small("lm-bpe", tmp_path, *FEW), tmp_path / "out")
    other = Session(small("lm-bpe", tmp_path, *FEW, "tokenizer.size=310"), tmp_path / "other", HERE, Monitor())
    assert other.run.context.tokenizer.vocab_size == 310
    loads = small("lm-bpe", tmp_path, *FEW, f"tokenizer.load={tmp_path / 'other' / 'tokenizer'}")
    assert_refused(loads, out, r"tokenizer\.load: was False, is True", resume=True)
    shutil.copy(tmp_path / "other" / "tokenizer" / "tokenizer.json", out / "tokenizer")
    assert_refused(small("lm-bpe", tmp_path, *FEW), out, r"\n  tokenizer: was '.*', is '", resume=True)


def test_a_damaged_checkpoint_is_not_called_another_run(tmp_path: Path) -> None:
    recipe = small("lm-bytes", tmp_path, *FEW)
    state = stopped(recipe, tmp_path / "out") / "checkpoints" / "step-00000002" / "run" / "state.json"
    whole = state.read_text()
    for harmed in (whole.replace('"lr": 0.005', '"lr": 0.004'), whole[:-9]):
        state.write_text(harmed)
        with pytest.raises(CheckpointError, match=r"state\.json has"):
            trained(recipe, tmp_path / "out", resume=True)
    state.unlink()
    with pytest.raises(CheckpointError, match=r"state\.json is missing"):
        trained(recipe, tmp_path / "out", resume=True)


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("another")
    changes = ("model.sizes.num_hidden_layers=2", "run.seed=1")
    return trained(small("bert-mlm", folder, *FEW, *changes), folder / "out").folder


@pytest.mark.parametrize(
    ("now", "adapters"),
    [
        pytest.param("moved", (), id="moved"),
        pytest.param("gone", (), id="gone", marks=pytest.mark.slow),
        pytest.param("moved", ("model.adapters.rank=2",), id="moved, adapters", marks=pytest.mark.slow),
    ],
)
def test_the_model_that_a_run_began_from_may_move_or_go(
    teacher: Path, another: Path, now: str, adapters: tuple[str, ...], tmp_path: Path
) -> None:
    def begun(start: Path) -> Recipe:
        return small("finetune", tmp_path, *FEW, f"model.start={start}", *adapters)

    shutil.copytree(teacher, tmp_path / "start")
    trained(begun(tmp_path / "start"), tmp_path / "whole")
    out = stopped(begun(tmp_path / "start"), tmp_path / "out")
    with pytest.raises(CheckpointError, match=rf"model\.start \({another}\): was '"):
        trained(begun(another), out, resume=True)
    shutil.move(tmp_path / "start", tmp_path / "moved")
    watch = Listens()
    Session(begun(tmp_path / ("moved" if now == "moved" else "start")), out, HERE, watch, resume=True).train()
    assert any("start" in note and "checkpoint" in note for note in watch.notes) == (now == "gone")
    logs = [[{**line, "measured": 0} for line in read_log(item / "log.jsonl")] for item in (tmp_path / "whole", out)]
    assert logs[0] == logs[1]
    for file in ("model/model.safetensors", "model/glassformer.json", "model/tokenizer.json", "results.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (out / file).read_bytes(), file
    states = [
        json.loads((item / "checkpoints" / "step-00000004" / "run" / "state.json").read_text())["identity"]
        for item in (tmp_path / "whole", out)
    ]
    assert states[0] == states[1]  # so that it can go on a second time


def test_a_run_goes_on_in_its_precision_on_another_device(tmp_path: Path) -> None:
    recipe = small("toy", tmp_path, *FEW)
    begins = Listens()
    with pytest.MonkeyPatch.context() as on_gpu:
        for module in (build, session):
            on_gpu.setattr(module, "fast_precision", lambda _: "bfloat16")
        Session(recipe, tmp_path / "whole", HERE, begins).train()
        out = stopped(recipe, tmp_path / "out")
    assert "matrix products in bfloat16; run.precision=float32 is slower and more accurate" in begins.notes
    resumes = Listens()
    Session(recipe, out, HERE, resumes, resume=True).train()
    assert "matrix products in bfloat16, as before" in resumes.notes
    assert losses(out) == losses(tmp_path / "whole")
    stated = small("toy", tmp_path, *FEW, "run.precision=float32")
    assert_refused(stated, out, r"run\.precision: was 'bfloat16', is 'float32'", resume=True)


def test_a_checkpoint_that_stands_in_for_the_start_is_not_hashed(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(teacher, tmp_path / "start")
    recipe = small("finetune", tmp_path, *FEW, f"model.start={tmp_path / 'start'}")
    out = stopped(recipe, tmp_path / "out")
    hashed = []
    monkeypatch.setattr(build_model, "fingerprint", lambda *inputs: hashed.append(inputs) or fingerprint(*inputs))
    Session(recipe, out, HERE, Monitor(), resume=True)
    assert len(hashed) == 1
    shutil.rmtree(tmp_path / "start")
    Session(recipe, out, HERE, Monitor(), resume=True)
    assert len(hashed) == 1


def test_rows_with_other_labels_are_not_called_another_start(teacher: Path, another: Path, tmp_path: Path) -> None:
    """Another head would be called for, and the folder is the same."""

    def begun(start: Path, rows: str) -> Recipe:
        return small("finetune", tmp_path, *FEW, f"model.start={start}", f"data.train={tmp_path / rows}")

    def refused(start: Path, rows: str) -> list[str]:
        with pytest.raises(CheckpointError, match="is of another run") as error:
            trained(begun(start, rows), out, resume=True)
        return re.findall(r"^  ([a-z.]+)", str(error.value), re.MULTILINE)

    recipe = begun(teacher, "rows.jsonl")  # which writes them
    rows = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "others.jsonl").write_text(rows.replace("animal", "beast"))
    out = stopped(recipe, tmp_path / "out")
    assert refused(teacher, "others.jsonl") == ["data.train", "data.valid"]
    assert refused(another, "rows.jsonl") == ["model.start"]
    loaded = hub.load(teacher)
    with torch.no_grad():
        loaded.model.get_parameter("head.lm.bias")[3] += 1e-3  # which the new head has nothing of
    hub.save(loaded, tmp_path / "nearly")
    assert refused(tmp_path / "nearly", "rows.jsonl") == ["model.start"]


@pytest.mark.parametrize("labels", ["the same", "others"])
def test_a_model_with_labels_is_the_same_start_for_any_rows(labels: str, tmp_path: Path) -> None:
    """Whether its head goes on depends on the rows; what it is does not."""
    first = trained(small("classify", tmp_path, *FEW), tmp_path / "first").folder
    recipe = small("finetune", tmp_path, *FEW, f"model.start={first}")
    file = tmp_path / "rows.jsonl"
    rows = file.read_text()
    file.write_text(rows if labels == "the same" else rows.replace("animal", "beast"))
    out = stopped(recipe, tmp_path / "out")
    file.write_text(rows.replace("animal", "plant"))
    with pytest.raises(CheckpointError, match=r"data\.train \(") as refused:
        trained(recipe, out, resume=True)
    assert "model.start:" not in str(refused.value)
    assert "model.start (" not in str(refused.value)


def test_a_damaged_checkpoint_is_called_so_where_it_has_to_serve_as_the_start(teacher: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "start")
    recipe = small("finetune", tmp_path, *FEW, f"model.start={tmp_path / 'start'}")
    out = stopped(recipe, tmp_path / "out")
    shutil.rmtree(tmp_path / "start")
    weights = out / "checkpoints" / "step-00000002" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"model\.safetensors has"):
        trained(recipe, out, resume=True)


def test_a_start_by_its_name_in_a_cache_is_there(
    teacher: Path, another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"me/one": teacher, "me/two": another}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(names[name]))

    def begun(name: str) -> Recipe:
        return small("finetune", tmp_path, *FEW, f"model.start={name}")

    out = stopped(begun("me/one"), tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"model\.start \(me/two\): was '"):
        trained(begun("me/two"), out, resume=True)
    watch = Listens()
    Session(begun("me/one"), out, HERE, watch, resume=True).train()
    assert not any("is not there" in note for note in watch.notes)


def test_a_teacher_and_its_tokenizer_may_move(teacher: Path, another: Path, tmp_path: Path) -> None:
    def taught(by: Path, words: Path) -> Recipe:
        return small("distil", tmp_path, *FEW, f"model.teacher={by}", f"tokenizer.load={words}")

    out = stopped(taught(teacher, teacher), tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"\n  teacher \(.*another.*\): was '"):
        trained(taught(another, teacher), out, resume=True)
    shutil.copytree(teacher, tmp_path / "moved")
    assert trained(taught(tmp_path / "moved", tmp_path / "gone"), out, resume=True).step == 4


def test_left_out_rows_are_told_in_the_end_and_when_a_run_goes_on(tmp_path: Path) -> None:
    recipe = small("classify", tmp_path, *FEW, "data.on_bad_row=skip")
    path = tmp_path / "rows.jsonl"
    path.write_text(path.read_text() + "{broken\n" + json.dumps({"text": sentence(99)}) + "\n")
    stopped(recipe, tmp_path / "out")
    watch = Listens()
    Session(recipe, tmp_path / "out", HERE, watch, resume=True).train()
    notes = json.loads((tmp_path / "out" / "results.json").read_text())["notes"]
    assert [note for note in notes if note.startswith("train: 32 rows; left out 2: 1 × invalid JSON, 1 × ")]
    assert not [note for note in notes if "\n" in note]
    assert watch.notes[-len(notes) :] == notes
    assert "rows.jsonl:33" in "\n".join(watch.notes[: -len(notes)])  # word for word when the run goes on
