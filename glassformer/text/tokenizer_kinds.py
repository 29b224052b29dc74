"""The older tokenizer files: which kind of tokenizer they are, and how each kind is put together.

They hold a vocabulary and leave the rest to the name of a class, which ``tokenizer_config.json`` or ``config.json``
usually says; where neither does and the files alone do not settle it, the caller passes ``kind``. Nothing is guessed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors

from glassformer.config.checks import Setting
from glassformer.text import language_codes, pieces
from glassformer.text.pieces import CONTROL, UNUSED, PieceModel, TokenizerError, score_bpe, unigram
from glassformer.text.tokenizer_folder import Folder, add_tokens, added_token, read_json
from glassformer.text.vocabularies import Vocabulary, byte_bpe, frame, openai_gpt, wordpiece

_WORDS, _MERGES, _PIECES = "vocab.txt", "vocab.json and merges.txt", "a SentencePiece *.model"
_NUMBERED = "vocab.json with a SentencePiece *.model"
_MODEL_NAMES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
# kind -> the files it reads, the tokenizer classes and the model types that mean it
KINDS: dict[str, tuple[str, str, str]] = {
    "wordpiece": (_WORDS, "BertTokenizer DistilBertTokenizer ElectraTokenizer", "bert distilbert electra"),
    "byte_bpe": (_MERGES, "", ""),  # gpt2 or roberta, by the special tokens in the vocabulary
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


def read(folder: Folder, kind: str | None = None) -> Vocabulary:
    """The vocabulary in a folder's older files; ``kind`` says what they are where they do not."""
    if kind is not None and kind not in KINDS:
        raise TokenizerError(f"kind must be one of {', '.join(sorted(KINDS))}; got {kind!r}.")
    kind = _decide(folder, kind)
    # Where nothing else is said, the special tokens are the kind's own; a mask takes the space before it (not BERT's).
    strips = kind != "wordpiece"
    own = {role: added_token(text, lstrip=strips and role == "mask") for role, text in _DEFAULTS[kind].items()}
    folder = replace(folder, special={**own, **folder.special}, assumed=frozenset(own) - frozenset(folder.special))
    built = _BUILDERS[kind](folder)
    return built if isinstance(built, Vocabulary) else folder.vocabulary(built)


def _present(folder: Path) -> dict[str, Path]:
    """The kinds of vocabulary files in a folder; for a SentencePiece model, its path."""
    found = {_WORDS: folder / "vocab.txt"} if (folder / "vocab.txt").exists() else {}
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        found[_MERGES] = folder / "vocab.json"
    for name in _MODEL_NAMES:
        if (folder / name).exists():
            found[_PIECES] = folder / name
    if _PIECES in found and (folder / "vocab.json").exists():
        found[_NUMBERED] = folder / "vocab.json"
    return found


def _decide(folder: Folder, kind: str | None) -> str:
    present = _present(folder.path)
    if not present:
        looked = f"tokenizer.json, {_WORDS}, {_MERGES}, {', '.join(_MODEL_NAMES)}"
        raise TokenizerError(f"{folder.path} holds no tokenizer. Looked for: {looked}.")
    said = kind or _said(folder)
    if said is None:
        if list(present) == [_WORDS]:
            return "wordpiece"
        said = "byte_bpe" if list(present) == [_MERGES] else None
    if said is None:
        raise TokenizerError(
            f"{{}} holds {' and '.join(present)} and does not say which model they belong to; "
            f"pass {{}}, one of {', '.join(k for k, facts in KINDS.items() if facts[0] in present)}.",
            str(folder.path),
            Setting("kind", outside="tokenizer_kind"),
        )
    if KINDS[said][0] not in present:
        raise TokenizerError(
            f"{folder.path} should be {said!r}, which reads {KINDS[said][0]}; it holds {' and '.join(present)}. "
            "If the files are right, pass the kind that reads them."
        )
    return _byte_bpe_kind(folder) if said == "byte_bpe" else said


