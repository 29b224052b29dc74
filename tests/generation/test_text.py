"""Text in, text out: tokens of the frame once, stop strings, special tokens, cutting, batches, streams, defaults."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders
from tokenizers.models import BPE

import glassformer
from glassformer import TransformerLM, hub
from glassformer.generation import text as text_module
from glassformer.generation.defaults import notes_for, settings_for
from glassformer.generation.prompts import Example, FewShot, read_examples, read_prompt
from glassformer.generation.settings import GenerationSettings
from glassformer.generation.stops import BYTE_OF, StopFilter, WholeCharacters, Wording, cut_at
from glassformer.generation.text import (
    answer_like,
    generate_text,
    prepare_translation,
    reply,
    stream_reply,
    stream_text,
    translate_text,
)
from glassformer.text.tokenizer import Tokenizer, TokenizerError
from tests.generation.scripted import LENGTH, scripted, scripted_with
from tests.helpers import some_at_once, types_unchecked
from tests.tasks.models import make, save_tokenizer
from tests.text.test_tokenizer import write_llama2c

HOSTILE = "日本 語😀👩‍👩‍👧 é, the end"
CHAT = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def drained(stream: Any) -> tuple[list[str], Any]:
    pieces = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return pieces, end.value


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> hub.Loaded:
    return make(tmp_path_factory.mktemp("decoder"), "GPT2LMHeadModel", "bytes", eos_token_id=0)[0]


@pytest.fixture(scope="module")
def seq2seq(tmp_path_factory: pytest.TempPathFactory) -> tuple[hub.Loaded, Any]:
    facts = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    return make(
        tmp_path_factory.mktemp("seq2seq"), "BartForConditionalGeneration", "angled", forced_eos_token_id=None, **facts
    )


# ---- what is written


def test_the_text_is_what_the_model_writes_without_its_end(tmp_path: Path) -> None:
    prompt = scripted(tmp_path / "a", "", after=1).tokenizer.encode("The")
    loaded = scripted(tmp_path / "b", " is a word", after=len(prompt))
    (found,) = generate_text(loaded, ["The"])[0]
    assert found.text == " is a word"
    assert found.written.ended == "eos"
    assert found.written.ids[-1] == loaded.tokenizer.eos
    assert found.prompt_tokens == len(prompt)
    (shown,) = generate_text(loaded, ["The"], keep_special=True)[0]
    assert shown.text == " is a word<|endoftext|>"


@pytest.mark.parametrize("says", [HOSTILE, " déjà vu", "\n\n", "a  b"])
def test_the_stream_joins_to_the_text_and_splits_no_character(tmp_path: Path, says: str) -> None:
    loaded = scripted(tmp_path, says, after=1)
    pieces, whole = drained(stream_text(loaded, ""))
    assert "".join(pieces) == whole.text == says
    assert all(pieces)
    assert not any("\ufffd" in piece for piece in pieces)
    assert generate_text(loaded, [""])[0][0] == whole


def test_the_hostile_text_does_split_over_tokens(decoder: hub.Loaded) -> None:
    tokens = decoder.tokenizer.encode(HOSTILE, special=False)
    assert sum("\ufffd" in decoder.tokenizer.decode([token]) for token in tokens) > 8


CUT = ("日本語", "a😀", "déjà", "x 日本語 y", "\ufffd日", "日\ufffd", "👩‍👩‍👧")


@pytest.mark.parametrize("says", some_at_once(CUT, {"a😀", "日\ufffd"}.__contains__))
def test_a_text_that_ends_inside_a_character_leaves_it_out(tmp_path: Path, says: str) -> None:
    """At every length limit: the whole characters so far, U+FFFD among them if the model wrote it."""
    loaded = scripted(tmp_path, says, after=1, end=False)
    ids = loaded.tokenizer.encode(says, special=False)
    assert len(ids) > len(says) / 2
    for length in range(1, len(ids) + 1):
        decoded = b"".join(WholeCharacters(loaded.tokenizer)._bytes(token) for token in ids[:length])
        whole = says.encode()[: len(decoded)].decode(errors="ignore")
        assert says.encode().startswith(decoded)
        found = generate_text(loaded, [""], max_new_tokens=length)[0][0]
        assert (found.text, found.written.ids) == (whole, ids[:length])
        pieces, streamed = drained(stream_text(loaded, "", max_new_tokens=length))
        assert ("".join(pieces), streamed) == (whole, found)
        assert all(pieces)


def with_fallback(folder: Path) -> Tokenizer:
    """A vocabulary of a few letters and a token for every byte, whose runs the decoder judges as a whole."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "▁"]
    model = BPE({name: number for number, name in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


def test_tokens_of_single_bytes_end_with_the_last_whole_character(tmp_path: Path) -> None:
    tokenizer = with_fallback(tmp_path)
    ids = tokenizer.encode("a日本a😀\ufffd", special=False)
    assert len(ids) == 15
    assert tokenizer.decode(ids[:6]) == "a" + 5 * "\ufffd"
    ends = {1: "a", 3: "a", 4: "a日", 6: "a日", 7: "a日本", 8: "a日本a", 11: "a日本a", 12: "a日本a😀", 14: "a日本a😀"}
    for length, expected in (ends | {15: "a日本a😀\ufffd"}).items():
        assert Wording(tokenizer).text(ids[:length]) == expected


@pytest.mark.parametrize("fallback", [False, True])
def test_bytes_that_cannot_become_a_character_are_not_hidden(tmp_path: Path, fallback: bool) -> None:
    tokenizer = with_fallback(tmp_path) if fallback else save_tokenizer("bytes", tmp_path)
    names = ["<0x80>", "<0xE6>"] if fallback else ["Ģ", "æ"]
    stray, begun = map(tokenizer.id_of, names)
    letter = tokenizer.id_of("a")
    assert Wording(tokenizer).text([letter, stray]) == "a\ufffd"
    assert Wording(tokenizer).text([letter, begun]) == "a"
    assert Wording(tokenizer).text([begun, letter]) == "\ufffda"
    assert Wording(tokenizer).text([letter, begun, begun]) == "a\ufffd"


def test_every_letter_of_the_byte_level_alphabet_is_a_byte() -> None:
    assert set(BYTE_OF) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    for letter, byte in BYTE_OF.items():
        assert tokenizers.decoders.ByteLevel().decode([letter]) == bytes([byte]).decode(errors="replace")


def test_special_tokens_inside_a_text_are_not_shown(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "one<|endoftext|>two", after=1)
    pieces, whole = drained(
        stream_text(loaded, "", eos=[5], max_new_tokens=len(loaded.tokenizer.encode("one<|endoftext|>two")))
    )
    assert (whole.text, "".join(pieces)) == ("onetwo", "onetwo")
    assert loaded.tokenizer.eos in whole.written.ids


def test_ids_that_the_vocabulary_does_not_name_show_nothing(tmp_path: Path) -> None:
    loaded, _ = make(tmp_path, "GPT2LMHeadModel", "bytes", vocab_size=1200, eos_token_id=0)
    beyond = range(loaded.tokenizer.vocab_size, 1200)
    bias = dict.fromkeys(beyond, 50.0)
    found = generate_text(loaded, ["The"], logit_bias=bias, max_new_tokens=4, stop=["x"])[0][0]
    assert set(found.written.ids) <= set(beyond)
    assert found.text == ""
    assert drained(stream_text(loaded, "The", logit_bias=bias, max_new_tokens=4, stop=["x"]))[1] == found


# ---- stop strings


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["the end"], "日本 語😀👩‍👩‍👧 é, "),
        (["👧"], "日本 語😀👩‍👩‍"),
        (["語😀"], "日本 "),
        (["e end", "é, t"], "日本 語😀👩‍👩‍👧 "),
        (["日"], ""),
        (["never"], HOSTILE),
    ],
)
def test_a_stop_string_over_several_tokens_ends_the_text_before_it(
    tmp_path: Path, stop: list[str], expected: str
) -> None:
    loaded = scripted(tmp_path, HOSTILE, after=1)
    whole = generate_text(loaded, [""], stop=stop)[0][0]
    assert whole.text == expected
    assert whole.written.ended == ("eos" if stop == ["never"] else "stop")
    assert len(whole.written.ids) <= len(loaded.tokenizer.encode(HOSTILE)) + 1
    pieces, streamed = drained(stream_text(loaded, "", stop=stop))
    assert streamed == whole
    assert "".join(pieces) == expected


