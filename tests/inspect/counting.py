"""What a model really does, seen from below: matrix products that reach PyTorch's kernels, tensors that autograd
keeps. Nothing here knows the account: only real tensors are looked at.

A product has a matrix in it. What a norm adds up are squares, number by number: ``linalg.vecdot`` of many vectors
arrives here as ``mul`` and ``sum`` and is no product. Were it ever to arrive as a product of two vectors, or anything
else as a kernel that multiplies and is not known here, ``REFUSED`` stops the test instead of leaving it out.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer.config import Model, change
from glassformer.families import preset


class Multiplied(NamedTuple):
    """``times`` products (m × n) · (n × p) that one kernel was asked for."""

    m: int
    n: int
    p: int
    times: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.p * self.times


def _product(a: Tensor, b: Tensor, *_: Any) -> list[Multiplied]:
    """(… m n) · (… n p)."""
    *times, m, n = a.shape
    return [Multiplied(m, n, b.shape[-1], *times)]


def _added_product(added: Tensor, a: Tensor, b: Tensor, *_: Any) -> list[Multiplied]:
    del added
    return _product(a, b)


def _matrix_vector(matrix: Tensor, vector: Tensor) -> list[Multiplied]:
    assert vector.ndim == 1
    return [Multiplied(*matrix.shape, 1)]


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> list[Multiplied]:
    """A fused kernel: the scores, and the average of the values."""
    batch, heads, queries, width = q.shape
    keys, wide = v.shape[-2:]
    assert keys == k.shape[-2]
    return [Multiplied(queries, width, keys, batch * heads), Multiplied(queries, keys, wide, batch * heads)]


def _attention_back(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> list[Multiplied]:
    """Its way back: the scores again, then the gradients of weights, values, queries and keys."""
    batch, heads, queries, width = q.shape
    keys, wide = v.shape[-2:]
    assert (gradient.shape[-1], k.shape[-2]) == (wide, keys)
    shapes = (
        (queries, width, keys),
        (queries, wide, keys),
        (keys, queries, wide),
        (queries, keys, width),
        (keys, queries, width),
    )
    return [Multiplied(*shape, batch * heads) for shape in shapes]


_FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
COUNTED: Mapping[str, Callable[..., list[Multiplied]]] = {
    "mm": _product,
    "bmm": _product,
    "mv": _matrix_vector,
    "addmm": _added_product,
    "baddbmm": _added_product,
    **{f"_scaled_dot_product_{kind}": _attention for kind in _FUSED},
    **{f"_scaled_dot_product_{kind}_backward": _attention_back for kind in _FUSED},
}
COMPOSED = {"matmul", "linear", "einsum", "scaled_dot_product_attention", "linalg_vecdot"}
REFUSED = {
    "dot", "vdot", "addmv", "addr", "addbmm", "outer", "_int_mm", "_scaled_mm", "_grouped_mm", "_addmm_activation",
    "convolution", "convolution_backward", "mkldnn_linear", "_cdist_forward", "_trilinear", "_flash_attention_forward",
    "_efficient_attention_forward", "_scaled_dot_product_fused_attention_overrideable",
}  # fmt: skip


class Products(TorchDispatchMode):
    """Inside, every matrix product that is dispatched is written down, those of a backward pass too."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Multiplied] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = op.overloadpacket.__name__
        if name in COMPOSED:  # in inference mode, what is made of other operations arrives in one piece
            with self:
                return op.decompose(*args, **(kwargs or {}))
        assert name not in REFUSED, f"{name} multiplies, and nobody counts it"
        if name in COUNTED:
            self.found += COUNTED[name](*args)
        return op(*args, **(kwargs or {}))

    @property
    def flops(self) -> int:
        return sum(product.flops for product in self.found)

    @property
    def shapes(self) -> Counter[tuple[int, int, int]]:
        """How many products there are of each shape (m, n, p)."""
        shapes: Counter[tuple[int, int, int]] = Counter()
        for product in self.found:
            shapes[product[:3]] += product.times
        return shapes


