"""Plans against numbers worked out by hand, and each line's formula against its value."""

from dataclasses import replace
from math import ceil, inf, nan

import pytest

from glassformer.inspect.account.hardware import custom_hardware, hardware
from glassformer.inspect.account.plan import TrainingCosts, compute_optimal_tokens, plan
from tests.helpers import types_unchecked

# A model of 1,000 parameters in mixed precision with Adam, on devices of 10,000 FLOP/s and 16,000 bytes.
COSTS = TrainingCosts(
    parameters=1000,
    flops_per_token=6000,
    weight_bytes=2000,
    gradient_bytes=2000,
    optimizer_bytes=12_000,
    activation_bytes=800,
    unit_bytes=200,
    tokens_per_batch=300,
)
DEVICE = custom_hardware(flops=10_000, bandwidth=1, memory=16_000)


def planned(costs=COSTS, **changes):
    return plan(costs, **{"devices": 4, "hardware": DEVICE, "dtype": "bfloat16", **changes})


def test_data_parallel_memory():
    training = planned(parallel="ddp")
    assert (training.weight_bytes, training.gradient_bytes, training.optimizer_bytes) == (2000, 2000, 12_000)
    assert (training.gathered_bytes, training.activation_bytes) == (0, 800)
    assert training.memory_per_device == 16_800
    assert training.fits is False


def test_fully_sharded_memory():
    training = planned(parallel="fsdp")
    assert (training.weight_bytes, training.gradient_bytes, training.optimizer_bytes) == (500, 500, 3000)
    assert training.gathered_bytes == 400  # two units
    assert training.activation_bytes == 800
    assert training.memory_per_device == 5200
    assert training.fits is True


def test_tensor_parallel_memory():
    training = planned(parallel="tensor")
    assert (training.weight_bytes, training.gradient_bytes, training.optimizer_bytes) == (500, 500, 3000)
    assert (training.gathered_bytes, training.activation_bytes) == (0, 200)
    assert training.memory_per_device == 4200


def test_kinds_of_parallelism_compared():
    ddp, fsdp, tensor = (planned(parallel=way).memory_per_device for way in ("ddp", "fsdp", "tensor"))
    assert tensor < fsdp < ddp
    assert len({planned(parallel=way, devices=1).memory_per_device for way in ("ddp", "fsdp", "tensor")}) == 1
    more = [planned(parallel="fsdp", devices=n).memory_per_device for n in (2, 4, 8, 1000)]
    assert more == sorted(more, reverse=True)
    assert more[-1] > 800 + 400  # activations and gathered units stay, however many devices there are
    assert planned(parallel="ddp", devices=1000).memory_per_device == ddp


def test_memory_fits_to_the_byte():
    assert planned(hardware=custom_hardware(flops=1, bandwidth=1, memory=16_800)).fits is True
    assert planned(hardware=custom_hardware(flops=1, bandwidth=1, memory=16_799)).fits is False
    unknown = planned(hardware=custom_hardware(flops=1, bandwidth=1))
    assert unknown.fits is None
    assert "memory left" not in [line.what for line in unknown.lines()]


def test_time():
    """4 devices × 10,000 FLOP/s × 0.3 = 12,000 FLOP/s, which are 2 tokens a second."""
    training = planned(mfu=0.3, tokens=432_000)
    assert training.tokens_per_second == pytest.approx(2)
    assert training.total_flops == 2_592_000_000
    assert training.days == pytest.approx(2.5)
    assert training.device_hours == pytest.approx(240)
    assert training.steps == 1440
    assert training.seconds_per_step == pytest.approx(150)
    assert planned(tokens=301).steps == 2
    assert planned(tokens=300).steps == 1


def test_a_published_run():
    """Llama 1, 65 billion parameters: 1.4 trillion tokens took 1,022,362 GPU-hours of A100 80GB and about 21 days."""
    costs = replace(COSTS, parameters=65_200_000_000, flops_per_token=6 * 65.2e9)
    training = plan(costs, devices=2048, hardware=hardware("a100 sxm 80gb"), dtype="bfloat16", tokens=1.4e12, mfu=0.47)
    assert training.device_hours == pytest.approx(1_022_362, rel=0.03)
    assert training.days == pytest.approx(21, rel=0.03)