def test_generation_ends_at_the_stop_string_and_not_later(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "one two three", after=1)
    found = generate_text(loaded, [""], stop=["two"])[0][0]
    assert loaded.tokenizer.decode(found.written.ids) == "one two"


def test_a_stop_string_in_the_prompt_does_not_end_the_text(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, " the end", after=1)
    tokens = len(loaded.tokenizer.encode("the end"))
    loaded = scripted(tmp_path / "b", " goes on", after=tokens)
    assert generate_text(loaded, ["the end"], stop=["the end", "d g"])[0][0].text == " goes on"


def test_the_first_word_keeps_its_space_for_stop_strings(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, " word", after=1)
    assert generate_text(loaded, [""], stop=[" w"])[0][0].text == ""


def test_a_vocabulary_whose_decoder_drops_the_first_space(tmp_path: Path) -> None:
    """What follows a prompt keeps the space before its first word; what follows BOS alone has none."""
    tokenizer = Tokenizer.from_llama2c(write_llama2c(tmp_path / "tokens.bin"))
    tokenizer.save(tmp_path)
    prompt = tokenizer.encode("a")
    words = tokenizer.decode(tokenizer.encode("a b", special=False))
    loaded = scripted_with(tokenizer, tmp_path, "b b", after=len(prompt))
    assert tokenizer.decode(tokenizer.encode("b b", special=False)) == "b b"
    assert generate_text(loaded, ["a"])[0][0].text == " b b"
    assert "".join(stream_text(loaded, "a")) == " b b"
    stopped = generate_text(loaded, ["a"], stop=[" b"])[0][0]
    assert (stopped.text, stopped.written.ended, tokenizer.decode(stopped.written.ids)) == ("", "stop", "b")
    first = scripted_with(tokenizer, tmp_path, "b b", after=1)
    assert generate_text(first, [""])[0][0].text == "b b"
    assert words == "a b"


