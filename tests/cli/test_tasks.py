"""``glassformer fill``, ``classify``, ``tag``, ``answer``, ``score``, ``embed`` and ``env``."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import load_file

from glassformer import hub
from glassformer.cli import console
from glassformer.tasks.embed import embed
from glassformer.tasks.score import score, score_file, summarise
from tests.cli.test_generate import refused, rows, run
from tests.tasks.models import make

LABELS = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
TAGS = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}


def place(factory: pytest.TempPathFactory, architecture: str, kind: str, **facts: Any) -> hub.Loaded:
    return make(factory.mktemp(architecture), architecture, kind, **facts)[0]


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> hub.Loaded:
    return place(tmp_path_factory, "BertForMaskedLM", "words")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> hub.Loaded:
    return place(tmp_path_factory, "GPT2LMHeadModel", "bytes")


def alike(found: Any, expected: Any, bound: float = 1e-5) -> bool:
    """Whether two answers agree: numbers within a relative ``bound``, since other batches are other sums."""
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=bound, abs=1e-9))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(alike(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(alike(*pair) for pair in zip(found, expected, strict=True))
    return bool(found == expected)


def test_blanks_are_filled(masked: hub.Loaded) -> None:
    found = rows(run("fill", masked.path, "--json", "--top", "3", given="the [MASK] is\na [MASK] [MASK]\n"))
    assert [len(row["blanks"]) for row in found] == [1, 2]
    assert len(found[0]["fillings"]) == 3
    alone = rows(run("fill", masked.path, "the ___ is", "--blank", "___", "--top", "3", "--json"))
    assert alike(alone, found[:1])
    shown = run("fill", masked.path, "the [MASK] is", "--top", "3").stdout
    assert shown.count("%") == 3
    assert "has no blank" in refused(run("fill", masked.path, "the"))


def test_texts_and_pairs_are_labelled(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = place(tmp_path_factory, "BertForSequenceClassification", "words", **LABELS).path
    single = rows(run("classify", model, "the value", "--json"))
    assert {label["name"] for label in single[0]["labels"]} == {"bad", "good"}
    by_option = rows(run("classify", model, "the value", "--pair", "a list", "--json"))
    by_tab = rows(run("classify", model, "--tsv", "--json", given="the value\ta list\n"))
    assert alike(by_option, by_tab)
    assert by_tab[0]["pair"] == "a list"
    assert by_tab[0]["labels"] != single[0]["labels"]
    multi_label = rows(run("classify", model, "the value", "--multi-label", "--json"))[0]["labels"]
    assert sum(label["probability"] for label in multi_label) != pytest.approx(1)
    assert "good" in run("classify", model, "the value", "--pair", "a list").stdout
    assert "line 2 must be two texts" in refused(run("classify", model, "--tsv", given="a\tb\nc\n"))
    assert "2 texts need 2 --pair options, got 1" in refused(run("classify", model, "a", "b", "--pair", "c"))


def test_words_are_tagged(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = place(tmp_path_factory, "BertForTokenClassification", "words", **TAGS).path
    (row,) = rows(run("tag", model, "the value of python", "--json"))
    assert [word["text"] for word in row["words"]] == ["the", "value", "of", "python"]
    for entity in row["entities"]:
        assert row["text"][entity["start"] : entity["end"]] == entity["text"]
    shown = run("tag", model, "the value of python").stdout
    assert shown.count("[PER") == len(row["entities"])


def test_questions_are_answered(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    model = place(tmp_path_factory, "BertForQuestionAnswering", "words").path
    context = "the value of the function is returned"
    (row,) = rows(run("answer", model, "-q", "what is returned", "--json", given=context))
    answer = row["answers"][0]
    assert context[answer["start"] : answer["end"]] == answer["text"]
    assert alike(rows(run("answer", model, context, "-q", "what is returned", "--json")), [row])
    asked = json.dumps({"question": "what is returned", "context": context})
    assert alike(rows(run("answer", model, "--json", given=f"{asked}\n{asked}\n")), [row, row])
    shown = run("answer", model, context, "-q", "what is returned", "--top", "2", "--no-answer").stdout
    assert "no answer" in shown
    assert shown.count("%") == 3
    assert "line 1 must be a JSON object" in refused(run("answer", model, "--json", given="what\n"))
    path = tmp_path / "context.txt"
    path.write_text(context.replace(" of", "\nof"))
    assert rows(run("answer", model, "-q", "what", "--file", path, "--json"))[0]["context"].count("\n") == 1


def test_scores_of_texts_and_of_all_together(decoder: hub.Loaded, tmp_path: Path) -> None:
    texts = ["The value of the function", "Python has lists"]
    *each, last = rows(run("score", decoder.path, *texts, "--json"))
    expected = score(decoder, texts)
    assert alike([row["perplexity"] for row in each], [one.total.perplexity for one in expected])
    assert alike(last["total"]["perplexity"], summarise(expected).perplexity)
    assert "tokens" not in each[0]
    assert len(rows(run("score", decoder.path, texts[0], "--tokens", "--json"))[0]["tokens"]) > 3
    path = tmp_path / "long.txt"
    path.write_text("The value of the function is returned.\n" * 20)
    (row,) = rows(run("score", decoder.path, "--whole", "--file", path, "--stride", "8", "--window", "32", "--json"))
    assert alike(row["total"]["perplexity"], score_file(decoder, path, stride=8, window=32).perplexity)
    shown = run("score", decoder.path, *texts, "--tokens").stdout
    assert "perplexity" in shown
    assert "total" in shown
    assert "from --file or standard input" in refused(run("score", decoder.path, "a", "--whole"))
    assert "--stride 50 must be less than --window" in refused(run("score", decoder.path, "a b c", "--stride", "50"))


def test_a_long_text_is_scored_from_standard_input_too(decoder: hub.Loaded, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("The value of the function is returned.\n" * 9)
    by_file = run("score", decoder.path, "--whole", "--file", path, "--json")
    by_pipe = run("score", decoder.path, "--whole", "--json", given=path.read_text())
    assert alike(rows(by_pipe)[0]["total"], rows(by_file)[0]["total"])
    assert "leave out --tokens" in refused(run("score", decoder.path, "--whole", "--tokens", given="a b"))


def test_numbers_are_whole_on_a_narrow_terminal(decoder: hub.Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(console, "on_terminal", lambda: True)
    texts = ["The value of the function", "Python has lists"]
    shown = run("score", decoder.path, *texts).stdout
    for one in score(decoder, texts):
        assert f"{one.total.log_prob:.2f}" in shown
        assert f"{one.total.perplexity:,.3f}" in shown
    assert "The value o…" in shown
    alike = run("embed", decoder.path, *(f"The value {number}" for number in range(9))).stdout
    assert alike.count("1.00") >= 9
    assert "1,557,611,200" in run("info").stdout


def test_one_vector_shows_its_first_numbers(decoder: hub.Loaded) -> None:
    first = embed(decoder, ["a"])[0, :6].tolist()
    shown = "  ".join(f"{value:.4f}" for value in first)
    assert run("embed", decoder.path, "a").stdout == f"1 vector of 24 numbers\n{shown} …\n"


def test_masked_tokens_keep_the_spaces_between_them(masked: hub.Loaded) -> None:
    shown = run("score", masked.path, " the value is ", "--masked", "--tokens").stdout
    assert shown.startswith(" the value is \n")


def test_a_text_of_one_token_has_no_perplexity_and_the_json_is_valid(decoder: hub.Loaded) -> None:
    each, total = rows(run("score", decoder.path, "a", "--json"))
    assert each["perplexity"] is None
    assert total["total"]["predicted"] == 0
    assert "—" in run("score", decoder.path, "a").stdout


def test_masked_scores_are_asked_for_by_name(masked: hub.Loaded) -> None:
    assert "score it with --masked." in refused(run("score", masked.path, "the value"))
    each, _ = rows(run("score", masked.path, "the value", "--masked", "--json"))
    assert each["predicted"] == 2


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_vectors_are_printed_and_saved(masked: hub.Loaded, tmp_path: Path, suffix: str) -> None:
    texts, path = ["the value", "a list"], tmp_path / f"vectors{suffix}"
    found = rows(run("embed", masked.path, *texts, "--pool", "first", "--raw", "--out", path, "--json"))
    expected = embed(masked, texts, pool="first", normalise=False)
    vectors = numpy.array([row["vector"] for row in found])
    assert vectors == pytest.approx(expected.numpy(), rel=1e-5, abs=1e-6)
    stored = numpy.load(path) if suffix == ".npy" else load_file(path)["vectors"]
    assert stored == pytest.approx(expected.numpy(), rel=1e-5, abs=1e-6)
    assert "1.00" in run("embed", masked.path, *texts).stdout
    assert "must be one of" in refused(run("embed", masked.path, "a", "--out", tmp_path / "x.txt"))
    assert "there is no folder" in refused(run("embed", "nowhere", "a", "--out", tmp_path / "none/x.npy"))
    assert "must be one of" in refused(run("embed", masked.path, "a", "--pool", "largest"))


def significant(text: str) -> int:
    """How many significant digits a number in JSON has."""
    digits = re.sub(r"e.*", "", text.lower()).lstrip("-").replace(".", "").lstrip("0")
    return len(digits.rstrip("0") if "." in text else digits)


def test_what_a_model_computes_has_six_digits_and_counts_are_exact(masked: hub.Loaded, decoder: hub.Loaded) -> None:
    printed = [
        run("fill", masked.path, "the [MASK] is", "--top", "3", "--json"),
        run("embed", masked.path, "the value", "--raw", "--json"),
        run("score", decoder.path, "The value of", "--tokens", "--json"),
        run(
            "generate",
            decoder.path,
            "The value",
            "--max-new-tokens",
            "3",
            "--top-alternatives",
            "2",
            "--eos",
            "0",
            "--json",
        ),
    ]
    for one in printed:
        assert one.exit_code == 0, one.output
        numbers: list[str] = []
        json.loads(one.stdout.splitlines()[0], parse_float=numbers.append)
        assert numbers
        assert max(map(significant, numbers)) <= 6, numbers
    assert console.rounded({"count": 12345678, "share": 0.123456789, "none": None, "yes": True}) == {
        "count": 12345678, "share": 0.123457, "none": None, "yes": True,
    }  # fmt: skip
    assert math.isnan(console.rounded(math.nan))


def test_the_machine_describes_itself() -> None:
    (found,) = rows(run("env", "--json"))
    assert {"glassformer", "python", "torch", "tokenizers", "safetensors", "system", "cores", "threads"} <= set(found)
    shown = run("env").stdout
    assert found["torch"] in shown
    assert "memory_gib" in shown
