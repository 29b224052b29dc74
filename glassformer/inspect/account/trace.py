"""Runs a model on fake CPU tensors under an ``OpRecorder``: a forward pass, a training step, or one decoding step.

No memory is allocated and nothing is computed, whatever the size of the model. A module is copied as fake tensors
first, and stays as it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, lru_cache
from threading import Lock
from types import FunctionType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from glassformer.config import ModelConfig
from glassformer.inspect.account.counts import AccountMode, Workload
from glassformer.inspect.account.memory import Weight, location
from glassformer.inspect.account.recorder import OpRecorder
from glassformer.inspect.account.tree import Modules
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import AttentionPath
from glassformer.nn.cache import KVCache

Kernels = Literal["gpu", "cpu"]
Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
ATTENTION_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
DROPOUT_ARGUMENTS = ("input", "p", "training", "inplace")
OVERRIDES = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_IS_CPU = Tensor.is_cpu.__get__  # type: ignore[attr-defined]
_LOCK = Lock()


@dataclass(frozen=True)
class OpTrace:
    """The record of one pass."""

    recorder: OpRecorder
    modules: Modules
    weights: dict[str, Weight]  # shared memory once
    buffers: dict[str, Weight]
    gradients: frozenset[int]  # storages of the gradients of parameters
    cache_bytes: int = 0  # KV cache of a decoding step
    cache_bytes_per_token: int = 0


def trace_model(model: Transformer, workload: Workload) -> OpTrace:
    """Trace a Transformer at these sizes; in ``decode``, the last token of the context after a filled cache."""
    if workload.mode == "decode" and model.decoder is None:
        raise ValueError("mode='decode' is the next token of a decoder, and this model has none; use 'forward'.")
    path, is_training = workload.attention, workload.mode == "train"
    per_token = _cache_bytes_per_token(model.config, next(model.parameters()).dtype)
    with _recording(model, training=is_training) as (recorder, copy):
        fake: Any = copy
        fake.fused = path == "sdpa"
        # One decoding step after a filled cache.
        if workload.mode == "decode":
            return _make_trace(recorder, fake, _decode_step(recorder, fake, workload, path), per_token)
        # A forward pass; in training also the loss and the backward pass.
        with recorder.making_inputs():
            ids = _token_ids(model, workload)
        with recorder.counting():
            output = _forward(recorder, fake, ids, path)
            if is_training:
                with recorder.part("loss"):
                    output = _cross_entropy(recorder, output)
                recorder.charge_saved()
                _backward(recorder, output)
        del output
        return _make_trace(recorder, fake, cache_bytes_per_token=per_token)


def trace_module(module: nn.Module, inputs: Inputs, mode: AccountMode, *, kernels: Kernels = "gpu") -> OpTrace:
    """Trace any module with these inputs; in ``train`` the backward pass starts at its floating-point outputs.

    ``kernels`` is the device whose dropout and attention are counted; see ``GPUKernels`` for the difference.
    """
    if mode == "decode":
        raise ValueError("mode='decode' needs a Transformer of this library, whose cache is known; use 'forward'.")
    with _recording(module, training=mode == "train", kernels=kernels) as (recorder, fake):
        with recorder.making_inputs():
            args, kwargs = tree_map(recorder.fake_input, _arguments(inputs))
        with recorder.counting():
            output = fake(*args, **kwargs)
            if mode == "train":
                recorder.charge_saved()
                _backward(recorder, output)
        del output
        return _make_trace(recorder, fake)


def sizes_of(inputs: Inputs) -> tuple[int, int, int]:
    """Return batch, context and source of a workload: the first input's batch size and, twice, its length."""
    first = next((leaf for leaf in tree_leaves(_arguments(inputs)) if isinstance(leaf, Tensor)), None)
    if first is None:
        raise ValueError("an account of a module needs the tensors that its forward is called with; inputs has none.")
    batch, length, *_ = (*first.shape, 1, 1)
    return batch, length, length


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return ((inputs,) if isinstance(inputs, Tensor) else tuple(inputs)), {}


@contextmanager
def _recording(
    module: nn.Module, *, training: bool, kernels: Kernels = "gpu"
) -> Iterator[tuple[OpRecorder, nn.Module]]:
    """A fake copy of a module, and the recorder that watches it."""
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    default = torch.get_default_device()
    on_cpu = nullcontext() if default.type == "cpu" else torch.device("cpu")
    with torch.inference_mode(False), on_cpu, fake_mode:
        fake = fake_copy(module, fake_mode)
        fake.train(training)
        for child in fake.modules():
            if isinstance(child, nn.TransformerEncoder):
                child.use_nested_tensor = False  # with padding, its fast path uses tensors without a shape
        recorder = OpRecorder(byte_masks=kernels == "gpu")
        recorder.watch(fake, module)
        replaced = GPUKernels(recorder.probing) if kernels == "gpu" else nullcontext()
        with replaced, recorder.recording(), torch.set_grad_enabled(training):
            yield recorder, fake


