"""Rotary positions (Su et al., 2021): queries and keys are rotated, so that their product depends on distance alone.

``RotaryAngles`` holds the cosines and sines of one pass and applies them; ``RotaryPositionalEmbedding`` makes them from
a cache that layers share, ``rotary_angles`` from the facts of a model, with the scalings for longer contexts.

Shapes: ``...`` leading axes, ``T`` sequence, ``H`` heads, ``d`` width of a head, ``P`` pairs of rotated dimensions,
``L`` cached positions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config import Rotary, RotaryScaling
from glassformer.config.checks import check_choice, check_positive_integer
from glassformer.config.positions import Pairing
from glassformer.nn.input_positions import align_positions, angle_dtype, check_width, frequencies
from glassformer.nn.kernels import step_kernels
from glassformer.nn.linear import look_up
from glassformer.nn.norm import upcast


@dataclass(frozen=True, eq=False)
class RotaryAngles:
    """The rotation of each pair of dimensions at each position. Dimensions beyond the first 2 · P do not rotate."""

    cos: Float[Tensor, "... P"]
    sin: Float[Tensor, "... P"]
    pairing: Pairing

    def for_heads(self, dtype: torch.dtype) -> "RotaryAngles":
        """Return the angles for vectors ``(..., T, H, d)`` of a model of this dtype: the same for every head."""
        wide = torch.promote_types(dtype, torch.float32)
        return RotaryAngles(self.cos.to(wide).unsqueeze(-2), self.sin.to(wide).unsqueeze(-2), self.pairing)

    def apply_rotary_heads(self, x: Float[Tensor, "... H T d"]) -> Float[Tensor, "... H T d"]:
        """``apply_rotary`` for vectors split into heads; in memory, tokens stay before heads.

        Attention returns the memory layout of its queries, and in this one the heads are merged without a copy.
        """
        return self.apply_rotary(x.transpose(-3, -2)).transpose(-3, -2)

    def apply_rotary(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Rotate each pair (a, b) of ``x`` to (a·cos − b·sin, a·sin + b·cos), in at least float32."""
        if x.ndim == 4 and x.shape[1] == 1 and self.cos.ndim == 4 and step_kernels.capturing(x):
            return step_kernels.rotate(x, self.cos, self.sin, halves=self.pairing == "halves")
        # Partial rotary: only the first 2 · P dimensions rotate.
        rotary_width = 2 * self.cos.shape[-1]
        if rotary_width < x.shape[-1]:
            return torch.cat((self.apply_rotary(x[..., :rotary_width]), x[..., rotary_width:]), dim=-1)
        wide = upcast(x)
        cos, sin = self.cos.to(wide.dtype), self.sin.to(wide.dtype)  # ... P
        # halves: dimension i pairs with i + P.
        if self.pairing == "halves":
            a, b = wide.chunk(2, dim=-1)  # ... P each
            return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)
        if self.pairing != "interleaved":
            raise ValueError(f"there is no pairing {self.pairing!r} of rotary dimensions.")
        # interleaved: dimension 2i pairs with 2i + 1.
        pairs = rearrange(wide, "... (p two) -> ... p two", two=2)
        if torch.compiler.is_compiling():  # the compiler fuses real arithmetic and cannot generate complex code
            a, b = pairs.unbind(-1)
            rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1)
        else:
            # The same as a product of complex numbers: one pass over memory instead of seven. A complex number must
            # start at an even storage offset.
            pairs = pairs.contiguous() if pairs.storage_offset() % 2 == 0 else pairs.clone()
            rotated = torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin))
        return rearrange(rotated, "... p two -> ... (p two)").to(x.dtype)


def rotary_angles(facts: Rotary, positions: Int[Tensor, "... T"]) -> RotaryAngles:
    """Return the rotary angles of tokens at ``positions``, computed for each pass, which costs next to nothing.

    Nothing is stored, so casting the model to half precision cannot round the angles.
    """
    freqs = frequencies(facts.dim, facts.theta, positions.device)  # P
    magnitude = 1.0
    if facts.scaling is not None:
        freqs = scale_frequencies(freqs, facts, facts.scaling)
        magnitude = facts.scaling.attention
    angles = _angles(positions, freqs)  # ... T P
    return RotaryAngles(angles.cos() * magnitude, angles.sin() * magnitude, facts.pairing)


