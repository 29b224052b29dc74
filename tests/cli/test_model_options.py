"""Options that choose how a model is read: every command that reads one has them, and no error names a missing one."""

import json
import re
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import typer
from safetensors.torch import load_file
from tokenizers import pre_tokenizers

from glassformer import hub
from glassformer.cli.main import app
from glassformer.cli.options import CONFIG_OPTIONS, LOAD_OPTIONS
from glassformer.families import lineages
from tests.cli.test_generate import refused, rows, run
from tests.helpers import randomise, some_at_once

ALONE = {"compare", "demo", "download", "env", "models", "tokenizer"}  # commands that read no model
FACTS_ONLY = {"info", "account"}  # commands that read what a model is, and neither its weights nor its words
SIZES = {
    "vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 8,
}  # fmt: skip
CHOOSING = {"--head", "--lineage", "--allow-pickle"}
STARTING = CHOOSING | {"--ignore-keys", "--fresh", "--tokenizer-kind"}
LOADING = STARTING | {"--tokenizer", "--dtype", "--device"}


@cache
def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    found: dict[str, Any] = group.commands
    return found


def options_of(command: str) -> set[str]:
    return {name for parameter in commands()[command].params for name in (*parameter.opts, *parameter.secondary_opts)}


COMMANDS = sorted(set(commands()) - ALONE)


def test_the_groups_hold_the_options_that_are_asked_of_every_verb() -> None:
    def flags(names: Iterable[str]) -> set[str]:
        return {"--" + name.replace("_", "-") for name in names}

    assert flags(CONFIG_OPTIONS) == CHOOSING
    assert flags(LOAD_OPTIONS) == STARTING


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_reads_a_model_has_the_options_for_it(command: str) -> None:
    wanted = CHOOSING if command in FACTS_ONLY else STARTING if command == "train" else LOADING
    assert wanted - options_of(command) == set()


def arguments_of(command: str, model: Path, tmp_path: Path) -> tuple[list[str | Path], str | None]:
    """A command line that is right but for the model, and standard input."""
    file = tmp_path / "data.txt"
    file.write_text("the value\n")
    if command == "train":
        return [command, "roberta", "--init-from", model, f"data.train={file}", "data.format=text",
                "data.held_out=0", "--out", tmp_path / "run"], None  # fmt: skip
    more: dict[str, list[str | Path]] = {
        "info": [], "account": [], "convert": [tmp_path / "out"], "evaluate": [file], "chat": [],
        "task": ["a text", "--prefix", "b: "], "answer": ["a text", "-q", "what"],
        "view": ["--export", tmp_path / "page.html"],
    }  # fmt: skip
    return [command, model, *more.get(command, ["a text"])], "hello\n" if command == "chat" else None


def reconfigured(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


FAULTS: dict[str, Callable[[Path], None]] = {
    "no model_type": lambda folder: reconfigured(folder, model_type=..., architectures=...),
    "unknown model_type": lambda folder: reconfigured(folder, model_type="berd"),
    "unknown class": lambda folder: reconfigured(folder, architectures=["BertForPainting"]),
    "a layer too many": lambda folder: reconfigured(folder, num_hidden_layers=2),
    "pickle": pickled,
    "no tokenizer": lambda _: None,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "model"
    randomise(transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))).save_pretrained(folder)
    return folder


