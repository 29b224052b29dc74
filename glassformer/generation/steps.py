"""How decoding steps are run: each from Python, or all of them as one CUDA graph.

On a GPU, a step of a small model takes less time than Python needs to launch its few hundred kernels. With a static
cache (``nn.kernels.static_cache``) every step launches the same kernels on the same buffers, so they can be recorded
once and then be launched together. The values of ``Decoding``:

* ``dynamic``: a cache that grows; kernels launched one by one. Works for every model and every search.
* ``static``: a cache of fixed size, tokens chosen on the device where the search allows it; kernels launched one by
  one.
* ``graph``: the same, captured as a CUDA graph.
* ``compiled``: the same, compiled by ``torch.compile``, and on a GPU captured. Compiling takes 10 to 40 seconds.
* ``auto``: ``graph`` on a GPU wherever that is possible, else ``dynamic``.

A captured step repeats kernels, not Python: hooks, observers and modules of other libraries would not be called, so
such models are decoded dynamically. Captured steps are kept, a few per model, for searches with the same sizes.

Shapes: ``B`` rows, ``V`` vocabulary, ``M`` source tokens in ``memory`` (the encoder's output), ``N`` its rows.
"""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import is_dataclass
from typing import Generic, TypeVar, get_args
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.config.checks import check_choice
from glassformer.config.options import Decoding
from glassformer.generation.decoder import AHEAD, Decoder
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import AttentionPath
from glassformer.nn.cache import KVCache
from glassformer.nn.kernels import step_kernels
from glassformer.nn.kernels.compiler import compile_alone
from glassformer.nn.kernels.operators import has_global_hooks, runs_plain_forward
from glassformer.nn.kernels.static_cache import StaticCache, capacity_for, layer_shapes
from glassformer.nn.observer import ModelKey, is_observed

DECODINGS = get_args(Decoding)
MAX_KEPT = 4  # captured steps that are kept per model; each holds a cache
MEMORY_SLOTS = 32  # ``memory`` (the encoder's output) is padded to a multiple of this many tokens
ATTENTION_KINDS = ("flash", "mem_efficient", "cudnn", "math")  # of PyTorch's kernels
WARM_UP = 2  # steps before the capture, in which libraries allocate what they need


