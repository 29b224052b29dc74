"""The embeddings of a Transformer, from token ids to vectors; and the positions of tokens, from their mask.

Shapes: ``B`` batch, ``T`` tokens, ``V`` vocabulary, ``E`` width of the table, ``D`` model width.
"""

from functools import reduce

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from glassformer import config
from glassformer.config.checks import check_choice
from glassformer.nn.input_positions import sinusoids
from glassformer.nn.linear import Embedding, Linear, look_up
from glassformer.nn.modes import dropout
from glassformer.nn.norm import make_norm
from glassformer.nn.observer import Observer, observe


class Embed(nn.Module):
    """scale · token + segment + language + position → norm → dropout → projection; each if the facts have it.

    ``has_tokens=False`` builds the embeddings of a decoder that shares the encoder's token table: the table is an
    argument of each call, so that there is one table and nothing to keep equal.
    """

    fused = False

    def __init__(self, facts: config.ModelConfig, *, has_tokens: bool = True) -> None:
        super().__init__()
        self.facts = facts.embed
        width = facts.embed.width or facts.width
        position = facts.embed.position
        self.token = Embedding(facts.vocab, width) if has_tokens else None
        self.segment = Embedding(facts.embed.segments, width) if facts.embed.segments else None
        self.language = Embedding(facts.embed.languages, width) if facts.embed.languages else None
        if position is not None:
            check_choice("embed.position.kind", position.kind, ("learned", "sinusoidal"))
        learned = position is not None and position.kind == "learned"
        self.position = Embedding(position.length + position.offset, width) if position and learned else None
        self.norm = make_norm(facts.norm, width) if facts.embed.norm else None
        self.project = Linear(width, facts.width, bias=True) if facts.embed.width is not None else None

    def forward(
        self,
        ids: Integer[Tensor, "B T"],
        positions: Int[Tensor, "... T"],
        *,
        segments: Integer[Tensor, "B T"] | None = None,
        languages: Integer[Tensor, "B T"] | None = None,
        table: Float[Tensor, "V E"] | None = None,
        observer: Observer | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Embed the tokens, each independently of the others; an ``observer`` sees the vectors that are added up."""
        # Token vectors, from the module's own table or the shared one.
        token_table = self.token.weight if self.token is not None else table
        assert token_table is not None
        token = look_up(token_table, ids, what="token", fused=self.fused)  # B T E
        if self.facts.scale != 1.0:
            token = token * (token.new_full((), self.facts.scale) if self.facts.scale_in_dtype else self.facts.scale)
        vectors = {"token": token}  # those that rows share have fewer axes
        # Segment and language vectors. The default segment is 0; by default no language is added.
        if segments is not None:
            vectors["segment"] = self._look_up("segment", self.segment, segments, ids.shape)
        elif self.segment is not None:
            vectors["segment"] = self.segment.weight[0]
        if languages is not None:
            vectors["language"] = self._look_up("language", self.language, languages, ids.shape)
        # Position vectors, computed or learned.
        facts = self.facts.position
        if facts is not None and self.position is None:
            position = sinusoids(positions + facts.offset, token.shape[-1], layout=facts.layout)
            vectors["position"] = position.to(token.dtype)
        elif facts is not None and self.position is not None:
            rows = positions + facts.offset if facts.offset else positions
            vectors["position"] = look_up(self.position.weight, rows, what="position", fused=self.fused)
        # Add them up; norm, dropout; and from the width of the table to that of the model, where they differ: B T D.
        if observer is not None:
            vectors = {name: observer(name, vector.expand_as(token)) for name, vector in vectors.items()}
        x = reduce(torch.add, vectors.values())
        x = x if self.norm is None else self.norm(x)
        x = dropout(x, self.facts.dropout, self.training)
        return observe(observer, "output", x if self.project is None else self.project(x))

    def _look_up(
        self, what: str, table: Embedding | None, numbers: Tensor, shape: torch.Size
    ) -> Float[Tensor, "B T E"]:
        """Return the vectors of segments or languages."""
        if table is None:
            raise ValueError(f"{what}s were given, but this model has no {what} embeddings.")
        if numbers.shape != shape:
            shapes = f"shape {tuple(shape)}, not {tuple(numbers.shape)}"
            raise ValueError(f"{what}s need one number per token: {shapes}.")
        return look_up(table.weight, numbers, what=what, fused=self.fused)


def positions_from_mask(token_mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Return the position of each token, the number of real tokens before it; positions of padding are arbitrary."""
    return (torch.cumsum(token_mask.long(), dim=-1) - 1).clamp(min=0)


def positions_in_documents(documents: Integer[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Return the position of each token within its document: the number of tokens of that document before it."""
    # Sort each row by document; the order within a document stays.
    sorted_documents, order = documents.sort(dim=-1, stable=True)
    slots = torch.arange(documents.shape[-1], device=documents.device).expand_as(documents)
    is_first = torch.ones_like(sorted_documents, dtype=torch.bool)
    is_first[:, 1:] = sorted_documents[:, 1:] != sorted_documents[:, :-1]
    # Distance from the first token of the document, put back into the original order.
    positions = slots - slots.where(is_first, 0).cummax(-1).values if slots.numel() else slots
    return torch.empty_like(positions).scatter_(-1, order, positions)
