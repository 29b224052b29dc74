"""What the folder of a published model recommends for generation, joined with what the user asks for.

Recommendations are in ``generation_config.json``, in older folders among the keys of ``config.json``; ``published``
translates them into our settings. They are of two kinds: *constraints* (end tokens, forced and forbidden tokens …)
apply to any search; the *kind of search* (sampling, beams and their settings) applies unless the user chooses another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from glassformer.config.checks import Setting, SettingError
from glassformer.generation.filters import unknown_tokens
from glassformer.generation.settings import (
    BEAM_ONLY,
    GenerationOptions,
    GenerationSettings,
    frozen,
    settings,
)
from glassformer.hub import Loaded
from glassformer.text.tokenizer_folder import read_json

DEFAULT_LENGTH = 64  # new tokens where neither user nor folder says how many
# The settings that select a kind of search, each with that kind.
SEARCH_OF = {"contrastive_alpha": "contrastive", "beam_size": "beam", "temperature": "sample"}
# Recommendations that belong to a kind of search; all others are constraints.
SEARCH_SETTINGS = (
    *SEARCH_OF, "top_k", "top_p", "min_p", "typical_p", "samples", "top_beams", "length_penalty", "early_stopping",
    "beam_groups", "diversity",
)  # fmt: skip

# Keys of a generation_config.json and the settings that mean the same.
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
SAMPLING_KEYS = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "penalty_alpha",
    "num_return_sequences",
)
# Keys that change the text and are not supported here, with the value that has no effect (null has none either).
UNSUPPORTED: dict[str, Any] = {
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
# Keys that are ignored, by reason.
IGNORED = {
    "who wrote the file": ("transformers_version", "_from_model_config", "_commit_hash"),
    "read with the model": ("pad_token_id", "bos_token_id", "decoder_start_token_id"),
    "how to compute, not what": (
        "use_cache", "cache_implementation", "cache_config", "max_cache_len", "return_legacy_cache", "low_memory",
        "compile_config", "disable_compile", "prefill_chunk_size", "continuous_batching_config",
    ),
    "what to return beside the text": (
        "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
    ),
    "speculative decoding, which keeps the distribution of the text": (
        "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
        "assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight",
        "prompt_lookup_num_tokens", "max_matching_ngram_size", "speculation_type", "use_mtp",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Advice:
    """What a folder recommends. The two lengths include the prompt, or an encoder-decoder's start token."""

    where: str = ""  # the file with the recommendations
    options: Mapping[str, Any] = field(default_factory=dict)  # keywords of ``settings``
    max_length: int | None = None
    min_length: int | None = None
    notes: tuple[str, ...] = ()


def advice(loaded: Loaded, task: Mapping[str, Any] | None = None) -> Advice:
    """Return what the folder of a model recommends.

    ``task``, what its ``config.json`` states for one task, has precedence.
    """
    path, config = _read(loaded.folder)
    options = published({**config, **(task or {})})
    unknown = options.pop("unknown")
    notes = []
    if unknown:
        notes.append(f"{path.name} asks for {', '.join(unknown)}, which is not supported here.")
    eos = loaded.config.tokens.eos
    if "eos" not in options and eos is not None:
        options["eos"] = eos if isinstance(eos, tuple) else (eos,)
    max_length, min_length = options.pop("max_length", None), options.pop("min_length", None)
    return Advice(path.name, options, max_length, min_length, tuple(notes))


