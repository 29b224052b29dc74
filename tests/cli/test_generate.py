"""``glassformer generate``, ``translate``, ``summarise``, ``task`` and ``chat``: what goes in and what is printed."""

import json
import re
from collections.abc import Generator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import transformers
import typer
from typer.testing import CliRunner, Result

from glassformer import hub
from glassformer.cli import generate as printing
from glassformer.cli.main import app
from glassformer.cli.options import SEARCH
from glassformer.generation import text as generation_text
from glassformer.generation.search import GenerationOutput
from glassformer.generation.settings import GenerationSettings
from glassformer.generation.text import Text, generate_text
from tests.generation.scripted import scripted
from tests.tasks.models import make

SAYS = "日本 語😀👩‍👩‍👧 é, the end"
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
FACTS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def run(*arguments: str | Path, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=given, color=False)


def rows(result: Result) -> list[dict[str, Any]]:
    """Standard output as JSON objects; anything else there fails."""
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("\n")
    found = [json.loads(line, parse_constant=pytest.fail) for line in result.stdout.removesuffix("\n").split("\n")]
    assert all(isinstance(row, dict) for row in found)
    return found


def refused(result: Result) -> str:
    """The one paragraph of an error."""
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder that says the same after every prompt of one token."""
    return scripted(tmp_path_factory.mktemp("scripted"), SAYS, after=1).path


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> hub.Loaded:
    return make(tmp_path_factory.mktemp("decoder"), "GPT2LMHeadModel", "bytes", eos_token_id=0)[0]


@pytest.fixture
def seq2seq(tmp_path: Path) -> hub.Loaded:
    loaded = make(tmp_path / "model", "BartForConditionalGeneration", "angled", **FACTS)[0]
    config = json.loads((loaded.path / "config.json").read_text())
    config["task_specific_params"] = {
        "summarization": {"prefix": "summarize: ", "max_length": 6},
        "translation_en_to_de": {"prefix": "translate English to German: ", "max_length": 5},
    }
    (loaded.path / "config.json").write_text(json.dumps(config))
    (loaded.path / "generation_config.json").unlink()
    return loaded


# ---- what is printed


def test_two_lines_in_two_json_objects_out(folder: Path) -> None:
    found = rows(run("generate", folder, "--json", given="a\nb\n"))
    assert [row["prompt"] for row in found] == ["a", "b"]
    assert [row["text"] for row in found] == [SAYS, SAYS]
    assert found[0]["ended"] == "eos"
    assert found[0]["prompt_tokens"] == 1


def test_people_see_prompt_and_text(folder: Path) -> None:
    assert run("generate", folder, "a").stdout == f"a{SAYS}\n"
    assert run("generate", folder, "a", "b").stdout == f"a{SAYS}\nb{SAYS}\n"


def test_a_terminal_gets_headings_and_a_pipe_none(
    folder: Path, seq2seq: hub.Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ("task", seq2seq.path, "Python has lists", "a", "--prefix", "x ", "--max-new-tokens", "3")
    piped = run(*answers).stdout
    assert piped.count("\n") == 2
    assert "Python has lists" not in piped
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    many = run("generate", folder, "a", "b").stdout
    assert many.count(SAYS) == 2
    assert "ended by itself" in many
    assert run("generate", folder, "a", "b", "--stream").stdout == f"── 1 of 2\na{SAYS}\n── 2 of 2\nb{SAYS}\n"
    shown = run(*answers).stdout
    assert shown.count("Python has lists\n") == 1
    assert shown.count("── ") == 2


def test_a_stream_shows_the_same_text(folder: Path) -> None:
    assert run("generate", folder, "a", "--stream").stdout == f"a{SAYS}\n"
    assert run("generate", folder, "a", "b", "--stream").stdout == f"a{SAYS}\nb{SAYS}\n"


def test_a_stream_is_flushed_piece_by_piece(folder: Path) -> None:
    found = rows(run("generate", folder, "a", "--stream", "--json"))
    pieces = [row["piece"] for row in found if "piece" in row]
    assert len(pieces) > 5
    assert "".join(pieces) == found[-1]["text"] == SAYS
    assert not any("\ufffd" in piece for piece in pieces)


def test_stop_strings_and_line_breaks(tmp_path: Path) -> None:
    folder = scripted(tmp_path, "one\ntwo", after=1).path
    assert rows(run("generate", folder, "a", "--stop", r"\n", "--json"))[0]["text"] == "one"
    assert run("generate", folder, "a", "--stop", "tw", "--stream").stdout == "aone\n\n"


def test_control_characters_of_a_text_do_not_reach_the_terminal(tmp_path: Path) -> None:
    folder = scripted(tmp_path, "\x1b[31mred\x07", after=1).path
    assert "\x1b" not in run("generate", folder, "a").stdout + run("generate", folder, "a", "--stream").stdout
    assert rows(run("generate", folder, "a", "--json"))[0]["text"] == "\x1b[31mred\x07"


def test_alternatives_and_record(decoder: hub.Loaded, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    options = ("--beam-size", "3", "--top-beams", "2", "--max-new-tokens", "4", "--top-alternatives", "2")
    found = rows(run("generate", decoder.path, "The", *options, "--record", path, "--json"))
    assert [row["sample"] for row in found] == [0, 1]
    assert found[0]["score"] >= found[1]["score"]
    assert all(len(token["alternatives"]) == 2 for token in found[0]["tokens"])
    (record,) = json.loads(path.read_text())
    assert [text["text"] for text in record["texts"]] == [row["text"] for row in found]
    (nodes,) = record["searches"]
    assert {node["status"] for node in nodes} == {"kept", "dropped", "ended"}
    table = run("generate", decoder.path, "The", *options).stdout
    assert table.count("most probable") == 2
    assert "%" in table


def test_the_tree_of_a_beam_search(decoder: hub.Loaded) -> None:
    options = ("--beam-size", "3", "--max-new-tokens", "4")
    plain = run("generate", decoder.path, "The", *options).stdout
    text, _, tree = run("generate", decoder.path, "The", *options, "--beam-tree").stdout.partition("\n\n")
    assert text + "\n" == plain
    ranks = re.findall(r"^([1-9]) +(-\d+\.\d\d) +-\d+\.\d\d  ", tree, re.MULTILINE)
    scores = [float(score) for _, score in sorted(ranks)]
    assert [rank for rank, _ in sorted(ranks)] == ["1", "2", "3"]
    assert scores == sorted(scores, reverse=True)
    assert "another search" in refused(run("generate", decoder.path, "The", "--beam-tree"))
    assert "leave out --stream" in refused(run("generate", decoder.path, "The", "--beam-tree", "--stream"))


def test_texts_are_printed_as_they_are_finished_in_the_order_of_the_input(
    decoder: hub.Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[int] = []
    before: list[int] = []
    monkeypatch.setattr(printing, "print_rounded_json", lambda row: printed.append(row["number"]))

    def remember(loaded: hub.Loaded, given: Any, **options: Any) -> Any:
        before.append(len(printed))
        return generate_text(loaded, given, **options)

    monkeypatch.setattr(generation_text, "generate_text", remember)
    prompts = "".join(f"{'The value ' * (1 + number % 3)}\n" for number in range(20))
    arguments = ("--json", "--batch-size", "1", "--max-new-tokens", "1")
    assert run("generate", decoder.path, *arguments, given=prompts).exit_code == 0
    assert printed == list(range(20))
    assert before == [0, 8, 16]


def test_a_prompt_of_a_later_slice_is_refused_first_and_by_its_own_number(decoder: hub.Loaded) -> None:
    prompts = "a\n" * 9 + "word " * 60 + "\n"
    assert "prompt 10 has" in refused(run("generate", decoder.path, "--batch-size", "1", "--json", given=prompts))


def test_a_text_that_was_cut_off_says_so_on_a_terminal(decoder: hub.Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(printing, "note", notes.append)
    arguments = ("generate", decoder.path, "word " * 60, "--truncate", "left", "--max-new-tokens", "3", "--suppress=0")
    run(*arguments)
    assert notes == []  # nobody sees standard error
    monkeypatch.setattr(printing, "stderr_on_terminal", lambda: True)
    run(*arguments)
    assert notes[0] == "stopped after 3 tokens (--max-new-tokens)."
    assert re.fullmatch(r"cut off from the prompt: \d+ tokens \(--truncate\)\.", notes[1])


def test_the_space_before_an_answer_is_not_a_part_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    whole = printing.print_pieces(printing._stripped(_says(" ", " a", " b")), None)
    assert whole.text == capsys.readouterr().out == " a b"


def _says(*pieces: str) -> Generator[str, None, Text]:
    yield from pieces
    return Text("".join(pieces), GenerationOutput([], [], 0.0, "eos"), 1)


# ---- every option arrives


def test_every_setting_has_an_option() -> None:
    names = {field.name for field in fields(GenerationSettings)} - {"record"}
    assert names == set(SEARCH)
    parameters = {parameter.name for parameter in typer.main.get_command(app).commands["generate"].params}  # type: ignore[attr-defined]
    assert names <= parameters


def test_options_become_settings(decoder: hub.Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def remember(loaded: hub.Loaded, given: Any, **options: Any) -> Any:
        seen.update(options)
        return generate_text(loaded, given, max_new_tokens=1)

    monkeypatch.setattr(generation_text, "generate_text", remember)
    given = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8, "samples": 2, "seed": 3,
        "repetition_penalty": 1.2, "no_repeat_ngram": 3, "min_new_tokens": 1, "max_new_tokens": 9, "beam_size": 1,
        "length_penalty": 0.5, "length_rule": "gnmt", "beam_groups": 1, "diversity": 0.0, "top_beams": 1,
        "contrastive_alpha": 0.6, "top_alternatives": 4,
    }  # fmt: skip
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    lists = ["--stop=x", r"--stop=\n", "--eos=5", "--eos=</s>", "--suppress=7", "--bad-word=no", "--forced-first=3"]
    lists += ["--forced-last=the", "--logit-bias=5=-2", "--logit-bias= the=1.5", "--early-stopping=never"]
    assert run("generate", decoder.path, "a", *flags, *lists, "--attention=eager", "--chunk=2").exit_code == 0
    assert {name: seen[name] for name in given} == given
    assert (seen["stop"], seen["eos"], seen["suppress"], seen["bad_words"]) == (["x", "\n"], [5, "</s>"], [7], ["no"])
    assert (seen["forced_first"], seen["forced_last"], seen["early_stopping"]) == (3, "the", "never")
    assert seen["logit_bias"] == {5: -2.0, " the": 1.5}
    assert (seen["path"], seen["chunk"], seen["batch_size"]) == ("eager", 2, 8)
    seen.clear()
    run("generate", decoder.path, "a")
    assert set(seen) == {"truncate", "keep_special", "batch_size", "progress"}  # nothing else is assumed


def test_attention_batches_and_drafts_leave_the_text_alone(decoder: hub.Loaded) -> None:
    plain = rows(run("generate", decoder.path, "The value", "a", "--json", "--max-new-tokens", "8"))
    drafts = (["--draft", "lookup"], ["--draft", str(decoder.path)])
    for more in (["--attention", "eager"], ["--batch-size", "1"], *drafts):
        again = rows(run("generate", decoder.path, "The value", "a", "--json", "--max-new-tokens", "8", *more))
        assert [row["text"] for row in again] == [row["text"] for row in plain], more


def test_a_draw_repeats_with_its_seed(decoder: hub.Loaded) -> None:
    draws = [
        rows(run("generate", decoder.path, "a", "--temperature", "2", "--seed", seed, "--json"))[0]["text"]
        for seed in ("1", "1", "2")
    ]
    assert draws[0] == draws[1] != draws[2]


def test_recommendations_that_are_not_followed_are_noted_beside_the_output(tmp_path: Path) -> None:
    folder = scripted(tmp_path, "x", after=1, generation_config={"do_sample": True, "top_p": 0.5}).path
    result = run("generate", folder, "a", "--beam-size", "2", "--json", "--max-new-tokens", "2")
    assert len(rows(result)) == 1
    assert "top_p=0.5" in result.stderr


# ---- what is read


def test_a_file_is_read_line_by_line(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\r\n\r\nc")
    assert "line 3 of" in refused(run("generate", folder, "--file", path))
    found = rows(run("generate", folder, "--file", path, "--skip-empty", "--json"))
    assert [row["prompt"] for row in found] == ["a", "b", "c"]
    path.write_bytes(b"a\n\xff\n")
    assert "line 2 of" in refused(run("generate", folder, "--file", path))
    assert "holds no text" in refused(run("generate", folder, "--skip-empty", given="\n"))
    assert "use one of them" in refused(run("generate", folder, "a", "--file", path))
    assert "none: there is no such file." in refused(run("generate", folder, "--file", tmp_path / "none"))


def test_row_24_bos_once_whatever_the_user_writes(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "x", after=3, kind="bytes with bos")
    expected = len(loaded.tokenizer.encode("Hello"))
    for prompt in ("Hello", "<|endoftext|>Hello"):
        for more in ([], ["--stream"]):
            row = rows(run("generate", loaded.path, prompt, "--json", "--max-new-tokens", "1", *more))[-1]
            assert row["prompt_tokens"] == expected


def test_an_empty_argument_begins_from_bos(folder: Path) -> None:
    assert rows(run("generate", folder, "", "--json"))[0]["text"] == SAYS


def test_prompts_that_are_too_long(decoder: hub.Loaded) -> None:
    words = "word " * 60
    assert "error: prompt 1 has" in (notes := refused(run("generate", decoder.path, words)))
    assert "--truncate left" in notes
    (row,) = rows(run("generate", decoder.path, words, "--truncate", "left", "--max-new-tokens", "5", "--json"))
    assert row["prompt_tokens"] == decoder.config.max_length - 5
    assert row["cut_tokens"] > 0


def test_examples_show_a_task(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text('{"input": "1", "output": "one"}\n')
    tokens = len(scripted(tmp_path / "a", "", after=1).tokenizer.encode("1 = one; 2 ="))
    folder = scripted(tmp_path / "b", " two; 3", after=tokens).path
    more = ("--examples", path, "--template", "{input} = {output}; ", "--json")
    assert rows(run("generate", folder, "2", *more))[0]["text"] == "two"
    assert [row.get("text", "two") for row in rows(run("generate", folder, "2", *more, "--stream"))][-1] == "two"
    assert run("generate", folder, "2", *more[:-1], "--stream").stdout == "two\n"
    path.write_text('{"input": "1"}\n')
    assert "examples.jsonl, line 1" in refused(run("generate", folder, "2", *more))
    assert "--examples" in refused(run("generate", folder, "2", "--template", "x"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--temperature", "-1"), "temperature must be 0"),
        (("--top-k", "5"), "would have no effect at temperature 0"),
        (("--dtype", "float31"), "Did you mean 'float32'"),
        (("--device", "cuda:99"), "cannot be used here"),
        (("--device", "nonsense"), "cannot be used here"),
        (("--attention", "quick"), "--attention must be one of eager, sdpa"),
        (("--truncate", "middle"), "truncate must be one of"),
        (("--logit-bias", "5"), "TOKEN=VALUE"),
        (("--early-stopping", "perhaps"), "never"),
        (("--device", "meta"), "choose cpu, cuda, cuda:1, mps or xpu"),
        (("--beam-size", "2", "--stream"), "leave --beam-size at 1, or do not stream"),
        (("--samples", "2", "--temperature", "1", "--stream"), "--samples"),
        (("--beam-size", "5", "--temperature", "1.0"), "--beam-size 5 selects beam search, --temperature 1.0 sampling"),
        (("--record", "nowhere/x.json"), "--record nowhere/x.json: there is no folder nowhere."),
        (("--stop", "caf\udce9"), "--stop is not UTF-8"),
        (("--bad-word", "caf\udce9"), "--bad-word is not UTF-8"),
        (("caf\udce9",), "text 2 is not UTF-8"),
        (("--record", "x.json", "--stream"), "leave out --stream"),
        (("--draft", "nowhere/at/all"), "no such folder or file"),
    ],
)
def test_nonsense_is_one_paragraph_and_code_2(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(run("generate", folder, "a", "--json", *arguments))


def test_a_model_without_tokenizer_or_head(tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=31, n_embd=12, n_layer=1, n_head=3, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "bare")
    assert "tokenizer" in refused(run("generate", tmp_path / "bare", "a"))
    encoder, _ = make(tmp_path / "encoder", "BertForMaskedLM", "words")
    assert "this model is an encoder" in refused(run("generate", encoder.path, "a"))


# ---- encoder-decoders


def test_tasks_by_name_and_by_prefix(seq2seq: hub.Loaded) -> None:
    def text(*arguments: str) -> str:
        (row,) = rows(run(*arguments, "--json"))
        assert row["prompt"] == "Python has lists"
        return str(row["text"])

    expected = generate_text(seq2seq, ["summarize: Python has lists"], max_new_tokens=5)[0][0].text.removeprefix(" ")
    place, words = str(seq2seq.path), "Python has lists"
    assert text("summarise", place, words) == expected
    assert text("task", place, words, "--name", "summarization") == expected
    assert text("task", place, words, "--prefix", "summarize: ", "--max-new-tokens", "5") == expected
    german = ["translate English to German: Python has lists"]
    expected = generate_text(seq2seq, german, max_new_tokens=4)[0][0].text.removeprefix(" ")
    assert text("translate", place, words, "--from", "en", "--to", "de") == expected
    streamed = run("translate", place, words, "--from", "en", "--to", "de", "--stream").stdout
    assert streamed == f"{expected}\n"
    assert "only summarization, translation_en_to_de" in refused(run("task", place, words, "--name", "summary"))
    assert "set the task once" in refused(run("task", place, words))
    assert "set both languages, --from and --to;" in refused(run("translate", place, words, "--to", "de"))


def test_a_whole_file_is_summarised_as_one_text(seq2seq: hub.Loaded, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("Python\nhas\n\nlists\n")
    (row,) = rows(run("summarise", seq2seq.path, "--whole", "--file", path, "--json"))
    assert row["prompt"] == "Python\nhas\n\nlists\n"


def test_a_decoder_does_not_translate(folder: Path) -> None:
    for command, *options in (["translate"], ["summarise"], ["task", "--name", "summarization"]):
        message = refused(run(command, folder, "a", *options))
        assert f"{command} needs an encoder-decoder; this model is a decoder and supports: generate" in message


# ---- conversations


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says "Hello 😀" to one message "Hi", and something else to any other conversation."""
    first = scripted(tmp_path_factory.mktemp("first"), "", after=1)
    first.tokenizer.chat_template = CHAT
    tokens = len(first.tokenizer.chat([{"role": "user", "content": "Hi"}]))
    loaded = scripted(tmp_path_factory.mktemp("chat"), "Hello 😀", after=tokens)
    loaded.tokenizer.chat_template = CHAT
    loaded.tokenizer.save(loaded.path)
    return loaded.path


