"""The settings of text generation: one frozen value, checked when it is made.

``GenerationSettings`` is the value. ``GenerationOptions`` and ``TextOptions`` are the same settings as keywords, for
the functions that take them. ``settings(...)`` makes a value from keywords, with lists as users and JSON write them.
Nothing here imports tensors or models: whether the vocabulary holds a token id is checked where the vocabulary is known
(``filters.Filters``).
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args

from glassformer.config.checks import (
    Setting,
    SettingError,
    check_choice,
    check_count,
    check_divides,
    check_positive_integer,
    check_positive_number,
)
from glassformer.config.options import AttentionPath, Decoding, with_listed_options

if TYPE_CHECKING:
    from glassformer.generation.speculative import Draft

LengthRule = Literal["power", "gnmt"]
Mode = Literal["greedy", "sample", "beam", "contrastive"]
Side = Literal["left", "right"]
SAMPLING_ONLY = ("top_k", "top_p", "min_p", "typical_p")  # settings that have no effect at temperature 0
BEAM_ONLY = ("length_penalty", "length_rule", "early_stopping")  # settings that only beam search uses
Bias = Mapping[int, float] | tuple[tuple[int, float], ...]
TokenName = int | str  # a token by its id or, where a tokenizer is at hand, by its text


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """What to generate and how to search. Contradictory settings are an error that says what to do.

    Args:
        max_new_tokens: maximum number of new tokens.
        min_new_tokens: minimum number of new tokens.
        beam_size: number of beams; 1: no beam search.
        top_beams: how many of the best beams to return.
        length_penalty: the exponent p in ``length_rule``; above 0 favours long texts, below 0 short ones.
        length_rule: how length enters the score: "power", score / length^p, or "gnmt", score / ((5 + length) / 6)^p (Wu
            et al. 2016, equation 14).
        early_stopping: when beam search ends. True: once ``beam_size`` texts have ended; False: once no better text is
            likely, estimated at the current length; "never": only when no better text is possible at any length.
        beam_groups: split the beams into this many groups, each avoiding the tokens of those before it (Vijayakumar et
            al. 2016).
        diversity: diversity penalty: subtracted from a token's score for every earlier group that chose it at this
            step.
        temperature: divides the logits; 0: always the most probable token.
        top_k: sample among the k most probable tokens (Fan et al. 2018).
        top_p: sample among the smallest set of most probable tokens whose probabilities reach p (Holtzman et al. 2020).
        min_p: sample among tokens with at least this fraction of the highest probability (Nguyen et al. 2024).
        typical_p: sample among the smallest set of most typical tokens whose probabilities reach p (Meister et al.
            2022).
        samples: texts sampled per prompt.
        seed: one for all prompts, or one for each.
        repetition_penalty: divides positive and multiplies negative logits of earlier tokens (Keskar et al. 2019).
        no_repeat_ngram: no n-gram of this many tokens occurs twice; 0: no limit.
        bad_words: token sequences that are never completed.
        logit_bias: token → number added to its logit; kept as sorted pairs.
        forced_first: force the first token.
        forced_last: force the last token of a text that reaches ``max_new_tokens``.
        suppress: tokens that are never generated.
        eos: tokens that end a text.
        stop: strings that end a text.
        contrastive_alpha: contrastive search (Su et al. 2022): how much similarity to earlier tokens counts, against
            probability; needs ``top_k``.
        top_alternatives: how many of the most probable tokens to report beside each token.
        record: keep every step of the search, not only its result.
    """

    max_new_tokens: int = 64
    min_new_tokens: int = 0
    # beam search
    beam_size: int = 1
    top_beams: int = 1
    length_penalty: float = 1.0
    length_rule: LengthRule = "power"
    early_stopping: bool | Literal["never"] = False
    beam_groups: int = 1
    diversity: float = 0.0
    # sampling
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    samples: int = 1
    seed: int | tuple[int, ...] = 0
    # constraints on tokens
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    logit_bias: Bias = ()
    forced_first: int | None = None
    forced_last: int | None = None
    suppress: tuple[int, ...] = ()
    # where a text ends
    eos: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    # contrastive search
    contrastive_alpha: float | None = None
    # what to report
    top_alternatives: int = 0
    record: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(sorted(self.logit_bias.items())))
        _check_values(self)
        _check_ids(self)
        _check_together(self)

    def seed_of(self, prompt: int) -> int:
        """Return the seed of one prompt."""
        return self.seed[prompt] if isinstance(self.seed, tuple) else self.seed

    @property
    def mode(self) -> Mode:
        """The search that these settings select."""
        if self.contrastive_alpha is not None:
            return "contrastive"
        if self.beam_size > 1:
            return "beam"
        return "sample" if self.temperature > 0 else "greedy"


class GenerationOptions(TypedDict, total=False):
    """``GenerationSettings`` as keywords; lists are accepted, and a tokenizer lets tokens be named by their text."""

    max_new_tokens: int
    min_new_tokens: int
    beam_size: int
    top_beams: int
    length_penalty: float
    length_rule: LengthRule
    early_stopping: bool | Literal["never"]
    beam_groups: int
    diversity: float
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    samples: int
    seed: int | Sequence[int]
    repetition_penalty: float
    no_repeat_ngram: int
    bad_words: Sequence[str | Sequence[int]]
    logit_bias: Mapping[int, float] | Mapping[str, float] | Mapping[TokenName, float]
    forced_first: TokenName | None
    forced_last: TokenName | None
    suppress: Sequence[TokenName]
    eos: TokenName | Sequence[TokenName]
    stop: str | Sequence[str]
    contrastive_alpha: float | None
    top_alternatives: int
    record: bool


class TextOptions(GenerationOptions, total=False):
    """What every function that generates text takes.

    Tokens in the settings may be named by their text. Omitted settings come from the folder's
    ``generation_config.json``, else from the defaults of ``GenerationSettings``.

    Options:
        truncate: the side on which to cut prompts that are too long; None: raise an error.
        keep_special: show special tokens in the text.
        path: attention implementation: fused kernels (sdpa) or the plain formula (eager).
        chunk: prefill prompts in chunks of this many tokens; by default in one pass.
        decoding: how decoding steps run: with a cache that grows (dynamic) or is of fixed size (static), as CUDA graphs
            (graph), by torch.compile (compiled); auto: graph on a GPU wherever that is possible, else dynamic.
        draft: a ``ModelDraft`` or ``PromptLookup`` for speculative decoding, which is faster and leaves the text's
            distribution as it is.
        start: the ids that an encoder-decoder's text begins with; None: its start token.
        task: recommendations for one task, as ``config.json`` states them; they precede the folder's.
        default_length: new tokens where neither ``max_new_tokens`` nor the folder says how many.
    """

    truncate: Side | None
    keep_special: bool
    path: AttentionPath
    chunk: int | None
    decoding: Decoding
    draft: "Draft | None"
    start: Sequence[int] | None
    task: Mapping[str, Any] | None
    default_length: int


if GenerationSettings.__doc__ and TextOptions.__doc__:  # neither is there under python -OO
    TextOptions.__doc__ = f"{inspect.getdoc(TextOptions)}\n" + "\n".join(
        inspect.getdoc(GenerationSettings).partition("Args:\n")[2].splitlines()  # type: ignore[union-attr]
    )


@with_listed_options
def settings(**options: Unpack[GenerationOptions]) -> GenerationSettings:
    """``GenerationSettings`` from keywords as users and JSON write them: lists are accepted; tokens are ids.

    The error for a misspelt name suggests the nearest.
    """
    names = [field.name for field in fields(GenerationSettings)]
    for name in options:
        check_choice("a setting of text generation", name, names)
    return GenerationSettings(**{name: frozen(value) for name, value in options.items()})


def frozen(value: Any) -> Any:
    """Return lists, at any depth, as tuples."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def _check_values(s: GenerationSettings) -> None:
    """Check every number by itself."""
    # Counts and choices.
    check_positive_integer(max_new_tokens=s.max_new_tokens, beam_size=s.beam_size, top_beams=s.top_beams)
    check_positive_integer(beam_groups=s.beam_groups, samples=s.samples)
    check_count(min_new_tokens=s.min_new_tokens, no_repeat_ngram=s.no_repeat_ngram)
    check_count(top_alternatives=s.top_alternatives)
    check_choice("length_rule", s.length_rule, get_args(LengthRule))
    if not isinstance(s.early_stopping, bool) and s.early_stopping != "never":
        template = "{} must be True, False or 'never', got {}."
        raise SettingError(template, Setting("early_stopping"), repr(s.early_stopping))
    if not isinstance(s.record, bool):
        raise TypeError(f"record must be True or False, got {s.record!r}.")
    # Real numbers.
    _check_finite(length_penalty=s.length_penalty, temperature=s.temperature, diversity=s.diversity)
    if s.temperature < 0:
        template = "{} must be 0 (always the most probable token) or above, got {}."
        raise SettingError(template, Setting("temperature"), str(s.temperature))
    if s.diversity < 0:
        raise SettingError("{} must be 0 or above, got {}.", Setting("diversity"), str(s.diversity))
    check_positive_number(repetition_penalty=s.repetition_penalty)
    # Filters of sampling.
    if s.top_k is not None:
        check_positive_integer(top_k=s.top_k)
    _check_share(above_zero=True, top_p=s.top_p, typical_p=s.typical_p)
    _check_share(above_zero=False, min_p=s.min_p, contrastive_alpha=s.contrastive_alpha)


