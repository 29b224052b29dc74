"""Trained tokenizers: exact sizes and numbers, nothing lost, the same to the byte, and as transformers reads them."""

import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.text import training
from glassformer.text.plain_text import python_documentation
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.training import KINDS, STYLES, Special, sentinels, style, train_tokenizer
from tests.helpers import some_at_once
from tests.text.test_tokenizer import HOSTILE

LINES = [line for line in python_documentation().decode().splitlines() if line.strip()][:250] + [
    "déjà vu 日本語 😀"
] * 3
LEARNING = [kind for kind in KINDS if kind != "bytes"]
SIZE = 600
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@cache
def trained(kind: str, special: str = "gpt") -> Tokenizer:
    return train_tokenizer(iter(LINES), kind=kind, vocab_size=None if kind == "bytes" else SIZE, special=special)


def pieces(tokenizer: Tokenizer) -> list[str]:
    """The tokens that are not special, in the order of their numbers."""
    special = {token.content for token in tokenizer.backend.get_added_tokens_decoder().values()}
    return [token for token in tokenizer.tokens(range(tokenizer.vocab_size)) if token not in special]


# ---- what is learnt


def test_joins_are_those_of_a_hand_computed_case() -> None:
    words = ["hug"] * 3 + ["pug"] * 2
    bpe = train_tokenizer(words, kind="bpe", vocab_size=1000)
    assert pieces(bpe)[256:] == ["ug", "hug", "pug"]  # 5, 3 and 2 times
    word_pieces = train_tokenizer(words, kind="wordpiece", vocab_size=1000, special="bert")
    assert pieces(word_pieces) == ["g", "h", "p", "u", "##g", "##u", "##ug", "hug", "pug"]
    assert word_pieces.tokens(word_pieces.encode("hug bug")) == ["[CLS]", "hug", "[UNK]", "[SEP]"]
    often = train_tokenizer(words, kind="bpe", vocab_size=1000, min_frequency=3)
    assert pieces(often)[256:] == ["ug", "hug"]


def test_a_word_that_is_counted_often_counts_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_REPEATED", 7)  # so that each word is handed on in several parts
    made = train_tokenizer(["ab ab ab cd cd"] * 3 + ["cd ef"] * 2, kind="wordpiece", vocab_size=1000, min_frequency=8)
    assert pieces(made)[-2:] == ["ab", "cd"]  # 9 and 8 times


@pytest.mark.parametrize("kind", LEARNING)
def test_a_vocabulary_has_exactly_the_size_that_was_asked_for(kind: str) -> None:
    for name in STYLES:
        assert trained(kind, name).vocab_size == SIZE
        assert trained(kind, name).backend.get_vocab_size() == SIZE


@pytest.mark.parametrize("kind", LEARNING)
def test_too_small_a_corpus_is_told_by_the_size_and_too_small_a_size_is_refused(kind: str) -> None:
    words = ["hug pug"] * 3
    made = train_tokenizer(words, kind=kind, vocab_size=5000)
    assert made.vocab_size < 400
    assert made.backend.get_vocab_size() == made.vocab_size  # no gaps, nothing made up
    with pytest.raises(
        ValueError, match=r"vocab_size must be at least (\d+) here: \d+ for single characters"
    ) as caught:
        train_tokenizer(words, kind=kind, vocab_size=3)
    least = int(str(caught.value).split("at least ")[1].split()[0])
    assert train_tokenizer(words, kind=kind, vocab_size=least).vocab_size == least
    with pytest.raises(ValueError, match=f"at least {least} here"):
        train_tokenizer(words, kind=kind, vocab_size=least - 1)


@pytest.mark.parametrize("kind", LEARNING)
def test_special_tokens_in_the_texts_are_not_learnt_from(kind: str) -> None:
    special = STYLES["gpt"].with_further("<|end|>", "__en", "__en__")
    parts = ["a hug", "a hug __e", "two pugs", "two pugs"]
    joined = [f"__en__{'<|endoftext|>'.join(parts)}<|end|><|end|>"] * 2
    apart = train_tokenizer(parts * 2, kind=kind, vocab_size=500, special=special)
    assert (
        train_tokenizer(joined, kind=kind, vocab_size=500, special=special).backend.to_str() == apart.backend.to_str()
    )