def test_chat_from_a_pipe_line_by_line(chatty: Path) -> None:
    assert run("chat", chatty, given="Hi\n").stdout == "Hello 😀\n"
    found = rows(run("chat", chatty, "--json", "--max-new-tokens", "9", given="Hi\nHi\n/reset\n\nHi\n/exit\nHi\n"))
    assert [row["role"] for row in found] == ["assistant"] * 3
    assert found[0]["content"] == found[2]["content"] == "Hello 😀"
    assert found[1]["content"] != "Hello 😀"  # the conversation before it counts
    assert found[1]["prompt_tokens"] > found[0]["prompt_tokens"] == found[2]["prompt_tokens"]
    told = rows(run("chat", chatty, "--json", "--system", "Be brief.", "--max-new-tokens", "2", given="Hi\n"))
    assert told[0]["prompt_tokens"] > found[0]["prompt_tokens"]
    whole = run("chat", chatty, "--no-stream", given="Hi\n")
    assert whole.stdout == "Hello 😀\n"


def test_commands_of_a_chat_never_reach_the_model(chatty: Path) -> None:
    plain = run("chat", chatty, "--json", given="Hi\n")
    for command, words in (
        ("/help", "/reset starts a new conversation"),
        ("/rest", "/rest is no command: /reset starts a new"),
    ):
        found = run("chat", chatty, "--json", given=f"{command}\nHi\n")
        assert found.stdout == plain.stdout
        assert words in found.stderr
        assert "/exit" in found.stderr
    assert len(rows(run("chat", chatty, "--json", "--max-new-tokens", "2", given="/home/me is a path\n"))) == 1