def test_text_that_might_have_become_a_stop_string_is_shown_in_the_end(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "one two", after=1)
    pieces, whole = drained(stream_text(loaded, "", stop=["two three"]))
    assert "".join(pieces) == whole.text == generate_text(loaded, [""], stop=["two three"])[0][0].text == "one two"
    assert pieces[-1] == "two"


@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_the_filter_shows_the_text_before_the_first_stop(text: str, stops: list[str]) -> None:
    """Letter by letter, the stop that is complete first wins; no letter of it was shown before."""
    filtered, shown, end = StopFilter(stops), "", 0
    for end in range(1, len(text) + 1):
        shown += filtered.add(text[end - 1])
        assert cut_at(text[:end], stops).startswith(shown)
        if filtered.is_stopped:
            break
    shown += filtered.end()
    assert shown == cut_at(text[:end], stops)
    assert filtered.is_stopped == any(stop in text for stop in stops)


# ---- the model's own tokens, once (row 24 of the known silent bugs: BOS doubled)


@pytest.mark.parametrize("decoded", ["Hello", "<|endoftext|>Hello"])
def test_row_24_bos_once_through_every_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: str) -> None:
    loaded, _ = make(tmp_path, "GPT2LMHeadModel", "bytes with bos", eos_token_id=5)
    tokenizer = loaded.tokenizer
    tokenizer.chat_template = CHAT
    seen: list[list[int]] = []

    def remember(model: Any, prompts: list[list[int]], *rest: Any, **options: Any) -> Any:
        seen.extend(prompts)
        return original(model, prompts, *rest, **options)

    original = text_module.generate
    monkeypatch.setattr(text_module, "generate", remember)
    generate_text(loaded, [decoded, tokenizer.encode(decoded)], max_new_tokens=1)
    answer_like(loaded, FewShot((Example(decoded, "1"),)), ["x"], max_new_tokens=1)
    reply(loaded, [{"role": "user", "content": "Hello"}], max_new_tokens=1)
    original = text_module.generate_stream
    monkeypatch.setattr(text_module, "generate_stream", remember)
    list(stream_text(loaded, decoded, max_new_tokens=1))
    list(stream_reply(loaded, [{"role": "user", "content": "Hello"}], max_new_tokens=1))
    assert len(seen) == 6
    for ids in seen:
        assert (ids[0], ids.count(tokenizer.bos)) == (tokenizer.bos, 1), tokenizer.tokens(ids)


def test_a_decoders_prompt_does_not_end_with_the_frame(tmp_path: Path) -> None:
    loaded, _ = make(tmp_path, "GPT2LMHeadModel", "angled", eos_token_id=2)
    tokenizer = loaded.tokenizer
    assert tokenizer.encode("Hello")[-1] == tokenizer.eos
    assert read_prompt(loaded, "Hello").ids == tokenizer.encode("Hello")[:-1]
    assert read_prompt(loaded, "Hello</s>").ids == tokenizer.encode("Hello")  # the user's own


def test_a_source_keeps_its_frame(seq2seq: tuple[hub.Loaded, Any]) -> None:
    loaded, _ = seq2seq
    ids = read_prompt(loaded, "Hello").ids
    assert (ids[0], ids[-1]) == (loaded.tokenizer.bos, loaded.tokenizer.eos)


def test_an_empty_text_begins_from_bos_alone(decoder: hub.Loaded, seq2seq: tuple[hub.Loaded, Any]) -> None:
    assert read_prompt(decoder, "").ids == [decoder.tokenizer.bos]
    assert read_prompt(seq2seq[0], "").ids == [0, 2]


def test_without_bos_an_empty_text_is_an_error(tmp_path: Path) -> None:
    loaded, _ = make(tmp_path, "GPT2LMHeadModel", "bytes", eos_token_id=0)
    loaded.tokenizer.bos = None
    with pytest.raises(ValueError, match="prompt 1 has no tokens, and its vocabulary has no BOS"):
        generate_text(loaded, ["a", ""])


# ---- batches


