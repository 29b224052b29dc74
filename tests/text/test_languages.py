"""Languages and tasks: the tokens of translation models at the right end, their files, and tasks told in words."""

import json
import random
from functools import cache
from pathlib import Path

import pytest

from glassformer.config.checks import SettingError
from glassformer.text.languages import (
    KINDS,
    NAMES,
    Languages,
    TaskPrefix,
    embedded_languages,
    find_task,
    find_translation,
    languages_of,
    tasks_of,
    translation_prefix,
)
from glassformer.text.pieces import PieceModel
from glassformer.text.tokenizer import Tokenizer, TokenizerError
from glassformer.text.tokenizer_kinds import M2M100, NLLB
from tests.text.test_tokenizer import HOSTILE, LINES, plain, train_pieces, wire_model, write_words

TEXTS = [text for text in [*HOSTILE, *LINES[:100]] if plain(text)]
ABSENT = ("▁the", "in", "▁class", "z")  # pieces that M2M-100's vocabulary lacks: one is part of others, one a letter
BPE, UNIGRAM = "bpe", "unigram"


@cache
def piece_file(model_type: str) -> bytes:
    return train_pieces(model_type=model_type)


def write_m2m100(folder: Path, model_type: str = BPE, **config) -> Path:
    """M2M-100's files as they are: the vocabulary has its own order, lacks pieces, and has a character that is none."""
    folder.mkdir(exist_ok=True)
    (folder / "sentencepiece.bpe.model").write_bytes(piece_file(model_type))
    names = [text for text, _, _ in PieceModel.read(folder / "sentencepiece.bpe.model").pieces[3:]]
    assert set(ABSENT) < set(names)
    rest = [*(text for text in names if text not in ABSENT), "♥"]
    random.Random(0).shuffle(rest)
    vocab = {text: i for i, text in enumerate(["<s>", "<pad>", "</s>", "<unk>", *rest])}
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "M2M100Tokenizer", **config}))
    return folder


def their_m2m100(folder: Path, **options):
    from transformers import M2M100Tokenizer

    return M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"), **options)


def write_nllb(folder: Path, **config) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "sentencepiece.bpe.model").write_bytes(piece_file(BPE))
    (folder / "config.json").write_text('{"model_type": "m2m_100", "tokenizer_class": "NllbTokenizer"}')
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def their_nllb(folder: Path, **options):
    """The reference over the numbers of the published files: the languages before the mask."""
    from transformers import NllbTokenizer
    from transformers.convert_slow_tokenizer import NllbConverter, generate_merges

    model = PieceModel.read(folder / "sentencepiece.bpe.model")
    vocab = {text: i for i, (text, _, _) in enumerate(model.pieces)}
    merges = generate_merges(vocab, {text: score for text, score, _ in model.pieces})
    numbers = NllbConverter.convert_from_spm(vocab=vocab)["vocab"]
    for code in (*NLLB.split(), "<mask>"):
        numbers[code] = len(numbers)
    return NllbTokenizer(vocab=numbers, merges=merges, _spm_precompiled_charsmap=model.charsmap, **options)


@pytest.fixture(scope="module")
def m2m100(tmp_path_factory) -> Tokenizer:
    return Tokenizer.load(write_m2m100(tmp_path_factory.mktemp("m2m100")))


# ---- the older files


@pytest.mark.parametrize("model_type", [BPE, UNIGRAM])
def test_m2m100_equals_transformers(tmp_path, model_type) -> None:
    folder = write_m2m100(tmp_path, model_type)
    ours, theirs = Tokenizer.load(folder), their_m2m100(folder, src_lang="fr")
    languages = languages_of(ours)
    assert languages.ids == theirs.lang_code_to_id
    assert languages.tokens == theirs.lang_token_to_id
    assert ours.vocab_size == theirs.encoder_size + 100 + 8  # with the words that only fill the table
    for text in [*TEXTS, "♥", "a ♥ b", "the class", "inside the zoo", "zzz", "madeup word 0"]:
        assert languages.source(text, "fr") == theirs(text)["input_ids"], ascii(text)
    heart = ours.id_of("♥")
    assert ours.encode("♥♥", special=False)[-2:] == [
        heart,
        heart,
    ]  # the reference finds no "♥♥" and takes it as unknown
    assert heart not in theirs("♥♥")["input_ids"]
    ids = ours.encode("the class")
    assert ids[-1] == ours.eos
    assert ours.unk in ids  # a piece that the vocabulary lacks is unknown, and is not cut further
    assert max(max(row) for row in ours.encode_batch(TEXTS)) < ours.vocab_size


