"""The page's scripts draw and name every kind of a fact that a config can hold, and refuse one that nobody knows.

The kinds come from the types of the config; ``kinds.js`` asks the scripts.
"""

import json
import re
import subprocess
from typing import Any, get_args, get_type_hints

import pytest
import torch

from glassformer.config import InputPosition, ModelConfig, Norm, Rotary, Stack
from glassformer.config.parts import ACTIVATION_NAMES
from glassformer.models.transformer import Transformer
from glassformer.nn.feedforward import ACTIVATIONS
from glassformer.viewer.mechanisms import score_bias_name, window_name
from tests.config.test_kinds import options
from tests.configs import encoder_decoder, score_biases, stack
from tests.page.tools import HERE, NO_NODE, ROOT, SCRIPTS, node
from tests.viewer.test_kinds import windows


def words_of(kind: type, field: str) -> tuple[Any, ...]:
    """The words of a Literal."""
    return get_args(get_type_hints(kind)[field])


BIASES = [score_bias_name(bias) for bias in score_biases()]
INPUTS = words_of(InputPosition, "kind")
PATTERNS = [window_name(window) for window in windows()]
KINDS: dict[str, list[Any]] = {
    "placement": [*words_of(Stack, "placement")],
    "norm": [*words_of(Norm, "kind")],
    "activation": [*ACTIVATION_NAMES],
    "window": [{"full": None, "window": 4}.get(name, name) for name in PATTERNS],
    "scheme": [*INPUTS, "rotary", *BIASES],
    "layout": [*words_of(InputPosition, "layout")],
    "pairing": [*words_of(Rotary, "pairing")],
    "head": [kind.__name__ for kind in options(get_type_hints(ModelConfig)["head"]) if kind is not type(None)],
}
LIMITED = [name for name in PATTERNS if name != "full"]
WORDS: dict[str, dict[str, list[str]]] = {  # of a view: the words of kinds, {} being the kind
    "flow": {
        "placement.{}": KINDS["placement"],
        "placementAbout.{}": KINDS["placement"],
        "bias.{}": BIASES,
        "position.{}": [*INPUTS],
        "positionAbout.{}": [*INPUTS],
        "{}": LIMITED,
    },
    "heads": {"bias.{}": BIASES, "{}": LIMITED},
    "masks": {"{}": LIMITED, "why.{}": LIMITED},
    "positions": {"{}": KINDS["scheme"] + KINDS["layout"], "about.{}": KINDS["scheme"] + KINDS["layout"]},
    "tour": {
        "positions.{}": KINDS["scheme"],
        "residual.{}": KINDS["placement"] + KINDS["norm"],
        "mask.{}": LIMITED,
    },
    "figures": {
        "tree.fact.placement.{}": KINDS["placement"],
        "tree.fact.norm.{}": KINDS["norm"],
        "tree.fact.activation.{}": KINDS["activation"],
        "tree.fact.activation.{}-gated": KINDS["activation"],
        "tree.fact.positions.{}": [*KINDS["scheme"], "none"],
        "tree.fact.attention.{}": [*PATTERNS, "alternating"],
        "curves.{}": KINDS["activation"],
        "curves.{}.text": KINDS["activation"],
    },
}


def ask(asked: list[tuple[str, Any]]) -> dict[str, Any]:
    """What the scripts answer."""
    program = node()
    if program is None:
        pytest.skip(NO_NODE)
    command = [program, "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON", str(HERE / "kinds.js"), json.dumps(asked)]
    result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    answered: dict[str, Any] = json.loads(result.stdout)
    return answered


@pytest.fixture(scope="module")
def answered() -> dict[str, Any]:
    return ask([(fact, kind) for fact, kinds in KINDS.items() for kind in kinds])


def test_every_kind_is_known(answered: dict[str, Any]) -> None:
    assert set(answered["facts"]) == set(KINDS)
    assert [each["error"] for each in answered["answers"] if "error" in each] == []


def test_unknown_kinds_are_refused() -> None:
    answers = ask([(fact, "unheard") for fact in KINDS])["answers"]
    for fact, answer in zip(KINDS, answers, strict=True):
        assert re.search(r'"unheard"; add it to .*viewer/static/js/', answer.get("error", "")), (fact, answer)


def test_every_kind_has_words_in_both_languages(answered: dict[str, Any]) -> None:
    missing = [
        f"{view}, {language}: {pattern.format(kind)}"
        for view, patterns in WORDS.items()
        for language in ("en", "zh")
        for pattern, kinds in patterns.items()
        for kind in kinds
        if not answered["words"][view][language].get(pattern.format(kind))
    ]
    assert missing == []


def test_the_patterns_of_words_are_those_that_the_scripts_use() -> None:
    found = {
        (path.stem.partition("_")[0], f"{prefix}.{{}}")
        for path in (ROOT / SCRIPTS / "views").glob("*.js")
        for prefix in re.findall(
            r"`([\w.]+)\.\$\{[\w.]*\b(?:placement|score_bias|activation|position\.kind|norm\.kind|scheme\.kind)\}",
            path.read_text(encoding="utf-8"),
        )
    }
    assert len(found) > 6
    assert found <= {(view, pattern) for view, patterns in WORDS.items() for pattern in patterns}


def answers_of(answered: dict[str, Any], fact: str) -> dict[Any, Any]:
    asked = [(name, kind) for name, kinds in KINDS.items() for kind in kinds]
    pairs = zip(asked, answered["answers"], strict=True)
    return {kind: answer["answer"] for (name, kind), answer in pairs if name == fact}


def test_activations_have_the_values_of_the_models(answered: dict[str, Any]) -> None:
    for name, values in answers_of(answered, "activation").items():
        expected = ACTIVATIONS[name](torch.tensor([-2, -0.5, 1], dtype=torch.float64))
        assert values == pytest.approx(expected.tolist(), abs=1e-6), name


def test_a_layer_is_drawn_with_the_norms_that_it_has(answered: dict[str, Any]) -> None:
    for placement, norms in answers_of(answered, "placement").items():
        decoder = Transformer(encoder_decoder(stack(placement=placement))).decoder
        assert decoder is not None
        block: Any = decoder.blocks[0]
        built = sum(norm is not None for norm in (block.attention_norm, block.cross_norm, block.ffn_norm))
        assert norms == [built, built], f"{placement}: inside the layer, and in the picture of the model"
