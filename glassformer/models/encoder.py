"""An encoder-only Transformer with a classification head, built from a page of sizes.

The config is an ``EncoderConfig`` or any object with the same attributes.

Token and learned position embeddings → pre-norm encoder layers → final norm → a linear map on the first token's vector.

Shapes: ``B`` batch, ``T`` tokens, ``D`` model width, ``C`` classes.
"""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from glassformer.config.encoder import EncoderConfig
from glassformer.nn.attention import AttentionPath
from glassformer.nn.layers import EncoderLayer
from glassformer.nn.linear import Embedding, Linear
from glassformer.nn.masks import padding
from glassformer.nn.norm import LayerNorm
from glassformer.nn.positions import LearnedPositionalEmbedding


class Embeddings(nn.Module):
    """Token vector + learned position vector, then LayerNorm and dropout."""

    def __init__(self, config: object) -> None:
        super().__init__()
        config = EncoderConfig.read(config)
        self.token_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = LearnedPositionalEmbedding(config.max_position_embeddings, config.hidden_size)
        self.layer_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Integer[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Vectors of the tokens, each aware of its own place and of no other token."""
        x = self.position_embeddings(self.token_embeddings(input_ids))
        return self.dropout(self.layer_norm(x))


class TransformerEncoder(nn.Module):
    """Embeddings and a stack of pre-norm encoder layers, closed by the final norm that pre-norm needs."""

    def __init__(self, config: object) -> None:
        super().__init__()
        config = EncoderConfig.read(config)
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(
            EncoderLayer(
                config.hidden_size,
                config.num_attention_heads,
                config.intermediate_size,
                activation="gelu",
                dropout=config.hidden_dropout_prob,
                norm_eps=config.layer_norm_eps,
            )
            for _ in range(config.num_hidden_layers)
        )
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self,
        input_ids: Integer[Tensor, "B T"],
        mask: Bool[Tensor, "B T"] | None = None,
        *,
        path: AttentionPath = "sdpa",
    ) -> Float[Tensor, "B T D"]:
        """One vector per token. ``mask`` is True at real tokens; padding changes no real token's vector."""
        attend = None if mask is None else padding(_checked(mask, input_ids))
        x = self.embeddings(input_ids)
        for layer in self.layers:
            x = layer(x, attend, path=path)
        return self.norm(x)


class TransformerForSequenceClassification(nn.Module):
    """An encoder and a linear classifier on its first token, which should be a [CLS] token put there for this."""

    def __init__(self, config: object) -> None:
        super().__init__()
        config = EncoderConfig.read(config)
        self.encoder = TransformerEncoder(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = Linear(config.hidden_size, config.num_labels, bias=True)

    def forward(
        self,
        input_ids: Integer[Tensor, "B T"],
        mask: Bool[Tensor, "B T"] | None = None,
        *,
        path: AttentionPath = "sdpa",
    ) -> Float[Tensor, "B C"]:
        """Logits of the classes. ``mask`` is True at real tokens; pad to the right, so that the first token is real."""
        first = self.encoder(input_ids, mask, path=path)[:, 0]  # B D
        return self.classifier(self.dropout(first))


def _checked(mask: Tensor, input_ids: Tensor) -> Tensor:
    if mask.shape != input_ids.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be booleans of the ids' shape {tuple(input_ids.shape)}, True at real tokens; "
            f"got {mask.dtype} of shape {tuple(mask.shape)}."
        )
    return mask
