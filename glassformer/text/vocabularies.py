"""Vocabularies: from what a model comes with to a ``tokenizers.Tokenizer``.

Three families cover the textbook models:

* WordPiece (BERT): longest piece first, ``##`` marks a piece that continues a word;
* merges with ranks (GPT-2, RoBERTa, GPT): the best-ranked neighbouring pair is joined until none is left;
* pieces with scores (T5, Llama): ``pieces.py``.

Which of them a folder's files need is decided in ``tokenizer_kinds.py``; here are the builders, and the formats that
hold a whole vocabulary in one place.
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
# How GGUF's ``tokenizer.ggml.pre`` cuts text into words: each pattern cuts what the one before it left.
GGUF_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (GPT2_SPLIT,),
    "smollm": (r"\p{N}", GPT2_SPLIT),
    "llama-bpe": (_LLAMA3_SPLIT,),
    "qwen2": (_LLAMA3_SPLIT.replace("{1,3}", ""),),
}


@dataclass(frozen=True)
class Vocabulary:
    """A ready ``tokenizers.Tokenizer``, the tokens that play a role in it, and the template of its chats."""

    backend: Tokenizer
    special: Mapping[str, str] = field(default_factory=dict)  # one of ROLES -> the token
    chat_template: str | None = None
    known: int | None = None  # pieces from this number on cut a text, but the model does not know them: they are unk


def frame(
    backend: Tokenizer,
    start: Sequence[str] = (),
    end: Sequence[str] = (),
    between: Sequence[str] = (),
    *,
    second: int = 1,
) -> None:
    """Make ``special=True`` put ``start`` before and ``end`` after a text, ``between`` between the texts of a pair.

    ``second`` is the segment of a pair's second text: 1 for models that tell the two apart, else 0.
    """
    used = {token: backend.token_to_id(token) for token in (*start, *end, *between)}
    if missing := [token for token, number in used.items() if number is None]:
        raise TokenizerError(f"the vocabulary has no {', '.join(missing)}, which every text of this kind is framed by.")
    single = [*(f"{token}:0" for token in start), "$A:0"]
    pair = [*single, *(f"{token}:0" for token in between), f"$B:{second}", *(f"{token}:{second}" for token in end)]
    single += [f"{token}:0" for token in end]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(used.items()))


# ---- WordPiece and ranked merges


def wordpiece(tokens: Sequence[str], options: Mapping[str, Any], unk: str = "[UNK]") -> Tokenizer:
    """BERT's WordPiece; ``options`` are the names of ``tokenizer_config.json``, their defaults BERT's own."""
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
    """GPT-2's byte-level BPE: ``splits`` cut words, their bytes are joined by ``merges``.

    With ``whole_words`` a word that is a token is taken whole, whether or not the merges lead there (Llama 3).
    """
    backend = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges), ignore_merges=whole_words))
    cuts = [pre_tokenizers.Split(Regex(split), "isolated") for split in splits]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=tuple(splits) == (GPT2_SPLIT,))
    # The library has GPT-2's own pattern built in; a prefix space must come before the cuts, which only that one does.
    backend.pre_tokenizer = byte_level if byte_level.use_regex else pre_tokenizers.Sequence([*cuts, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def openai_gpt(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], unk: str = "<unk>") -> Tokenizer:
    """The first GPT: lower-cased words cut as BERT cuts them, ``</w>`` marks the piece that ends a word."""
    backend = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges), end_of_word_suffix="</w>", unk_token=unk))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return backend


# ---- whole vocabularies in one place


def from_llama2c(path: Path) -> Vocabulary:
    """Read llama2.c's ``tokenizer.bin``: the longest length, then per piece a score, a length and the bytes.

    ``decode`` takes its ids for a text from the beginning, where llama2.c leaves out the dummy space after BOS.
    """
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
    backend = score_bpe(PieceModel(pieces, bpe=True, byte_fallback=True, remove_extra_spaces=False), space=" ")
    mark_pieces(backend, names[:3], [UNKNOWN, CONTROL, CONTROL])
    after_start = Regex(rf"(?<=\A|\A{re.escape(names[1])}) ")
    backend.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(after_start, "")],
    )
    frame(backend, start=[names[1]])
    return Vocabulary(backend, dict(zip(("unk", "bos", "eos"), names, strict=False)))


def from_gguf(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary in a GGUF file's key/value pairs (``tokenizer.ggml.*``), cut into words as llama.cpp cuts."""

    def fact(name: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{name}", default)

    if (flavour := fact("model")) not in ("gpt2", "llama"):
        raise TokenizerError(f"tokenizer.ggml.model must be 'gpt2' or 'llama'; got {flavour!r}.")
    if not (tokens := [str(token) for token in fact("tokens", ())]):
        raise TokenizerError("tokenizer.ggml.tokens is missing or empty: this GGUF file carries no vocabulary.")
    kinds = [int(kind) for kind in fact("token_type", [NORMAL] * len(tokens))]
    build = _gguf_ranked if flavour == "gpt2" else _gguf_scored
    backend, adds_bos = build(tokens, kinds, fact)
    mark_pieces(backend, tokens, kinds)
    numbers = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "mask": "mask"}
    numbers["sep"] = "seperator"  # codespell:ignore seperator (GGUF's own spelling)
    special = {role: tokens[int(n)] for role, key in numbers.items() if (n := fact(f"{key}_token_id")) is not None}
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special.values()])
    start = [special["bos"]] if "bos" in special and fact("add_bos_token", adds_bos) else []
    end = [special["eos"]] if "eos" in special and fact("add_eos_token", False) else []
    frame(backend, start=start, end=end)
    template = metadata.get("tokenizer.chat_template")
    return Vocabulary(backend, special, None if template is None else str(template))


def _gguf_ranked(tokens: list[str], _: list[int], fact: Any) -> tuple[Tokenizer, bool]:
    if (pre := fact("pre")) not in GGUF_SPLITS:
        known = ", ".join(sorted(GGUF_SPLITS))
        raise TokenizerError(f"tokenizer.ggml.pre says how words are cut; known are {known}; got {pre!r}.")
    merges = [tuple(str(merge).split(" ", 1)) for merge in fact("merges", ())]
    vocab = {token: i for i, token in enumerate(tokens)}
    whole = pre == "llama-bpe"
    return byte_bpe(vocab, merges, splits=GGUF_SPLITS[pre], whole_words=whole), whole  # type: ignore[arg-type]


def _gguf_scored(tokens: list[str], kinds: list[int], fact: Any) -> tuple[Tokenizer, bool]:
    scores = [float(score) for score in fact("scores", ())]
    if len(scores) != len(tokens):
        raise TokenizerError(f"tokenizer.ggml.scores must have one score per token, {len(tokens)}; got {len(scores)}.")
    pieces = list(zip(tokens, scores, kinds, strict=True))
    model = PieceModel(pieces, bpe=True, byte_fallback=BYTE in kinds, unk_id=int(fact("unknown_token_id", 0)))
    model.dummy_prefix, model.remove_extra_spaces = bool(fact("add_space_prefix", True)), False
    return score_bpe(model), True
