"""Errors in the program's words, and what is asked before a model is loaded."""

import pickle
from pathlib import Path

import pytest
import typer

from glassformer.cli import chat as talking
from glassformer.cli.errors import InputError, counting, in_words, plain_errors
from glassformer.cli.outputs import percent
from glassformer.config.checks import Setting, SettingError, check_choice, check_divides, check_positive
from glassformer.data.batching import BudgetPlan
from glassformer.training.parallel import FailedElsewhereError, LostProcessError


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("say truncate='left' (or 'right')", "say --truncate left (or 'right')"),
        ("beam_size=5 searches, temperature=1.0 draws;", "--beam-size 5 searches, --temperature 1.0 draws;"),
        ("set top_beams=2.", "set --top-beams 2."),
        ("blank= lets another string", "--blank lets another string"),
        ("Say several=True for yes", "Say --several for yes"),
        ("early_stopping=True needs", "--early-stopping yes needs"),
        ("bad_words names 7", "--bad-word names 7"),
        ("leave out source=None and target='de'.", "leave out --from and --to de."),
        ("temperature must be 0 or more", "--temperature must be 0 or more"),
        ("no room at temperature 0", "no room at temperature 0"),
        ("Another prefix: Task('words: ').", "Another prefix: --prefix 'words: '."),
        ("text 0 has no blank", "text 1 has no blank"),
        ("question 9 has 3 tokens", "question 10 has 3 tokens"),
        ("this model judges pairs, and text 2 is a single one", "this model judges pairs, and text 3 is a single one"),
        ("word 2 of text 0, 'a', gives no token", "word 2 of text 1, 'a', gives no token"),
        ("beside question 3, 7 of its context fit.", "beside question 4, 7 of its context fit."),
        ("1 of the 2 blanks of text 0 would be cut off", "1 of the 2 blanks of text 1 would be cut off"),
        ("text 3.jsonl:2: invalid JSON", "text 3.jsonl:2: invalid JSON"),
        ("data.train has no rows: my text 3/prompt 4.csv.", "data.train has no rows: my text 3/prompt 4.csv."),
        ("text 3:2: empty text", "text 3:2: empty text"),
        (
            "a fact of data must be one of limit, max_new_tokens, on_bad_row; got 'x'.",
            "a fact of data must be one of limit, max_new_tokens, on_bad_row; got 'x'.",
        ),
        ("run.average must be float or None, got 'x'.", "run.average must be a number or null, got 'x'."),
        ("recipe a: data.header must be bool, got 'no'.", "recipe a: data.header must be true or false, got 'no'."),
        ("data.languages must be tuple, got 'en'.", "data.languages must be a list such as [a, b], got 'en'."),
        ("Correct the row, or say quoted=True for", "Correct the row, or say data.quoted=true for"),
        ("close them, or say quoted=False, or", "close them, or say data.quoted=false, or"),
        ("Correct it, or add it to labels=, or", "Correct it, or add it to data.columns.labels, or"),
        (
            "marker= goes with documents=\"marker\"; got documents='line', marker='x'.",
            "data.marker goes with data.documents=marker; got data.documents='line', data.marker='x'.",
        ),
        ("a has the splits b, c; say split=, got 'd'.", "a has the splits b, c; data.split says 'd'."),
        ("/a/path=x/top_k=3", "/a/path=x/top_k=3"),
        ('leave such rows out with on_bad_row="skip".', "leave such rows out with --on-bad-row skip."),
        ("min_frequency must be at least 1", "--min-frequency must be at least 1"),
        ("data.on_bad_row must be one of skip, stop", "data.on_bad_row must be one of skip, stop"),
        ("vocab_size must be at least 261 here: 256 for", "tokenizer.size must be at least 261 here: 256 for"),
        ("vocab_size must be at least 1, got 0.", "vocab_size must be at least 1, got 0."),
    ],
)
def test_the_library_s_words_become_the_program_s(said: str, shown: str) -> None:
    assert in_words(ValueError(said)) == shown


