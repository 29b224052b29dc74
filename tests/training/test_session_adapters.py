"""Runs that train adapters: small checkpoints, which need the model that the run started from."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer.recipes.recipe import Recipe
from glassformer.training import build
from glassformer.training.adapters import adapter_state, load_adapters, merge, merged, merged_with
from glassformer.training.checkpoint_folders import CheckpointError, Checkpoints, check
from glassformer.training.logging.progress import Monitor
from glassformer.training.session import Session
from glassformer.weights.files import open_weights
from tests.training.small_sessions import HERE, Stopped, StopsAt, assert_refused, content, small, trained

FEW = ("run.steps=6", "run.checkpoint_every=2", "evaluation.every=2", "optimizer.warmup=0")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    return trained(small("classify", folder, *FEW, "model.sizes.num_hidden_layers=2"), folder / "out").folder


def adapting(start: Path, folder: Path, *changes: str) -> Recipe:
    return small("finetune", folder, *FEW, f"model.start={start}", "model.adapters.rank=2", *changes)


def weights_in(file: Path) -> set[str]:
    with open_weights(file) as stored:
        return set(stored.entries)


@pytest.mark.parametrize("average", [(), ("run.average=0.9",)], ids=["plain", "averaged"])
def test_checkpoints_hold_what_learns_alone_and_the_model_has_all(
    start: Path, tmp_path: Path, average: tuple[str, ...]
) -> None:
    session = Session(adapting(start, tmp_path, *average), tmp_path / "out", HERE, Monitor())
    outcome = session.train()
    learns = set(adapter_state(session.run.model))
    last = Checkpoints(tmp_path / "out" / "checkpoints").latest()
    assert last is not None
    named = {file.name: weights_in(file) for file in last.rglob("*.safetensors")}
    assert named["model.safetensors"] == named["adapters.safetensors"] == learns
    assert {name.partition("/")[0] for name in named["optimizer0.safetensors"]} == learns
    assert json.loads((last / "run" / "state.json").read_text())["base"] == session.run.base
    best = Checkpoints(tmp_path / "out" / "checkpoints").best()
    assert best is not None
    base = glassformer.load(start).model
    load_adapters(base, best)  # refused on any other base
    merge(base)
    kept = glassformer.load(outcome.folder).model.state_dict()
    assert all(torch.equal(kept[name], item) for name, item in base.state_dict().items())


def test_the_model_is_the_mean_of_the_last_ones_with_their_adapters_merged(start: Path, tmp_path: Path) -> None:
    session = Session(adapting(start, tmp_path, "evaluation.last=3"), tmp_path / "out", HERE, Monitor())
    kept = glassformer.load(session.train().folder).model.state_dict()
    every = [merged_with(session.run.model, [item]).state_dict() for item in session.checkpoints.all()[-3:]]
    newest = merged(session.run.model).state_dict()
    for name, tensor in kept.items():
        expected = torch.stack([item[name].double() for item in every]).mean(0).to(tensor.dtype)
        assert torch.equal(tensor, expected), name
        assert torch.equal(newest[name], every[-1][name]), name
    assert any(not torch.equal(kept[name], newest[name]) for name in kept)


@pytest.mark.parametrize("more", [(), ("run.average=0.9", "evaluation.last=2")], ids=["plain", "averaged"])
def test_a_run_of_adapters_goes_on_to_the_bit(start: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    recipe = adapting(start, tmp_path, *more, "model.adapters.dropout=0.1")
    trained(recipe, tmp_path / "whole")
    with pytest.raises(Stopped):
        Session(recipe, tmp_path / "parts", HERE, StopsAt(3)).train()
    trained(recipe, tmp_path / "parts", resume=True)
    both = [Checkpoints(tmp_path / name / "checkpoints").all() for name in ("whole", "parts")]
    for item, other in zip(*both, strict=True):
        files = [check(path)["files"] for path in (item, other)]
        for some in files:
            del some["run/random.safetensors"]  # the type checker of the tests draws from Python's generator
        assert files[0] == files[1]
    for file in ("model/model.safetensors", "results.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes(), file


def test_a_run_of_adapters_needs_its_start(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(start, tmp_path / "start")
    recipe = adapting(tmp_path / "start", tmp_path)
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        Session(recipe, out, HERE, StopsAt(3)).train()
    with monkeypatch.context() as patch:
        patch.setattr(build, "fingerprint", lambda *_: "others")
        assert_refused(recipe, out, "holds adapters for frozen weights with the SHA-256 .* have others", resume=True)
    loaded = glassformer.load(start)
    with torch.no_grad():
        next(loaded.model.parameters()).view(-1)[0] += 1
    glassformer.save(loaded, tmp_path / "start")
    before = content(out)
    with pytest.raises(CheckpointError, match=rf"model\.start \({tmp_path / 'start'}\): was '") as refused:
        trained(recipe, out, resume=True)
    assert "start from these" not in str(refused.value)  # a checkpoint of adapters is no model
    shutil.rmtree(tmp_path / "start")
    assert_refused(recipe, out, r"start does not exist, .* holds only adapters.*model\.start=FOLDER", resume=True)
    assert content(out) == before
    trained(adapting(start, tmp_path), out, resume=True)  # it may lie elsewhere
