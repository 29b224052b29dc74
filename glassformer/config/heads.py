"""Facts about heads: what a model answers with."""

from dataclasses import dataclass
from typing import Literal

from glassformer.config.checks import check_choice, check_number, check_positive, check_probability
from glassformer.config.parts import ACTIVATION_NAMES


@dataclass(frozen=True, kw_only=True)
class MaskDecoder:
    """Absolute positions that enter only where masked words are guessed (He et al., 2021, section 3.2).

    In place of its plain pass the last layer is run ``steps`` times: it looks at the vectors before it, and asks first
    from these plus the position's vector, then from its own output.
    """

    length: int  # rows of the table of positions
    steps: int = 2

    def __post_init__(self) -> None:
        check_positive(length=self.length, steps=self.steps)


@dataclass(frozen=True, kw_only=True)
class LMHead:
    """Logits over the vocabulary; ``tied`` reads them off the embedding table."""

    transform: str | None = None  # activation of a linear map and norm before it; None: neither
    bias: bool = False
    bias_trained: bool = True  # False: a stored buffer, added to the logits but no parameter
    scale: float = 1.0  # factor on the vector before it
    tied: bool = True
    mask_decoder: MaskDecoder | None = None

    def __post_init__(self) -> None:
        check_choice("transform", "gelu" if self.transform is None else self.transform, ACTIVATION_NAMES)
        check_number(scale=self.scale)
        if not self.bias and not self.bias_trained:
            raise ValueError("bias_trained=False is said of a bias, and there is none; say bias=True.")


@dataclass(frozen=True, kw_only=True)
class TaskHead:
    """Scores for labels, one set per sequence (``pool``) or per token (``pool=None``).

    With ``hidden``, the name of an activation, a linear map of the model's width comes first. Without labels the
    (pooled, mapped) vector itself is the answer.
    """

    task: Literal["classify", "tag", "span", "pair", "replaced", "pool"]
    labels: tuple[str, ...] = ()
    pool: Literal["first", "last", "mean"] | None = None  # first and last are those of the real tokens
    hidden: str | None = None
    bias: bool = True
    dropout: float = 0.0  # before the scores
    input_dropout: float = 0.0  # before the linear map of ``hidden``

    def __post_init__(self) -> None:
        if not isinstance(self.labels, tuple):
            raise TypeError(f"labels are a tuple of names, got {self.labels!r}.")
        check_choice("task", self.task, ("classify", "tag", "span", "pair", "replaced", "pool"))
        check_choice("pool", "first" if self.pool is None else self.pool, ("first", "last", "mean"))
        check_choice("hidden", "gelu" if self.hidden is None else self.hidden, ACTIVATION_NAMES)
        check_probability(dropout=self.dropout, input_dropout=self.input_dropout)
        if self.task in ("classify", "pair") and self.pool is None:
            raise ValueError(f"task={self.task!r} gives one answer per row: say pool='first', 'last' or 'mean'.")
        if self.task in ("tag", "span", "replaced") and self.pool is not None:
            raise ValueError(
                f"task={self.task!r} gives an answer to every token; pool={self.pool!r} has no place in it."
            )


@dataclass(frozen=True, kw_only=True)
class EmbeddingHead:
    """One vector per sequence: the mean over real tokens (or one of them), brought to length 1."""

    pool: Literal["first", "last", "mean"] = "mean"
    normalise: bool = True

    def __post_init__(self) -> None:
        check_choice("pool", self.pool, ("first", "last", "mean"))


@dataclass(frozen=True, kw_only=True)
class PretrainingHead:
    """Masked words and pairs of sentences, from one pass: (logits over the vocabulary, scores of the pair)."""

    lm: LMHead
    pair: TaskHead

    def __post_init__(self) -> None:
        if self.pair.pool is None:
            raise ValueError("pair.pool must say which vector stands for the whole pair; got None.")


Head = LMHead | TaskHead | EmbeddingHead | PretrainingHead