def faulty(whole: Path, fault: str, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    FAULTS[fault](folder)
    return folder


PAIRS = list(product(COMMANDS, sorted(FAULTS)))


@pytest.mark.parametrize(("command", "fault"), some_at_once(PAIRS, PAIRS[::5].__contains__))  # each of both
def test_no_error_names_an_option_that_the_command_lacks(command: str, fault: str, whole: Path, tmp_path: Path) -> None:
    folder = faulty(whole, fault, tmp_path)
    line, given = arguments_of(command, folder, tmp_path)
    found = run(*line, given=given)
    if found.exit_code == 0:
        assert command in FACTS_ONLY or (command, fault) == ("convert", "no tokenizer")
    elif fault == "no tokenizer":
        refused(found)  # for the lack of it, or because the model cannot do what the command does
    else:
        assert str(folder) in refused(found)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", found.stderr))
    assert named <= options_of(command), found.stderr
    assert len(re.findall(r"--allow-pickle", found.stderr)) <= 1
    assert not re.search(r"\b(head|lineage|fresh|ignore_keys|allow_pickle)=", found.stderr), found.stderr


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"no tokenizer"}))
def test_the_remedies_that_errors_name_work(fault: str, whole: Path, tmp_path: Path) -> None:
    folder = faulty(whole, fault, tmp_path)
    remedy = {
        "no model_type": ("--lineage", "bert"),
        "unknown model_type": ("--lineage", "bert"),
        "unknown class": ("--head", "lm"),
        "a layer too many": ("--fresh", "encoder.blocks.1.*"),
        "pickle": ("--allow-pickle",),
    }[fault]
    told = refused(run("convert", folder, tmp_path / "out"))
    assert remedy[0] in told
    assert run("convert", folder, tmp_path / "out", *remedy).exit_code == 0
    line, _ = arguments_of("train", folder, tmp_path)
    assert remedy[0] in refused(run(*line))
    assert "holds no tokenizer" in refused(run(*line, *remedy))  # the next thing that it lacks


def test_a_lineage_is_asked_for_by_name_everywhere(whole: Path, tmp_path: Path) -> None:
    folder = faulty(whole, "no model_type", tmp_path)
    told = refused(run("info", folder))
    assert all(name in told for name in lineages())
    assert "did you mean 'bert'" in refused(run("info", folder, "--lineage", "bret")).lower()
    assert rows(run("account", folder, "--lineage", "bert", "--json"))[0]["name"] == str(folder)
    assert hub.load(folder, lineage="bert").lineage == "bert"
    with pytest.raises(ValueError, match="lineage must be one of"):
        hub.load(folder, lineage="bret")


def test_a_lineage_says_what_a_folder_of_our_own_is_saved_as(whole: Path, tmp_path: Path) -> None:
    hub.save(hub.load(whole).model, tmp_path / "ours")
    told = run("convert", tmp_path / "ours", tmp_path / "out")
    assert told.exit_code == 2
    assert "set --lineage to one of: bert," in told.stderr
    assert run("convert", tmp_path / "ours", tmp_path / "out", "--lineage", "bert").exit_code == 0
    assert hub.load(tmp_path / "out").lineage == "bert"


def test_classes_are_named_once(whole: Path, tmp_path: Path) -> None:
    assert refused(run("info", faulty(whole, "unknown class", tmp_path))).count("BertModel,") == 1


def test_a_tokenizer_from_elsewhere_and_of_a_kind_that_nothing_states(tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.mkdir()
    vocab = [*pre_tokenizers.ByteLevel.alphabet(), "<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>"]
    (words / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(sorted(vocab))}))
    (words / "merges.txt").write_text("#version: 0.2\n")
    model = tmp_path / "model"
    config = transformers.GPT2Config(vocab_size=len(vocab), n_embd=12, n_layer=1, n_head=3, n_positions=32)
    transformers.GPT2LMHeadModel(config).save_pretrained(model)
    bare = refused(run("score", model, "a text"))
    assert "holds no tokenizer" in bare
    assert "elsewhere, name its folder: --tokenizer." in bare
    assert "--tokenizer-kind must be one of" in refused(run("score", "stories", "a text", "--tokenizer-kind", "gtp2"))
    assert "Pass --tokenizer-kind" in refused(run("score", model, "a text", "--tokenizer", words))
    line = ("score", model, "a text", "--tokenizer", words, "--tokenizer-kind", "gpt2", "--json")
    assert rows(run(*line))[0]["predicted"] == len("a text") - 1
    assert hub.load(model, tokenizer=words, tokenizer_kind="roberta").tokenizer.cls is not None
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(words / name, model / name)
    reconfigured(model, model_type=...)
    assert "--tokenizer-kind" in refused(run("score", model, "a text"))
    assert run("score", model, "a text", "--tokenizer-kind", "gpt2").exit_code == 0
