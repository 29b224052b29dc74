"""Facts about positions and about who may look at whom: each class is a mechanism, its fields the sizes."""

from dataclasses import dataclass
from typing import Literal

from glassformer.config.checks import check_choice, check_count, check_number, check_positive, check_probability


@dataclass(frozen=True, kw_only=True)
class InputPosition:
    """Positions added to the embeddings: a learned table, or sinusoids that no length is too long for."""

    kind: Literal["learned", "sinusoidal"]
    length: int  # longest sequence
    offset: int = 0  # rows of the table before that of position 0
    layout: Literal["interleaved", "halves", "fairseq"] = "interleaved"  # of sinusoids; see nn.positions.sinusoids

    def __post_init__(self) -> None:
        check_choice("position.kind", self.kind, ("learned", "sinusoidal"))
        check_choice("position.layout", self.layout, ("interleaved", "halves", "fairseq"))
        check_positive(length=self.length)
        check_count(offset=self.offset)


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """Slower rotary angles for contexts longer than those trained on.

    ``linear`` divides every angle by ``factor`` (Chen et al., 2023); ``smooth`` only those whose wave is long against
    ``original_length``, with a smooth change between ``high`` and ``low`` waves per length; ``yarn`` (Peng et al.,
    2023) likewise by the number of turns, and it makes queries and keys longer by ``attention`` besides.
    """

    kind: Literal["linear", "smooth", "yarn"]
    factor: float
    original_length: int | None = None
    low: float = 1.0
    high: float = 4.0
    attention: float = 1.0

    def __post_init__(self) -> None:
        check_choice("rotary.scaling.kind", self.kind, ("linear", "smooth", "yarn"))
        check_number(factor=self.factor, low=self.low, high=self.high, attention=self.attention)
        if self.kind != "linear" and self.original_length is None:
            raise ValueError(f"rotary scaling {self.kind!r} needs original_length, the context the model was made for.")
        check_positive(original_length=1 if self.original_length is None else self.original_length)
        if self.kind != "linear" and self.high <= self.low:
            raise ValueError(
                f"rotary scaling changes from high to low; got high={self.high}, not above low={self.low}."
            )


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Positions that turn queries and keys (Su et al., 2021)."""

    dim: int  # the first coordinates of a head that turn; an even number
    length: int  # longest sequence
    theta: float = 10_000.0
    pairing: Literal["halves", "interleaved"] = "halves"
    scaling: RotaryScaling | None = None

    def __post_init__(self) -> None:
        check_positive(dim=self.dim, length=self.length)
        check_number(theta=self.theta)
        check_choice("rotary.pairing", self.pairing, ("halves", "interleaved"))
        if self.dim % 2:
            raise ValueError(f"rotary positions turn pairs of coordinates, so rotary.dim must be even; got {self.dim}.")


@dataclass(frozen=True, kw_only=True)
class BucketBias:
    """A learned bias on the scores per head and bucket of distances (Raffel et al., 2020); one table per stack."""

    buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        check_positive(buckets=self.buckets, max_distance=self.max_distance)

    def check_direction(self, *, both_ways: bool) -> None:
        """Raise unless there are buckets for near distances, and far ones beyond them, on each side that is seen."""
        sides = 2 if both_ways else 1
        near = self.buckets // sides // 2
        if near == 0:
            raise ValueError(f"buckets={self.buckets} are too few: it takes {2 * sides} for near and far distances.")
        if self.max_distance <= near:
            raise ValueError(f"max_distance={self.max_distance} must lie beyond the {near} near distances.")


@dataclass(frozen=True, kw_only=True)
class Alibi:
    """A fixed bias on the scores: minus the distance, times a slope per head (Press et al., 2022); no weights.

    The distance is absolute: where tokens see both ways, a key counts as far after the query as before it.
    """


@dataclass(frozen=True, kw_only=True)
class Disentangled:
    """Scores from content and from relative position, each with vectors of its own (He et al., 2021)."""

    span: int  # half the rows of the table of relative positions
    terms: tuple[str, ...] = ("c2p", "p2c")  # content to position, position to content
    buckets: int = 0  # 0: one row per distance; else logarithmic buckets
    max_distance: int = 512  # from where on the logarithmic buckets are all one
    shared_projections: bool = False  # positions pass through the projections of the content
    key_bias: bool = False  # of the projection of positions as keys, where it is not shared
    norm_table: bool = False  # the table is normalised before use
    dropout: float = 0.0  # on the vectors of relative positions, in each layer anew

    def __post_init__(self) -> None:
        check_positive(span=self.span, max_distance=self.max_distance)
        check_count(buckets=self.buckets)
        check_probability(dropout=self.dropout)
        if self.buckets and not 1 <= self.buckets // 2 < self.max_distance - 1:
            raise ValueError(
                f"logarithmic buckets need at least 2 buckets, half of them for distances below max_distance - 1; "
                f"got buckets={self.buckets}, max_distance={self.max_distance}."
            )
        for term in self.terms:
            check_choice("terms", term, ("c2p", "p2c"))


ScoreBias = BucketBias | Alibi | Disentangled  # every kind; a mechanism that must know them all refuses others


@dataclass(frozen=True, kw_only=True)
class BlockSparse:
    """Attention between blocks of tokens: a window of three, the first and last block, and random ones per block.

    Its cost grows with the length and not with its square (Zaheer et al., 2020). ``set`` lets every query see each key
    of its blocks once, whatever the padding; ``reference`` computes what the published code does when it does not
    train: every random block is the first one, whose keys then count 1 + ``random`` times.
    """

    block: int = 64
    random: int = 3
    semantics: Literal["reference", "set"] = "reference"
    seed: int = 0  # of the random blocks

    def __post_init__(self) -> None:
        check_positive(block=self.block)
        check_count(random=self.random, seed=self.seed)
        check_choice("semantics", self.semantics, ("reference", "set"))

    @property
    def full_length(self) -> int:
        """The most tokens that are attended in full: from there on, there are enough blocks to draw from."""
        return (5 + 2 * self.random) * self.block