@pytest.mark.parametrize(
    "options",
    some_at_once([{}, {"beam_size": 3, "top_beams": 2}, {"temperature": 1.5, "samples": 2, "seed": 7}], bool),
)
def test_answers_do_not_depend_on_the_batch_and_keep_their_order(decoder: hub.Loaded, options: dict[str, Any]) -> None:
    prompts = ["The value of the function", "a", "Python has lists and", "None", "日本語 and 😀"]
    alone = [generate_text(decoder, [prompt], max_new_tokens=6, **options)[0] for prompt in prompts]
    done: list[tuple[int, int]] = []
    for size in (1, 2, 8):
        done.clear()
        found = generate_text(
            decoder, prompts, max_new_tokens=6, batch_size=size, progress=lambda *n: done.append(n), **options
        )
        assert [[one.text for one in some] for some in found] == [[one.text for one in some] for some in alone]
        assert [[one.written.ids for one in some] for some in found] == [
            [one.written.ids for one in some] for some in alone
        ]
        assert done[-1] == (5, 5)
        assert len(done) == -(-5 // size)


def test_seeds_stay_with_their_prompts(decoder: hub.Loaded) -> None:
    prompts = ["a", "The value of the function", "a"]
    options = {"temperature": 2.0, "max_new_tokens": 8}
    together = generate_text(decoder, prompts, seed=(1, 2, 3), batch_size=2, **options)
    for prompt, seed, some in zip(prompts, (1, 2, 3), together, strict=True):
        assert some[0].text == generate_text(decoder, [prompt], seed=seed, **options)[0][0].text
    with pytest.raises(ValueError, match="got 2 seeds for 3 prompts"):
        generate_text(decoder, prompts, seed=(1, 2), **options)


def test_one_text_is_not_a_list_of_letters(decoder: hub.Loaded) -> None:
    assert generate_text(decoder, "abc", max_new_tokens=3) == generate_text(decoder, ["abc"], max_new_tokens=3)[0][0]
    assert generate_text(decoder, []) == []


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([b"Once"], r"prompt 0 must be .*got bytes, b'Once'\. Decode them"),
        (b"Once", "Put it in brackets"),
        (["a", None], "prompt 1 must be a text or a list of token ids.*got None"),
        ([1, 2], r"prompt 0 must be .*\(one list for each prompt\), got 1 \(int\)"),
        ([["a"]], r"prompt 0 must be .*got a list that holds 'a' \(str\)"),
        ([[1.0]], r"got a list that holds 1.0 \(float\)"),
        ([torch.tensor([1])], r"prompt 0 must be .*\(Tensor\)"),
        (None, "prompts must be a list, got None"),
        ({"a": "b"}, r"prompts must be a list, got \{'a': 'b'\} \(dict\)"),
    ],
)
def test_prompts_that_are_no_texts(decoder: hub.Loaded, prompts: Any, message: str) -> None:
    with types_unchecked(), pytest.raises(TypeError, match=message):
        generate_text(decoder, prompts)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (["Once"], r"the prompt must be a text or a list of token ids, got a list that holds 'Once' \(str\)"),
        (b"Once", "the prompt must be .*Decode them"),
        (None, "the prompt must be .*got None"),
        (1, "the prompt must be .*got 1"),
    ],
)
def test_a_prompt_to_stream_that_is_no_text(decoder: hub.Loaded, prompt: Any, message: str) -> None:
    with types_unchecked(), pytest.raises(TypeError, match=message):
        stream_text(decoder, prompt)


@pytest.mark.parametrize(("texts", "message"), [([None], "text 0 .*None"), ([b"a"], "Decode"), ([[1]], "text 0 must")])
def test_texts_to_translate_or_answer_that_are_none(
    seq2seq: tuple[hub.Loaded, Any], decoder: hub.Loaded, texts: Any, message: str
) -> None:
    with types_unchecked(), pytest.raises(TypeError, match=message):
        translate_text(seq2seq[0], texts)
    with types_unchecked(), pytest.raises(TypeError, match=message):
        answer_like(decoder, FewShot((Example("a", "b"),)), texts)


@pytest.mark.parametrize("call", [generate_text, stream_text, translate_text, reply, stream_reply])
def test_what_is_not_a_loaded_model(decoder: hub.Loaded, call: Any) -> None:
    for wrong, told in ((decoder.model, r"\(Transformer\)"), ("folder", r"'folder' \(str\)"), (None, "None")):
        with types_unchecked(), pytest.raises(TypeError, match=rf"(?s)got .*{told}\. Pass what glassformer.load"):
            call(wrong, ["a"])


def test_the_model_of_the_course_is_sent_to_the_function_for_token_ids() -> None:
    model = TransformerLM(vocab_size=20, context_length=8, d_model=8, num_layers=1, num_heads=2, d_ff=16)
    with types_unchecked(), pytest.raises(TypeError, match=r"token ids .*generation\.generate\(model, ids\)"):
        glassformer.generate(model, [[1, 2]])  # type: ignore[arg-type]
    [[text]] = glassformer.generation.generate(model, [[1, 2]], GenerationSettings(max_new_tokens=3))
    assert len(text.ids) == 3


# ---- too long


def test_a_prompt_that_is_too_long_says_how_long_and_what_fits(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "x", after=1)
    words = "a" + " a" * LENGTH
    tokens = len(loaded.tokenizer.encode(words))
    with pytest.raises(
        ValueError, match=rf"prompt 1 has {tokens} tokens, and the model takes {LENGTH}.*truncate='left'"
    ):
        generate_text(loaded, ["a", words])


