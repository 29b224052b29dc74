"""Facts about the parts of a model: norm, attention, feed-forward network, stack, embedding."""

from dataclasses import dataclass
from typing import Literal, get_args

from glassformer.config.checks import (
    check_choice,
    check_count,
    check_divides,
    check_eps,
    check_layers,
    check_number,
    check_positive,
    check_probability,
)
from glassformer.config.positions import BlockSparse, BucketBias, Disentangled, InputPosition, Rotary, ScoreBias

Placement = Literal["pre", "post", "parallel", "parallel_norms"]
PLACEMENTS = get_args(Placement)
ACTIVATION_NAMES = ("gelu", "gelu_tanh", "relu", "silu", "tanh")


@dataclass(frozen=True, kw_only=True)
class Norm:
    """The normalisation used throughout a model: LayerNorm or RMSNorm."""

    kind: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    bias: bool = True  # LayerNorm's; RMSNorm has none
    offset: bool = False  # the gain is 1 + weight instead of the weight itself; RMSNorm's

    def __post_init__(self) -> None:
        check_choice("norm.kind", self.kind, ("layer", "rms"))
        check_eps(self.eps)
        if self.offset and self.kind != "rms":
            raise ValueError(f"offset is for kind='rms'; got kind={self.kind!r}.")


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Multi-head attention. ``windows`` is laid over the layers in turn, again and again; None sees everything."""

    heads: int
    head_dim: int
    kv_heads: int | None = None  # None: as many as heads
    biases: str = "qkvo"  # which of the projections q, k, v, o have a bias
    scale: float | None = None  # factor on q · k; None: 1 / √head_dim
    qk_norm: Norm | None = None  # of the queries and of the keys of each head, before rotary positions
    rotary: Rotary | None = None
    score_bias: ScoreBias | None = None
    windows: tuple[int | BlockSparse | None, ...] = (None,)
    dropout: float = 0.0  # on the weights

    def __post_init__(self) -> None:
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        check_positive(heads=self.heads, head_dim=self.head_dim, kv_heads=kv_heads)
        check_divides("kv_heads", kv_heads, "heads", self.heads)
        check_probability(dropout=self.dropout)
        if set(self.biases) - set("qkvo") or len(set(self.biases)) != len(self.biases):
            raise ValueError(f"biases names projections by the letters q, k, v and o, once each; got {self.biases!r}.")
        for size in self.windows:
            if isinstance(size, int):
                check_positive(window=size)
        if not self.windows:
            raise ValueError("windows needs at least one entry; (None,) is full attention in every layer.")
        if self.rotary is not None and self.rotary.dim > self.head_dim:
            raise ValueError(f"rotary.dim={self.rotary.dim} is more than a head has: head_dim={self.head_dim}.")
        sparse = any(isinstance(window, BlockSparse) for window in self.windows)
        if kv_heads != self.heads and (sparse or isinstance(self.score_bias, Disentangled)):
            what = "block-sparse" if sparse else "disentangled"
            raise ValueError(f"{what} attention needs a key head per query head; got {kv_heads} for {self.heads}.")
        if sparse and self.score_bias is not None:
            raise ValueError(f"block-sparse attention takes no score_bias; got {type(self.score_bias).__name__}.")
        if self.qk_norm is not None and isinstance(self.score_bias, Disentangled):
            raise ValueError("disentangled attention projects positions as well and takes no qk_norm; set it to None.")
        if kv_heads == self.heads:
            object.__setattr__(self, "kv_heads", None)  # one way to say one fact, so that equal models compare equal


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """The feed-forward network. ``gelu`` and ``gelu_tanh`` are different functions and different facts."""

    hidden: int
    activation: str = "gelu"
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0  # on the hidden vector

    def __post_init__(self) -> None:
        check_positive(hidden=self.hidden)
        check_choice("activation", self.activation, ACTIVATION_NAMES)
        check_probability(dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution over the embeddings, added to the output of the first layer and normalised with it."""

    kernel: int
    groups: int = 1
    activation: str = "tanh"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_positive(kernel=self.kernel, groups=self.groups)
        check_probability(dropout=self.dropout)
        check_choice("activation", self.activation, ACTIVATION_NAMES)
        if self.kernel % 2 == 0:
            raise ValueError(f"a convolution with an odd kernel keeps the length; got kernel={self.kernel}.")


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Layers of blocks: an encoder or a decoder."""

    layers: int
    attention: Attention
    ffn: FeedForward
    causal: bool = False
    cross: bool = False  # attends to the encoder's output
    placement: Placement = "pre"  # of the norms; see nn.block.residual
    final_norm: bool = True
    unique_layers: int | None = None  # fewer than layers: neighbours share weights; None: every layer has its own
    dropout: float = 0.0  # on what each sublayer adds
    dropout_on: tuple[str, ...] = ("attention", "cross", "ffn")  # the sublayers that it falls on
    final_dropout: float = 0.0  # on what leaves the stack
    convolution: Convolution | None = None

    def __post_init__(self) -> None:
        unique = self.layers if self.unique_layers is None else self.unique_layers
        check_layers(layers=self.layers, unique_layers=unique)
        if unique > self.layers:
            raise ValueError(f"unique_layers={unique} would leave some unused: there are {self.layers} layers.")
        check_choice("placement", self.placement, PLACEMENTS)
        check_probability(dropout=self.dropout, final_dropout=self.final_dropout)
        for sublayer in self.dropout_on:
            check_choice("dropout_on", sublayer, ("attention", "cross", "ffn"))
        if self.causal and isinstance(self.attention.score_bias, Disentangled):
            raise ValueError("disentangled attention looks both ways; it is for encoders.")
        if self.causal and any(isinstance(window, BlockSparse) for window in self.attention.windows):
            raise ValueError("block-sparse attention looks both ways; it is for encoders.")
        if self.causal and self.convolution is not None:
            raise ValueError("a convolution looks both ways; it is for encoders.")
        if isinstance(self.attention.score_bias, BucketBias):
            self.attention.score_bias.check_direction(both_ways=not self.causal)
        if unique == self.layers:
            object.__setattr__(self, "unique_layers", None)  # one way to say one fact; see Attention


@dataclass(frozen=True, kw_only=True)
class Embed:
    """From ids to vectors: token + segment + language + position, norm, dropout, projection."""

    width: int | None = None  # factorised: vectors of this width, projected to the model's; None: no projection
    scale: float = 1.0  # factor on the token's vector
    scale_in_dtype: bool = False  # the factor is rounded to the type of the table first: 55.43 is 55.5 in bfloat16
    segments: int = 0  # kinds of segments; 0: none
    languages: int = 0
    position: InputPosition | None = None
    norm: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_positive(width=1 if self.width is None else self.width)
        check_count(segments=self.segments, languages=self.languages)
        check_number(scale=self.scale)
        check_probability(dropout=self.dropout)
