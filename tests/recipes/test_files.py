"""Recipes as files: found by name, changed by key=value, refused where they say what nobody understands."""

from pathlib import Path

import pytest

from glassformer import pretrained
from glassformer.families import lineages
from glassformer.objectives.job import job_of, with_all_options
from glassformer.recipes.files import (
    RecipeError,
    read_recipe,
    recipe_names,
    recipe_sizes,
    unused_sizes,
    write_recipe,
)
from glassformer.recipes.new_models import check_new

PROMISED = """
    lm-bytes lm-bpe translate classify tag answer bert-mlm roberta albert-sop electra xlm-tlm distil t5-span
    bart-denoise m2m ctrl deberta-v3-rtd bigbird-4096 xlmr t5-tasks summarise toy finetune
    en-zh stories mlm-en ner-en
"""


def test_every_promised_recipe_is_there() -> None:
    assert set(PROMISED.split()) == set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_each_recipe_says_what_it_is_and_reads_back_as_the_same(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(name)
    assert recipe.name == name
    assert len(recipe.about) > 20
    assert len(recipe.expected.result) > 20
    assert recipe.model.lineage is None or recipe.model.lineage in lineages()
    job_of(recipe)  # its options are known ones
    path = tmp_path / f"{name}.yaml"
    path.write_text(write_recipe(with_all_options(recipe)), encoding="utf-8")
    assert read_recipe(path) == with_all_options(recipe)


@pytest.mark.parametrize("name", sorted({*recipe_names()} - {"finetune", "ner-en"}))
def test_the_model_of_each_recipe_can_be_made_as_it_is_written(name: str) -> None:
    """Tests that train make models smaller, and would not see a size that the lineage does not know."""
    recipe = read_recipe(name)
    job = job_of(recipe)
    check_new(recipe.model, job.head)
    if recipe.model.helper:
        job.check()


@pytest.mark.parametrize(
    ("recipe", "change", "message"),
    [
        ("bert-mlm", "model.sizes.hidden_size=abc", r"model\.sizes of bert: hidden_size='abc'"),
        ("t5-span", "model.sizes.initializer_factor=0", r"model\.sizes of t5: std must be"),
        ("bert-mlm", "model.sizes.num_attention_heads=7", r"model\.sizes of bert: .*7"),
    ],
)
def test_sizes_that_make_no_sense_are_told_as_sizes(recipe: str, change: str, message: str) -> None:
    actual = read_recipe(recipe, [change])
    with pytest.raises(ValueError, match=message):
        check_new(actual.model, job_of(actual).head)


def test_changes_go_on_top() -> None:
    recipe = read_recipe("lm-bytes", ["optimizer.lr=1e-3", "model.sizes.n_layer=2", "data.train=[a.txt, b.txt]"])
    assert recipe.optimizer.lr == 0.001  # YAML 1.1 takes 1e-3 for a text
    assert recipe.model.sizes["n_layer"] == 2
    assert recipe.model.sizes["n_head"] == read_recipe("lm-bytes").model.sizes["n_head"]
    assert recipe.data.train == ("a.txt", "b.txt")
    pair = read_recipe("translate", ["data.train.source=a.en", "data.train.target=a.de"]).data.train
    assert (pair.source, pair.target) == ("a.en", "a.de")  # type: ignore[union-attr]
    assert read_recipe("lm-bytes", ["optimizer.clip=null"]).optimizer.clip is None
    assert read_recipe("lm-bytes", ["optimizer.clip="]).optimizer.clip is None


@pytest.mark.parametrize(
    ("recipe", "changes", "read_as"),
    [
        ("classify", ["data.train=a.csv"], ("csv", None, None)),
        ("classify", ["data.format=csv", "data.train=a.txt"], ("csv", None, None)),
        ("classify", ["data.format=csv", "data.separator=|"], ("csv", "|", None)),
        ("classify", ["data.train=a.csv", "data.quoted=true"], ("csv", None, True)),
        ("classify", ["data.train=a.txt", "data.valid=b.txt"], ("csv", ";", False)),  # plain text has no labels
        ("classify", ["data.train=rows"], ("csv", ";", False)),
        ("classify", ["data.train=[a.jsonl, b.jsonl.gz]"], ("jsonl", None, None)),
        ("finetune", ["data.train=a.csv"], ("csv", None, None)),
        ("finetune", ["data.train=a/*.tsv"], ("tsv", None, None)),
        ("finetune", ["job=language", "data.train=a.txt"], ("text", None, None)),
        ("finetune", ["job=answer", "data.train=a.json"], ("squad", None, None)),
        ("finetune", ["job=tag", "data.train=a.conll"], ("conll", None, None)),
        ("finetune", ["job=text-to-text", "data.train={source: a.en, target: a.de}"], ("parallel", None, None)),
        ("tag", ["data.train=a.tsv"], ("conll", None, None)),  # no cell holds a list of words
        ("lm-bytes", ["data.train=a.txt"], ("text", None, None)),
        ("lm-bytes", ["data.test=a.jsonl"], ("jsonl", None, None)),
        ("translate", ["data.train=a.tsv"], ("tsv", None, None)),
        ("translate", ["data.train.source=a.csv", "data.train.target=b.csv"], ("parallel", None, None)),
        ("finetune", ["data={format: jsonl, train: a.csv}"], ("jsonl", None, None)),
    ],
)
def test_a_format_is_that_of_the_files_and_brings_its_own_separator(
    recipe: str, changes: list[str], read_as: tuple[str, str | None, bool | None]
) -> None:
    reported: list[str] = []
    data = read_recipe(recipe, changes, notes=reported).data
    assert (data.format, data.separator, data.quoted) == read_as
    usual = read_recipe(recipe).data
    is_new = data.format != usual.format or (data.separator, data.quoted) != (usual.separator, usual.quoted)
    is_stated = any(change.startswith(("data.format=", "data=")) for change in changes)
    assert reported == (
        [f"the files are read as data.format={data.format}, by their ending"] if is_new > is_stated else []
    )


def test_files_of_two_formats_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"data\.train as csv and data\.valid as jsonl; set data\.format"):
        read_recipe("finetune", ["data.train=a.csv", "data.valid=b.jsonl"])
    assert read_recipe("finetune", ["data.train=a.csv", "data.valid=b.jsonl", "data.format=csv"]).data.format == "csv"


