"""Errors in the program's words, and what is asked before a model is loaded."""

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer

from glassformer.cli import chat as talking
from glassformer.cli.console import percent
from glassformer.cli.errors import InputError, message, numbering_texts, plain_errors
from glassformer.config.checks import Item, Setting, SettingError, check_choice, check_divides, check_positive_integer
from glassformer.config.facts import FactTypeError
from glassformer.data.batching import BudgetPlan
from glassformer.data.readers.datasets import find_table
from glassformer.data.readers.delimited import read_columns
from glassformer.data.readers.text import read_text
from glassformer.data.records import AsText, BadRowError, Origin, SourceError, label_of
from glassformer.generation.defaults import Advice, settings_for
from glassformer.recipes.files import TYPES, RecipeError, read_recipe
from glassformer.training.capture import CaptureError
from glassformer.training.parallel import FailedElsewhereError, LostProcessError
from glassformer.weights.files import WeightsError, open_weights
from tests.configs import CONFIGS
from tests.helpers import types_unchecked

# The options of a command, by the names of their parameters.
FLAGS = {
    "beam_size": "--beam-size", "beam_groups": "--beam-groups", "temperature": "--temperature", "top_k": "--top-k",
    "top_p": "--top-p", "early_stopping": "--early-stopping", "multi_label": "--multi-label", "suppress": "--suppress",
    "source": "--from", "target": "--to", "fresh": "--fresh", "tokenizer_kind": "--tokenizer-kind", "top": "--top",
    "bad_words": "--bad-word", "prefix": "--prefix", "head": "--head", "on_bad_row": "--on-bad-row",
}  # fmt: skip


def shown_by_a_verb(error: Exception, flags: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(typer.Exit), plain_errors(flags):
        raise error
    return capsys.readouterr().err.removeprefix("error: ").removesuffix("\n")


@pytest.mark.parametrize(
    "text",
    [
        "set top_beams=2.",
        "temperature must be 0 or more",
        "text 0 has no blank",
        "text 3.jsonl:2: invalid JSON",
        "a fact of data must be one of limit, max_new_tokens, on_bad_row; got 'x'.",
        "/a/path=x/top_k=3",
        "data.on_bad_row must be one of skip, stop",
        "run.average must be a float or None, got 'x'.",
    ],
)
def test_messages_are_not_rewritten(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown_by_a_verb(ValueError(text), FLAGS, capsys) == text
    assert shown_by_a_verb(SettingError(text), FLAGS, capsys) == text


@pytest.mark.parametrize(
    ("error", "in_python", "shown"),
    [
        (
            SettingError("{} searches, {} draws.", Setting("beam_size", 5), Setting("temperature", 1.0)),
            "beam_size=5 searches, temperature=1.0 draws.",
            "--beam-size 5 searches, --temperature 1.0 draws.",
        ),
        (SettingError("{}.", Setting("early_stopping", True)), "early_stopping=True.", "--early-stopping yes."),
        (SettingError("say {}.", Setting("multi_label", True)), "say multi_label=True.", "say --multi-label."),
        (SettingError("use {}.", Setting("suppress", (5,))), "use suppress=(5,).", "use --suppress 5."),
        (SettingError("{}", Setting("bad_words")), "bad_words", "--bad-word"),
        (SettingError("{}", Setting("prefix", "words: ")), "prefix='words: '", "--prefix 'words: '"),
        (SettingError("{}, {}", Setting("source"), Setting("target", "de")), "source, target='de'", "--from, --to de"),
        (SettingError("no {}", Setting("source", None)), "no source=None", "no --from"),
        (SettingError("into {}", Setting("fresh", ["head.*"])), "into fresh=['head.*']", "into --fresh head.*"),
        (SettingError("{} must be 1.", Setting("window")), "window must be 1.", "window must be 1."),
        (SettingError("{} {{}} {}", Setting("top_p"), "{top_k=3}"), "top_p {} {top_k=3}", "--top-p {} {top_k=3}"),
        (SettingError("pass {}", Setting("kind", external_name="tokenizer_kind")), "pass kind",
         "pass --tokenizer-kind"),
        (SettingError("{} has {}", Item("text", 0), Setting("top")).prefixed("{}: "), "{}: text 0 has top",
         "{}: text 1 has --top"),
        (SettingError("set {}", Setting("quoted", True, external_name="data.quoted")), "set quoted=True",
         "set data.quoted=true"),
        (SettingError("{}", Setting("marker", None, external_name="data.marker")), "marker=None", "data.marker=null"),
        (SettingError("{}", Setting("labels", external_name="data.columns.labels")), "labels", "data.columns.labels"),
        (SettingError("{}", Setting("vocab_size", external_name="tokenizer.size")), "vocab_size", "tokenizer.size"),
        (SettingError("{}", Setting("separator", ";", external_name="data.separator")), "separator=';'",
         "data.separator=';'"),
        (SettingError("{}", Setting("separator", "\t", external_name="data.separator")), r"separator='\t'",
         r"""data.separator='"\t"'"""),
    ],
)  # fmt: skip
def test_settings_are_spelt_as_options(
    error: SettingError, in_python: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for copied in (error, pickle.loads(pickle.dumps(error))):
        assert str(copied) == in_python
        assert shown_by_a_verb(copied, FLAGS, capsys) == shown


def error_types(kind: type[SettingError] = SettingError) -> list[type[SettingError]]:
    return [kind, *(inner for child in kind.__subclasses__() for inner in error_types(child))]


@pytest.mark.parametrize("kind", error_types(), ids=lambda kind: kind.__name__)
def test_errors_of_every_type_are_copied_with_all_they_hold(
    kind: type[SettingError], capsys: pytest.CaptureFixture[str]
) -> None:
    if kind is BadRowError:
        error: SettingError = BadRowError(Origin("f", 1), "{", "}", "set {}", Setting("top_k", 3))
    else:
        error = kind("{} {}", "{", Setting("top_k", 3))
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(copied) is kind
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)
        assert shown_by_a_verb(copied, FLAGS, capsys) == shown_by_a_verb(error, FLAGS, capsys)
    longer = pickle.loads(pickle.dumps(error.prefixed("{a} ").suffixed(" {}", Setting("top_p", 0.5)).suffixed("{b}")))
    assert type(longer) is kind
    assert str(longer) == f"{{a}} {error} top_p=0.5{{b}}"
    shown = shown_by_a_verb(error, FLAGS, capsys)
    assert shown_by_a_verb(longer, FLAGS, capsys) == f"{{a}} {shown} --top-p 0.5{{b}}"


def test_errors_without_values_take_a_prefix_and_a_suffix() -> None:
    error = SettingError("{")
    assert str(error.prefixed("}").suffixed("{}").suffixed("{}", Setting("top_k", 1))) == "}{{}top_k=1"


def test_errors_of_facts_are_copied() -> None:
    error = FactTypeError("decoder.heads", ["int", "None"], "x")
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert str(copied) == "decoder.heads must be an int or None, got 'x'."
        assert copied.message(TYPES) == error.message(TYPES)


def test_a_recommendation_is_spelt_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    advised = Advice("generation_config.json", {"beam_size": 3, "beam_groups": 2, "diversity": 1.0})
    loaded = SimpleNamespace(config=CONFIGS["gpt2"])
    with pytest.raises(SettingError) as caught, types_unchecked():
        settings_for(loaded, advised=advised)
    shown = shown_by_a_verb(caught.value, FLAGS, capsys)
    assert shown.startswith("--beam-groups 2 does not divide --beam-size 3;")
    assert "(generation_config.json of the model recommends --beam-size 3, --beam-groups 2" in shown


def test_a_pickle_names_the_option_that_opens_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "{top_k}.bin").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"set allow_pickle=True: only") as caught:
        open_weights(tmp_path / "{top_k}.bin")
    shown = shown_by_a_verb(caught.value, {"allow_pickle": "--allow-pickle"}, capsys)
    assert "{top_k}.bin: a pickle" in shown
    assert "set --allow-pickle: only its tensors are loaded." in shown