def _check_ids(s: GenerationSettings) -> None:
    """Check token ids, lists of them, and strings."""
    # Seeds and single tokens.
    _check_tuple("seed", s.seed if isinstance(s.seed, tuple) else (s.seed,))
    _check_tuple("eos", s.eos)
    _check_tuple("suppress", s.suppress)
    _check_tuple("forced_first", () if s.forced_first is None else (s.forced_first,))
    _check_tuple("forced_last", () if s.forced_last is None else (s.forced_last,))
    # Sequences of tokens, biases of tokens, strings.
    if not isinstance(s.bad_words, tuple) or not isinstance(s.logit_bias, tuple) or not isinstance(s.stop, tuple):
        raise TypeError("bad_words and stop must be tuples, logit_bias a mapping; settings(...) takes lists too.")
    for word in s.bad_words:
        _check_tuple("bad_words", word)
    if s.seed == () or () in s.bad_words:
        template = "{} and every sequence in {} need at least one number, got an empty tuple."
        raise SettingError(template, Setting("seed"), Setting("bad_words"))
    _check_tuple("logit_bias", tuple(token for token, _ in s.logit_bias))
    for token, bias in s.logit_bias:
        if isinstance(bias, Real) and not isfinite(bias):
            template = f"{{}} for token {token} is {bias}; to forbid a token use {{}}."
            raise SettingError(template, Setting("logit_bias"), Setting("suppress", (token,)))
        _check_finite(**{f"logit_bias for token {token}": bias})
    for text in s.stop:
        if not isinstance(text, str) or not text:
            template = "{} must hold texts of at least one character, got {}; leave it out."
            raise SettingError(template, Setting("stop"), repr(text))


