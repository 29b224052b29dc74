"""What a query asks about: the input of a model, and the token ids that its stacks read for it."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from glassformer.viewer.encode import LONE

SUBLAYERS = ("encoder.attention", "decoder.attention", "decoder.cross")


@dataclass(frozen=True)
class Input:
    """What the model reads.

    Args:
        text: the text, or the source of an encoder-decoder.
        text_b: the second text of a pair.
        target: what an encoder-decoder's decoder reads; None: the text that the model generates greedily.
        ablate: heads to switch off: (``"decoder.attention"``, layer, head) …
        target_ids: the tokens of the target, without its start, instead of its text: tokens that a model has written
            are not always those that the tokenizer would make of their text.
    """

    text: str = ""
    text_b: str | None = None
    target: str | None = None
    ablate: tuple[tuple[str | int, ...], ...] = ()
    target_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("text", "text_b", "target"):  # no tokenizer reads half a character
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, LONE.sub("\ufffd", value))
        if self.target is not None and self.target_ids is not None:
            raise ValueError("give the target as text or as token ids, not both.")
        for entry in self.ablate:
            kinds = tuple(type(part) for part in entry)
            if kinds != (str, int, int) or entry[0] not in SUBLAYERS:
                raise ValueError(f"ablate has entries [{' | '.join(SUBLAYERS)}, layer, head]; got {entry!r:.60}.")

    @property
    def cache_key(self) -> tuple[Hashable, ...]:
        """What the token ids depend on: the texts; a target that the model generates, on the heads as well."""
        is_given = self.target is not None or self.target_ids is not None
        return self.text, self.text_b, self.target, self.target_ids, () if is_given else self.ablate


@dataclass(frozen=True)
class Sequences:
    """The token ids that each stack reads.

    Args:
        encoder: of the encoder.
        segments: the segment of each of them.
        decoder: of the decoder.
        expected: the next token at each position of an encoder-decoder's decoder.
        given: how many tokens of the decoder are not a choice: a decoder's prompt, an encoder-decoder's start.
    """

    encoder: tuple[int, ...] | None = None
    segments: tuple[int, ...] | None = None
    decoder: tuple[int, ...] | None = None
    expected: tuple[int, ...] | None = None
    given: int = 0

    @property
    def last(self) -> tuple[int, ...]:
        """The ids of the last stack."""
        return (self.encoder if self.decoder is None else self.decoder) or ()


@dataclass(frozen=True)
class Source:
    """What an encoder-decoder begins with: the source, the start of the target, its forced token, and what ends it."""

    ids: tuple[int, ...]
    start: tuple[int, ...]
    forced: int | None
    eos: tuple[int, ...]
    task: dict[str, Any]

    @property
    def first(self) -> tuple[int, ...]:
        """The tokens of the target that are no choice."""
        return self.start if self.forced is None else (*self.start, self.forced)