@pytest.mark.parametrize("side", ["left", "right"])
def test_cutting_keeps_bos_and_leaves_room_for_the_answer(tmp_path: Path, side: str) -> None:
    loaded, _ = make(tmp_path, "GPT2LMHeadModel", "bytes with bos", eos_token_id=5)
    tokenizer = loaded.tokenizer
    body = tokenizer.encode("".join(f" {number}" for number in range(60)), special=False)
    text = tokenizer.decode(body)
    found = generate_text(loaded, [text], truncate=side, max_new_tokens=10)[0][0]
    longest = loaded.config.max_length
    assert longest == 40
    assert found.prompt_tokens == longest - 10
    assert found.cut_tokens == len(body) - (longest - 11)
    kept = body[-(longest - 11) :] if side == "left" else body[: longest - 11]
    same = generate_text(loaded, [[tokenizer.bos, *kept]], max_new_tokens=10)[0][0]
    assert (found.text, found.written) == (same.text, same.written)
    assert len(found.written.ids) == 10
    short = generate_text(loaded, ["a b"], truncate=side, max_new_tokens=10)[0][0]
    assert short.cut_tokens == 0


def test_cutting_a_source_keeps_both_ends_of_its_frame(seq2seq: tuple[hub.Loaded, Any]) -> None:
    loaded, _ = seq2seq
    found = text_module._TextJob(loaded, {"truncate": "left", "max_new_tokens": 3}).row("word " * 90, 0).prompt
    assert (found.ids[0], found.ids[-1], len(found.ids)) == (0, 2, loaded.config.max_length)


def test_no_room_for_a_prompt_is_an_error(decoder: hub.Loaded) -> None:
    with pytest.raises(ValueError, match="max_new_tokens=40 leaves no tokens for a prompt"):
        generate_text(decoder, ["a b c"], truncate="left", max_new_tokens=40)
    with pytest.raises(ValueError, match="truncate must be one of left, right"), types_unchecked():
        generate_text(decoder, ["a b c"], truncate="middle")


def test_a_text_may_run_to_the_end_of_the_positions(decoder: hub.Loaded) -> None:
    found = generate_text(decoder, ["a b c"], max_new_tokens=100, eos=[])[0][0]
    assert found.written.ended == "context"
    assert found.prompt_tokens + len(found.written.ids) == decoder.config.max_length


# ---- tokens named by their text


def test_words_for_tokens(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, " value of", after=1)
    assert generate_text(loaded, [""])[0][0].text == " value of"
    assert " value" not in generate_text(loaded, [""], bad_words=["value"])[0][0].text
    assert not generate_text(loaded, [""], suppress=[" value"])[0][0].text.startswith(" value")
    number = loaded.tokenizer.encode(" of", special=False)[0]
    for name in (" of", "Ġof", number):
        assert generate_text(loaded, [""], logit_bias={name: 1e4}, max_new_tokens=2)[0][0].text == " of of"
    assert generate_text(loaded, [""], forced_first=" of", max_new_tokens=1)[0][0].text == " of"
    assert generate_text(loaded, [""], eos=[" of"])[0][0].text == " value"
    with pytest.raises(TokenizerError, match="has no 'no such token at all'"):
        generate_text(loaded, [""], suppress=["no such token at all"])