@pytest.mark.parametrize(
    ("error", "in_python", "shown"),
    [
        (
            SettingError("{} searches, {} draws.", Setting("beam_size", 5), Setting("temperature", 1.0)),
            "beam_size=5 searches, temperature=1.0 draws.",
            "--beam-size 5 searches, --temperature 1.0 draws.",
        ),
        (SettingError("{}.", Setting("early_stopping", True)), "early_stopping=True.", "--early-stopping yes."),
        (SettingError("say {}.", Setting("several", True)), "say several=True.", "say --several."),
        (SettingError("use {}.", Setting("suppress", (5,))), "use suppress=(5,).", "use --suppress 5."),
        (SettingError("{}, {}", Setting("source"), Setting("target", "de")), "source, target='de'", "--from, --to de"),
        (SettingError("into {}", Setting("fresh", ["head.*"])), "into fresh=['head.*']", "into --fresh head.*"),
        (SettingError("{} must be 1.", Setting("vocab_size")), "vocab_size must be 1.", "vocab_size must be 1."),
        (SettingError("{} {{}} {}", Setting("top_p"), "{top_k=3}"), "top_p {} {top_k=3}", "--top-p {} {top_k=3}"),
        (SettingError("pass {}", Setting("kind", outside="tokenizer_kind")), "pass kind", "pass --tokenizer-kind"),
        (SettingError("text 0 has {}", Setting("top")).prefixed("{}: "), "{}: text 0 has top", "{}: text 1 has --top"),
    ],
)  # fmt: skip
def test_settings_are_spelt_as_options(error: SettingError, in_python: str, shown: str) -> None:
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == in_python
        assert in_words(one) == shown


def test_checks_name_their_settings_as_data() -> None:
    for check, shown in (
        (lambda: check_positive(top_k=0), "--top-k must be at least 1, got 0."),
        (lambda: check_choice("head", "lmm", ("lm",)), "--head must be one of lm; got 'lmm'. Did you mean 'lm'?"),
        (lambda: check_choice("a fact of data", "x", ("top_k",)), "a fact of data must be one of top_k; got 'x'."),
        (lambda: check_divides("beam_groups", 2, "beam_size", 3), "--beam-groups 2 does not divide --beam-size 3; "
         "values near it that do: 1, 3."),
    ):  # fmt: skip
        with pytest.raises(SettingError) as caught:
            check()
        assert in_words(caught.value) == shown


def test_parts_of_the_input_count_on_and_own_words_stay() -> None:
    with pytest.raises(InputError, match=r"^prompt 17 is long; set --beam-size 2$"), counting(16):
        raise ValueError("prompt 0 is long; set beam_size=2")
    with pytest.raises(InputError, match=r"^text 1 has top_k=2$"), counting(16):
        raise InputError("text 1 has top_k=2")


def test_files_are_told_by_path_and_reason(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "there is no such file"), (tmp_path, "this is a folder, not a file")):
        with pytest.raises((FileNotFoundError, IsADirectoryError)) as caught:
            path.read_bytes()
        assert in_words(caught.value) == f"{path}: {reason}."


@pytest.mark.parametrize(
    "error", [TypeError("x"), IndexError("x"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_what_input_can_cause_is_a_paragraph(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, plain_errors():
        raise error
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FloatingPointError("the loss became nan at step 3; Try a lower lr."), "the loss became nan at step 3"),
        (LostProcessError("process 1 of 2 waited"), "process 1 of 2 waited"),
        (FailedElsewhereError("the first process failed"), "the first process failed"),
        (RuntimeError("Found no NVIDIA driver on your system.\nPlease"), "Found no NVIDIA driver on your system; take"),
        (RuntimeError("No CUDA GPUs are available"), "run.device=cpu"),
        (AssertionError("Torch not compiled with CUDA enabled"), "--device cpu"),
    ],
)
def test_what_a_run_can_meet_is_a_line(error: Exception, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, plain_errors():
        raise error
    assert caught.value.exit_code == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), AssertionError("shapes"), RecursionError("deep")])
def test_faults_stay_tracebacks(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), plain_errors():
        raise error


def test_a_row_that_no_batch_holds_is_told_in_the_recipe_s_words() -> None:
    with pytest.raises(ValueError, match="too_long") as caught:
        BudgetPlan([3, 9], 4, seed=0)
    assert in_words(caught.value) == (
        "example 1 has 9 tokens, more than 4 (1 of 2 do). Raise batch.tokens, or lower batch.length."
    )


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
