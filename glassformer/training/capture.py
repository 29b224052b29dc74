"""Training steps as CUDA graphs: with small kernels, a step no longer waits for the CPU to launch them.

A step launches hundreds of kernels, each costing the CPU a few microseconds; for a model of moderate size the GPU
finishes them sooner than the CPU can launch them. A CUDA graph is a recording of all kernels of a step, which one call
launches. It repeats the recorded step on the same buffers, so every shape of a batch needs a graph of its own:

* the first batch of a shape is an ordinary step; the second one records the graph, and all others replay it;
* after ``MAX_EXACT_SHAPES`` shapes, batches are padded further (``Batch.enlarged``), so that few shapes remain;
* a shape that comes after ``LIMIT`` graphs have been recorded is computed by ordinary steps;
* so are steps whose Python code must run: models with windows inspect mask values; hooks and observers must be called.

Otherwise the Python code of a step must not depend on values of tensors; see ``obstacles``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from glassformer.config import BlockSparse
from glassformer.models.stack import Stack
from glassformer.models.transformer import Transformer
from glassformer.nn.observer import thread_observers
from glassformer.objectives.base import Batch, Count, Objective, is_traceable

MAX_EXACT_SHAPES = 4  # with more shapes than these, batches are padded further
LIMIT = 128  # graphs
RECOMPUTE_OBSTACLE = "run.recompute saves random states"  # why such a run cannot capture its steps
REMEDY = "set run.capture=false (from Python: Trainer(…, capture=False)) for ordinary steps"


class CaptureError(RuntimeError):
    """A step cannot be recorded as a CUDA graph."""


StepFunction = Callable[[Sequence[Batch], Mapping[str, Count]], tuple[Any, Tensor]]  # returns tensors on the device
Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]


def obstacles(model: nn.Module, objective: Objective[Any]) -> list[str]:
    """Return why the loss cannot be captured as one graph: code that depends on values of tensors. Empty: it can."""
    found = [] if is_traceable(objective) else [f"the loss of {type(objective).__name__} reads values of tensors"]
    patterns = any(not isinstance(window, int | None) for window in _windows(model))
    return [*found, *(["block-sparse attention reads the lengths of rows"] if patterns else [])]


def reasons_to_synchronise(device: torch.device, processes: int, precision: str, is_fused: bool) -> list[str]:
    """Return why the CPU must read the loss of each step before weights change; none: a GPU can queue steps.

    ``is_fused``: every optimizer is a fused AdamW.
    """
    reasons = {
        f"the device is {device.type}, not an NVIDIA GPU": device.type != "cuda",
        "several processes train": processes > 1,
        "float16 adapts the scale of the loss to each step": precision == "float16",
        "not all optimizers are fused AdamW": not is_fused,
    }
    return [reason for reason, holds in reasons.items() if holds]


def check_capture(reasons: Sequence[str]) -> None:
    """Raise if there are reasons why a run with ``run.capture=true`` cannot capture its steps."""
    if reasons:
        raise ValueError(f"run.capture=true is not possible: {'; '.join(reasons)}. Leave it out.")


def _windows(model: nn.Module) -> set[int | BlockSparse | None]:
    return {window for part in model.modules() if isinstance(part, Stack) for window in part.facts.attention.windows}


class CapturedSteps:
    """Runs steps on the device: the first of each shape kernel by kernel, later ones as a CUDA graph.

    Args:
        step: everything that a step does, given batches on the device.
        model: the model that it trains, with all parameters of the optimizers.
        optimizers: their learning rates may change from step to step; if other settings do, graphs are recorded anew.
        device: a GPU.
    """

    def __init__(
        self, step: StepFunction, model: nn.Module, optimizers: Sequence[Optimizer], device: torch.device
    ) -> None:
        self._step, self._model, self._optimizers, self._device = step, model, list(optimizers), device
        self._has_windows = any(window is not None for window in _windows(model))
        lengths = [part.max_length for part in model.modules() if isinstance(part, Transformer)]
        self._longest = min((length for length in lengths if length is not None), default=None)
        self._graphs: dict[Shapes, _Graph] = {}
        self._seen: set[Shapes] = set()
        self._pool: Any = None
        self._enlarges = False
        self._memory: tuple[int, ...] = ()
        self._settings: list[object] = []

    def __call__(self, batches: Sequence[Batch], counts: Mapping[str, Count]) -> tuple[Any, Tensor]:
        """Make one step with batches that are on the CPU; ``counts`` are those of the whole step."""
        if self._enlarges:
            batches = self.enlarged(batches)
        moved = [batch.to(self._device, non_blocking=True) for batch in batches]
        self._forget_outdated()
        shapes = tuple((name, x.shape, x.dtype) for batch in moved for name, x in batch.tensors.items())
        counts_on_device = _DeviceCounts(batches, counts, self._device)
        if not self.can_capture(batches):
            return self._step(*counts_on_device.attach_to(moved))
        graph = self._graphs.get(shapes)
        if graph is None and (shapes not in self._seen or len(self._graphs) >= LIMIT):
            self._seen.add(shapes)
            if len(self._seen) > MAX_EXACT_SHAPES:
                self._enlarges = True
            return self._step(*counts_on_device.attach_to(moved))
        if graph is None:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = self._graphs[shapes] = _Graph(self._step, moved, counts_on_device, self._optimizers, self._pool)
        return graph.replay(moved, counts_on_device)

    def enlarged(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return the batches with more padding, for fewer shapes; unchanged if padding would prevent the capture."""
        larger = [batch.enlarged(self._longest) for batch in batches]
        return [*batches] if any(map(self._inspects_values, larger)) else larger

    def can_capture(self, batches: Sequence[Batch]) -> bool:
        """Whether a graph can repeat a step with these batches."""
        return not self._has_hooks() and not any(map(self._inspects_values, batches))

    def _inspects_values(self, batch: Batch) -> bool:
        """Whether Python code inspects values: of masks, for windows; of positions, if a row is too long."""
        is_masked = any(name in batch.inputs for name in ("mask", "target_mask"))
        lengths = [batch.inputs[name].shape[-1] for name in ("ids", "target") if name in batch.inputs]
        is_long = self._longest is not None and max(lengths, default=0) > self._longest
        return is_long or (is_masked and self._has_windows)

    def _forget_outdated(self) -> None:
        """Drop all graphs if a tensor that they read has moved, or a setting that they recorded has changed."""
        tensors = [*self._model.parameters(), *self._model.buffers()]
        tensors += [x for o in self._optimizers for state in o.state.values() for x in state.values()]
        memory = tuple(x.data_ptr() for x in tensors if isinstance(x, Tensor))
        settings = self._recorded_settings()
        if (memory, settings) != (self._memory, self._settings):
            # Begin again with an ordinary step of each shape, in which optimizers create missing states; but not if the
            # only change is that the first steps have just created them.
            if self._graphs or settings != self._settings:
                self._seen.clear()
            self._memory, self._settings = memory, settings
            self._graphs.clear()
            self._pool = None  # the pool of deleted graphs cannot be reused

    def _recorded_settings(self) -> list[object]:
        """Return what a graph fixes: which weights are trained, optimizer settings but the rate, what is fused."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        options = [{name: value for name, value in group.items() if name not in ("params", "lr")} for group in groups]
        trained = [weight.requires_grad for weight in self._model.parameters()]
        fused = [getattr(part, "fused", None) for part in self._model.modules()]
        return [[id(group) for group in groups], options, trained, fused]  # learning rates are read from these groups

    def _has_hooks(self) -> bool:
        """Whether there are hooks or observers, which a graph would not call."""
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        on_weights = ("_backward_hooks", "_post_accumulate_grad_hooks")
        on_steps = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        return (
            bool(thread_observers() or _has_any_global_hook())  # type: ignore[no-untyped-call]
            or bool(_global_optimizer_pre_hooks or _global_optimizer_post_hooks)
            or any(getattr(part, name) for part in self._model.modules() for name in hooks)
            or any(getattr(weight, name) for weight in self._model.parameters() for name in on_weights)
            or any(getattr(optimizer, name) for optimizer in self._optimizers for name in on_steps)
        )


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, device: torch.device, pool: Any = None) -> Iterator[None]:
    """Record the kernels launched in the ``with`` block; the current stream is restored, even after a failure.

    Raises:
        CaptureError: something inside cannot be recorded.
        torch.OutOfMemoryError: the GPU has too little memory.
    """
    try:
        # A capture that fails to end leaves its own stream as the current one. Threads of the data loader may call CUDA
        # meanwhile, hence "thread_local".
        with (
            torch.cuda.device(device),
            torch.cuda.stream(torch.cuda.current_stream(device)),
            torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
        ):
            yield
    except RuntimeError as error:
        for cause in (error, error.__context__):  # after an error inside, ending the capture fails, too
            if isinstance(cause, torch.OutOfMemoryError):
                raise cause from None
        raise CaptureError(f"this step cannot be recorded as a CUDA graph; {REMEDY}.") from error


class _DeviceCounts:
    """The counts of a step and of its batches as one tensor on the device."""

    def __init__(self, batches: Sequence[Batch], counts: Mapping[str, Count], device: torch.device) -> None:
        self._names = [list(counts), *(list(batch.counts) for batch in batches)]
        values = [*counts.values(), *(count for batch in batches for count in batch.counts.values())]
        self.values = torch.tensor([int(value) for value in values]).pin_memory().to(device, non_blocking=True)

    def attach_to(self, batches: Sequence[Batch]) -> tuple[list[Batch], dict[str, Tensor]]:
        """Return the batches with their counts, and the counts of the step, as scalars on the device."""
        scalars = iter(self.values.unbind())
        counts, *own = [{name: next(scalars) for name in names} for names in self._names]
        return [batch.with_counts(mapping) for batch, mapping in zip(batches, own, strict=True)], counts


class _Graph:
    """One recorded step and the buffers that hold its inputs."""

    def __init__(
        self,
        step: StepFunction,
        batches: Sequence[Batch],
        counts: _DeviceCounts,
        optimizers: Sequence[Optimizer],
        pool: Any,
    ) -> None:
        self._batches = [batch.map(torch.clone) for batch in batches]
        self._counts = counts
        self._groups = [group for o in optimizers for group in o.param_groups]
        device = counts.values.device
        self._rates = [torch.tensor(group["lr"], dtype=torch.float32, device=device) for group in self._groups]
        self._graph = torch.cuda.CUDAGraph()
        arguments = counts.attach_to(self._batches)
        with self._recordable(), recording(self._graph, device, pool):
            self._losses, self._values = step(*arguments)

    @contextmanager
    def _recordable(self) -> Iterator[None]:
        """Let the optimizers take their learning rates from tensors on the device."""
        before = [(group["lr"], group["capturable"]) for group in self._groups]
        for group, rate in zip(self._groups, self._rates, strict=True):
            group["lr"], group["capturable"] = rate, True
        try:
            yield
        finally:
            for group, (lr, capturable) in zip(self._groups, before, strict=True):
                group["lr"], group["capturable"] = lr, capturable

    def replay(self, batches: Sequence[Batch], counts: _DeviceCounts) -> tuple[Any, Tensor]:
        """Repeat the step with other batches of the same shapes."""
        for mine, other in zip(self._batches, batches, strict=True):
            for own, new in zip(mine.tensors.values(), other.tensors.values(), strict=True):
                own.copy_(new)
        self._counts.values.copy_(counts.values)
        for group, rate in zip(self._groups, self._rates, strict=True):
            rate.fill_(group["lr"])
        self._graph.replay()
        return self._losses, self._values.clone()