class StepState:
    """The tensors that a step uses and changes: the cache, the mask of ``memory``, the tokens to feed next."""

    def __init__(self, decoder: Decoder, cache: KVCache, rows: int, capacity: int) -> None:
        self.path: AttentionPath = decoder.path
        self.rows, self.capacity = rows, capacity
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=decoder.device)
        slots = None if decoder.memory is None else memory_slots(decoder)
        self.cache = StaticCache(cache, capacity, slots, max_length=decoder.model.max_length)
        self.memory: Tensor | None = None
        self.memory_mask: Tensor | None = None
        if decoder.memory is not None and slots is not None:
            # Keys and values of the encoder's output are in the cache: its vectors are not needed, only their shape.
            self.memory = decoder.memory.new_zeros(1, 1, 1).expand(len(decoder.memory), slots, decoder.memory.shape[-1])
            self.memory_mask = torch.ones(len(decoder.memory), slots, dtype=torch.bool, device=decoder.device)

    def fill(self, decoder: Decoder, cache: KVCache) -> None:
        """Continue from an ordinary cache that the decoder has filled."""
        self.cache.fill(cache)
        if self.memory_mask is not None and decoder.memory is not None:
            length = decoder.memory.shape[1]
            self.memory_mask.zero_()
            self.memory_mask[:, :length] = True if decoder.memory_mask is None else decoder.memory_mask

    def grow_from(self, smaller: "StepState") -> None:
        """Continue from a state with fewer slots."""
        self.cache.fill(smaller.cache)
        self.tokens.copy_(smaller.tokens)
        if self.memory_mask is not None and smaller.memory_mask is not None:
            self.memory_mask.copy_(smaller.memory_mask)

    def feed(self, model: Transformer) -> Float[Tensor, "B V"]:
        """Feed one token per row to the model; return the logits of the next ones."""
        hidden = model.decode(
            self.tokens, memory=self.memory, memory_mask=self.memory_mask, cache=self.cache, path=self.path
        )
        logits: Tensor = model.apply_head(hidden)[:, -1]
        self.cache.advance()
        return logits

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor of the state and its cache."""
        yield from (value for value in vars(self).values() if isinstance(value, Tensor))
        yield from self.cache.tensors()

    def step(self, model: Transformer) -> None:
        """Feed the next tokens and do what the search does with the logits."""
        raise NotImplementedError


class LogitsState(StepState):
    """A step for searches that choose tokens in Python: it ends with the logits."""

    def __init__(self, decoder: Decoder, cache: KVCache, rows: int, capacity: int, logits: Tensor) -> None:
        super().__init__(decoder, cache, rows, capacity)
        self.logits = torch.zeros_like(logits)

    def step(self, model: Transformer) -> None:
        """Feed the next tokens; keep the logits."""
        self.logits.copy_(self.feed(model))


S = TypeVar("S", bound=StepState)


Make = Callable[[KVCache, int], S]  # (cache to imitate, capacity) -> an unfilled state


class StepRunner(Generic[S]):
    """The steps of one search. They begin with ``begin`` and end with ``close``, whatever happens in between.

    Args:
        decoder: the model, and the encoder's output.
        kind: what the step does with the logits; states of the same kind and sizes are interchangeable.
        make: makes an empty state for a cache and a number of slots.
    """

    def __init__(self, decoder: Decoder, kind: Hashable, make: Make[S]) -> None:
        self._decoder, self._decoding, self._kind, self._make = decoder, decoder.decoding, kind, make
        self._captured: _Captured | None = None
        self._run: Callable[[], None]
        self._left = 0  # empty slots
        self.state: S

    def begin(self, cache: KVCache, max_steps: int) -> S:
        """Return the state, filled from an ordinary cache, for up to ``max_steps`` steps."""
        # Compiling takes long, so it is done for all steps at once; captured steps grow when they must.
        ahead = max_steps if self._decoding == "compiled" else min(max_steps, AHEAD)
        self.state = self._take(cache, capacity_for(cache.length + ahead))
        self.state.fill(self._decoder, cache)
        self._left = self.state.capacity - cache.length
        return self.state

    def run(self) -> None:
        """Run one step."""
        if not self._left:
            before, captured = self.state, self._captured
            self._captured = None
            self.state = self._take(before.cache, capacity_for(2 * before.capacity))
            self.state.grow_from(before)
            _give_back(self._decoder.model, captured)
            self._left = self.state.capacity - before.capacity
        self._left -= 1
        self._run()

    def close(self) -> None:
        """Keep the captured step for other searches."""
        captured, self._captured = self._captured, None
        _give_back(self._decoder.model, captured)

    def _take(self, cache: KVCache, capacity: int) -> S:
        model = self._decoder.model
        if self._decoding == "static" or (self._decoding == "compiled" and self._decoder.device.type != "cuda"):
            state = self._make(cache, capacity)
            step = compiled(state) if self._decoding == "compiled" else state.step
            self._run = lambda: step(model)
            return state
        memory = None if self._decoder.memory is None else (len(self._decoder.memory), memory_slots(self._decoder))
        key = (self._decoding, self._kind, capacity, memory, self._decoder.path, *layer_shapes(cache))
        self._captured = _borrow(model, key) or _Captured(key, self._make(cache, capacity), model, self._decoding)
        self._run = self._captured.graph.replay
        return self._captured.state  # type: ignore[return-value]  # the key has the kind


def compiled(state: StepState) -> Callable[[Transformer], None]:
    """Return the step of a state as one compiled function, which is compiled at its first call and freed with it."""

    def step(model: Transformer) -> None:
        state.step(model)

    return compile_alone(step, dynamic=False)


# ---- captured steps, kept per model


class _Captured:
    """A step as a CUDA graph, with the state that its kernels use and change."""

    def __init__(self, key: Hashable, state: StepState, model: Transformer, decoding: Decoding) -> None:
        self.key, self.state = key, state
        self.fingerprint = _fingerprint(model)
        step = compiled(state) if decoding == "compiled" else state.step
        self._step = step  # keeps alive the constants and kernels that the graph uses
        self._device = device = state.tokens.device
        # The stream on which the state was allocated, and the one that replays the graph.
        self._owner = self._user = torch.cuda.current_stream(device)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), _CAPTURING, step_kernels.activate(model.fused):
            stream = _stream(device)
            stream.wait_stream(self._user)
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):  # the state holds nothing yet: it is filled after the capture
                    step(model)
                stream.synchronize()
                # Other threads may go on using the device. (torch.cuda.graph would also run the garbage collector.)
                self.graph.capture_begin(capture_error_mode="thread_local")
                try:
                    step(model)
                finally:
                    self.graph.capture_end()
            self._user.wait_stream(stream)

    def acquire(self) -> None:
        """Make the current stream the one that replays the step, after what the last search launched."""
        self._user = torch.cuda.current_stream(self._device)
        self._user.wait_event(self._done)
        if self._user != self._owner:  # so that the memory of a freed state is not reused before this stream is done
            for tensor in self.state.tensors():
                tensor.record_stream(self._user)

    def release(self) -> None:
        """Record an event after what the search launched; Python does not wait for it."""
        self._done.record(self._user)


_CAPTURING = threading.Lock()
_KEEPING = threading.Lock()
# The captured steps of each model that no search uses at the moment, the least recently used first.
_KEPT: WeakKeyDictionary[ModelKey, list[_Captured]] = WeakKeyDictionary()
_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that steps are captured on; one per device, because libraries keep buffers for each stream."""
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _STREAMS[device]