def test_a_format_that_a_file_of_your_own_states_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = write_recipe(read_recipe("classify"))
    path.write_text(text)
    data = read_recipe(path, ["data.train=a.jsonl"]).data
    assert (data.format, data.separator) == ("csv", ";")
    assert read_recipe(path, ["data.train=a.csv", "data.format=csv"]).data.separator is None
    path.write_text(text.replace("  format: csv\n", ""))
    data = read_recipe(path, ["data.train=a.tsv"]).data
    assert (data.format, data.separator) == ("tsv", ";")  # the separator is the file's own word
    with pytest.raises(RecipeError, match="format"):
        read_recipe(path, ["data.train=rows"])


@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.parametrize("steps", [2, 20])
def test_a_run_shorter_than_the_warmup_has_a_shorter_one(name: str, steps: int) -> None:
    usual, reported = read_recipe(name), list[str]()
    recipe = read_recipe(name, [f"run.steps={steps}"], notes=reported)
    if usual.optimizer.warmup < steps:
        assert (recipe.optimizer.warmup, reported) == (usual.optimizer.warmup, [])
        return
    share = usual.optimizer.warmup / usual.run.steps
    assert recipe.optimizer.warmup == pytest.approx(share * steps, abs=1)
    assert 1 <= recipe.optimizer.warmup < steps
    assert [item.partition(":")[0] for item in reported] == [f"optimizer.warmup={recipe.optimizer.warmup}"]


def test_a_warmup_that_is_stated_is_not_shortened(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"optimizer\.warmup=50 must be less than run\.steps=20"):
        read_recipe("lm-bytes", ["run.steps=20", "optimizer.warmup=50"])
    path = tmp_path / "mine.yaml"
    path.write_text(write_recipe(read_recipe("lm-bytes")).replace("steps: 5000", "steps: 20"))
    with pytest.raises(RecipeError, match=r"optimizer\.warmup=100 must be less than run\.steps=20"):
        read_recipe(path)
    assert read_recipe("translate", ["run.steps=8000"]).optimizer.warmup == 2000
    assert read_recipe("classify", ["run.steps=1"]).optimizer.warmup == 0
    with pytest.raises(RecipeError, match=r"run\.steps of at least 2.*optimizer\.schedule=constant"):
        read_recipe("translate", ["run.steps=1"])


