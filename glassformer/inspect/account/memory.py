"""Where the memory goes: what is held from pass to pass, what a pass adds to it, and how high it gets."""

from dataclasses import dataclass
from typing import Literal

from glassformer.config import Model, Stack
from glassformer.inspect.account.passes import Job
from glassformer.inspect.account.walk import Walk

Optimizer = Literal["adamw", "adamw-master", "adamw-8bit", "none"]
BLOCK = 256  # weights that share a scale in 8-bit states (Dettmers et al., 2022)


@dataclass(frozen=True)
class Memory:
    """Bytes. ``activations`` are those held for a backward pass, ``checkpointed`` the same if every block keeps its
    input alone and runs again; ``peak`` is the highest level, everything included."""

    weights: int
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


def memory_of(facts: Model, walk: Walk, job: Job, parameters: int, optimizer: Optimizer) -> Memory:
    """The memory of a job whose forward pass has been walked."""
    weights, per_token = parameters * walk.width, cache_per_token(facts, walk.width)
    if job.mode == "train":
        states = optimizer_bytes(optimizer, parameters, walk.width)
        activations, checkpointed = walk.saved, walk.checkpointed
        walk.go_back()
        peak = max(2 * weights + states, weights + states + walk.peak)
        return Memory(
            weights,
            gradients=weights,
            optimizer=states,
            kv_cache_per_token=per_token,
            activations=activations,
            checkpointed=checkpointed,
            working=walk.working,
            peak=peak,
        )
    cached = _cache_bytes(facts, job, walk.width) if job.mode == "decode" else 0
    return Memory(weights, kv_cache=cached, kv_cache_per_token=per_token, peak=weights + cached + walk.peak)


def optimizer_bytes(optimizer: Optimizer, parameters: int, width: int) -> int:
    """What the optimizer remembers: running means of gradients and of their squares, and perhaps a finer weight."""
    if optimizer == "adamw":
        return 2 * parameters * width
    if optimizer == "adamw-master":
        return 3 * parameters * 4
    if optimizer == "adamw-8bit":
        return 2 * (parameters + 4 * -(-parameters // BLOCK))
    return 0


def cache_per_token(facts: Model, width: int) -> int:
    """Bytes of the keys and values of one token in all layers of the decoder."""
    return 0 if facts.decoder is None else facts.decoder.layers * _keys_and_values(facts.decoder, width)


def _keys_and_values(stack: Stack, width: int) -> int:
    return 2 * (stack.attention.kv_heads or stack.attention.heads) * stack.attention.head_dim * width


def _cache_bytes(facts: Model, job: Job, width: int) -> int:
    """Every slot of every row, and of an encoder's output once more: keys and values of its tokens in each layer.

    As ``KVCache`` holds them unless it forgets what windows no longer show, which depends on how the text came in.
    """
    slots = job.tokens + (job.source if facts.encoder is not None else 0)
    return job.batch * slots * cache_per_token(facts, width)