def _borrow(model: Transformer, key: Hashable) -> _Captured | None:
    """Return a captured step that no other search uses; drop those captured before the model changed."""
    fingerprint = _fingerprint(model)
    with _KEEPING:
        kept = [step for step in _KEPT.get(model.model_key, []) if step.fingerprint == fingerprint]
        found = next((step for step in kept if step.key == key), None)
        _KEPT[model.model_key] = [step for step in kept if step is not found]
    if found is not None:
        found.acquire()
    return found


def _give_back(model: Transformer, captured: _Captured | None) -> None:
    if captured is not None:
        captured.release()
        with _KEEPING:
            _KEPT[model.model_key] = [*_KEPT.get(model.model_key, []), captured][-MAX_KEPT:]


def release(model: Transformer) -> None:
    """Free the captured steps of a model, and their caches."""
    with _KEEPING:
        _KEPT.pop(model.model_key, None)


def _fingerprint(model: Transformer) -> Hashable:
    """Return what the kernels of a step depend on.

    That is: PyTorch's backend flags, the storage of the weights, and the facts and plain attributes of all modules.
    """
    parts: list[Hashable] = [_backend_flags()]
    for module in model.modules():
        parts.append(id(type(module)))
        for name, value in vars(module).items():
            # (A list holds the windows of the layers.)
            is_plain = type(value) in (bool, int, float, str, list, tuple) or is_dataclass(value)
            if is_plain and name not in ("training", "_is_full_backward_hook"):
                parts.append((name, repr(value)))
        parts += [_storage_key(x) for x in (*module._parameters.values(), *module._buffers.values()) if x is not None]
    return tuple(parts)


def _backend_flags() -> Hashable:
    """Return the flags of this process by which PyTorch chooses kernels."""
    cuda = torch.backends.cuda
    products = (
        "fp32_precision",  # also set by set_float32_matmul_precision, which cannot be read once this one was set
        "allow_fp16_accumulation",
        *(f"allow_{kind}_reduced_precision_reduction{how}" for kind in ("fp16", "bf16") for how in ("", "_split_k")),
    )
    attention = (*(f"{kind}_sdp_enabled" for kind in ATTENTION_KINDS), "fp16_bf16_reduction_math_sdp_allowed")
    return (
        *(getattr(cuda.matmul, name, None) for name in products),
        *(getattr(cuda, name)() for name in attention),
        str(cuda.preferred_blas_library()),
        torch.get_deterministic_debug_mode(),
        torch.get_default_dtype(),
    )


def _storage_key(x: Tensor) -> Hashable:
    """Return what a kernel that was recorded with this tensor depends on."""
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x.device


# ---- the choice of decoding


