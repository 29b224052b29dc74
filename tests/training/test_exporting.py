"""What of the recipes Hugging Face can have, told before the first step."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import transformers

import glassformer
from glassformer.recipes.files import read_recipe, recipe_names
from glassformer.recipes.recipe import Recipe
from glassformer.training.build import Run, build_run
from glassformer.training.loop import StepReport
from glassformer.training.session import Session, export_note
from glassformer.weights.reader import ConfigError
from tests.training.small_sessions import HERE, TAUGHT, Listens, Stopped, small, trained
from tests.training.tiny_recipes import tiny

FEW = ("run.steps=2", "evaluation.every=2", "optimizer.warmup=0")
CANNOT = "glassformer convert cannot write this model for Hugging Face: "
REASONS = {  # of the recipes whose models Hugging Face cannot have; the others' it can
    "deberta-v3-rtd": "Without its head it can: glassformer convert --head none.",
    "stories": "a config.json for llama cannot express these config values: embed.dropout, decoder.dropout.",
    "translate": "Hugging Face has no model of the type transformer2017.",
    "toy": "Hugging Face has no model of the type transformer2017.",
}


class ListensToTheStart(Listens):
    """Remembers what is told before the first step, after which it stops the run."""

    def step(self, report: StepReport, epoch: int | None) -> NoReturn:
        del report, epoch
        raise Stopped


def with_its_own_model(name: str, folder: Path, *changes: str) -> Recipe:
    """A recipe made tiny except for its model: what it says of that decides whether Hugging Face can have it."""
    kind = None if name in (*TAUGHT, "toy") else read_recipe(name).tokenizer.kind
    few = [change for change in tiny(name, folder, kind) if not change.startswith("model.")]
    return read_recipe(name, [*few, *changes])


@pytest.fixture(scope="module")
def own_teacher(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """As wide as the student of ``distil``, and deeper."""

    def make(folder: Path) -> None:
        trained(with_its_own_model("bert-mlm", folder, *FEW), folder / "out")

    return made_once("teacher-of-its-own-size", make) / "out" / "model"


def exported(run: Run, folder: Path) -> bool:
    try:
        glassformer.save(run.job.saved_model(run.model), folder, to="hf", lineage=run.lineage)
    except ConfigError:
        return False
    return True


def told_at_the_start(recipe: Recipe, folder: Path) -> tuple[Run, list[str]]:
    """A run of one step, and what it told before that step about Hugging Face."""
    watch = ListensToTheStart()
    session = Session(recipe, folder, HERE, watch)
    with pytest.raises(Stopped):
        session.train()
    return session.run, [note for note in watch.notes if "Hugging Face" in note]


@pytest.mark.parametrize("name", recipe_names())
def test_a_run_says_before_its_first_step_that_its_model_cannot_be_converted(
    name: str, own_teacher: Path, tmp_path: Path
) -> None:
    taught: dict[str, tuple[str, ...]] = {
        "distil": (f"model.teacher={own_teacher}", f"tokenizer.load={own_teacher}"),
        "finetune": (f"model.start={own_teacher}",),
        "ner-en": (f"model.start={own_teacher}",),
    }
    assert set(taught) == set(TAUGHT)
    recipe = with_its_own_model(name, tmp_path, *taught.get(name, ()), "evaluation.untrained=false")
    run, told = told_at_the_start(recipe, tmp_path / "out")
    assert exported(run, tmp_path / "hf") == (name not in REASONS)
    assert len(told) == (name in REASONS)
    assert all(note.startswith(CANNOT) and note.endswith(REASONS[name]) for note in told)


def test_remedies_help(tmp_path: Path) -> None:
    recipe = small("classify", tmp_path, *FEW, "objective.pool=mean")
    run, told = told_at_the_start(recipe, tmp_path / "mean")
    assert not exported(run, tmp_path / "mean-hf")
    assert [note.removeprefix(CANNOT) for note in told] == [
        "a config.json for bert cannot express these config values: head.pool. With objective.pool=null it can."
    ]
    for name, change in (("classify", "objective.pool=null"), ("stories", "model.facts={}")):
        assert export_note(build_run(with_its_own_model(name, tmp_path, change), tmp_path, HERE)) is None
    folder = trained(small("deberta-v3-rtd", tmp_path, *FEW), tmp_path / "body").folder
    glassformer.save(glassformer.load(folder, head="none"), tmp_path / "hf", to="hf")


@pytest.mark.parametrize(("name", "changes"), [("classify", ["objective.pool=mean"]), ("electra", [])])
def test_a_remedy_that_does_not_suffice_is_not_told(name: str, changes: list[str], tmp_path: Path) -> None:
    recipe = with_its_own_model(name, tmp_path, *changes, "model.facts.norm.kind=rms")
    note = export_note(build_run(recipe, tmp_path, HERE))
    assert note is not None
    assert "norm.kind" in note
    assert " it can" not in note


def test_the_classifier_of_the_recipe_gives_the_same_logits_in_transformers(tmp_path: Path) -> None:
    outcome = trained(with_its_own_model("classify", tmp_path, "run.steps=6"), tmp_path / "out")
    ours = glassformer.load(outcome.folder, dtype="float64")
    glassformer.save(glassformer.load(outcome.folder), tmp_path / "hf", to="hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf", dtype=torch.float64)
    texts = ["the cat eats the fish", "the owl", "the dog sees the rain. the hen wants the corn"]
    with torch.no_grad():
        logits = theirs.eval()(**tokenizer(texts, padding=True, return_tensors="pt")).logits  # (B, C)
    for text, expected, found in zip(texts, logits.tolist(), ours.classify(texts), strict=True):
        scores = {label.name: label.score for label in found.labels}
        names = [theirs.config.id2label[number] for number in range(len(expected))]
        assert sorted(scores) == names == ["animal", "other"], text
        assert [scores[name] for name in names] == pytest.approx(expected, abs=1e-9), text
    assert logits.std(0).min() > 1e-3  # the texts can be told apart
