"""What of the recipes Hugging Face can have, told before the first step."""

from pathlib import Path

import pytest

import glassformer
from glassformer.training.build import Run, build_run
from glassformer.training.recipe_files import recipe_names
from glassformer.training.session import Session, export_note
from glassformer.weights.reader import ConfigError
from tests.training.small_sessions import HERE, TAUGHT, Listens, small, trained

FEW = ("run.steps=2", "evaluation.every=2", "optimizer.warmup=0")
REMEDIES = {
    "classify": "With objective.pool=null it can.",
    "deberta-v3-rtd": "Without its head it can: glassformer convert --head none.",
    "translate": "transformer2017 is not a kind of model that it has.",
    "toy": "transformer2017 is not a kind of model that it has.",
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    return trained(small("bert-mlm", folder, *FEW, "model.sizes.num_hidden_layers=2"), folder / "out").folder


def exported(run: Run, folder: Path) -> bool:
    try:
        glassformer.save(run.job.shown(run.model), folder, to="hf", lineage=run.lineage)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("name", recipe_names())
def test_a_run_says_whether_its_model_can_be_converted(name: str, teacher: Path, tmp_path: Path) -> None:
    words = f"tokenizer.load={teacher}"
    taught = {"distil": [f"model.teacher={teacher}", words], "finetune": [f"model.start={teacher}"]}
    run = build_run(small(name, tmp_path, *taught.get(name, ())), tmp_path, HERE)
    note = export_note(run)
    assert exported(run, tmp_path / "hf") == (note is None)
    assert note is None or note.endswith(REMEDIES[name])
    assert (note is None) == (name not in REMEDIES)
    assert set(taught) == set(TAUGHT)


def test_it_is_told_before_the_first_step_and_the_remedies_help(tmp_path: Path) -> None:
    watch = Listens()
    session = Session(small("classify", tmp_path, *FEW), tmp_path / "out", HERE, watch)
    told = export_note(session.run)
    session.train()
    assert watch.notes[0] == told
    assert export_note(build_run(small("classify", tmp_path, "objective.pool=null"), tmp_path, HERE)) is None
    folder = trained(small("deberta-v3-rtd", tmp_path, *FEW), tmp_path / "body").folder
    glassformer.save(glassformer.load(folder, head="none"), tmp_path / "hf", to="hf")