@pytest.mark.parametrize(
    "text",
    ["1e5", "1E5", "1e-3", "1.e3", ".5", "7", "1_000", "0x1f", "null", "~", "true", "on", "2026-01-01", ""],
)
def test_texts_that_look_like_something_else_stay_texts(text: str, tmp_path: Path) -> None:
    """A file that is called 1e5, say: a run must find it again when it goes on."""
    recipe = read_recipe("lm-bytes", [], **{"data.marker": text, "data.train": [f"{text}a", text or "b"]})
    path = tmp_path / "lm-bytes.yaml"
    path.write_text(write_recipe(recipe), encoding="utf-8")
    assert read_recipe(path) == recipe
    assert recipe.data.marker == text


@pytest.mark.parametrize("word", ["no", "NO", "yes", "on", "Off", "y", "n"])
def test_words_are_words_and_true_is_true(word: str, tmp_path: Path) -> None:
    """YAML 1.1 takes the code of Norwegian for false; files and changes agree."""
    changes = [f"data.columns.label={word}", f"data.languages=[en, {word}]", f"data.prefix={word}"]
    recipe = read_recipe("lm-bytes", [*changes, "run.compile=true", "data.header=False"])
    assert (recipe.data.columns, recipe.data.languages, recipe.data.prefix) == ({"label": word}, ("en", word), word)
    assert (recipe.run.compile, recipe.data.header) == (True, False)
    path = tmp_path / "lm-bytes.yaml"
    path.write_text(write_recipe(recipe), encoding="utf-8")
    assert read_recipe(path) == recipe
    bare = write_recipe(recipe).replace(f"'{word}'", word)
    path.write_text(bare, encoding="utf-8")
    assert read_recipe(path) == recipe


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optimizer.lrr=1", "Did you mean 'lr'"),
        ("optimiser.lr=1", "Did you mean 'optimizer'"),
        ("optimizer.lr=fast", "optimizer.lr must be a number, got 'fast'"),
        ("optimizer.lr=-1", "optimizer.lr must be a finite number above 0"),
        ("optimizer.eps=0", "optimizer.eps must be a finite number above 0"),
        ("optimizer.clip=0", "optimizer.clip must be a finite number above 0"),
        ("optimizer.betas=[0.9,1.5]", "optimizer.betas must be at least 0 and below 1, got 1.5"),
        ("optimizer.betas=[0.9]", "optimizer.betas are two numbers"),
        ("optimizer.weight_decay=-1", "optimizer.weight_decay must be a finite number of at least 0"),
        ("optimizer.weight_decay=.nan", "optimizer.weight_decay must be a finite number of at least 0"),
        ("run.steps=0", "run.steps must be at least 1"),
        ("run.average=2", "run.average must be at least 0"),
        ("data.limit=0", "data.limit must be at least 1"),
        ("data={format: text, train: a.txt, separator: x}", "data.separator is for the formats csv, tsv, conll, and "),
        ("data={format: jsonl, train: a.jsonl, quoted: true}", "data.quoted is for the formats csv, tsv, and "),
        ("run=null", "run must be a table of keys and values, got None"),
        ("data.held_out=1", "data.held_out must be at least 0"),
        ("tokenizer.size=0", "tokenizer.size must be at least 1"),
        ("evaluation.every=0", "evaluation.every must be at least 1"),
        ("evaluation.samples=-1", "evaluation.samples must be an integer"),
        ("batch.workers=-1", "batch.workers must be an integer"),
        ("model.adapters={rank: 0}", "model.adapters.rank must be at least 1"),
        ("data.header=no", "data.header must be true or false, got 'no'"),
        ("run.precision=bf16", "bfloat16"),
        ("data.format=texts", "Did you mean 'text'"),
        ("optimizer.warmup=99999", "must be less than run.steps"),
        ("batch.tokens=4096", "batch.examples or batch.tokens, and null for the other"),
        ("evaluation.last=9", "run.keep"),
        ("model.start=somewhere", "either model.lineage"),
        ("steps", "a change is written key=value"),
    ],
)
def test_what_nobody_understands_is_refused(change: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_recipe("lm-bytes", [change])
    assert message in str(caught.value)
    assert "lm-bytes" in str(caught.value) or message.startswith("a change")


def test_options_of_the_job_are_checked_too() -> None:
    with pytest.raises(ValueError, match="Did you mean 'smoothing'"):
        job_of(read_recipe("translate", ["objective.smothing=0.2"]))
    with pytest.raises(ValueError, match="Did you mean 'language'"):
        job_of(read_recipe("lm-bytes", ["job=languages"]))


def test_recipes_that_are_not_there_and_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="Did you mean 'translate'"):
        read_recipe("translat")
    with pytest.raises(RecipeError, match="there is no such file"):
        read_recipe(tmp_path / "mine.yaml")
    path = tmp_path / "mine.yaml"
    path.write_text("job: [")
    with pytest.raises(RecipeError, match="is not YAML"):
        read_recipe(path)
    path.write_text("- job")
    with pytest.raises(RecipeError, match="must be a mapping of keys to values"):
        read_recipe(path)
    path.write_text("job: toy\njob: language\n")
    with pytest.raises(RecipeError, match="job is stated twice"):
        read_recipe(path)
    path.write_text("job: !!python/object/apply:os.system ['true']")
    with pytest.raises(RecipeError, match="is not YAML"):
        read_recipe(path)


