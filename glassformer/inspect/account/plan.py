"""A training run on paper: does it fit on these devices, and how long will it take. Standard library only.

Time, with MFU the share of the peak that the mathematics of the model gets (model FLOPs utilisation, Chowdhery et al.
2022; recomputed activations do not count)::

    tokens/s = devices × peak × MFU / FLOPs per token          seconds = tokens / (tokens/s)

Memory of one device, of ``n`` devices:

* ``ddp`` (data parallel): weights, gradients, optimizer state, and what the device's own micro-batch needs at the
  highest: activations, and their gradients on the way.
* ``fsdp`` (fully sharded, ZeRO stage 3, Rajbhandari et al. 2020): (weights + gradients + optimizer state) / n, the
  gathered weights of the pieces in flight, of which there are two, the current one and the one fetched ahead, each
  taken to be the largest (a block, the embeddings or the head), and the activations of the device's own micro-batch.
* ``tensor`` (all devices one tensor-parallel group, which works on one micro-batch together): all of these / n, as with
  tensor and sequence parallelism together (Korthikanti et al. 2022). Small weights that every device keeps, such as
  those of norms, are taken as divided too.

Not all gradients of weights are there while activations are at their highest, so the sum is a little too high, never
too low.

Left out: communication, beyond what MFU says of it; the buffers of communication, a whole layer's gradient before it
is scattered among them; fragmentation and the libraries' own memory. Leave some room.
"""

from dataclasses import dataclass
from math import ceil, inf
from numbers import Real
from typing import Literal, NamedTuple, get_args

from glassformer.config.checks import check_choice, check_number, check_positive
from glassformer.inspect.account.hardware import Hardware

Parallel = Literal["ddp", "fsdp", "tensor"]

TOKENS_PER_PARAMETER = 20
GATHERED_PIECES = 2  # of fsdp: the current one and the one fetched ahead
SECONDS_PER_DAY = 86_400
SECONDS_PER_HOUR = 3_600


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """What a plan needs to know of a model and its training, as plain numbers."""

    parameters: int
    flops_per_token: float  # forward and backward, all matrix products
    weight_bytes: float  # of the whole model, as are the next two
    gradient_bytes: float
    optimizer_bytes: float  # moments and, in mixed precision, the float32 copy of the weights
    activation_bytes: (
        float  # with their gradients, at the highest, of one micro-batch: a device's, or the tensor group's
    )
    piece_bytes: float  # the weights of the largest piece that is gathered at once
    tokens_per_batch: int  # of one optimizer step, over all devices

    def __post_init__(self) -> None:
        check_positive(parameters=self.parameters, tokens_per_batch=self.tokens_per_batch)
        check_number(flops_per_token=self.flops_per_token)
        parts = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "piece_bytes")
        for name in parts:
            value: float = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}.")


