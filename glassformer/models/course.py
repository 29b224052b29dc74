"""Models under the names and signatures that courses use: a language model, and an encoder with a classifier.

``TransformerLM``: token ids in, logits of the next token out. Embedding → pre-norm blocks → final norm → linear head.
Logits are scores before softmax.

``TransformerForSequenceClassification``: token and learned position embeddings → pre-norm encoder layers → final norm →
a linear layer on the first token's vector. Its config is an ``EncoderConfig`` or any object with the same attributes.

Shapes: ``B`` batch, ``...`` batch axes, ``T`` tokens, ``D`` model width, ``V`` vocabulary, ``C`` classes.
"""

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from glassformer.config.checks import check_divides, check_positive_integer
from glassformer.config.course import COURSE_HEAD, COURSE_NAMES, EncoderConfig, course_model
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import AttentionPath
from glassformer.nn.feedforward import swiglu_width
from glassformer.nn.input_positions import LearnedPositionalEmbedding
from glassformer.nn.layers import EncoderLayer, TransformerBlock
from glassformer.nn.linear import Embedding, Linear
from glassformer.nn.masks import padding
from glassformer.nn.norm import LayerNorm, RMSNorm
from glassformer.nn.observer import ModelKey, is_observed
from glassformer.nn.rotary import RotaryPositionalEmbedding


class TransformerLM(nn.Module):
    """Decoder-only language model with RMSNorm, SwiGLU, rotary positions and an untied head; no biases.

    ``generate``, ``save``, ``account`` and ``record`` accept it like a ``Transformer``.

    Args:
        vocab_size: number of token ids.
        context_length: longest sequence; also the length of the rotary cache that all layers share.
        d_model: width of every token's vector.
        num_layers: number of blocks.
        num_heads: attention heads per block; divides ``d_model`` into heads of even width.
        d_ff: hidden width of the feed-forward networks; None for 8/3 · d_model rounded up to a multiple of 64.
        rope_theta: base of the rotary angles.
    """

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        d_ff: int | None = None,
        rope_theta: float = 10_000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_integer(
            context_length=context_length, d_model=d_model, num_layers=num_layers, num_heads=num_heads
        )
        check_divides("num_heads", num_heads, "d_model", d_model)
        self.config = course_model(
            vocab_size=vocab_size,
            context_length=context_length,
            d_model=d_model,
            num_layers=num_layers,
            num_heads=num_heads,
            d_ff=swiglu_width(d_model) if d_ff is None else d_ff,
            rope_theta=rope_theta,
        )
        self.model_key = ModelKey()
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.num_layers = num_layers
        rope = RotaryPositionalEmbedding(rope_theta, d_model // num_heads, context_length, device)
        self.token_embeddings = Embedding(vocab_size, d_model, device, dtype)
        self.layers = nn.ModuleList(
            TransformerBlock(d_model, num_heads, d_ff, device=device, dtype=dtype, rope=rope) for _ in range(num_layers)
        )
        self.ln_final = RMSNorm(d_model, device=device, dtype=dtype)
        self.lm_head = Linear(d_model, vocab_size, device, dtype)

    def forward(
        self,
        token_ids: Integer[Tensor, "... T"],
        token_positions: Int[Tensor, "... T"] | None = None,
        *,
        path: AttentionPath = "sdpa",
    ) -> Float[Tensor, "... T V"]:
        """Return logits for the token after each position; position t attends to tokens 0 … t and no later one."""
        if token_ids.ndim == 0:
            raise ValueError("token_ids needs a sequence axis; for a single id pass token_ids[None].")
        length = token_ids.shape[-1]
        if length > self.context_length:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the model's context_length of {self.context_length}. "
                f"Truncate it to its last {self.context_length} tokens, or build the model with a longer context."
            )
        if is_observed(self):
            return self._observed(token_ids, token_positions, path)
        x = self.token_embeddings(token_ids)
        for layer in self.layers:
            x = layer(x, token_positions, path=path)
        return self.lm_head(self.ln_final(x))

    def _observed(
        self, token_ids: Integer[Tensor, "... T"], token_positions: Int[Tensor, "... T"] | None, path: AttentionPath
    ) -> Float[Tensor, "... T V"]:
        """``forward`` by a Transformer, which names its values."""
        ids = token_ids.reshape(-1, token_ids.shape[-1])
        if token_positions is not None:
            token_positions = token_positions.expand(token_ids.shape).reshape(ids.shape)
        logits: Tensor = self.as_transformer()(ids, positions=token_positions, path=path)
        return logits.reshape(*token_ids.shape, -1)

    def as_transformer(self) -> Transformer:
        """Return the model as a ``Transformer``, for generating and saving, with the same weights.

        Linear layers, norms and embeddings (with their weights, hooks and modes) are shared; the modules around them
        are new.
        """
        if len(self.layers) != self.num_layers:
            raise ValueError(f"this model was built with {self.num_layers} layers and has {len(self.layers)} now.")
        with torch.device("meta"):
            model = Transformer(self.config)
        model.train(self.training).fused = False  # by formula, as this model computes
        model.model_key = self.model_key
        for part, course_part in (COURSE_NAMES | COURSE_HEAD).items():
            for number in range(len(self.layers)) if "{i}" in part else [0]:
                model.set_submodule(part.format(i=number), self.get_submodule(course_part.format(i=number)))
        return model


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
        """Embed the tokens, each independently of the others."""
        x = self.position_embeddings(self.token_embeddings(input_ids))
        return self.dropout(self.layer_norm(x))


class TransformerEncoder(nn.Module):
    """Embeddings, pre-norm encoder layers, and the final norm that pre-norm needs."""

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
        """Return one vector per token. ``mask`` is True at real tokens; padding changes no real token's vector."""
        if mask is not None and (mask.shape != input_ids.shape or mask.dtype != torch.bool):
            raise ValueError(
                f"mask must be booleans of the ids' shape {tuple(input_ids.shape)}, True at real tokens; "
                f"got {mask.dtype} of shape {tuple(mask.shape)}."
            )
        attention_mask = None if mask is None else padding(mask)
        x = self.embeddings(input_ids)  # B T D
        for layer in self.layers:
            x = layer(x, attention_mask, path=path)
        return self.norm(x)


class TransformerForSequenceClassification(nn.Module):
    """An encoder and a linear classifier on its first token, usually [CLS]."""

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
        """Return the logits of the classes. ``mask`` is True at real tokens; pad on the right: the first is read."""
        first = self.encoder(input_ids, mask, path=path)[:, 0]  # B D
        return self.classifier(self.dropout(first))
