"""Older tokenizer files: recognise their kind and build the tokenizer.

They hold only a vocabulary; the rest is defined by a class that ``tokenizer_config.json`` or ``config.json`` usually
names. If neither does and the files leave a choice, the caller must pass ``kind``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors

from glassformer.config.checks import Setting
from glassformer.text import pieces
from glassformer.text.pieces import CONTROL, UNUSED, NoTokenizerError, PieceModel, TokenizerError, score_bpe, unigram
from glassformer.text.tokenizer_folder import Folder, add_tokens, added_token, read_json
from glassformer.text.vocabularies import Vocabulary, byte_bpe, openai_gpt, set_template, wordpiece

_WORDS, _MERGES, _PIECES = "vocab.txt", "vocab.json and merges.txt", "a SentencePiece *.model"
_NUMBERED = "vocab.json with a SentencePiece *.model"
_MODEL_NAMES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
# kind -> its files, its tokenizer classes, its model types
KINDS: dict[str, tuple[str, str, str]] = {
    "wordpiece": (_WORDS, "BertTokenizer DistilBertTokenizer ElectraTokenizer", "bert distilbert electra"),
    "byte_bpe": (_MERGES, "", ""),  # gpt2 or roberta, by the special tokens of the vocabulary
    "gpt2": (_MERGES, "GPT2Tokenizer", "gpt2"),
    "roberta": (_MERGES, "RobertaTokenizer BartTokenizer LongformerTokenizer", "roberta bart longformer"),
    "openai_gpt": (_MERGES, "OpenAIGPTTokenizer", "openai-gpt"),
    "t5": (_PIECES, "T5Tokenizer", "t5"),
    "albert": (_PIECES, "AlbertTokenizer", "albert"),
    "xlm_roberta": (_PIECES, "XLMRobertaTokenizer", "xlm-roberta"),
    "llama": (_PIECES, "LlamaTokenizer", "llama"),
    "nllb": (_PIECES, "NllbTokenizer", "nllb-moe"),
    "m2m100": (_NUMBERED, "M2M100Tokenizer", "m2m_100"),
}
_ANGLED = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
_BRACKETED = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_DEFAULTS: dict[str, dict[str, str]] = {
    "wordpiece": _BRACKETED,
    "gpt2": dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
    "roberta": _ANGLED,
    "openai_gpt": {"unk": "<unk>"},
    "t5": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    "albert": {**_BRACKETED, "bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "pad": "<pad>"},
    "xlm_roberta": _ANGLED,
    "llama": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
    "nllb": _ANGLED,
    "m2m100": {role: _ANGLED[role] for role in ("bos", "eos", "unk", "sep", "pad")},
}


# Codes of languages in the order of the ids of their tokens, which older files do not list: they follow the vocabulary.
# Fan et al. 2020, and the models of the WMT 2021 shared task, which say ``language_codes: wmt21``.
M2M100 = {
    "m2m100": """
        af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy
        id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru
        sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
    """,
    "wmt21": "en ha is ja cs ru zh de",
}

# NLLB Team 2022: ISO 639-3 for the language, ISO 15924 for the script; sorted under older codes, hence not quite.
NLLB = """
    ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab arb_Arab ars_Arab
    ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn ban_Latn bel_Cyrl
    bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn
    cjk_Latn ckb_Arab crh_Latn cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn
    est_Latn eus_Latn ewe_Latn fao_Latn pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn
    gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn
    ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab
    kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn kea_Latn khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn
    kon_Latn kor_Hang kmr_Latn lao_Laoo lvs_Latn lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn
    lua_Latn lug_Latn luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn mkd_Cyrl plt_Latn mlt_Latn
    mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva nso_Latn nus_Latn
    nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn por_Latn prs_Arab pbt_Arab quy_Latn
    ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn
    sna_Latn snd_Arab som_Latn sot_Latn spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn
    szl_Latn tam_Taml tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn
    tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn
    vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans zho_Hant zul_Latn
