"""Build a ``tokenizers.Tokenizer`` from a vocabulary.

* WordPiece (BERT): the longest piece first, ``##`` marks a piece that continues a word;
* ranked merges (GPT-2, RoBERTa, GPT): the best-ranked pair of neighbours is merged until none is left;
* pieces with scores (T5, Llama): ``pieces.py``.

``tokenizer_kinds.py`` chooses the builder for a folder's files; llama2.c's and GGUF's vocabularies are read here.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from glassformer.text.pieces import BYTE, CONTROL, NORMAL, UNKNOWN, PieceModel, TokenizerError, mark_pieces, score_bpe

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# How GGUF's ``tokenizer.ggml.pre`` splits text into words: each pattern splits the parts that the one before left.
GGUF_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (GPT2_SPLIT,),
    "smollm": (r"\p{N}", GPT2_SPLIT),
    "llama-bpe": (_LLAMA3_SPLIT,),
    "qwen2": (_LLAMA3_SPLIT.replace("{1,3}", ""),),
}


def _byte_characters() -> list[str]:
    """Return the character of each byte in GPT-2's files: the byte's own if printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
BYTE_OF = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


@dataclass(frozen=True)
class Vocabulary:
    """A ``tokenizers.Tokenizer``, its tokens with a role, and its chat template."""

    backend: Tokenizer
    special: Mapping[str, str] = field(default_factory=dict)  # one of ROLES -> the token
    chat_template: str | None = None
    known_tokens: int | None = None  # later ids exist only for segmentation and are encoded as unk; None: no such ids


def set_template(
    backend: Tokenizer,
    start: Sequence[str] = (),
    end: Sequence[str] = (),
    between: Sequence[str] = (),
    *,
    second: int = 1,
) -> None:
    """Set the special tokens before (``start``), after (``end``) and between (``between``) the texts of a pair.

    ``second`` is the segment of a pair's second text: 1 for models with segments, else 0.
    """
    used = {token: backend.token_to_id(token) for token in (*start, *end, *between)}
    if missing := [token for token, number in used.items() if number is None]:
        raise TokenizerError(
            f"the vocabulary has no {', '.join(missing)}, which this kind of tokenizer adds to every text."
        )
    single = [*(f"{token}:0" for token in start), "$A:0"]
    pair = [*single, *(f"{token}:0" for token in between), f"$B:{second}", *(f"{token}:{second}" for token in end)]
    single += [f"{token}:0" for token in end]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(used.items()))


# ---- WordPiece and ranked merges


def wordpiece(tokens: Sequence[str], options: Mapping[str, Any], unk: str = "[UNK]") -> Tokenizer:
    """BERT's WordPiece; ``options`` are keys of ``tokenizer_config.json``, with BERT's defaults."""
    backend = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token=unk))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(options.get("tokenize_chinese_chars", True)),
        strip_accents=options.get("strip_accents"),
        lowercase=bool(options.get("do_lower_case", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def byte_bpe(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    splits: Sequence[str] = (GPT2_SPLIT,),
    prefix_space: bool = False,
    whole_words: bool = False,
) -> Tokenizer:
    """GPT-2's byte-level BPE: ``splits`` are patterns that split words, whose bytes are merged by ``merges``.

    With ``whole_words`` a word that is a token is that token, even if the merges do not yield it (Llama 3).
    """
    backend = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges), ignore_merges=whole_words))
    cuts = [pre_tokenizers.Split(Regex(split), "isolated") for split in splits]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=tuple(splits) == (GPT2_SPLIT,))
    # GPT-2's pattern is built in; only then is a prefix space added before the split.
    backend.pre_tokenizer = byte_level if byte_level.use_regex else pre_tokenizers.Sequence([*cuts, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def openai_gpt(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], unk: str = "<unk>") -> Tokenizer:
    """Return the first GPT: lower-cased words split as in BERT, ``</w>`` marks the piece that ends a word."""
    backend = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges), end_of_word_suffix="</w>", unk_token=unk))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return backend


# ---- vocabularies in a single file


