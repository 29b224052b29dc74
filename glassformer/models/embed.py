"""From token ids to vectors: the input of every Transformer, as a page of facts says.

Shapes: ``B`` batch, ``T`` tokens, ``E`` width of the table, ``D`` model width.
"""

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from glassformer import config
from glassformer.config.checks import check_choice
from glassformer.nn.dropout import dropout
from glassformer.nn.linear import Embedding, Linear, look_up
from glassformer.nn.norm import make_norm
from glassformer.nn.positions import sinusoids


class Embed(nn.Module):
    """scale · token + segment + language + position → norm → dropout → projection; what the facts lack is left out.

    ``has_tokens=False`` builds the input of a decoder that reads the encoder's table of tokens: it is handed in at
    each call, so that there is one table and nothing to keep equal.
    """

    fused = False

    def __init__(self, facts: config.Model, *, has_tokens: bool = True) -> None:
        super().__init__()
        self.facts = facts.embed
        width = facts.embed.width or facts.width
        place = facts.embed.position
        self.token = Embedding(facts.vocab, width) if has_tokens else None
        self.segment = Embedding(facts.embed.segments, width) if facts.embed.segments else None
        self.language = Embedding(facts.embed.languages, width) if facts.embed.languages else None
        if place is not None:
            check_choice("embed.position.kind", place.kind, ("learned", "sinusoidal"))
        learned = place is not None and place.kind == "learned"
        self.position = Embedding(place.length + place.offset, width) if place and learned else None
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
    ) -> Float[Tensor, "B T D"]:
        """Vectors of the tokens, each aware of its own place and of no other token."""
        rows = self.token.weight if self.token is not None else table
        assert rows is not None
        x = look_up(rows, ids, what="token", fused=self.fused)
        if self.facts.scale != 1.0:
            x = x * (x.new_full((), self.facts.scale) if self.facts.scale_in_dtype else self.facts.scale)
        x = self._add(x, "segment", self.segment, segments, ids)
        x = self._add(x, "language", self.language, languages, ids)
        if self.facts.position is not None:
            x = x + self._places(positions, self.facts.position, x)
        if self.norm is not None:
            x = self.norm(x)
        x = dropout(x, self.facts.dropout, self.training)
        return x if self.project is None else self.project(x)

    def _add(self, x: Tensor, what: str, table: Embedding | None, given: Tensor | None, ids: Tensor) -> Tensor:
        """Add the vectors of segments or languages. Unsaid, every segment is 0, and a language is left open."""
        if table is None:
            if given is not None:
                raise ValueError(f"{what}s were given, but this model has no {what} embeddings.")
            return x
        if given is None:
            return x + table.weight[0] if what == "segment" else x
        if given.shape != ids.shape:
            raise ValueError(f"{what}s need one number per token: shape {tuple(ids.shape)}, not {tuple(given.shape)}.")
        return x + look_up(table.weight, given, what=what, fused=self.fused)

    def _places(self, positions: Tensor, facts: config.InputPosition, x: Tensor) -> Tensor:
        if self.position is None:
            return sinusoids(positions + facts.offset, x.shape[-1], layout=facts.layout).to(x.dtype)
        rows = positions + facts.offset if facts.offset else positions
        return look_up(self.position.weight, rows, what="position", fused=self.fused)


def count_real(real: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The position of each slot: how many real tokens stand before it. Padding gets some position too."""
    return (torch.cumsum(real.long(), dim=-1) - 1).clamp(min=0)


def count_in_documents(documents: Integer[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Positions of tokens within their own documents: how many of the same document stand before each in its row."""
    numbers, order = documents.sort(dim=-1, stable=True)  # each document in one piece, its tokens in their order
    slots = torch.arange(documents.shape[-1], device=documents.device).expand_as(documents)
    is_first = torch.ones_like(numbers, dtype=torch.bool)
    is_first[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    counted = slots - slots.where(is_first, 0).cummax(-1).values if slots.numel() else slots
    return torch.empty_like(counted).scatter_(-1, order, counted)
