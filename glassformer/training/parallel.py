"""Training on several devices, applied to a model from outside: one process per device, started by ``torchrun``.

``ddp`` gives every process the whole model (Li et al., 2020), ``fsdp`` a shard of every weight, of its gradient and of
the optimizer's state (Rajbhandari et al., 2020; PyTorch's ``fully_shard``). Either way a step does what one process
would do with all of its micro-batches. The engine is PyTorch's; matrix products run in the precision of ``Settings``,
by autocast as everywhere; weights, gradients and their exchange stay in the type of the weights.

The order is fixed: activation checkpointing → compilation → ``wrap`` → optimizers → ``Trainer``. ::

    with parallel.start() as process:
        torch.manual_seed(seed)  # the same weights everywhere
        model = Transformer(facts).to(process.device)
        wrap = parallel.wrap("fsdp", model)  # from here on its parameters are shards, and random numbers differ
        optimizers = [adamw(model, lr)]
        accumulate = parallel.micro_batches_per_process(micro_batches, process.world)
        settings = Settings(steps=1000, accumulate=accumulate)
        loader = Loader(data, objective.prepare, plan, seed=seed, rank=process.rank, world=process.world)
        trainer = Trainer(model, objective, loader, optimizers, settings, wrap=wrap)
        for report in trainer:
            if process.is_first:
                print(report.loss)
            # All processes call it.
            checkpoints.write(report.step, lambda folder: write_run(folder, trainer, fingerprint))

The same lines serve one process, for which nothing is started, wrapped or sharded. Functions that communicate must be
called by all processes, in the same order. A sharded tensor is PyTorch's ``DTensor``; functions that take one leave
plain tensors as they are.
"""

import atexit
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from glassformer.config.checks import check_choice, check_positive_integer, check_positive_number
from glassformer.data.batching import check_rank, hashed
from glassformer.hub import check_device
from glassformer.models.stack import Stack

ParallelKind = Literal["ddp", "fsdp"]
Wrap = Callable[[nn.Module], nn.Module]
Value = TypeVar("Value")
Item = TypeVar("Item")
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
# Seconds to wait for another process that hangs. (One that dies is noticed at once, or torchrun ends the others.) It
# is longer than anything that the first process does alone while the others wait, such as training a tokenizer.
TIMEOUT = 2 * 60 * 60.0
# Process groups of failed runs, kept until the program ends. Otherwise the DDP model that the error's frames hold would
# release its group last, and wait for the group's threads while it holds Python's lock, for which they may wait.
_failed_groups: list[dist.ProcessGroup | None] = []
atexit.register(_failed_groups.clear)
_rank_zero_works: ContextVar[bool] = ContextVar("rank_zero_works", default=False)  # alone, while the others wait


class LostProcessError(RuntimeError):
    """Another process has stopped, or did not answer in time."""


class FailedElsewhereError(RuntimeError):
    """The first process failed at what the others waited for."""


@dataclass(frozen=True)
class Process:
    """One of the processes that train together. Only the first prints, logs and writes."""

    device: torch.device
    rank: int = 0
    world: int = 1
    local_world: int = 1  # processes on this machine

    @property
    def is_first(self) -> bool:
        """Whether it is the one that prints, logs and writes."""
        return self.rank == 0


@contextmanager
def start(device: str | None = None, *, timeout: float = TIMEOUT) -> Iterator[Process]:
    """Join the processes that ``torchrun`` started, and leave them at the end, whatever happens.

    Args:
        device: ``cpu`` or ``cuda``, where each process takes the GPU of its local rank; by default a GPU if there is
            one. A single process may name any device of this machine.
        timeout: after this many seconds without an answer from the others, they count as lost. The others wait while
            the first works alone: raise it where that takes longer.
    """
    check_positive_number(timeout=timeout)
    # Rank and world size, as torchrun sets them.
    count = _from_environment("WORLD_SIZE", 1)
    number, local_rank = (_from_environment(name, None if count > 1 else 0) for name in ("RANK", "LOCAL_RANK"))
    kind = device if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
    if count == 1:
        check_device(kind)
        yield Process(torch.device(kind))
        return
    # Join the process group.
    check_rank(number, count)
    check_choice("device (with several processes)", kind, BACKENDS)
    own_device = _device(kind, local_rank)
    local_world = _from_environment("LOCAL_WORLD_SIZE", count)
    gpu = own_device if kind == "cuda" else None
    dist.init_process_group(BACKENDS[kind], timeout=timedelta(seconds=timeout), device_id=gpu)
    group = dist.group.WORLD
    try:
        yield Process(own_device, number, count, local_world)
    except BaseException as error:
        _failed_groups.append(group)
        if isinstance(error, RuntimeError) and _is_about_others(error):
            reason = str(error).partition("\n")[0]  # the rest is a C++ stack trace
            raise LostProcessError(
                f"process {number} of {count} waited for another one that has stopped or hangs; the output of that "
                f"process shows why. The error of this one: {reason}"
            ) from error
        raise
    finally:
        dist.destroy_process_group()


