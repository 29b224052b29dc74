"""Pieces with scores, as SentencePiece makes them: Unigram finds the best-scoring cut of a text (T5, ALBERT), BPE joins
the neighbours whose join scores best (Llama).

The ``*.model`` files are read here without any package: they are protobuf messages, and few fields of them matter.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from glassformer.config.checks import SettingError

SPACE = "▁"  # U+2581, how pieces write a space
# Kinds of pieces, as SentencePiece and GGUF count them.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


class TokenizerError(SettingError):
    """A vocabulary that cannot be read, or a token that it does not have."""


@dataclass
class PieceModel:
    """What a SentencePiece ``*.model`` file says; the defaults are those of its format."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)  # text, score, kind
    bpe: bool = False  # otherwise Unigram
    byte_fallback: bool = False
    unk_id: int = 0
    charsmap: bytes = b""  # a compiled table of Unicode normalisation
    dummy_prefix: bool = True
    remove_extra_spaces: bool = True

    @classmethod
    def read(cls, path: Path) -> "PieceModel":
        """Read the file's three messages; a protobuf is little more than (number, value) pairs."""
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
                        raise TokenizerError(f"{path} cuts by words or characters; only Unigram and BPE are read.")
                elif number == 3:
                    spec = dict(_wire_fields(value))
                    model.charsmap, model.dummy_prefix = spec.get(2, b""), bool(spec.get(3, 1))
                    model.remove_extra_spaces = bool(spec.get(4, 1))
        except (IndexError, struct.error, UnicodeDecodeError, AttributeError, TypeError) as error:
            raise TokenizerError(f"{path} is not a SentencePiece model ({error}); fetch the file again.") from error
        if not model.pieces:
            raise TokenizerError(f"{path} holds no pieces; fetch the file again.")
        return model


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def _wire_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of one protobuf message: whole numbers as ``int``, everything else as raw bytes."""
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
    """What happens to a text before its spaces are written as ``SPACE``."""
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.remove_extra_spaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    return steps


def unigram(model: PieceModel, before: Sequence[normalizers.Normalizer] = ()) -> Tokenizer:
    """SentencePiece's Unigram; ``before`` is what a model does to its text first (ALBERT lower-cases)."""
    if model.byte_fallback:
        raise TokenizerError("a Unigram model with byte fallback is not read: the library takes '<0x0A>' for a byte.")
    backend = Tokenizer(models.Unigram([(text, score) for text, score, _ in model.pieces], unk_id=model.unk_id))
    backend.normalizer = normalizers.Sequence([*before, *_cleaning(model)])
    scheme = "always" if model.dummy_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    return backend


def score_bpe(model: PieceModel, space: str = SPACE) -> Tokenizer:
    """BPE by scores (Llama): of all neighbours whose join is a piece, the best-scoring is joined, leftmost first.

    The library ranks merges instead, which is the same thing exactly when no two pieces share a score; it is checked.
    """
    vocab = {text: i for i, (text, _, _) in enumerate(model.pieces)}
    scored: dict[float, str] = {}
    for text, score, kind in model.pieces:
        if kind != NORMAL or not any(text[:i] in vocab and text[i:] in vocab for i in range(1, len(text))):
            continue
        if score in scored:
            raise TokenizerError(
                f"the pieces {scored[score]!r} and {text!r} have the same score, {score}: which to join first is not "
                "said. Use the model's tokenizer.json, or a vocabulary with its own scores."
            )
        scored[score] = text
    joins = (scored[score] for score in sorted(scored, reverse=True))
    merges = [(t[:i], t[i:]) for t in joins for i in range(1, len(t)) if t[:i] in vocab and t[i:] in vocab]
    unk = model.pieces[model.unk_id][0]
    backend = Tokenizer(models.BPE(vocab, merges, unk_token=unk, fuse_unk=True, byte_fallback=model.byte_fallback))
    steps = _cleaning(model)
    if model.dummy_prefix:
        steps.append(normalizers.Prepend(space))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", space)])
    strip = [decoders.Strip(" ", 1, 0)] if model.dummy_prefix else []
    parts = [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    backend.decoder = decoders.Sequence(parts)
    return backend


def as_fairseq(model: PieceModel, token: Callable[[str], str], languages: Sequence[str] = ()) -> None:
    """Number the pieces as fairseq does: its own four special tokens first, languages and a mask last (XLM-RoBERTa).

    ``token`` gives the token that plays a role.
    """
    first = [(token(role), 0.0, CONTROL) for role in ("bos", "pad", "eos")]
    last = [(text, 0.0, CONTROL) for text in (*languages, token("mask"))]
    model.pieces, model.unk_id = [*first, (token("unk"), 0.0, UNKNOWN), *model.pieces[3:], *last], 3


def renumber(model: PieceModel, numbers: Mapping[str, int], extra: Sequence[tuple[str, int]], unk: str) -> int:
    """Give the pieces the numbers of another file (M2M-100), then come the ``extra`` ones, each with its kind.

    The pieces that the other file does not have still take part in cutting a text, with numbers after all others;
    the first of these numbers is returned. What stands only in the other file are characters that no piece covers:
    each is looked up on its own, where the reference looks up a run of them as a whole, and seldom finds it.
    """
    if sorted(numbers.values()) != list(range(len(numbers))):
        raise TokenizerError(
            f"the {len(numbers)} tokens of a vocabulary must be numbered from 0 to {len(numbers) - 1}."
        )
    if unk not in numbers:
        raise TokenizerError(f"the vocabulary has no {unk}, the token for what it does not know.")
    known = {text: (text, score, kind) for text, score, kind in model.pieces}
    lowest = min(score for _, score, _ in model.pieces)  # not lower: Unigram weighs the unknown against the lowest
    pieces = [known.pop(text, (text, lowest, UNUSED)) for text in sorted(numbers, key=numbers.__getitem__)]
    pieces += [(text, lowest, kind) for text, kind in extra]
    model.pieces, model.unk_id = [*pieces, *known.values()], numbers[unk]
    return len(pieces)


def mark_pieces(backend: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Find control pieces in text before anything else is done to it, and the user's own, which are not special."""
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            backend.add_tokens([AddedToken(token, normalized=False, special=kind != USER_DEFINED)])
