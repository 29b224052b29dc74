"""Records what a real model does, independently of the account: matrix products that reach PyTorch's kernels, and
tensors that autograd saves.

The squares of a norm are no matrix product: ``linalg.vecdot`` of many vectors is dispatched as ``mul`` and ``sum``. If
it is ever dispatched as a product of two vectors, or any other unknown kernel multiplies, ``REFUSED`` fails the test
instead of ignoring it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer.config import ModelConfig, change
from glassformer.families import preset


class MatrixProduct(NamedTuple):
    """``times`` products (m × n) · (n × p) of one kernel call."""

    m: int
    n: int
    p: int
    times: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.p * self.times


def _product(a: Tensor, b: Tensor, *_: Any) -> list[MatrixProduct]:
    """(… m n) · (… n p)."""
    *times, m, n = a.shape
    return [MatrixProduct(m, n, b.shape[-1], *times)]


def _added_product(added: Tensor, a: Tensor, b: Tensor, *_: Any) -> list[MatrixProduct]:
    del added
    return _product(a, b)


def _matrix_vector(matrix: Tensor, vector: Tensor) -> list[MatrixProduct]:
    assert vector.ndim == 1
    return [MatrixProduct(*matrix.shape, 1)]


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> list[MatrixProduct]:
    """A fused kernel: the scores, and the weighted sum of the values."""
    batch, heads, queries, width = q.shape
    keys, value_width = v.shape[-2:]
    assert keys == k.shape[-2]
    return [
        MatrixProduct(queries, width, keys, batch * heads),
        MatrixProduct(queries, keys, value_width, batch * heads),
    ]


def _attention_backward(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> list[MatrixProduct]:
    """Its backward pass: the scores recomputed, then the gradients of probabilities, values, queries and keys."""
    batch, heads, queries, width = q.shape
    keys, value_width = v.shape[-2:]
    assert (gradient.shape[-1], k.shape[-2]) == (value_width, keys)
    shapes = (
        (queries, width, keys),
        (queries, value_width, keys),
        (keys, queries, value_width),
        (queries, keys, width),
        (keys, queries, width),
    )
    return [MatrixProduct(*shape, batch * heads) for shape in shapes]


_FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
COUNTED: Mapping[str, Callable[..., list[MatrixProduct]]] = {
    "mm": _product,
    "bmm": _product,
    "mv": _matrix_vector,
    "addmm": _added_product,
    "baddbmm": _added_product,
    **{f"_scaled_dot_product_{kind}": _attention for kind in _FUSED},
    **{f"_scaled_dot_product_{kind}_backward": _attention_backward for kind in _FUSED},
}
COMPOSED = {"matmul", "linear", "einsum", "scaled_dot_product_attention", "linalg_vecdot"}
REFUSED = {
    "dot", "vdot", "addmv", "addr", "addbmm", "outer", "_int_mm", "_scaled_mm", "_grouped_mm", "_addmm_activation",
    "convolution", "convolution_backward", "mkldnn_linear", "_cdist_forward", "_trilinear", "_flash_attention_forward",
    "_efficient_attention_forward", "_scaled_dot_product_fused_attention_overrideable",
}  # fmt: skip


class Products(TorchDispatchMode):
    """Inside, every dispatched matrix product is recorded, also in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[MatrixProduct] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = op.overloadpacket.__name__
        if name in COMPOSED:  # in inference mode, composite operators are not decomposed
            with self:
                return op.decompose(*args, **(kwargs or {}))
        assert name not in REFUSED, f"{name} multiplies and is not counted"
        if name in COUNTED:
            self.recorded += COUNTED[name](*args)
        return op(*args, **(kwargs or {}))

    @property
    def flops(self) -> int:
        return sum(product.flops for product in self.recorded)

    @property
    def shapes(self) -> Counter[tuple[int, int, int]]:
        """How many products there are of each shape (m, n, p)."""
        shapes: Counter[tuple[int, int, int]] = Counter()
        for product in self.recorded:
            shapes[product[:3]] += product.times
        return shapes