def scale_frequencies(freqs: Float[Tensor, "P"], facts: Rotary, scaling: RotaryScaling) -> Float[Tensor, "P"]:
    """Scale the frequencies of a model for a longer context: each to a value between itself and itself / factor."""
    if scaling.kind == "linear":
        return freqs / scaling.factor
    length = scaling.original_length or facts.length
    if scaling.kind == "smooth":
        # The share that is kept grows with the number of rotations within the original context.
        kept = (length * freqs / (2 * math.pi) - scaling.low) / (scaling.high - scaling.low)
    elif scaling.kind == "yarn":
        # The share falls linearly from the pair that rotates ``high`` times in that context to the one with ``low``.
        first, last = (
            facts.dim * math.log(length / (2 * math.pi * rotations)) / (2 * math.log(facts.theta))
            for rotations in (scaling.high, scaling.low)
        )
        first, last = max(math.floor(first), 0), min(math.ceil(last), facts.dim - 1)
        pair = torch.arange(freqs.shape[-1], device=freqs.device, dtype=freqs.dtype)
        kept = 1 - (pair - first) / max(last - first, 1e-3)
    else:
        raise ValueError(f"there is no rotary scaling of kind {scaling.kind!r}.")
    kept = kept.clamp(0, 1)
    return freqs * (kept + (1 - kept) / scaling.factor)


def _angles(positions: Int[Tensor, "..."], freqs: Float[Tensor, "P"]) -> Float[Tensor, "... P"]:
    return positions.to(angle_dtype(positions.device)).unsqueeze(-1) * freqs


class RotaryPositionalEmbedding(nn.Module):
    """Rotates each pair of dimensions of a query or key by an angle that grows with its position.

    Pair i at position m rotates by m · theta^(−2i / d_k). ``pairing`` chooses the dimensions of pair i:
    ``interleaved`` (2i, 2i + 1), as the paper writes it, or ``halves`` (i, i + d_k / 2). The two differ by a fixed
    permutation of dimensions, so weights made for one do not fit the other.

    The cosines and sines of all ``max_seq_len`` positions are computed once and meant to be shared: pass the same
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
        check_positive_integer(d_k=d_k, max_seq_len=max_seq_len)
        check_choice("pairing", pairing, get_args(Pairing))
        if d_k % 2:
            raise ValueError(f"rotary positions rotate pairs of dimensions, so d_k must be even; got {d_k}.")
        if not 0 < theta < math.inf:
            raise ValueError(f"theta must be a finite number above 0, got {theta}.")
        self.theta = theta
        self.d_k = d_k
        self.max_seq_len = max_seq_len
        self.pairing: Pairing = pairing
        self._fill_cache(torch.device(device) if device is not None else torch.get_default_device())

    def _fill_cache(self, device: torch.device) -> None:
        positions = torch.arange(self.max_seq_len, device=device)
        angles = _angles(positions, frequencies(self.d_k, self.theta, device))  # L P
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RotaryPositionalEmbedding":  # noqa: ARG002
        """Follow a move to another device, but no cast: angles in half precision are useless for long contexts.

        The cache is recomputed on the new device, because a model built on the meta device has no values to move.
        """
        device = fn(torch.empty(0, device=self.cos.device)).device
        if device != self.cos.device:
            self._fill_cache(device)
        return self

    def forward(
        self, x: Float[Tensor, "... T d"], token_positions: Int[Tensor, "... T"] | None = None
    ) -> Float[Tensor, "... T d"]:
        """Rotate ``x`` by its positions, which default to 0, 1, … T − 1.

        See ``align_positions``: positions ``(batch, T)`` fit queries ``(batch, heads, T, d)``.
        """
        check_width(x, self.d_k)
        return self.angles(x.shape[:-1], token_positions, x.device).apply_rotary(x)

    def angles(
        self,
        tokens: Sequence[int],
        token_positions: Int[Tensor, "... T"] | None = None,
        device: torch.device | None = None,
    ) -> RotaryAngles:
        """Return the rotary angles of tokens of shape ``tokens`` = (..., T)."""
        # The weights may have been assigned without moving the module. Training may follow, so the cache must not be
        # made of inference tensors.
        if self.cos.is_meta and device is not None and device.type != "meta":
            with torch.inference_mode(False):
                self._fill_cache(device)
        if token_positions is not None:
            select = partial(look_up, ids=align_positions(token_positions, tokens), what="position")
            return RotaryAngles(select(self.cos), select(self.sin), self.pairing)  # ... T P
        length = tokens[-1]
        if length > self.max_seq_len:
            raise ValueError(
                f"a sequence of {length} tokens is longer than max_seq_len={self.max_seq_len}. "
                f"Shorten it, or build the rotary positions with max_seq_len={length}."
            )
        return RotaryAngles(self.cos[:length], self.sin[:length], self.pairing)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows in parentheses."""
        return f"theta={self.theta}, d_k={self.d_k}, max_seq_len={self.max_seq_len}, pairing={self.pairing!r}"
