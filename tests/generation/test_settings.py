"""Settings of text generation: what is accepted, what is refused and how, what published folders say."""

import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from transformers import GenerationConfig

from glassformer.generation.defaults import IGNORED, PUBLISHED, UNSUPPORTED, published
from glassformer.generation.settings import GenerationSettings, settings
from tests.helpers import types_unchecked


def test_the_usual_settings_are_greedy_and_cannot_change() -> None:
    assert GenerationSettings().mode == "greedy"
    assert GenerationSettings(temperature=0.7).mode == "sample"
    assert GenerationSettings(beam_size=4, top_beams=4, length_penalty=-0.5).mode == "beam"
    assert GenerationSettings(contrastive_alpha=0.6, top_k=4).mode == "contrastive"
    with pytest.raises(FrozenInstanceError):
        GenerationSettings().temperature = 1.0  # type: ignore[misc]


def test_lists_and_mappings_become_values_that_can_be_compared_and_kept_in_sets() -> None:
    one = settings(eos=[1, 2], bad_words=[[3, 4], [5]], logit_bias={9: 1.0, 2: -1.0}, stop=["\n"], seed=[1, 2])
    two = GenerationSettings(
        eos=(1, 2), bad_words=((3, 4), (5,)), logit_bias=((2, -1.0), (9, 1.0)), stop=("\n",), seed=(1, 2)
    )
    assert one == two
    assert len({one, two}) == 1
    assert one.logit_bias == ((2, -1.0), (9, 1.0))


def test_a_misspelt_name_is_told_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"got 'temprature'. Did you mean 'temperature'\?"):
        settings(temprature=1.0)


