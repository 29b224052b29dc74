"""The settings of text generation: one frozen value, checked when it is made.

``GenerationSettings`` is the value, ``settings(...)`` makes one from names and lists as users and JSON write them,
``published`` reads what the folder of a published model recommends. Nothing here knows tensors or models: whether the
vocabulary holds a token id is checked where the vocabulary is known (``filters.Filters``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from numbers import Integral, Real
from typing import Any, Literal, get_args

from glassformer.config.checks import (
    Setting,
    SettingError,
    check_choice,
    check_count,
    check_divides,
    check_number,
    check_positive,
)

LengthRule = Literal["power", "gnmt"]
Mode = Literal["greedy", "sample", "beam", "contrastive"]
OF_BEAMS = ("length_penalty", "length_rule", "early_stopping")  # mean something to beam search alone
Bias = Mapping[int, float] | tuple[tuple[int, float], ...]

# Keys of a generation_config.json that say the same as a setting.
PUBLISHED = {
    "max_new_tokens": "max_new_tokens",
    "min_new_tokens": "min_new_tokens",
    "num_beams": "beam_size",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "num_beam_groups": "beam_groups",
    "diversity_penalty": "diversity",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "bad_words_ids": "bad_words",
    "suppress_tokens": "suppress",
    "forced_bos_token_id": "forced_first",
    "forced_eos_token_id": "forced_last",
    "eos_token_id": "eos",
    "stop_strings": "stop",
    "max_length": "max_length",
    "min_length": "min_length",
}
DRAWN = ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "penalty_alpha", "num_return_sequences")
# Keys that change the text and have no counterpart here, with the value that leaves the text alone (null does too).
MISSING: dict[str, Any] = {
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
    "begin_suppress_tokens": [],
    "forced_decoder_ids": [],
    "sequence_bias": [],
    "exponential_decay_length_penalty": None,
    "remove_invalid_values": False,
    "renormalize_logits": False,
    "force_bos_token_to_be_generated": False,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "constraints": [],
    "force_words_ids": [],
    "dola_layers": None,
    "token_healing": False,
    "max_time": None,
}
# Keys that are passed over, by reason.
PASSED_OVER = {
    "who wrote the file": ("transformers_version", "_from_model_config", "_commit_hash"),
    "read with the model": ("pad_token_id", "bos_token_id", "decoder_start_token_id"),
    "how to compute, not what": (
        "use_cache", "cache_implementation", "cache_config", "max_cache_len", "return_legacy_cache", "low_memory",
        "compile_config", "disable_compile", "prefill_chunk_size", "continuous_batching_config",
    ),
    "what to return beside the text": (
        "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
    ),
    "a second model that guesses ahead, which leaves the text alone": (
        "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
        "assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight",
        "prompt_lookup_num_tokens", "max_matching_ngram_size", "speculation_type", "use_mtp",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """What is asked of a text and of the way it is found. A contradiction is an error that says what to do."""

    max_new_tokens: int = 64  # the text ends here at the latest
    min_new_tokens: int = 0  # and by an end token not before this many

    beam_size: int = 1  # partial texts kept side by side; 1: no beam search
    top_beams: int = 1  # so many of the best are returned
    length_penalty: float = 1.0  # p below; above 0 favours long texts, below 0 short ones
    length_rule: LengthRule = "power"  # score / length^p, or / ((5 + length) / 6)^p (Wu et al. 2016, equation 14)
    early_stopping: bool | Literal["never"] = False  # True: at beam_size ended texts; False: when no better one is
    # likely, judged at the present length; "never": only when none is possible at any length
    beam_groups: int = 1  # beams in so many groups, each avoiding the words of those before (Vijayakumar et al. 2016)
    diversity: float = 0.0  # taken off the score of a token for every earlier group that chose it

    temperature: float = 0.0  # divides the logits; 0: always the likeliest token
    top_k: int | None = None  # draw among the k likeliest (Fan et al. 2018)
    top_p: float | None = None  # among the likeliest that together have p (Holtzman et al. 2020)
    min_p: float | None = None  # among those with at least min_p of the likeliest one's chance (Nguyen et al. 2024)
    typical_p: float | None = None  # among the most typical that together have p (Meister et al. 2022)
    samples: int = 1  # texts drawn per prompt
    seed: int | tuple[int, ...] = 0  # one for all prompts, or one for each

    repetition_penalty: float = 1.0  # divides (negative: multiplies) logits of tokens seen before (Keskar et al. 2019)
    no_repeat_ngram: int = 0  # no run of so many tokens occurs twice
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences never completed
    logit_bias: Bias = ()  # token → number added to its logit; kept as sorted pairs
    forced_first: int | None = None  # the first token
    forced_last: int | None = None  # the token at place max_new_tokens, if the text gets so far
    suppress: tuple[int, ...] = ()  # tokens never written

    eos: tuple[int, ...] = ()  # tokens that end a text
    stop: tuple[str, ...] = ()  # strings that end it

    contrastive_alpha: float | None = None  # weight of unlikeness against likelihood (Su et al. 2022); needs top_k

    top_alternatives: int = 0  # likeliest alternatives reported with each token
    record: bool = False  # keep the whole search, not its result alone

    def __post_init__(self) -> None:
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(sorted(self.logit_bias.items())))
        _check_values(self)
        _check_ids(self)
        _check_together(self)

    def seed_of(self, prompt: int) -> int:
        """The seed of one of the prompts."""
        return self.seed[prompt] if isinstance(self.seed, tuple) else self.seed

    @property
    def mode(self) -> Mode:
        """Which search these settings ask for."""
        if self.contrastive_alpha is not None:
            return "contrastive"
        if self.beam_size > 1:
            return "beam"
        return "sample" if self.temperature > 0 else "greedy"


def settings(**options: Any) -> GenerationSettings:
    """``GenerationSettings`` from options as users and JSON write them; lists will do.

    The error for a misspelt name suggests the nearest.
    """
    names = [field.name for field in fields(GenerationSettings)]
    for name in options:
        check_choice("a setting of text generation", name, names)
    return GenerationSettings(**{name: _frozen(value) for name, value in options.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _check_values(s: GenerationSettings) -> None:
    """Every number by itself."""
    check_positive(max_new_tokens=s.max_new_tokens, beam_size=s.beam_size, top_beams=s.top_beams)
    check_positive(beam_groups=s.beam_groups, samples=s.samples)
    check_count(min_new_tokens=s.min_new_tokens, no_repeat_ngram=s.no_repeat_ngram)
    check_count(top_alternatives=s.top_alternatives)
    check_choice("length_rule", s.length_rule, get_args(LengthRule))
    if not isinstance(s.early_stopping, bool) and s.early_stopping != "never":
        raise ValueError(f"early_stopping must be True, False or 'never', got {s.early_stopping!r}.")
    if not isinstance(s.record, bool):
        raise TypeError(f"record must be True or False, got {s.record!r}.")
    _check_finite(length_penalty=s.length_penalty, temperature=s.temperature, diversity=s.diversity)
    if s.temperature < 0:
        raise SettingError(
            "{} must be 0 (always the likeliest token) or above, got {}.", Setting("temperature"), str(s.temperature)
        )
    if s.diversity < 0:
        raise SettingError("{} must be 0 or above, got {}.", Setting("diversity"), str(s.diversity))
    check_number(repetition_penalty=s.repetition_penalty)
    if s.top_k is not None:
        check_positive(top_k=s.top_k)
    _check_share(above_zero=True, top_p=s.top_p, typical_p=s.typical_p)
    _check_share(above_zero=False, min_p=s.min_p, contrastive_alpha=s.contrastive_alpha)


def _check_ids(s: GenerationSettings) -> None:
    """Everything that is a token id, a list of them, or a text."""
    _check_tuple("seed", s.seed if isinstance(s.seed, tuple) else (s.seed,))
    _check_tuple("eos", s.eos)
    _check_tuple("suppress", s.suppress)
    _check_tuple("forced_first", () if s.forced_first is None else (s.forced_first,))
    _check_tuple("forced_last", () if s.forced_last is None else (s.forced_last,))
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
    """What contradicts something else."""
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
    if s.contrastive_alpha is not None:
        if s.top_k is None or s.top_k < 2:
            raise SettingError(
                "{} chooses among {} tokens, got {}; set 2 or more.",
                Setting("contrastive_alpha"),
                Setting("top_k"),
                Setting("top_k", s.top_k),
            )
        if s.beam_size > 1 or s.temperature:
            raise SettingError(
                "{} is a search of its own; leave {} at 1 and {} at 0.",
                Setting("contrastive_alpha"),
                Setting("beam_size"),
                Setting("temperature"),
            )
    if s.beam_size > 1 and s.temperature:
        raise SettingError(
            "{} searches, {} draws; set {} for beam search or {} to draw.",
            Setting("beam_size", s.beam_size),
            Setting("temperature", s.temperature),
            Setting("temperature", 0),
            Setting("beam_size", 1),
        )
    only_drawn = {"top_k": s.top_k, "top_p": s.top_p, "min_p": s.min_p, "typical_p": s.typical_p}
    idle = [name for name, value in only_drawn.items() if value is not None]
    idle = [name for name in idle if not (name == "top_k" and s.contrastive_alpha is not None)]
    idle += ["samples"] if s.samples > 1 else []
    if idle and s.temperature == 0:
        template = f"{' and '.join('{}' for _ in idle)} would have no effect at temperature 0; set {{}}."
        raise SettingError(template, *map(Setting, idle), Setting("temperature", 1.0))
    usual = {field.name: field.default for field in fields(GenerationSettings)}
    idle = [name for name in OF_BEAMS if getattr(s, name) != usual[name]]
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
        raise TypeError(f"{name} must be a tuple of whole numbers, got {values!r}; settings(...) takes lists too.")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            raise SettingError("{} must hold whole numbers of at least 0, got {}.", Setting(name), repr(value))


def published(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a published ``generation_config.json``, or an older ``config.json``, advises, as options for ``settings``.

    Beside the options the answer may hold ``max_length`` and ``min_length``, which count the prompt too (with two
    stacks: the start token), so that the caller must subtract; and always ``unknown``: the stated keys that ask for
    something else than is done here. As the reference library has it: null is unset; the draw (temperature, top_k …)
    counts only with ``do_sample``, and then top_k is 50 unless stated; ``max_new_tokens`` outdoes ``max_length``; a
    forbidden word that is but the end of the text is none.
    """
    stated = {key: value for key, value in config.items() if value is not None}
    options = {ours: _frozen(stated[theirs]) for theirs, ours in PUBLISHED.items() if theirs in stated}
    for name in {"eos", "stop"} & options.keys():
        if not isinstance(options[name], tuple):  # one may stand for a list of one
            options[name] = (options[name],)
    if isinstance(options.get("forced_last"), tuple) and len(options["forced_last"]) == 1:
        options["forced_last"] = options["forced_last"][0]
    if "bad_words" in options:
        ends = {(token,) for token in options.get("eos", ())}
        options["bad_words"] = tuple(word for word in options["bad_words"] if word not in ends)
    if "max_new_tokens" in options:
        options.pop("max_length", None)
    return options | _published_draw(stated) | {"unknown": _unknown(stated)}


def _published_draw(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The options that say how tokens are chosen: a draw, or contrastive search, or neither."""
    texts = stated.get("num_return_sequences", 1)
    k = stated.get("top_k", 50) or None  # 0 is a way of writing: no limit
    if stated.get("do_sample"):
        drawn = {name: stated[name] for name in ("top_p", "min_p", "typical_p") if name in stated}
        return {"temperature": stated.get("temperature", 1.0), "top_k": k, "samples": texts, **drawn}
    if stated.get("num_beams", 1) > 1:
        return {"top_beams": texts}
    if stated.get("penalty_alpha") and k and k > 1:
        return {"contrastive_alpha": stated["penalty_alpha"], "top_k": k}
    return {}


def _unknown(stated: Mapping[str, Any]) -> list[str]:
    """Keys that ask for something else than is done here. In a model's page of facts other keys are not about texts."""
    asked = {key for key, neutral in MISSING.items() if key in stated and stated[key] != neutral}
    if "model_type" not in stated:
        known = {*PUBLISHED, *DRAWN, *MISSING, *(key for keys in PASSED_OVER.values() for key in keys)}
        asked |= stated.keys() - known
    return sorted(asked)
