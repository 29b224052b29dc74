"""The enhanced mask decoder against its formula, written out pair by pair (He et al., 2021, section 3.2).

No other library runs it, so the whole model is computed here a second time from its weights, with loops and no masks.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from glassformer.config import (
    Attention,
    Disentangled,
    Embed,
    FeedForward,
    LMHead,
    MaskDecoder,
    ModelConfig,
    Norm,
    Stack,
)
from glassformer.models.transformer import Transformer
from tests.helpers import largest_difference, randomise, right_padded

HEADS, DIM, SPAN, LENGTH = 2, 4, 3, 12
WIDTH = HEADS * DIM


def config(steps: int = 2, layers: int = 3) -> ModelConfig:
    return ModelConfig(
        vocab=17,
        width=WIDTH,
        norm=Norm(eps=1e-3),
        embed=Embed(norm=True),
        encoder=Stack(
            layers=layers,
            attention=Attention(
                heads=HEADS, head_dim=DIM, scale=(3 * DIM) ** -0.5, score_bias=Disentangled(span=SPAN, key_bias=True)
            ),
            ffn=FeedForward(hidden=11),
            placement="post",
            final_norm=False,
        ),
        head=LMHead(transform="gelu", bias=True, mask_decoder=MaskDecoder(length=LENGTH, steps=steps)),
    )


def make(facts: ModelConfig) -> Transformer:
    model = Transformer(facts).double().eval()
    randomise(model)
    return model


class Plainly:
    """The model once more, for one sequence, from its weights."""

    def __init__(self, model: Transformer) -> None:
        self.weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        self.facts = model.config

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        return layer_norm(
            x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.facts.norm.eps
        )

    def layer(self, number: int, query: Tensor, source: Tensor) -> Tensor:
        """Asks from ``query``, looks at ``source``; what is added to, and carried on, is ``query``."""
        name = f"encoder.blocks.{number}"
        q, k, v = (
            self.linear(f"{name}.attention.{projection}", x)
            for projection, x in (("q", query), ("k", source), ("v", source))
        )
        table = self.weights["encoder.relative.weight"]
        as_query, as_key = (self.linear(f"{name}.attention.position_{projection}", table) for projection in "qk")
        seen = torch.zeros_like(query)
        for head in range(HEADS):
            part = slice(head * DIM, (head + 1) * DIM)
            scores = torch.zeros(len(query), len(source), dtype=query.dtype)
            for i in range(len(query)):
                for j in range(len(source)):
                    row = min(max(i - j + SPAN, 0), 2 * SPAN - 1)
                    content = q[i, part] @ k[j, part]
                    to_position = q[i, part] @ as_key[row, part]
                    from_position = as_query[row, part] @ k[j, part]
                    scores[i, j] = (content + to_position + from_position) / (3 * DIM) ** 0.5
            seen[:, part] = scores.softmax(-1) @ v[:, part]
        x = self.norm(f"{name}.attention_norm", query + self.linear(f"{name}.attention.o", seen))
        inner = gelu(self.linear(f"{name}.ffn.up", x))
        return self.norm(f"{name}.ffn_norm", x + self.linear(f"{name}.ffn.down", inner))

    def logits(self, ids: Tensor, steps: int) -> Tensor:
        hidden = self.norm("embed.norm", self.weights["embed.token.weight"][ids])
        last = self.facts.encoder.layers - 1
        for number in range(last):
            hidden = self.layer(number, hidden, hidden)
        query = hidden + self.weights["head.position.weight"][: len(ids)]
        for _ in range(steps):
            query = self.layer(last, query, hidden)
        x = self.norm("head.norm", gelu(self.linear("head.transform", query)))
        return x @ self.weights["embed.token.weight"].T + self.weights["head.bias"]


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("path", ["eager", "sdpa"])
def test_logits_are_those_of_the_formula(steps: int, layers: int, path: str) -> None:
    model = make(config(steps, layers))
    ids = torch.randint(0, 17, (1, 9))
    assert largest_difference(model(ids, path=path)[0], Plainly(model).logits(ids[0], steps)) < 1e-12


def test_steps_and_positions_matter() -> None:
    model = make(config(2))
    ids = torch.randint(0, 17, (1, 9))
    for other in (config(1), replace(config(), head=LMHead(transform="gelu", bias=True))):
        changed = Transformer(other).double().eval()
        changed.load_state_dict(model.state_dict(), strict=False)
        assert largest_difference(model(ids), changed(ids)) > 1e-2


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side: str) -> None:
    model = make(config())
    ids, mask = torch.randint(0, 17, (3, 10)), right_padded(4, 7, 9, width=10)
    mask = mask.flip(-1) if side == "left" else mask
    together = model(ids, mask)
    for row in range(3):
        alone = model(ids[row][mask[row]][None])
        assert largest_difference(together[row][mask[row]], alone[0]) < 1e-12


def test_a_sequence_longer_than_the_table_is_refused() -> None:
    with pytest.raises((ValueError, IndexError), match="position"):
        make(config())(torch.randint(0, 17, (1, LENGTH + 1)))


def test_gradients_reach_the_table_of_positions() -> None:
    model = make(config())
    model(torch.randint(0, 17, (1, 9))).square().sum().backward()
    assert (model.head.position.weight.grad[:9].abs().sum(-1) > 0).all()
    assert (model.head.position.weight.grad[9:] == 0).all()