@pytest.mark.parametrize("kind", LEARNING)
def test_letters_that_become_those_of_a_special_token_are_not_learnt_from(kind: str) -> None:
    special = Special(roles={"unk": "<unk>"}, further=("endmark",))
    made = train_tokenizer(["Endmark x ENDMARK x"] * 9, kind=kind, vocab_size=500, special=special, lowercase=True)
    assert not [piece for piece in pieces(made) if "en" in piece]
    assert made.id_of("endmark") in made.encode("x endmark")


def test_pieces_of_unigram_do_not_mix_letters_digits_and_signs() -> None:
    made = train_tokenizer(["end, end, (end) 12end 12 12 हिन्दी, हिन्दी"] * 50, kind="unigram", vocab_size=60)
    assert {"▁end", "हिन्दी"} <= {piece.lstrip("▁") if piece[-1] > "z" else piece for piece in pieces(made)}
    mixed = re.compile(r"[a-z].*[^a-z]|[0-9].*[^0-9]|[,()].*[^,()]|.▁")
    assert not [piece for piece in pieces(made) if mixed.search(piece)]


def test_lower_case() -> None:
    for kind in KINDS:
        made = train_tokenizer(LINES, kind=kind, vocab_size=None if kind == "bytes" else SIZE, lowercase=True)
        assert made.encode("THE Python", special=False) == made.encode("the python", special=False)
        assert made.decode(made.encode("THE Python")) == "the python"
        assert trained(kind).encode("THE Python") != trained(kind).encode("the python")
    made = train_tokenizer(LINES, kind="wordpiece", vocab_size=SIZE, special="bert", lowercase=True)
    assert made.mask in made.encode("a [MASK]")
    assert made.mask not in made.encode("a [mask]")


# ---- nothing is lost


@given(ANY_TEXT)
def test_bytes_are_their_own_ids_and_every_text_comes_back(text: str) -> None:
    ours = trained("bytes")
    assert ours.encode(text, special=False, allow_special=False) == list(text.encode())
    assert ours.decode(ours.encode(text)) == text


@given(ANY_TEXT)
def test_every_text_comes_back_from_byte_level_bpe(text: str) -> None:
    ours = trained("bpe")
    assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_hostile_texts_come_back_whatever_the_style(kind: str, name: str) -> None:
    ours = trained(kind, name)
    for text in HOSTILE:
        ids = ours.encode(text, special=False, allow_special=False)
        assert ours.decode(ids) == text


def test_offsets_count_letters() -> None:
    text = "naïve 日本 😀"
    each = [[(index, index + 1)] * len(character.encode()) for index, character in enumerate(text)]
    assert trained("bytes").offsets(text) == [span for spans in each for span in spans]
    for kind in LEARNING:
        ours = trained(kind, "bert")
        (_, _), *inside, (_, _) = ours.offsets("The function returns")
        assert "".join("The function returns"[start:end].strip() for start, end in inside) == "Thefunctionreturns"
        assert ours.offsets("The")[0] == (0, 0)


def test_unigram_and_wordpiece_tidy_up_and_have_a_token_for_the_unknown() -> None:
    for kind in ("wordpiece", "unigram"):
        ours = trained(kind)
        assert ours.decode(ours.encode("  the \n\t function  ")) == "the function"
        assert ours.unk is not None
        assert ours.unk in ours.encode("the ⣿")
        assert ours.unk not in ours.encode("the function")
    assert trained("unigram").encode("ﬁle") == trained("unigram").encode("file")  # NFKC


def test_a_mask_takes_the_space_that_its_word_would_bring() -> None:
    for kind, spaces in (("bpe", ["a"]), ("unigram", ["▁a"]), ("bytes", ["a", "Ġ"]), ("wordpiece", ["a"])):
        ours = trained(kind, "roberta")
        assert ours.tokens(ours.encode("a <mask>", special=False)) == [*spaces, "<mask>"]