def _from_environment(name: str, default: int | None) -> int:
    if name not in os.environ and default is not None:
        return default
    if name not in os.environ:
        raise ValueError(f"WORLD_SIZE is set and {name} is not; start with torchrun, which sets both.")
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError(f"{name} must be an integer, as torchrun sets it; it is {os.environ[name]!r}.") from None


def _device(kind: str, local_rank: int) -> torch.device:
    if kind == "cpu":
        return torch.device(kind)
    if local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"process {local_rank} of this machine has no GPU: there are {torch.cuda.device_count()}. Start as many "
            f"processes with torchrun --nproc-per-node, or train on the CPU."
        )
    torch.cuda.set_device(local_rank)
    return torch.device(kind, local_rank)


def _is_about_others(error: RuntimeError) -> bool:
    """Whether it is a communication error; gloo's have no type of their own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


# Which process this is, and what all of them exchange.


def world_size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process; that of the first is 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def all_gather(value: Value) -> list[Value]:
    """Return the values of all processes, in the order of their ranks: small plain values."""
    if world_size() == 1:
        return [value]
    if _rank_zero_works.get():
        raise RuntimeError("the other processes wait until the first is done with its work, and cannot take part.")
    values: list[Value] = [value] * world_size()
    dist.all_gather_object(values, value)
    return values


def on_rank_zero(work: Callable[[], object]) -> None:
    """Let the first process do something alone, such as writing a file, while the others wait.

    An exception is raised in all of them, so that none waits for a process that has given up. The work may call this
    again, but nothing in which all processes must take part.
    """
    if world_size() == 1 or _rank_zero_works.get():
        work()
        return
    # The first process works, the others wait for its message.
    error: Exception | None = None
    if rank() == 0:
        token = _rank_zero_works.set(True)
        try:
            work()
        except Exception as raised:
            error = raised
        finally:
            _rank_zero_works.reset(token)
    message = all_gather(None if error is None else f"{type(error).__name__}: {error}")[0]
    if error is not None:
        raise error
    if message is not None:
        raise FailedElsewhereError(f"the first process failed, so this process stops too; its error was {message}")


def rank_zero_first(work: Callable[[], Value]) -> Value:
    """Let the first process do something alone, then the others, which find the files that it wrote.

    Every process does it once and gets its own result; an exception of the first is raised in all of them.
    """
    results: list[Value] = []
    on_rank_zero(lambda: results.append(work()))
    return results[0] if results else work()


def seed_per_rank(*numbers: int) -> None:
    """Seed this process's random number generators from some numbers and its rank."""
    seed = hashed("process", *numbers, rank())
    random.seed(seed)
    torch.manual_seed(seed)


def micro_batches_per_process(micro_batches: int, processes: int) -> int:
    """Return how many micro-batches of a step each process takes: ``Settings.accumulate``.

    The fingerprint of a run holds the number of the whole step, ``fingerprint["batch"]["micro_batches"]``, so it can be
    resumed with another number of processes.
    """
    check_positive_integer(micro_batches=micro_batches, processes=processes)
    if micro_batches % processes:
        divisors = [str(n) for n in range(1, micro_batches + 1) if micro_batches % n == 0]
        raise ValueError(
            f"{micro_batches} micro-batches a step cannot be divided among {processes} processes. Start "
            f"{', '.join(divisors)} of them, or make the number of micro-batches a multiple of {processes}."
        )
    return micro_batches // processes


def own_batches(batches: Iterable[Item]) -> Iterator[Item]:
    """Return every ``world_size``-th item, starting at this rank: together the processes have each item once."""
    return islice(batches, rank(), None, world_size())


# Sharded tensors: full values in and out.


def is_shard(tensor: Tensor) -> bool:
    """Whether other processes hold the rest of it."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor of a shard, in every process."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def full_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return full tensors in the first process, on the CPU, and nothing in the others: one after the other, so that no
    process but the first ever holds more than one full tensor."""
    gathered = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor.detach())
        if rank() == 0:
            gathered[name] = full.cpu() if is_shard(tensor) else full
    return gathered


def shard_like(full: Tensor, like: Tensor) -> Tensor:
    """Return this process's shard of a full tensor, sharded like ``like``; all of it if ``like`` is a plain tensor."""
    if not is_shard(like):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    # src_data_rank=None: every process has the full tensor already, so nothing is sent.
    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def copy_full(full: Tensor, target: Tensor) -> None:
    """Copy a full tensor into one that may be a shard."""
    target.copy_(shard_like(full, target))


