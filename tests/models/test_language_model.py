"""The language model: shapes, names, counts, invariances, errors. That it is causal is tested with the promises."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import glassformer as gf
from glassformer.families.cs336 import CS336
from glassformer.generation.api import generate
from glassformer.generation.settings import GenerationSettings
from tests.helpers import FLOATS, PATHS, largest_difference, randomise, types_unchecked

VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN = 19, 12, 16, 2, 4, 24

each_path = pytest.mark.parametrize("path", PATHS)
with_device = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def model(device="cpu", dtype=torch.float64, heads=HEADS, layers=LAYERS):
    return randomise(gf.TransformerLM(VOCABULARY, CONTEXT, WIDTH, layers, heads, HIDDEN, device=device, dtype=dtype))


def tokens(*shape, seed=0, device="cpu"):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed)).to(device)


@each_path
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (1, CONTEXT), (2, 1)], ids=str)
def test_one_row_of_logits_per_token(path, shape, device):
    assert model(device)(tokens(*shape, device=device), path=path).shape == (*shape, VOCABULARY)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_types(dtype, device):
    logits = model(device, dtype)(tokens(2, 5, device=device))
    assert logits.dtype == dtype
    assert logits.isfinite().all()


@each_path
def test_batch_axes_are_only_bookkeeping(path, device):
    lm, ids = model(device), tokens(2, 3, 5, device=device)
    logits = lm(ids, path=path)
    assert largest_difference(logits, lm(ids.view(6, 5), path=path).view_as(logits)) < 1e-12
    assert largest_difference(logits[1, 2], lm(ids[1, 2], path=path)) < 1e-12


@each_path
@with_device
@given(seed=st.integers(0, 1000), batch=st.integers(1, 5), length=st.integers(1, CONTEXT), data=st.data())
def test_permuting_the_batch_permutes_the_logits(path, device, seed, batch, length, data):
    lm, ids = model(device), tokens(batch, length, seed=seed, device=device)
    order = torch.tensor(data.draw(st.permutations(range(batch))), device=device)
    with torch.no_grad():
        assert largest_difference(lm(ids[order], path=path), lm(ids, path=path)[order]) < 1e-12


@each_path
@with_device
@given(seed=st.integers(0, 1000), length=st.integers(1, CONTEXT), cut=st.integers(1, CONTEXT))
def test_a_shorter_input_gives_a_prefix_of_the_logits(path, device, seed, length, cut):
    lm, ids = model(device), tokens(2, length, seed=seed, device=device)
    with torch.no_grad():
        prefix = lm(ids[:, :cut], path=path)
        assert largest_difference(prefix, lm(ids, path=path)[:, :cut]) < 1e-12


@each_path
def test_token_positions(path, device):
    lm, ids = model(device), tokens(2, 5, device=device)
    counted = lm(ids, path=path)
    for positions in (torch.arange(5), torch.arange(5)[None], torch.arange(5).expand(2, 5), torch.arange(3, 8)):
        assert largest_difference(lm(ids, positions.to(device), path=path), counted) < 1e-12  # distances alone count
    spread = torch.tensor([[0, 1, 2, 3, 4], [0, 2, 4, 6, 8]], device=device)
    logits = lm(ids, spread, path=path)
    assert largest_difference(logits[0], counted[0]) < 1e-12
    assert largest_difference(logits[1], counted[1]) > 1e-3


def test_errors():
    lm = model()
    with pytest.raises(ValueError, match=rf"{CONTEXT + 1} tokens.*context_length of {CONTEXT}"):
        lm(tokens(CONTEXT + 1))
    with pytest.raises(IndexError, match=f"token id {VOCABULARY} is outside the table"):
        lm(torch.tensor([VOCABULARY]))
    with pytest.raises(IndexError, match=f"position {CONTEXT} is outside the table"):
        lm(tokens(1), torch.tensor([CONTEXT]))
    with pytest.raises(ValueError, match="num_heads=3 does not divide d_model=16"):
        gf.TransformerLM(VOCABULARY, CONTEXT, WIDTH, LAYERS, 3)
    with pytest.raises(ValueError, match="must be even; got 1"):
        gf.TransformerLM(VOCABULARY, CONTEXT, WIDTH, LAYERS, 16)
    with pytest.raises(ValueError, match="num_layers must be at least 1"):
        gf.TransformerLM(VOCABULARY, CONTEXT, WIDTH, 0, HEADS)


def test_ids_and_positions_that_do_not_fit():
    lm = model()
    with types_unchecked():
        with pytest.raises(ValueError, match=r"\(\)|axis|axes"):
            lm(torch.tensor(3))
        with pytest.raises(ValueError, match=r"(?s)\(4,\).*\(2, 5"):
            lm(tokens(2, 5), torch.arange(4))
        with pytest.raises(ValueError, match=r"(?s)\(3, 5\).*\(1, 5"):
            lm(tokens(1, 5), torch.arange(5).expand(3, 5))


def test_names_in_the_state_dict():
    expected = {"token_embeddings.weight", "ln_final.weight", "lm_head.weight"}
    for i in range(LAYERS):
        expected |= {f"layers.{i}.{norm}.weight" for norm in ("ln1", "ln2")}
        expected |= {f"layers.{i}.attn.{name}_proj.weight" for name in ("q", "k", "v", "output")}
        expected |= {f"layers.{i}.ffn.{name}.weight" for name in ("w1", "w2", "w3")}
    assert set(model().state_dict()) == expected
    assert {name for name, _ in model().named_parameters()} == expected


@each_path
def test_every_parameter_gets_a_gradient(path, device):
    lm = model(device)
    lm(tokens(4, CONTEXT, device=device), path=path).square().sum().backward()
    for name, parameter in lm.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_number_of_parameters_does_not_depend_on_the_heads(heads):
    per_layer = 4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN + 2 * WIDTH
    expected = 2 * VOCABULARY * WIDTH + LAYERS * per_layer + WIDTH
    assert gf.num_parameters(model(heads=heads)) == expected
    assert gf.num_parameters(model(heads=heads), embeddings=False) == expected - VOCABULARY * WIDTH


def test_number_of_parameters_at_the_size_of_gpt2_xl():
    lm = gf.TransformerLM(50257, 1024, 1600, 48, 25, 6400, device="meta")
    assert gf.num_parameters(lm) == 2_127_057_600


# ---- the same model as any other


def test_it_is_a_transformer_made_of_the_same_parts():
    lm = model()
    same = lm.as_transformer()
    assert {id(weight) for weight in same.parameters()} == {id(weight) for weight in lm.parameters()}
    assert sum(1 for _ in same.parameters()) == sum(1 for _ in lm.parameters())
    assert largest_difference(same(tokens(2, 5)), lm(tokens(2, 5))) < 1e-12
    assert same.config == lm.config == CS336.facts(vars_of(lm), "lm")


def vars_of(lm):
    """The arguments that the model was built with, as the lineage reads them."""
    facts = lm.config
    return {
        "vocab_size": facts.vocab,
        "context_length": CONTEXT,
        "d_model": WIDTH,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "d_ff": HIDDEN,
        "rope_theta": 10_000.0,
    }


def test_it_generates_and_its_hooks_and_changes_count():
    lm, settings = model().train(), GenerationSettings(max_new_tokens=5)
    [[text]] = generate(lm, [[3, 4]], settings)
    ids = [3, 4]
    for _ in range(5):
        ids.append(int(lm(torch.tensor(ids))[-1].argmax()))
    assert text.ids == ids[2:]
    seen = []
    lm.layers[0].attn.q_proj.register_forward_hook(lambda *_: seen.append(1))
    generate(lm, [[3, 4]], settings)
    assert len(seen) == 5
    lm.lm_head.weight = torch.nn.Parameter(lm.lm_head.weight.flip(0))  # another tensor
    assert generate(lm, [[3, 4]], GenerationSettings(max_new_tokens=1))[0][0].ids == [VOCABULARY - 1 - text.ids[0]]
    assert lm.training


def test_the_modes_of_its_parts_stay_and_lost_layers_are_named():
    lm = model().train()
    lm.layers[0].attn.q_proj.eval()
    generate(lm, [[3, 4]], GenerationSettings(max_new_tokens=1))
    assert not lm.layers[0].attn.q_proj.training
    lm.layers = lm.layers[:1]
    with pytest.raises(ValueError, match="built with 2 layers and has 1 now"):
        generate(lm, [[3, 4]])


def test_it_is_saved_and_loaded_like_any_model(tmp_path):
    lm = model()
    loaded = gf.load(gf.save(lm, tmp_path, lineage="cs336"))
    assert loaded.lineage == "cs336"
    assert largest_difference(loaded.model(tokens(2, 5)), lm(tokens(2, 5))) < 1e-12
