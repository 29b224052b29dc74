"""The shipped models: names, sizes, cards, and the same ids and output as in transformers."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner

import glassformer
from benchmarks.pretrained.cards import card, results_of
from glassformer import pretrained
from glassformer.cli.main import app
from glassformer.inspect.facts import facts_of
from glassformer.loaded import Loaded
from glassformer.recipes.files import read_recipe
from glassformer.text.languages import Languages
from glassformer.text.tokenizer import Tokenizer
from tests import forked

NAMES = ("en-zh", "stories", "mlm-en", "ner-en")
REQUIRED = ("I love you.", "Where is the station?", "Tom is a student.", "The weather is nice today.")
CHINESE = ("我爱你。", "车站在哪里？", "汤姆是学生。", "我妹妹在医院工作。")
TEXTS = ["Once upon a time, there was a little girl.", "Tom and Mary live in Warsaw.", "  Two  spaces, naïve 42!"]
CLASSES = {
    "en-zh": transformers.AutoModelForSeq2SeqLM,
    "stories": transformers.AutoModelForCausalLM,
    "mlm-en": transformers.AutoModelForPreTraining,
    "ner-en": transformers.AutoModelForTokenClassification,
}


@pytest.fixture(scope="module")
def loaded() -> dict[str, Loaded]:
    return {name: glassformer.load(name, dtype="float32", strict=True) for name in NAMES}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_sizes() -> None:
    sizes = [model.size for model in pretrained.MODELS.values()]
    assert pretrained.names() == NAMES
    assert max(sizes) <= 12e6
    assert sum(sizes) <= 30e6


def test_folders_hold_no_code() -> None:
    files = [file for name in NAMES for file in pretrained.path(name).iterdir()]
    assert {file.suffix for file in files} == {".json", ".md", ".safetensors"}
    assert not [file for file in files if file.suffix == ".json" and "auto_map" in json.loads(file.read_text("utf-8"))]


@pytest.mark.parametrize("name", NAMES)
def test_names_load_in_float32_and_folders_as_stored(name: str) -> None:
    for where, dtype, expected in (
        (name, None, torch.float32),
        (name, "bfloat16", torch.bfloat16),
        (pretrained.path(name), None, torch.bfloat16),
    ):
        model = glassformer.load(where, dtype=dtype)
        assert {weight.dtype for weight in model.model.parameters()} == {expected}
    assert sum(weight.numel() for weight in model.model.parameters()) == results_of(name)["parameters"]
    assert model.path == pretrained.path(name)


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_transformers(name: str, loaded: dict[str, Loaded]) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(pretrained.path(name))
    for text in (*TEXTS, "我叫Tom。"):
        assert loaded[name].tokenizer.encode(text) == theirs(text)["input_ids"]


@pytest.mark.parametrize("name", ["mlm-en", "ner-en"])
def test_encoders_give_the_numbers_of_transformers(name: str, loaded: dict[str, Loaded]) -> None:
    theirs = CLASSES[name].from_pretrained(pretrained.path(name), dtype=torch.float32).eval()
    for text in TEXTS:
        ids = torch.tensor([loaded[name].tokenizer.encode(text)])
        with torch.no_grad():
            ours, expected = loaded[name].model(ids), theirs(ids)
        pairs = zip(ours, expected[:2], strict=True) if isinstance(ours, tuple) else [(ours, expected[0])]
        for output, reference in pairs:
            torch.testing.assert_close(output, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["en-zh", "stories"])
def test_greedy_output_is_that_of_transformers(name: str, loaded: dict[str, Loaded]) -> None:
    theirs = CLASSES[name].from_pretrained(pretrained.path(name), dtype=torch.float32).eval()
    model = loaded[name]
    prompts: list[tuple[str, list[int], dict[str, int]]] = []
    if name == "en-zh":
        en, zh = (model.tokenizer.id_of(f"__{language}__") for language in ("en", "zh"))
        for text, source, target in [*((text, en, zh) for text in REQUIRED), *((text, zh, en) for text in CHINESE)]:
            ids = [source, *model.tokenizer.encode(text, special=False), int(model.tokenizer.eos or 0)]
            prompts.append((text, ids, {"forced_bos_token_id": target}))
    else:
        prompts = [(text, model.tokenizer.encode(text), {}) for text in ("Once upon a time", "Tom saw a dog")]
    greedy = {"do_sample": False, "num_beams": 1, "max_new_tokens": 24}
    for text, ids, options in prompts:
        expected = theirs.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **greedy, **options)
        write = model.translate if name == "en-zh" else model.generate
        output = write(text, beam_size=1, temperature=0, max_new_tokens=24)
        start = 1 if name == "en-zh" else len(ids)
        assert output.written.ids == expected[0, start:].tolist()


def test_translations_are_those_of_the_results(loaded: dict[str, Loaded]) -> None:
    expected = {
        row["source"]: row["written"] for row in results_of("en-zh")["evaluation"]["en-zh"]["ordinary sentences"]
    }
    assert [str(loaded["en-zh"].translate(text)) for text in REQUIRED] == [expected[text] for text in REQUIRED]
    assert [expected[text] for text in REQUIRED] == ["我爱你。", "车站在哪里？", "汤姆是个学生。", "今天天气很好。"]


def test_direction_follows_the_script_in_mixed_lists(loaded: dict[str, Loaded]) -> None:
    model = loaded["en-zh"]
    texts = ["I love you.", "车站在哪里？", "Tom is a student.", "今天会下雨。"]
    together = [str(outputs[0]) for outputs in model.translate(texts)]
    assert together == [str(model.translate(text)) for text in texts]
    assert together[:3] == ["我爱你。", "Where is the station?", "汤姆是个学生。"]
    assert together[3].isascii()
    assert str(model.translate("Tom!", target="en")) == str(model.translate("Tom!", source="zh", target="en"))
    assert model.translate([]) == []


def test_directions() -> None:
    languages = Languages({"en": 4, "zh": 5}, {"__en__": 4, "__zh__": 5}, "m2m100")
    assert languages.direction("我叫Tom Hanks。", None, None) == ("zh", "en")
    assert languages.direction("How do you say 你好 in English?", None, None) == ("en", "zh")
    assert languages.direction("42", None, "zh") == ("en", "zh")
    assert languages.direction("42", "__zh__", None) == ("__zh__", "en")
    assert languages.direction("你好", "en", "en") == ("en", "en")
    with pytest.raises(ValueError, match="neither Chinese characters nor Latin letters"):
        languages.direction("42", None, None)
    several = Languages({"en": 4, "zh": 5, "de": 6}, {}, "m2m100")
    assert several.direction("I love you.", None, None) == (None, None)


def test_the_command_works_in_an_empty_folder() -> None:
    result = forked.run(forked.program, "translate", "en-zh", "I love you.")
    assert (result.returncode, result.stdout) == (0, "我爱你。\n")


def test_names_are_taken_where_folders_are(tmp_path: Path) -> None:
    runner = CliRunner()
    for arguments in (["info", "stories"], ["account", "en-zh"], ["tokenizer", "show", "mlm-en", "Hello"]):
        assert runner.invoke(app, arguments).exit_code == 0
    assert runner.invoke(app, ["convert", "ner-en", "copy"]).exit_code == 0
    assert (tmp_path / "copy" / "model.safetensors").is_file()
    assert Tokenizer.load("stories").eos == 0
    assert facts_of("en-zh").family == "encoder-decoder"
    result = runner.invoke(app, ["convert", "ner-en", str(pretrained.path("ner-en")), "--force"])
    assert "is SOURCE itself" in result.output
    assert not set(pretrained.names()) & set(glassformer.presets())


def test_an_existing_path_comes_first(tmp_path: Path) -> None:
    (tmp_path / "stories").mkdir()
    assert pretrained.resolve("stories") == Path("stories")
    assert pretrained.resolve("other") == Path("other")
    with pytest.raises((OSError, ValueError), match="config"):
        glassformer.load("stories")


@pytest.mark.parametrize("read", [glassformer.load, facts_of, pretrained.path])
def test_errors_list_the_shipped_models(read: object) -> None:
    assert callable(read)
    with pytest.raises(ValueError, match="en-zh, stories, mlm-en, ner-en"):
        read("en-za")


def test_the_card_of_the_translator_shows_how_transformers_uses_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = (pretrained.path("en-zh") / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == code.rpartition("# ")[2]


def test_commands_and_the_viewer_give_the_same_numbers() -> None:
    """Both in float32, and as the cards say; in the stored type, probabilities would differ in the second digit."""
    text = "The bird could [MASK] high in the sky."
    printed = CliRunner().invoke(app, ["fill", "mlm-en", text, "--json"]).output
    guesses = json.loads(printed)["blanks"][0]["guesses"]
    exact = glassformer.load("mlm-en", dtype="float32").fill(text).blanks[0].guesses
    assert [guess["token"] for guess in guesses] == [guess.token for guess in exact]
    assert [guess["probability"] for guess in guesses] == pytest.approx([guess.probability for guess in exact])
    sample = next(s for s in results_of("mlm-en")["evaluation"]["samples"] if s["text"] == text)
    assert [[guess.token, round(guess.probability, 3)] for guess in exact] == [
        [w, round(p, 3)] for w, p in sample["words"]
    ]


@pytest.mark.parametrize("name", NAMES)
def test_cards_and_scores_are_those_of_the_results(name: str) -> None:
    text = (pretrained.path(name) / "README.md").read_text(encoding="utf-8")
    assert text == card(name), "run python -m benchmarks.pretrained.cards"
    assert "licen" in text.partition("---\n\n")[0]
    result = read_recipe(name).expected
    evaluation = results_of(name)["evaluation"]
    scores = {
        "en-zh": lambda e: [f"chrF {e['en-zh']['model']['chrf']:.1f}", f"{e['zh-en']['model']['chrf']:.1f} to English"],
        "stories": lambda e: [f"perplexity {e['test']['perplexity per token']:.1f} per token"],
        "mlm-en": lambda e: [f"{100 * e['test']['masked accuracy']:.1f} % of masked"],
        "ner-en": lambda e: [f"entity F1 {e['test']['entity f1']:.3f}"],
    }[name](evaluation)
    assert all(score in pretrained.MODELS[name].score for score in scores)
    assert name == "mlm-en" or all(score in result.result for score in scores if "English" not in score)
    assert result.gpu_minutes == round(results_of(name)["training seconds"] / 60, 1)
