"""A model is evaluated later as it was evaluated after its training, whatever it was trained for."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.config import TaskHead
from glassformer.hub import JOB, Loaded
from glassformer.models.transformer import Transformer
from glassformer.recipes.files import recipe_names, recipe_of
from glassformer.recipes.recipe import Recipe
from glassformer.training.evaluation import check_changes, evaluate_model, evaluation_recipe, files_of, format_of
from glassformer.training.session import Outcome
from tests.helpers import some_at_once
from tests.training import small_sessions
from tests.training.tiny_recipes import sentence, tiny, write_tasks, write_text

FEW = ("run.steps=2", "optimizer.warmup=0", "evaluation.samples=0", "data.held_out=0")
WRITING = ("translate", "m2m", "summarise", "t5-tasks", "toy")
KEPT_IN_PART = ("electra", "deberta-v3-rtd")  # what they keep has no loss of its own


def trained(name: str, folder: Path, *changes: str) -> Outcome:
    return small_sessions.trained(small_sessions.small(name, folder, *FEW, *changes), folder / "out")


def evaluated(folder: Path, *files: str, format_: str | None = None, changes: tuple[str, ...] = ()) -> dict[str, float]:
    return evaluated_with_notes(folder, *files, format_=format_, changes=changes)[0]


def evaluated_with_notes(
    folder: Path, *files: str, format_: str | None = None, changes: tuple[str, ...] = ()
) -> tuple[dict[str, float], list[str]]:
    """As the program does it."""
    loaded = glassformer.load(folder)
    kind = format_of(loaded, files) if format_ is None else format_
    return evaluate_model(
        loaded, recipe_of("evaluation", evaluation_recipe(loaded, kind, files_of(kind, files)), changes)
    )


def as_test(changes: list[str]) -> tuple[list[str], list[str]]:
    """The files to train on as files to evaluate on: what a recipe says, and the files."""
    message = [item.replace("data.train", "data.test") for item in changes if item.startswith("data.train")]
    return message, [item.partition("=")[2] for item in message]


EVALUATED = [name for name in recipe_names() if name not in (*KEPT_IN_PART, "distil")]


@pytest.mark.parametrize(
    "name", some_at_once(EVALUATED, {"lm-bytes", "bert-mlm", "translate", "tag", "answer"}.__contains__)
)
def test_a_model_of_each_recipe_is_judged_as_after_training(name: str, teacher: Path, tmp_path: Path) -> None:
    more = ["run.seed=3"]
    more += ["objective.max_new_tokens=4", "evaluation.beam=2"] if name in WRITING else []
    more += ["data.documents=file"] if name == "lm-bytes" else []
    more += [f"model.start={teacher}"] if name in ("finetune", "ner-en") else []
    rows = write_tasks(tmp_path) if name == "toy" else tiny(name, tmp_path, None)
    message, files = as_test(rows)
    outcome = trained(name, tmp_path, *(rows if name == "toy" else ()), *message, *more, "data.held_out=0")
    kept = json.loads((tmp_path / "out" / "results.json").read_text())["test"]
    assert "loss" in kept
    assert evaluated(outcome.folder, *files) == pytest.approx(kept, abs=1e-6, rel=1e-6)


def test_a_student_is_evaluated_by_the_words_that_it_predicts(teacher: Path, tmp_path: Path) -> None:
    message, files = as_test(write_text(tmp_path))
    taught = (f"model.teacher={teacher}", f"tokenizer.load={teacher}", "objective.masking.share=0.3", "run.seed=3")
    outcome = trained("distil", tmp_path, *message, *taught, "objective.cosine=0", "objective.soft=1e-30")
    result = evaluated(outcome.folder, *files)
    assert result["accuracy"] == pytest.approx(outcome.results["test"]["accuracy"])
    assert result["loss"] == pytest.approx(outcome.results["test"]["loss"] / 2.0, rel=1e-5)  # objective.hard


@pytest.mark.parametrize("name", KEPT_IN_PART)
def test_what_cannot_be_evaluated_alone_says_what_it_is_for(name: str, tmp_path: Path) -> None:
    outcome = trained(name, tmp_path)
    with pytest.raises(ValueError, match=r"cannot be evaluated on its own.*train finetune model\.start=\S+model data"):
        evaluated(outcome.folder, str(tmp_path / "text.txt"))


def labelled(folder: Path, name: str, rows: int, words: int = 6) -> Path:
    """Texts with labels, in columns between semicolons, with quotes that mean nothing."""
    draw, path = random.Random(name), folder / name
    texts = [" ".join([sentence(n), '"so', *draw.choices("abcdef", k=words)]) for n in range(rows)]
    path.write_text("".join(["text;what\n", *(f"{text};{draw.choice(('x', 'y'))}\n" for text in texts)]))
    return path


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """One whose rows are read in a way of their own, and the rows it was evaluated on."""
    folder = tmp_path_factory.mktemp("classifier")
    train, test = labelled(folder, "train.txt", 24), labelled(folder, "test.txt", 12)
    read = ("data.format=csv", "data.separator=;", "data.quoted=false", "data.columns={text: text, label: what}")
    files = (f"data.train={train}", f"data.test={test}")
    return trained("classify", folder, *read, *files, "objective.pool=mean", "batch.length=24"), test


def test_rows_are_read_as_they_were(classifier: tuple[Outcome, Path], tmp_path: Path) -> None:
    outcome, test = classifier
    assert evaluated(outcome.folder, str(test)) == pytest.approx(outcome.results["test"], rel=1e-6)
    rows = [line.split(";") for line in test.read_text().splitlines()]
    other = tmp_path / "test.jsonl"  # which knows nothing of separators, and calls its fields by their usual names
    other.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows[1:]))
    assert evaluated(outcome.folder, str(other)) == pytest.approx(outcome.results["test"], rel=1e-6)
    changed = tmp_path / "test.csv"
    changed.write_text("text,what\n" + "".join(f"{text},{label}\n" for text, label in rows[1:]))
    with pytest.raises(ValueError, match="what"):
        evaluated(outcome.folder, str(changed))
    assert evaluated(outcome.folder, str(changed), changes=("data.separator=,",)) == pytest.approx(
        outcome.results["test"], rel=1e-6
    )


def test_rows_that_were_cut_are_told(classifier: tuple[Outcome, Path]) -> None:
    outcome, test = classifier
    assert evaluated_with_notes(outcome.folder, str(test), changes=("batch.length=64",))[1] == []
    result, notes = evaluated_with_notes(outcome.folder, str(test), changes=("batch.length=12",))
    assert notes == ["12 of 12 rows were cut to 12 tokens"]
    assert result["loss"] != pytest.approx(outcome.results["test"]["loss"])


def test_a_folder_that_says_less_is_judged_by_what_is_usual(classifier: tuple[Outcome, Path], tmp_path: Path) -> None:
    outcome, _ = classifier
    glassformer.save(glassformer.load(outcome.folder), tmp_path / "bare")
    glassformer.save(glassformer.load(outcome.folder), tmp_path / "old")
    message = json.loads((outcome.folder / JOB).read_text())
    assert json.loads((tmp_path / "bare" / JOB).read_text()) == message  # goes along with the model
    (tmp_path / "bare" / JOB).unlink()
    (tmp_path / "old" / JOB).write_text(json.dumps({name: message[name] for name in ("job", "objective")}))
    pages = [page(tmp_path / name) for name in ("bare", "old")]
    assert [item.batch.length for item in pages] == [128, 128]
    assert [item.batch.examples for item in pages] == [16, 16]
    assert [item.data.columns for item in pages] == [{}, {}]
    assert [item.objective.get("pool") for item in pages] == [None, "mean"]


def page(folder: Path, format_: str = "csv") -> Recipe:
    return recipe_of("evaluation", evaluation_recipe(glassformer.load(folder), format_, "rows.csv"))


def noted(tmp_path: Path, loaded: Loaded, job: str, **data: Any) -> Loaded:
    """The same model beside a note."""
    (tmp_path / JOB).write_text(json.dumps({"job": job, "objective": {}, "data": data}))
    return Loaded(loaded.model, loaded.config, loaded.lineage, loaded.report, tmp_path)


def test_the_format_is_that_of_the_name_or_the_one_learned_from(teacher: Path, tmp_path: Path) -> None:
    loaded = glassformer.load(teacher)
    tags = noted(tmp_path, loaded, "tag", format="conll")
    assert format_of(tags, ["a.txt", "b.txt.gz"]) == "conll"  # which is no plain text
    assert format_of(tags, ["rows"]) == "conll"
    assert format_of(tags, ["a.jsonl.gz"]) == "jsonl"
    pairs = noted(tmp_path, loaded, "text-to-text", format="parallel")
    assert format_of(pairs, ["a.en", "a.de"]) == "parallel"
    assert format_of(pairs, ["a.txt", "b.txt"]) == "parallel"
    with pytest.raises(ValueError, match="this model was trained on pairs of aligned files"):
        format_of(pairs, ["a.en"])
    rows = noted(tmp_path, loaded, "text-to-text", format="jsonl")
    with pytest.raises(ValueError, match=r"a\.en, a\.de cannot be inferred .* --format to one of .*parallel, dataset"):
        format_of(rows, ["a.en", "a.de"])  # which are no JSON
    plain = noted(tmp_path, loaded, "masked", format="jsonl")
    assert format_of(plain, ["a.txt"]) == "text"
    assert format_of(plain, ["rows"]) == "jsonl"
    with pytest.raises(ValueError, match="the format of no files"):
        format_of(tags, [])
    for nothing in ({}, {"format": "documentation"}):
        with pytest.raises(ValueError, match=r"format of rows cannot be inferred from the file names\. Set --format"):
            format_of(noted(tmp_path, loaded, "masked", **nothing), ["rows"])


def test_languages_are_known_whatever_the_format(teacher: Path, tmp_path: Path) -> None:
    read = {"format": "parallel", "languages": ["en", "de"], "separator": "#"}
    loaded = noted(tmp_path, glassformer.load(teacher), "masked-translation", **read)
    result = evaluation_recipe(loaded, "jsonl", "rows.jsonl")["data"]
    assert result == {"format": "jsonl", "test": "rows.jsonl", "languages": ["en", "de"]}


def test_a_note_that_is_none_or_does_not_fit_is_told(teacher: Path, tmp_path: Path) -> None:
    loaded = noted(tmp_path, glassformer.load(teacher), "classify")
    with pytest.raises(
        ValueError, match="the job classify is for models with the head classify, and this model has pretraining"
    ):
        evaluate_model(loaded, recipe_of("evaluation", evaluation_recipe(loaded, "jsonl", "rows.jsonl")))


@pytest.mark.parametrize(
    "message",
    [
        "{",
        "[1]",
        '{"nightly": 1}',
        '{"job": "languages", "objective": {}}',
        '{"job": "distillation", "objective": {}}',
        '{"job": "masked", "objective": 7}',
        '{"job": "masked", "objective": {"nightly": 1}}',
        '{"job": "masked", "objective": {}, "data": 7}',
        '{"job": "masked", "objective": {}, "data": {"format": "csv", "header": 7}}',
        '{"job": "masked", "objective": {}, "batch": 7}',
        '{"job": "masked", "objective": {}, "evaluation": {"beam": 0}}',
    ],
)
def test_a_damaged_note_is_told(message: str, teacher: Path, tmp_path: Path) -> None:
    loaded = noted(tmp_path, glassformer.load(teacher), "masked")
    (tmp_path / JOB).write_text(message)
    with pytest.raises(ValueError, match=f"{tmp_path / JOB} is damaged; remove it"):
        evaluation_recipe(loaded, "jsonl", "rows.jsonl")
    with pytest.raises(ValueError, match=f"{tmp_path / JOB} is damaged; remove it"):
        format_of(loaded, ["rows.jsonl"])


@pytest.mark.parametrize(
    ("key", "reported"),
    [
        ("run.device", "run.device changes nothing here; use --device"),
        ("run.precision", "run.precision changes nothing here; use --dtype"),
        ("run.threads", "run.threads changes nothing here; use --threads"),
        ("model.start", "model.start changes nothing here; use MODEL"),
        ("data.test.source", "data.test changes nothing here; use FILE"),
        ("evaluation.rows", "evaluation.rows changes nothing here; use data.limit"),
        ("model.teacher", "model.teacher changes nothing here; use job=distillation besides"),
        ("evaluation.batches", "must be one of .*evaluation.beam.*; got 'evaluation.batches'"),
        ("data.train", "must be one of batch.examples.*; got 'data.train'"),
        ("data.limits", "Did you mean 'data.limit'"),
        ("batch", "got 'batch'"),
        ("job.name", "got 'job.name'"),
    ],
)
def test_a_change_that_nothing_goes_by_is_refused(key: str, reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        check_changes({"data.limit": "3", key: "7"})


def test_a_change_that_something_goes_by_is_taken() -> None:
    some = ("job", "objective", "objective.masking.share", "data.columns", "data.columns.label", "data.on_bad_row")
    check_changes(dict.fromkeys((*some, "batch.tokens", "run.seed", "evaluation.beam", "data.split"), "7"))


def test_a_student_can_be_judged_beside_its_teacher(teacher: Path, tmp_path: Path) -> None:
    message, files = as_test(write_text(tmp_path))
    taught = (f"model.teacher={teacher}", f"tokenizer.load={teacher}", "run.seed=3")
    outcome = trained("distil", tmp_path, *message, *taught, "batch.examples=8", "batch.length=32")
    reported = ("job=distillation", f"model.teacher={teacher}", "run.seed=3", "batch.examples=8", "batch.length=32")
    check_changes(dict(item.split("=", 1) for item in reported))
    loaded = glassformer.load(outcome.folder)
    recipe = recipe_of("evaluation", evaluation_recipe(loaded, "text", files[0], job="distillation"), reported)
    assert evaluate_model(loaded, recipe)[0] == pytest.approx(outcome.results["test"], rel=1e-6)


def test_another_job_has_other_options(classifier: tuple[Outcome, Path]) -> None:
    loaded = glassformer.load(classifier[0].folder)
    assert evaluation_recipe(loaded, "jsonl", "rows.jsonl")["objective"]
    assert evaluation_recipe(loaded, "jsonl", "rows.jsonl", job="classify")["objective"]
    assert evaluation_recipe(loaded, "jsonl", "rows.jsonl", job="tag")["objective"] == {}


def test_a_single_score_is_a_number(classifier: tuple[Outcome, Path], tmp_path: Path) -> None:
    facts = glassformer.load(classifier[0].folder).config
    assert isinstance(facts.head, TaskHead)
    glassformer.save(Transformer(replace(facts, head=replace(facts.head, labels=("number",)))), tmp_path / "number")
    assert evaluation_recipe(glassformer.load(tmp_path / "number"), "jsonl", "rows.jsonl")["objective"] == {
        "kind": "number"
    }