@pytest.mark.parametrize(
    ("given", "arguments", "message"),
    [
        (b"Hi\n\xff\n", ("--no-stream", "--max-new-tokens", "1"), "line 2 of standard input is not UTF-8"),
        (b"", ("--temperature", "-1"), "--temperature must be 0"),
        (b"", ("--beam-size", "2"), "--no-stream"),
        (b"", ("--eos", "no such token"), "no such token"),
        (b"", ("--truncate", "middle"), "--truncate must be one of"),
        (b"", ("--system", "caf\udce9"), "--system is not UTF-8"),
    ],
)
def test_a_conversation_that_cannot_be_is_refused(
    chatty: Path, given: bytes, arguments: tuple[str, ...], message: str
) -> None:
    result = run("chat", chatty, *arguments, given=given)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


def test_long_conversations_can_be_cut(chatty: Path) -> None:
    long = "Hi " * 3000 + "\n"
    assert "--truncate left" in refused(run("chat", chatty, given=long))
    (row,) = rows(run("chat", chatty, "--truncate", "left", "--max-new-tokens", "2", "--json", given=long))
    assert row["new_tokens"] <= 2


def test_a_model_without_a_template_does_not_chat(folder: Path) -> None:
    assert "has no chat template" in refused(run("chat", folder, given="Hi\n"))