def test_m2m100_pieces_that_the_vocabulary_lacks_stay_hidden(tmp_path, m2m100) -> None:
    with pytest.raises(TokenizerError, match=r"has no '▁the'\. Did you mean"):
        m2m100.id_of("▁the")
    with pytest.raises(TokenizerError, match=f"no token {m2m100.vocab_size};"):
        m2m100.tokens([m2m100.vocab_size])
    m2m100.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.vocab_size == m2m100.vocab_size
    assert again.encode_batch(TEXTS) == m2m100.encode_batch(TEXTS)
    assert languages_of(again).ids == languages_of(m2m100).ids
    shut = m2m100.encode("the __en__ class", allow_special=False)
    assert max(shut) < m2m100.vocab_size
    assert languages_of(m2m100).resolve("en") not in shut


def test_what_fills_the_table_does_not_change_how_a_text_is_cut(tmp_path) -> None:
    """Unigram takes an unknown letter at ten below the lowest score; a filler must not make that lower."""
    special = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces = [("▁", -2.0, 1), ("ab", -15.0, 1), ("c", -15.0, 1), ("bc", -1.0, 1)]
    (tmp_path / "sentencepiece.bpe.model").write_bytes(wire_model([*special, *pieces], unk_id=0))
    vocab = ["<s>", "<pad>", "</s>", "<unk>", "bc", "ab", "♥", "c", "▁"]
    (tmp_path / "vocab.json").write_text(json.dumps({text: i for i, text in enumerate(vocab)}))
    ours = Tokenizer.load(tmp_path, kind="m2m100")
    assert ours.tokens(ours.encode("abc")) == ["▁", "<unk>", "bc", "</s>"]
    assert languages_of(ours).source("abc", "en") == their_m2m100(tmp_path)("abc")["input_ids"]


def test_m2m100_files_of_other_sizes(tmp_path) -> None:
    folder = write_m2m100(tmp_path, language_codes="wmt21", num_madeup_words=0)
    ours, theirs = Tokenizer.load(folder), their_m2m100(folder, language_codes="wmt21")
    assert languages_of(ours).ids == theirs.lang_code_to_id
    assert ours.vocab_size == theirs.encoder_size + 8
    size = theirs.encoder_size + 100
    mine = {"added_tokens_decoder": {str(size): {"content": "<mine>", "special": False}}}
    added = Tokenizer.load(write_m2m100(tmp_path, **mine))
    assert added.encode("<mine>", special=False) == [size]
    assert added.vocab_size == size + 8
    with pytest.raises(TokenizerError, match="language_codes must be m2m100 or wmt21, got 'nllb'"):
        Tokenizer.load(write_m2m100(tmp_path, language_codes="nllb"))


def test_m2m100_files_that_do_not_fit_are_refused(tmp_path) -> None:
    folder = write_m2m100(tmp_path)
    whole = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    (folder / "vocab.json").write_text(json.dumps({**whole, "♥": 9999}))
    with pytest.raises(TokenizerError, match=f"{len(whole)} tokens of a vocabulary must have the ids 0 to"):
        Tokenizer.load(folder)
    (folder / "vocab.json").write_text(json.dumps({text if text != "<unk>" else "<?>": i for text, i in whole.items()}))
    with pytest.raises(TokenizerError, match="has no <unk>"):
        Tokenizer.load(folder)
    (folder / "vocab.json").unlink()
    with pytest.raises(
        TokenizerError, match=r"'m2m100', which reads vocab.json with a SentencePiece \*.model; it hold"
    ):
        Tokenizer.load(folder)


