"""Runs a model on fake CPU tensors under an ``OpRecorder``: a forward pass, a training step, or one decoding step.

No memory is allocated and nothing is computed, whatever the size of the model. A model of one's own is copied first, as
fake tensors, and stays as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from glassformer.config import Model
from glassformer.inspect.account.load import Load, Mode
from glassformer.inspect.account.memory import Weight
from glassformer.inspect.account.recorder import OpRecorder
from glassformer.inspect.account.storages import place
from glassformer.inspect.account.tree import Modules
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import AttentionPath
from glassformer.nn.cache import KVCache

PATHS: dict[str, AttentionPath] = {"fused": "sdpa", "eager": "eager"}
Inputs = Tensor | Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Trace:
    """What was seen of one pass."""

    recorder: OpRecorder
    modules: Modules
    weights: dict[str, Weight]  # each stored number once
    buffers: dict[str, Weight]
    gradients: frozenset[int]  # storages that became the gradients of parameters
    cache_bytes: int = 0


def trace_model(model: Transformer, load: Load) -> Trace:
    """A Transformer at these sizes; in ``decode`` the last token of the context, the others being in the cache."""
    if load.mode == "decode":
        return _trace_step(model, load)
    with _recording(model, training=load.mode == "train") as (recorder, found):
        made: Any = found
        made.fused = load.attention == "fused"
        with recorder.given():
            ids = _ids(model, load)
        with recorder.counting():
            answer = _answer(recorder, made, ids, PATHS[load.attention])
            if load.mode == "train":
                with recorder.part("loss"):
                    answer = _cross_entropy(recorder, answer)
                recorder.book_saved()
                _backward(recorder, answer)
        del answer
        return _seen(recorder, made)


def trace_module(module: nn.Module, inputs: Inputs, mode: Mode) -> Trace:
    """Any module with these inputs; in ``train`` its floating-point outputs are handed gradients."""
    if mode == "decode":
        raise ValueError("mode='decode' needs a Transformer of this library, which knows its cache; use 'forward'.")
    with _recording(module, training=mode == "train") as (recorder, made):
        with recorder.given():
            args, kwargs = tree_map(recorder.stand_in, _arguments(inputs))
        with recorder.counting():
            answer = made(*args, **kwargs)
            if mode == "train":
                recorder.book_saved()
                _backward(recorder, answer)
        del answer
        return _seen(recorder, made)


def sizes_of(inputs: Inputs) -> tuple[int, int]:
    """Rows and length of the first tensor of the inputs."""
    first = next((one for one in tree_leaves(_arguments(inputs)) if isinstance(one, Tensor)), None)
    if first is None:
        raise ValueError("a module is accounted for with the tensors that it is called with; inputs has none.")
    rows, length, *_ = (*first.shape, 1, 1)
    return rows, length


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return ((inputs,) if isinstance(inputs, Tensor) else tuple(inputs)), {}


@contextmanager
def _recording(module: nn.Module, *, training: bool) -> Iterator[tuple[OpRecorder, nn.Module]]:
    """A private fake copy of a module, and the recorder that watches it."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    default = torch.get_default_device()
    on_cpu = nullcontext() if default.type == "cpu" else torch.device("cpu")
    with torch.inference_mode(False), on_cpu, fake:
        made = fake_copy(module, fake)
        made.train(training)
        for one in made.modules():
            if isinstance(one, nn.TransformerEncoder):
                one.use_nested_tensor = False  # with padding, its fast path has tensors without a shape
        recorder = OpRecorder(fake)
        recorder.watch(made, module)
        with recorder.recording(), torch.set_grad_enabled(training):
            yield recorder, made


def _backward(recorder: OpRecorder, answer: Any) -> None:
    outputs = [one for one in _leaves(answer) if isinstance(one, Tensor) and one.requires_grad]
    if not outputs:
        raise ValueError(
            f"nothing that this module returns, a {'Tensor' if isinstance(answer, Tensor) else type(answer).__name__}, "
            f"depends on a parameter that is trained; use mode='forward'."
        )
    is_loss = len(outputs) == 1 and outputs[0].ndim == 0
    gradients = None if is_loss else [torch.ones_like(one) for one in outputs]
    with recorder.going_back(outputs):
        torch.autograd.backward(outputs, gradients)


def _leaves(answer: Any) -> Iterator[Any]:
    """What is inside lists, dictionaries, dataclasses and mappings of one's own."""
    for one in tree_leaves(answer):
        if is_dataclass(one) and not isinstance(one, type):
            yield from _leaves([getattr(one, field.name) for field in fields(one)])
        elif isinstance(one, Mapping):
            yield from _leaves(list(one.values()))
        else:
            yield one