"""


def check_kind(kind: str | None) -> None:
    """Raise unless there is such a kind."""
    if kind is not None and kind not in KINDS:
        setting = Setting("kind", external_name="tokenizer_kind")
        raise TokenizerError("{} must be one of {}; got {}.", setting, ", ".join(sorted(KINDS)), repr(kind))


def read(folder: Folder, kind: str | None = None) -> Vocabulary:
    """Return the vocabulary in a folder's older files; ``kind`` if the files do not name it."""
    kind = _choose_kind(folder, kind)
    # Roles that no file names have the kind's default tokens; a mask strips the space before it (not BERT's).
    strips = kind != "wordpiece"
    defaults = {role: added_token(text, lstrip=strips and role == "mask") for role, text in _DEFAULTS[kind].items()}
    folder = replace(
        folder, special={**defaults, **folder.special}, assumed=frozenset(defaults) - frozenset(folder.special)
    )
    result = _BUILDERS[kind](folder)
    return result if isinstance(result, Vocabulary) else folder.vocabulary(result)


def _present(folder: Path) -> dict[str, Path]:
    """Return the kinds of vocabulary files in a folder, each with a path."""
    present = {_WORDS: folder / "vocab.txt"} if (folder / "vocab.txt").exists() else {}
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        present[_MERGES] = folder / "vocab.json"
    for name in _MODEL_NAMES:
        if (folder / name).exists():
            present[_PIECES] = folder / name
    if _PIECES in present and (folder / "vocab.json").exists():
        present[_NUMBERED] = folder / "vocab.json"
    return present


def _choose_kind(folder: Folder, kind: str | None) -> str:
    """Return the kind that is passed, or named by a file, or the only one that reads the files."""
    present = _present(folder.path)
    if not present:
        expected = f"tokenizer.json, {_WORDS}, {_MERGES}, {', '.join(_MODEL_NAMES)}"
        raise NoTokenizerError(f"{folder.path} holds no tokenizer. Looked for: {expected}.")
    readers = ", ".join(name for name, facts in KINDS.items() if facts[0] in present)
    setting = Setting("kind", external_name="tokenizer_kind")
    # The kind by its name, else by files that only one kind has.
    kind = kind or _named_kind(folder)
    if kind is None:
        if list(present) == [_WORDS]:
            return "wordpiece"
        kind = "byte_bpe" if list(present) == [_MERGES] else None
    if kind is None:
        raise TokenizerError(
            f"{{}} holds {' and '.join(present)}, which may belong to several kinds of model; "
            f"pass {{}}, one of {readers}.",
            str(folder.path),
            setting,
        )
    if KINDS[kind][0] not in present:
        raise TokenizerError(
            f"{{}} should be {kind!r}, which reads {KINDS[kind][0]}; it holds {' and '.join(present)}. "
            f"If the files are right, pass the kind that reads them: {{}}, one of {readers}.",
            str(folder.path),
            setting,
        )
    return _byte_bpe_kind(folder) if kind == "byte_bpe" else kind


def _named_kind(folder: Folder) -> str | None:
    """Return the kind of the class or model type that a JSON file names, or None; raise if it is unknown."""
    # The first name that says something, of a tokenizer's class or of a model type.
    config = read_json(folder.path / "config.json")
    names = [
        ("tokenizer_config.json", 1, folder.options.get("tokenizer_class")),
        ("config.json", 1, config.get("tokenizer_class")),  # before model_type: that of NLLB is M2M-100's
        ("config.json", 2, config.get("model_type")),
    ]
    stripped = [(source, column, str(name or "").removesuffix("Fast")) for source, column, name in names]
    known = [entry for entry in stripped if entry[2] not in ("", "PreTrainedTokenizer", "TokenizersBackend")]
    if not known:
        return None
    source, column, class_name = known[0]
    for kind, entry in KINDS.items():
        if class_name in entry[column].split():
            return kind
    raise TokenizerError(
        "{} says {}, whose older files are not supported. Use the model's tokenizer.json, or pass {}, one of "
        f"{', '.join(KINDS)}, if it works exactly like one of them.",
        str(folder.path / source),
        class_name,
        Setting("kind", external_name="tokenizer_kind"),
    )