def _backward(recorder: OpRecorder, output: Any) -> None:
    """Run the backward pass from a loss, or from all differentiable outputs with gradients of ones."""
    outputs = [leaf for leaf in _leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not outputs:
        raise ValueError(
            f"the output of this module, a {'Tensor' if isinstance(output, Tensor) else type(output).__name__}, "
            f"depends on no trainable parameter; use mode='forward'."
        )
    is_loss = len(outputs) == 1 and outputs[0].ndim == 0
    gradients = None if is_loss else [torch.ones_like(tensor) for tensor in outputs]
    with recorder.backward_pass(outputs):
        torch.autograd.backward(outputs, gradients)


def _leaves(output: Any) -> Iterator[Any]:
    """Yield the leaves of lists, dictionaries, dataclasses and custom mappings."""
    for leaf in tree_leaves(output):
        if is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _leaves([getattr(leaf, field.name) for field in fields(leaf)])
        elif isinstance(leaf, Mapping):
            yield from _leaves(list(leaf.values()))
        else:
            yield leaf


def _make_trace(recorder: OpRecorder, fake: nn.Module, cache_bytes: int = 0, cache_bytes_per_token: int = 0) -> OpTrace:
    """Return the trace of a finished pass, with the weights, buffers and gradients of the model."""
    parents = (name for name, module in fake.named_modules() if next(module.children(), None) is not None)
    modules = Modules(frozenset(parents), dict(recorder.calls))
    gradients = recorder.storages.leading_to(weight.grad for weight in fake.parameters() if weight.grad is not None)
    weights, buffers = (
        {name: Weight(tuple(t.shape), t.numel(), t.dtype.itemsize, t.requires_grad) for name, t in tensors}
        for tensors in (_stored_once(fake.named_parameters()), _stored_once(fake.named_buffers()))
    )
    return OpTrace(recorder, modules, weights, buffers, gradients, cache_bytes, cache_bytes_per_token)


def _stored_once(named: Iterator[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return tensors that share memory under their first name; a storage may hold several, as when a file is mapped."""
    tensors: dict[Any, tuple[str, Tensor]] = {}
    for name, tensor in named:
        tensors.setdefault((location(tensor), tensor.shape, tensor.stride()), (name, tensor))
    return list(tensors.values())


# ---- passes of a Transformer


def _token_ids(model: Transformer, workload: Workload) -> dict[str, Tensor]:
    """Return token ids (batch, tokens) for each stack of a model."""
    lengths = {"encoder": workload.source, "decoder": workload.context}
    stacks = [name for name in lengths if getattr(model, name) is not None]
    return {name: torch.zeros(workload.batch, lengths[name], dtype=torch.long) for name in stacks}


def _positions(recorder: OpRecorder, ids: Tensor) -> Tensor:
    """Return explicit positions, which allow a context longer than the model's positions."""
    with recorder.part("embed"):
        return torch.arange(ids.shape[1])


def _encode(recorder: OpRecorder, model: Any, ids: dict[str, Tensor], path: AttentionPath) -> Any:
    if "encoder" not in ids:
        return None
    return model.encode(ids["encoder"], positions=_positions(recorder, ids["encoder"]), path=path)


def _forward(recorder: OpRecorder, model: Any, ids: dict[str, Tensor], path: AttentionPath) -> Any:
    """Return the head's output for every token. The encoder's output is kept to the end, as in ``forward``."""
    memory = _encode(recorder, model, ids, path)
    if "decoder" not in ids:
        return model.apply_head(memory)
    positions = _positions(recorder, ids["decoder"])
    hidden = model.decode(ids["decoder"], memory=memory, positions=positions, path=path)
    del positions
    return model.apply_head(hidden)


def _decode_step(recorder: OpRecorder, model: Any, workload: Workload, path: AttentionPath) -> int:
    """Decode one new token after a filled cache; the bytes of the cache."""
    ids = _token_ids(model, workload)
    memory = _encode(recorder, model, ids, path)
    tokens, positions = ids["decoder"], _positions(recorder, ids["decoder"])
    # Prefill the cache with all tokens but the last, uncounted.
    cache, before = KVCache(capacity=workload.context), max(1, workload.context - 1)
    model.decode(tokens[:, :before], memory=memory, positions=positions[:before], cache=cache, path=path)
    cache.crop(workload.context - 1)
    recorder.storages.start(() if memory is None else (memory,))
    # Count the last token.
    with recorder.counting():
        last = {"positions": positions[-1:], "cache": cache, "path": path}
        model.apply_head(model.decode(tokens[:, -1:], memory=memory, **last))
    return cache.nbytes


@lru_cache(maxsize=64)
def _cache_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of the KV cache per token: those of one layer, run on the meta device, times all layers."""
    if config.decoder is None:
        return 0
    short = replace(config, decoder=replace(config.decoder, layers=1, unique_layers=None))
    model, cache = Transformer(short, "meta", dtype), KVCache(capacity=1)
    with torch.no_grad(), torch.device("meta"):
        memory = None if model.encoder is None else torch.empty(1, 1, config.width, dtype=dtype)
        model.decode(torch.zeros(1, 1, dtype=torch.long), memory=memory, cache=cache)
    tensors = (cache.layer(0).k, cache.layer(0).v)
    return config.decoder.layers * sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _cross_entropy(recorder: OpRecorder, output: Any) -> Tensor:
    """Return cross-entropy over the last axis of every output, summed."""
    total: Tensor | None = None
    for logits in output if isinstance(output, tuple) else (output,):
        flat = logits.reshape(-1, logits.shape[-1])  # (tokens, classes)
        with recorder.making_inputs():
            targets = torch.zeros(len(flat), dtype=torch.long)
        loss = F.cross_entropy(flat, targets)
        total = loss if total is None else total + loss
    assert total is not None
    return total


# ---- fake copies


def fake_copy(module: nn.Module, fake_mode: FakeTensorMode) -> nn.Module:
    """Return a copy of a module with fake CPU tensors; tensors that share memory share it in the copy too."""
    storages: dict[int, Tensor] = {}
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        storage = tensor.untyped_storage()
        size = storage.nbytes() // tensor.dtype.itemsize
        is_whole = tensor.numel() == size and tensor.is_contiguous()
        is_first = storage._cdata not in storages
        if is_first:
            shape = tensor.shape if is_whole else (size,)
            storages[storage._cdata] = torch.empty(shape, dtype=tensor.dtype, device="cpu")
        fake = storages[storage._cdata]
        if not (is_first and is_whole):
            fake = fake.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        memo[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
    with FakeCopyMode(fake_mode):
        return deepcopy(module, memo)


# ---- kernels of a GPU


class GPUKernels(TorchFunctionMode):
    """Replaces dropout, and attention with dropout, by the single operators that a GPU has for them.

    * Dropout on a CPU stores a factor for each element; a GPU's kernel, ``native_dropout``, stores one byte.
    * ``F.scaled_dot_product_attention`` with dropout is computed by its formula on a CPU, which stores scores and
      masks. On a GPU it is one kernel, which regenerates its random numbers in the backward pass. It is accounted as
      that kernel wherever PyTorch has a fused kernel for the same call without dropout. Elsewhere the formula runs, and
      its mask is counted as one byte per element (see ``OperatorRule.is_mask``).

    ``probing`` returns a context in which operators are not counted, and which yields the list of their names.
    """

    def __init__(self, probing: Callable[[], AbstractContextManager[list[str]]]) -> None:
        super().__init__()
        self._probing = probing

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace attention and dropout, also inside ``multi_head_attention_forward``, which calls both."""
        del types
        kwargs = kwargs or {}
        if func == _IS_CPU:  # a GPU computes the loss in larger chunks
            return False
        if func is F.scaled_dot_product_attention:
            return self._attend(dict(zip(ATTENTION_ARGUMENTS, args, strict=False)) | kwargs)
        if func is F.dropout:
            return self._drop(**(dict(zip(DROPOUT_ARGUMENTS, args, strict=False)) | kwargs))
        if func is F.multi_head_attention_forward:
            with self:
                return _without_override(func)(*args, **kwargs)
        if func is torch.lstm:
            with _without_mkldnn():
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def _drop(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        if not training or p in (0.0, 1.0) or inplace:
            return F.dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    def _attend(self, arguments: dict[str, Any]) -> Any:
        if arguments.get("dropout_p"):
            without_dropout = arguments | {"dropout_p": 0.0}
            with self._probing() as operators:
                F.scaled_dot_product_attention(**without_dropout)
            if any("_scaled_dot_product" in name for name in operators):
                arguments = without_dropout
        return F.scaled_dot_product_attention(**arguments)


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Run an LSTM step by step and not as one operator of MKL-DNN. The setting is global to all threads."""
    with _LOCK:
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            yield
        finally:
            torch._C._set_mkldnn_enabled(before)


@cache
def _without_override(func: FunctionType) -> FunctionType:
    """Return the same function without its check for overrides, which would make it call itself forever in a mode."""
    names = {**func.__globals__, **dict.fromkeys(OVERRIDES, lambda *_: False)}
    copy = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