def test_nllb_equals_sentencepiece_and_the_published_numbers(tmp_path) -> None:
    spm = pytest.importorskip("sentencepiece", reason="the reference for the pieces")
    pieces = spm.SentencePieceProcessor(model_proto=piece_file(BPE))
    ours, size = Tokenizer.load(write_nllb(tmp_path)), pieces.get_piece_size()
    for text in TEXTS:
        assert ours.encode(text) == [*(i + 1 if i else 3 for i in pieces.encode(text)), 2], ascii(text)
    languages = languages_of(ours, tmp_path)
    assert list(languages.ids.values()) == [size + 1 + i for i in range(202)]
    assert languages.ids["eng_Latn"] - size == 256_047 - 256_000  # as published, over 256,000 pieces
    assert (ours.bos, ours.pad, ours.eos, ours.unk, ours.mask) == (0, 1, 2, 3, size + 203)


def test_nllb_reads_the_same_from_its_tokenizer_json(tmp_path) -> None:
    theirs = their_nllb(write_nllb(tmp_path), src_lang="deu_Latn")
    theirs.save_pretrained(str(tmp_path / "fast"))
    old, new = Tokenizer.load(tmp_path), Tokenizer.load(tmp_path / "fast")
    assert (tmp_path / "fast" / "tokenizer.json").exists()
    assert languages_of(new, tmp_path / "fast").ids == languages_of(old, tmp_path).ids
    for text in LINES[:100]:
        assert old.encode(text, special=False) == new.encode(text, special=False), text


# ---- the frame of a source text


@pytest.mark.parametrize("legacy", [False, True])
def test_nllb_source_equals_transformers(tmp_path, legacy) -> None:
    folder = write_nllb(tmp_path, legacy_behaviour=legacy)
    theirs = their_nllb(folder, legacy_behaviour=legacy, src_lang="fra_Latn")
    theirs.save_pretrained(str(tmp_path / "fast"))
    for where in (folder, tmp_path / "fast"):
        languages = languages_of(Tokenizer.load(where), where)
        assert languages.kind == ("nllb_legacy" if legacy else "nllb")
        for text in LINES[:50]:
            assert languages.source(text, "fra_Latn") == theirs(text)["input_ids"], text


@pytest.mark.parametrize("kind", ["mbart", "mbart50"])
def test_mbart_source_equals_transformers(tmp_path, kind) -> None:
    from transformers import MBart50Tokenizer, MBartTokenizer

    theirs = {"mbart": MBartTokenizer, "mbart50": MBart50Tokenizer}[kind](src_lang="ro_RO")
    theirs.save_pretrained(str(tmp_path))
    ours = Tokenizer.load(tmp_path)
    languages = languages_of(ours, tmp_path)
    assert languages.ids == theirs.lang_code_to_id
    assert languages.source("x", "ro_RO") == theirs("x")["input_ids"]
    assert languages_of(ours, kind=kind) == languages
    with pytest.raises(TokenizerError, match="may be those of mbart50 or mbart, which put them at different ends"):
        languages_of(ours)
    if kind == "mbart":
        with pytest.raises(TokenizerError, match=r"starts with the language token.*resolve\('ro_RO'\)"):
            languages.forced_first("ro_RO")
    else:
        assert languages.forced_first("ro_RO") == theirs.lang_code_to_id["ro_RO"]


@pytest.mark.parametrize("kind", ["nllb", "nllb_legacy"])
def test_a_frame_is_never_doubled(tmp_path, kind) -> None:
    ours = Tokenizer.load(write_nllb(tmp_path))
    languages = languages_of(ours, kind=kind)
    wanted = languages.source("the class", "eng_Latn")
    for text in ("eng_Latn the class", "the class</s>", "eng_Latn the class</s>", "the class</s>eng_Latn"):
        assert languages.source(text, "eng_Latn") == wanted, text
    for ids in (wanted, ours.encode("the class"), ours.encode("the class", special=False)):
        assert languages.source(ids, "eng_Latn") == wanted
    assert sorted(languages.source("", "eng_Latn")) == sorted([languages.resolve("eng_Latn"), ours.eos])
    for text in ("fra_Latn the class", "the class</s>fra_Latn"):
        with pytest.raises(
            TokenizerError, match="source language is 'eng_Latn', but the text has the token of 'fra_Latn'"
        ):
            languages.source(text, "eng_Latn")
    shut = languages.source("fra_Latn the class", "eng_Latn", allow_special=False)
    assert languages.resolve("fra_Latn") not in shut
    with pytest.raises(TokenizerError, match=f"no token {ours.vocab_size}"):
        languages.source([ours.vocab_size], "eng_Latn")