def settings_for(
    loaded: Loaded,
    *,
    prefix_length: int | None = None,
    default_length: int = DEFAULT_LENGTH,
    task: Mapping[str, Any] | None = None,
    advised: Advice | None = None,
    **options: Unpack[GenerationOptions],
) -> tuple[GenerationSettings, list[str]]:
    """Return the settings to generate with, and notes on recommendations that are not followed.

    Args:
        loaded: a model with its folder.
        prefix_length: tokens that the decoder is fed first, which a recommended ``max_length`` includes: those of a
            decoder's prompt, or of an encoder-decoder's start; None: 0 and 1.
        default_length: new tokens where neither user nor folder says how many.
        task: recommendations for one task, as ``config.json`` states them.
        advised: ``advice(loaded, task)``, if it was read already.
        options: the user's settings; tokens are ids.
    """
    advised = advice(loaded, task) if advised is None else advised
    if prefix_length is None:
        prefix_length = 0 if loaded.config.encoder is None else 1
    # The recommendations that hold for the search that the user chose.
    kept, notes = _followed(advised, options)
    positions = loaded.config.max_length if loaded.config.encoder is None else None
    lengths = _lengths(advised, prefix_length, positions, default_length, options)
    if options.get("beam_size", kept.get("beam_size", 1)) == 1:  # the folder's settings for beams do not apply
        kept = {name: value for name, value in kept.items() if name not in BEAM_ONLY}
    # The user's options have precedence. If the result is contradictory, say what came from the folder.
    try:
        chosen = settings(**{**kept, **lengths, **options})
    except (TypeError, ValueError) as error:
        used = {name: value for name, value in kept.items() if name not in options and name != "eos"}
        if not used or not advised.where:
            raise
        template = f" ({{}} of the model recommends {', '.join('{}' for _ in used)}.)"
        values: list[Setting | str] = [advised.where, *(Setting(name, value) for name, value in used.items())]
        if isinstance(error, SettingError):
            raise error.suffixed(template, *values) from error
        raise type(error)(f"{error}{template.format(*values)}") from error
    # Token ids of the folder must be in the vocabulary; those of the user are checked when the search begins.
    vocab = loaded.config.vocab
    for name, ids in unknown_tokens(chosen, vocab).items():
        if name not in options:
            template = (
                f"the model's files set {name} to {', '.join(map(str, ids))}, but its vocabulary has {vocab} tokens "
            )
            raise SettingError(f"{template}(0 to {vocab - 1}); set {{}}.", Setting(name))
    return chosen, [*advised.notes, *notes]


def notes_for(
    loaded: Loaded, *, task: Mapping[str, Any] | None = None, **options: Unpack[GenerationOptions]
) -> list[str]:
    """Return the notes of ``settings_for``, which are the same for all prompts."""
    advised = advice(loaded, task)
    return [*advised.notes, *_followed(advised, options)[1]]