def from_llama2c(path: Path) -> Vocabulary:
    """Read llama2.c's ``tokenizer.bin``: the longest length, then per piece a score, a length and the bytes.

    ``decode`` treats its ids as the beginning of a text, where llama2.c leaves out the dummy space after BOS.
    """
    # Pieces with their scores.
    data, at = path.read_bytes(), 4
    pieces: list[tuple[str, float, int]] = []
    try:
        while at < len(data):
            score, size = struct.unpack_from("<fi", data, at)
            text = data[at + 8 : at + 8 + size]
            if size < 0 or len(text) != size:
                raise struct.error(f"piece {len(pieces)} at byte {at} is cut off")
            pieces.append((text.decode(), score, NORMAL))
            at += 8 + size
    except (struct.error, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path} is not a llama2.c tokenizer.bin: {error}. Export it again.") from error
    names = [text for text, _, _ in pieces]
    if len(names) < 259 or names[3] != "<0x00>" or names[258] != "<0xFF>" or len(set(names)) != len(names):
        raise TokenizerError(
            f"{path} is not a llama2.c tokenizer.bin: expected <unk>, BOS, EOS, the 256 bytes <0x00> to <0xFF> and "
            f"then distinct pieces; found {len(names)} pieces that begin {names[:4]}."
        )
    # BPE by scores, with <unk>, BOS and EOS first.
    backend = score_bpe(PieceModel(pieces, bpe=True, byte_fallback=True, remove_extra_spaces=False), space=" ")
    mark_pieces(backend, names[:3], [UNKNOWN, CONTROL, CONTROL])
    after_start = Regex(rf"(?<=\A|\A{re.escape(names[1])}) ")
    backend.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(after_start, "")],
    )
    set_template(backend, start=[names[1]])
    return Vocabulary(backend, dict(zip(("unk", "bos", "eos"), names, strict=False)))


def from_gguf(metadata: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary in a GGUF file's key/values (``tokenizer.ggml.*``), split into words as in llama.cpp."""

    def value(name: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{name}", default)

    if (flavour := value("model")) not in ("gpt2", "llama"):
        raise TokenizerError(f"tokenizer.ggml.model must be 'gpt2' or 'llama'; got {flavour!r}.")
    if not (tokens := [str(token) for token in value("tokens", ())]):
        raise TokenizerError("tokenizer.ggml.tokens is missing or empty: this GGUF file has no vocabulary.")
    kinds = [int(kind) for kind in value("token_type", [NORMAL] * len(tokens))]
    build = _gguf_ranked if flavour == "gpt2" else _gguf_scored
    # The tokenizer, then its special tokens and the template around a text.
    backend, adds_bos = build(tokens, kinds, value)
    mark_pieces(backend, tokens, kinds)
    numbers = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "mask": "mask"}
    numbers["sep"] = "seperator"  # codespell:ignore seperator (GGUF's own spelling)
    special = {role: tokens[int(n)] for role, key in numbers.items() if (n := value(f"{key}_token_id")) is not None}
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special.values()])
    start = [special["bos"]] if "bos" in special and value("add_bos_token", adds_bos) else []
    end = [special["eos"]] if "eos" in special and value("add_eos_token", False) else []
    set_template(backend, start=start, end=end)
    template = metadata.get("tokenizer.chat_template")
    return Vocabulary(backend, special, None if template is None else str(template))


def _gguf_ranked(tokens: list[str], _: list[int], value: Any) -> tuple[Tokenizer, bool]:
    if (pre := value("pre")) not in GGUF_SPLITS:
        known = ", ".join(sorted(GGUF_SPLITS))
        raise TokenizerError(f"tokenizer.ggml.pre, the split into words, must be one of {known}; got {pre!r}.")
    merges = [tuple(str(merge).split(" ", 1)) for merge in value("merges", ())]
    vocab = {token: i for i, token in enumerate(tokens)}
    whole = pre == "llama-bpe"
    return byte_bpe(vocab, merges, splits=GGUF_SPLITS[pre], whole_words=whole), whole  # type: ignore[arg-type]


def _gguf_scored(tokens: list[str], kinds: list[int], value: Any) -> tuple[Tokenizer, bool]:
    scores = [float(score) for score in value("scores", ())]
    if len(scores) != len(tokens):
        raise TokenizerError(f"tokenizer.ggml.scores must have one score per token, {len(tokens)}; got {len(scores)}.")
    pieces = list(zip(tokens, scores, kinds, strict=True))
    model = PieceModel(pieces, bpe=True, byte_fallback=BYTE in kinds, unk_id=int(value("unknown_token_id", 0)))
    model.dummy_prefix, model.remove_extra_spaces = bool(value("add_space_prefix", True)), False
    return score_bpe(model), True