# ---- which languages there are


def test_languages_are_found_under_both_spellings(m2m100) -> None:
    languages = languages_of(m2m100)
    assert (len(languages.ids), languages.kind) == (100, "m2m100")
    assert languages.resolve("en") == languages.resolve("__en__") == m2m100.id_of("__en__")
    assert languages.forced_first("de") == languages.forced_first("__de__") == m2m100.id_of("__de__")
    for wrong, hint in (
        ("eng", "nearest: en"),
        ("EN", "the first: af, "),
        ("__eng__", "nearest: "),
        ("", "the first: af, "),
    ):
        with pytest.raises(TokenizerError, match=f"language {wrong!r} is not one of the 100 .* {hint}"):
            languages.resolve(wrong)


def test_both_languages_must_be_said(m2m100) -> None:
    languages = languages_of(m2m100)
    with pytest.raises(TokenizerError, match=r"has 100 languages \(af, am, ar …\); set the source language"):
        languages.source("the class", None)
    with pytest.raises(TokenizerError, match="set the target language") as caught:
        languages.forced_first(None)
    assert caught.value.message(lambda value: f"--{value.external_name}").endswith("; set --target.")


def test_a_vocabulary_without_languages_refuses_one(tmp_path) -> None:
    ours = Tokenizer.load(write_words(tmp_path / "bert"))
    languages = languages_of(ours)
    assert languages.source("the class", None) == ours.encode("the class")
    assert languages.source([7, 8], None) == [7, 8]
    assert languages.forced_first(None) is None
    for call in (lambda: languages.source("the class", "en"), lambda: languages.forced_first("en")):
        with pytest.raises(TokenizerError, match="no language tokens, so 'en' cannot be set"):
            call()


def test_a_kind_that_does_not_fit_is_refused(m2m100) -> None:
    with pytest.raises(ValueError, match=r"kind must be one of m2m100, nllb, .*; got 'xlm'"):
        languages_of(m2m100, kind="xlm")
    with pytest.raises(TokenizerError, match="should be a vocabulary of 'nllb', but it has no token like"):
        languages_of(m2m100, kind="nllb")
    assert set(KINDS) == {"m2m100", "nllb", "nllb_legacy", "mbart", "mbart50"}


def test_a_token_with_a_role_is_no_language(tmp_path) -> None:
    words = write_words(tmp_path / "bert", pad_token="__pad__")
    assert languages_of(Tokenizer.load(words)).ids == {}


def test_a_vocabulary_with_languages_needs_eos(tmp_path) -> None:
    words = write_words(tmp_path / "bert", additional_special_tokens=["__en__", "__de__"])
    languages = languages_of(Tokenizer.load(words))
    assert list(languages.ids) == ["en", "de"]
    with pytest.raises(TokenizerError, match="language tokens but no EOS"):
        languages.source("the class", "en")


@pytest.mark.parametrize("name", ["special_tokens_map.json", "tokenizer_config.json"])
@pytest.mark.parametrize("params", [["__en__"], {"english": "__en__"}, [{"content": "__en__"}]], ids=str)
def test_further_special_tokens_are_known_however_they_are_listed(tmp_path, name, params) -> None:
    folder = write_words(tmp_path / "bert")
    key = "extra_special_tokens" if name == "tokenizer_config.json" else "additional_special_tokens"
    (folder / name).write_text(json.dumps({key: params}))
    assert list(languages_of(Tokenizer.load(folder)).ids) == ["en"]