REFUSED: list[tuple[dict[str, Any], str]] = [
    # one value by itself
    ({"temperature": -0.1}, r"temperature must be 0 .* got -0.1"),
    ({"temperature": math.nan}, "temperature must be a finite number, got nan"),
    ({"temperature": True}, "temperature must be a finite number, got True"),
    ({"length_penalty": math.inf}, "length_penalty must be a finite number, got inf"),
    ({"length_rule": "gnmtt"}, "length_rule must be one of gnmt, power.*Did you mean 'gnmt'"),
    ({"early_stopping": "always"}, "early_stopping must be True, False or 'never', got 'always'"),
    ({"early_stopping": 1}, "early_stopping must be True, False or 'never', got 1"),
    ({"record": 1}, "record must be True or False, got 1"),
    ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
    ({"max_new_tokens": True}, "max_new_tokens must be an integer, got True"),
    ({"min_new_tokens": -1}, "min_new_tokens must be an integer of at least 0"),
    ({"no_repeat_ngram": 1.5}, "no_repeat_ngram must be an integer"),
    ({"top_alternatives": -1}, "top_alternatives must be an integer of at least 0"),
    ({"beam_size": 0}, "beam_size must be at least 1"),
    ({"repetition_penalty": 0.0}, "repetition_penalty must be a finite number above 0"),
    ({"temperature": 1.0, "top_k": 0}, "top_k must be at least 1"),
    ({"temperature": 1.0, "top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
    ({"temperature": 1.0, "top_p": 1.1}, "top_p must be above 0 and at most 1, got 1.1"),
    ({"temperature": 1.0, "top_p": math.nan}, "top_p must be above 0 and at most 1, got nan"),
    ({"temperature": 1.0, "top_p": True}, "top_p must be above 0 and at most 1, got True"),
    ({"temperature": 1.0, "typical_p": 0}, "typical_p must be above 0 and at most 1, got 0"),
    ({"temperature": 1.0, "min_p": -0.1}, "min_p must be at least 0 and at most 1"),
    ({"contrastive_alpha": 1.5, "top_k": 4}, "contrastive_alpha must be at least 0 and at most 1"),
    # ids and texts
    ({"seed": -1}, "seed must hold integers of at least 0, got -1"),
    ({"seed": ()}, "at least one number"),
    ({"eos": 2}, r"eos must be a tuple of integers, got 2"),
    ({"eos": (-1,)}, "eos must hold integers of at least 0, got -1"),
    ({"eos": (True,)}, "eos must hold integers of at least 0, got True"),
    ({"suppress": (1.0,)}, "suppress must hold integers"),
    ({"forced_first": -1}, "forced_first must hold integers"),
    ({"forced_last": "2"}, "forced_last must hold integers"),
    ({"bad_words": ((),)}, "at least one number, got an empty tuple"),
    ({"bad_words": (3,)}, "bad_words must be a tuple of integers, got 3"),
    ({"logit_bias": {1: -math.inf}}, r"logit_bias for token 1 is -inf; to forbid a token use suppress=\(1,\)"),
    ({"logit_bias": {1: math.nan}}, "logit_bias for token 1 is nan"),
    ({"logit_bias": {1: True}}, "logit_bias for token 1 must be a finite number, got True"),
    ({"logit_bias": {-1: 1.0}}, "logit_bias must hold integers of at least 0, got -1"),
    ({"logit_bias": {"a": 1.0}}, "logit_bias must hold integers of at least 0, got 'a'"),
    ({"stop": ("",)}, "stop must hold texts of at least one character, got ''"),
    ({"stop": "."}, "bad_words and stop must be tuples"),
    # together
    ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens=9 is above max_new_tokens=8"),
    ({"top_beams": 2}, "top_beams=2 of beam_size=1 cannot be returned; set beam_size=2"),
    ({"beam_size": 4, "beam_groups": 3}, "beam_groups=3 does not divide beam_size=4"),
    ({"beam_size": 4, "diversity": 0.5}, "diversity=0.5 acts between groups of beams; set beam_groups to 2"),
    ({"beam_size": 4, "beam_groups": 2, "diversity": -0.5}, "diversity must be 0 or above"),
    ({"beam_size": 2, "temperature": 1.0}, "set temperature=0 for beam search or beam_size=1 for sampling"),
    ({"contrastive_alpha": 0.5}, "contrastive_alpha chooses among the most probable tokens; set top_k to 2 or more."),
    ({"contrastive_alpha": 0.5, "top_k": 1}, "set top_k to 2 or more, got 1."),
    ({"contrastive_alpha": 0.5, "top_k": 4, "temperature": 1.0}, "selects contrastive search"),
    ({"contrastive_alpha": 0.5, "top_k": 4, "beam_size": 2}, "selects contrastive search"),
    ({"contrastive_alpha": 0.5, "top_k": 4, "top_p": 0.5}, "top_p would have no effect at temperature 0"),
    ({"top_k": 5, "samples": 2}, "top_k and samples would have no effect at temperature 0; set temperature=1.0"),
    ({"min_p": 0.1}, "min_p would have no effect"),
    ({"typical_p": 0.1}, "typical_p would have no effect"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=str)
def test_what_is_refused_and_how(options: dict[str, Any], message: str) -> None:
    with types_unchecked(), pytest.raises((ValueError, TypeError), match=message):
        GenerationSettings(**options)


def test_every_setting_is_refused_some_value() -> None:
    """So that a new setting without a check is noticed."""
    assert {field.name for field in fields(GenerationSettings)} <= {name for options, _ in REFUSED for name in options}


# --- published folders -----------------------------------------------------------------------------------------------


def test_a_folder_for_beam_search() -> None:
    options = published(
        {
            "_from_model_config": True,
            "bos_token_id": 0,
            "decoder_start_token_id": 2,
            "early_stopping": True,
            "eos_token_id": 2,
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 2,
            "length_penalty": 2.0,
            "max_length": 142,
            "min_length": 56,
            "no_repeat_ngram_size": 3,
            "num_beams": 4,
            "pad_token_id": 1,
            "top_k": None,
            "transformers_version": "4.31.0",
        }
    )
    assert options.pop("unknown") == []
    assert (options.pop("max_length"), options.pop("min_length")) == (142, 56)
    assert settings(**options) == GenerationSettings(
        early_stopping=True, eos=(2,), forced_first=0, forced_last=2, length_penalty=2.0, no_repeat_ngram=3, beam_size=4
    )


def test_a_folder_that_draws_has_a_top_k_of_50_unless_it_says_otherwise() -> None:
    assert _made({"do_sample": True}) == GenerationSettings(temperature=1.0, top_k=50)
    assert _made({"do_sample": True, "top_k": 0, "top_p": 0.9}) == GenerationSettings(temperature=1.0, top_p=0.9)
    chat = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "eos_token_id": [7, 8]}
    assert _made(chat) == GenerationSettings(temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, eos=(7, 8))
    assert _made({"do_sample": True, "num_return_sequences": 3}).samples == 3


def test_a_temperature_without_drawing_counts_for_nothing() -> None:
    assert _made({"temperature": 0.6, "top_p": 0.9, "top_k": 20, "typical_p": 0.9}) == GenerationSettings()
    assert _made({"do_sample": False, "temperature": 0.6}) == GenerationSettings()


def test_other_searches() -> None:
    assert _made({"penalty_alpha": 0.6, "top_k": 4}) == GenerationSettings(contrastive_alpha=0.6, top_k=4)
    assert _made(
        {"num_beams": 4, "num_return_sequences": 2, "num_beam_groups": 2, "diversity_penalty": 0.5}
    ) == GenerationSettings(beam_size=4, top_beams=2, beam_groups=2, diversity=0.5)


def test_small_differences_of_meaning() -> None:
    assert _made({"bad_words_ids": [[5], [2], [2, 3]], "eos_token_id": 2}).bad_words == ((5,), (2, 3))
    assert "max_length" not in published({"max_length": 20, "max_new_tokens": 5})
    assert _made({"forced_eos_token_id": [2]}).forced_last == 2


def test_what_is_not_done_here_is_reported() -> None:
    assert published({"encoder_no_repeat_ngram_size": 3, "top_h": 0.4, "sparkle": 1})["unknown"] == [
        "encoder_no_repeat_ngram_size",
        "sparkle",
        "top_h",
    ]
    assert (
        published({"encoder_no_repeat_ngram_size": 0, "remove_invalid_values": False, "sparkle": None})["unknown"] == []
    )
    older = {"model_type": "any", "d_model": 8, "num_beams": 3, "eos_token_id": 1, "encoder_repetition_penalty": 1.2}
    assert published(older) == {"beam_size": 3, "top_beams": 1, "eos": (1,), "unknown": ["encoder_repetition_penalty"]}


def test_no_key_of_the_reference_is_a_surprise() -> None:
    """Every key that the reference library writes is translated, known to be missing, or passed over with a reason."""
    everything = {key: "some value" for key in vars(GenerationConfig()) if key not in ("num_beams", "do_sample")}
    everything |= {"max_length": 20, "top_k": 50, "bad_words_ids": [], "num_return_sequences": 1}
    assert set(published(everything)["unknown"]) <= set(UNSUPPORTED)
    assert not set(PUBLISHED) & set(UNSUPPORTED)
    assert all(not set(keys) & {*PUBLISHED, *UNSUPPORTED} for keys in IGNORED.values())


def _made(config: dict[str, Any]) -> GenerationSettings:
    options = published(config)
    assert options.pop("unknown") == []
    return settings(**options)
