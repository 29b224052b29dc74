"""The Triton programs behind ``step_kernels``; imported when used, since only PyTorch's builds for GPUs have Triton.

Sums are in float32. Shapes: ``r`` vectors, ``d_in`` and ``d_out`` widths, ``B`` rows, ``H`` heads, ``G`` key/value
heads, ``T`` queries, ``S`` slots, ``K`` width of a head.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def _dense(x: Tensor) -> Tensor:
    """Return x with a contiguous last axis, which results of ``transposed_linear`` do not have."""
    return x if x.stride(-1) == 1 else x.contiguous()


# ---- products with a few vectors


@triton.jit
def _long_rows(
    x, w, bias, row_scale, y, block, d_out, offset, stride, D_IN: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr, VECTORS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """ROWS long rows of W, one after the other: WIDTH numbers at a time, by all threads together."""
    for number in tl.static_range(ROWS):
        n = block * ROWS + number
        if n < d_out:
            row = w + n.to(tl.int64) * D_IN
            sum0 = tl.zeros((WIDTH,), dtype=tl.float32)
            sum1 = sum0
            sum2 = sum0
            sum3 = sum0
            for start in tl.static_range(0, D_IN, WIDTH):
                k = start + tl.arange(0, WIDTH)
                values = tl.load(row + k, mask=k < D_IN, other=0.0).to(tl.float32)
                sum0 += values * tl.load(x + k, mask=k < D_IN, other=0.0).to(tl.float32)
                if VECTORS > 1:
                    sum1 += values * tl.load(x + D_IN + k, mask=k < D_IN, other=0.0).to(tl.float32)
                if VECTORS > 2:
                    sum2 += values * tl.load(x + 2 * D_IN + k, mask=k < D_IN, other=0.0).to(tl.float32)
                if VECTORS > 3:
                    sum3 += values * tl.load(x + 3 * D_IN + k, mask=k < D_IN, other=0.0).to(tl.float32)
            scale = 1.0
            added = 0.0
            if HAS_SCALE:
                scale = tl.load(row_scale + n).to(tl.float32)
            if HAS_BIAS:
                added = tl.load(bias + n).to(tl.float32)
            at = y + offset + n
            tl.store(at, (tl.sum(sum0) * scale + added).to(y.dtype.element_ty))
            if VECTORS > 1:
                tl.store(at + stride, (tl.sum(sum1) * scale + added).to(y.dtype.element_ty))
            if VECTORS > 2:
                tl.store(at + 2 * stride, (tl.sum(sum2) * scale + added).to(y.dtype.element_ty))
            if VECTORS > 3:
                tl.store(at + 3 * stride, (tl.sum(sum3) * scale + added).to(y.dtype.element_ty))


@triton.jit
def _short_rows(
    x, w, bias, row_scale, y, block, d_out, offset, stride, D_IN: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr, VECTORS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """ROWS short rows of W at once, each by threads of its own; they stay in registers for all vectors."""
    n, k = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (n[:, None] < d_out) & (k[None, :] < D_IN)
    values = tl.load(w + n[:, None].to(tl.int64) * D_IN + k[None, :], mask=inside, other=0.0).to(tl.float32)
    for r in tl.static_range(VECTORS):
        vector = tl.load(x + r * D_IN + k, mask=k < D_IN, other=0.0).to(tl.float32)
        products = tl.sum(values * vector[None, :], axis=1)
        if HAS_SCALE:
            products *= tl.load(row_scale + n, mask=n < d_out, other=0.0).to(tl.float32)
        if HAS_BIAS:
            products += tl.load(bias + n, mask=n < d_out, other=0.0).to(tl.float32)
        tl.store(y + r * stride + offset + n, products.to(y.dtype.element_ty), mask=n < d_out)


@triton.jit
def _some_rows(
    x, w, bias, row_scale, y, block, d_out, offset, stride, D_IN: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr, VECTORS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    SHORT: tl.constexpr,
):  # fmt: skip
    if SHORT:
        _short_rows(
            x, w, bias, row_scale, y, block, d_out, offset, stride, D_IN, HAS_BIAS, HAS_SCALE, VECTORS, ROWS, WIDTH
        )
    else:
        _long_rows(
            x, w, bias, row_scale, y, block, d_out, offset, stride, D_IN, HAS_BIAS, HAS_SCALE, VECTORS, ROWS, WIDTH
        )


@triton.jit
def _matvec(
    x, w0, w1, w2, b0, b1, b2, s0, s1, s2, y, d0, d1, d2, D_IN: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr, VECTORS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    SHORT: tl.constexpr,
):  # fmt: skip
    """Up to three matrices with the same vectors, one after the other in ``y``."""
    block = tl.program_id(0)
    blocks0, blocks1 = tl.cdiv(d0, ROWS), tl.cdiv(d1, ROWS)
    width = d0 + d1 + d2
    if block < blocks0:
        _some_rows(
            x, w0, b0, s0, y, block, d0, 0, width, D_IN, HAS_BIAS, HAS_SCALE, VECTORS, ROWS, WIDTH, SHORT
        )  # fmt: skip
    elif block < blocks0 + blocks1:
        _some_rows(
            x, w1, b1, s1, y, block - blocks0, d1, d0, width, D_IN, HAS_BIAS, HAS_SCALE, VECTORS, ROWS, WIDTH, SHORT
        )
    else:
        _some_rows(
            x, w2, b2, s2, y, block - blocks0 - blocks1, d2, d0 + d1, width, D_IN,
            HAS_BIAS, HAS_SCALE, VECTORS, ROWS, WIDTH, SHORT,
        )  # fmt: skip


def matvec(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Return W x (+ b) of up to three matrices side by side, for a few vectors ``(..., d_in)``."""
    vectors = x.reshape(-1, x.shape[-1]).contiguous()
    rows, d_in = vectors.shape
    sizes = [weight.shape[0] for weight in weights]
    y = x.new_empty(*x.shape[:-1], sum(sizes))
    is_short, is_small = d_in <= 2048, weights[0].dtype.itemsize == 1
    if is_short:  # 8 KB or so of weights per program
        width = triton.next_power_of_2(d_in)
        per_program, warps = max(1, 4096 // width), 4
    else:
        width, per_program, warps = 4096, 2 if is_small else 1, 8
    blocks = sum(triton.cdiv(size, per_program) for size in sizes)
    padding = 3 - len(weights)
    matrices = [*weights, *[weights[0]] * padding]
    padded_biases, padded_scales = (
        [*some, *[some[0] if some else vectors] * (3 - len(some))] for some in (biases, scales)
    )
    _matvec[(blocks,)](
        vectors, *matrices, *padded_biases, *padded_scales, y, *sizes, *[0] * padding, D_IN=d_in, HAS_BIAS=bool(biases),
        HAS_SCALE=bool(scales), VECTORS=rows, ROWS=per_program, WIDTH=width, SHORT=is_short, num_warps=warps,
    )  # fmt: skip
    return y


# ---- attention of a few queries


@triton.jit
def _attend(
    q, k, v, bias, out, scale, queries, groups, slots, width,
    qb, qh, qt, kb, kg, ks, vb, vg, vs, bb, bh, bt, yb, yh, yt, tokens,
    IS_MASK: tl.constexpr, QUERIES: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Online softmax for one key/value head of one row: all its queries, SLOTS slots at a time, but no hidden ones."""
    row, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups  # buffers may exceed 2³¹ numbers
    r = tl.arange(0, QUERIES)  # query (head within the group, token)
    head, token = group * (queries // tokens) + r // tokens, r % tokens
    d = tl.arange(0, WIDTH)
    in_q = (r[:, None] < queries) & (d[None, :] < width)
    at_q = row * qb + head[:, None] * qh + token[:, None] * qt + d[None, :]
    query = tl.load(q + at_q, mask=in_q, other=0.0)
    highest = tl.full((QUERIES,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((QUERIES,), dtype=tl.float32)
    acc = tl.zeros((QUERIES, WIDTH), dtype=tl.float32)
    for start in range(0, slots, SLOTS):
        s = start + tl.arange(0, SLOTS)
        in_b = (r[:, None] < queries) & (s[None, :] < slots)
        at_b = row * bb + head[:, None] * bh + token[:, None] * bt + s[None, :]
        if IS_MASK:
            added = tl.where(tl.load(bias + at_b, mask=in_b, other=0) != 0, 0.0, -float("inf"))
        else:
            added = tl.load(bias + at_b, mask=in_b, other=-float("inf")).to(tl.float32)
        if tl.max(added) > -float("inf"):
            in_k = (s[:, None] < slots) & (d[None, :] < width)
            keys = tl.load(k + row * kb + group * kg + s[:, None] * ks + d[None, :], mask=in_k, other=0.0)
            values = tl.load(v + row * vb + group * vg + s[:, None] * vs + d[None, :], mask=in_k, other=0.0)
            scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale + added
            higher = tl.maximum(highest, tl.max(scores, axis=1))
            safe = tl.where(higher == -float("inf"), 0.0, higher)
            weights = tl.exp(scores - safe[:, None])
            rescale = tl.exp(highest - safe)
            total = total * rescale + tl.sum(weights, axis=1)
            acc = acc * rescale[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
            highest = higher
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    at_o = row * yb + head[:, None] * yh + token[:, None] * yt + d[None, :]
    tl.store(out + at_o, acc.to(out.dtype.element_ty), mask=in_q)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Return softmax(q k · scale + bias) v for queries ``(B, H, T, K)`` and a bias that expands to ``(B, H, T, S)``.

    Instead of a bias it may be booleans, True where a query may attend.
    """
    is_mask = bias.dtype == torch.bool
    bias = bias.view(torch.uint8) if is_mask else bias
    batch, heads, tokens, width = q.shape
    groups, slots = k.shape[1], k.shape[2]
    bias = bias.expand(batch, heads, tokens, slots)
    # Tokens before heads in memory, so that the heads are merged without a copy.
    out = q.new_empty(batch, tokens, heads, width).transpose(1, 2)
    queries = heads // groups * tokens
    padded = max(16, triton.next_power_of_2(width))
    # Where there are many programs, small pieces: those without a slot in use are not loaded.
    slots_per_pass = 32 if batch * groups >= 256 else 64 if padded > 64 else 128
    _attend[(batch * groups,)](
        q, k, v, bias, out, scale, queries, groups, slots, width,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *bias.stride()[:3], *out.stride()[:3], tokens,
        IS_MASK=is_mask, QUERIES=max(16, triton.next_power_of_2(queries)), SLOTS=slots_per_pass,
        WIDTH=padded, num_warps=4,
    )  # fmt: skip
    return out


# ---- writing into a static cache


@triton.jit
def _write_slot(
    k_new, v_new, k, v, slot, groups, k_width, v_width, nb, ng, mb, mg, kb, kg, ks, vb, vg, vs, W: tl.constexpr
):  # fmt: skip
    row, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups  # buffers may exceed 2³¹ numbers
    at, d = tl.load(slot), tl.arange(0, W)
    key = tl.load(k_new + row * nb + group * ng + d, mask=d < k_width)
    tl.store(k + row * kb + group * kg + at * ks + d, key, mask=d < k_width)
    value = tl.load(v_new + row * mb + group * mg + d, mask=d < v_width)
    tl.store(v + row * vb + group * vg + at * vs + d, value, mask=d < v_width)


def write_slot(k_new: Tensor, v_new: Tensor, k: Tensor, v: Tensor, slot: Tensor) -> None:
    """Write keys and values ``(B, G, 1, K)`` into a slot of their buffers ``(B, G, S, K)``, by one kernel."""
    batch, groups = k.shape[:2]
    k_new, v_new = _dense(k_new), _dense(v_new)
    widest = triton.next_power_of_2(max(k.shape[-1], v.shape[-1]))
    _write_slot[(batch * groups,)](
        k_new, v_new, k, v, slot, groups, k.shape[-1], v.shape[-1], *k_new.stride()[:2], *v_new.stride()[:2],
        *k.stride()[:3], *v.stride()[:3], W=widest, num_warps=1,
    )  # fmt: skip


@triton.jit
def _reorder(
    x, rows, last, first, beams, groups, width, xb, xg, xs,
    BEAMS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """All beams of one prompt in one head: some slots are loaded for all of them before any is written."""
    prompt, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    slots = first + tl.program_id(1) * SLOTS + tl.arange(0, SLOTS)
    b, d = tl.arange(0, BEAMS), tl.arange(0, WIDTH)
    source = tl.load(rows + prompt * beams + b, mask=b < beams, other=0)
    used = tl.load(last)
    inside = (b[:, None, None] < beams) & (slots[None, :, None] < used) & (d[None, None, :] < width)
    at = group * xg + slots[None, :, None] * xs + d[None, None, :]
    values = tl.load(x + source[:, None, None] * xb + at, mask=inside)
    tl.debug_barrier()
    tl.store(x + (prompt * beams + b)[:, None, None].to(tl.int64) * xb + at, values, mask=inside)


def reorder(buffers: Sequence[Tensor], rows: Tensor, slot: Tensor, beams: int, since: int) -> None:
    """Copy row ``rows[i]`` of ``(B, G, S, K)``, a beam of the same prompt, to row i, up to the next slot."""
    for x in buffers:
        batch, groups, slots, width = x.shape
        per_program = 16
        grid = (batch // beams * groups, triton.cdiv(slots - since, per_program))
        _reorder[grid](
            x, rows, slot, since, beams, groups, width, *x.stride()[:3],
            BEAMS=triton.next_power_of_2(beams), SLOTS=per_program, WIDTH=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip


# ---- norms and rotations


@triton.jit
def _normalise(x, weight, bias, y, width, eps, CENTRE: tl.constexpr, HAS_BIAS: tl.constexpr, WIDTH: tl.constexpr):
    row, d = tl.program_id(0), tl.arange(0, WIDTH)
    inside = d < width
    values = tl.load(x + row * width + d, mask=inside, other=0.0).to(tl.float32)
    if CENTRE:
        values = tl.where(inside, values - tl.sum(values, axis=0) / width, 0.0)
    result = values * tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    result *= tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        result += tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * width + d, result.to(y.dtype.element_ty), mask=inside)


def normalise(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, centre: bool) -> Tensor:
    """Return LayerNorm (``centre``) or RMSNorm of vectors ``(..., d)``."""
    rows, weight, bias = x.contiguous(), _dense(weight), None if bias is None else _dense(bias)
    y, width = torch.empty_like(rows), x.shape[-1]
    extra: dict[str, Any] = {"WIDTH": triton.next_power_of_2(width), "num_warps": 8 if width > 2048 else 4}
    _normalise[(rows.numel() // width,)](
        rows, weight, weight if bias is None else bias, y, width, eps, CENTRE=centre, HAS_BIAS=bias is not None, **extra
    )
    return y


@triton.jit
def _rotate(
    x, cos, sin, y, heads, pairs, width, xb, xh, yb, yh, cb, sb,
    HALVES: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    p = tl.arange(0, PAIRS)
    inside = p < pairs
    c = tl.load(cos + row * cb + p, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + row * sb + p, mask=inside, other=0.0).to(tl.float32)
    first = p if HALVES else 2 * p
    second = p + pairs if HALVES else 2 * p + 1
    source, target = x + row * xb + head * xh, y + row * yb + head * yh
    a = tl.load(source + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + second, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + first, (a * c - b * s).to(y.dtype.element_ty), mask=inside)
    tl.store(target + second, (a * s + b * c).to(y.dtype.element_ty), mask=inside)
    if REST:
        d = tl.arange(0, REST)
        rest = (d >= 2 * pairs) & (d < width)
        tl.store(target + d, tl.load(source + d, mask=rest, other=0.0), mask=rest)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, halves: bool) -> Tensor:
    """Rotate the pairs of vectors ``(B, 1, H, K)`` by angles of ``(B or 1, 1, 1, P)``."""
    batch, _, heads, width = x.shape
    y = torch.empty((batch, 1, heads, width), dtype=x.dtype, device=x.device)
    pairs = cos.shape[-1]
    x, cos, sin = _dense(x), _dense(cos), _dense(sin)
    cb, sb = (0 if angle.shape[0] == 1 else angle.stride(0) for angle in (cos, sin))
    _rotate[(batch * heads,)](
        x, cos, sin, y, heads, pairs, width, x.stride(0), x.stride(2), y.stride(0), y.stride(2), cb, sb,
        HALVES=halves, PAIRS=triton.next_power_of_2(pairs),
        REST=triton.next_power_of_2(width) if 2 * pairs < width else 0, num_warps=1,
    )  # fmt: skip
    return y
