"""How a Transformer knows the order of its tokens: sinusoidal, learned and rotary positions.

Attention alone is permutation-equivariant: shuffle the inputs and the outputs are shuffled alike. Sinusoidal (Vaswani
et al., 2017, section 3.5) and learned positions are added to the embeddings; rotary positions (Su et al., 2021) turn
queries and keys, so that their product depends on the distance between them alone.

Shapes: ``...`` leading axes, ``T`` sequence, ``d`` vector width, ``P`` = d / 2 pairs of coordinates.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config import check_choice, check_positive
from glassformer.nn.axes import align_left, fits
from glassformer.nn.linear import Embedding, look_up
from glassformer.nn.norm import at_least_float32

SinusoidLayout = Literal["interleaved", "halves"]
Pairing = Literal["interleaved", "halves"]


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


def angles(positions: Tensor, width: int, base: float) -> Float[Tensor, "... P"]:
    """position · base^(−2i / width) for each pair of coordinates i = 0 … ⌈width / 2⌉ − 1.

    In float64 wherever the device has it: in float32 an angle at position 100,000 is already off by 0.004.
    """
    device = positions.device
    dtype = torch.float32 if device.type == "mps" else torch.float64
    frequencies = base ** (-torch.arange(0, width, 2, device=device, dtype=dtype) / width)  # P
    return positions.to(dtype).unsqueeze(-1) * frequencies


def sinusoids(
    positions: Int[Tensor, "..."],
    width: int,
    *,
    layout: SinusoidLayout = "interleaved",
    base: float = 10_000.0,
) -> Float[Tensor, "... d"]:
    """Sines and cosines of geometrically spaced frequencies, one vector per position; any position, any width.

    ``interleaved``: sin, cos, sin, cos … as the paper writes it. ``halves``: the same columns, all sines first and
    then all cosines. An odd width leaves out the last cosine in either layout.
    """
    check_choice("layout", layout, ("interleaved", "halves"))
    turn = angles(positions, width, base)
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
        check_choice("layout", layout, ("interleaved", "halves"))
        self.d_model = d_model
        self.layout: SinusoidLayout = layout
        self.base = base

    def forward(
        self, x: Float[Tensor, "... T d"], token_positions: Int[Tensor, "... T"] | None = None
    ) -> Float[Tensor, "... T d"]:
        """x + PE(token_positions); without positions they are 0, 1, … T − 1."""
        _check_width(x, self.d_model)
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
        _check_width(x, self.position.embedding_dim)
        if token_positions is None:
            length = x.shape[-2]
            if length > self.max_length:
                raise ValueError(
                    f"a sequence of {length} tokens does not fit: this model has learned {self.max_length} positions. "
                    f"Shorten the input to {self.max_length} tokens, or build the model with max_length={length}."
                )
            return x + self.position.weight[:length]
        return x + look_up(self.position.weight, align_positions(token_positions, x.shape[:-1]), what="position")


class RotaryPositionalEmbedding(nn.Module):
    """Turns each pair of coordinates of a query or key by an angle that grows with its position.

    Pair i at position m turns by m · theta^(−2i / d_k). ``pairing`` says which coordinates form pair i:
    ``interleaved`` (2i, 2i + 1), as the paper writes it, or ``halves`` (i, i + d_k / 2). The two differ by a fixed
    permutation of coordinates, so weights made for one do not fit the other.

    The cosines and sines of all ``max_seq_len`` positions are computed once and meant to be shared: hand the same
    module to every layer. They are no part of the state dict and stay exact when the model is cast to half precision.
    """

    cos: Float[Tensor, "L P"]
    sin: Float[Tensor, "L P"]

    def __init__(
        self,
        theta: float,
        d_k: int,
        max_seq_len: int,
        device: torch.device | str | None = None,
        *,
        pairing: Pairing = "interleaved",
    ) -> None:
        super().__init__()
        check_positive(d_k=d_k, max_seq_len=max_seq_len)
        check_choice("pairing", pairing, ("interleaved", "halves"))
        if d_k % 2:
            raise ValueError(f"rotary positions turn pairs of coordinates, so d_k must be even; got {d_k}.")
        if not 0 < theta < math.inf:
            raise ValueError(f"theta must be a finite number above 0, got {theta}.")
        self.theta = theta
        self.d_k = d_k
        self.max_seq_len = max_seq_len
        self.pairing: Pairing = pairing
        self._fill_cache(torch.device(device) if device is not None else torch.get_default_device())

    def _fill_cache(self, device: torch.device) -> None:
        turn = angles(torch.arange(self.max_seq_len, device=device), self.d_k, self.theta)
        self.register_buffer("cos", turn.cos(), persistent=False)
        self.register_buffer("sin", turn.sin(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RotaryPositionalEmbedding":  # noqa: ARG002
        """Follow a move to another device, but no cast: angles rounded to half precision are useless at length.

        The cache is computed anew on the new device, because a model built on the meta device has no values to move.
        """
        device = fn(torch.empty(0, device=self.cos.device)).device
        if device != self.cos.device:
            self._fill_cache(device)
        return self

    def forward(
        self, x: Float[Tensor, "... T d"], token_positions: Int[Tensor, "... T"] | None = None
    ) -> Float[Tensor, "... T d"]:
        """Turn ``x`` by its positions; without them they are 0, 1, … T − 1.

        See ``align_positions``: positions ``(batch, T)`` fit queries ``(batch, heads, T, d)``.
        """
        _check_width(x, self.d_k)
        return self.rotate(x, *self.turns(x.shape[:-1], token_positions, x.device))

    def turns(
        self,
        tokens: Sequence[int],
        token_positions: Int[Tensor, "... T"] | None = None,
        device: torch.device | None = None,
    ) -> tuple[Float[Tensor, "... T P"], Float[Tensor, "... T P"]]:
        """Cosine and sine for each position and pair, for vectors that stand in the shape ``tokens`` = (..., T)."""
        if self.cos.is_meta and device is not None and device.type != "meta":
            self._fill_cache(device)  # the weights were put in place without moving the module
        if token_positions is not None:
            rows_of = partial(look_up, ids=align_positions(token_positions, tokens), what="position")
            return rows_of(self.cos), rows_of(self.sin)
        length = tokens[-1]
        if length > self.max_seq_len:
            raise ValueError(
                f"a sequence of {length} tokens is longer than max_seq_len={self.max_seq_len}. "
                f"Shorten it, or build the rotary positions with max_seq_len={length}."
            )
        return self.cos[:length], self.sin[:length]

    def rotate(
        self, x: Float[Tensor, "... d"], cos: Float[Tensor, "... P"], sin: Float[Tensor, "... P"]
    ) -> Float[Tensor, "... d"]:
        """Turn each pair (a, b) of ``x`` to (a·cos − b·sin, a·sin + b·cos), in at least float32."""
        _check_width(x, self.d_k)
        wide = at_least_float32(x)
        cos, sin = cos.to(wide.dtype), sin.to(wide.dtype)
        if self.pairing == "halves":
            a, b = wide.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)
        pairs = rearrange(wide, "... (p two) -> ... p two", two=2)
        if torch.compiler.is_compiling():  # the compiler fuses real arithmetic and cannot generate complex code
            a, b = pairs.unbind(-1)
            turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1)
        else:  # the same as a product of complex numbers: one pass over memory instead of seven
            # A complex number must start at an even place of memory.
            pairs = pairs.contiguous() if pairs.storage_offset() % 2 == 0 else pairs.clone()
            turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin))
        return rearrange(turned, "... p two -> ... (p two)").to(x.dtype)

    def extra_repr(self) -> str:
        """What print(model) shows in the brackets."""
        return f"theta={self.theta}, d_k={self.d_k}, max_seq_len={self.max_seq_len}, pairing={self.pairing!r}"


def _check_width(x: Tensor, width: int) -> None:
    if x.ndim < 2 or x.shape[-1] != width:
        raise ValueError(f"these positions are for sequences of vectors of width {width}; got shape {tuple(x.shape)}.")