def _said(folder: Folder) -> str | None:
    """The kind that a JSON file names, None where none does; a name that is not known is refused."""
    beside = read_json(folder.path / "config.json")
    statements = [
        ("tokenizer_config.json", 1, folder.options.get("tokenizer_class")),
        ("config.json", 1, beside.get("tokenizer_class")),  # NLLB has this and the model type of M2M-100
        ("config.json", 2, beside.get("model_type")),
    ]
    told = [(source, column, str(name or "").removesuffix("Fast")) for source, column, name in statements]
    told = [one for one in told if one[2] not in ("", "PreTrainedTokenizer", "TokenizersBackend")]
    if not told:
        return None
    source, column, named = told[0]
    for kind, facts in KINDS.items():
        if named in facts[column].split():
            return kind
    raise TokenizerError(
        "{} says {}, whose older files are not read here. Use the model's tokenizer.json, or pass {}, one of "
        f"{', '.join(KINDS)}, if it works exactly like one of them.",
        str(folder.path / source),
        named,
        Setting("kind", outside="tokenizer_kind"),
    )


def _byte_bpe_kind(folder: Folder) -> str:
    """GPT-2 or RoBERTa, by the special tokens, once the vocabulary is seen to be made of bytes."""
    vocab = set(read_json(folder.path / "vocab.json"))
    if vocab.issuperset(pre_tokenizers.ByteLevel.alphabet()) and not any(token.endswith("</w>") for token in vocab):
        fits = [kind for kind in ("gpt2", "roberta") if vocab.issuperset(_DEFAULTS[kind].values())]
        if len(fits) == 1:
            return fits[0]
    raise TokenizerError(
        "{} and merges.txt could belong to several models. Recognised are vocabularies with all 256 bytes and either "
        "<|endoftext|> (GPT-2) or <s>, </s>, <unk>, <pad>, <mask> (RoBERTa). Pass {}, one of gpt2, roberta, "
        "openai_gpt; those of CTRL and XLM are not read.",
        str(folder.path / "vocab.json"),
        Setting("kind", outside="tokenizer_kind"),
    )


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines(): tokens may be exotic line ends
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
            f"{folder.path / 'vocab.txt'} has no {', '.join(lacking)}, which WordPiece cannot do without. "
            "If they have other names, special_tokens_map.json says them."
        )
    backend = wordpiece(tokens, folder.options, unk=folder.token("unk"))
    add_tokens(backend, folder)
    frame(backend, start=[folder.token("cls")], end=[folder.token("sep")], between=[folder.token("sep")])
    return backend


def _ranked(folder: Folder) -> Tokenizer:
    """Byte-level BPE with nothing around the text yet."""
    prefix_space = bool(folder.options.get("add_prefix_space", False))
    vocab, merges = read_json(folder.path / "vocab.json"), _merges(folder.path / "merges.txt")
    backend = byte_bpe(vocab, merges, prefix_space=prefix_space)
    add_tokens(backend, folder)
    return backend


def _gpt2(folder: Folder) -> Tokenizer:
    backend = _ranked(folder)
    wanted = {role: [folder.token(role)] if folder.options.get(f"add_{role}_token") else [] for role in ("bos", "eos")}
    frame(backend, start=wanted["bos"], end=wanted["eos"])
    return backend


def _roberta(folder: Folder) -> Tokenizer:
    backend = _ranked(folder)
    cls, sep = folder.token("cls"), folder.token("sep")
    frame(backend, start=[cls], end=[sep])  # checks that both are there
    numbers = backend.get_vocab(with_added_tokens=True)
    prefix_space = bool(folder.options.get("add_prefix_space", False))
    backend.post_processor = processors.RobertaProcessing((sep, numbers[sep]), (cls, numbers[cls]), True, prefix_space)
    return backend