def test_a_size_is_merged_below_the_other_changes_and_an_unknown_one_is_refused() -> None:
    plain, little = read_recipe("lm-bytes"), read_recipe("lm-bytes", ["run.size=small"])
    assert little.model.sizes["n_embd"] < plain.model.sizes["n_embd"]
    assert little.optimizer == plain.optimizer  # what a size does not name stays
    for changes in (["run.steps=700", "run.size=small"], ["run.size=small", "run.steps=700"]):
        changed = read_recipe("lm-bytes", changes)
        assert (changed.run.steps, changed.batch) == (700, little.batch)
    with pytest.raises(RecipeError, match=r"has no size 'tiny' \(run.size\): it has small"):
        read_recipe("lm-bytes", ["run.size=tiny"])


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_small_or_has_a_small_size_that_is_written_back_whole(name: str, tmp_path: Path) -> None:
    full = read_recipe(name)
    if name in pretrained.names():  # for a GPU
        assert full.expected.gpu_minutes is not None
        with pytest.raises(RecipeError, match="it has none"):
            read_recipe(name, ["run.size=small"])
        return
    if not recipe_sizes(name):
        assert (full.expected.cpu_minutes or 0) <= 10
        with pytest.raises(RecipeError, match=rf"its only size is already small, {full.expected.cpu_minutes:g} min"):
            read_recipe(name, ["run.size=small"])
        return
    assert recipe_sizes(name) == ["small"]
    little = read_recipe(name, ["run.size=small"])
    assert little.run.steps < full.run.steps
    assert little.expected != full.expected
    assert little.expected.gpu_minutes is None  # not that of the full size
    (tmp_path / "recipe.yaml").write_text(write_recipe(little))
    assert read_recipe(tmp_path / "recipe.yaml") == little
    with pytest.raises(RecipeError, match="has no size 'small'"):
        read_recipe(tmp_path / "recipe.yaml", ["run.size=small"])


def test_a_size_is_a_name_in_either_form() -> None:
    little = read_recipe("lm-bytes", ["run.size=small"])
    assert read_recipe("lm-bytes", ["run={size: small}"]) == little
    assert read_recipe("lm-bytes", ["run={size: small, steps: 500}"]).batch == little.batch
    with pytest.raises(RecipeError, match=r"run.size is the name of a size, such as small; got \['small'\]"):
        read_recipe("lm-bytes", ["run.size=[small]"])
    with pytest.raises(RecipeError, match=r"run has no key 'sice'\. Did you mean 'device'\? It has"):
        read_recipe("lm-bytes", ["run.sice=small"])


def test_only_a_recipe_in_its_full_size_has_others() -> None:
    assert unused_sizes(read_recipe("lm-bytes", ["run.steps=200"])) == ["small"]
    assert unused_sizes(read_recipe("lm-bytes", ["run.size=small", "run.steps=2000000"])) == []
    assert unused_sizes(read_recipe("toy")) == []
