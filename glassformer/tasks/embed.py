"""One vector per text: the hidden states of its tokens, pooled.

Shapes: ``B`` texts, ``D`` model width.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.config import EmbeddingHead
from glassformer.config.checks import check_choice
from glassformer.generation.prompts import check_texts
from glassformer.generation.settings import Side
from glassformer.hub import Loaded
from glassformer.models.output_heads import pool as pool_rows
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import (
    Progress,
    TaskBatch,
    batch_tokens,
    encode,
    run_in_batches,
    text_rows,
)


def embed(
    loaded: Loaded,
    texts: str | Sequence[str],
    *,
    pool: Literal["mean", "first", "last"] | None = None,
    normalise: bool | None = None,
    truncate: Side | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, "*B D"]:
    """Return the vector of a text, or those of a list of texts in their order, in float32, on the model's device.

    They are pooled from the hidden states of the encoder, or of the decoder if there is no encoder; any head but an
    embedding head is ignored.

    Args:
        loaded: a model with its tokenizer.
        texts: one text, which gives one vector, or a list.
        pool: the mean over the tokens, or the first or last token; None: as set in the model's embedding head, or the
            mean without such a head.
        normalise: scale the vectors to length 1, so that their products are cosines; None: as set in the model's
            embedding head, or True without such a head.
        truncate: the side on which to cut texts that are too long; None: raise an error.
        batch_size: texts per batch; None: by their tokens, see ``tasks.batches``.
        progress: called with the number done and the total.
    """
    if isinstance(texts, str):
        return embed(
            loaded,
            [texts],
            pool=pool,
            normalise=normalise,
            truncate=truncate,
            batch_size=batch_size,
            progress=progress,
        )[0]
    check_texts(loaded, texts)
    model = loaded.model
    head = model.config.head if isinstance(model.config.head, EmbeddingHead) else EmbeddingHead()
    pooling = head.pool if pool is None else pool
    check_choice("pool", pooling, ("mean", "first", "last"))
    rows = text_rows(loaded.tokenizer, texts, model.config.max_length, truncate)

    def run(model: Transformer, batch: TaskBatch) -> list[Tensor]:
        pooled = pool_rows(upcast(encode(model, batch)), batch.mask, pooling)  # (B, T, D) → (B, D)
        if head.normalise if normalise is None else normalise:
            pooled = pooled / pooled.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        return list(pooled.float())

    vectors = run_in_batches(model, rows, run, batch_size, progress, tokens=batch_tokens(model))
    if not vectors:
        return torch.empty(0, model.config.width, device=next(model.parameters()).device)
    return torch.stack(vectors)  # outside inference mode: a normal tensor, which may be used in training
