"""Rotary positions (Su et al., 2021): queries and keys are turned, so that their product depends on distance alone.

``RotaryAngles`` holds the cosines and sines of one pass and applies them; ``RotaryPositionalEmbedding`` makes them from
a cache that layers share, ``rotary_angles`` from the facts of a model, with the scalings for longer contexts.

Shapes: ``...`` leading axes, ``T`` sequence, ``H`` heads, ``d`` width of a head, ``P`` pairs of coordinates that turn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config import Rotary, RotaryScaling
from glassformer.config.checks import check_choice, check_positive
from glassformer.nn.linear import look_up
from glassformer.nn.norm import upcast
from glassformer.nn.positions import align_positions, check_width, exact, frequencies

Pairing = Literal["interleaved", "halves"]


@dataclass(frozen=True, eq=False)
class RotaryAngles:
    """By how much each pair of coordinates turns at each place. Coordinates beyond the first 2 · P do not turn."""

    cos: Float[Tensor, "... P"]
    sin: Float[Tensor, "... P"]
    pairing: Pairing

    def for_heads(self, dtype: torch.dtype) -> "RotaryAngles":
        """The same for vectors ``(..., T, H, d)`` of a model of this type: every head turns alike."""
        wide = torch.promote_types(dtype, torch.float32)
        return RotaryAngles(self.cos.to(wide).unsqueeze(-2), self.sin.to(wide).unsqueeze(-2), self.pairing)

    def apply_rotary_heads(self, x: Float[Tensor, "... H T d"]) -> Float[Tensor, "... H T d"]:
        """``apply_rotary`` for vectors already cut into heads, which keep their place in memory, tokens before heads.

        Attention answers in the layout of its queries, and in this one the heads are put together without a copy.
        """
        return self.apply_rotary(x.transpose(-3, -2)).transpose(-3, -2)

    def apply_rotary(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Turn each pair (a, b) of ``x`` to (a·cos − b·sin, a·sin + b·cos), in at least float32."""
        turning = 2 * self.cos.shape[-1]
        if turning < x.shape[-1]:
            return torch.cat((self.apply_rotary(x[..., :turning]), x[..., turning:]), dim=-1)
        wide = upcast(x)
        cos, sin = self.cos.to(wide.dtype), self.sin.to(wide.dtype)
        if self.pairing == "halves":
            a, b = wide.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)
        if self.pairing != "interleaved":
            raise ValueError(f"there is no pairing {self.pairing!r} of rotary coordinates.")
        pairs = rearrange(wide, "... (p two) -> ... p two", two=2)
        if torch.compiler.is_compiling():  # the compiler fuses real arithmetic and cannot generate complex code
            a, b = pairs.unbind(-1)
            turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1)
        else:  # the same as a product of complex numbers: one pass over memory instead of seven
            # A complex number must start at an even place of memory.
            pairs = pairs.contiguous() if pairs.storage_offset() % 2 == 0 else pairs.clone()
            turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin))
        return rearrange(turned, "... p two -> ... (p two)").to(x.dtype)


def rotary_angles(facts: Rotary, positions: Int[Tensor, "... T"]) -> RotaryAngles:
    """The turns of tokens at ``positions``, as the facts say; computed anew for each pass, which costs next to nothing.

    Nothing is stored, so casting the model to half precision cannot spoil the angles.
    """
    waves = frequencies(facts.dim, facts.theta, positions.device)
    longer = 1.0
    if facts.scaling is not None:
        waves = scaled(waves, facts, facts.scaling)
        longer = facts.scaling.attention
    turn = _angles(positions, waves)
    return RotaryAngles(turn.cos() * longer, turn.sin() * longer, facts.pairing)


def scaled(waves: Float[Tensor, "P"], facts: Rotary, scaling: RotaryScaling) -> Float[Tensor, "P"]:
    """The frequencies of a model stretched to a longer context: each between itself and itself / factor."""
    if scaling.kind == "linear":
        return waves / scaling.factor
    length = scaling.original_length or facts.length
    if scaling.kind == "smooth":  # keep the share that grows with how often the wave fits the original context
        kept = (length * waves / (2 * math.pi) - scaling.low) / (scaling.high - scaling.low)
    elif scaling.kind == "yarn":  # the same between the pairs that turn ``high`` and ``low`` times in that context
        first, last = (
            facts.dim * math.log(length / (2 * math.pi * rope)) / (2 * math.log(facts.theta))
            for rope in (scaling.high, scaling.low)
        )
        first, last = max(math.floor(first), 0), min(math.ceil(last), facts.dim - 1)
        pair = torch.arange(waves.shape[-1], device=waves.device, dtype=waves.dtype)
        kept = 1 - (pair - first) / max(last - first, 1e-3)
    else:
        raise ValueError(f"there is no rotary scaling of kind {scaling.kind!r}.")
    kept = kept.clamp(0, 1)
    return waves * (kept + (1 - kept) / scaling.factor)


def _angles(positions: Tensor, waves: Float[Tensor, "P"]) -> Float[Tensor, "... P"]:
    return positions.to(exact(positions.device)).unsqueeze(-1) * waves


class RotaryPositionalEmbedding(nn.Module):
    """RotaryAngles each pair of coordinates of a query or key by an angle that grows with its position.

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
        turn = _angles(torch.arange(self.max_seq_len, device=device), frequencies(self.d_k, self.theta, device))
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
        check_width(x, self.d_k)
        return self.angles(x.shape[:-1], token_positions, x.device).apply_rotary(x)

    def angles(
        self,
        tokens: Sequence[int],
        token_positions: Int[Tensor, "... T"] | None = None,
        device: torch.device | None = None,
    ) -> RotaryAngles:
        """The turns of vectors that stand in the shape ``tokens`` = (..., T)."""
        if self.cos.is_meta and device is not None and device.type != "meta":
            with torch.inference_mode(False):  # the cache outlives this pass, and training may follow
                self._fill_cache(device)  # the weights were put in place without moving the module
        if token_positions is not None:
            rows_of = partial(look_up, ids=align_positions(token_positions, tokens), what="position")
            return RotaryAngles(rows_of(self.cos), rows_of(self.sin), self.pairing)
        length = tokens[-1]
        if length > self.max_seq_len:
            raise ValueError(
                f"a sequence of {length} tokens is longer than max_seq_len={self.max_seq_len}. "
                f"Shorten it, or build the rotary positions with max_seq_len={length}."
            )
        return RotaryAngles(self.cos[:length], self.sin[:length], self.pairing)

    def extra_repr(self) -> str:
        """What print(model) shows in the brackets."""
        return f"theta={self.theta}, d_k={self.d_k}, max_seq_len={self.max_seq_len}, pairing={self.pairing!r}"
