"""``glassformer tokenizer train`` and ``show`` as a user meets them."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from glassformer.text.tokenizer import Tokenizer
from glassformer.text.training import train_tokenizer
from tests.cli.test_generate import refused, rows, run
from tests.helpers import on_screen
from tests.text.test_tokenizer import ANGLED, trained_merges, write_merges, write_pieces, write_words
from tests.text.test_training import LINES

PROGRAM = [sys.executable, "-m", "glassformer", "tokenizer"]
TEXT = "\n".join([*LINES, "", "  indented\n\n"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(corpus: Path) -> Path:
    out = corpus.parent / "bert"
    options = ("--kind", "wordpiece", "--style", "bert", "--vocab-size", "500", "--lowercase")
    assert run("tokenizer", "train", corpus, *options, "--out", out).exit_code == 0
    return out


def printed(result: object) -> str:
    """What is printed, without the places of its lines."""
    assert result.exit_code == 0, result.output  # type: ignore[attr-defined]
    return " ".join(result.stdout.split())  # type: ignore[attr-defined]


# ---- train


def test_train_writes_what_the_library_learns_and_says_what_it_made(corpus: Path, tmp_path: Path) -> None:
    result = run("tokenizer", "train", corpus, "--vocab-size", "600", "--out", tmp_path / "new" / "bpe")
    shown = printed(result)
    assert result.stderr == ""
    for words in ("byte-level BPE, style gpt", "600 tokens, 1 of them special", "bpe/tokenizer.json"):
        assert words in shown
    made = Tokenizer.load(tmp_path / "new" / "bpe")
    assert made.backend.to_str() == train_tokenizer([TEXT], kind="bpe", vocab_size=600).backend.to_str()
    size, tokens = len(TEXT.encode()), len(made.encode(TEXT))
    assert f"{size / tokens:.2f} bytes per token, on the first {size:,} bytes" in shown
    assert re.search(rf"time \d+\.\d s for {size:,} bytes of text", shown)


def test_every_option_reaches_the_vocabulary(corpus: Path, tmp_path: Path) -> None:
    options = ("--kind", "unigram", "--style", "translation", "--special", "__en__", "--special", "__de__")
    more = ("--vocab-size", "300", "--lowercase", "--min-frequency", "5", "--documents", "blank-line")
    assert "300 tokens, 6 of them special" in printed(
        run("tokenizer", "train", corpus, *options, *more, "--out", tmp_path)
    )
    made = Tokenizer.load(tmp_path)
    assert made.tokens(range(6)) == ["<pad>", "<s>", "</s>", "<unk>", "__en__", "__de__"]
    assert made.encode("THE") == made.encode("the")
    assert AutoTokenizer.from_pretrained(tmp_path)("__en__The end")["input_ids"] == made.encode("__en__The end")


def test_bytes_need_no_files(corpus: Path, tmp_path: Path) -> None:
    shown = printed(run("tokenizer", "train", "--kind", "bytes", "--style", "t5", "--out", tmp_path))
    assert "359 tokens, 103 of them special" in shown
    assert "compression" not in shown
    assert Tokenizer.load(tmp_path).encode("é") == [0xC3, 0xA9, 257]
    assert "leave them out" in refused(run("tokenizer", "train", corpus, "--kind", "bytes", "--out", tmp_path / "x"))


def test_compressed_files_json_lines_and_lines_are_the_same_text(tmp_path: Path) -> None:
    lines = [line for line in TEXT.split("\n") if line.strip()]
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in lines))
    wanted = train_tokenizer(lines, kind="wordpiece", vocab_size=400).backend.to_str()
    for name, options in (
        ("a.txt", ()),
        ("a.txt", ("--documents", "line")),
        ("a.txt.gz", ()),
        ("a.jsonl", ("--jsonl-field", "body")),
    ):
        out = ("--kind", "wordpiece", "--vocab-size", "400", "--force", "--out", tmp_path / "made")
        assert run("tokenizer", "train", tmp_path / name, *options, *out).exit_code == 0
        assert Tokenizer.load(tmp_path / "made").backend.to_str() == wanted
    assert "--jsonl-field text" in refused(run("tokenizer", "train", tmp_path / "a.jsonl", "--out", tmp_path / "x"))


def test_bad_rows_stop_or_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"hug hug\ncaf\xe9\nhug\n")
    stopped = refused(run("tokenizer", "train", path, "--out", tmp_path / "x"))
    assert f"{path}:2: invalid UTF-8" in stopped
    assert "--on-bad-row skip" in stopped
    assert not (tmp_path / "x").exists()
    result = run("tokenizer", "train", path, "--on-bad-row", "skip", "--out", tmp_path / "x")
    assert result.exit_code == 0
    told = " ".join(result.stderr.split())
    assert "2 rows; left out 1: 1 × invalid UTF-8" in told
    assert "only 259 tokens, not 8,000" in told  # said, and not filled up
    assert Tokenizer.load(tmp_path / "x").tokens([257, 258]) == ["hu", "hug"]
    (tmp_path / "b.jsonl").write_text('{"text": "hug hug"}\n{"txt": "x"}\n')
    out = ("--jsonl-field", "text", "--out", tmp_path / "y")
    assert "b.jsonl:2: missing field" in refused(run("tokenizer", "train", tmp_path / "b.jsonl", *out))
    assert "left out 1" in run("tokenizer", "train", tmp_path / "b.jsonl", *out, "--on-bad-row", "skip").stderr


def test_nothing_is_written_over_unless_told(corpus: Path, folder: Path) -> None:
    before = (folder / "tokenizer.json").read_bytes()
    assert "--force" in refused(run("tokenizer", "train", corpus, "--vocab-size", "400", "--out", folder))
    assert (folder / "tokenizer.json").read_bytes() == before
    assert "is a file" in refused(run("tokenizer", "train", corpus, "--out", corpus))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kind", "bpee"), "--kind must be one of bpe, bytes, unigram, wordpiece; got 'bpee'. Did you mean 'bpe'?"),
        (("--style", "bret"), "Did you mean 'bert'"),
        (("--documents", "lines"), "Did you mean 'line'"),
        (("--on-bad-row", "ignore"), "--on-bad-row must be one of"),
        (("--vocab-size", "100"), "--vocab-size must be at least 257 here: 256 for"),
        (("--special", "x"), "'x' must have at least two characters"),
        (("--documents", "line"), "empty text"),
        (("--jsonl-field", "text"), "text.txt:1: "),
        (("--jsonl-field", "text", "--documents", "line"), "--documents does not apply to JSON lines"),
    ],
)
def test_train_refuses_with_one_paragraph(
    corpus: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused(run("tokenizer", "train", corpus, *arguments, "--out", tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_files_that_are_not_there_or_empty_are_refused(tmp_path: Path) -> None:
    assert "name the files" in refused(run("tokenizer", "train", "--out", tmp_path / "x"))
    assert "no such file" in refused(run("tokenizer", "train", tmp_path / "none.txt", "--out", tmp_path / "x"))
    (tmp_path / "empty.txt").write_text("")
    assert "no text to train on" in refused(run("tokenizer", "train", tmp_path / "empty.txt", "--out", tmp_path / "x"))


# ---- show


def test_show_tells_what_a_vocabulary_is(folder: Path) -> None:
    facts = rows(run("tokenizer", "show", folder, "--json"))
    assert facts == [
        {
            "kind": "WordPiece",
            "vocab_size": 500,
            "roles": {
                "unk": {"token": "[UNK]", "id": 1},
                "sep": {"token": "[SEP]", "id": 3},
                "pad": {"token": "[PAD]", "id": 0},
                "cls": {"token": "[CLS]", "id": 2},
                "mask": {"token": "[MASK]", "id": 4},
            },
            "further": {},
            "frame": "[CLS] A [SEP]",
            "pair": "[CLS] A [SEP] B [SEP]",
        }
    ]
    shown = printed(run("tokenizer", "show", folder / "tokenizer.json"))
    for words in ("kind WordPiece", "500 tokens", "mask [MASK] 4", "a text [CLS] A [SEP]"):
        assert words in shown


def test_show_cuts_texts_and_says_where_each_token_stands(folder: Path) -> None:
    shown = run("tokenizer", "show", folder, "The [MASK] is", "ab\x1bc").stdout
    assert "\x1b" not in shown
    lines = [line.split() for line in shown.splitlines()]
    start = lines.index(["id", "characters", "token", "text"])
    assert lines[start + 1] == ["2", "[CLS]"]
    assert lines[start + 2][1:] == ["0–3", "the", "The"]
    assert lines[start + 3] == ["4", "4–10", "[MASK]", "[MASK]"]
    assert "5 tokens, 13 bytes, 2.60 bytes per token" in shown


def test_show_reads_arguments_a_file_or_a_pipe(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes("the end\r\n\nnaïve\n".encode())
    tokenizer = Tokenizer.load(folder)
    wanted = [
        {
            "text": text,
            "tokens": tokenizer.tokens(tokenizer.encode(text)),
            "ids": tokenizer.encode(text),
            "offsets": [list(place) for place in tokenizer.offsets(text)],
            "bytes": len(text.encode()),
        }
        for text in ("the end", "naïve")
    ]
    assert rows(run("tokenizer", "show", folder, "the end", "naïve", "--json")) == wanted
    assert rows(run("tokenizer", "show", folder, "--file", tmp_path / "lines.txt", "--json")) == wanted
    assert rows(run("tokenizer", "show", folder, "--json", given="the end\n\nnaïve\n")) == wanted
    both = run("tokenizer", "show", folder, "a", "--file", tmp_path / "lines.txt")
    assert "use one of them" in refused(both)


def test_show_lists_the_vocabulary(folder: Path) -> None:
    listed = rows(run("tokenizer", "show", folder, "--vocab", "--json"))
    assert [row["id"] for row in listed] == list(range(500))
    assert listed[4] == {"id": 4, "token": "[MASK]", "special": True}
    assert listed[5]["special"] is False
    assert run("tokenizer", "show", folder, "--vocab").stdout.splitlines()[:2] == ["0\t[PAD]", "1\t[UNK]"]
    assert "leave out --vocab or the texts" in refused(run("tokenizer", "show", folder, "a", "--vocab"))


def test_show_names_few_of_many_special_tokens(tmp_path: Path) -> None:
    train_tokenizer([], kind="bytes", special="t5").save(tmp_path)
    shown = printed(run("tokenizer", "show", tmp_path))
    assert "kind bytes" in shown
    assert "<extra_id_99> 259, " in shown
    assert "… <extra_id_0> 358 (100 in total)" in shown
    assert "<extra_id_50>" not in shown


# ---- the classic files


def test_show_reads_a_bert_vocabulary(tmp_path: Path) -> None:
    from transformers import BertTokenizer

    place = write_words(tmp_path / "bert")
    theirs = BertTokenizer.from_pretrained(str(place))
    (facts,) = rows(run("tokenizer", "show", place, "--json"))
    assert (facts["kind"], facts["vocab_size"], facts["frame"]) == ("WordPiece", 900, "[CLS] A [SEP]")
    assert facts["roles"]["mask"] == {"token": "[MASK]", "id": theirs.mask_token_id}
    (row,) = rows(run("tokenizer", "show", place, "Naïve functions [MASK]", "--json"))
    assert row["ids"] == theirs("Naïve functions [MASK]")["input_ids"]


def test_show_reads_a_gpt2_vocabulary(tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    place = write_merges(tmp_path / "gpt2", *trained_merges(["<|endoftext|>"]))
    theirs = GPT2Tokenizer.from_pretrained(str(place))
    (facts,) = rows(run("tokenizer", "show", place, "--json"))
    assert (facts["kind"], facts["vocab_size"], facts["frame"], facts["pair"]) == ("byte-level BPE", 800, "A", "A B")
    assert facts["roles"]["eos"] == {"token": "<|endoftext|>", "id": theirs.eos_token_id}
    (row,) = rows(run("tokenizer", "show", place, "naïve  functions<|endoftext|>", "--json"))
    assert row["ids"] == theirs("naïve  functions<|endoftext|>")["input_ids"]
    roberta = write_merges(tmp_path / "roberta", *trained_merges(ANGLED))
    (facts,) = rows(run("tokenizer", "show", roberta, "--json"))
    assert facts["pair"] == "<s> A </s> </s> B </s>"


def test_show_reads_a_sentencepiece_model_once_its_kind_is_said(tmp_path: Path) -> None:
    theirs = write_pieces(tmp_path, "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    assert "pass --kind, one of" in refused(run("tokenizer", "show", tmp_path))
    for option in ("--kind", "--tokenizer-kind"):  # the second as in the commands that take a model
        (facts,) = rows(run("tokenizer", "show", tmp_path, option, "t5", "--json"))
        assert (facts["kind"], facts["vocab_size"]) == ("Unigram", theirs.get_piece_size() + 100)
    assert (facts["frame"], facts["roles"]["eos"]["id"], len(facts["further"])) == ("A </s>", 1, 100)
    (row,) = rows(run("tokenizer", "show", tmp_path, "--kind", "t5", "the naïve function", "--json"))
    assert row["ids"] == [*theirs.encode("the naïve function"), theirs.eos_id()]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    assert "kind Unigram" in printed(run("tokenizer", "show", tmp_path))


def test_show_refuses_what_is_no_tokenizer(tmp_path: Path) -> None:
    assert "does not exist" in refused(run("tokenizer", "show", tmp_path / "none"))
    assert "holds no tokenizer" in refused(run("tokenizer", "show", tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    assert "is not a tokenizer.json" in refused(run("tokenizer", "show", tmp_path))


# ---- pipes and screens


def test_without_a_pipe_only_the_facts_are_shown(folder: Path) -> None:
    command = [*PROGRAM, "show", folder, "--json"]
    alone = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert json.loads(alone.stdout)["vocab_size"] == 500
    piped = subprocess.run(command, input="the\n", capture_output=True, text=True, check=True)
    assert json.loads(piped.stdout)["tokens"] == ["[CLS]", "the", "[SEP]"]


def test_a_terminal_gets_colours(folder: Path) -> None:
    status, shown = on_screen([*PROGRAM, "show", str(folder), "the end"])
    assert status == 0
    assert "\x1b[36m" in shown  # special tokens
    assert "\x1b[32m" in shown
    assert "\x1b[33m" in shown


def test_a_terminal_gets_a_bar_and_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{TEXT}\n" * 2000)
    command = [*PROGRAM, "train", str(tmp_path / "a.txt"), "--out", str(tmp_path / "x")]
    status, shown = on_screen(command, rb"[ m](0\.[1-9]|[1-9]\d*\.\d)/")  # once some of it is read
    assert status == 130
    assert "reading" in shown
    assert "learning" not in shown  # it stopped at once
    assert "Traceback" not in shown
    assert not (tmp_path / "x").exists()


def test_help_needs_neither_torch_nor_tokenizers() -> None:
    code = (
        "import sys\nfrom glassformer.cli.main import app\n"
        "try: app(['tokenizer', 'train', '--help'])\n"
        "except SystemExit as end: print(end.code, {'torch', 'tokenizers', 'numpy'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "0 set()"
    assert "--vocab-size" in shown
