"""SentencePiece models: Unigram (T5, ALBERT) finds the segmentation with the best score, BPE by scores (Llama) merges
the neighbours whose merge has the best score.

The ``*.model`` files are parsed without a package: they are protobuf messages of which few fields are needed.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from glassformer.config.checks import SettingError

SPACE = "▁"  # U+2581, the space in pieces
# Types of pieces in SentencePiece and GGUF.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


class TokenizerError(SettingError):
    """A vocabulary that cannot be read, or a token that is not in it."""


class NoTokenizerError(TokenizerError):
    """A folder without tokenizer files."""


@dataclass
class PieceModel:
    """The content of a SentencePiece ``*.model`` file; the defaults are those of the format."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)  # text, score, kind
    bpe: bool = False  # otherwise Unigram
    byte_fallback: bool = False
    unk_id: int = 0
    charsmap: bytes = b""  # a compiled table of Unicode normalisation
    dummy_prefix: bool = True
    remove_extra_spaces: bool = True

    @classmethod
    def read(cls, path: Path) -> "PieceModel":
        """Parse the pieces (field 1), the trainer's settings (2) and the normaliser's (3)."""
        model = cls()
        try:
            for number, value in _wire_fields(path.read_bytes()):
                if number == 1:
                    piece = dict(_wire_fields(value))
                    (score,) = struct.unpack("<f", piece.get(2, bytes(4)))
                    model.pieces.append((piece.get(1, b"").decode(), score, piece.get(3, NORMAL)))
                elif number == 2:
                    trainer = dict(_wire_fields(value))
                    model.bpe, model.byte_fallback = trainer.get(3, 1) == 2, bool(trainer.get(35))
                    model.unk_id = trainer.get(40, 0)
                    if trainer.get(3, 1) not in (1, 2):
                        raise TokenizerError(f"{path} splits by words or characters; supported are Unigram and BPE.")
                elif number == 3:
                    spec = dict(_wire_fields(value))
                    model.charsmap, model.dummy_prefix = spec.get(2, b""), bool(spec.get(3, 1))
                    model.remove_extra_spaces = bool(spec.get(4, 1))
        except (IndexError, struct.error, UnicodeDecodeError, AttributeError, TypeError) as error:
            raise TokenizerError(f"{path} is not a SentencePiece model ({error}); download the file again.") from error
        if not model.pieces:
            raise TokenizerError(f"{path} holds no pieces; download the file again.")
        return model


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def _wire_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protobuf message as (number, value): varints as ``int``, everything else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7, len(data) + 1)
        if at + size > len(data):
            raise IndexError(f"field {key >> 3} at byte {at} runs past the end")
        yield key >> 3, data[at : at + size]
        at += size


def _cleaning(model: PieceModel) -> list[normalizers.Normalizer]:
    """Return the normalizers that run before spaces become ``SPACE``."""
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.remove_extra_spaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    return steps


def unigram(model: PieceModel, before: Sequence[normalizers.Normalizer] = ()) -> Tokenizer:
    """SentencePiece's Unigram; ``before``: normalizers to run first (ALBERT lower-cases)."""
    if model.byte_fallback:
        raise TokenizerError("Unigram with byte fallback is not supported: the library takes '<0x0A>' for a byte.")
    backend = Tokenizer(models.Unigram([(text, score) for text, score, _ in model.pieces], unk_id=model.unk_id))
    backend.normalizer = normalizers.Sequence([*before, *_cleaning(model)])
    scheme = "always" if model.dummy_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    return backend


def score_bpe(model: PieceModel, space: str = SPACE) -> Tokenizer:
    """BPE by scores (Llama): of all neighbours whose merge is a piece, merge the best-scoring, leftmost first.

    The library ranks merges instead, which is equivalent only if no two pieces share a score; this is checked.
    """
    # Pieces that are merges of two others, by score; the merges in descending order of scores.
    vocab = {text: i for i, (text, _, _) in enumerate(model.pieces)}
    scored: dict[float, str] = {}
    for text, score, kind in model.pieces:
        if kind != NORMAL or not any(text[:i] in vocab and text[i:] in vocab for i in range(1, len(text))):
            continue
        if score in scored:
            raise TokenizerError(
                f"the pieces {scored[score]!r} and {text!r} have the same score, {score}, so their order is not "
                "defined. Use the model's tokenizer.json, or a vocabulary with its own scores."
            )
        scored[score] = text
    merged = (scored[score] for score in sorted(scored, reverse=True))
    merges = [(t[:i], t[i:]) for t in merged for i in range(1, len(t)) if t[:i] in vocab and t[i:] in vocab]
    unk = model.pieces[model.unk_id][0]
    backend = Tokenizer(models.BPE(vocab, merges, unk_token=unk, fuse_unk=True, byte_fallback=model.byte_fallback))
    # Normalizer and decoder: spaces as ``space``, with one before the text.
    steps = _cleaning(model)
    if model.dummy_prefix:
        steps.append(normalizers.Prepend(space))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", space)])
    strip = [decoders.Strip(" ", 1, 0)] if model.dummy_prefix else []
    parts = [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    backend.decoder = decoders.Sequence(parts)
    return backend


def number_as_fairseq(model: PieceModel, token: Callable[[str], str], languages: Sequence[str] = ()) -> None:
    """Number the pieces as fairseq does (XLM-RoBERTa): its four special tokens first, languages and a mask last.

    ``token`` returns the token of a role.
    """
    first = [(token(role), 0.0, CONTROL) for role in ("bos", "pad", "eos")]
    last = [(text, 0.0, CONTROL) for text in (*languages, token("mask"))]
    model.pieces, model.unk_id = [*first, (token("unk"), 0.0, UNKNOWN), *model.pieces[3:], *last], 3


def renumber(model: PieceModel, numbers: Mapping[str, int], extra: Sequence[tuple[str, int]], unk: str) -> int:
    """Give the pieces the ids of another file (M2M-100), followed by ``extra`` pieces, each with its type.

    Pieces that are not in the other file still take part in segmentation, with ids after all others; the first of these
    ids is returned. Entries that only the other file has are characters without a piece: here each is looked up by
    itself; the reference looks up a sequence of them as one entry, which is seldom there.
    """
    if sorted(numbers.values()) != list(range(len(numbers))):
        raise TokenizerError(f"the {len(numbers)} tokens of a vocabulary must have the ids 0 to {len(numbers) - 1}.")
    if unk not in numbers:
        raise TokenizerError(f"the vocabulary has no {unk}, the unknown token.")
    known = {text: (text, score, kind) for text, score, kind in model.pieces}
    lowest = min(score for _, score, _ in model.pieces)  # not lower: Unigram derives that of unk from it
    pieces = [known.pop(text, (text, lowest, UNUSED)) for text in sorted(numbers, key=numbers.__getitem__)]
    pieces += [(text, lowest, kind) for text, kind in extra]
    model.pieces, model.unk_id = [*pieces, *known.values()], numbers[unk]
    return len(pieces)


def mark_pieces(backend: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Add control pieces as special tokens and user-defined pieces as plain ones, both found before normalisation."""
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            backend.add_tokens([AddedToken(token, normalized=False, special=kind != USER_DEFINED)])
