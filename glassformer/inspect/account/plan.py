"""A plan of a training run: whether it fits on these devices, and how long it takes. Standard library only.

Time, with MFU the share of the peak that the FLOPs of the model reach (model FLOPs utilisation, Chowdhery et al. 2022;
recomputed activations do not count)::

    tokens/s = devices × peak × MFU / FLOPs per token          seconds = tokens / (tokens/s)

Memory of one device, of ``n`` devices:

* ``ddp`` (data parallel): weights, gradients, optimizer state, and the peak of the device's micro-batch: activations
  and their gradients.
* ``fsdp`` (fully sharded, ZeRO stage 3, Rajbhandari et al. 2020): (weights + gradients + optimizer state) / n, the
  gathered weights of two units, the current one and the prefetched one, each as large as the largest (a block, the
  embeddings or the head), and the activations of the device's micro-batch.
* ``tensor`` (all devices form one tensor-parallel group with a common micro-batch): all of these / n, as with tensor
  and sequence parallelism together (Korthikanti et al. 2022). Small replicated weights, such as those of norms, are
  divided too.

Not all gradients of weights are allocated while activations peak, so the sum is a little too high, never too low.

Left out: communication, beyond its share in MFU; communication buffers, such as a layer's gradient before it is
scattered; fragmentation and the memory of the libraries. Leave some headroom.
"""

from dataclasses import dataclass
from math import ceil, inf
from numbers import Real
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from glassformer.config.checks import check_choice, check_positive_integer, check_positive_number
from glassformer.inspect.account.hardware import Hardware

if TYPE_CHECKING:
    from glassformer.inspect.account.account import Account

Parallel = Literal["ddp", "fsdp", "tensor"]

TOKENS_PER_PARAMETER = 20
GATHERED_UNITS = 2  # of fsdp: the current one and the prefetched one
SECONDS_PER_DAY = 86_400
SECONDS_PER_HOUR = 3_600


@dataclass(frozen=True, kw_only=True)
class TrainingCosts:
    """The numbers of a model and its training that a plan needs."""

    parameters: int
    flops_per_token: float  # forward and backward, all matrix products
    weight_bytes: float  # of the whole model, as are the next two
    gradient_bytes: float
    optimizer_bytes: float  # moments and, in mixed precision, the float32 copy of the weights
    activation_bytes: float  # peak, with their gradients, of the micro-batch of a device or of a tensor-parallel group
    unit_bytes: float  # the weights of the largest unit that fsdp gathers at once
    tokens_per_batch: int  # of one optimizer step, over all devices

    def __post_init__(self) -> None:
        check_positive_integer(parameters=self.parameters, tokens_per_batch=self.tokens_per_batch)
        check_positive_number(flops_per_token=self.flops_per_token)
        sizes = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "unit_bytes")
        for name in sizes:
            value: float = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}.")


