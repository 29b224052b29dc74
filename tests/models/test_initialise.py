"""Where training starts: every weight drawn once, with the spread that the facts say; a fresh model knows nothing."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from glassformer.config import Convolution, Init, InputPosition, LMHead, ModelConfig, change
from glassformer.families import lineages
from glassformer.models.initialise import initialise
from glassformer.models.transformer import Transformer
from glassformer.weights.convert import to_theirs
from tests.configs import CONFIGS, model, stack
from tests.parity.cases import CASES

VOCAB, LENGTH = 1000, 12
CUT = 0.9866  # standard deviation of a standard normal cut at ±3
OTHERS: dict[str, dict[str, Any]] = {  # lineages that have no case, being no models of the reference
    "transformer2017": {
        "d_model": 24,
        "nhead": 3,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "dim_feedforward": 40,
    },
    "cs336": {"d_model": 24, "num_layers": 3, "num_heads": 3, "context_length": 40},
    "gpt3": {"n_embd": 24, "n_layer": 3, "n_head": 3, "n_positions": 40, "d_head": 8},
}


def tiny(name: str) -> ModelConfig:
    """A tiny model of a lineage with its language-model head, and words enough to be wrong about."""
    lineage = lineages()[name]
    named = lineage.heads["lm"].architecture
    config = OTHERS[name] if name in OTHERS else next(case.config for case in CASES if case.architecture == named)
    return lineage.facts({**config, "vocab_size": VOCAB}, "lm")


def first_loss(facts: ModelConfig) -> float:
    torch.manual_seed(1)
    ids = torch.randint(5, facts.vocab, (8, LENGTH))
    labels = torch.randint(5, facts.vocab, (8, LENGTH))
    inputs = {"ids": ids, "target": ids.flip(0)} if facts.family == "encoder-decoder" else {"ids": ids}
    with torch.no_grad():
        logits = Transformer(facts).eval()(**inputs)
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


@pytest.mark.parametrize("name", sorted(lineages()))
def test_a_fresh_model_finds_all_words_about_equally_likely(name: str) -> None:
    assert first_loss(tiny(name)) == pytest.approx(math.log(VOCAB), rel=0.15)


def test_tables_of_unit_variance_would_not_pass() -> None:
    """The loss that the tied head of an encoder starts from if its config does not say where to start."""
    assert first_loss(replace(tiny("bert"), init=Init())) > 1.3 * math.log(VOCAB)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    "init",
    [
        Init(),
        Init(std=0.02),
        Init(std=0.02, table_std=0.5, residual_scaling=True),
        Init(std=1.0, residual_scaling=True, by_inputs=True),
    ],
)
def test_every_weight_is_drawn_once(config: str, init: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[torch.Tensor] = []
    plain = nn.init.trunc_normal_

    def noting(tensor: torch.Tensor, *args: Any, **more: Any) -> torch.Tensor:
        if not tensor.is_meta:
            drawn.append(tensor)
        return plain(tensor, *args, **more)

    monkeypatch.setattr(nn.init, "trunc_normal_", noting)
    made = Transformer(replace(CONFIGS[config], init=init))
    many = [weight for weight in made.parameters() if weight.ndim > 1]
    assert sorted(map(id, drawn)) == sorted(map(id, many))


@pytest.mark.parametrize("config", CONFIGS)
def test_whatever_the_memory_held_is_gone(config: str) -> None:
    made = Transformer(CONFIGS[config])
    with torch.no_grad():
        for weight in made.parameters():
            weight.fill_(math.nan)
    initialise(made, CONFIGS[config])
    for name, weight in made.named_parameters():
        assert weight.isfinite().all(), name
        if weight.ndim == 1:
            assert (weight == (1.0 if name.endswith("weight") else 0.0)).all(), name


def test_std_is_that_of_a_convolution_too() -> None:
    config = model(encoder=stack(convolution=Convolution(kernel=3)), width=64, init=Init(std=0.3))
    weight = Transformer(config).state_dict()["encoder.convolution.weight"]
    assert float(weight.std()) == pytest.approx(0.3 * CUT, rel=0.05)


def test_tables_may_start_from_a_spread_of_their_own() -> None:
    place = InputPosition(kind="learned", length=64)
    config = change(model(encoder=stack(), width=64, vocab=64, head=LMHead(tied=False)), "embed.position", place)
    state = Transformer(replace(config, init=Init(std=0.02, table_std=0.4))).state_dict()
    for name, std in (("embed.token", 0.4), ("embed.position", 0.4), ("head.out", 0.02)):
        assert float(state[f"{name}.weight"].std()) == pytest.approx(std * CUT, rel=0.05), name


def test_a_part_that_does_not_say_how_it_starts_is_no_part() -> None:
    made = Transformer(CONFIGS["gpt2"])
    made.add_module("extra", nn.ParameterList([torch.zeros(3)]))
    with pytest.raises(AttributeError, match="reset_parameters"):
        initialise(made, CONFIGS["gpt2"])


def test_the_model_is_on_the_requested_device() -> None:
    assert {weight.device.type for weight in Transformer(CONFIGS["bert"]).parameters()} == {"cpu"}
    with torch.device("meta"):
        assert {weight.device.type for weight in Transformer(CONFIGS["bert"]).parameters()} == {"meta"}


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_t5_starts_as_published(factor: float) -> None:
    """Weight by weight beside Hugging Face, whose numbers are not cut; queries too, whose scores nobody scales."""
    sizes = {"vocab_size": 400, "d_model": 96, "d_kv": 24, "num_heads": 8, "d_ff": 300, "num_layers": 2}
    sizes |= {"feed_forward_proj": "gated-gelu", "initializer_factor": factor}
    torch.manual_seed(0)
    theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).state_dict()
    lineage = lineages()["t5"]
    facts = lineage.facts(sizes, "lm")
    ours = to_theirs(lineage, facts, "lm", Transformer(facts).state_dict())
    compared = 0
    for name, weight in ours.items():
        if weight.ndim == 2:
            assert float(weight.std()) == pytest.approx(float(theirs[name].std()) * CUT, rel=0.2), name
            compared += 1
    assert compared > 30