def _read(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "generation_config.json"
    if not path.is_file():
        path = folder / "config.json"
    return path, read_json(path)


def _followed(advised: Advice, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the recommendations to follow, and a note on those for a kind of search that the user did not choose."""
    recommended, chosen = _search_of(advised.options), _search_of(options)
    is_refused = any(name in options and SEARCH_OF[name] == recommended for name in SEARCH_OF)
    if chosen == recommended or (chosen is None and not is_refused):
        return dict(advised.options), []
    void = [name for name in SEARCH_SETTINGS if name in advised.options]
    kept = {name: value for name, value in advised.options.items() if name not in void}
    ignored = [f"{name}={advised.options[name]}" for name in void if name not in options]
    note = f"{advised.where} recommends {', '.join(ignored)}; this is ignored, because you chose another search method."
    return kept, [note] if ignored else []


def _search_of(options: Mapping[str, Any]) -> str | None:
    """Return the kind of search that options select; None: they select none."""
    default = {name: getattr(GenerationSettings(), name) for name in SEARCH_OF}
    chosen = [kind for name, kind in SEARCH_OF.items() if options.get(name, default[name]) != default[name]]
    return chosen[0] if chosen else None


def _lengths(
    advised: Advice, prefix_length: int, positions: int | None, default_length: int, options: Mapping[str, Any]
) -> dict[str, int]:
    """max_new_tokens and min_new_tokens as recommended, unless the user sets them.

    ``positions``: how many positions a decoder has. A recommended length of at least that means the same for all
    prompts: as many tokens as fit.
    """
    lengths: dict[str, int] = {}
    longest = options.get("max_new_tokens", advised.options.get("max_new_tokens"))
    if longest is None and advised.max_length is None:
        longest = default_length
    elif longest is None:
        longest = _longest(advised, prefix_length, positions)
    lengths["max_new_tokens"] = longest
    shortest = advised.options.get("min_new_tokens")
    if shortest is None and advised.min_length is not None:
        shortest = max(0, advised.min_length - prefix_length)
    if shortest is not None and isinstance(longest, int):
        lengths["min_new_tokens"] = min(
            shortest, longest
        )  # the user's maximum takes precedence over a recommended minimum
    return lengths


def _longest(advised: Advice, prefix_length: int, positions: int | None) -> int:
    assert advised.max_length is not None
    if positions is not None and advised.max_length >= positions:
        return positions
    if advised.max_length <= prefix_length:
        raise SettingError(
            f"{{}} of the model recommends texts of at most {advised.max_length} tokens (max_length), and "
            f"this one begins with {prefix_length}; set {{}}.",
            str(advised.where),
            Setting("max_new_tokens"),
        )
    return advised.max_length - prefix_length


def published(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a published ``generation_config.json``, or an older ``config.json``, recommends, as our settings.

    Beside the settings the result may hold ``max_length`` and ``min_length``, which include the prompt (in an
    encoder-decoder: the start token), so that the caller must subtract it; and always ``unknown``: keys that ask for
    what is not supported here. As in the reference library: null is unset; temperature, top_k … count only with
    ``do_sample``, and then top_k is 50 unless stated; ``max_new_tokens`` has precedence over ``max_length``; a
    forbidden word that is an end token is ignored.
    """
    # Translate names; lists become tuples, and a single value stands for a list of one.
    stated = {key: value for key, value in config.items() if value is not None}
    options = {ours: frozen(stated[theirs]) for theirs, ours in PUBLISHED.items() if theirs in stated}
    for name in {"eos", "stop"} & options.keys():
        if not isinstance(options[name], tuple):
            options[name] = (options[name],)
    if isinstance(options.get("forced_last"), tuple) and len(options["forced_last"]) == 1:
        options["forced_last"] = options["forced_last"][0]
    # Resolve what contradicts itself as the reference library does.
    if "bad_words" in options:
        ends = {(token,) for token in options.get("eos", ())}
        options["bad_words"] = tuple(word for word in options["bad_words"] if word not in ends)
    if "max_new_tokens" in options:
        options.pop("max_length", None)
    return options | _published_sampling(stated) | {"unknown": _unknown(stated)}


def _published_sampling(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that say how tokens are chosen: sampling, contrastive search, or neither."""
    texts = stated.get("num_return_sequences", 1)
    k = stated.get("top_k", 50) or None  # 0 means no limit
    if stated.get("do_sample"):
        filters = {name: stated[name] for name in ("top_p", "min_p", "typical_p") if name in stated}
        return {"temperature": stated.get("temperature", 1.0), "top_k": k, "samples": texts, **filters}
    if stated.get("num_beams", 1) > 1:
        return {"top_beams": texts}
    if stated.get("penalty_alpha") and k and k > 1:
        return {"contrastive_alpha": stated["penalty_alpha"], "top_k": k}
    return {}


def _unknown(stated: Mapping[str, Any]) -> list[str]:
    """Return keys that ask for what is not supported.

    In a ``config.json`` (with model_type) other keys are not about text.
    """
    unknown = {key for key, neutral in UNSUPPORTED.items() if key in stated and stated[key] != neutral}
    if "model_type" not in stated:
        known = {*PUBLISHED, *SAMPLING_KEYS, *UNSUPPORTED, *(key for keys in IGNORED.values() for key in keys)}
        unknown |= stated.keys() - known
    return sorted(unknown)
