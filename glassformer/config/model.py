"""``ModelConfig``: all facts (config values) of one model."""

from dataclasses import dataclass, field
from typing import Literal

from glassformer.config.checks import check_divides, check_positive_integer, check_positive_number
from glassformer.config.parts import Embed, Head, LMHead, Norm, PretrainingHead, Stack


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Ids of special tokens; None where the vocabulary has no such token."""

    bos: int | None = None
    eos: int | tuple[int, ...] | None = None
    pad: int | None = None
    start: int | None = None  # a decoder's first input token: ``decoder_start_token_id`` of Hugging Face


@dataclass(frozen=True, kw_only=True)
class Init:
    """Initial weights.

    Without ``std``: variance 2 / (d_in + d_out) for linear layers (Xavier/Glorot), and 1 for embeddings.
    """

    std: float | None = None  # of every linear layer, convolution and embedding
    table_std: float | None = None  # of embeddings, if different
    residual_scaling: bool = False  # projections into the residual stream: std / √(2 · layers)
    # By fan-in: std / √d_in for linear layers; query projections also / √head_dim if scores are not scaled (T5).
    by_inputs: bool = False

    def __post_init__(self) -> None:
        check_positive_number(
            std=1.0 if self.std is None else self.std, table_std=1.0 if self.table_std is None else self.table_std
        )
        for rule in ("residual_scaling", "by_inputs"):
            if self.std is None and getattr(self, rule):
                raise ValueError(f"init.{rule} scales init.std; set init.std as well.")


def a_family(family: str) -> str:
    """Return a family with its article, for errors: an encoder, a decoder, an encoder-decoder."""
    return f"a {family}" if family == "decoder" else f"an {family}"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One Transformer: an encoder, a decoder or both (its *family*), embeddings and a head."""

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
        # The stacks must fit each other.
        check_positive_integer(vocab=self.vocab, width=self.width)
        if self.encoder is None and self.decoder is None:
            raise ValueError("a model needs an encoder, a decoder or both; this one has neither.")
        if self.decoder is not None and self.decoder.cross != (self.encoder is not None):
            raise ValueError(
                "decoder.cross must be True if the model has an encoder, and False otherwise; got "
                f"decoder.cross={self.decoder.cross}."
            )
        if self.decoder is not None and not self.decoder.causal:
            raise ValueError("decoder.causal must be True: a decoder that attends to later tokens cannot generate.")
        if self.encoder is not None and self.encoder.cross:
            raise ValueError("encoder.cross must be False: an encoder has no memory to attend to.")
        for stack in (self.encoder, self.decoder):
            if stack is not None and stack.convolution is not None:
                check_divides("convolution.groups", stack.convolution.groups, "width", self.width)
        # The head must fit the family and the embeddings.
        lm = self.lm
        if lm is not None and lm.mask_decoder is not None and self.family != "encoder":
            family = a_family(self.family)
            raise ValueError(f"mask_decoder repeats the last layer of an encoder; this model is {family}.")
        factorised = self.embed.width not in (None, self.width)
        if lm is not None and lm.tied and factorised and lm.transform is None:
            raise ValueError(
                f"a head tied to embeddings of width {self.embed.width} needs a transform from width {self.width}."
            )

    @property
    def family(self) -> Literal["encoder", "decoder", "encoder-decoder"]:
        """The stacks that the model has."""
        if self.encoder is None:
            return "decoder"
        return "encoder" if self.decoder is None else "encoder-decoder"

    @property
    def lm(self) -> LMHead | None:
        """The language-model head, alone or inside a pretraining head; None where there is none."""
        head = self.head.lm if isinstance(self.head, PretrainingHead) else self.head
        return head if isinstance(head, LMHead) else None

    @property
    def has_pooled_output(self) -> bool:
        """Whether the head gives one output per row and not one per token."""
        head = self.head.pair if isinstance(self.head, PretrainingHead) else self.head
        return getattr(head, "pool", None) is not None

    @property
    def max_length(self) -> int | None:
        """The length of the longest sequence that the positions allow; None where they set no limit."""
        position = self.embed.position
        stacks = [stack for stack in (self.encoder, self.decoder) if stack is not None]
        lengths = [stack.attention.rotary.length for stack in stacks if stack.attention.rotary is not None]
        if position is not None and position.kind == "learned":
            lengths.append(position.length)
        return min(lengths, default=None)
