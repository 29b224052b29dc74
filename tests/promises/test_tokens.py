"""Known silent bugs between text and numbers, each with the test that would have caught it."""

import importlib.util
import random
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, processors

from glassformer.text.tokenizer import Stream, Tokenizer
from tests.text.test_tokenizer import (
    HOSTILE,
    LINES,
    plain,
    shared,
    trained_merges,
    write_llama2c,
    write_merges,
    write_pieces,
    write_words,
)


@pytest.fixture(params=["wordpiece", "byte level", "byte fallback"])
def any_tokenizer(request, tmp_path) -> Tokenizer:
    if request.param == "wordpiece":
        return Tokenizer.load(write_words(tmp_path / "bert"))
    if request.param == "byte level":
        return Tokenizer.load(write_merges(tmp_path / "gpt2", *trained_merges(["<|endoftext|>"])))
    return Tokenizer.from_llama2c(write_llama2c(tmp_path / "t.bin"))


# ---- row 23: the slow and the fast tokenizer of one model give different ids


@pytest.mark.parametrize("lower", [True, False])
def test_row_23_slow_and_fast_agree_on_wordpiece(tmp_path, lower) -> None:
    if importlib.util.find_spec("transformers.models.bert.tokenization_bert_legacy") is None:
        pytest.skip("this version of transformers has no slow BERT tokenizer")
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    folder = write_words(tmp_path / "bert", do_lower_case=lower)
    slow, ours = BertTokenizerLegacy(str(folder / "vocab.txt"), do_lower_case=lower), Tokenizer.load(folder)
    for text in [*HOSTILE, *LINES[:100]]:
        composed = unicodedata.normalize("NFC", text)  # the slow one does this first; BERT as published does not
        assert ours.encode(composed) == slow(composed)["input_ids"], ascii(text)


def slow_byte_bpe(text: str, vocab: dict[str, int], ranks: dict[tuple[str, str], int]) -> list[int]:
    """GPT-2's encoder as it was published: one word, one merge at a time."""
    regex = pytest.importorskip("regex", reason="GPT-2's pattern needs the regex package")
    plain_bytes = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = [b for b in range(256) if b not in plain_bytes]
    letters = {b: chr(b) for b in plain_bytes} | {b: chr(256 + i) for i, b in enumerate(others)}
    ids: list[int] = []
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    for word in regex.findall(pattern, text):
        parts = [letters[byte] for byte in word.encode()]
        while len(parts) > 1:
            rank, at = min((ranks.get(pair, 10**9), i) for i, pair in enumerate(pairwise(parts)))
            if rank == 10**9:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [vocab[part] for part in parts]
    return ids