def choose_decoding(model: Transformer, decoding: Decoding, why_dynamic: str | None = None) -> Decoding:
    """Return how to run the steps of a search: resolve ``auto``, and raise an error for what is impossible.

    ``why_dynamic``: why the search needs a cache that grows and shrinks, if it does.
    """
    check_choice("decoding", decoding, DECODINGS)
    if decoding == "dynamic" or (decoding == "auto" and next(model.parameters()).device.type != "cuda"):
        return "dynamic"
    reason = why_dynamic
    if reason is None and is_observed(model):
        reason = "the model is observed: a captured step calls no observer, and a static cache has empty slots"
    if reason is None and decoding != "static":
        reason = why_not_captured(model, decoding)
    if decoding == "auto":
        return "graph" if reason is None else "dynamic"
    if reason is not None:
        raise ValueError(f'decoding="{decoding}" is not possible: {reason}. Use decoding="dynamic", or "auto".')
    return decoding


def why_not_captured(model: Transformer, decoding: Decoding) -> str | None:
    """Return why the steps of a model cannot be captured or compiled; None if they can."""
    tensors = [*model.parameters(), *model.buffers()]
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        return f"the model is on several devices, {', '.join(sorted(map(str, devices)))}"
    device = next(iter(devices))
    if decoding in ("graph", "auto") and device.type != "cuda":
        return f"a CUDA graph needs a GPU, and the model is on {device}"
    if torch.is_autocast_enabled(device.type):
        return "torch.autocast is on"
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return "a torch dispatch or function mode sees each operation in Python"
    if any(type(tensor.data) is not Tensor for tensor in tensors):
        return "the weights are not plain tensors"
    return _python_in(model.modules())


def _python_in(modules: Iterable[nn.Module]) -> str | None:
    """Return what must run in Python at every step: hooks, modules of other libraries, replaced methods."""
    if has_global_hooks():
        return "hooks of all modules (global hooks) are called at each step"
    for module in modules:
        what = type(module).__name__
        if not runs_plain_forward(module) or module._compiled_call_impl is not None:
            return f"a call of a {what} runs a hook, or a forward method that was replaced"
        if not type(module).__module__.startswith(("glassformer.", "torch.nn.modules.")):
            return f"a {what} is not one of the library's modules, and may do anything in Python"
    return None


def memory_slots(decoder: Decoder) -> int:
    """Return the source length, rounded up, so that sources of similar lengths share a captured step."""
    assert decoder.memory is not None
    return -(-decoder.memory.shape[1] // MEMORY_SLOTS) * MEMORY_SLOTS


# ---- searches that choose tokens in Python


class LogitsSteps:
    """Feeds tokens step by step and returns logits. Rows that have ended stay in the batch; their logits are ignored.

    With ``decoding="dynamic"`` a step is ``Decoder.step``, and rows that have ended leave the cache.
    """

    def __init__(self, decoder: Decoder, cache: KVCache, logits: Float[Tensor, "B V"], max_steps: int) -> None:
        self._decoder, self._cache = decoder, cache
        self._steps: StepRunner[LogitsState] | None = None
        if decoder.decoding != "dynamic":
            rows = len(logits)
            self._steps = StepRunner(
                decoder,
                ("logits", rows, logits.dtype),
                lambda like, capacity: LogitsState(decoder, like, rows, capacity, logits),
            )
            self._steps.begin(cache, max_steps)
            self._rows = torch.arange(rows, device=decoder.device)

    def select(self, alive: list[int]) -> None:
        """Continue with these rows only."""
        if self._steps is None:
            self._decoder.select(self._cache, alive)
        else:
            self._rows = self._rows[torch.tensor(alive, device=self._rows.device)]

    def step(self, tokens: list[int]) -> Float[Tensor, "B V"]:
        """Feed one more token per row; return the logits of the next ones."""
        ids = torch.tensor(tokens, device=self._decoder.device).unsqueeze(-1)  # B 1
        if self._steps is None:
            return self._decoder.step(ids, self._cache)[:, -1]
        self._steps.state.tokens[self._rows] = ids
        self._steps.run()
        logits = self._steps.state.logits
        return logits if len(self._rows) == len(logits) else logits[self._rows]

    def close(self) -> None:
        """Keep the captured step for other searches."""
        if self._steps is not None:
            self._steps.close()
