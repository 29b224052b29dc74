"""Every kind of a fact that a config can hold is shown, and one that nobody knows is refused, with the place to add it.

The kinds come from the types of the config. ``tests/page/test_kinds.py`` does the same for the page's scripts.
"""

import copy
from collections.abc import Callable
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

from glassformer import pretrained
from glassformer.config import (
    Attention,
    BlockSparse,
    Disentangled,
    Embed,
    InputPosition,
    LMHead,
    ModelConfig,
    Norm,
    Stack,
    Tokens,
)
from glassformer.config.parts import ACTIVATION_NAMES
from glassformer.config.positions import ScoreBias
from glassformer.loaded import Loaded, LoadReport
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import make_norm
from glassformer.viewer import masks, queries_model, queries_positions, queries_sublayer, queries_teaching
from glassformer.viewer.encode import decode
from glassformer.viewer.inputs import Input
from glassformer.viewer.mechanisms import SCORE_BIASES, score_bias_name, window_name
from glassformer.viewer.queries_sublayer import Sublayer, describe_norm
from glassformer.viewer.subject import Subject
from tests.config.test_kinds import Unheard, configs_with, options
from tests.configs import LEARNED, attention, encoder_decoder, model, score_biases, stack
from tests.helpers import randomise
from tests.viewer.conftest import ask

TEXT = "Once upon a time"
PLACEMENTS = get_args(get_type_hints(Stack)["placement"])


def shown(facts: ModelConfig) -> Subject:
    """A model with random weights and the vocabulary of the shipped stories."""
    built = Transformer(facts).eval()
    randomise(built, 0)
    folder = pretrained.path("stories")
    return Subject(Loaded(built, facts, None, LoadReport(), folder, tokenizer_path=folder), "tiny")


def decoder(**more: Any) -> Subject:
    facts = model(vocab=4096, decoder=stack(causal=True, **more), embed=Embed(position=LEARNED), head=LMHead())
    return shown(copy.deepcopy(facts))


def biased(bias: ScoreBias) -> Subject:
    return shown(copy.deepcopy(model(vocab=4096, encoder=stack(attention=attention(score_bias=bias)), head=LMHead())))


def windows() -> list[int | BlockSparse | None]:
    """One of each kind."""
    found = [window for _, part in configs_with("Attention", "windows") for window in part.windows]
    kinds = options(get_type_hints(Attention)["windows"])
    return [next(window for window in found if isinstance(window, kind)) for kind in kinds]


# ---- placements and norms


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_arithmetic_of_every_placement_is_what_the_layer_computes(placement: Any) -> None:
    tower = stack(placement=placement)
    embed, tokens = Embed(position=LEARNED), Tokens(start=0)
    subject = shown(encoder_decoder(tower, vocab=4096, embed=embed, head=LMHead(), tokens=tokens))
    target = {"target": "there was a cat"}
    names = ["decoder.blocks.0.input", "decoder.blocks.0.output"]
    values = subject.values(Input(TEXT, **target), names)
    before, after = (values[name][1].numpy() for name in names)
    steps = [("decoder", "attention"), ("cross", "attention"), ("decoder", "ffn")]
    answers = [ask(subject, "sublayer", TEXT, input=target, kind=kind, part=part, token=1) for kind, part in steps]
    outputs = [decode(answer["output"]) for answer in answers]
    np.testing.assert_allclose(decode(answers[0]["input"]), before, atol=1e-5)
    np.testing.assert_allclose(decode(answers[-1]["result"]), after, atol=1e-5)
    for number, (answer, output) in enumerate(zip(answers, outputs, strict=True)):
        added = sum(outputs) if answer["others"] else output
        np.testing.assert_allclose(decode(answer["input"]) + added, decode(answer["added"]), atol=1e-5)
        assert (answer["norm"] is None) != (answer["post_norm"] is None)
        if not answer["others"] and number:
            np.testing.assert_allclose(decode(answer["input"]), decode(answers[number - 1]["result"]), atol=1e-5)


def test_an_unknown_placement_is_refused() -> None:
    subject = decoder()
    assert subject.facts.decoder is not None
    object.__setattr__(subject.facts.decoder, "placement", "unheard")
    with pytest.raises(ValueError, match=r"'unheard'.*viewer/queries_sublayer\.py"):
        queries_sublayer._stream(subject, Sublayer(Input(TEXT)), "attention")


@pytest.mark.parametrize("kind", get_args(get_type_hints(Norm)["kind"]))
def test_every_norm_is_described(kind: Any) -> None:
    facts, x = Norm(kind=kind), torch.randn(8, generator=torch.Generator().manual_seed(0))
    norm = make_norm(facts, 8)
    found = describe_norm(decoder(), norm, x, norm(x))
    assert found["kind"] == kind
    normed = (x.numpy() - (found["mean"] or 0.0)) / np.sqrt(found["variance"] + facts.eps)
    np.testing.assert_allclose(normed, decode(found["output"]), atol=1e-5)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Identity.*viewer/queries_sublayer\.py"):
        describe_norm(decoder(), torch.nn.Identity(), torch.ones(2), torch.ones(2))


# ---- positions


@pytest.mark.parametrize("bias", score_biases(), ids=lambda bias: type(bias).__name__)
def test_every_score_bias_has_one_name_everywhere(bias: ScoreBias) -> None:
    subject, name = biased(bias), score_bias_name(bias)
    assert subject.facts.encoder is not None
    assert ask(subject, "model")["stacks"]["encoder"]["score_bias"] == name
    assert [scheme["kind"] for scheme in ask(subject, "positions", length=8)["schemes"]] == [name]
    assert queries_teaching._design(subject.facts)["positions"] == name


