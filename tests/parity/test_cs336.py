"""The course's language model as a lineage: its state dict in ``Transformer``, against itself and against Llama."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import glassformer as gf
from glassformer.config import ModelConfig, count
from glassformer.families import preset
from glassformer.families.cs336 import CS336
from glassformer.models.transformer import Transformer
from glassformer.weights.convert import to_theirs
from tests.helpers import PATHS, interleave_rows, largest_difference, randomise
from tests.parity.harness import from_weights

VOCAB, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN, THETA = 50, 24, 24, 3, 3, 40, 500.0
SAID = {
    "vocab_size": VOCAB,
    "context_length": CONTEXT,
    "d_model": WIDTH,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "d_ff": HIDDEN,
    "rope_theta": THETA,
}
IDS = torch.randint(VOCAB, (3, CONTEXT), generator=torch.Generator().manual_seed(0))
each_path = pytest.mark.parametrize("path", PATHS)


def facts() -> ModelConfig:
    return CS336.facts(SAID, "lm")


def loaded(weights: dict[str, Tensor]) -> Transformer:
    """Our model from weights under the course's names."""
    return from_weights(CS336, facts(), "lm", weights)


def course_model() -> gf.TransformerLM:
    model = gf.TransformerLM(VOCAB, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN, THETA)
    return randomise(model.double()).eval()


@each_path
@torch.no_grad()
def test_the_state_dict_of_the_course_model(path: str) -> None:
    course = course_model()
    ours = loaded(course.state_dict())
    assert largest_difference(ours(IDS, path=path), course(IDS, path=path)) < 1e-12


def test_there_and_back_bit_for_bit() -> None:
    state = course_model().state_dict()
    back = to_theirs(CS336, facts(), "lm", loaded(state).state_dict())
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


@torch.no_grad()
def test_llama_with_query_and_key_rows_reordered() -> None:
    """Llama pairs halves where the course pairs neighbours; its float32 steps set the bound."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )
    reference = randomise(LlamaForCausalLM(config).double()).eval()
    weights = {
        "token_embeddings.weight": reference.model.embed_tokens.weight,
        "ln_final.weight": reference.model.norm.weight,
        "lm_head.weight": reference.lm_head.weight,
    }
    for number, layer in enumerate(reference.model.layers):
        weights |= {
            f"layers.{number}.ln1.weight": layer.input_layernorm.weight,
            f"layers.{number}.attn.q_proj.weight": interleave_rows(layer.self_attn.q_proj.weight, HEADS),
            f"layers.{number}.attn.k_proj.weight": interleave_rows(layer.self_attn.k_proj.weight, HEADS),
            f"layers.{number}.attn.v_proj.weight": layer.self_attn.v_proj.weight,
            f"layers.{number}.attn.output_proj.weight": layer.self_attn.o_proj.weight,
            f"layers.{number}.ln2.weight": layer.post_attention_layernorm.weight,
            f"layers.{number}.ffn.w1.weight": layer.mlp.gate_proj.weight,
            f"layers.{number}.ffn.w2.weight": layer.mlp.down_proj.weight,
            f"layers.{number}.ffn.w3.weight": layer.mlp.up_proj.weight,
        }
    ours = loaded({name: tensor.detach() for name, tensor in weights.items()})
    assert largest_difference(ours(IDS), reference(IDS).logits) < 1e-5


@pytest.mark.parametrize(
    ("size", "layers", "width", "heads"),
    [("small", 12, 768, 12), ("medium", 24, 1024, 16), ("large", 36, 1280, 20), ("xl", 48, 1600, 25)],
)
def test_sizes_count_as_the_course_model_does(size: str, layers: int, width: int, heads: int) -> None:
    with torch.device("meta"):
        course = gf.TransformerLM(50257, 1024, width, layers, heads, 4 * width)
    assert count(preset(f"cs336-{size}")) == sum(parameter.numel() for parameter in course.parameters())


def test_the_largest_size() -> None:
    assert count(preset("cs336-xl")) == 2_127_057_600
