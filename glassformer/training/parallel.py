"""Training on several devices, applied to a model from outside: one process per device, started by ``torchrun``.

``ddp`` gives every process the whole model (Li et al., 2020), ``fsdp`` a part of every weight, of its gradient and of
the optimizer's state (Rajbhandari et al., 2020; PyTorch's ``fully_shard``). Either way a step does what one process
would do with all of its micro-batches. The engine is PyTorch's; products run in the precision that ``Settings`` says,
by autocast as everywhere, and weights, gradients and their exchange stay in the type of the weights.

The order is fixed: activation checkpointing → compilation → ``wrap`` → optimizers → ``Trainer``. ::

    with parallel.start() as process:
        torch.manual_seed(seed)  # the same weights everywhere
        model = Transformer(facts).to(process.device)
        wrap = parallel.wrap("fsdp", model)  # from here on its parameters are shards, and random numbers differ
        optimizers = [adamw(model, lr)]
        settings = Settings(steps=1000, accumulate=parallel.share_of(micro_batches, process.world))
        loader = Loader(data, objective.prepare, plan, seed=seed, rank=process.rank, world=process.world)
        trainer = Trainer(model, objective, loader, optimizers, settings, wrap=wrap)
        for report in trainer:
            if process.is_first:
                print(report.loss)
            checkpoints.write(report.step, lambda folder: write_run(folder, trainer, identity))  # all processes call it

The same lines serve one process, for which nothing is started, wrapped or shared out.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from glassformer.config.checks import check_choice, check_number, check_positive
from glassformer.data.order import check_rank
from glassformer.models.stack import Stack
from glassformer.training.processes import gathered, rank, seed_apart, world
from glassformer.weights.devices import check_device

Kind = Literal["ddp", "fsdp"]
Wrap = Callable[[nn.Module], nn.Module]
Item = TypeVar("Item")
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
# Seconds. A process that dies is noticed at once, or ended by torchrun with all others: this is for one that hangs, and
# must be longer than all that the first does alone while they wait: a tokenizer trained, a corpus written as tokens.
PATIENCE = 2 * 60 * 60.0


class LostProcessError(RuntimeError):
    """Another process has stopped, or did not answer in time."""


@dataclass(frozen=True)
class Process:
    """One of the processes that train together. The first alone prints, logs and writes."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """Whether it is the one that speaks for all."""
        return self.rank == 0


@contextmanager
def start(device: str | None = None, *, timeout: float = PATIENCE) -> Iterator[Process]:
    """Join the processes that ``torchrun`` started, and leave them at the end, whatever happens.

    Args:
        device: ``cpu`` or ``cuda``, where each process takes the GPU of its number; unless given, a GPU if there is
            one. A process that is alone may name any device that this machine has.
        timeout: after so many seconds without an answer from the others, they are taken for lost. What the first does
            alone counts as such a time: raise it where that takes longer.
    """
    check_number(timeout=timeout)
    count = _from_environment("WORLD_SIZE", 1)
    number, place = (_from_environment(name, None if count > 1 else 0) for name in ("RANK", "LOCAL_RANK"))
    kind = device if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
    if count == 1:
        check_device(kind)
        yield Process(torch.device(kind))
        return
    check_rank(number, count)
    check_choice("device (with several processes)", kind, BACKENDS)
    here = _device(kind, place)
    on_gpu = here if kind == "cuda" else None
    dist.init_process_group(BACKENDS[kind], timeout=timedelta(seconds=timeout), device_id=on_gpu)
    try:
        yield Process(here, number, count)
    except RuntimeError as error:
        if _is_about_others(error):
            said = f"process {number} of {count} waited for another one that has stopped or hangs"
            here_it_was = str(error).partition("\n")[0]  # the rest is a trace of C++
            raise LostProcessError(
                f"{said}; what happened is in the output of that process. Here: {here_it_was}"
            ) from error
        raise
    finally:
        dist.destroy_process_group()


def _from_environment(name: str, usual: int | None) -> int:
    if name not in os.environ and usual is not None:
        return usual
    if name not in os.environ:
        raise ValueError(f"WORLD_SIZE is set and {name} is not; start with torchrun, which sets both.")
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError(f"{name} must be a whole number, as torchrun sets it; it is {os.environ[name]!r}.") from None


def _device(kind: str, place: int) -> torch.device:
    if kind == "cpu":
        return torch.device(kind)
    if place >= torch.cuda.device_count():
        raise ValueError(
            f"process {place} of this machine has no GPU: there are {torch.cuda.device_count()}. Start so many "
            f"processes with torchrun --nproc-per-node, or train on the CPU."
        )
    torch.cuda.set_device(place)
    return torch.device(kind, place)


def _is_about_others(error: RuntimeError) -> bool:
    """Whether it is an error of communication; gloo's have no type of their own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def share_of(micro_batches: int, processes: int) -> int:
    """How many micro-batches of a step each process reads: ``Settings.accumulate``.

    What a run is of is the number of the whole step, ``identity["batch"]["micro_batches"]``: so it can go on with
    another number of processes.
    """
    check_positive(micro_batches=micro_batches, processes=processes)
    if micro_batches % processes:
        fit = [str(n) for n in range(1, micro_batches + 1) if micro_batches % n == 0]
        raise ValueError(
            f"{micro_batches} micro-batches a step cannot be shared out among {processes} processes. Start "
            f"{', '.join(fit)} of them, or make the number of micro-batches a multiple of {processes}."
        )
    return micro_batches // processes