def _seen(recorder: OpRecorder, made: nn.Module, cache_bytes: int = 0) -> Trace:
    found = dict(made.named_modules())
    modules = Modules(
        frozenset(name for name, module in found.items() if next(module.children(), None) is not None),
        dict(recorder.calls),
    )
    trained = recorder.storages.leading_to(one.grad for one in made.parameters() if one.grad is not None)
    weights, buffers = (
        {name: Weight(tuple(one.shape), one.numel(), one.dtype.itemsize, one.requires_grad) for name, one in stored}
        for stored in (_stored_once(made.named_parameters()), _stored_once(made.named_buffers()))
    )
    return Trace(recorder, modules, weights, buffers, trained, cache_bytes)


def _stored_once(named: Iterator[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Each part of memory under its first name; several may lie in one storage, as when a file is mapped."""
    found: dict[Any, tuple[str, Tensor]] = {}
    for name, tensor in named:
        found.setdefault((place(tensor), tensor.shape, tensor.stride()), (name, tensor))
    return list(found.values())


# ---- what a Transformer is asked


def _ids(model: Transformer, load: Load) -> dict[str, Tensor]:
    """Token ids for each stack that a model has."""
    lengths = {"encoder": load.source, "decoder": load.context}
    has = [name for name in lengths if getattr(model, name) is not None]
    return {name: torch.zeros(load.batch, lengths[name], dtype=torch.long) for name in has}


def _positions(recorder: OpRecorder, ids: Tensor) -> Tensor:
    """What the model would count itself. With them, a context beyond its positions can be accounted for."""
    with recorder.part("embed"):
        return torch.arange(ids.shape[1])


def _answer(recorder: OpRecorder, model: Any, ids: dict[str, Tensor], path: AttentionPath) -> Any:
    """What the head answers for every token. The encoder's output is held up to the end, as ``forward`` does."""
    memory = None
    if "encoder" in ids:
        memory = model.encode(ids["encoder"], positions=_positions(recorder, ids["encoder"]), path=path)
    if "decoder" not in ids:
        return model.apply_head(memory)
    positions = _positions(recorder, ids["decoder"])
    hidden = model.decode(ids["decoder"], memory=memory, positions=positions, path=path)
    del positions
    return model.apply_head(hidden)


def _trace_step(model: Transformer, load: Load) -> Trace:
    """One new token through the model's own modules, after a cache has been filled with those before it."""
    path = PATHS[load.attention]
    with _recording(model, training=False) as (recorder, found):
        made: Any = found
        made.fused = load.attention == "fused"
        ids, memory = _ids(model, load), None
        if "encoder" in ids:
            memory = made.encode(ids["encoder"], positions=_positions(recorder, ids["encoder"]), path=path)
        tokens, positions = ids["decoder"], _positions(recorder, ids["decoder"])
        cache, before = KVCache(capacity=load.context), max(1, load.context - 1)
        made.decode(tokens[:, :before], memory=memory, positions=positions[:before], cache=cache, path=path)
        cache.crop(load.context - 1)
        recorder.storages.start(() if memory is None else (memory,))
        with recorder.counting():
            last = {"positions": positions[-1:], "cache": cache, "path": path}
            made.apply_head(made.decode(tokens[:, -1:], memory=memory, **last))
        return _seen(recorder, found, cache.nbytes)


def kv_cache_per_token(config: Model, dtype: str) -> int:
    """Bytes that a cache keeps for each token of a decoder: what one layer of the model puts there, for all layers."""
    if config.decoder is None:
        return 0
    short = replace(config, decoder=replace(config.decoder, layers=1, unique_layers=None))
    model, cache = Transformer(short, "meta", getattr(torch, dtype)), KVCache(capacity=1)
    with torch.no_grad(), torch.device("meta"):
        memory = None if model.encoder is None else torch.empty(1, 1, config.width, dtype=getattr(torch, dtype))
        model.decode(torch.zeros(1, 1, dtype=torch.long), memory=memory, cache=cache)
    kept = [one for one in (cache.layer(0).k, cache.layer(0).v) if one is not None]
    return config.decoder.layers * sum(one.nbytes for one in kept)


def _cross_entropy(recorder: OpRecorder, answer: Any) -> Tensor:
    """Of the last axis of every answer."""
    total: Tensor | None = None
    for one in answer if isinstance(answer, tuple) else (answer,):
        flat = one.reshape(-1, one.shape[-1])
        with recorder.given():
            targets = torch.zeros(len(flat), dtype=torch.long)
        loss = F.cross_entropy(flat, targets)
        total = loss if total is None else total + loss
    assert total is not None
    return total


# ---- fake copies


def fake_copy(module: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """A copy of a module whose tensors are fake ones on the CPU; tensors that share memory share it in the copy too."""
    bases: dict[int, Tensor] = {}
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        made = _fake_twin(tensor, bases)
        memo[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
    with FakeCopyMode(fake):
        return deepcopy(module, memo)


def _fake_twin(tensor: Tensor, bases: dict[int, Tensor]) -> Tensor:
    storage = tensor.untyped_storage()
    size = storage.nbytes() // tensor.dtype.itemsize
    base = bases.setdefault(storage._cdata, torch.empty(size, dtype=tensor.dtype, device="cpu"))
    return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