def _check_together(s: GenerationSettings) -> None:
    """Check for settings that contradict each other."""
    # Lengths and beams.
    if s.min_new_tokens > s.max_new_tokens:
        least, most = (Setting(name, getattr(s, name)) for name in ("min_new_tokens", "max_new_tokens"))
        raise SettingError("{} is above {}; raise the latter.", least, most)
    if s.top_beams > s.beam_size:
        raise SettingError(
            "{} of {} cannot be returned; set {}.",
            Setting("top_beams", s.top_beams),
            Setting("beam_size", s.beam_size),
            Setting("beam_size", s.top_beams),
        )
    check_divides("beam_groups", s.beam_groups, "beam_size", s.beam_size)
    if s.diversity and s.beam_groups == 1:
        template = "{} acts between groups of beams; set {} to 2 or more."
        raise SettingError(template, Setting("diversity", s.diversity), Setting("beam_groups"))
    # One search at a time: contrastive search, beam search or sampling.
    if s.contrastive_alpha is not None:
        if s.top_k is None or s.top_k < 2:
            got = "" if s.top_k is None else f", got {s.top_k}"
            template = "{} chooses among the most probable tokens; set {} to 2 or more{}."
            raise SettingError(template, Setting("contrastive_alpha"), Setting("top_k"), got)
        if s.beam_size > 1 or s.temperature:
            raise SettingError(
                "{} selects contrastive search; leave {} at 1 and {} at 0.",
                Setting("contrastive_alpha"),
                Setting("beam_size"),
                Setting("temperature"),
            )
    if s.beam_size > 1 and s.temperature:
        raise SettingError(
            "{} selects beam search, {} sampling; set {} for beam search or {} for sampling.",
            Setting("beam_size", s.beam_size),
            Setting("temperature", s.temperature),
            Setting("temperature", 0),
            Setting("beam_size", 1),
        )
    # Settings without effect.
    idle = [name for name in SAMPLING_ONLY if getattr(s, name) is not None]
    idle = [name for name in idle if not (name == "top_k" and s.contrastive_alpha is not None)]
    idle += ["samples"] if s.samples > 1 else []
    if idle and s.temperature == 0:
        template = f"{' and '.join('{}' for _ in idle)} would have no effect at temperature 0; set {{}}."
        raise SettingError(template, *map(Setting, idle), Setting("temperature", 1.0))
    defaults = {field.name: field.default for field in fields(GenerationSettings)}
    idle = [name for name in BEAM_ONLY if getattr(s, name) != defaults[name]]
    if idle and s.beam_size == 1:
        template = f"{' and '.join('{}' for _ in idle)} would have no effect without beams; set {{}} to 2 or more."
        raise SettingError(template, *map(Setting, idle), Setting("beam_size"))


def _check_finite(**numbers: float) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
            raise SettingError("{} must be a finite number, got {}.", Setting(name), repr(value))


def _check_share(*, above_zero: bool, **shares: float | None) -> None:
    for name, value in shares.items():
        if value is None:
            continue
        good = not isinstance(value, bool) and isinstance(value, Real) and 0 <= value <= 1
        if not good or (above_zero and value == 0):
            lowest = "above 0" if above_zero else "at least 0"
            raise SettingError("{} must be {} and at most 1, got {}.", Setting(name), lowest, repr(value))


def _check_tuple(name: str, values: object) -> None:
    if not isinstance(values, tuple):
        raise TypeError(f"{name} must be a tuple of integers, got {values!r}; settings(...) takes lists too.")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            raise SettingError("{} must hold integers of at least 0, got {}.", Setting(name), repr(value))