@pytest.mark.parametrize("bias", [*score_biases(), Disentangled(span=4, terms=())], ids=str)
def test_scores_are_the_products_and_the_bias(bias: ScoreBias) -> None:
    """Without its terms, disentangled attention adds nothing."""
    answer = ask(biased(bias), "neuron", TEXT, kind="encoder", row=1)
    added = 0 if answer["bias"] is None else decode(answer["bias"])
    np.testing.assert_allclose(
        decode(answer["products"]) * answer["scale"] + added, decode(answer["scores"]), atol=1e-5
    )


def test_names_of_score_biases_differ() -> None:
    assert set(SCORE_BIASES) == set(get_args(ScoreBias))
    assert len(set(SCORE_BIASES.values())) == len(SCORE_BIASES)


def own_positions(subject: Subject) -> object:
    return list(queries_positions._own(subject, 8))


def one_word(subject: Subject) -> object:
    return queries_teaching._design(subject.facts)


def stack_facts(subject: Subject) -> object:
    return queries_model._stack(subject, "decoder")


@pytest.mark.parametrize("use", [own_positions, one_word, stack_facts])
def test_an_unknown_score_bias_is_refused(use: Callable[[Subject], object]) -> None:
    subject = decoder()
    assert subject.facts.decoder is not None
    object.__setattr__(subject.facts.decoder.attention, "score_bias", Unheard())
    with pytest.raises(TypeError, match=r"Unheard.*SCORE_BIASES in viewer/mechanisms\.py"):
        use(subject)


def test_a_score_bias_without_a_picture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORE_BIASES, Unheard, "unheard")
    subject = decoder()
    assert subject.facts.decoder is not None
    object.__setattr__(subject.facts.decoder.attention, "score_bias", Unheard())
    with pytest.raises(TypeError, match=r"Unheard.*_score_bias in viewer/queries_positions\.py"):
        own_positions(subject)


@pytest.mark.parametrize("kind", get_args(get_type_hints(InputPosition)["kind"]))
def test_positions_of_the_input_of_every_kind_are_drawn(kind: Any) -> None:
    for layout in get_args(get_type_hints(InputPosition)["layout"]):
        position = InputPosition(kind=kind, length=24, layout=layout)
        subject = shown(model(vocab=4096, decoder=stack(causal=True), embed=Embed(position=position), head=LMHead()))
        (scheme,) = ask(subject, "positions", length=8)["schemes"]
        assert scheme["kind"] == kind
        vectors = decode(ask(subject, "embedding", TEXT, token=1)["position"])
        table = scheme["table"] if "table" in scheme else scheme["tables"][layout]
        np.testing.assert_allclose(decode(table)[1], vectors, atol=1e-5)


def test_unknown_positions_of_the_input_are_refused() -> None:
    subject = decoder()
    object.__setattr__(subject.facts.embed.position, "kind", "unheard")
    with pytest.raises(ValueError, match=r"'unheard'.*viewer/queries_positions\.py"):
        own_positions(subject)


# ---- windows and activations


@pytest.mark.parametrize("window", windows(), ids=lambda window: type(window).__name__)
def test_every_window_has_a_name_and_a_reason(window: int | BlockSparse | None) -> None:
    name = window_name(window)
    tower = stack(attention=attention(windows=(window,)))
    assert queries_teaching._pattern(tower) == name
    facts = model(vocab=4096, encoder=tower, head=LMHead())
    (first, *_) = ask(shown(facts), "model")["stacks"]["encoder"]["windows"]
    assert first == {NoneType: None, int: window}.get(type(window), name)
    hidden = torch.zeros(2, 2, dtype=torch.bool)
    reasons = masks._reasons(hidden, torch.zeros(2, dtype=torch.bool), window, is_causal=False, is_self=True)
    assert {masks.REASONS[number] for number in reasons.flatten().tolist()} == {"causal" if window is None else name}


@pytest.mark.parametrize("semantics", get_args(get_type_hints(BlockSparse)["semantics"]))
def test_block_sparse_attention_of_all_semantics_has_a_mask(semantics: Any) -> None:
    window = BlockSparse(block=2, random=0, semantics=semantics)
    facts = model(vocab=4096, encoder=stack(attention=attention(windows=(window,))), head=LMHead())
    subject, text = shown(copy.deepcopy(facts)), " ".join(["once"] * 16)
    allowed = decode(ask(subject, "mask", text, kind="encoder")["allowed"])
    weights = subject.weights(Input(text), "encoder", 0)[0]
    assert 0 < allowed.mean() < 1
    np.testing.assert_array_equal(weights.numpy() > 0, allowed > 0)
    assert subject.facts.encoder is not None
    object.__setattr__(subject.facts.encoder.attention.windows[0], "semantics", "unheard")
    with pytest.raises(ValueError, match=r"'unheard'.*viewer/masks\.py"):
        ask(subject, "mask", text, kind="encoder", padding=1)


def reasons(subject: Subject) -> object:
    assert subject.facts.decoder is not None
    (window,) = subject.facts.decoder.attention.windows
    none = torch.zeros(2, dtype=torch.bool)
    return masks._reasons(torch.ones(2, 2, dtype=torch.bool), none, window, is_causal=True, is_self=True)


@pytest.mark.parametrize("use", [one_word, stack_facts, reasons])
def test_an_unknown_window_is_refused(use: Callable[[Subject], object]) -> None:
    subject = decoder()
    assert subject.facts.decoder is not None
    object.__setattr__(subject.facts.decoder.attention, "windows", (Unheard(),))
    with pytest.raises(TypeError, match=r"Unheard.*window_name in viewer/mechanisms\.py"):
        use(subject)


def test_every_activation_has_a_curve() -> None:
    assert queries_teaching.activations(queries_teaching.Range())["curves"].keys() == set(ACTIVATION_NAMES)