@pytest.mark.parametrize("source", ["made here", "gpt2"])
def test_row_23_slow_and_fast_agree_on_byte_bpe(tmp_path, source) -> None:
    made = write_merges(tmp_path / "gpt2", *trained_merges(["<|endoftext|>"])) if source == "made here" else None
    folder = made or shared("weights", "gpt2-tokenizer")
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    pairs = [line.partition(" ") for line in lines if not line.startswith("#version")]
    ranks = {(left, right): i for i, (left, _, right) in enumerate(pairs)}
    ours = Tokenizer.load(folder)
    vocab = ours.backend.get_vocab()
    for text in [*HOSTILE, *LINES[:100]]:
        if "<|" not in text:
            assert ours.encode(text) == slow_byte_bpe(text, vocab, ranks), ascii(text)


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_row_23_slow_and_fast_agree_on_sentencepiece(tmp_path, kind) -> None:
    own = {"t5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, "llama": {"model_type": "bpe"}}[kind]
    slow = write_pieces(tmp_path, "spiece.model", **own)
    ours = Tokenizer.load(tmp_path, kind=kind)
    for text in filter(plain, [*HOSTILE, *LINES[:200]]):
        assert ours.encode(text, special=False) == slow.encode(text), ascii(text)


# ---- row 24: BOS twice


def test_row_24_bos_is_not_doubled(any_tokenizer) -> None:
    first = any_tokenizer.bos if any_tokenizer.bos is not None else any_tokenizer.cls
    (name,) = any_tokenizer.tokens([first])
    for text in (f"{name}hello", f"{name} hello", name):
        assert any_tokenizer.encode(text).count(first) == 1, text
        assert any_tokenizer.encode_batch([text, "other"])[0].count(first) == 1, text
        assert any_tokenizer.encode(text, special=False).count(first) == 1, text
    if any_tokenizer.sep is not None:
        assert any_tokenizer.encode("hello [SEP]") == any_tokenizer.encode("hello")
    assert len(any_tokenizer.offsets(f"{name}hello")) == len(any_tokenizer.encode(f"{name}hello"))


def test_row_24_a_chat_brings_its_own_bos(tmp_path) -> None:
    pytest.importorskip("jinja2", reason="chat templates need Jinja")
    ours = Tokenizer.from_llama2c(write_llama2c(tmp_path / "t.bin"))
    ours.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    ids = ours.chat([{"role": "user", "content": "one"}, {"role": "user", "content": "two"}])
    assert ids.count(ours.bos) == 1
    assert ids[0] == ours.bos
    assert ids.count(ours.eos) == 2


# ---- row 26: half a character on the screen


def streamed(tokenizer: Tokenizer, ids: list[int], **options) -> list[str]:
    stream = Stream(tokenizer, **options)
    return [*(stream.add(number) for number in ids), stream.end()]


@pytest.mark.parametrize("skip_special", [False, True])
def test_row_26_streaming_never_splits_a_character(any_tokenizer, skip_special) -> None:
    for text in [*HOSTILE, "日本語と絵文字👩‍👩‍👧‍👦が混ざる", "a😀b한c"]:
        ids = any_tokenizer.encode(text)
        parts = streamed(any_tokenizer, ids, skip_special=skip_special)
        assert "".join(parts) == any_tokenizer.decode(ids, skip_special=skip_special), ascii(text)
        assert "\ufffd" in text or not any("\ufffd" in part for part in parts), ascii(text)


@pytest.mark.parametrize("skip_special", [False, True])
def test_row_26_whatever_a_model_emits_streams_to_the_same_text(any_tokenizer, skip_special) -> None:
    chosen = random.Random(0)
    for most in (any_tokenizer.vocab_size, 270):
        for _ in range(100):
            ids = [chosen.randrange(most) for _ in range(25)]
            whole = any_tokenizer.decode(ids, skip_special=skip_special)
            assert "".join(streamed(any_tokenizer, ids, skip_special=skip_special)) == whole


def test_row_26_a_word_after_bos_in_the_middle_keeps_its_space(tmp_path) -> None:
    ours = Tokenizer.from_llama2c(write_llama2c(tmp_path / "t.bin"))
    ids = [*ours.encode("the"), *ours.encode("the"), ours.bos, *ours.encode("the")]
    assert "".join(streamed(ours, ids)) == ours.decode(ids)


# ---- row 27: one special token is the beginning of another


@pytest.mark.parametrize("order", [1, -1])
def test_row_27_overlapping_special_tokens_longest_wins(tmp_path: Path, order) -> None:
    tok = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate("<|end>oftx_1 ")}, []))
    names = ["<|end", "<|end|>", "<|endoftext|>", "<|endoftext|>1"][::order]
    tok.add_special_tokens(names)
    tok.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tok.save(str(tmp_path / "tokenizer.json"))
    again = Tokenizer.load(tmp_path)
    again.save(tmp_path / "again")
    for ours in (again, Tokenizer.load(tmp_path / "again")):
        for name in names:
            assert ours.tokens(ours.encode(f"t{name}t")) == ["t", name, "t"]
        assert ours.tokens(ours.encode("<|end|><|endoftext|>1<|endt")) == ["<|end|>", "<|endoftext|>1", "<|end", "t"]
