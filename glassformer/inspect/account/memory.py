"""Where the memory goes: what is held from pass to pass, what a pass adds to it, and how high it gets."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from glassformer.inspect.account.load import Load

if TYPE_CHECKING:
    from glassformer.inspect.account.trace import Trace

Optimizer = Literal["adamw", "adamw-master", "adamw-8bit", "none"]
BLOCK = 256  # weights that share a scale in 8-bit states (Dettmers et al., 2022)


@dataclass(frozen=True)
class Weight:
    """A parameter or a buffer."""

    shape: tuple[int, ...]
    numel: int
    itemsize: int  # bytes of a number
    is_trained: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.numel * self.itemsize


@dataclass(frozen=True)
class Memory:
    """Bytes. ``activations`` are those held for a backward pass, ``checkpointed`` the same if every layer keeps its
    input alone and runs again; ``peak`` is the highest level, everything included."""

    weights: int  # parameters and buffers
    gradients: int = 0
    optimizer: int = 0
    kv_cache: int = 0
    kv_cache_per_token: int = 0
    activations: int = 0
    checkpointed: int = 0
    working: int = 0  # the highest level of a training step without weights, their gradients and the optimizer's states
    peak: int = 0

    @property
    def held(self) -> int:
        """What stays from one pass to the next."""
        return self.weights + self.gradients + self.optimizer + self.kv_cache


def memory_of(trace: "Trace", load: Load, optimizer: Optimizer, kv_cache_per_token: int) -> Memory:
    """The memory of a pass that has been traced."""
    recorder, storages = trace.recorder, trace.recorder.storages
    weights = sum(one.nbytes for one in (*trace.weights.values(), *trace.buffers.values()))
    if load.mode != "train":
        peak = weights + trace.cache_bytes + storages.peak()
        return Memory(weights, kv_cache=trace.cache_bytes, kv_cache_per_token=kv_cache_per_token, peak=peak)
    trained = [one for one in trace.weights.values() if one.is_trained]
    gradients, states = sum(one.nbytes for one in trained), optimizer_bytes(optimizer, trained)
    inside = [sum(storages.all[number].nbytes for number in layer) for layer in recorder.saved_inside]
    return Memory(
        weights,
        gradients=gradients,
        optimizer=states,
        kv_cache_per_token=kv_cache_per_token,
        activations=sum(storages.all[one.storage].nbytes for one in recorder.saved),
        checkpointed=sum(storages.all[number].nbytes for number in recorder.saved_outside) + max(inside, default=0),
        working=storages.peak(trace.gradients),
        peak=max(weights + gradients + states, weights + states + storages.peak()),
    )


def optimizer_bytes(optimizer: Optimizer, trained: Iterable[Weight]) -> int:
    """What the optimizer remembers: running means of gradients and of their squares, and perhaps a finer weight."""
    weights = list(trained)
    count = sum(one.numel for one in weights)
    if optimizer == "adamw":
        return 2 * sum(one.nbytes for one in weights)
    if optimizer == "adamw-master":
        return 3 * count * 4
    if optimizer == "adamw-8bit":
        return 2 * (count + 4 * -(-count // BLOCK))
    return 0