def _byte_bpe_kind(folder: Folder) -> str:
    """GPT-2 or RoBERTa by the special tokens, if the vocabulary is byte-level."""
    vocab = set(read_json(folder.path / "vocab.json"))
    if vocab.issuperset(pre_tokenizers.ByteLevel.alphabet()) and not any(token.endswith("</w>") for token in vocab):
        fits = [kind for kind in ("gpt2", "roberta") if vocab.issuperset(_DEFAULTS[kind].values())]
        if len(fits) == 1:
            return fits[0]
    raise TokenizerError(
        "{} and merges.txt could belong to several models. Recognised are vocabularies with all 256 bytes and either "
        "<|endoftext|> (GPT-2) or <s>, </s>, <unk>, <pad>, <mask> (RoBERTa). Pass {}, one of gpt2, roberta, "
        "openai_gpt; those of CTRL and XLM are not supported.",
        str(folder.path / "vocab.json"),
        Setting("kind", external_name="tokenizer_kind"),
    )


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines(): tokens may be other line separators
    return lines[:-1] if lines[-1] == "" else lines


def _merges(path: Path) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(_lines(path), 1):
        if line and not line.startswith("#version"):
            left, _, right = line.partition(" ")
            if not left or not right or " " in right:
                raise TokenizerError(
                    f"{path}, line {number}: expected two pieces with a space between, found {line!r}."
                )
            pairs.append((left, right))
    return pairs


def _wordpiece(folder: Folder) -> Tokenizer:
    tokens = _lines(folder.path / "vocab.txt")
    if lacking := sorted({folder.token(role) for role in ("unk", "cls", "sep")} - set(tokens)):
        raise TokenizerError(
            f"{folder.path / 'vocab.txt'} has no {', '.join(lacking)}, which WordPiece needs. "
            "If they have other names, list them in special_tokens_map.json."
        )
    backend = wordpiece(tokens, folder.options, unk=folder.token("unk"))
    add_tokens(backend, folder)
    set_template(backend, start=[folder.token("cls")], end=[folder.token("sep")], between=[folder.token("sep")])
    return backend


def _ranked(folder: Folder) -> Tokenizer:
    """Return byte-level BPE without special tokens around the text."""
    prefix_space = bool(folder.options.get("add_prefix_space", False))
    vocab, merges = read_json(folder.path / "vocab.json"), _merges(folder.path / "merges.txt")
    backend = byte_bpe(vocab, merges, prefix_space=prefix_space)
    add_tokens(backend, folder)
    return backend


def _gpt2(folder: Folder) -> Tokenizer:
    backend = _ranked(folder)
    tokens = {role: [folder.token(role)] if folder.options.get(f"add_{role}_token") else [] for role in ("bos", "eos")}
    set_template(backend, start=tokens["bos"], end=tokens["eos"])
    return backend


def _roberta(folder: Folder) -> Tokenizer:
    backend = _ranked(folder)
    cls, sep = folder.token("cls"), folder.token("sep")
    set_template(backend, start=[cls], end=[sep])  # raises if one is missing
    numbers = backend.get_vocab(with_added_tokens=True)
    prefix_space = bool(folder.options.get("add_prefix_space", False))
    backend.post_processor = processors.RobertaProcessing((sep, numbers[sep]), (cls, numbers[cls]), True, prefix_space)
    return backend


def _openai_gpt(folder: Folder) -> Tokenizer:
    vocab, merges = read_json(folder.path / "vocab.json"), _merges(folder.path / "merges.txt")
    backend = openai_gpt(vocab, merges, unk=folder.token("unk"))
    add_tokens(backend, folder)
    set_template(backend)
    return backend


def _pieces(folder: Folder, *, bpe: bool | None = False) -> PieceModel:
    model = PieceModel.read(path := _present(folder.path)[_PIECES])
    if bpe is not None and model.bpe != bpe:
        actual, expected = ("BPE", "Unigram") if model.bpe else ("Unigram", "BPE")
        raise TokenizerError(f"{path} is a {actual} model, this kind of tokenizer needs {expected}; pass another kind.")
    return model


