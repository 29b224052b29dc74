"""The language model and its block against Hugging Face's Llama with random weights.

Llama pairs rotary coordinates by halves, our language model pairs neighbours. Both routes are walked: the reference's
weights with rotary positions by halves, and its query and key rows reordered for neighbours.
The reference drops to float32 inside its norms, angles and softmax, hence the bound, which holds for outputs and for
the gradients of inputs and parameters, in units of the largest reference value (or of 1).
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import glassformer as gf
from glassformer.nn import masks
from tests.helpers import PATHS, interleave_rows, largest_difference, normal, randomise, relative_difference

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


Pick = Callable[[Tensor], Tensor]


def the_weight(parameter: Tensor) -> Tensor:
    return parameter.detach()


def its_gradient(parameter: Tensor) -> Tensor:
    return parameter.grad


def block_tensors(layer: torch.nn.Module, pairing: str, pick: Pick) -> dict[str, Tensor]:
    """The reference's weights, or their gradients, under our names and in our order of rows."""
    attention, mlp = layer.self_attn, layer.mlp
    reorder = (lambda weight: interleave_rows(weight, HEADS)) if pairing == "interleaved" else lambda weight: weight
    return {
        "ln1.weight": pick(layer.input_layernorm.weight),
        "attn.q_proj.weight": reorder(pick(attention.q_proj.weight)),
        "attn.k_proj.weight": reorder(pick(attention.k_proj.weight)),
        "attn.v_proj.weight": pick(attention.v_proj.weight),
        "attn.output_proj.weight": pick(attention.o_proj.weight),
        "ln2.weight": pick(layer.post_attention_layernorm.weight),
        "ffn.w1.weight": pick(mlp.gate_proj.weight),
        "ffn.w2.weight": pick(mlp.down_proj.weight),
        "ffn.w3.weight": pick(mlp.up_proj.weight),
    }


def model_tensors(reference: LlamaForCausalLM, pick: Pick) -> dict[str, Tensor]:
    tensors = {
        "token_embeddings.weight": pick(reference.model.embed_tokens.weight),
        "ln_final.weight": pick(reference.model.norm.weight),
        "lm_head.weight": pick(reference.lm_head.weight),
    }
    for i, layer in enumerate(reference.model.layers):
        tensors |= {f"layers.{i}.{name}": t for name, t in block_tensors(layer, "interleaved", pick).items()}
    return tensors


def check(
    ours: torch.nn.Module,
    run: Callable[..., Tensor],
    run_reference: Callable[..., Tensor],
    inputs: Tensor,
    tensors: Callable[[Pick], dict[str, Tensor]],
):
    """Load the reference's weights; compare outputs, gradients of the inputs and of every parameter."""
    ours.load_state_dict(tensors(the_weight))
    with_gradient = inputs.is_floating_point()
    mine, theirs = (inputs.clone().requires_grad_(with_gradient) for _ in range(2))
    out, expected = run(mine), run_reference(theirs)
    assert relative_difference(out, expected) < BOUND
    for result in (out, expected):
        result.backward(normal(*result.shape, seed=99))
    if with_gradient:
        assert relative_difference(mine.grad, theirs.grad) < BOUND
    gradients = tensors(its_gradient)
    for name, parameter in ours.named_parameters():
        assert relative_difference(parameter.grad, gradients[name]) < BOUND, name


def additive_causal(length: int) -> Tensor:
    """The reference's layers want the mask as numbers that are added to the scores."""
    return torch.full((1, 1, length, length), -torch.inf, dtype=torch.float64).triu(1)


def rotary(pairing: str, width: int = WIDTH // HEADS) -> gf.RotaryPositionalEmbedding:
    return gf.RotaryPositionalEmbedding(THETA, width, CONTEXT, pairing=pairing)


def check_block(pairing: str, positions: Tensor | None, length: int, path: str):
    reference = llama()
    layer = reference.model.layers[0]
    block = gf.TransformerBlock(WIDTH, HEADS, HIDDEN, rope=rotary(pairing), dtype=torch.float64)
    x = normal(2, length, WIDTH)
    turns = reference.model.rotary_emb(x, torch.arange(length)[None] if positions is None else positions)
    check(
        block,
        lambda x: block(x, positions, path=path),
        lambda x: layer(x, attention_mask=additive_causal(length), position_embeddings=turns),
        x,
        lambda pick: block_tensors(layer, pairing, pick),
    )


@each_path
@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_block(path, pairing):
    check_block(pairing, None, CONTEXT, path)


@each_path
def test_shifted_positions(path):
    check_block("interleaved", torch.tensor([[3, 4, 9, 10, 23], [0, 1, 2, 3, 4]]), 5, path)


@each_path
def test_language_model(path):
    reference = llama()
    model = gf.TransformerLM(VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN, THETA, dtype=torch.float64)
    check(
        model,
        lambda ids: model(ids, path=path),
        lambda ids: reference(ids).logits,
        torch.randint(VOCABULARY, (3, CONTEXT)),
        lambda pick: model_tensors(reference, pick),
    )


@each_path
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_query_attention(path, kv_heads):
    reference = llama(kv_heads)
    theirs = reference.model.layers[0].self_attn
    ours = gf.MultiHeadAttention(WIDTH, HEADS, kv_heads=kv_heads, bias=False, rope=rotary("halves")).double()
    x = normal(2, CONTEXT, WIDTH)
    turns = reference.model.rotary_emb(x, POSITIONS[None])
    check(
        ours,
        lambda x: ours(x, mask=masks.causal(), path=path),
        lambda x: theirs(x, position_embeddings=turns, attention_mask=additive_causal(CONTEXT))[0],
        x,
        lambda pick: {f"{name}.weight": pick(getattr(theirs, f"{name}_proj").weight) for name in "qkvo"},
    )


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