def test_a_setting_is_spelt_as_the_verb_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    error = SettingError("{}", Setting("vocab_size", 300, external_name="tokenizer.size"))
    assert shown_by_a_verb(error, {"vocab_size": "--vocab-size"}, capsys) == "--vocab-size 300"
    assert shown_by_a_verb(error, {}, capsys) == "tokenizer.size=300"
    error = SettingError("{}", Setting("source", 5))
    assert shown_by_a_verb(error, {"source": "--source"}, capsys) == "--source 5"


def test_checks_name_their_settings_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    for check, shown in (
        (lambda: check_positive_integer(top_k=0), "--top-k must be at least 1, got 0."),
        (lambda: check_choice("head", "lmm", ("lm",)), "--head must be one of lm; got 'lmm'. Did you mean 'lm'?"),
        (lambda: check_choice("a fact of data", "x", ("top_k",)), "a fact of data must be one of top_k; got 'x'."),
        (lambda: check_divides("beam_groups", 2, "beam_size", 3), "--beam-groups 2 does not divide --beam-size 3; "
         "values near it that do: 1, 3."),
    ):  # fmt: skip
        with pytest.raises(SettingError) as caught:
            check()
        assert shown_by_a_verb(caught.value, FLAGS, capsys) == shown


def test_errors_of_readers_name_options_and_recipe_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text\na,b\n"c\n')
    rows = {False: "set data.quoted=true for columns", True: "put quotes around columns"}
    for quoted, remedy in rows.items():
        with pytest.raises(BadRowError) as caught:
            list(read_columns(path, AsText(), separator=",", quoted=quoted))
        shown = shown_by_a_verb(caught.value, FLAGS, capsys)
        assert remedy in shown
        assert shown.endswith("or leave such rows out with --on-bad-row skip.")
    path.write_text('text\n"c"d\n')
    with pytest.raises(BadRowError) as caught:
        list(read_columns(path, AsText(), separator=",", quoted=True))
    assert "close them, or set data.quoted=false, or" in shown_by_a_verb(caught.value, FLAGS, capsys)
    with pytest.raises(SourceError) as failed:
        read_text(path, documents="line", marker="x")
    assert shown_by_a_verb(failed.value, FLAGS, capsys) == (
        "data.marker goes with data.documents=marker; got data.documents=line and data.marker=x."
    )
    with pytest.raises(SourceError) as failed:
        read_columns(path, AsText(), separator="ab", quoted=True)
    assert shown_by_a_verb(failed.value, FLAGS, capsys).startswith("data.separator must be one character")
    with pytest.raises(SourceError) as failed:
        find_table({"b": [], "c": []}, "d", "a")
    assert shown_by_a_verb(failed.value, FLAGS, capsys) == (
        "a has the splits b, c; set data.split to one of them, got 'd'."
    )
    with pytest.raises(BadRowError) as caught:
        label_of("x", ["a"], Origin("f", 1))
    assert "Correct it, or add it to data.columns.labels, or" in shown_by_a_verb(caught.value, FLAGS, capsys)