class Kept:
    """Inside, every tensor that autograd keeps for the way back is written down: each storage once.

    Args:
        there: tensors that were there before: weights and inputs.
        pieces: modules of each of whose calls it is written down what was kept in it.
        inputs: the tensors that such a call is given.
    """

    def __init__(
        self,
        there: Sequence[Tensor],
        pieces: Sequence[nn.Module] = (),
        inputs: Callable[[Any, Any], Sequence[Tensor]] | None = None,
    ) -> None:
        self._there = {_storage_id(tensor) for tensor in there}
        self._alive: list[Tensor] = []  # so that no storage takes the place of another
        self.sizes: dict[int, int] = {}
        self.pieces: list[set[int]] = []
        self.beside: set[int] = set()  # kept outside the pieces, or given to one of them
        self._now = self.beside
        self._hooks = [piece.register_forward_pre_hook(self._enter, with_kwargs=True) for piece in pieces]
        self._hooks += [piece.register_forward_hook(self._leave) for piece in pieces]
        self._inputs = inputs
        self._saving = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def __enter__(self) -> Self:
        self._saving.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._saving.__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def ignore(self, tensor: Tensor) -> None:
        """Count a tensor among those that were there before."""
        self._alive.append(tensor)
        self._there.add(_storage_id(tensor))

    def _pack(self, tensor: Tensor) -> Tensor:
        self._note(tensor, self._now)
        return tensor

    def _note(self, tensor: Tensor, where: set[int]) -> None:
        number = _storage_id(tensor)
        if number not in self._there:
            self._alive.append(tensor)
            self.sizes[number] = tensor.untyped_storage().nbytes()
            where.add(number)

    def _enter(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        assert self._inputs is not None
        for tensor in self._inputs(args, kwargs):
            self._note(tensor, self.beside)
        self._now = set()
        self.pieces.append(self._now)

    def _leave(self, *_: Any) -> None:
        self._now = self.beside

    @property
    def nbytes(self) -> int:
        """Of all that is kept. Not to be asked if inputs of pieces are noted: they are not all kept."""
        assert self._inputs is None
        return sum(self.sizes.values())

    @property
    def checkpointed(self) -> int:
        """Of what lies beside the pieces, their inputs included, and of the rest of the largest piece."""
        rest = max(sum(self.sizes[number] for number in piece - self.beside) for piece in self.pieces)
        return sum(self.sizes[number] for number in self.beside) + rest


def _storage_id(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


# ---- what is counted: models and what they are given


def inputs(facts: Model, batch: int, tokens: int, source: int) -> dict[str, Tensor]:
    """Ids for any family: ``source`` of them for an encoder that a decoder looks at."""
    if facts.family != "encoder-decoder":
        return {"ids": torch.randint(facts.vocab, (batch, tokens))}
    return {"ids": torch.randint(facts.vocab, (batch, source)), "target": torch.randint(facts.vocab, (batch, tokens))}


def loss(answer: Any, kept: Kept | None = None) -> Tensor:
    """Cross-entropy of the last axis of every answer, all targets 0; they are inputs, and not ``kept``."""
    total = torch.zeros(())
    for one in answer if isinstance(answer, tuple) else (answer,):
        flat = one.reshape(-1, one.shape[-1])
        targets = torch.zeros(len(flat), dtype=torch.long, device=flat.device)
        if kept is not None:
            kept.ignore(targets)
        total = F.cross_entropy(flat, targets) + total.to(flat)
    return total


def without_dropout(facts: Any) -> Any:
    """The same page of facts with every share of dropout 0."""
    return rewritten(facts, lambda name, value: 0.0 if name.endswith("dropout") else value)


def rewritten(facts: Any, rule: Callable[[str, Any], Any]) -> Any:
    """A page of facts with a rule for single facts, by name and value, applied everywhere."""
    if isinstance(facts, tuple):
        return tuple(rewritten(one, rule) for one in facts)
    if not is_dataclass(facts) or isinstance(facts, type):
        return facts
    parts = {field.name: getattr(facts, field.name) for field in fields(facts)}
    return replace(facts, **{name: rule(name, rewritten(value, rule)) for name, value in parts.items()})


SMALL: dict[str, int] = {
    "vocab": 61, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 128, "length": 160, "span": 8,
    "buckets": 8, "max_distance": 24, "original_length": 64, "block": 4, "random": 1,
}  # fmt: skip


def small(facts: Model) -> Model:
    """A published page of facts in small: three layers of width 64, windows of 24 tokens, all else as it was."""
    stack = facts.decoder or facts.encoder
    assert stack is not None
    head = stack.attention.head_dim

    def rule(name: str, value: Any) -> Any:
        if name == "dim":  # of rotary positions
            return value * SMALL["head_dim"] // head
        if name == "width":  # of the model, or of factorised embeddings
            return value and (64 if value == facts.width else 32)
        if name == "windows":
            return tuple(24 if isinstance(window, int) else window for window in value)
        return SMALL[name] if name in SMALL and isinstance(value, int) and value else value

    page = rewritten(without_dropout(facts), rule)
    assert isinstance(page, Model)
    return page


def shallow(name: str) -> Model:
    """A published model with few layers: four of each kind of window, all else as it was."""
    facts = preset(name)
    for side in ("encoder", "decoder"):
        stack = getattr(facts, side)
        if stack is not None:
            facts = change(facts, f"{side}.layers", min(stack.layers, 4 * len(stack.attention.windows)))
    return facts