def test_tokens_default_to_twenty_per_parameter():
    assert planned().tokens == compute_optimal_tokens(1000) == 20_000
    assert compute_optimal_tokens(70_000_000_000) == 1_400_000_000_000  # Chinchilla
    assert compute_optimal_tokens(1000, tokens_per_parameter=25.5) == 25_500
    by_rule, chosen = ({line.what: line for line in planned(tokens=n).lines()}["tokens"] for n in (None, 20_000))
    assert by_rule.formula == "parameters × tokens per parameter = 1,000 × 20"
    assert chosen.formula == "as set = 20,000"


@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "tensor"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"devices": 1}, {"tokens": 1.4e12 / 7, "mfu": 0.123}, {"hardware": hardware("h100 sxm"), "tokens": 3e14}],
)
def test_every_formula_gives_its_value(parallel, changes):
    training = planned(parallel=parallel, **changes)
    lines = training.lines()
    for line in lines:
        names, numbers = line.formula.split(" = ")
        for sign, python in ((",", ""), ("×", "*"), ("−", "-"), ("⌈", "ceil("), ("⌉", ")")):
            numbers = numbers.replace(sign, python)
        assert eval(numbers, {"ceil": ceil}) == pytest.approx(line.value, rel=1e-4), line
        assert names
        assert line.unit
    shown = {line.what: line.value for line in lines}
    assert len(shown) == len(lines)
    assert shown["memory per device"] == training.memory_per_device
    assert (shown["memory left"] >= 0) is training.fits
    assert ("gathered weights" in shown) is (training.gathered_bytes > 0)
    times = (
        training.tokens_per_second,
        training.steps,
        training.seconds_per_step,
        training.days,
        training.device_hours,
    )
    assert tuple(shown[what] for what in ("throughput", "steps", "time per step", "time", "device-hours")) == times
    assert shown["total FLOPs"] == training.total_flops


def test_formulas_are_written_out():
    lines = {line.what: line for line in planned(parallel="fsdp", mfu=0.3).lines()}
    assert lines["weights"] == ("weights", "weight_bytes / devices = 2,000 / 4", 500, "bytes")
    assert lines["gathered weights"].formula == "units in flight × unit_bytes = 2 × 200"
    assert lines["throughput"].formula == "devices × peak × mfu / flops_per_token = 4 × 10,000 × 0.3 / 6,000"
    assert lines["memory left"].formula == "memory of your device − memory per device = 16,000 − 5,200"
    whole = {line.what: line.formula for line in planned(parallel="ddp").lines()}
    assert whole["weights"] == "weight_bytes = 2,000"


@pytest.mark.parametrize("mfu", [0, -0.1, 1.01, 40, nan])
def test_mfu_is_a_share(mfu):
    with pytest.raises(ValueError, match="mfu"):
        planned(mfu=mfu)
    assert planned(mfu=1).mfu == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 0}, "devices must be at least 1, got 0"),
        ({"parallel": "fdsp"}, "parallel must be one of ddp, fsdp, tensor; got 'fdsp'. Did you mean 'fsdp'"),
        ({"dtype": "bf16"}, "dtype must be one of"),
        ({"hardware": hardware("TPU v4"), "dtype": "float32"}, "TPU v4 has no peak for float32"),
        ({"tokens": 0}, "tokens must be a finite number above 0"),
        ({"tokens": inf}, "tokens must be a finite number above 0"),
    ],
)
def test_nonsense_is_refused(changes, message):
    with types_unchecked(), pytest.raises(ValueError, match=message):
        planned(**changes)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("parameters", 0, "parameters must be at least 1"),
        ("tokens_per_batch", 0, "tokens_per_batch must be at least 1"),
        ("flops_per_token", 0, "flops_per_token must be a finite number above 0"),
        ("weight_bytes", -1, "weight_bytes must be a finite number of at least 0, got -1"),
        ("optimizer_bytes", nan, "optimizer_bytes must be a finite number of at least 0, got nan"),
        ("unit_bytes", -1, "unit_bytes must be a finite number of at least 0, got -1"),
    ],
)
def test_impossible_costs_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        replace(COSTS, **{field: value})


def test_wrong_types_are_refused():
    with types_unchecked():
        with pytest.raises(TypeError, match="devices must be an integer"):
            planned(devices=2.5)
        with pytest.raises(ValueError, match="weight_bytes must be a finite number of at least 0, got '2 GB'"):
            replace(COSTS, weight_bytes="2 GB")
        with pytest.raises(ValueError, match="tokens_per_parameter must be a finite number above 0"):
            compute_optimal_tokens(10, 0)