# ---- special tokens, numbers, frames


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_the_first_or_the_last_numbers(kind: str) -> None:
    first = 256 if kind == "bytes" else 0
    assert trained(kind, "bert").tokens(range(first, first + 5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert trained(kind, "roberta").tokens(range(first, first + 4)) == ["<s>", "<pad>", "</s>", "<unk>"]
    ours = trained(kind, "t5")
    assert (ours.pad, ours.eos, ours.unk) == (first, first + 1, first + 2)
    assert [ours.id_of(f"<extra_id_{i}>") for i in range(100)] == [ours.vocab_size - 1 - i for i in range(100)]
    assert (trained(kind).bos, trained(kind).eos, trained(kind).pad) == (first, first, None)


@pytest.mark.parametrize("kind", KINDS)
def test_languages_and_other_numbers_of_sentinels(kind: str) -> None:
    special = replace(style("translation"), last=sentinels(3)).with_further("__en__", "__de__")
    made = train_tokenizer(
        ["ein hund", "a dog"] * 4, kind=kind, vocab_size=None if kind == "bytes" else 400, special=special
    )
    first = 256 if kind == "bytes" else 0
    assert made.tokens(range(first, first + 6)) == ["<pad>", "<s>", "</s>", "<unk>", "__en__", "__de__"]
    assert made.tokens([-1 + made.vocab_size]) == ["<extra_id_0>"]
    ids = made.encode("__de__ein")
    assert (ids[0], ids[-1]) == (made.id_of("__de__"), made.eos)
    assert made.id_of("__de__") not in made.encode("__de__ein", allow_special=False)


@pytest.mark.parametrize(
    ("name", "text", "pair", "segments"),
    [
        ("gpt", "A", "A B", [0, 0]),
        ("bert", "[CLS] A [SEP]", "[CLS] A [SEP] B [SEP]", [0, 0, 0, 1, 1]),
        ("roberta", "<s> A </s>", "<s> A </s> </s> B </s>", [0] * 6),
        ("bart", "<s> A </s>", "<s> A </s> </s> B </s>", [0] * 6),
        ("t5", "A </s>", "A </s> B </s>", [0] * 4),
        ("translation", "A </s>", "A </s> B </s>", [0] * 4),
    ],
)
def test_frames(name: str, text: str, pair: str, segments: list[int]) -> None:
    ours = train_tokenizer([], kind="bytes", special=name)
    assert " ".join(ours.tokens(ours.encode("A"))) == text
    ids, actual = ours.encode_pair("A", "B")
    assert (" ".join(ours.tokens(ids)), actual) == (pair, segments)
    framed = ours.decode(ours.encode("A"))
    assert ours.encode(framed) == ours.encode("A")  # never doubled


@pytest.mark.parametrize("name", sorted(set(STYLES) - {"bart"}))
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_folder_and_gives_the_same_numbers(tmp_path: Path, kind: str, name: str) -> None:
    from transformers import AutoTokenizer

    ours = trained(kind, name)
    ours.save(tmp_path)
    theirs, again = AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    for text in HOSTILE:
        assert ours.encode(text) == again.encode(text) == theirs(text)["input_ids"], ascii(text)
        expected = theirs(text, "second <mask> text", return_token_type_ids=True)
        assert ours.encode_pair(text, "second <mask> text") == (expected["input_ids"], expected["token_type_ids"])
    assert len(theirs) == ours.vocab_size == again.vocab_size
    for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        assert getattr(theirs, f"{role}_token_id") == getattr(ours, role) == getattr(again, role)
    ids = ours.encode(LINES[3])
    assert theirs.decode(ids, skip_special_tokens=True) == again.decode(ids, skip_special=True)


# ---- the same on every machine


@pytest.mark.slow
def test_the_same_texts_give_the_same_bytes_on_any_number_of_threads(tmp_path: Path) -> None:
    code = (
        "import json, sys\nfrom glassformer.text.training import train_tokenizer\n"
        "lines = json.load(sys.stdin)\n"
        "for kind in ('bpe', 'wordpiece', 'unigram'):\n"
        "    train_tokenizer(lines, kind=kind, vocab_size=700, special='t5').save(f'{sys.argv[1]}/{kind}')\n"
    )
    for threads in (1, 2):
        environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "PYTHONHASHSEED": str(threads)}
        command = [sys.executable, "-c", code, tmp_path / str(threads)]
        subprocess.run(command, input=json.dumps(LINES), text=True, check=True, env=environment)
    for kind in LEARNING:
        first, second = ((tmp_path / threads / kind / "tokenizer.json").read_bytes() for threads in "12")
        assert first == second
        assert len(json.loads(first)["model"]["vocab"]) == 600


# ---- bounded memory


def stream(texts: int) -> Iterator[str]:
    """Texts of 4,039 letters, in a few long words: it is the letters that take memory, and the words that take time."""
    words = [letter * 100 for letter in "abcdefg"]
    for number in range(texts):
        yield " ".join(words[(number + offset) % 7] for offset in range(40))


@pytest.mark.parametrize("kind", some_at_once(LEARNING, lambda kind: kind != "unigram"))  # read as wordpiece is
def test_texts_are_never_held(kind: str) -> None:
    texts = 5000 if kind == "bpe" else 1500  # 20 MB, 6 MB
    bytes_read: list[int] = []
    tracemalloc.start()
    try:
        train_tokenizer(stream(texts), kind=kind, vocab_size=400, progress=bytes_read.append)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert bytes_read == sorted(bytes_read)
    assert len(bytes_read) == texts
    assert bytes_read[-1] == texts * 4039
    assert peak < bytes_read[-1] / 5


@pytest.mark.parametrize("kind", LEARNING)
def test_a_long_text_is_learnt_from_in_parts_cut_at_white_space(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(" ".join(LINES[:60]).split())
    whole = train_tokenizer([text], kind=kind, vocab_size=400).backend.to_str()
    monkeypatch.setattr(training, "LONGEST", 100)
    assert train_tokenizer([text], kind=kind, vocab_size=400).backend.to_str() == whole
    assert "".join(training._limited(text)) == text
    assert {len(part) for part in training._limited("x" * 250)} == {100, 50}
    assert train_tokenizer(["ab" * 500], kind=kind, vocab_size=400).vocab_size > 4


# ---- what is refused


@pytest.mark.parametrize("kind", LEARNING)
@pytest.mark.parametrize("texts", [[], [""], ["<|endoftext|>"]], ids=str)
def test_no_text_is_an_error(kind: str, texts: list[str]) -> None:
    with pytest.raises(ValueError, match="no text to train on"):
        train_tokenizer(texts, kind=kind, vocab_size=1000)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "bpee"}, "Did you mean 'bpe'"),
        ({"kind": "bpe", "vocab_size": None}, "vocab_size must be set"),
        ({"kind": "bpe", "vocab_size": 0}, "vocab_size must be at least 1"),
        ({"kind": "bytes", "vocab_size": 999}, "must be 257 for bytes"),
        ({"min_frequency": 0}, "min_frequency must be at least 1"),
        ({"special": "bret"}, "Did you mean 'bert'"),
        ({"special": Special(further=("Ġa",))}, "also a piece"),
        ({"special": Special(further=("<é>",))}, "plain ASCII"),
    ],
    ids=str,
)
def test_nonsense_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_tokenizer(["a a a"] * 9, **{"kind": "bpe", "vocab_size": 1000, **wrong})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Special(roles={"bso": "<s>"}), "Did you mean 'bos'"),
        (lambda: Special(further=("x",)), "'x' must have at least two characters"),
        (lambda: Special(further=(" <x>",)), "must have at least two characters"),
        (lambda: Special(further=("",)), "must have at least two characters"),
        (lambda: Special(roles={"bos": "<s>"}, last=("<s>",)), "'<s>' is listed twice"),
        (lambda: Special(roles={"bos": "<s>"}, start=("<b>",)), "start, between and end have '<b>'"),
        (lambda: Special(second=2), "must be 0 or 1"),
    ],
)
def test_special_tokens_that_cannot_be_are_refused(make: Callable[[], Special], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_one_text_is_not_several_and_numbers_are_no_texts() -> None:
    with pytest.raises(TypeError, match="got one text"):
        train_tokenizer("a text", kind="bpe", vocab_size=300)
    with pytest.raises(TypeError, match=r"texts must be texts, got 3 \(int\)"):
        train_tokenizer(["a", 3], kind="wordpiece", vocab_size=300)  # type: ignore[list-item]
