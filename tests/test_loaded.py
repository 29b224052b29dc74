"""What ``glassformer.load`` returns: a method for everything a model can do, typed, documented and honest."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

import glassformer
from glassformer.config.options import ModelOptions, option_types
from glassformer.generation.settings import GenerationOptions, GenerationSettings, TextOptions
from glassformer.loaded import NEEDS, Loaded, abilities
from glassformer.tasks.score import score_masked
from glassformer.training.api import Changes
from tests.generation.scripted import scripted
from tests.helpers import types_unchecked
from tests.tasks.models import make

# Settings that name tokens, which text functions take by their text too, or that may be lists.
WIDER = {
    "seed": int | Sequence[int],
    "bad_words": Sequence[str | Sequence[int]],
    "logit_bias": Mapping[int, float] | Mapping[str, float] | Mapping[int | str, float],
    "forced_first": int | str | None,
    "forced_last": int | str | None,
    "suppress": Sequence[int | str],
    "eos": int | str | Sequence[int | str],
    "stop": str | Sequence[str],
}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return make(tmp_path_factory.mktemp("classifier"), "BertForSequenceClassification", "words")[0]


def test_options_are_the_settings() -> None:
    """Stated twice, for the dataclass and for type checkers: the same names in the same order, the same types."""
    stated = {field.name: field.type for field in fields(GenerationSettings)}
    assert get_type_hints(GenerationOptions) == stated | WIDER
    assert list(GenerationOptions.__annotations__) == list(stated)
    assert set(WIDER) <= set(stated)


def test_every_setting_is_documented_once() -> None:
    doc = inspect.getdoc(TextOptions)
    assert doc is not None
    assert [name for name in option_types(TextOptions) if doc.count(f"\n    {name}: ") != 1] == []


@pytest.mark.parametrize("name", ["generate", "stream", "chat", "translate"])
def test_help_lists_every_setting(name: str) -> None:
    for function in (getattr(Loaded, name), getattr(glassformer, name)):
        parameters = inspect.signature(function).parameters
        assert set(option_types(TextOptions)) <= set(parameters)
        assert "top_k: sample among the k most probable tokens" in inspect.getdoc(function)


@pytest.mark.parametrize(("name", "options"), [("load", ModelOptions), ("train", Changes)])
def test_help_lists_the_options_of_load_and_train(name: str, options: type) -> None:
    function = getattr(glassformer, name)
    assert [*inspect.signature(function).parameters][-len(option_types(options)) :] == list(option_types(options))
    for option in option_types(options):
        assert f"\n    {option}: " in inspect.getdoc(function), option


FUNCTIONS: list[Callable[..., Any]] = [getattr(glassformer, name) for name in NEEDS]


@pytest.mark.parametrize("function", FUNCTIONS, ids=list(NEEDS))
def test_a_method_takes_what_its_function_takes(function: Callable[..., Any]) -> None:
    name = next(name for name in NEEDS if getattr(glassformer, name) is function)
    _, *own = inspect.signature(getattr(Loaded, name)).parameters.values()
    _, *theirs = inspect.signature(function).parameters.values()
    theirs = [p for p in theirs if not (name == "account" and p.name == "inputs")]  # for modules of other libraries
    assert [(p.name, p.kind, repr(p.default)) for p in own] == [(p.name, p.kind, repr(p.default)) for p in theirs]


def test_a_decoder_generates_by_its_methods(tmp_path: Path) -> None:
    loaded = scripted(tmp_path / "model", " two three", after=1)
    assert loaded.abilities == ("generate", "stream", "score", "embed", "account", "save")
    text = loaded.generate("a")
    assert str(text) == text.text == " two three"
    assert loaded.generate(["a"]) == [[text]] == glassformer.generate(loaded, ["a"])
    assert glassformer.generate(loaded, "a") == text
    assert "".join(loaded.stream("a", stop="three")) == " two "
    assert loaded.score(["two three"])[0].total.predicted > 0
    assert loaded.embed(["two"]).shape == (1, loaded.config.width)
    assert loaded.account(context=8).parameters == glassformer.num_parameters(loaded.model)
    again = glassformer.load(loaded.save(tmp_path / "again"))
    assert again.generate("a") == text
    loaded.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    assert loaded.abilities == ("generate", "stream", "chat", "score", "embed", "account", "save")
    assert loaded.chat("a").text == loaded.chat([{"role": "user", "content": "a"}]).text == " two three"


def test_one_prompt_gives_one_text(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, " two", after=1)
    with pytest.raises(ValueError, match=r"samples=3 requests several texts.*pass a list: \[prompt\]"):
        loaded.generate("a", samples=3, temperature=1.0)
    assert len(loaded.generate(["a"], samples=3, temperature=1.0)[0]) == 3


def test_one_text_gives_one_result(classifier: Loaded) -> None:
    assert classifier.classify("the value") == classifier.classify(["the value"])[0]
    assert torch.equal(classifier.embed("the value"), classifier.embed(["the value"])[0])
    filler, tagger, writer = (glassformer.load(name) for name in ("mlm-en", "ner-en", "stories"))
    blank = "There was a little [MASK] named Lily."
    assert filler.fill(blank) == filler.fill([blank])[0]
    assert score_masked(filler, "A dog.") == score_masked(filler, ["A dog."])[0]
    assert tagger.tag("Marie Curie.") == tagger.tag(["Marie Curie."])[0]
    assert writer.score("A dog.") == writer.score(["A dog."])[0]


def test_one_question_gives_one_answer(tmp_path: Path) -> None:
    reader = make(tmp_path, "BertForQuestionAnswering", "words")[0]
    question = ("the value", "the value of the key")
    assert reader.answer(question) == reader.answer([question])[0]


def test_chat_is_listed_only_with_a_template() -> None:
    stories = glassformer.load("stories")
    assert "chat" not in stories.abilities
    with pytest.raises(ValueError, match=r"this model is a decoder and supports: generate, stream, score, embed\.$"):
        stories.translate("A dog.")
    with pytest.raises(ValueError, match=r"no chat template.* supports: generate, stream, score, embed\.$"):
        stories.chat("A dog.")


def test_misspelt_settings_are_refused(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, " two", after=1)
    with pytest.raises(ValueError, match=r"got 'temperatures'\. Did you mean 'temperature'"):
        loaded.generate("a", temperatures=1)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["generate", "stream", "chat", "translate", "fill", "tag", "answer", "score"])
def test_what_a_model_cannot_do_says_what_it_can(classifier: Loaded, name: str) -> None:
    assert classifier.abilities == ("classify", "embed", "account", "save")
    message = rf"^{name} needs .* this model has a 'classify' head and supports: classify, embed\."
    for argument in ("a", ["a"], 42):  # before what is wrong with the argument
        with types_unchecked(), pytest.raises(ValueError, match=message):
            getattr(classifier, name)(argument)
    assert classifier.classify(["the value"])[0].labels


def test_every_method_is_possible_for_some_model() -> None:
    assert set(NEEDS) <= set(dir(Loaded))
    presets = [preset.facts for preset in glassformer.presets().values()]
    assert {"generate", "translate", "fill"} <= {name for facts in presets for name in abilities(facts)}


def test_a_model_shows_itself(classifier: Loaded) -> None:
    assert "\n" not in repr(classifier)
    assert repr(classifier).startswith("<Loaded bert, encoder, ")
    assert f"{glassformer.num_parameters(classifier.model):,} parameters, float64 on cpu" in repr(classifier)
    page = classifier._repr_html_()
    assert "can classify, embed, account, save" in page
    assert "<b>encoder</b>" in page
    assert "<li>placement: post</li>" in page
    hostile = replace(classifier, lineage="<script>alert(1)</script>")
    assert "<script>" not in hostile._repr_html_()
    assert "&lt;script&gt;" in hostile._repr_html_()


@pytest.mark.slow
def test_type_checkers_know_every_setting(tmp_path: Path) -> None:
    code = """
import glassformer
m = glassformer.load("x")
reveal_type(m.generate("a", temperature=1.0))
reveal_type(glassformer.generate(m, ["a"], stop="b", eos=[1, "c"]))
m.generate("a", temperatures=1)
m.generate("a", temperature="hot")
glassformer.stream(m, "a", top_q=1)
m.fill(["a"], tops=1)
reveal_type(m.fill("a"))
reveal_type(m.tag(["a"]))
reveal_type(m.answer(("a", "b")))
"""
    path = tmp_path / "user.py"
    path.write_text(code)
    root = Path(glassformer.__file__).parents[1]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False).stdout.splitlines()
    notes = [line for line in shown if "Revealed type" in line]
    assert ["generation.text.Text" in note for note in notes[:2]] == [True, True]
    assert "list[list[" in notes[1]
    results = [("Filled", False), ("Tagged", True), ("Answered", False)]
    assert [(name in note, "list[" in note) for (name, _), note in zip(results, notes[2:], strict=True)] == [
        (True, several) for _, several in results
    ]
    wrong = sorted({int(line.split(":")[1]) for line in shown if ": error:" in line})
    assert wrong == [6, 7, 8, 9], shown