def test_xlm_languages_are_numbers(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "xlm", "lang2id": {"de": 0, "en": 1}}')
    languages = embedded_languages(tmp_path)
    assert isinstance(languages, Languages)
    assert (languages.resolve("de"), languages.resolve("en")) == (0, 1)
    with pytest.raises(TokenizerError, match="language 'fr' is not one of the 2 of this model; all: "):
        languages.resolve("fr")
    for call in (lambda: languages.source("x", "en"), lambda: languages.forced_first("en")):
        with pytest.raises(TokenizerError, match="reads a language id per token, languages="):
            call()
    (tmp_path / "config.json").write_text('{"model_type": "xlm"}')
    with pytest.raises(TokenizerError, match="has no languages: lang2id"):
        embedded_languages(tmp_path)


def test_the_codes_are_those_of_the_reference() -> None:
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M100_CODES
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB_CODES

    assert {name: codes.split() for name, codes in M2M100.items()} == M2M100_CODES
    assert NLLB.split() == NLLB_CODES


# ---- task prefixes


@pytest.fixture
def tasks(tmp_path) -> dict[str, TaskPrefix]:
    german = {"early_stopping": True, "max_length": 300, "num_beams": 4, "prefix": "translate English to German: "}
    params = {"summarization": {"length_penalty": 2.0, "prefix": "summarize: "}, "translation_en_to_de": german}
    params["plain"] = {"min_length": 3}
    (tmp_path / "config.json").write_text(json.dumps({"task_specific_params": params}))
    return tasks_of(tmp_path)


def test_tasks_are_read_with_their_options(tasks) -> None:
    assert find_task(tasks, "summarization") == TaskPrefix("summarize: ", {"length_penalty": 2.0})
    assert find_task(tasks, "plain") == TaskPrefix("", {"min_length": 3})
    german = find_translation(tasks, "en", "German")
    assert german.options == {"early_stopping": True, "max_length": 300, "num_beams": 4}
    assert german.write("Hello.") == "translate English to German: Hello."
    assert german.write(german.write("Hello.")) == german.write("Hello.")


def test_tasks_that_are_not_stated_are_errors(tasks) -> None:
    with pytest.raises(ValueError, match=r"defines no task 'sum', only summarization, translation_en_to_de, plain"):
        find_task(tasks, "sum")
    with pytest.raises(
        SettingError, match=r'defines no tasks\. Set a prefix of your own with Task\("words: "\)\.'
    ) as caught:
        find_task({}, "sum")
    assert caught.value.message(lambda value: f"--{value.external_name}").endswith(
        "Set a prefix of your own with --prefix."
    )
    with pytest.raises(ValueError, match="no 'translate German to English: '; its translations: 'translate English to"):
        find_translation(tasks, "de", "en")
    with pytest.raises(ValueError, match="its translations: none"):
        find_translation({}, "de", "en")


def test_broken_tasks_are_named(tmp_path) -> None:
    assert tasks_of(tmp_path) == {}
    for params, says in (
        ([], None),
        (None, None),
        (["summarize"], "must be an object with an object per task"),
        ({"summarization": "summarize: "}, "must be an object with an object per task"),
        ({"summarization": {"prefix": 3}}, "prefix of the task 'summarization' must be text, got 3"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"task_specific_params": params}))
        if says is None:
            assert tasks_of(tmp_path) == {}
        else:
            with pytest.raises(ValueError, match=says):
                tasks_of(tmp_path)


def test_translations_are_written_from_names_and_codes() -> None:
    wanted = "translate English to Romanian: "
    assert translation_prefix("en", "ro") == translation_prefix("english", "RO") == wanted
    assert len(NAMES) == len(set(NAMES.values())) == 45
    with pytest.raises(ValueError, match=r"'Germen' is not one of the 45 known languages .* Nearest: 'German'"):
        translation_prefix("en", "Germen")
    with pytest.raises(ValueError, match=r"'xq' is not one of the 45 known languages \(names or codes\)\.$"):
        translation_prefix("xq", "en")
    with pytest.raises(ValueError, match="both 'de' and 'German' are German"):
        translation_prefix("de", "German")