class Line(NamedTuple):
    """One result with its derivation: ``formula`` is the formula in names, " = ", the same with the numbers."""

    what: str
    formula: str
    value: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A training run on paper; ``lines()`` shows how each number comes about. Bytes are of one device."""

    facts: TrainingFacts
    devices: int
    hardware: Hardware
    dtype: str
    tokens: float
    mfu: float
    parallel: Parallel
    tokens_by_rule: bool = False  # whether ``compute_optimal_tokens`` chose them

    def __post_init__(self) -> None:
        check_positive(devices=self.devices)
        check_number(tokens=self.tokens, mfu=self.mfu)
        if self.mfu > 1:
            raise ValueError(f"mfu is the share of the peak that is reached and at most 1, got {self.mfu}.")
        check_choice("parallel", self.parallel, get_args(Parallel))
        self.hardware.peak(self.dtype)  # refuses a dtype without a peak

    @property
    def shards(self) -> int:
        """Into how many parts weights, gradients and optimizer state are divided."""
        return 1 if self.parallel == "ddp" else self.devices

    @property
    def weight_bytes(self) -> float:
        """The device's own weights."""
        return self.facts.weight_bytes / self.shards

    @property
    def gradient_bytes(self) -> float:
        """The device's own gradients."""
        return self.facts.gradient_bytes / self.shards

    @property
    def optimizer_bytes(self) -> float:
        """The optimizer state of the device's own weights."""
        return self.facts.optimizer_bytes / self.shards

    @property
    def gathered_pieces(self) -> int:
        """Pieces whose weights the device gathers from the others; none where it has them all."""
        return GATHERED_PIECES if self.parallel == "fsdp" and self.devices > 1 else 0

    @property
    def gathered_bytes(self) -> float:
        """The weights of the pieces in flight."""
        return self.gathered_pieces * self.facts.piece_bytes

    @property
    def activation_bytes(self) -> float:
        """Activations and their gradients."""
        return self.facts.activation_bytes / (self.devices if self.parallel == "tensor" else 1)

    @property
    def memory_per_device(self) -> float:
        """All of these together."""
        return (
            self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.gathered_bytes + self.activation_bytes
        )

    @property
    def fits(self) -> bool | None:
        """Whether that is within the device's memory; None where the device's memory is not known."""
        return None if self.hardware.memory is None else self.memory_per_device <= self.hardware.memory

    @property
    def total_flops(self) -> float:
        """Floating-point operations of the whole run."""
        return self.facts.flops_per_token * self.tokens

    @property
    def tokens_per_second(self) -> float:
        """Of all devices together."""
        return self.devices * self.hardware.peak(self.dtype) * self.mfu / self.facts.flops_per_token

    @property
    def steps(self) -> int:
        """Optimizer steps, the last one perhaps not full."""
        return ceil(self.tokens / self.facts.tokens_per_batch)

    @property
    def seconds_per_step(self) -> float:
        """Of one full batch."""
        return self.facts.tokens_per_batch / self.tokens_per_second

    @property
    def days(self) -> float:
        """How long the run takes."""
        return self.tokens / self.tokens_per_second / SECONDS_PER_DAY

    @property
    def device_hours(self) -> float:
        """What is paid for."""
        return self.devices * self.tokens / self.tokens_per_second / SECONDS_PER_HOUR

    def lines(self) -> list[Line]:
        """Every result as (what, formula with its numbers, value, unit); a shortage of memory is below 0."""
        return self._memory_lines() + self._time_lines()

    def _memory_lines(self) -> list[Line]:
        facts, n = self.facts, _number(self.devices)
        by, shared = (" / devices", f" / {n}") if self.parallel != "ddp" else ("", "")
        lines = [
            Line(name, f"{field}{by} = {_number(getattr(facts, field))}{shared}", getattr(self, field), "bytes")
            for name, field in (
                ("weights", "weight_bytes"),
                ("gradients", "gradient_bytes"),
                ("optimizer state", "optimizer_bytes"),
            )
        ]
        if self.gathered_pieces:
            formula = f"pieces in flight × piece_bytes = {self.gathered_pieces} × {_number(facts.piece_bytes)}"
            lines.append(Line("gathered weights", formula, self.gathered_bytes, "bytes"))
        by, shared = (" / devices", f" / {n}") if self.parallel == "tensor" else ("", "")
        formula = f"activation_bytes{by} = {_number(facts.activation_bytes)}{shared}"
        lines.append(Line("activations", formula, self.activation_bytes, "bytes"))
        together = " + ".join(_number(line.value) for line in lines)
        formula = f"{' + '.join(line.what for line in lines)} = {together}"
        lines.append(Line("memory per device", formula, self.memory_per_device, "bytes"))
        if self.hardware.memory is not None:
            left = self.hardware.memory - self.memory_per_device
            numbers = f"{_number(self.hardware.memory)} − {_number(self.memory_per_device)}"
            formula = f"memory of {self.hardware.name} − memory per device = {numbers}"
            lines.append(Line("memory left", formula, left, "bytes"))
        return lines

    def _time_lines(self) -> list[Line]:
        n, tokens, rate = _number(self.devices), _number(self.tokens), _number(self.tokens_per_second)
        batch, flops = _number(self.facts.tokens_per_batch), _number(self.facts.flops_per_token)
        peak, day, hour = map(_number, (self.hardware.peak(self.dtype), SECONDS_PER_DAY, SECONDS_PER_HOUR))
        rule = f"parameters × tokens per parameter = {_number(self.facts.parameters)} × {TOKENS_PER_PARAMETER}"
        formulas = (
            ("tokens", rule if self.tokens_by_rule else f"as given = {tokens}", self.tokens, "tokens"),
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
        return [Line(*formula) for formula in formulas]


def plan(
    facts: TrainingFacts,
    *,
    devices: int,
    hardware: Hardware,
    dtype: str,
    tokens: float | None = None,
    mfu: float = 0.4,
    parallel: Parallel = "ddp",
) -> Plan:
    """A plan for ``devices`` devices of one kind; without ``tokens``, for ``compute_optimal_tokens(parameters)``.

    For another constant than 20: ``tokens=compute_optimal_tokens(parameters, tokens_per_parameter)``.
    """
    return Plan(
        facts=facts,
        devices=devices,
        hardware=hardware,
        dtype=dtype,
        tokens=compute_optimal_tokens(facts.parameters) if tokens is None else tokens,
        mfu=mfu,
        parallel=parallel,
        tokens_by_rule=tokens is None,
    )


def compute_optimal_tokens(parameters: int, tokens_per_parameter: float = TOKENS_PER_PARAMETER) -> float:
    """parameters × 20, the tokens that make the best use of a given amount of arithmetic: a rule of thumb.

    Hoffmann et al. 2022 find that parameters and tokens should grow alike; their fits lie around 20 tokens for each
    parameter, the constant drifting with the size. A model that will be used a lot is worth training on more.
    """
    check_positive(parameters=parameters)
    check_number(tokens_per_parameter=tokens_per_parameter)
    return parameters * tokens_per_parameter


def _number(value: float) -> str:
    """A number as it stands in a formula: below 10¹² with all digits before the point, else with six digits."""
    if abs(value) < 10**12 and (value == int(value) or abs(value) >= 10**5):
        return f"{value:,.0f}"
    return f"{value:.6g}"
