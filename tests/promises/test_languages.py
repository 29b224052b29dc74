"""A known silent bug of translation: the language at the wrong end, not forced, or read as an unknown word."""

import pytest
from transformers import MBart50Tokenizer, MBartTokenizer

from glassformer.text.languages import Languages, languages_of
from glassformer.text.tokenizer import Tokenizer, TokenizerError
from tests.text.test_languages import their_m2m100, their_nllb, write_m2m100, write_nllb

PAIRS = {"m2m100": ("en", "fr"), "nllb": ("eng_Latn", "fra_Latn"), "mbart": ("en_XX", "fr_XX")}


@pytest.fixture(params=["m2m100", "nllb", "nllb_legacy", "mbart50", "mbart"])
def translation(request, tmp_path):
    """Ours, theirs with its source language set, and the codes of a source and a target."""
    kind = request.param
    source, target = PAIRS[kind.removesuffix("_legacy").removesuffix("50")]
    if kind == "m2m100":
        theirs = their_m2m100(write_m2m100(tmp_path), src_lang=source)
    elif kind.startswith("nllb"):
        legacy = kind.endswith("legacy")
        theirs = their_nllb(write_nllb(tmp_path, legacy_behaviour=legacy), legacy_behaviour=legacy, src_lang=source)
    else:
        theirs = {"mbart": MBartTokenizer, "mbart50": MBart50Tokenizer}[kind](src_lang=source)
        theirs.save_pretrained(str(tmp_path))
    languages = languages_of(Tokenizer.load(tmp_path), tmp_path)
    assert languages.kind == kind
    return languages, theirs, source, target


# ---- row 28: the language code at the wrong end, or not forced


def test_row_28_the_source_language_is_at_the_right_end_once(translation) -> None:
    languages, theirs, source, _ = translation
    token, eos = languages.resolve(source), languages.tokenizer.eos
    ids = languages.source("the class of a function", source)
    assert ids == theirs("the class of a function")["input_ids"]
    first = languages.kind in ("m2m100", "nllb", "mbart50")
    assert (ids[0], ids[-1]) == (token, eos) if first else ids[-2:] == [eos, token]
    assert (ids.count(token), ids.count(eos)) == (1, 1)
    assert languages.source(ids, source) == ids


def test_row_28_the_target_language_is_forced_first(translation) -> None:
    languages, theirs, source, target = translation
    options = {} if languages.kind == "m2m100" else {"return_tensors": "pt"}
    wanted = theirs._build_translation_inputs("the class", src_lang=source, tgt_lang=target, **options)
    assert languages.resolve(target) == wanted["forced_bos_token_id"]
    if languages.kind != "mbart":  # whose decoder starts with the language
        assert languages.forced_first(target) == wanted["forced_bos_token_id"]


def test_row_28_an_unknown_language_raises(translation) -> None:
    languages, theirs, source, _ = translation
    wrong = "xx_Xxxx"
    if languages.kind != "m2m100":
        assert theirs.convert_tokens_to_ids(wrong) == theirs.unk_token_id  # what the reference makes of it, silently
    calls = [languages.resolve, languages.forced_first, lambda name: languages.source("the class", name)]
    for call in calls:
        with pytest.raises(TokenizerError, match=f"'{wrong}' is not one of the {len(languages.ids)} of this model"):
            call(wrong)
    for call in calls[1:]:
        with pytest.raises(TokenizerError, match=r"set the (source|target) language"):
            call(None)
    assert isinstance(languages, Languages)
    assert languages.resolve(source) != languages.tokenizer.unk