def _openai_gpt(folder: Folder) -> Tokenizer:
    vocab, merges = read_json(folder.path / "vocab.json"), _merges(folder.path / "merges.txt")
    backend = openai_gpt(vocab, merges, unk=folder.token("unk"))
    add_tokens(backend, folder)
    frame(backend)
    return backend


def _pieces(folder: Folder, *, bpe: bool | None = False) -> PieceModel:
    model = PieceModel.read(path := _present(folder.path)[_PIECES])
    if bpe is not None and model.bpe != bpe:
        found, wanted = ("BPE", "Unigram") if model.bpe else ("Unigram", "BPE")
        raise TokenizerError(f"{path} is a {found} model, this kind of tokenizer needs {wanted}; pass another kind.")
    return model


def _finish(backend: Tokenizer, model: PieceModel, folder: Folder) -> Tokenizer:
    """Special tokens with a role first: they know how they take spaces, which the pieces do not say."""
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
    frame(backend, end=[folder.token("eos")], between=[folder.token("eos")], second=0)
    return backend


def _albert(folder: Folder) -> Tokenizer:
    model = _pieces(folder)
    # ALBERT cuts the comma off a piece like "9,"; a score that never wins does the same.
    model.pieces = [(t, s - 100 * (t[-1:] == "," and t[-2:-1].isdigit()), k) for t, s, k in model.pieces]
    steps: list[normalizers.Normalizer] = [normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " ")]  # as str.split() cuts
    steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not folder.options.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if folder.options.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    backend = _finish(unigram(model, before=steps), model, folder)
    frame(backend, start=[folder.token("cls")], end=[folder.token("sep")], between=[folder.token("sep")])
    return backend


def _xlm_roberta(folder: Folder) -> Tokenizer:
    pieces.as_fairseq(model := _pieces(folder), folder.token)
    backend, eos = _finish(unigram(model), model, folder), folder.token("eos")
    frame(backend, start=[folder.token("bos")], end=[eos], between=[eos, eos], second=0)
    return backend


def _llama(folder: Folder) -> Tokenizer:
    model = _pieces(folder, bpe=True)
    backend = _finish(score_bpe(model), model, folder)
    start = [folder.token("bos")] if folder.options.get("add_bos_token", True) else []
    frame(backend, start=start, end=[folder.token("eos")] if folder.options.get("add_eos_token", False) else [])
    return backend


def _nllb(folder: Folder) -> Tokenizer:
    """A text ends with EOS; its language, which only the caller knows, is for ``languages.py`` to add."""
    pieces.as_fairseq(model := _pieces(folder, bpe=True), folder.token, language_codes.NLLB.split())
    backend = _finish(score_bpe(model), model, folder)
    frame(backend, end=[folder.token("eos")])
    return backend


def _m2m100(folder: Folder) -> Vocabulary:
    """The numbers of ``vocab.json``, then the languages and a few made-up words that fill the model's table."""
    model, numbers = _pieces(folder, bpe=None), read_json(folder.path / "vocab.json")
    asked = str(folder.options.get("language_codes") or "m2m100")
    if asked not in language_codes.M2M100:
        raise TokenizerError(
            f"{folder.path}: language_codes must be {' or '.join(language_codes.M2M100)}, got {asked!r}."
        )
    extra = [(f"__{code}__", CONTROL) for code in language_codes.M2M100[asked].split()]
    for i in range(int(folder.options.get("num_madeup_words", 8))):
        taken = folder.added.get(len(numbers) + len(extra))  # the user's own tokens come instead of made-up words
        # A name with a space, which no text can reach: spaces are written as pieces write them before it is cut.
        extra.append((str(taken.content) if taken else f"madeup word {i}", UNUSED))
    size = pieces.renumber(model, numbers, extra, folder.token("unk"))
    backend = _finish(score_bpe(model) if model.bpe else unigram(model), model, folder)
    frame(backend, end=[folder.token("eos")])
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
