"""Recipes from the first row to the model in its folder."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer.config import Rotary
from glassformer.objectives.causal_lm import ControlledJob
from glassformer.recipes.files import read_recipe, recipe_names
from glassformer.training import build
from glassformer.training.checkpoint_folders import CheckpointError
from glassformer.training.logging.progress import Monitor
from glassformer.training.logging.sinks import RunLog, read_log
from glassformer.training.session import Session, StoppedError
from tests.helpers import some_at_once
from tests.training.small_sessions import HERE, TAUGHT, Stopped, StopsAt, losses, small, trained
from tests.training.tiny_recipes import write_text

AT_ONCE = ("lm-bytes", "bert-mlm", "translate", "tag")
LEARNED = [name for name in recipe_names() if name not in TAUGHT]
assert set(AT_ONCE) <= set(LEARNED)


@pytest.mark.parametrize("name", some_at_once(LEARNED, AT_ONCE.__contains__))
def test_each_recipe_learns(name: str, tmp_path: Path) -> None:
    outcome = trained(small(name, tmp_path, "evaluation.samples=1"), tmp_path / "out")
    result = losses(tmp_path / "out")
    assert sum(result[-5:]) < 0.75 * sum(result[:5]), result
    loaded = glassformer.load(outcome.folder)  # with its tokenizer
    assert loaded.tokenizer.vocab_size <= loaded.config.vocab
    assert (tmp_path / "out" / "loss.svg").is_file()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {part: metrics for part, metrics in results.items() if part != "notes"} == outcome.results
    assert ("notes" in results) == (name in ("translate", "m2m", "en-zh"))  # BLEU has a signature
    assert name == "toy" or results["valid"]


def test_a_student_learns_from_a_teacher(teacher: Path, tmp_path: Path) -> None:
    changes = (f"model.teacher={teacher}", f"tokenizer.load={teacher}")
    trained(small("distil", tmp_path, *changes), tmp_path / "out")
    result = losses(tmp_path / "out")
    assert sum(result[-5:]) < 0.85 * sum(result[:5])  # it starts with half of what the teacher knows


@pytest.mark.parametrize("adapters", [False, True])
def test_a_trained_model_is_taught_something_new(teacher: Path, tmp_path: Path, adapters: bool) -> None:
    changes = [f"model.start={teacher}", *(["model.adapters.rank=4"] if adapters else [])]
    outcome = trained(small("finetune", tmp_path, *changes), tmp_path / "out")
    result = losses(tmp_path / "out")
    assert sum(result[-5:]) < 0.75 * sum(result[:5])
    before, after = (glassformer.load(folder).model.state_dict() for folder in (teacher, outcome.folder))
    changed = {name for name in before if name in after and not torch.equal(before[name], after[name])}
    inside = {name for name in changed if ".blocks." in name}
    assert all(".attention.q." in name or ".attention.v." in name for name in inside) == adapters
    assert not adapters or changed - inside == set()  # all else stays, but for the new head


RUN = ("run.steps=12", "run.checkpoint_every=4", "evaluation.every=6", "batch.micro_batches=2", "run.average=0.9")


def without_times(out: Path) -> list[dict[str, object]]:
    return [{key: value for key, value in line.items() if key != "measured"} for line in read_log(out / "log.jsonl")]


@pytest.mark.parametrize(
    ("name", "stop"),
    some_at_once([("lm-bytes", 1), ("translate", 5), ("electra", 7), ("classify", 11)], lambda case: case[1] > 5),
)
def test_a_run_goes_on_as_if_it_had_never_stopped(name: str, stop: int, tmp_path: Path) -> None:
    recipe = small(name, tmp_path, *RUN)
    trained(recipe, tmp_path / "whole")
    with pytest.raises(Stopped):
        Session(recipe, tmp_path / "parts", HERE, StopsAt(stop)).train()
    trained(recipe, tmp_path / "parts", resume=True)
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "parts")
    for file in ("model/model.safetensors", "results.json", "checkpoints/step-00000012/run/optimizer0.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes(), file


def test_a_run_that_is_killed_after_a_checkpoint_has_logged_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small("lm-bytes", tmp_path, *RUN, "evaluation.samples=1")
    trained(recipe, tmp_path / "whole")
    write = Session._checkpoint

    def killed(session: Session, log: RunLog | None, step: int, is_best: bool) -> None:
        write(session, log, step, is_best)
        if step == recipe.run.steps:
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_checkpoint", killed)
        with pytest.raises(Stopped):
            trained(recipe, tmp_path / "parts")
    trained(recipe, tmp_path / "parts", resume=True)
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "parts")


def test_a_signal_after_the_checkpoint_of_a_step_stops_after_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Session._checkpoint

    def interrupt(session: Session, log: RunLog | None, step: int, is_best: bool) -> None:
        write(session, log, step, is_best)
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Session, "_checkpoint", interrupt)
    with pytest.raises(StoppedError) as stopped:
        trained(small("lm-bytes", tmp_path, "run.steps=9", "evaluation.every=2"), tmp_path / "out")
    assert stopped.value.step == 3
    assert (tmp_path / "out" / "checkpoints" / "step-00000003").is_dir()


def test_a_recipe_changes_any_fact_of_a_new_model(tmp_path: Path) -> None:
    facts = ("norm.kind=rms", "embed.position=null", "decoder.attention.rotary={dim: 4, length: 64}")
    outcome = trained(small("lm-bytes", tmp_path, *(f"model.facts.{fact}" for fact in facts)), tmp_path / "out")
    config = glassformer.load(outcome.folder).config
    assert (config.norm.kind, config.embed.position) == ("rms", None)
    assert config.decoder is not None
    assert config.decoder.attention.rotary == Rotary(dim=4, length=64)
    result = losses(tmp_path / "out")
    assert sum(result[-5:]) < 0.75 * sum(result[:5])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("decoder.placements=post", r"model\.facts\.decoder .*Did you mean 'placement'"),
        ("decoder.placement=past", r"model\.facts\.decoder\.placement must be one of"),
        ("decoder.layers=many", r"model\.facts\.decoder\.layers must be an int, got 'many'"),
        ("decoder.attention.rotary={dim: 4}", r"model\.facts\.decoder\.attention\.rotary lacks length"),
    ],
)
def test_a_wrong_fact_is_refused_before_anything_is_written(change: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        trained(small("lm-bytes", tmp_path, f"model.facts.{change}"), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*/*"))


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    recipe = small("lm-bytes", tmp_path, *RUN)
    trained(recipe, tmp_path / "out")
    with pytest.raises(CheckpointError, match="holds a run: continue it with resume=True"):
        trained(recipe, tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"\n  optimizer\.lr: was 0\.005, is 0\.1"):
        trained(small("lm-bytes", tmp_path, *RUN, "optimizer.lr=0.1"), tmp_path / "out", resume=True)
    (tmp_path / "text.txt").write_text("another text altogether, which is long enough. " * 40)
    with pytest.raises(CheckpointError, match=r"data\.train \(.*text\.txt\): was .* is "):
        trained(recipe, tmp_path / "out", resume=True)


def test_a_run_that_gets_no_better_stops_early(tmp_path: Path) -> None:
    changes = (
        "run.steps=40",
        "evaluation.every=2",
        "evaluation.patience=3",
        "optimizer.lr=1e-12",
        "optimizer.warmup=0",
    )
    outcome = trained(small("lm-bytes", tmp_path, *changes), tmp_path / "out")
    assert outcome.step < 40
    assert len(losses(tmp_path / "out")) == outcome.step


def test_the_model_is_the_best_one_or_the_mean_of_the_last(tmp_path: Path) -> None:
    few = ("run.steps=6", "evaluation.every=2", "run.checkpoint_every=2", "evaluation.last=3")
    outcome = trained(small("lm-bytes", tmp_path, *few), tmp_path / "out")
    kept = sorted((tmp_path / "out" / "checkpoints").glob("step-*"))
    every = [glassformer.load(path).model.state_dict() for path in kept]
    mean = glassformer.load(outcome.folder).model.state_dict()
    for name, tensor in mean.items():
        expected = torch.stack([item[name].double() for item in every]).mean(0).to(tensor.dtype)
        assert torch.equal(tensor, expected), name


def test_a_start_that_failed_leaves_nothing_behind_that_counts(tmp_path: Path) -> None:
    few = ("run.steps=2", "evaluation.every=2", "optimizer.warmup=0")
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="positions of the model"):
        trained(small("lm-bpe", tmp_path, *few, "tokenizer.size=300", "batch.length=500"), out)
    assert trained(small("lm-bpe", tmp_path, *few, "tokenizer.size=310"), out).step == 2  # no run was there yet
    assert glassformer.load(out / "model").tokenizer.vocab_size == 310
    assert read_recipe(out / "recipe.yaml").tokenizer.size == 310


def test_sizes_are_a_remedy_for_a_new_model_alone(teacher: Path, tmp_path: Path) -> None:
    changes = ("run.steps=2", "optimizer.warmup=0", "batch.length=500")
    for name, start, remedy in (("lm-bpe", (), ", or raise .* in model.sizes"), ("finetune", (teacher,), "")):
        recipe = small(name, tmp_path, *changes, *(f"model.start={folder}" for folder in start))
        with pytest.raises(ValueError, match=rf"positions of the model; lower it{remedy}\.$"):
            trained(recipe, tmp_path / name)


@pytest.mark.parametrize(
    ("change", "error_text"), [("evaluation.by=blue", "Did you mean 'bleu'"), ("data.languages=[en]", None)]
)
def test_what_can_only_fail_fails_before_the_first_step(change: str, error_text: str | None, tmp_path: Path) -> None:
    recipe = small("translate", tmp_path, change)
    if error_text is None:
        Session(recipe, tmp_path / "out", HERE, Monitor())
        return
    with pytest.raises(ValueError, match=error_text):
        Session(recipe, tmp_path / "out", HERE, Monitor())
    assert not (tmp_path / "out" / "recipe.yaml").exists()


def test_a_rehearsal_draws_no_random_numbers(tmp_path: Path) -> None:
    session = Session(small("ctrl", tmp_path, "model.sizes.resid_pdrop=0.5"), tmp_path / "out", HERE, Monitor())
    before = torch.get_rng_state()
    result = [session.evaluator.validate(None) for _ in range(3)]
    session.evaluator.samples(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert result[0] == result[1] == result[2]  # without dropout


def test_losses_are_judged_without_smoothing(tmp_path: Path) -> None:
    outcome = trained(small("lm-bytes", tmp_path, "objective.smoothing=0.3", "run.steps=8"), tmp_path / "out")
    plain = trained(small("lm-bytes", tmp_path, "run.steps=8", "optimizer.lr=1e-12"), tmp_path / "plain")
    assert outcome.results["valid"]["loss"] < plain.results["valid"]["loss"]  # smoothed it would be higher
    assert outcome.results["valid"]["perplexity"] == pytest.approx(2.718281828 ** outcome.results["valid"]["loss"])


def test_a_run_that_stopped_early_makes_no_more_steps(tmp_path: Path) -> None:
    changes = (
        "run.steps=40",
        "evaluation.every=2",
        "evaluation.patience=2",
        "optimizer.lr=1e-12",
        "optimizer.warmup=0",
    )
    recipe = small("lm-bytes", tmp_path, *changes)
    first = trained(recipe, tmp_path / "out")
    again = trained(recipe, tmp_path / "out", resume=True)
    assert first == again
    assert len(losses(tmp_path / "out")) == first.step


def test_files_are_not_passed_over_for_the_documentation(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.format=documentation reads no files.*data\.format=text"):
        trained(read_recipe("lm-bytes", ["data.train=mine.md"]), tmp_path / "out")


def test_what_is_held_out_teaches_the_tokenizer_nothing(tmp_path: Path) -> None:
    recipe = small(
        "lm-bpe", tmp_path, "data.documents=file", "objective.rows=windows", "run.steps=8", "tokenizer.size=400"
    )
    text = tmp_path / "text.txt"
    text.write_text(text.read_text() + "zzqqxx " * 40)  # within the last fifth
    trained(recipe, tmp_path / "out")
    vocabulary = glassformer.load(tmp_path / "out" / "model").tokenizer.backend.get_vocab()
    assert not [token for token in vocabulary if "zq" in token or "qx" in token]


def test_one_process_makes_tokenizer_and_examples_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(owner: object, name: str) -> None:
        inner = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *inputs: (calls.append(name), inner(*inputs))[1])

    counted(build, "make_tokenizer")
    counted(ControlledJob, "examples")
    Session(small("ctrl", tmp_path), tmp_path / "out", HERE, Monitor())
    assert calls == ["make_tokenizer", "examples"]


def test_weights_of_half_precision_are_trained_in_full(teacher: Path, tmp_path: Path) -> None:
    loaded = glassformer.load(teacher, dtype=torch.bfloat16)
    glassformer.save(loaded, tmp_path / "half")
    session = Session(
        small("finetune", tmp_path, f"model.start={tmp_path / 'half'}"), tmp_path / "out", HERE, Monitor()
    )
    assert {p.dtype for p in session.run.model.parameters()} == {torch.float32}


def test_a_test_part_is_judged_by_itself(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_text(other, documents=6)
    changes = (f"data.test={other / 'text.txt'}", "run.steps=8", "evaluation.every=8")
    results = trained(small("lm-bytes", tmp_path, *changes), tmp_path / "a").results
    assert results["test"]["loss"] != results["valid"]["loss"]
    with pytest.raises(ValueError, match=r"cannot be evaluated on its own; leave out data\.test"):
        trained(small("electra", tmp_path, *changes), tmp_path / "b")


def test_a_trained_model_says_of_which_lineage_it_is(tmp_path: Path) -> None:
    outcome = trained(small("lm-bytes", tmp_path, "run.steps=8"), tmp_path / "out")
    loaded = glassformer.load(outcome.folder)
    assert loaded.lineage == "gpt2"
    glassformer.save(loaded, tmp_path / "hf", to="hf")
