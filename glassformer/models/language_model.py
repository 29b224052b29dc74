"""A Transformer language model: token ids in, logits of the next token out.

Embedding → pre-norm blocks → final norm → linear head. Logits are scores, not probabilities: softmax is the caller's.

Shapes: ``...`` batch axes, ``T`` tokens, ``V`` vocabulary.
"""

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from glassformer.config.checks import check_divides, check_positive
from glassformer.config.course import COURSE_HEAD, COURSE_NAMES, course_model
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import AttentionPath
from glassformer.nn.feedforward import swiglu_width
from glassformer.nn.layers import TransformerBlock
from glassformer.nn.linear import Embedding, Linear
from glassformer.nn.norm import RMSNorm
from glassformer.nn.rotary import RotaryPositionalEmbedding


class TransformerLM(nn.Module):
    """Decoder-only language model with RMSNorm, SwiGLU, rotary positions and an untied head; no biases.

    Everything that takes a ``Transformer`` takes this one, too: ``generate``, ``save``, ``account``, training.

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
        check_positive(context_length=context_length, d_model=d_model, num_layers=num_layers, num_heads=num_heads)
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
        self.vocab_size = vocab_size
        self.context_length = context_length
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
        """Logits for the token after each position; position t sees tokens 0 … t and no later one."""
        if token_ids.ndim == 0:
            raise ValueError("token_ids needs a sequence axis; a single id is a sequence of one: token_ids[None].")
        length = token_ids.shape[-1]
        if length > self.context_length:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the model's context_length of {self.context_length}. "
                f"Cut it to its last {self.context_length} tokens, or build the model with a longer context."
            )
        x = self.token_embeddings(token_ids)
        for layer in self.layers:
            x = layer(x, token_positions, path=path)
        return self.lm_head(self.ln_final(x))

    def as_transformer(self) -> Transformer:
        """The same model as a ``Transformer``, for generating, saving and accounting; made of the very same parts.

        Linear maps, norms and tables (with their weights and hooks) are shared; what stands around them is new.
        """
        with torch.device("meta"):
            model = Transformer(self.config)
        model.fused = False  # as the parts of the course are
        for ours, theirs in (COURSE_NAMES | COURSE_HEAD).items():
            for number in range(len(self.layers)) if "{i}" in ours else [0]:
                model.set_submodule(ours.format(i=number), self.get_submodule(theirs.format(i=number)))
        return model.train(self.training)