@contextmanager
def gathered_weights(model: nn.Module) -> Iterator[None]:
    """A sharded model with full weights in every process, which can then call it without the others.

    For evaluation and generation: processes may have different numbers of batches. The weights must not be changed
    meanwhile.
    """
    if world_size() == 1:
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    try:
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not parts[0], recurse=False)  # the outermost comes first


# Wrappers for ``Trainer``.


def wrap(kind: ParallelKind, model: nn.Module) -> Wrap:
    """Prepare a model for training by several processes; returns what ``Trainer`` takes as ``wrap``.

    Every process must hold a model of the same facts, on its device; the weights of the first are sent to all. Make the
    optimizers afterwards: ``fsdp`` replaces the model's parameters. From now on processes draw different random
    numbers, as dropout needs; the first continues with its own.
    """
    check_choice("kind", kind, ("ddp", "fsdp"))
    if world_size() == 1:
        return lambda train_module: train_module
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    if kind == "fsdp":
        _shard(model)
    if rank() > 0:
        seed_per_rank(torch.initial_seed())
    return _Sharded if kind == "fsdp" else _Replicated


class _Replicated(nn.Module):
    """A ``TrainModule`` in PyTorch's ``DistributedDataParallel``, which must know whether a step leaves parameters
    unused (a head, a table of languages): the first batch of the run shows it."""

    def __init__(self, train_module: nn.Module) -> None:
        super().__init__()
        self.train_module = train_module
        self._ddp: nn.parallel.DistributedDataParallel | None = None
        self._is_synced = True

    def forward(self, *args: Any) -> Any:
        """As ``TrainModule``."""
        if self._ddp is None:
            device = next(self.train_module.parameters()).device
            has_unused = any(all_gather(self._has_unused_parameters(args, device)))
            device_ids = [device] if device.type == "cuda" else None
            self._ddp = nn.parallel.DistributedDataParallel(
                self.train_module, device_ids=device_ids, find_unused_parameters=has_unused
            )
        self._ddp.require_backward_grad_sync = self._is_synced
        return self._ddp(*args)

    def _has_unused_parameters(self, args: tuple[Any, ...], device: torch.device) -> bool:
        """Whether some parameter has no gradient; the state of the random number generators is restored."""
        trained = [p for p in self.train_module.parameters() if p.requires_grad]
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            share, _ = self.train_module(*args)
        return any(gradient is None for gradient in torch.autograd.grad(share, trained, allow_unused=True))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are kept and not exchanged."""
        self._is_synced = False
        try:
            yield
        finally:
            self._is_synced = True


def _shard(model: nn.Module) -> None:
    """Shard every block by itself, so that blocks are gathered one after the other; then all other parameters."""
    from torch.distributed.fsdp import fully_shard

    inner = getattr(model, "_orig_mod", model)
    blocks = [block for part in inner.modules() if isinstance(part, Stack) for block in part.blocks]
    mesh = _mesh(model)
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(inner, mesh=mesh, reshard_after_forward=False)
    # During the backward pass of a block, the block before it is prefetched. PyTorch would choose it by the order of
    # earlier calls, evaluations included, which can differ between processes.
    for block, before in zip(blocks, (inner, *blocks), strict=False):
        block.set_modules_to_backward_prefetch([before])  # type: ignore[operator]


def _mesh(model: nn.Module) -> DeviceMesh:
    """Return a mesh of all processes on the model's type of device; by default PyTorch would use any GPU."""
    return init_device_mesh(next(model.parameters()).device.type, (world_size(),))


class _Sharded(nn.Module):
    """The outermost module of a sharded run. Objectives call parts of the model directly, not its ``forward``: the
    parameters outside the blocks are gathered here, before every call."""

    def __init__(self, train_module: nn.Module) -> None:
        super().__init__()
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        self.train_module = train_module
        parts = [part for part in train_module.modules() if isinstance(part, FSDPModule)]
        if not parts:
            raise ValueError("this model was not sharded; pass Trainer what wrap('fsdp', model) returned for it.")
        self._outermost = [parts[0]]  # in a list, so that it is not registered as a second child
        fully_shard(self, mesh=_mesh(train_module))
        register_fsdp_forward_method(self, "initialise")
        self.initialise()

    def initialise(self) -> None:
        """Call this module once without effect: PyTorch takes the first module called for the root, and an evaluation
        may come before the first step."""

    def forward(self, *args: Any) -> Any:
        """As ``TrainModule``."""
        self._outermost[0].unshard()
        return self.train_module(*args)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are kept and not exchanged."""
        self.set_requires_gradient_sync(False)  # type: ignore[operator]
        try:
            yield
        finally:
            self.set_requires_gradient_sync(True)  # type: ignore[operator]