def test_one_end_token_or_stop_string_needs_no_brackets(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, " value of", after=1)
    number = loaded.tokenizer.encode(" of", special=False)[0]
    for options in ({"eos": number}, {"eos": " of"}, {"stop": " of"}):
        assert generate_text(loaded, [""], **options)[0][0].text == " value"
        assert "".join(stream_text(loaded, "", **options)) == " value"
    shown = FewShot((Example("a", "b"),))
    after = len(loaded.tokenizer.encode(shown.prompt("c")))
    loaded = scripted(tmp_path / "b", " value of", after=after)
    assert answer_like(loaded, shown, ["c"], stop=" of")[0][0].text == "value"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bad_words": "Lily"}, r"bad_words must be a list, got 'Lily'\. Put it in brackets: bad_words="),
        ({"bad_words": None}, "bad_words must be a list, got None"),
        ({"suppress": 5}, "suppress must be a list, got 5"),
        ({"suppress": "a"}, "suppress must be a list, got 'a'"),
        ({"stop": b"a"}, "^stop must be a list, got b'a'"),
        ({"eos": 1.0}, "^eos must be a list, got 1.0"),
    ],
)
def test_lists_that_are_none(decoder: hub.Loaded, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        generate_text(decoder, ["a"], **options)


def test_forbidden_words_of_nothing_but_space(tmp_path: Path, decoder: hub.Loaded) -> None:
    with pytest.raises(ValueError, match="bad_words holds '', which gives no token to forbid"):
        generate_text(decoder, ["a"], bad_words=["the", ""])
    loaded = scripted(tmp_path, "a b\n  c", after=1)
    (space,) = loaded.tokenizer.encode(" ", special=False)
    assert space in loaded.tokenizer.encode("a b\n  c", special=False)
    found = generate_text(loaded, [""], bad_words=["\n"], max_new_tokens=6)[0][0]
    assert "\n" not in found.text
    assert space in found.written.ids  # a line break alone is forbidden


def test_a_misspelt_option_is_told_the_nearest(decoder: hub.Loaded) -> None:
    with pytest.raises(ValueError, match="Did you mean 'temperature'"):
        generate_text(decoder, ["a"], temperatures=1.0)


def test_what_cannot_be_streamed_is_refused_at_once(decoder: hub.Loaded) -> None:
    """By the call itself: nothing is asked of the generator."""
    with pytest.raises(ValueError, match="cannot be streamed; leave beam_size at 1"):
        stream_text(decoder, "a", beam_size=2)
    with pytest.raises(ValueError, match="one text can be streamed at a time"):
        stream_text(decoder, "a", temperature=1.0, samples=2)
    with pytest.raises(ValueError, match="Did you mean 'temperature'"):
        stream_text(decoder, "a", temperatures=1.0)
    with pytest.raises(ValueError, match=r"prompt 0 has .* tokens, and the model takes"):
        stream_text(decoder, "a b " * 60)
    with pytest.raises(TokenizerError, match="no chat template"):
        stream_reply(decoder, [{"role": "user", "content": "Hi"}])


# ---- encoder-decoders


def test_a_source_is_answered_as_the_reference_answers_it(seq2seq: tuple[hub.Loaded, Any]) -> None:
    loaded, theirs = seq2seq
    tokenizer = transformers.AutoTokenizer.from_pretrained(loaded.path)
    for text in ("The value of the function", "Python has lists"):
        ids = torch.tensor([loaded.tokenizer.encode(text)])
        for ours, options in (({}, {}), ({"beam_size": 3}, {"num_beams": 3})):
            answer = theirs.generate(ids, max_new_tokens=8, do_sample=False, **options)[0]
            found = generate_text(loaded, [text], max_new_tokens=8, **ours)[0][0]
            assert found.written.ids == answer[1:].tolist()
            assert found.text == tokenizer.decode(answer, skip_special_tokens=True)


# ---- what the folder recommends


def test_generation_config_says_how_to_write(tmp_path: Path) -> None:
    loaded = scripted(
        tmp_path,
        "one two three four",
        after=1,
        generation_config={"eos_token_id": [7, 9], "max_new_tokens": 11, "do_sample": True, "temperature": 0.6,
                           "top_p": 0.9, "no_repeat_ngram_size": 3, "top_h": 0.3},
    )  # fmt: skip
    found, notes = settings_for(loaded)
    assert (found.eos, found.max_new_tokens, found.temperature, found.top_p, found.no_repeat_ngram) == (
        (7, 9), 11, 0.6, 0.9, 3,
    )  # fmt: skip
    assert notes == ["generation_config.json asks for top_h, which is not supported here."]
    assert settings_for(loaded, top_p=0.5)[0].top_p == 0.5
    assert settings_for(loaded, top_p=0.5)[0].temperature == 0.6
    assert settings_for(loaded, eos=[1], max_new_tokens=2)[0].eos == (1,)


@pytest.mark.parametrize("options", [{"beam_size": 4}, {"contrastive_alpha": 0.6, "top_k": 4}, {"temperature": 0.0}])
def test_another_kind_of_search_drops_the_recommended_one_and_keeps_the_constraints(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    advice = {"do_sample": True, "top_k": 20, "top_p": 0.9, "no_repeat_ngram_size": 3, "bad_words_ids": [[4, 5]]}
    loaded = scripted(tmp_path, "x", after=1, generation_config=advice)
    found, notes = settings_for(loaded, **options)
    assert (found.temperature, found.top_p, found.top_k) == (0.0, None, options.get("top_k"))
    assert (found.no_repeat_ngram, found.bad_words, found.eos) == (3, ((4, 5),), (0,))
    assert len(notes) == 1
    assert "top_p=0.9" in notes[0]
    assert "no_repeat_ngram" not in notes[0]
    assert notes_for(loaded, **options) == notes


def test_the_same_kind_of_search_keeps_what_belongs_to_it(tmp_path: Path) -> None:
    advice = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True}
    loaded = scripted(tmp_path, "x", after=1, generation_config=advice)
    found, notes = settings_for(loaded, beam_size=6)
    assert (found.beam_size, found.length_penalty, found.early_stopping, notes) == (6, 2.0, True, [])
    assert settings_for(loaded, temperature=0.0)[0].beam_size == 4  # what it refuses was not recommended
    drawn, notes = settings_for(loaded, temperature=0.7)
    assert (drawn.beam_size, drawn.length_penalty, drawn.early_stopping) == (1, 1.0, False)
    assert len(notes) == 1
    assert settings_for(loaded, beam_size=1)[0].length_penalty == 1.0


def test_recommended_lengths_count_the_prompt_of_a_decoder(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "x", after=1, end=False, generation_config={"max_length": 12, "min_length": 9})
    for prompt in ("a", "a b", "a b c d"):
        found = generate_text(loaded, ["a b c", prompt], batch_size=4)[1][0]
        assert found.prompt_tokens + len(found.written.ids) == 12
    settings, _ = settings_for(loaded, prefix_length=4)
    assert (settings.max_new_tokens, settings.min_new_tokens) == (8, 5)
    assert settings_for(loaded, prefix_length=4, max_new_tokens=3)[0].min_new_tokens == 3
    with pytest.raises(ValueError, match=r"at most 12 tokens \(max_length\), and this one begins with 12"):
        settings_for(loaded, prefix_length=12)


def test_a_recommended_length_beyond_the_model_lets_prompts_of_all_lengths_be_written_together(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "x", after=1, end=False, generation_config={"max_length": 4096})
    assert settings_for(loaded, prefix_length=3)[0] == settings_for(loaded, prefix_length=30)[0]
    assert generate_text(loaded, ["a b c"])[0][0].written.ended == "context"


def test_recommended_lengths_count_the_start_of_an_encoder_decoder(tmp_path: Path) -> None:
    facts = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    loaded, theirs = make(tmp_path, "BartForConditionalGeneration", "angled", **facts)
    (tmp_path / "generation_config.json").write_text(json.dumps({**facts, "max_length": 9, "min_length": 8}))
    settings, _ = settings_for(loaded)
    assert (settings.max_new_tokens, settings.min_new_tokens, settings.eos) == (8, 7, (2,))
    ids = torch.tensor([loaded.tokenizer.encode("Python")])
    theirs.generation_config = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert generate_text(loaded, ["Python"])[0][0].written.ids == theirs.generate(ids)[0, 1:].tolist()


def test_an_older_folder_has_its_recommendations_in_config_json(tmp_path: Path) -> None:
    scripted(tmp_path, "x", after=1)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_beams": 3, "max_length": 30}))
    settings, notes = settings_for(hub.load(tmp_path), prefix_length=10)
    assert (settings.beam_size, settings.max_new_tokens, settings.eos, notes) == (3, 20, (0,), [])


def test_nothing_said_is_64_tokens_and_the_facts_end_token(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "x", after=1)
    assert (tmp_path / "generation_config.json").exists() is False
    settings, notes = settings_for(loaded)
    assert (settings.max_new_tokens, settings.eos, settings.mode, notes) == (64, (0,), "greedy", [])
    assert settings_for(loaded, default_length=512)[0].max_new_tokens == 512


def test_a_contradiction_names_the_recommendation(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "x", after=1, generation_config={"num_beams": 3})
    with pytest.raises(ValueError, match=r"top_beams=5 .*generation_config.json of the model recommends beam_size=3"):
        settings_for(loaded, top_beams=5)


def test_tokens_of_the_folder_outside_the_vocabulary_are_not_options_of_the_user(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "x", after=1, generation_config={"eos_token_id": 50256})
    with pytest.raises(ValueError, match=r"the model's files set eos to 50256, but its vocabulary has \d+ tokens"):
        settings_for(loaded)
    assert settings_for(loaded, eos=(0,))[0].eos == (0,)
    with pytest.raises(ValueError, match=r"^eos names 50257, but the vocabulary has"):
        generate_text(loaded, ["a"], eos=[50257])


def test_one_stop_string_may_stand_without_brackets(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "one two", after=1, generation_config={"stop_strings": "tw"})
    assert generate_text(loaded, [""])[0][0].text == "one "


# ---- conversations


def test_a_conversation_goes_through_the_template(tmp_path: Path) -> None:
    loaded = scripted(tmp_path / "a", "x", after=1)
    loaded.tokenizer.chat_template = CHAT
    messages = [{"role": "user", "content": "Hi"}]
    ids = loaded.tokenizer.chat(messages)
    loaded = scripted(tmp_path / "b", "Hello there 😀", after=len(ids))
    loaded.tokenizer.chat_template = CHAT
    assert reply(loaded, messages).text == "Hello there 😀"
    pieces, whole = drained(stream_reply(loaded, messages, stop=[" 😀"]))
    assert (whole.text, "".join(pieces), whole.prompt_tokens) == ("Hello there", "Hello there", len(ids))


def test_a_reply_may_be_longer_than_a_text(tmp_path: Path) -> None:
    loaded = scripted(tmp_path, "x", after=1, end=False)
    loaded.tokenizer.chat_template = CHAT
    messages = [{"role": "user", "content": "Hi"}]
    assert generate_text(loaded, ["a"])[0][0].written.ended == "length"
    assert reply(loaded, messages).written.ended == "context"  # 512 tokens do not fit
    assert drained(stream_reply(loaded, messages))[1].written.ended == "context"
    assert reply(loaded, messages, max_new_tokens=3).written.ended == "length"


# ---- examples


def test_examples_are_written_out_and_their_separator_ends_the_answer(tmp_path: Path) -> None:
    shown = FewShot((Example("{output}", "{input}"), Example("2+2", "4")), "Q: {input}\nA: {output}\n\n")
    assert shown.prompt("3+3") == "Q: {output}\nA: {input}\n\nQ: 2+2\nA: 4\n\nQ: 3+3\nA:"
    loaded = scripted(tmp_path / "a", "x", after=1)
    tokens = len(loaded.tokenizer.encode(shown.prompt("3+3")))
    loaded = scripted(tmp_path / "b", " 6\n\nQ: 4+4", after=tokens)
    found = answer_like(loaded, shown, ["3+3"], max_new_tokens=20)[0][0]
    assert (found.text, found.written.ended) == ("6", "stop")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{input} {output}", "end of an answer cannot be recognised"),
        ("{output} {input}\n", "comes before"),
        ("{input}\n", "once"),
        ("{input}{input}{output}\n", "once"),
        ("{foo} {input}\n{output}\n{bar}", r"fields are \{input\} and \{output\}, .* also has \{bar\}, \{foo\}"),
    ],
)
def test_templates_that_cannot_work(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FewShot((Example("a", "b"),), template)


def test_examples_are_read_under_three_pairs_of_names(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    rows = [{"input": "a", "output": "b"}, {"prompt": "c", "completion": "d"}, {"question": "日", "answer": "本"}]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8")
    assert read_examples(path) == (Example("a", "b"), Example("c", "d"), Example("日", "本"))


@pytest.mark.parametrize("row", ["{", '{"input": "a"}', '{"input": 1, "output": "b"}', "[]", "3"])
def test_a_bad_example_is_named_by_file_and_line(tmp_path: Path, row: str) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text('{"input": "a", "output": "b"}\n' + row + "\n")
    with pytest.raises(ValueError, match=r"examples.jsonl, line 2"):
        read_examples(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no examples"):
        read_examples(path)


# ---- translation


def with_languages(loaded: hub.Loaded, codes: list[str]) -> hub.Loaded:
    """Turn ordinary tokens of a vocabulary into special ones, saved anew."""
    folder = loaded.path
    loaded.tokenizer.backend.add_special_tokens(codes)
    loaded.tokenizer.save(folder)
    return hub.load(folder)


SEQ2SEQ = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "vocab_size": 900}


def test_languages_by_tokens(tmp_path: Path) -> None:
    loaded = with_languages(
        make(tmp_path, "BartForConditionalGeneration", "angled", **SEQ2SEQ)[0], ["__en__", "__de__"]
    )
    tokenizer = loaded.tokenizer
    given, options = prepare_translation(loaded, ["Hello"], "en", "de")
    body = tokenizer.encode("Hello", special=False)
    assert given == [[tokenizer.id_of("__en__"), *body, tokenizer.eos]]
    found = translate_text(loaded, ["Hello"], source="en", target="de", max_new_tokens=4)[0][0]
    assert found.written.ids[0] == tokenizer.id_of("__de__") == options["forced_first"]
    assert "__de__" not in found.text
    for source, target in ((None, "de"), ("en", None), ("en", "xx")):
        with pytest.raises(ValueError, match=r"set the (source|target) language|'xx' is not one of"):
            translate_text(loaded, ["Hello"], source=source, target=target)


def test_a_decoder_that_starts_with_the_language(tmp_path: Path) -> None:
    loaded = with_languages(make(tmp_path, "BartForConditionalGeneration", "angled", **SEQ2SEQ)[0], ["en_XX", "ro_RO"])
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "MBartTokenizer"}))
    given, options = prepare_translation(loaded, ["Hello"], "en_XX", "ro_RO")
    assert options["start"] == [loaded.tokenizer.id_of("ro_RO")]
    assert given[0][-1] == loaded.tokenizer.id_of("en_XX")
    found = translate_text(loaded, ["Hello"], source="en_XX", target="ro_RO", max_new_tokens=4)[0][0]
    other = translate_text(loaded, ["Hello"], source="en_XX", target="en_XX", max_new_tokens=4)[0][0]
    assert found.written.log_probs != other.written.log_probs
    with pytest.raises(ValueError, match="target"):
        translate_text(loaded, ["Hello"], source="en_XX")