class SavedTensors:
    """Inside, every tensor that autograd saves for the backward pass is recorded: each storage once.

    Args:
        existing: tensors allocated before: weights and inputs.
        layers: modules whose calls are recorded separately.
        inputs: maps the arguments of such a call to its input tensors.
    """

    def __init__(
        self,
        existing: Sequence[Tensor],
        layers: Sequence[nn.Module] = (),
        inputs: Callable[[Any, Any], Sequence[Tensor]] | None = None,
    ) -> None:
        self._existing = {_storage_id(tensor) for tensor in existing}
        self._alive: list[Tensor] = []  # so that no storage is reused
        self.sizes: dict[int, int] = {}
        self.layers: list[set[int]] = []
        self.outside: set[int] = set()  # saved outside the layers, and their inputs
        self._current = self.outside
        self._hooks = [layer.register_forward_pre_hook(self._enter, with_kwargs=True) for layer in layers]
        self._hooks += [layer.register_forward_hook(self._leave) for layer in layers]
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
        """Treat a tensor as allocated before."""
        self._alive.append(tensor)
        self._existing.add(_storage_id(tensor))

    def _pack(self, tensor: Tensor) -> Tensor:
        self._record(tensor, self._current)
        return tensor

    def _record(self, tensor: Tensor, numbers: set[int]) -> None:
        number = _storage_id(tensor)
        if number not in self._existing:
            self._alive.append(tensor)
            self.sizes[number] = tensor.untyped_storage().nbytes()
            numbers.add(number)

    def _enter(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        assert self._inputs is not None
        for tensor in self._inputs(args, kwargs):
            self._record(tensor, self.outside)
        self._current = set()
        self.layers.append(self._current)

    def _leave(self, *_: Any) -> None:
        self._current = self.outside

    @property
    def nbytes(self) -> int:
        """Total size. Not available if inputs of layers are recorded: not all of them are saved."""
        assert self._inputs is None
        return sum(self.sizes.values())

    @property
    def checkpointed(self) -> int:
        """Size outside the layers, with their inputs, plus the inside of the largest layer."""
        largest = max(sum(self.sizes[number] for number in layer - self.outside) for layer in self.layers)
        return sum(self.sizes[number] for number in self.outside) + largest


def _storage_id(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


# ---- models and their inputs


def inputs(facts: ModelConfig, batch: int, tokens: int, source: int) -> dict[str, Tensor]:
    """Ids for any family: ``source`` of them for the encoder of an encoder-decoder."""
    if facts.family != "encoder-decoder":
        return {"ids": torch.randint(facts.vocab, (batch, tokens))}
    return {"ids": torch.randint(facts.vocab, (batch, source)), "target": torch.randint(facts.vocab, (batch, tokens))}


def loss(output: Any, saved: SavedTensors | None = None) -> Tensor:
    """Cross-entropy of the last axis of every output, all targets 0; they are inputs, not ``saved``."""
    total = torch.zeros(())
    for logits in output if isinstance(output, tuple) else (output,):
        flat = logits.reshape(-1, logits.shape[-1])
        targets = torch.zeros(len(flat), dtype=torch.long, device=flat.device)
        if saved is not None:
            saved.ignore(targets)
        total = F.cross_entropy(flat, targets) + total.to(flat)
    return total


def without_dropout(facts: Any) -> Any:
    """The same facts with every dropout 0."""
    return rewritten(facts, lambda name, value: 0.0 if name.endswith("dropout") else value)


def rewritten(facts: Any, rule: Callable[[str, Any], Any]) -> Any:
    """Apply a rule to every fact, by name and value."""
    if isinstance(facts, tuple):
        return tuple(rewritten(item, rule) for item in facts)
    if not is_dataclass(facts) or isinstance(facts, type):
        return facts
    parts = {field.name: getattr(facts, field.name) for field in fields(facts)}
    return replace(facts, **{name: rule(name, rewritten(value, rule)) for name, value in parts.items()})


SMALL: dict[str, int] = {
    "vocab": 61, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 128, "length": 160, "span": 8,
    "buckets": 8, "max_distance": 24, "original_length": 64, "block": 4, "random": 1,
}  # fmt: skip


def small(facts: ModelConfig) -> ModelConfig:
    """Published facts in small: three layers of width 64, windows of 24 tokens, all else as it was."""
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

    config = rewritten(without_dropout(facts), rule)
    assert isinstance(config, ModelConfig)
    return config


def shallow(name: str) -> ModelConfig:
    """A published model with few layers: four of each kind of window, all else as it was."""
    facts = preset(name)
    for side in ("encoder", "decoder"):
        stack = getattr(facts, side)
        if stack is not None:
            facts = change(facts, f"{side}.layers", min(stack.layers, 4 * len(stack.attention.windows)))
    return facts
