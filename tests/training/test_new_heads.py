"""Models that start from others: whether their head goes on as it is, under its own labels, or is a new one."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer.config import Head, LMHead, PretrainingHead, TaskHead
from glassformer.models.transformer import Transformer
from glassformer.objectives.job import job_of
from glassformer.recipes.files import read_recipe
from glassformer.recipes.new_models import check_new
from glassformer.recipes.recipe import Recipe, RecipeLoadOptions
from glassformer.training.build_model import StartModel, start_model
from glassformer.training.session import Outcome, Session
from tests.configs import CONFIGS
from tests.helpers import randomise
from tests.training.small_sessions import HERE, Listens, Stopped, StopsAt, small, trained
from tests.training.tiny_recipes import ANIMALS, sentence, write_questions, write_tagged

STILL = ("optimizer.lr=1e-30", "run.steps=1", "evaluation.samples=0")
ROWS = [sentence(number) for number in range(24)]
FORMS = ("glassformer", "hf")
WORDS = LMHead(transform="gelu", bias=True)
PAIRS = TaskHead(task="pair", labels=("next", "random"), pool="first", hidden="tanh")
WORDS_AND_PAIRS = PretrainingHead(lm=WORDS, pair=PAIRS)


def write(path: Path, label: Callable[[str], object], texts: Iterable[str] = ROWS) -> list[str]:
    path.write_text("".join(json.dumps({"text": text, "label": str(label(text))}) + "\n" for text in texts))
    return ["data.format=jsonl", f"data.train={path}"]


def animal(text: str) -> str:
    return next(word for word in ANIMALS if word in text)


def kind(text: str) -> str:
    return {"cat": "pet", "dog": "pet", "cow": "big", "hen": "bird", "owl": "bird", "fox": "wild"}[animal(text)]


def several(text: str) -> str:
    return ",".join(sorted({kind(text), *(["eats"] if "eats" in text else [])}))


# what is learned, by which recipe, from which rows
TASKS: dict[str, tuple[str, tuple[str, ...], Callable[[Path], list[str]]]] = {
    "one": ("classify", ("objective.pool=mean",), lambda folder: write(folder / "one.jsonl", kind)),
    "several": ("classify", ("objective.kind=several",), lambda folder: write(folder / "several.jsonl", several)),
    "number": ("classify", ("objective.kind=number",), lambda folder: write(folder / "number.jsonl", len)),
    "tags": ("tag", (), write_tagged),
    "answers": ("answer", (), write_questions),
}


def evaluated_on_all(rows: Iterable[str]) -> list[str]:
    """The training rows are also the validation rows."""
    rows = [row for row in rows if not row.startswith("data.held_out")]
    return [*rows, *(row.replace("data.train", "data.valid") for row in rows if row.startswith("data.train"))]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """Models that have learned something, each made when it is first asked for."""
    result: dict[str, Outcome] = {}

    def model(task: str) -> Outcome:
        if task not in result:
            folder = tmp_path_factory.mktemp(task)
            name, options, data = TASKS[task]
            rows = ["data.columns={}", *evaluated_on_all(data(folder))]
            result[task] = trained(small(name, folder, *rows, *options, "run.steps=40"), folder / "out")
        return result[task]

    return model


def taught(start: Path, task: str, folder: Path, *changes: str, rows: list[str] | None = None) -> Recipe:
    """The recipe of a model that starts from another."""
    folder.mkdir(exist_ok=True)
    name, options, data = TASKS[task]
    options = [
        *(item for item in options if ".pool" not in item),
        *evaluated_on_all(data(folder) if rows is None else rows),
    ]
    formats = {"tag": ["data.format=conll", "data.prefix=en:"], "answer": ["data.format=squad"]}.get(name, [])
    usual = ("batch.length=48", "batch.workers=0", "optimizer.warmup=0", f"job={name}", f"model.start={start}")
    return read_recipe("finetune", [*usual, *formats, *STILL, *options, *changes])


def turned(start: Path, location: Path, names: Callable[[str], str] = str) -> Path:
    """The same model with its labels, and the rows of its head, in another order; perhaps under other names."""
    loaded = glassformer.load(start)
    head = loaded.config.head
    assert isinstance(head, TaskHead)
    order = [*range(1, len(head.labels)), 0]
    facts = replace(loaded.config, head=replace(head, labels=tuple(names(head.labels[number]) for number in order)))
    weights = loaded.model.state_dict()
    model = Transformer(facts)
    model.load_state_dict(weights | {name: weights[name][order] for name in weights if name.startswith("head.out.")})
    glassformer.save(model, location, lineage=loaded.lineage, tokenizer=loaded.tokenizer)
    return location


def head_of(folder: Path) -> tuple[TaskHead, dict[str, torch.Tensor]]:
    loaded = glassformer.load(folder)
    assert isinstance(loaded.config.head, TaskHead)
    weights = loaded.model.state_dict().items()
    return loaded.config.head, {name: tensor for name, tensor in weights if name.startswith("head.")}


def assert_same(item: Path, other: Path) -> None:
    """Two models have the same head, with the same weights."""
    (facts, weights), (others, other_weights) = head_of(item), head_of(other)
    assert facts == others
    assert weights.keys() == other_weights.keys()
    assert all(torch.allclose(weights[name], other_weights[name], atol=1e-6) for name in weights)


@pytest.mark.parametrize("task", ["one", "several", "tags"])
def test_a_head_goes_on_under_its_own_labels(task: str, learned: Callable[[str], Outcome], tmp_path: Path) -> None:
    before = learned(task)
    assert before.results["valid"]["loss"] < 0.6  # there is something to lose
    start = turned(before.folder, tmp_path / "turned")
    hears = Listens()
    outcome = Session(taught(start, task, tmp_path), tmp_path / "out", HERE, hears).train()
    assert outcome.results["valid"] == pytest.approx(before.results["valid"], rel=1e-4)
    assert_same(outcome.folder, start)
    assert not [note for note in hears.notes if "head is new" in note]


@pytest.mark.parametrize("task", ["number", "answers"])
def test_a_head_without_names_goes_on(task: str, learned: Callable[[str], Outcome], tmp_path: Path) -> None:
    before = learned(task)
    outcome = trained(taught(before.folder, task, tmp_path), tmp_path / "out")
    assert outcome.results["valid"] == pytest.approx(before.results["valid"], rel=1e-4)
    assert_same(outcome.folder, before.folder)


def test_a_number_goes_by_the_name_that_hugging_face_gives_it(
    learned: Callable[[str], Outcome], tmp_path: Path
) -> None:
    start = turned(learned("number").folder, tmp_path / "turned", lambda _: "LABEL_0")
    assert_same(trained(taught(start, "number", tmp_path), tmp_path / "out").folder, start)
    job = job_of(taught(start, "several", tmp_path))
    message = "the head is new in head.out: its labels were LABEL_0, and are big"
    assert start_model(str(start), job, ("big",), RecipeLoadOptions()).notes == [message]


def test_labels_that_do_not_occur_are_kept(learned: Callable[[str], Outcome], tmp_path: Path) -> None:
    start = turned(learned("one").folder, tmp_path / "turned")
    some = [text for text in ROWS if kind(text) in ("pet", "bird")]
    outcome = trained(taught(start, "one", tmp_path, rows=write(tmp_path / "some.jsonl", kind, some)), tmp_path / "out")
    assert head_of(outcome.folder)[0].labels == ("bird", "pet", "wild", "big")
    assert_same(outcome.folder, start)


def test_other_names_are_other_labels(learned: Callable[[str], Outcome], tmp_path: Path) -> None:
    """As many of them, so that the old weights would fit."""
    start = learned("one").folder
    rows = write(tmp_path / "other.jsonl", lambda text: kind(text).upper())
    hears, location = Listens(), tmp_path / "out"
    outcome = Session(taught(start, "one", tmp_path, rows=rows), location, HERE, hears).train()
    message = "the head is new in head.out: its labels were big, bird, pet, wild, and are BIG, BIRD, PET, WILD"
    assert hears.notes[0] == message
    (old, before), (new, after) = head_of(start), head_of(outcome.folder)
    assert new == replace(old, labels=("BIG", "BIRD", "PET", "WILD"))  # the pooling stays
    assert old.pool == "mean"
    assert before.keys() == after.keys()
    new_ones = {name for name in before if not torch.allclose(before[name], after[name], atol=1e-6)}
    assert new_ones == {name for name in before if name.startswith("head.out.")}
    again = trained(taught(start, "one", tmp_path, rows=rows), tmp_path / "again")
    assert_same(outcome.folder, again.folder)
    other = trained(taught(start, "one", tmp_path, "run.seed=1", rows=rows), tmp_path / "other")
    assert not torch.equal(head_of(other.folder)[1]["head.out.weight"], after["head.out.weight"])


def test_a_head_for_answers_has_nothing_of_one_for_labels(learned: Callable[[str], Outcome], tmp_path: Path) -> None:
    """Two labels, a start and an end: the weights would fit."""
    pets = write(tmp_path / "pets.jsonl", lambda text: kind(text) == "pet")
    start = trained(taught(learned("one").folder, "one", tmp_path, rows=pets), tmp_path / "two").folder
    hears = Listens()
    outcome = Session(taught(start, "answers", tmp_path, "run.seed=1"), tmp_path / "out", HERE, hears).train()
    assert "the head is new: it was classify, and is span" in hears.notes
    before, after = head_of(start)[1], head_of(outcome.folder)[1]
    assert before["head.out.weight"].shape == after["head.out.weight"].shape
    assert not torch.equal(before["head.out.weight"], after["head.out.weight"])


def test_a_run_with_a_new_head_goes_on_as_if_it_had_never_stopped(
    learned: Callable[[str], Outcome], tmp_path: Path
) -> None:
    rows = write(tmp_path / "other.jsonl", lambda text: kind(text).upper())
    changes = ("run.steps=4", "run.checkpoint_every=2", "optimizer.lr=1e-2")
    recipe = taught(learned("one").folder, "one", tmp_path, *changes, rows=rows)
    trained(recipe, tmp_path / "whole")
    with pytest.raises(Stopped):
        Session(recipe, tmp_path / "parts", HERE, StopsAt(3)).train()
    trained(recipe, tmp_path / "parts", resume=True)
    files = [tmp_path / name / "model" / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()


def written(head: Head, folder: Path, lineage: str = "bert") -> Transformer:
    """A model in our format and in that of Hugging Face."""
    model = Transformer(replace(CONFIGS["bert"], head=head))
    randomise(model)
    for form in FORMS:
        glassformer.save(model, folder / form, to=form, lineage=lineage)
    return model


def alike(folder: Path, job: str, labels: tuple[str, ...] = ()) -> StartModel:
    """What a job starts from, which is the same from both forms of a model but for what is drawn."""
    own, reference = (
        start_model(str(folder / form), job_of(read_recipe("finetune", [f"job={job}"])), labels, RecipeLoadOptions())
        for form in FORMS
    )
    assert own.config.head == reference.config.head
    assert sorted(own.report.fresh) == sorted(reference.report.fresh)
    assert own.notes == reference.notes
    for name, weight in own.model.named_parameters():
        if name not in own.report.fresh:
            assert torch.equal(weight, reference.model.get_parameter(name)), name
    return own


def assert_taken(result: StartModel, part: str, model: Transformer, was: str) -> None:
    """Every weight of a part is that of a part of another model."""
    names = [name for name, _ in result.model.named_parameters() if name.startswith(f"{part}.")]
    assert names
    for name in names:
        old = model.get_parameter(was + name.removeprefix(part))
        assert torch.equal(result.model.get_parameter(name), old), name


def test_what_was_learned_beside_hidden_words_stays(tmp_path: Path) -> None:
    """The map before the scores is not of any labels in a model that has none."""
    model = written(TaskHead(task="pool", pool="first", hidden="tanh"), tmp_path)
    result = alike(tmp_path, "classify", ("no", "yes"))
    assert result.notes == ["the head is new in head.out: it was pool, and is classify"]
    assert sorted(result.report.fresh) == ["head.out.bias", "head.out.weight"]
    assert_taken(result, "head.hidden", model, "head.hidden")


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_of_words_and_pairs_goes_on_with_its_words(tied: bool, tmp_path: Path) -> None:
    model = written(replace(WORDS_AND_PAIRS, lm=replace(WORDS, tied=tied)), tmp_path)
    result = alike(tmp_path, "masked")
    assert result.config.head == replace(WORDS, tied=tied)
    assert_taken(result, "head", model, "head.lm")
    assert result.report.fresh == []
    assert result.notes == []


def test_a_head_of_words_and_pairs_hands_on_what_comes_before_the_scores(tmp_path: Path) -> None:
    """As many labels as the question about pairs has answers, so that its scores would fit."""
    model = written(WORDS_AND_PAIRS, tmp_path)
    result = alike(tmp_path, "classify", ("no", "yes"))
    assert_taken(result, "head.hidden", model, "head.pair.hidden")
    assert sorted(result.report.fresh) == ["head.out.bias", "head.out.weight"]
    assert result.notes == ["the head is new in head.out: it was pretraining, and is classify"]
    tags = alike(tmp_path, "tag", ("no", "yes"))
    assert tags.notes == ["the head is new: it was pretraining, and is tag"]


def test_a_map_before_the_scores_with_another_activation_is_another(tmp_path: Path) -> None:
    written(WORDS_AND_PAIRS, tmp_path, lineage="bigbird")
    result = alike(tmp_path, "classify", ("no", "yes"))
    assert result.report.fresh == [name for name, _ in result.model.named_parameters() if name.startswith("head.")]
    assert result.notes == ["the head is new: it was pretraining, and is classify"]


def test_a_head_of_words_goes_on_beside_one_of_pairs(tmp_path: Path) -> None:
    model = written(WORDS, tmp_path)
    result = alike(tmp_path, "masked-pairs")
    assert_taken(result, "head.lm", model, "head")
    assert {name.split(".")[1] for name in result.report.fresh} == {"pair"}
    assert result.notes == ["the head is new in head.pair.hidden, head.pair.out: it was lm, and is pretraining"]


@pytest.mark.parametrize(
    ("recipe", "size"),
    [
        ("lm-bytes", "pad_token_id"),
        ("lm-bytes", "eos_token_id"),
        ("bert-mlm", "pad_token_id"),
        ("bart-denoise", "bos_token_id"),
        ("bart-denoise", "decoder_start_token_id"),
        ("t5-span", "decoder_start_token_id"),
        ("xlm-tlm", "pad_index"),
    ],
)
def test_ids_of_tokens_are_no_sizes_of_a_new_model(recipe: str, size: str) -> None:
    """They would be written down and then be those of the tokenizer all the same."""
    plan = read_recipe(recipe, [f"model.sizes.{size}=7"]).model
    with pytest.raises(ValueError, match=f"the size {size}=7 comes from the tokenizer; leave it out"):
        check_new(plan, "lm")


def test_ids_of_tokens_are_no_sizes_of_a_helper_either() -> None:
    with pytest.raises(ValueError, match="the size pad_token_id=7 comes from the tokenizer; leave it out"):
        job_of(read_recipe("electra", ["model.helper.pad_token_id=7"])).check()
