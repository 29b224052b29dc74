"""Sinusoids (used by ``models.embed``), and ready-made modules that add sinusoidal or learned positions.

Attention alone is permutation-equivariant: shuffle the inputs and the outputs are shuffled alike. Sinusoidal (Vaswani
et al., 2017, section 3.5) and learned positions are added at the input; positions that act inside attention are in
``rotary`` (they rotate queries and keys) and ``relative`` (they change the scores). ``check_width``,
``align_positions``, ``angle_dtype`` and ``frequencies`` are shared with ``rotary``.

Shapes: ``...`` leading axes, ``T`` sequence, ``d`` vector width, ``P`` = d / 2 pairs of dimensions.
"""

from collections.abc import Sequence
from typing import get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config.checks import check_choice, check_positive_integer
from glassformer.config.positions import SinusoidLayout
from glassformer.nn.linear import Embedding, look_up
from glassformer.nn.masks import align_left, fits

_LAYOUTS = get_args(SinusoidLayout)


def align_positions(token_positions: Int[Tensor, "... T"], tokens: Sequence[int]) -> Int[Tensor, "... T"]:
    """Reshape positions to broadcast against tokens of shape ``tokens`` = (..., T).

    The leading axes of ``token_positions`` are the first of ``tokens``; missing axes are inserted just before the
    sequence. So positions ``(batch, T)`` fit tokens ``(batch, heads, T)``.
    """
    aligned = align_left(token_positions, len(tokens), trailing=1)
    if aligned.shape[-1] != tokens[-1] or not fits(aligned.shape, tokens):
        shape = tuple(token_positions.shape)
        raise ValueError(f"token_positions of shape {shape} do not broadcast to tokens of shape {tuple(tokens)}.")
    return aligned


def angle_dtype(device: torch.device) -> torch.dtype:
    """Return the widest float of the device: in float32 an angle at position 100,000 is already off by 0.004."""
    return torch.float32 if device.type == "mps" else torch.float64


def frequencies(width: int, base: float, device: torch.device) -> Float[Tensor, "P"]:
    """base^(−2i / width) for each pair of dimensions i = 0 … ⌈width / 2⌉ − 1."""
    return base ** (-torch.arange(0, width, 2, device=device, dtype=angle_dtype(device)) / width)


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
    dtype = angle_dtype(positions.device)
    if layout == "fairseq":
        pairs = width // 2
        exponents = torch.arange(pairs, device=positions.device, dtype=dtype)
        angles = positions.to(dtype).unsqueeze(-1) * base ** (-exponents / max(1, pairs - 1))  # ... P
        return torch.cat((angles.sin(), angles.cos(), angles.new_zeros(*positions.shape, width % 2)), dim=-1)
    # angle = position · frequency, for every pair of dimensions.
    angles = positions.to(dtype).unsqueeze(-1) * frequencies(width, base, positions.device)  # ... P
    sines, cosines = angles.sin(), angles.cos()[..., : width // 2]
    if layout == "halves":
        return torch.cat((sines, cosines), dim=-1)  # ... d
    table = sines.new_empty(*positions.shape, width)
    table[..., 0::2] = sines
    table[..., 1::2] = cosines
    return table


class SinusoidalPositionalEncoding(nn.Module):
    """Adds ``sinusoids`` to its input. Nothing is learned or stored, so the length is unlimited."""

    def __init__(self, d_model: int, *, layout: SinusoidLayout = "interleaved", base: float = 10_000.0) -> None:
        super().__init__()
        check_positive_integer(d_model=d_model)
        check_choice("layout", layout, _LAYOUTS)
        self.d_model = d_model
        self.layout: SinusoidLayout = layout
        self.base = base

    def forward(
        self, x: Float[Tensor, "... T d"], token_positions: Int[Tensor, "... T"] | None = None
    ) -> Float[Tensor, "... T d"]:
        """x + PE(token_positions); positions default to 0, 1, … T − 1."""
        check_width(x, self.d_model)
        if token_positions is None:
            token_positions = torch.arange(x.shape[-2], device=x.device)
        positions = align_positions(token_positions, x.shape[:-1])
        return x + sinusoids(positions, self.d_model, layout=self.layout, base=self.base).to(x.dtype)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows in parentheses."""
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
        """x + table[token_positions]; positions default to 0, 1, … T − 1."""
        check_width(x, self.position.embedding_dim)
        if token_positions is None:
            length = x.shape[-2]
            if length > self.max_length:
                raise ValueError(
                    f"a sequence of {length} tokens is too long: this model has learned {self.max_length} positions. "
                    f"Shorten the input to {self.max_length} tokens, or build the model with max_length={length}."
                )
            return x + self.position.weight[:length]
        return x + look_up(self.position.weight, align_positions(token_positions, x.shape[:-1]), what="position")


def check_width(x: Tensor, width: int) -> None:
    """Raise unless ``x`` is a sequence of vectors of this width."""
    if x.ndim < 2 or x.shape[-1] != width:
        raise ValueError(f"these positions are for sequences of vectors of width {width}; got shape {tuple(x.shape)}.")