def _finish(backend: Tokenizer, model: PieceModel, folder: Folder) -> Tokenizer:
    """Add special tokens, those with a role first: their files state how they treat spaces, the pieces do not."""
    add_tokens(backend, folder)
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    rest = [(text, kind) for text, _, kind in model.pieces if text not in known]
    pieces.mark_pieces(backend, [text for text, _ in rest], [kind for _, kind in rest])
    return backend


def _t5(folder: Folder) -> Tokenizer:
    model = _pieces(folder)
    blanks = range(int(folder.options.get("extra_ids", 100)))
    model.pieces += [(f"<extra_id_{i}>", 0.0, CONTROL) for i in reversed(blanks)]
    backend = _finish(unigram(model), model, folder)
    set_template(backend, end=[folder.token("eos")], between=[folder.token("eos")], second=0)
    return backend


def _albert(folder: Folder) -> Tokenizer:
    model = _pieces(folder)
    # ALBERT splits the comma off a piece like "9,"; a score that never wins has the same effect.
    model.pieces = [(t, s - 100 * (t[-1:] == "," and t[-2:-1].isdigit()), k) for t, s, k in model.pieces]
    steps: list[normalizers.Normalizer] = [normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " ")]  # as str.split() splits
    steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not folder.options.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if folder.options.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    backend = _finish(unigram(model, before=steps), model, folder)
    set_template(backend, start=[folder.token("cls")], end=[folder.token("sep")], between=[folder.token("sep")])
    return backend


def _xlm_roberta(folder: Folder) -> Tokenizer:
    pieces.number_as_fairseq(model := _pieces(folder), folder.token)
    backend, eos = _finish(unigram(model), model, folder), folder.token("eos")
    set_template(backend, start=[folder.token("bos")], end=[eos], between=[eos, eos], second=0)
    return backend


def _llama(folder: Folder) -> Tokenizer:
    model = _pieces(folder, bpe=True)
    backend = _finish(score_bpe(model), model, folder)
    start = [folder.token("bos")] if folder.options.get("add_bos_token", True) else []
    set_template(backend, start=start, end=[folder.token("eos")] if folder.options.get("add_eos_token", False) else [])
    return backend


def _nllb(folder: Folder) -> Tokenizer:
    """Return NLLB's vocabulary: a text ends with EOS, and ``Languages.source`` adds its language token."""
    pieces.number_as_fairseq(model := _pieces(folder, bpe=True), folder.token, NLLB.split())
    backend = _finish(score_bpe(model), model, folder)
    set_template(backend, end=[folder.token("eos")])
    return backend


def _m2m100(folder: Folder) -> Vocabulary:
    """Return the ids of ``vocab.json``, then the languages and a few made-up words that fill the embedding table."""
    model, numbers = _pieces(folder, bpe=None), read_json(folder.path / "vocab.json")
    codes = str(folder.options.get("language_codes") or "m2m100")
    if codes not in M2M100:
        raise TokenizerError(f"{folder.path}: language_codes must be {' or '.join(M2M100)}, got {codes!r}.")
    extra = [(f"__{code}__", CONTROL) for code in M2M100[codes].split()]
    for i in range(int(folder.options.get("num_madeup_words", 8))):
        taken = folder.added.get(len(numbers) + len(extra))  # added tokens replace made-up words
        # A name with a space, which no text can encode to: spaces become "▁" before segmentation.
        extra.append((str(taken.content) if taken else f"madeup word {i}", UNUSED))
    size = pieces.renumber(model, numbers, extra, folder.token("unk"))
    backend = _finish(score_bpe(model) if model.bpe else unigram(model), model, folder)
    set_template(backend, end=[folder.token("eos")])
    return folder.vocabulary(backend, size)


_BUILDERS: Mapping[str, Callable[[Folder], Tokenizer | Vocabulary]] = {
    "wordpiece": _wordpiece,
    "gpt2": _gpt2,
    "roberta": _roberta,
    "openai_gpt": _openai_gpt,
    "t5": _t5,
    "albert": _albert,
    "xlm_roberta": _xlm_roberta,
    "llama": _llama,
    "nllb": _nllb,
    "m2m100": _m2m100,
}
