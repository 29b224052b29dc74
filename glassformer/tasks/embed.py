"""One vector per text: what the model's embedding head says, or its vectors pooled.

Shapes: ``B`` texts, ``D`` model width.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.config import EmbeddingHead
from glassformer.config.checks import check_choice
from glassformer.generation.prompts import Side, check_texts
from glassformer.hub import Loaded
from glassformer.models.output_heads import pool as pool_rows
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import Batch, Progress, ask_in_batches, encoded
from glassformer.tasks.texts import fit, frame


def embed(
    loaded: Loaded,
    texts: Sequence[str],
    *,
    pool: Literal["mean", "first", "last"] | None = None,
    normalise: bool | None = None,
    truncate: Side | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> Float[Tensor, "B D"]:
    """The vectors of texts in float32, on the model's device, in the order of the texts.

    They are pooled from the vectors of the encoder, or of the decoder where there is no encoder; every head but an
    embedding head is passed over.

    Args:
        loaded: a model with its tokenizer.
        texts: what to embed.
        pool: the mean over the tokens, or the first or last of them. Unless given, as the model's embedding head says,
            and the mean without one.
        normalise: bring the vectors to length 1, so that their products are cosines. Unless given, as the model's
            embedding head says, and yes without one.
        truncate: the side on which to cut texts that are too long; unless given, they are an error.
        batch_size: texts at a time.
        progress: called with how many are done, and of how many.
    """
    check_texts(loaded, texts)
    model = loaded.model
    head = model.config.head if isinstance(model.config.head, EmbeddingHead) else EmbeddingHead()
    how = head.pool if pool is None else pool
    check_choice("pool", how, ("mean", "first", "last"))
    framed = [frame(loaded.tokenizer, text, name=f"text {number}") for number, text in enumerate(texts)]
    rows = [fit(one, model.config.longest, truncate).row for one in framed]

    def ask(model: Transformer, batch: Batch) -> list[Tensor]:
        pooled = pool_rows(upcast(encoded(model, batch)), batch.mask, how)
        if head.normalise if normalise is None else normalise:
            pooled = pooled / pooled.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        return list(pooled.float())

    found = ask_in_batches(model, rows, ask, batch_size, progress)
    if not found:
        return torch.empty(0, model.config.width)
    return torch.stack(found)  # outside of inference mode: a plain tensor, which may take part in training