def test_recipes_name_types_in_their_own_words() -> None:
    for change, shown in (
        ("run.average=x", "run.average must be a number or null, got 'x'."),
        ("data.header=nope", "data.header must be true or false, got 'nope'."),
        ("data.languages=en", "data.languages must be a list such as [a, b]"),
    ):
        with pytest.raises(RecipeError) as caught:
            read_recipe("classify", [change])
        assert shown in str(caught.value)


def test_parts_of_the_input_count_on_and_own_words_stay() -> None:
    with pytest.raises(InputError, match=r"^prompt 17 is long; set beam_size=2$"), numbering_texts(16):
        raise SettingError("{} is long; set {}", Item("prompt", 0), Setting("beam_size", 2))
    with pytest.raises(InputError, match=r"^text 1 has top_k=2$"), numbering_texts(16):
        raise InputError("text 1 has top_k=2")


def test_files_are_told_by_path_and_reason(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "there is no such file"), (tmp_path, "this is a folder, not a file")):
        with pytest.raises((FileNotFoundError, IsADirectoryError)) as caught:
            path.read_bytes()
        assert message(caught.value) == f"{path}: {reason}."


@pytest.mark.parametrize(
    "error", [TypeError("x"), IndexError("x"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_what_input_can_cause_is_a_paragraph(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, plain_errors():
        raise error
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FloatingPointError("the loss became nan at step 3; Try a lower lr."), "the loss became nan at step 3"),
        (LostProcessError("process 1 of 2 waited"), "process 1 of 2 waited"),
        (FailedElsewhereError("the first process failed"), "the first process failed"),
        (CaptureError("this step cannot be recorded; set run.capture=false"), "set run.capture=false"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB."), "batch.examples or batch.tokens"),
        (RuntimeError("Found no NVIDIA driver on your system.\nPlease"), "Found no NVIDIA driver on your system; use"),
        (RuntimeError("No CUDA GPUs are available"), "run.device=cpu"),
        (AssertionError("Torch not compiled with CUDA enabled"), "--device cpu"),
    ],
)
def test_what_a_run_can_meet_is_a_line(error: Exception, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, plain_errors():
        raise error
    assert caught.value.exit_code == 2
    told = capsys.readouterr().err
    assert expected in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), AssertionError("shapes"), RecursionError("deep")])
def test_faults_stay_tracebacks(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), plain_errors():
        raise error


def test_a_row_that_no_batch_holds_is_told_in_the_recipe_s_words() -> None:
    with pytest.raises(ValueError, match="too_long") as caught:
        BudgetPlan([3, 9], 4, seed=0)
    assert message(caught.value) == (
        "example 1 has 9 tokens, more than 4 (1 of 2 do). Raise batch.tokens, or set batch.length, to which longer "
        "examples are cut."
    )
    assert str(caught.value).endswith("Raise budget, or set too_long='cut' or too_long='skip'.")


@pytest.mark.parametrize(
    ("chance", "shown"), [(1, "100.0 %"), (0.123, "12.3 %"), (3.4e-5, "0.003 %"), (3e-9, "3e-07 %"), (0, "0.0 %")]
)
def test_small_chances_are_seen(chance: float, shown: str) -> None:
    assert percent(chance) == shown


def test_ctrl_c_ends_a_reply_on_a_terminal_and_the_program_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talking.sys.stdin, "isatty", lambda: True, raising=False)
    with talking._stopped_by_ctrl_c():
        raise KeyboardInterrupt
    monkeypatch.setattr(talking.sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(KeyboardInterrupt), talking._stopped_by_ctrl_c():
        raise KeyboardInterrupt
