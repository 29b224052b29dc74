"""Facts of positions and attention patterns: each class is one mechanism, its fields are its hyperparameters."""

from dataclasses import dataclass
from typing import Literal, get_args

from glassformer.config.checks import (
    check_choice,
    check_count,
    check_positive_integer,
    check_positive_number,
    check_probability,
)

PositionKind = Literal["learned", "sinusoidal"]
SinusoidLayout = Literal["interleaved", "halves", "fairseq"]
ScalingKind = Literal["linear", "smooth", "yarn"]
Pairing = Literal["halves", "interleaved"]
SparseSemantics = Literal["reference", "set"]


@dataclass(frozen=True, kw_only=True)
class InputPosition:
    """Positions added to the embeddings: a learned table, or sinusoids, which have no maximum length."""

    kind: PositionKind
    length: int  # longest sequence
    offset: int = 0  # table row of position 0
    layout: SinusoidLayout = "interleaved"  # of sinusoids; see nn.input_positions.sinusoids

    def __post_init__(self) -> None:
        check_choice("position.kind", self.kind, get_args(PositionKind))
        check_choice("position.layout", self.layout, get_args(SinusoidLayout))
        check_positive_integer(length=self.length)
        check_count(offset=self.offset)
        if self.kind == "learned":
            object.__setattr__(self, "layout", "interleaved")  # no effect; one value, so that equal models are equal


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """Scaling of rotary frequencies for contexts longer than those of training.

    ``linear`` divides every frequency by ``factor`` (Chen et al., 2023). ``smooth`` divides those that rotate less than
    ``low`` times in ``original_length``, keeps those above ``high`` and interpolates between. ``yarn`` (Peng et al.,
    2023) interpolates by the index of the pair, and multiplies queries and keys by ``attention``.
    """

    kind: ScalingKind
    factor: float
    original_length: int | None = None
    low: float = 1.0
    high: float = 4.0
    attention: float = 1.0

    def __post_init__(self) -> None:
        check_choice("rotary.scaling.kind", self.kind, get_args(ScalingKind))
        check_positive_number(factor=self.factor, low=self.low, high=self.high, attention=self.attention)
        if self.kind != "linear" and self.original_length is None:
            raise ValueError(f"rotary scaling {self.kind!r} needs original_length, the context length of training.")
        check_positive_integer(original_length=1 if self.original_length is None else self.original_length)
        if self.kind != "linear" and self.high <= self.low:
            raise ValueError(
                f"rotary scaling interpolates from high to low; got high={self.high}, not above low={self.low}."
            )


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Positions that rotate queries and keys (Su et al., 2021)."""

    dim: int  # how many dimensions of a head rotate, from the first on; even
    length: int  # longest sequence
    theta: float = 10_000.0
    pairing: Pairing = "halves"  # "halves": Llama, GPT-NeoX (rotate_half); "interleaved": GPT-J
    scaling: RotaryScaling | None = None

    def __post_init__(self) -> None:
        check_positive_integer(dim=self.dim, length=self.length)
        check_positive_number(theta=self.theta)
        check_choice("rotary.pairing", self.pairing, get_args(Pairing))
        if self.dim % 2:
            raise ValueError(
                f"rotary positions rotate pairs of dimensions, so rotary.dim must be even; got {self.dim}."
            )


@dataclass(frozen=True, kw_only=True)
class BucketBias:
    """A learned bias on the scores per head and bucket of distances (Raffel et al., 2020); one table per stack."""

    buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        check_positive_integer(buckets=self.buckets, max_distance=self.max_distance)

    def check_direction(self, *, bidirectional: bool) -> None:
        """Raise unless there are buckets for near and for far distances, on both sides if ``bidirectional``."""
        sides = 2 if bidirectional else 1
        near = self.buckets // sides // 2
        if near == 0:
            raise ValueError(f"buckets={self.buckets} are too few: near and far distances need at least {2 * sides}.")
        if self.max_distance <= near:
            raise ValueError(f"max_distance={self.max_distance} must be above the {near} near distances.")


@dataclass(frozen=True, kw_only=True)
class Alibi:
    """A fixed bias on the scores: minus the distance, times a slope per head (Press et al., 2022); no weights.

    The distance is absolute: in bidirectional attention, later keys get the same bias as earlier ones.
    """


@dataclass(frozen=True, kw_only=True)
class Disentangled:
    """Scores from content and from relative position, with separate vectors for each (He et al., 2021)."""

    span: int  # half the rows of the table of relative positions
    terms: tuple[str, ...] = ("c2p", "p2c")  # content to position, position to content
    buckets: int = 0  # 0: one row per distance; else logarithmic buckets
    max_distance: int = 512  # distances from here on share the last logarithmic bucket
    shared_projections: bool = False  # positions use the query and key projections of the content
    key_bias: bool = False  # bias of the projection of positions as keys, where it is not shared
    norm_table: bool = False  # the table is normalised before use
    dropout: float = 0.0  # on the vectors of relative positions, in each layer

    def __post_init__(self) -> None:
        check_positive_integer(span=self.span, max_distance=self.max_distance)
        check_count(buckets=self.buckets)
        check_probability(dropout=self.dropout)
        if self.buckets and not 1 <= self.buckets // 2 < self.max_distance - 1:
            raise ValueError(
                f"logarithmic buckets need at least 2 buckets, half of them for distances below max_distance - 1; "
                f"got buckets={self.buckets}, max_distance={self.max_distance}."
            )
        for term in self.terms:
            check_choice("terms", term, ("c2p", "p2c"))


ScoreBias = BucketBias | Alibi | Disentangled  # every kind; code that handles each raises an error for others


@dataclass(frozen=True, kw_only=True)
class BlockSparse:
    """Attention between blocks of tokens: a window of three, the first and last block, and random ones per block.

    Its cost is linear in the length instead of quadratic (Zaheer et al., 2020). ``semantics`` chooses one of two
    definitions. With ``set`` every query attends to each key of its blocks once, whatever the padding. ``reference``
    computes what the published code does in evaluation mode: every random block is the first one, whose keys then count
    1 + ``random`` times.
    """

    block: int = 64
    random: int = 3
    semantics: SparseSemantics = "reference"
    seed: int = 0  # of the random blocks

    def __post_init__(self) -> None:
        check_positive_integer(block=self.block)
        check_count(random=self.random, seed=self.seed)
        check_choice("semantics", self.semantics, get_args(SparseSemantics))

    @property
    def full_length(self) -> int:
        """The longest sequence with full attention; longer ones have enough blocks to draw random ones from."""
        return (5 + 2 * self.random) * self.block