def test_languages_by_words(tmp_path: Path) -> None:
    loaded, _ = make(tmp_path, "BartForConditionalGeneration", "angled", **SEQ2SEQ)
    config = json.loads((tmp_path / "config.json").read_text())
    task = {"prefix": "translate English to German: ", "num_beams": 2, "max_length": 7}
    config["task_specific_params"] = {"translation_en_to_de": task}
    (tmp_path / "config.json").write_text(json.dumps(config))
    given, options = prepare_translation(loaded, ["Hi"], "en", "German")
    assert given == ["translate English to German: Hi"]
    found = translate_text(loaded, ["Hi"], source="en", target="de")
    assert found == generate_text(loaded, given, beam_size=2, max_new_tokens=6)
    assert options["task"]["num_beams"] == 2
    with pytest.raises(ValueError, match="no 'translate English to French: '"):
        translate_text(loaded, ["Hi"], source="en", target="fr")
    with pytest.raises(ValueError, match="set both languages"):
        translate_text(loaded, ["Hi"], target="de")


def test_a_model_for_one_pair_is_told_nothing(seq2seq: tuple[hub.Loaded, Any], decoder: hub.Loaded) -> None:
    loaded, _ = seq2seq
    assert translate_text(loaded, ["Hi"], max_new_tokens=3) == generate_text(loaded, ["Hi"], max_new_tokens=3)
    with pytest.raises(ValueError, match="takes no languages"):
        translate_text(loaded, ["Hi"], target="de")
    with pytest.raises(ValueError, match="needs an encoder-decoder; this model is a decoder"):
        translate_text(decoder, ["Hi"])
