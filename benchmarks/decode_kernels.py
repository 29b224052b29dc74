"""Every kernel of a captured step beside its formula in float64; ``benchmarks.decode_gpu`` runs it before it measures.

A gap is the largest difference, relative to the largest number; where a kernel only moves numbers, none is allowed.
"""

import traceback
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.nn.kernels import step_kernels
from glassformer.nn.rotary import Pairing, RotaryAngles

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
Cases = Iterator[tuple[str, Tensor, Tensor]]  # name, what the kernel computes, what the formula does
Normal = Callable[..., Tensor]  # (*shape) -> random numbers of the type and device to check


def check_kernels(device: torch.device, dtypes: tuple[torch.dtype, ...] = tuple(BOUNDS)) -> list[str]:
    """Print the gap of every kernel, in each type; return what is wrong."""
    wrong = []
    for dtype in dtypes:
        torch.manual_seed(0)
        normal = partial(torch.randn, device=device, dtype=dtype)
        for kernel, cases in KERNELS.items():
            try:
                for name, found, expected in cases(normal):
                    gap, bound = relative(found, expected), 0.0 if kernel in EXACT else BOUNDS[dtype]
                    print(f"check {name} {dtype}: {gap:.1e}")
                    if not gap <= bound:  # NaN compares false
                        wrong.append(f"{name} {dtype}: {gap:.1e} from its formula, more than {bound}")
            except Exception as error:
                traceback.print_exc(limit=-6)
                wrong.append(f"{kernel} {dtype}: {type(error).__name__}")
    return wrong


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max() / b.double().abs().max())


def matvec(normal: Normal) -> Cases:
    """Of one to four vectors, short and long ones; matrices as they are, of one byte a number, and side by side."""
    for d_in, rows in ((96, 2), (768, 1), (3072, 3), (4096, 1), (11008, 4)):
        x = normal(rows, 1, d_in)
        weights = [normal(size, d_in) for size in (100, 64, 50257 if x.is_cuda else 33)]
        biases = [normal(len(weight)) for weight in weights]
        y = [F.linear(x.double(), w.double(), b.double()) for w, b in zip(weights, biases, strict=True)]
        yield f"matvec {d_in}", step_kernels.matvec(x, weights, biases, []), torch.cat(y, -1)
        plain = F.linear(x.double(), weights[0].double())
        yield f"matvec {d_in} without bias", step_kernels.matvec(x, weights[:1], [], []), plain
        for kind in (torch.int8, torch.float8_e4m3fn):
            if x.is_cuda and not step_kernels.supports_dtype(x.device, kind):
                print(f"this GPU has no kernels for {kind}")
                continue
            small = [(30 * normal(size, d_in)).round().clamp(-127, 127).to(kind) for size in (100, 33)]
            scales = [normal(len(weight)).float() for weight in small]
            y = [F.linear(x.double(), w.double()) * f.double() for w, f in zip(small, scales, strict=True)]
            yield f"matvec {d_in} {kind}", step_kernels.matvec(x, small, [], scales), torch.cat(y, -1)
            found = step_kernels.matvec(x, small[:1], biases[:1], scales[:1])
            yield f"matvec {d_in} {kind} with bias", found, y[0] + biases[0].double()


def attend(normal: Normal) -> Cases:
    """Heads that share keys, several queries, masks and biases."""
    for heads, groups, tokens, slots, width in ((12, 12, 1, 320, 64), (32, 8, 1, 700, 128), (8, 8, 4, 32, 20)):
        q = normal(3, tokens, heads, width).transpose(1, 2)
        k, v = normal(3, groups, slots, width), normal(3, groups, slots, width)
        full = [x.double().repeat_interleave(heads // groups, 1) for x in (k, v)]
        mask = normal(3, 1, 1, slots) < 0
        mask[0, ..., : slots - 8] = False
        bias = normal(3, heads, 1, slots).masked_fill(~mask, -torch.inf)
        for name, hiding in (("mask", mask), ("bias", bias)):
            exact = hiding if name == "mask" else hiding.double()
            y = F.scaled_dot_product_attention(q.double(), *full, exact, scale=0.2)
            yield f"attend {width} {name}", step_kernels.attend(q, k, v, hiding, 0.2), y


def normalise(normal: Normal) -> Cases:
    """LayerNorm and RMSNorm."""
    for width in (100, 4096):
        x, weight, bias = normal(5, 1, width), normal(width), normal(width)
        wide, shape = [tensor.double() for tensor in (x, weight, bias)], (width,)
        found = step_kernels.normalise(x, weight, bias, 1e-5, centre=True)
        yield f"LayerNorm {width}", found, F.layer_norm(wide[0], shape, wide[1], wide[2], 1e-5)
        found = step_kernels.normalise(x, weight, None, 1e-5, centre=True)
        yield f"LayerNorm {width} without bias", found, F.layer_norm(wide[0], shape, wide[1], None, 1e-5)
        found = step_kernels.normalise(x, weight, None, 1e-5, centre=False)
        yield f"RMSNorm {width}", found, F.rms_norm(wide[0], shape, wide[1], 1e-5)


def rotate(normal: Normal) -> Cases:
    """All pairs of a head or some, at one angle for all rows or one for each."""
    pairings: tuple[Pairing, ...] = ("halves", "interleaved")
    for pairs, rows, pairing in ((p, r, how) for p in (64, 5) for r in (1, 3) for how in pairings):
        x, angles = normal(3, 1, 4, 128), normal(rows, 1, 1, pairs).float()
        cos, sin = angles.cos(), angles.sin()
        expected = RotaryAngles(cos.double(), sin.double(), pairing).apply_rotary(x.double())
        yield f"rotate {pairs} {pairing} {rows}", step_kernels.rotate(x, cos, sin, halves=pairing == "halves"), expected


def write_slot(normal: Normal) -> Cases:
    """One slot of keys and values of different widths; the others stay."""
    k, v = normal(3, 4, 70, 64), normal(3, 4, 70, 20)
    k_new, v_new = normal(3, 1, 4, 64).transpose(1, 2), normal(3, 1, 4, 20).transpose(1, 2)
    slot = torch.tensor([41], device=k.device)
    expected = k.index_copy(2, slot, k_new), v.index_copy(2, slot, v_new)
    step_kernels.write_slot(k_new, v_new, k, v, slot)
    yield "write_slot keys", k, expected[0]
    yield "write_slot values", v, expected[1]


def reorder(normal: Normal) -> Cases:
    """The used slots of beams that continue others of the same prompt, from a slot that they do not share on."""
    for beams, width in ((4, 64), (3, 20)):
        k, v = normal(2 * beams, 4, 130, width), normal(2 * beams, 4, 130, width)
        rows = torch.tensor([0, 0, 2, 1][:beams] + [beams + row for row in (2, 1, 1, 0)[:beams]], device=k.device)
        expected = [x.clone() for x in (k, v)]
        for x in expected:
            x[:, :, 64:117] = x[rows][:, :, 64:117]
        step_kernels.reorder((k, v), rows, torch.tensor([117], device=k.device), beams, 64)
        yield f"reorder {beams} keys", k, expected[0]
        yield f"reorder {beams} values", v, expected[1]


KERNELS = {check.__name__: check for check in (matvec, attend, normalise, rotate, write_slot, reorder)}
EXACT = ("write_slot", "reorder")
