"""What every lineage file must hold: a word about each key, sizes that build, facts that travel both ways."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
import transformers

import glassformer.families
from glassformer.config import Init, ModelConfig, TaskHead, buffers, count, from_dict, get_fact, shapes, to_dict
from glassformer.families import lineages, preset, presets
from glassformer.models.transformer import Transformer
from glassformer.weights.convert import expand
from glassformer.weights.lineage import Lineage
from glassformer.weights.reader import EVERYWHERE
from tests.helpers import some_at_once

ALL = sorted(lineages())
PUBLISHED = [name for name in ALL if lineages()[name].model_type is not None]
STARTS = {"initializer_range", "init_std", "embed_init_std", "initializer_factor"}  # keys about where training starts


def known_keys(lineage: Lineage) -> set[str]:
    known = {*lineage.keys, *lineage.ignored_keys, *EVERYWHERE}
    for form in lineage.heads.values():
        reader = lineage.reader({})
        lineage.read(reader)
        form.head(reader)
        known |= reader.used
    return known


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_key_of_the_config_class_is_accounted_for(name: str) -> None:
    lineage = lineages()[name]
    keys = transformers.AutoConfig.for_model(lineage.model_type).to_dict()
    assert set(keys) - known_keys(lineage) == set()


def test_presets_show_themselves_in_one_line_each() -> None:
    config = "{'n_embd': 1600, 'n_layer': 48, 'n_head': 25}"
    assert repr(presets()["gpt2-xl"]) == f"Preset(name='gpt2-xl', lineage=<Lineage gpt2>, config={config})"


@pytest.mark.parametrize("name", PUBLISHED)
def test_defaults_are_those_of_the_config_class(name: str) -> None:
    """A config.json leaves out what is as usual, so what is usual must be known exactly."""
    lineage = lineages()[name]
    keys = transformers.AutoConfig.for_model(lineage.model_type).to_dict()
    wrong = {
        key: (ours.default, keys[key])
        for key, ours in lineage.keys.items()
        if key in keys and keys[key] != ours.default
    }
    assert wrong == {}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_head_is_a_class_of_the_reference(name: str) -> None:
    for kind, form in lineages()[name].heads.items():
        assert hasattr(transformers, form.architecture), (kind, form.architecture)


@pytest.mark.parametrize("name", sorted(presets()))
def test_presets_travel_through_json_and_config_json(name: str) -> None:
    facts = preset(name)
    assert from_dict(ModelConfig, json.loads(json.dumps(to_dict(facts)))) == facts
    lineage = presets()[name].lineage
    if lineage.model_type is not None:
        config = json.loads(json.dumps(lineage.config(facts)))
        assert lineage.facts(config, lineage.kind_of(facts)) == facts


@pytest.mark.parametrize("name", PUBLISHED)
def test_where_training_starts_travels_through_config_json(name: str) -> None:
    lineage = lineages()[name]
    keys = STARTS & set(lineage.keys)
    assert keys
    kind = next(iter(lineage.heads))
    facts = lineage.facts(dict.fromkeys(keys, 0.25), kind)
    assert 0.25 in (facts.init.std, facts.init.table_std)
    assert facts.init != lineage.facts({}, kind).init
    config = json.loads(json.dumps(lineage.config(facts)))
    assert {key: config[key] for key in keys} == dict.fromkeys(keys, 0.25)
    assert lineage.facts(config, kind).init == facts.init


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_json_says_nothing_of_a_start_that_no_number_states(name: str) -> None:
    lineage = lineages()[name]
    facts = replace(lineage.facts({}, next(iter(lineage.heads))), init=Init())
    assert not STARTS & set(lineage.config(facts))


@pytest.mark.parametrize("name", ["xlm-clm-enfr-1024", "xlm-clm-ende-1024"])
def test_models_of_the_next_word_are_decoders(name: str) -> None:
    assert preset(name).family == "decoder"
    assert preset(name.replace("clm", "mlm")).family == "encoder"


def test_a_model_tuned_for_a_task_has_the_head_of_that_task() -> None:
    head = preset("bart-large-mnli").head
    assert isinstance(head, TaskHead)
    assert (head.task, head.labels) == ("classify", ("contradiction", "neutral", "entailment"))


def test_albert_says_how_many_layers_have_their_own_weights() -> None:
    albert = lineages()["albert"]
    for groups, unique in ((12, None), (3, 3), (1, 1)):
        facts = albert.facts({"num_hidden_groups": groups}, "lm")
        assert get_fact(facts, "encoder.unique_layers") == unique
        assert albert.config(facts)["num_hidden_groups"] == groups


@pytest.mark.parametrize("name", sorted({p.lineage.name: p.name for p in reversed(presets().values())}.values()))
def test_the_model_holds_what_the_facts_say(name: str) -> None:
    facts = preset(name)
    with torch.device("meta"):
        model = Transformer(facts)
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == shapes(facts)
    assert {key for key, _ in model.named_buffers() if key in model.state_dict()} == buffers(facts)
    assert sum(p.numel() for p in model.parameters()) == count(facts)


@pytest.mark.parametrize("name", some_at_once(PUBLISHED, {"bart", "bert", "gpt-neo", "opt", "t5"}.__contains__))
def test_what_is_trained_is_what_the_reference_trains(name: str) -> None:
    """For every head: buffers of the reference that are stored are buffers here, and parameters are parameters."""
    lineage = lineages()[name]
    for kind, form in lineage.heads.items():
        facts, cls = lineage.facts({}, kind), getattr(transformers, form.architecture)
        with torch.device("meta"):
            theirs = cls(cls.config_class())
        frozen = {key for key, _ in theirs.named_buffers() if key in theirs.state_dict()}
        rules = expand(lineage, kind, form.prefix if form.prefix is not None else lineage.prefix, shapes(facts))
        ours = {our for rule in rules if {*rule.theirs} & frozen for our in rule.ours}
        assert ours == buffers(facts), (kind, frozen)


def test_bart_has_as_many_parameters_as_the_reference() -> None:
    """Its final_logits_bias is a buffer: added to the logits, stored, and never trained."""
    config = transformers.BartConfig(**lineages()["bart"].config(preset("bart-base")))
    with torch.device("meta"):
        theirs = transformers.BartForConditionalGeneration(config)
    assert count(preset("bart-base")) == theirs.num_parameters() == 139_420_416


def test_lineage_files_are_short_and_are_all_registered() -> None:
    folder = Path(glassformer.families.__file__).parent
    files = [path for path in folder.glob("*.py") if path.stem != "__init__"]
    assert median(len(path.read_text().splitlines()) for path in files) < 120
    assert {path.stem for path in files} == set(glassformer.families._REGISTRY)
