"""Config dataclasses of the parts of a model: norm, attention, feed-forward network, stack, embeddings, heads."""

from dataclasses import dataclass
from typing import Literal, get_args

from glassformer.config.checks import (
    check_choice,
    check_count,
    check_divides,
    check_eps,
    check_layers,
    check_positive_integer,
    check_positive_number,
    check_probability,
)
from glassformer.config.positions import BlockSparse, BucketBias, Disentangled, InputPosition, Rotary, ScoreBias

Placement = Literal["pre", "post", "parallel", "parallel_norms"]
PLACEMENTS = get_args(Placement)
SUBLAYERS = ("attention", "cross", "ffn")  # of a block, in their order
Task = Literal["classify", "tag", "span", "pair", "replaced", "pool"]
Pool = Literal["first", "last", "mean"]
ACTIVATION_NAMES = ("gelu", "gelu_tanh", "relu", "silu", "tanh")


@dataclass(frozen=True, kw_only=True)
class Norm:
    """The normalisation used throughout a model: LayerNorm or RMSNorm."""

    kind: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    bias: bool = True  # LayerNorm's; RMSNorm has none
    offset: bool = False  # RMSNorm's stored weight is gain − 1, so the gain is 1 + weight

    def __post_init__(self) -> None:
        check_choice("norm.kind", self.kind, ("layer", "rms"))
        check_eps(self.eps)
        if self.offset and self.kind != "rms":
            raise ValueError(f"offset is for kind='rms'; got kind={self.kind!r}.")
        if self.kind == "rms":
            object.__setattr__(self, "bias", True)  # has no effect; one value, so that equal models compare equal


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Multi-head attention.

    Each entry of ``windows`` is how far a layer sees: None for full attention, a number of tokens for a sliding window,
    or a ``BlockSparse`` pattern. The layers of a stack take the entries in turn, from the first again after the last.
    """

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
        # Heads, biases, windows and rotary positions, each by itself.
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        check_positive_integer(heads=self.heads, head_dim=self.head_dim, kv_heads=kv_heads)
        check_divides("kv_heads", kv_heads, "heads", self.heads)
        check_probability(dropout=self.dropout)
        if set(self.biases) - set("qkvo") or len(set(self.biases)) != len(self.biases):
            raise ValueError(f"biases must be a string of q, k, v and o, each at most once; got {self.biases!r}.")
        for size in self.windows:
            if isinstance(size, int):
                check_positive_integer(window=size)
        if not self.windows:
            raise ValueError("windows needs at least one entry; (None,) is full attention in every layer.")
        if self.rotary is not None and self.rotary.dim > self.head_dim:
            raise ValueError(f"rotary.dim={self.rotary.dim} is larger than head_dim={self.head_dim}.")
        # Mechanisms that exclude each other.
        sparse = any(isinstance(window, BlockSparse) for window in self.windows)
        if kv_heads != self.heads and (sparse or isinstance(self.score_bias, Disentangled)):
            what = "block-sparse" if sparse else "disentangled"
            raise ValueError(f"{what} attention needs a key head per query head; got {kv_heads} for {self.heads}.")
        if sparse and self.score_bias is not None:
            raise ValueError(f"block-sparse attention takes no score_bias; got {type(self.score_bias).__name__}.")
        if self.qk_norm is not None and isinstance(self.score_bias, Disentangled):
            raise ValueError("disentangled attention projects positions as well and takes no qk_norm; set it to None.")
        if kv_heads == self.heads:
            object.__setattr__(self, "kv_heads", None)  # means the same; one value, so that equal models compare equal


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """The feed-forward network. ``gelu`` and ``gelu_tanh`` are different functions."""

    hidden: int
    activation: str = "gelu"
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0  # on the hidden vector

    def __post_init__(self) -> None:
        check_positive_integer(hidden=self.hidden)
        check_choice("activation", self.activation, ACTIVATION_NAMES)
        check_probability(dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution over the input of the stack, whose result is added to the first layer's output before a norm."""

    kernel: int
    groups: int = 1
    activation: str = "tanh"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_positive_integer(kernel=self.kernel, groups=self.groups)
        check_probability(dropout=self.dropout)
        check_choice("activation", self.activation, ACTIVATION_NAMES)
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, so that the convolution keeps the length; got {self.kernel}.")


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
    dropout: float = 0.0  # on the output of each sublayer
    dropout_on: tuple[str, ...] = SUBLAYERS  # the sublayers with that dropout
    final_dropout: float = 0.0  # on the output of the stack
    convolution: Convolution | None = None

    def __post_init__(self) -> None:
        unique = self.layers if self.unique_layers is None else self.unique_layers
        check_layers(layers=self.layers, unique_layers=unique)
        if unique > self.layers:
            raise ValueError(f"unique_layers={unique} is larger than layers={self.layers}.")
        check_choice("placement", self.placement, PLACEMENTS)
        check_probability(dropout=self.dropout, final_dropout=self.final_dropout)
        for sublayer in self.dropout_on:
            check_choice("dropout_on", sublayer, SUBLAYERS)
        if self.causal and isinstance(self.attention.score_bias, Disentangled):
            raise ValueError("disentangled attention is bidirectional; it is for encoders.")
        if self.causal and any(isinstance(window, BlockSparse) for window in self.attention.windows):
            raise ValueError("block-sparse attention is bidirectional; it is for encoders.")
        if self.causal and self.convolution is not None:
            raise ValueError("a convolution is bidirectional; it is for encoders.")
        if isinstance(self.attention.score_bias, BucketBias):
            self.attention.score_bias.check_direction(bidirectional=not self.causal)
        if unique == self.layers:
            object.__setattr__(self, "unique_layers", None)  # means the same, as in Attention

    def window(self, layer: int) -> int | BlockSparse | None:
        """Return how far a layer sees; the passes of a mask decoder, numbered on, are those of the last layer."""
        windows = self.attention.windows
        return windows[min(layer, self.layers - 1) % len(windows)]


