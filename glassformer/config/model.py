"""The page of facts of one model."""

from dataclasses import dataclass, field
from typing import Literal

from glassformer.config.checks import check_divides, check_number, check_positive
from glassformer.config.heads import Head, LMHead, PretrainingHead
from glassformer.config.parts import Embed, Norm, Stack


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Ids with a meaning of their own; None where the vocabulary has no such token."""

    bos: int | None = None
    eos: int | tuple[int, ...] | None = None
    pad: int | None = None
    start: int | None = None  # first token of a decoder's input


@dataclass(frozen=True, kw_only=True)
class Init:
    """Where training starts. Without ``std``: variance 2 / (d_in + d_out) for linear maps and 1 for tables."""

    std: float | None = None  # of every linear map, convolution and table
    table_std: float | None = None  # of tables, where it is another
    residual_scaling: bool = False  # projections back into the residual stream by 1 / √(2 · layers) less
    by_inputs: bool = False  # linear maps from std · d_in^-½; queries so that scores start as if scaled by head_dim^-½

    def __post_init__(self) -> None:
        check_number(
            std=1.0 if self.std is None else self.std, table_std=1.0 if self.table_std is None else self.table_std
        )
        for rule in ("residual_scaling", "by_inputs"):
            if self.std is None and getattr(self, rule):
                raise ValueError(f"init.{rule} says by how much init.std is reduced, and no std is given.")


@dataclass(frozen=True, kw_only=True)
class Model:
    """One Transformer. An encoder, a decoder or both: that is its family."""

    vocab: int
    width: int
    norm: Norm = field(default_factory=Norm)
    embed: Embed = field(default_factory=Embed)
    encoder: Stack | None = None
    decoder: Stack | None = None
    head: Head | None = None
    tokens: Tokens = field(default_factory=Tokens)
    init: Init = field(default_factory=Init)

    def __post_init__(self) -> None:
        check_positive(vocab=self.vocab, width=self.width)
        if self.encoder is None and self.decoder is None:
            raise ValueError("a model needs an encoder, a decoder or both; this one has neither.")
        if self.decoder is not None and self.decoder.cross != (self.encoder is not None):
            raise ValueError("decoder.cross is True exactly when there is an encoder for it to look at.")
        if self.decoder is not None and not self.decoder.causal:
            raise ValueError("decoder.causal must be True: a decoder that sees later tokens cannot write any.")
        if self.encoder is not None and self.encoder.cross:
            raise ValueError("encoder.cross must be False: an encoder has nothing else to look at.")
        for stack in (self.encoder, self.decoder):
            if stack is not None and stack.convolution is not None:
                check_divides("convolution.groups", stack.convolution.groups, "width", self.width)
        lm = self.lm
        if lm is not None and lm.mask_decoder is not None and self.family != "encoder":
            raise ValueError(f"mask_decoder runs the last layer of an encoder anew; this model is of {self.family}s.")
        factorised = self.embed.width not in (None, self.width)
        if lm is not None and lm.tied and factorised and lm.transform is None:
            raise ValueError(
                f"a head tied to embeddings of width {self.embed.width} needs a transform from width {self.width}."
            )

    @property
    def family(self) -> Literal["encoder", "decoder", "encoder-decoder"]:
        """Which stacks there are."""
        if self.encoder is None:
            return "decoder"
        return "encoder" if self.decoder is None else "encoder-decoder"

    @property
    def lm(self) -> LMHead | None:
        """What says words: the head, or the part of it that does; None where nothing does."""
        head = self.head.lm if isinstance(self.head, PretrainingHead) else self.head
        return head if isinstance(head, LMHead) else None

    @property
    def pools(self) -> bool:
        """Whether the head gives one answer per row and not one per token."""
        head = self.head.pair if isinstance(self.head, PretrainingHead) else self.head
        return getattr(head, "pool", None) is not None

    @property
    def longest(self) -> int | None:
        """The longest sequence its positions allow; None where nothing limits it."""
        place = self.embed.position
        stacks = [stack for stack in (self.encoder, self.decoder) if stack is not None]
        lengths = [stack.attention.rotary.length for stack in stacks if stack.attention.rotary is not None]
        if place is not None and place.kind == "learned":
            lengths.append(place.length)
        return min(lengths, default=None)
