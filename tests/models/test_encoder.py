"""The encoder and its classifier: shapes, padding, configs of every make, errors."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig

import glassformer as gf
from tests.helpers import PATHS, largest_difference, randomise, right_padded, types_unchecked

CONFIG = gf.EncoderConfig(
    vocab_size=23,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=10,
    num_labels=4,
)
each_path = pytest.mark.parametrize("path", PATHS)


def encoder(config=CONFIG):
    return randomise(gf.TransformerEncoder(config)).double().eval()


def classifier(config=CONFIG):
    return randomise(gf.TransformerForSequenceClassification(config)).double().eval()


def tokens(*shape):
    return torch.randint(CONFIG.vocab_size, shape)


@each_path
def test_shapes(path, device):
    ids = tokens(3, 7).to(device)
    assert encoder().to(device)(ids, path=path).shape == (3, 7, 12)
    assert classifier().to(device)(ids, path=path).shape == (3, 4)
    assert classifier().to(device)(ids[:, :1], path=path).shape == (3, 4)


@each_path
@pytest.mark.parametrize("filler", [0, 5])
def test_padding_changes_no_real_token(path, filler, device):
    lengths, ids = (10, 4, 1), tokens(3, 10).to(device)
    real = right_padded(*lengths, width=10, device=device)
    model, head = encoder().to(device), classifier().to(device)
    padded = ids.masked_fill(~real, filler)
    vectors, logits = model(padded, real, path=path), head(padded, real, path=path)
    for row, length in enumerate(lengths):
        alone = ids[row : row + 1, :length]
        assert largest_difference(vectors[row, :length], model(alone, path=path)[0]) < 1e-12
        assert largest_difference(logits[row], head(alone, path=path)[0]) < 1e-12


@each_path
def test_a_mask_of_real_tokens_alone_changes_nothing(path):
    ids = tokens(2, 6)
    mask = torch.ones(2, 6, dtype=torch.bool)
    assert largest_difference(encoder()(ids, mask, path=path), encoder()(ids, path=path)) < 1e-12


def test_order_and_every_other_token_count():
    model, ids = encoder(), torch.tensor([[1, 2, 3, 4]])
    assert largest_difference(model(ids)[0, 0], model(ids[:, [0, 2, 1, 3]])[0, 0]) > 1e-3
    assert largest_difference(model(ids)[0, 0], model(torch.tensor([[1, 2, 3, 5]]))[0, 0]) > 1e-3


def test_built_from_its_parts():
    model, ids = encoder(), tokens(2, 6)
    embeddings = model.embeddings
    x = embeddings.token_embeddings.weight[ids] + embeddings.position_embeddings.position.weight[:6]
    x = embeddings.layer_norm(x)
    assert largest_difference(embeddings(ids), x) < 1e-12
    for layer in model.layers:
        x = x + layer.attention(layer.attention_norm(x))
        x = x + layer.ffn.down(gf.gelu(layer.ffn.up(layer.ffn_norm(x))))
    assert largest_difference(model(ids), model.norm(x)) < 1e-12
    head = classifier()
    assert largest_difference(head(ids), head.classifier(head.encoder(ids)[:, 0])) < 1e-12


def test_every_parameter_gets_a_gradient():
    model = classifier()
    model(tokens(4, 10)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any() or name.endswith("k.bias"), name  # a shift of all keys changes no weight


def test_dropout_only_while_training():
    model, ids = classifier(replace(CONFIG, hidden_dropout_prob=0.5)), tokens(2, 6)
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))
    still = classifier(replace(CONFIG, hidden_dropout_prob=0.0)).train()
    assert torch.equal(still(ids), still(ids))


# ---- configs


def test_any_object_with_the_same_facts_will_do():
    facts = asdict(CONFIG)
    bert = BertConfig(**{name: value for name, value in facts.items() if name != "num_labels"}, num_labels=4)
    ids = tokens(2, 6)
    expected = classifier()(ids)
    for config in (facts, facts | {"colour": "blue"}, SimpleNamespace(**facts, colour="blue"), bert):
        assert torch.equal(classifier(config)(ids), expected)
        assert encoder(config)(ids).shape == (2, 6, 12)
        assert gf.Embeddings(config)(ids).shape == (2, 6, 12)


def test_defaults_are_filled_in():
    facts = asdict(CONFIG)
    for name in ("hidden_dropout_prob", "layer_norm_eps", "num_labels"):
        del facts[name]
    for config in (facts, SimpleNamespace(**facts)):
        assert gf.EncoderConfig.read(config) == replace(CONFIG, num_labels=2)


def test_missing_facts_are_named():
    facts = asdict(CONFIG)
    del facts["vocab_size"], facts["intermediate_size"]
    with pytest.raises(TypeError, match="SimpleNamespace lacks vocab_size, intermediate_size"):
        gf.TransformerEncoder(SimpleNamespace(**facts))
    with pytest.raises(TypeError, match="dict lacks vocab_size, intermediate_size"):
        gf.TransformerEncoder(facts)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads=5 does not divide hidden_size=12"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must be"),
    ],
)
def test_impossible_facts_are_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        replace(CONFIG, **wrong)
    with pytest.raises(ValueError, match=says):
        gf.TransformerEncoder(SimpleNamespace(**(asdict(CONFIG) | wrong)))


# ---- errors


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (torch.ones(2, 6), r"ids' shape \(2, 6\).*torch\.float32"),
        (torch.ones(2, 6, dtype=torch.int64), r"True at real tokens; got torch\.int64"),
        (torch.ones(2, 5, dtype=torch.bool), r"\(2, 6\).*of shape \(2, 5\)"),
        (torch.ones(6, dtype=torch.bool), r"\(2, 6\).*of shape \(6,\)"),
    ],
    ids=["float", "int", "too short", "no batch"],
)
def test_a_wrong_mask_is_named(mask, says):
    with types_unchecked(), pytest.raises(ValueError, match=says):
        encoder()(tokens(2, 6), mask)


def test_a_sequence_longer_than_the_position_table():
    with pytest.raises(ValueError, match=r"\b11 tokens.*\b10 positions"):
        encoder()(tokens(1, 11))