@dataclass(frozen=True, kw_only=True)
class Embed:
    """The embeddings: token + segment + language + position, norm, dropout, projection."""

    width: int | None = None  # factorised: vectors of this width, projected to the model's; None: no projection
    scale: float = 1.0  # factor on the token's vector
    scale_in_dtype: bool = False  # the factor is rounded to the dtype of the table first: 55.43 is 55.5 in bfloat16
    segments: int = 0  # number of segments; 0: no segment embeddings
    languages: int = 0  # number of languages; 0: no language embeddings
    position: InputPosition | None = None
    norm: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_positive_integer(width=1 if self.width is None else self.width)
        check_count(segments=self.segments, languages=self.languages)
        check_positive_number(scale=self.scale)
        check_probability(dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class MaskDecoder:
    """An enhanced mask decoder (He et al., 2021, section 3.2): absolute positions, to predict masked words only.

    It is no decoder stack: the encoder's last layer runs ``steps`` times, with the hidden states before that layer as
    keys and values. In the first step the queries are these states plus position vectors, in each later one the output
    of the step before.
    """

    length: int  # rows of the table of positions
    steps: int = 2

    def __post_init__(self) -> None:
        check_positive_integer(length=self.length, steps=self.steps)


@dataclass(frozen=True, kw_only=True)
class LMHead:
    """Logits over the vocabulary; ``tied``: by the embedding table."""

    transform: str | None = None  # activation between a linear layer and a norm before the logits; None: neither
    bias: bool = False
    bias_trained: bool = True  # False: a stored buffer, added to the logits but no parameter
    scale: float = 1.0  # factor on the hidden state
    tied: bool = True
    mask_decoder: MaskDecoder | None = None

    def __post_init__(self) -> None:
        check_choice("transform", "gelu" if self.transform is None else self.transform, ACTIVATION_NAMES)
        check_positive_number(scale=self.scale)
        if not self.bias and not self.bias_trained:
            raise ValueError("bias_trained=False needs a bias; set bias=True.")


@dataclass(frozen=True, kw_only=True)
class TaskHead:
    """Logits of labels, one set per sequence (``pool``) or per token (``pool=None``).

    With ``hidden``, a linear layer of the model's width and that activation come first. Without labels, the output
    is the vector from which they would be computed.
    """

    task: Task  # classify texts, tag tokens, span of an answer, sentence pair, replaced tokens, or only pool
    labels: tuple[str, ...] = ()
    pool: Pool | None = None  # first and last are those of the real tokens
    hidden: str | None = None
    bias: bool = True
    dropout: float = 0.0  # before the layer that computes the logits
    input_dropout: float = 0.0  # before the linear layer of ``hidden``

    def __post_init__(self) -> None:
        if not isinstance(self.labels, tuple):
            raise TypeError(f"labels are a tuple of names, got {self.labels!r}.")
        check_choice("task", self.task, get_args(Task))
        check_choice("pool", "first" if self.pool is None else self.pool, get_args(Pool))
        check_choice("hidden", "gelu" if self.hidden is None else self.hidden, ACTIVATION_NAMES)
        check_probability(dropout=self.dropout, input_dropout=self.input_dropout)
        if self.task in ("classify", "pair") and self.pool is None:
            raise ValueError(f"task={self.task!r} gives one output per row: set pool='first', 'last' or 'mean'.")
        if self.task in ("tag", "span", "replaced") and self.pool is not None:
            raise ValueError(
                f"task={self.task!r} gives one output per token, so it takes no pool; got pool={self.pool!r}."
            )


@dataclass(frozen=True, kw_only=True)
class EmbeddingHead:
    """One vector per sequence: the mean over real tokens (or one of them), normalised to length 1."""

    pool: Pool = "mean"
    normalise: bool = True

    def __post_init__(self) -> None:
        check_choice("pool", self.pool, get_args(Pool))


@dataclass(frozen=True, kw_only=True)
class PretrainingHead:
    """Masked words and sentence pairs in one pass: (logits over the vocabulary, logits of the pair)."""

    lm: LMHead
    pair: TaskHead

    def __post_init__(self) -> None:
        if self.pair.pool is None:
            raise ValueError("pair.pool must choose the vector of the pair: first, last or mean; got None.")


Head = LMHead | TaskHead | EmbeddingHead | PretrainingHead