def own_share(items: Iterable[Item]) -> Iterator[Item]:
    """Every ``world``-th of some items, such as batches to evaluate on: together the processes have each once."""
    return islice(items, rank(), None, world())


def wrap(kind: Kind, model: nn.Module) -> Wrap:
    """Make a model one that several processes train; returns what ``Trainer`` takes as ``wrap``.

    Every process must hold a model of the same facts, on its device; the weights of the first count. Make the
    optimizers afterwards: with ``fsdp`` the model's parameters are others from now on. From now on, too, processes
    draw different random numbers, as dropout needs; the first goes on with those it had.
    """
    check_choice("kind", kind, ("ddp", "fsdp"))
    if world() == 1:
        return lambda together: together
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    if kind == "fsdp":
        _shard(model)
    if rank() > 0:
        seed_apart(torch.initial_seed())
    return _Sharded if kind == "fsdp" else _Copied


class _Copied(nn.Module):
    """A model and its objective in PyTorch's ``DistributedDataParallel``, which must be told whether a step leaves some
    parameters out (a head, a table of languages): the first batch of the run shows it."""

    def __init__(self, together: nn.Module) -> None:
        super().__init__()
        self.together = together
        self._engine: nn.parallel.DistributedDataParallel | None = None
        self._waits = False

    def forward(self, *given: Any) -> Any:
        """What the model and its objective say."""
        if self._engine is None:
            device = next(self.together.parameters()).device
            leaves_out = any(gathered(self._leaves_out(given, device)))
            where = [device] if device.type == "cuda" else None
            self._engine = nn.parallel.DistributedDataParallel(
                self.together, device_ids=where, find_unused_parameters=leaves_out
            )
        self._engine.require_backward_grad_sync = not self._waits
        return self._engine(*given)

    def _leaves_out(self, given: tuple[Any, ...], device: torch.device) -> bool:
        """Whether some parameter has no part in the loss; random numbers go on as if nobody had asked."""
        learning = [p for p in self.together.parameters() if p.requires_grad]
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            share, _ = self.together(*given)
        return any(one is None for one in torch.autograd.grad(share, learning, allow_unused=True))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are kept and not exchanged."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False


def _shard(model: nn.Module) -> None:
    """Every block of every stack by itself, so that one after the other is fetched whole; then all that is left."""
    from torch.distributed.fsdp import fully_shard

    inner = getattr(model, "_orig_mod", model)
    blocks = [block for part in inner.modules() if isinstance(part, Stack) for block in part.blocks]
    mesh = _mesh(model)
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(inner, mesh=mesh, reshard_after_forward=False)
    # While one works backward the one before it is fetched. PyTorch's own guess at which that is remembers evaluations
    # too, in which processes may have made different numbers of calls, and so would fetch different ones.
    for block, before in zip(blocks, (inner, *blocks), strict=False):
        block.set_modules_to_backward_prefetch([before])  # type: ignore[operator]


def _mesh(model: nn.Module) -> DeviceMesh:
    """All processes in one row, on the kind of device that the model is on; PyTorch by itself would take any GPU."""
    return init_device_mesh(next(model.parameters()).device.type, (world(),))


class _Sharded(nn.Module):
    """The outermost module of a sharded run. Objectives look inside the model, past its ``forward``: what lies outside
    the blocks is fetched here, before every call."""

    def __init__(self, together: nn.Module) -> None:
        super().__init__()
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

        self.together = together
        parts = [part for part in together.modules() if isinstance(part, FSDPModule)]
        if not parts:
            raise ValueError("this model was not sharded; hand Trainer what wrap('fsdp', model) of this model gave.")
        self._outside = [parts[0]]  # a list, so that it is no second child
        fully_shard(self, mesh=_mesh(together))
        register_fsdp_forward_method(self, "settle")
        self.settle()

    def settle(self) -> None:
        """Nothing but the first call, by which PyTorch knows the outermost module; evaluation may come first."""

    def forward(self, *given: Any) -> Any:
        """What the model and its objective say."""
        self._outside[0].unshard()
        return self.together(*given)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are kept and not exchanged."""
        self.set_requires_gradient_sync(False)  # type: ignore[operator]
        try:
            yield
        finally:
            self.set_requires_gradient_sync(True)  # type: ignore[operator]
