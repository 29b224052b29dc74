"""The language model and its block against Hugging Face's Llama with random weights.

Llama pairs rotary coordinates by halves, our language model pairs neighbours. Both routes are walked: the reference's
weights with rotary positions by halves, and its query and key rows reordered for neighbours.
The reference drops to float32 inside its norms, angles and softmax, hence the bound.
"""

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import glassformer as gf
from glassformer.nn import masks
from tests.helpers import PATHS, interleave_rows, largest_difference, normal, randomise

BOUND = 1e-5
WIDTH, HEADS, HIDDEN, LAYERS, VOCABULARY, CONTEXT, THETA = 32, 4, 48, 2, 50, 24, 500.0
POSITIONS = torch.arange(CONTEXT)

each_path = pytest.mark.parametrize("path", PATHS)


def llama(kv_heads: int = HEADS) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        attn_implementation="eager",
        tie_word_embeddings=False,
    )
    return randomise(LlamaForCausalLM(config).double()).eval()


def block_weights(layer: torch.nn.Module, pairing: str) -> dict[str, Tensor]:
    attention, mlp = layer.self_attn, layer.mlp
    reorder = (lambda weight: interleave_rows(weight, HEADS)) if pairing == "interleaved" else lambda weight: weight
    return {
        "ln1.weight": layer.input_layernorm.weight,
        "attn.q_proj.weight": reorder(attention.q_proj.weight),
        "attn.k_proj.weight": reorder(attention.k_proj.weight),
        "attn.v_proj.weight": attention.v_proj.weight,
        "attn.output_proj.weight": attention.o_proj.weight,
        "ln2.weight": layer.post_attention_layernorm.weight,
        "ffn.w1.weight": mlp.gate_proj.weight,
        "ffn.w2.weight": mlp.down_proj.weight,
        "ffn.w3.weight": mlp.up_proj.weight,
    }


def additive_causal(length: int) -> Tensor:
    """The reference's layers want the mask as numbers that are added to the scores."""
    return torch.full((1, 1, length, length), -torch.inf, dtype=torch.float64).triu(1)


def rotary(pairing: str, width: int = WIDTH // HEADS) -> gf.RotaryPositionalEmbedding:
    return gf.RotaryPositionalEmbedding(THETA, width, CONTEXT, pairing=pairing)


@each_path
@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_block(path, pairing):
    reference = llama()
    layer = reference.model.layers[0]
    block = gf.TransformerBlock(WIDTH, HEADS, HIDDEN, rope=rotary(pairing), dtype=torch.float64)
    block.load_state_dict(block_weights(layer, pairing))
    x = normal(2, CONTEXT, WIDTH)
    with torch.no_grad():
        turns = reference.model.rotary_emb(x, POSITIONS[None])
        expected = layer(x, attention_mask=additive_causal(CONTEXT), position_embeddings=turns)
        assert largest_difference(block(x, path=path), expected) < BOUND


@each_path
def test_language_model(path):
    reference = llama()
    model = gf.TransformerLM(VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN, THETA, dtype=torch.float64)
    weights = {
        "token_embeddings.weight": reference.model.embed_tokens.weight,
        "ln_final.weight": reference.model.norm.weight,
        "lm_head.weight": reference.lm_head.weight,
    }
    for i, layer in enumerate(reference.model.layers):
        weights |= {f"layers.{i}.{name}": weight for name, weight in block_weights(layer, "interleaved").items()}
    model.load_state_dict(weights)
    ids = torch.randint(VOCABULARY, (3, CONTEXT))
    with torch.no_grad():
        assert largest_difference(model(ids, path=path), reference(ids).logits) < BOUND


@each_path
def test_shifted_positions(path):
    reference = llama()
    layer = reference.model.layers[0]
    block = gf.TransformerBlock(WIDTH, HEADS, HIDDEN, rope=rotary("interleaved"), dtype=torch.float64)
    block.load_state_dict(block_weights(layer, "interleaved"))
    x, positions = normal(2, 5, WIDTH), torch.tensor([[3, 4, 9, 10, 23], [0, 1, 2, 3, 4]])
    with torch.no_grad():
        turns = reference.model.rotary_emb(x, positions)
        expected = layer(x, attention_mask=additive_causal(5), position_embeddings=turns)
        assert largest_difference(block(x, positions, path=path), expected) < BOUND


@each_path
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_query_attention(path, kv_heads):
    reference = llama(kv_heads)
    theirs = reference.model.layers[0].self_attn
    ours = gf.MultiHeadAttention(WIDTH, HEADS, kv_heads=kv_heads, bias=False, rope=rotary("halves")).double()
    ours.load_state_dict({f"{name}.weight": getattr(theirs, f"{name}_proj").weight for name in "qkvo"})
    x = normal(2, CONTEXT, WIDTH)
    with torch.no_grad():
        turns = reference.model.rotary_emb(x, POSITIONS[None])
        expected, _ = theirs(x, position_embeddings=turns, attention_mask=additive_causal(CONTEXT))
        assert largest_difference(ours(x, mask=masks.causal(), path=path), expected) < BOUND


@pytest.mark.parametrize("width", [2, 8, 10])
def test_neighbours_turn_by_two_by_two_matrices(width):
    """Interleaved pairing, as in GPT-J, against the paper's block-diagonal matrix written out."""
    x = normal(CONTEXT, width)
    expected = torch.empty_like(x)
    for position in range(CONTEXT):
        blocks = []
        for pair in range(width // 2):
            angle = torch.tensor(position * THETA ** (-2 * pair / width), dtype=torch.float64)
            cos, sin = angle.cos(), angle.sin()
            blocks.append(torch.stack((torch.stack((cos, -sin)), torch.stack((sin, cos)))))
        expected[position] = torch.block_diag(*blocks) @ x[position]
    assert largest_difference(rotary("interleaved", width)(x), expected) < 1e-10