class PlanLine(NamedTuple):
    """One result with its formula: in names, " = ", the same in numbers."""

    what: str
    formula: str
    value: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A plan of a training run; ``lines()`` gives the formula of each number. Bytes are per device."""

    costs: TrainingCosts
    devices: int
    hardware: Hardware
    dtype: str
    tokens: float
    mfu: float
    parallel: Parallel
    tokens_by_rule: bool = False  # whether ``compute_optimal_tokens`` chose them

    def __post_init__(self) -> None:
        check_positive_integer(devices=self.devices)
        check_positive_number(tokens=self.tokens, mfu=self.mfu)
        if self.mfu > 1:
            raise ValueError(f"mfu is a share of the peak, at most 1; got {self.mfu}.")
        check_choice("parallel", self.parallel, get_args(Parallel))
        self.hardware.peak(self.dtype)  # refuses a dtype without a peak

    @property
    def shards(self) -> int:
        """Number of shards of weights, gradients and optimizer state."""
        return 1 if self.parallel == "ddp" else self.devices

    @property
    def weight_bytes(self) -> float:
        """Weights on one device."""
        return self.costs.weight_bytes / self.shards

    @property
    def gradient_bytes(self) -> float:
        """Gradients on one device."""
        return self.costs.gradient_bytes / self.shards

    @property
    def optimizer_bytes(self) -> float:
        """Optimizer state on one device."""
        return self.costs.optimizer_bytes / self.shards

    @property
    def gathered_units(self) -> int:
        """Units whose weights a device gathers from the others; 0 where it has them all."""
        return GATHERED_UNITS if self.parallel == "fsdp" and self.devices > 1 else 0

    @property
    def gathered_bytes(self) -> float:
        """The gathered weights of these units."""
        return self.gathered_units * self.costs.unit_bytes

    @property
    def activation_bytes(self) -> float:
        """Activations and their gradients."""
        return self.costs.activation_bytes / (self.devices if self.parallel == "tensor" else 1)

    @property
    def memory_per_device(self) -> float:
        """The sum of these."""
        return (
            self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.gathered_bytes + self.activation_bytes
        )

    @property
    def fits(self) -> bool | None:
        """Whether that fits in the memory of the device; None if it is unknown."""
        return None if self.hardware.memory is None else self.memory_per_device <= self.hardware.memory

    @property
    def total_flops(self) -> float:
        """FLOPs of the whole run."""
        return self.costs.flops_per_token * self.tokens

    @property
    def tokens_per_second(self) -> float:
        """Throughput of all devices together."""
        return self.devices * self.hardware.peak(self.dtype) * self.mfu / self.costs.flops_per_token

    @property
    def steps(self) -> int:
        """Optimizer steps; the last batch may be smaller."""
        return ceil(self.tokens / self.costs.tokens_per_batch)

    @property
    def seconds_per_step(self) -> float:
        """Time of one full batch."""
        return self.costs.tokens_per_batch / self.tokens_per_second

    @property
    def days(self) -> float:
        """Duration of the run."""
        return self.tokens / self.tokens_per_second / SECONDS_PER_DAY

    @property
    def device_hours(self) -> float:
        """Devices × hours."""
        return self.devices * self.tokens / self.tokens_per_second / SECONDS_PER_HOUR

    def lines(self) -> list[PlanLine]:
        """Return every result with its formula; a shortage of memory is negative."""
        return self._memory_lines() + self._time_lines()

    def _memory_lines(self) -> list[PlanLine]:
        costs, n = self.costs, _number(self.devices)
        divisor, number = (" / devices", f" / {n}") if self.parallel != "ddp" else ("", "")
        # Weights, gradients and optimizer state, sharded unless every device has a copy.
        lines = [
            PlanLine(
                name, f"{field}{divisor} = {_number(getattr(costs, field))}{number}", getattr(self, field), "bytes"
            )
            for name, field in (
                ("weights", "weight_bytes"),
                ("gradients", "gradient_bytes"),
                ("optimizer state", "optimizer_bytes"),
            )
        ]
        if self.gathered_units:
            formula = f"units in flight × unit_bytes = {self.gathered_units} × {_number(costs.unit_bytes)}"
            lines.append(PlanLine("gathered weights", formula, self.gathered_bytes, "bytes"))
        # Activations, split by tensor parallelism alone.
        divisor, number = (" / devices", f" / {n}") if self.parallel == "tensor" else ("", "")
        formula = f"activation_bytes{divisor} = {_number(costs.activation_bytes)}{number}"
        lines.append(PlanLine("activations", formula, self.activation_bytes, "bytes"))
        # The sum, and what it leaves of the device.
        values = " + ".join(_number(line.value) for line in lines)
        formula = f"{' + '.join(line.what for line in lines)} = {values}"
        lines.append(PlanLine("memory per device", formula, self.memory_per_device, "bytes"))
        if self.hardware.memory is not None:
            left = self.hardware.memory - self.memory_per_device
            numbers = f"{_number(self.hardware.memory)} − {_number(self.memory_per_device)}"
            formula = f"memory of {self.hardware.name} − memory per device = {numbers}"
            lines.append(PlanLine("memory left", formula, left, "bytes"))
        return lines

    def _time_lines(self) -> list[PlanLine]:
        n, tokens, rate = _number(self.devices), _number(self.tokens), _number(self.tokens_per_second)
        batch, flops = _number(self.costs.tokens_per_batch), _number(self.costs.flops_per_token)
        peak, day, hour = map(_number, (self.hardware.peak(self.dtype), SECONDS_PER_DAY, SECONDS_PER_HOUR))
        rule = f"parameters × tokens per parameter = {_number(self.costs.parameters)} × {TOKENS_PER_PARAMETER}"
        formulas = (
            ("tokens", rule if self.tokens_by_rule else f"as set = {tokens}", self.tokens, "tokens"),
            ("total FLOPs", f"flops_per_token × tokens = {flops} × {tokens}", self.total_flops, "FLOPs"),
            (
                "throughput",
                f"devices × peak × mfu / flops_per_token = {n} × {peak} × {_number(self.mfu)} / {flops}",
                self.tokens_per_second,
                "tokens/s",
            ),
            ("steps", f"⌈tokens / tokens_per_batch⌉ = ⌈{tokens} / {batch}⌉", self.steps, "steps"),
            ("time per step", f"tokens_per_batch / throughput = {batch} / {rate}", self.seconds_per_step, "s"),
            ("time", f"tokens / throughput / seconds per day = {tokens} / {rate} / {day}", self.days, "days"),
            (
                "device-hours",
                f"devices × tokens / throughput / seconds per hour = {n} × {tokens} / {rate} / {hour}",
                self.device_hours,
                "device-hours",
            ),
        )
        return [PlanLine(*formula) for formula in formulas]


def plan(
    costs: TrainingCosts,
    *,
    devices: int,
    hardware: Hardware,
    dtype: str,
    tokens: float | None = None,
    mfu: float = 0.4,
    parallel: Parallel = "ddp",
) -> TrainingPlan:
    """Return a plan for ``devices`` equal devices; ``tokens`` defaults to ``compute_optimal_tokens(parameters)``.

    For another constant than 20: ``tokens=compute_optimal_tokens(parameters, tokens_per_parameter)``.
    """
    return TrainingPlan(
        costs=costs,
        devices=devices,
        hardware=hardware,
        dtype=dtype,
        tokens=compute_optimal_tokens(costs.parameters) if tokens is None else tokens,
        mfu=mfu,
        parallel=parallel,
        tokens_by_rule=tokens is None,
    )


def plan_of(
    account: "Account",
    hardware: Hardware,
    *,
    devices: int,
    tokens: float | None = None,
    mfu: float = 0.4,
    parallel: Parallel = "ddp",
    checkpointing: bool = False,
) -> TrainingPlan:
    """Return the plan of a training run from the account of the micro-batch of a device, or of a tensor-parallel group.

    Args:
        account: the costs of one training step.
        hardware: the kind of device.
        devices: plan a training run on this many devices.
        tokens: train on this many tokens, source and target together; by default 20 per parameter.
        mfu: model FLOPs utilisation, the share of the peak FLOP/s that training reaches.
        parallel: how devices share the work: data parallel, sharded data parallel or tensor parallel.
        checkpointing: activation checkpointing: blocks store only their inputs and run again in the backward pass
            (this recomputation does not count towards MFU).
    """
    if account.mode != "train":
        raise ValueError(f"a plan needs an account of a training step, mode='train'; got mode={account.mode!r}.")
    if parallel == "tensor":
        _check_heads(account, devices)
    memory = account.memory
    tokens_read = account.batch * (account.context + (account.source if account.has_source else 0))
    costs = TrainingCosts(
        parameters=account.parameters,
        flops_per_token=account.flops / tokens_read,
        weight_bytes=memory.weights,
        gradient_bytes=memory.gradients,
        optimizer_bytes=memory.optimizer,
        activation_bytes=memory.working - (memory.activations - memory.checkpointed if checkpointing else 0),
        unit_bytes=_largest_unit(account) * account.bytes_per_number,
        tokens_per_batch=tokens_read * (1 if parallel == "tensor" else devices),
    )
    return plan(
        costs, devices=devices, hardware=hardware, dtype=account.dtype, tokens=tokens, mfu=mfu, parallel=parallel
    )


def _check_heads(account: "Account", devices: int) -> None:
    """Raise unless the number of devices divides the heads."""
    config = account.config
    for stack in () if config is None else (config.encoder, config.decoder):
        if stack is not None and stack.attention.heads % devices:
            heads = stack.attention.heads
            divisors = ", ".join(str(number) for number in range(1, heads + 1) if heads % number == 0)
            raise ValueError(
                f"tensor parallelism distributes the heads, and {devices} devices do not divide the {heads} heads of "
                f"{account.name}; take one of {divisors}, or another kind of parallelism."
            )


def _largest_unit(account: "Account") -> int:
    """Return the parameters of the largest unit that is gathered at once: a layer, or a part outside the layers."""
    lists = [part for part in account.root.walk() if part.calls]
    layers = [layer.parameters for part in lists for layer in part.parts]
    with_layers = {part.path.partition(".")[0] for part in lists}
    return max([*layers, *(part.parameters for part in account.root.parts if part.path not in with_layers)])


def compute_optimal_tokens(parameters: int, tokens_per_parameter: float = TOKENS_PER_PARAMETER) -> float:
    """parameters × 20, the compute-optimal number of tokens: a rule of thumb.

    Hoffmann et al. 2022 find that parameters and tokens should grow in proportion; their fits are around 20 tokens per
    parameter, and the constant drifts with the size. A model that will be used a lot is worth training on more.
    """
    check_positive_integer(parameters=parameters)
    check_positive_number(tokens_per_parameter=tokens_per_parameter)
    return parameters * tokens_per_parameter


def _number(value: float) -> str:
    """Format a number of a formula: below 10¹² with all digits before the point, else with six digits."""
    if abs(value) < 10**12 and (value == int(value) or abs(value) >= 10**5):
        return f"{value:,.0f}"
    return f"{value:.6g}"
