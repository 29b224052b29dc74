"""How a Transformer knows the order of its tokens: positions that are added to the embeddings.

Attention alone is permutation-equivariant: shuffle the inputs and the outputs are shuffled alike. Sinusoidal (Vaswani
et al., 2017, section 3.5) and learned positions are added at the input; positions that act inside attention are in
``rotary`` (they turn queries and keys) and ``relative`` (they change the scores).

Shapes: ``...`` leading axes, ``T`` sequence, ``d`` vector width, ``P`` = d / 2 pairs of coordinates.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config.checks import check_choice, check_positive
from glassformer.nn.axes import align_left, fits
from glassformer.nn.linear import Embedding, look_up

SinusoidLayout = Literal["interleaved", "halves", "fairseq"]
_LAYOUTS = ("interleaved", "halves", "fairseq")


def align_positions(token_positions: Int[Tensor, "... T"], tokens: Sequence[int]) -> Int[Tensor, "... T"]:
    """Positions shaped to fit vectors that stand in the shape ``tokens`` = (..., T).

    The leading axes of ``token_positions`` are the first of ``tokens``; those that it lacks lie just before the
    sequence. So positions ``(batch, T)`` fit tokens ``(batch, heads, T)``.
    """
    aligned = align_left(token_positions, len(tokens), trailing=1)
    if aligned.shape[-1] != tokens[-1] or not fits(aligned.shape, tokens):
        shape = tuple(token_positions.shape)
        raise ValueError(f"token_positions of shape {shape} do not fit tokens in the shape {tuple(tokens)}.")
    return aligned


def exact(device: torch.device) -> torch.dtype:
    """The widest float the device has: in float32 an angle at position 100,000 is already off by 0.004."""
    return torch.float32 if device.type == "mps" else torch.float64


def frequencies(width: int, base: float, device: torch.device) -> Float[Tensor, "P"]:
    """base^(−2i / width) for each pair of coordinates i = 0 … ⌈width / 2⌉ − 1."""
    return base ** (-torch.arange(0, width, 2, device=device, dtype=exact(device)) / width)


def sinusoids(
    positions: Int[Tensor, "..."],
    width: int,
    *,
    layout: SinusoidLayout = "interleaved",
    base: float = 10_000.0,
) -> Float[Tensor, "... d"]:
    """Sines and cosines of geometrically spaced frequencies, one vector per position; any position, any width.

    ``interleaved``: sin, cos, sin, cos … as the paper writes it. ``halves``: the same columns, all sines first and
    then all cosines. An odd width leaves out the last cosine in either layout. ``fairseq``: like halves, but the
    frequencies reach 1 / base exactly, base^(−i / (P − 1)), and an odd width ends in a zero.
    """
    check_choice("layout", layout, _LAYOUTS)
    if layout == "fairseq":
        pairs = width // 2
        steps = torch.arange(pairs, device=positions.device, dtype=exact(positions.device))
        turn = positions.to(steps.dtype).unsqueeze(-1) * base ** (-steps / max(1, pairs - 1))
        return torch.cat((turn.sin(), turn.cos(), turn.new_zeros(*positions.shape, width % 2)), dim=-1)
    turn = positions.to(exact(positions.device)).unsqueeze(-1) * frequencies(width, base, positions.device)
    sines, cosines = turn.sin(), turn.cos()[..., : width // 2]
    if layout == "halves":
        return torch.cat((sines, cosines), dim=-1)
    table = sines.new_empty(*positions.shape, width)
    table[..., 0::2] = sines
    table[..., 1::2] = cosines
    return table


class SinusoidalPositionalEncoding(nn.Module):
    """Adds ``sinusoids`` to its input. Nothing is learned or stored, so no length is too long."""

    def __init__(self, d_model: int, *, layout: SinusoidLayout = "interleaved", base: float = 10_000.0) -> None:
        super().__init__()
        check_positive(d_model=d_model)
        check_choice("layout", layout, _LAYOUTS)
        self.d_model = d_model
        self.layout: SinusoidLayout = layout
        self.base = base

    def forward(
        self, x: Float[Tensor, "... T d"], token_positions: Int[Tensor, "... T"] | None = None
    ) -> Float[Tensor, "... T d"]:
        """x + PE(token_positions); without positions they are 0, 1, … T − 1."""
        check_width(x, self.d_model)
        if token_positions is None:
            token_positions = torch.arange(x.shape[-2], device=x.device)
        positions = align_positions(token_positions, x.shape[:-1])
        return x + sinusoids(positions, self.d_model, layout=self.layout, base=self.base).to(x.dtype)

    def extra_repr(self) -> str:
        """What print(model) shows in the brackets."""
        return f"{self.d_model}, layout={self.layout!r}"


class LearnedPositionalEmbedding(nn.Module):
    """Adds one learned vector per position to its input; a sequence longer than the table is an error."""

    def __init__(
        self,
        max_length: int,
        d_model: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.position = Embedding(max_length, d_model, device, dtype)

    def forward(
        self, x: Float[Tensor, "... T d"], token_positions: Int[Tensor, "... T"] | None = None
    ) -> Float[Tensor, "... T d"]:
        """x + table[token_positions]; without positions they are 0, 1, … T − 1."""
        check_width(x, self.position.embedding_dim)
        if token_positions is None:
            length = x.shape[-2]
            if length > self.max_length:
                raise ValueError(
                    f"a sequence of {length} tokens does not fit: this model has learned {self.max_length} positions. "
                    f"Shorten the input to {self.max_length} tokens, or build the model with max_length={length}."
                )
            return x + self.position.weight[:length]
        return x + look_up(self.position.weight, align_positions(token_positions, x.shape[:-1]), what="position")


def check_width(x: Tensor, width: int) -> None:
    """Raise unless ``x`` is a sequence of vectors of this width."""
    if x.ndim < 2 or x.shape[-1] != width:
        raise ValueError(f"these positions are for sequences of vectors of width {width}; got shape {tuple(x.shape)}.")
