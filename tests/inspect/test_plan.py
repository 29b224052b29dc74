"""Plans against numbers worked out by hand, and each line's formula against its value."""

from dataclasses import replace
from math import ceil, inf, nan

import pytest

from glassformer.inspect.account.hardware import hardware, own
from glassformer.inspect.account.plan import TrainingFacts, compute_optimal_tokens, plan
from tests.helpers import types_unchecked

# A model of 1,000 parameters in mixed precision with Adam, on devices of 10,000 FLOP/s and 16,000 bytes.
FACTS = TrainingFacts(
    parameters=1000,
    flops_per_token=6000,
    weight_bytes=2000,
    gradient_bytes=2000,
    optimizer_bytes=12_000,
    activation_bytes=800,
    piece_bytes=200,
    tokens_per_batch=300,
)
DEVICE = own(flops=10_000, bandwidth=1, memory=16_000)


def planned(facts=FACTS, **changes):
    return plan(facts, **{"devices": 4, "hardware": DEVICE, "dtype": "bfloat16", **changes})


def test_data_parallel_memory():
    made = planned(parallel="ddp")
    assert (made.weight_bytes, made.gradient_bytes, made.optimizer_bytes) == (2000, 2000, 12_000)
    assert (made.gathered_bytes, made.activation_bytes) == (0, 800)
    assert made.memory_per_device == 16_800
    assert made.fits is False


def test_fully_sharded_memory():
    made = planned(parallel="fsdp")
    assert (made.weight_bytes, made.gradient_bytes, made.optimizer_bytes) == (500, 500, 3000)
    assert made.gathered_bytes == 400  # two pieces
    assert made.activation_bytes == 800
    assert made.memory_per_device == 5200
    assert made.fits is True


def test_tensor_parallel_memory():
    made = planned(parallel="tensor")
    assert (made.weight_bytes, made.gradient_bytes, made.optimizer_bytes) == (500, 500, 3000)
    assert (made.gathered_bytes, made.activation_bytes) == (0, 200)
    assert made.memory_per_device == 4200


def test_how_the_ways_compare():
    ddp, fsdp, tensor = (planned(parallel=way).memory_per_device for way in ("ddp", "fsdp", "tensor"))
    assert tensor < fsdp < ddp
    assert len({planned(parallel=way, devices=1).memory_per_device for way in ("ddp", "fsdp", "tensor")}) == 1
    more = [planned(parallel="fsdp", devices=n).memory_per_device for n in (2, 4, 8, 1000)]
    assert more == sorted(more, reverse=True)
    assert more[-1] > 800 + 400  # activations and gathered pieces stay, however many devices there are
    assert planned(parallel="ddp", devices=1000).memory_per_device == ddp


def test_memory_fits_to_the_byte():
    assert planned(hardware=own(flops=1, bandwidth=1, memory=16_800)).fits is True
    assert planned(hardware=own(flops=1, bandwidth=1, memory=16_799)).fits is False
    unknown = planned(hardware=own(flops=1, bandwidth=1))
    assert unknown.fits is None
    assert "memory left" not in [line.what for line in unknown.lines()]


def test_time():
    """4 devices × 10,000 FLOP/s × 0.3 = 12,000 FLOP/s, which are 2 tokens a second."""
    made = planned(mfu=0.3, tokens=432_000)
    assert made.tokens_per_second == pytest.approx(2)
    assert made.total_flops == 2_592_000_000
    assert made.days == pytest.approx(2.5)
    assert made.device_hours == pytest.approx(240)
    assert made.steps == 1440
    assert made.seconds_per_step == pytest.approx(150)
    assert planned(tokens=301).steps == 2
    assert planned(tokens=300).steps == 1


def test_a_published_run_is_of_the_right_size():
    """Llama 1, 65 billion parameters: 1.4 trillion tokens took 1,022,362 GPU-hours of A100 80GB and about 21 days."""
    facts = replace(FACTS, parameters=65_200_000_000, flops_per_token=6 * 65.2e9)
    made = plan(facts, devices=2048, hardware=hardware("a100 sxm 80gb"), dtype="bfloat16", tokens=1.4e12, mfu=0.47)
    assert made.device_hours == pytest.approx(1_022_362, rel=0.03)
    assert made.days == pytest.approx(21, rel=0.03)


def test_tokens_without_a_number_are_twenty_for_each_parameter():
    assert planned().tokens == compute_optimal_tokens(1000) == 20_000
    assert compute_optimal_tokens(70_000_000_000) == 1_400_000_000_000  # Chinchilla
    assert compute_optimal_tokens(1000, tokens_per_parameter=25.5) == 25_500
    by_rule, given = ({line.what: line for line in planned(tokens=n).lines()}["tokens"] for n in (None, 20_000))
    assert by_rule.formula == "parameters × tokens per parameter = 1,000 × 20"
    assert given.formula == "as given = 20,000"


@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "tensor"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"devices": 1}, {"tokens": 1.4e12 / 7, "mfu": 0.123}, {"hardware": hardware("h100 sxm"), "tokens": 3e14}],
)
def test_every_formula_gives_its_value(parallel, changes):
    made = planned(parallel=parallel, **changes)
    lines = made.lines()
    for line in lines:
        names, numbers = line.formula.split(" = ")
        for sign, python in ((",", ""), ("×", "*"), ("−", "-"), ("⌈", "ceil("), ("⌉", ")")):
            numbers = numbers.replace(sign, python)
        assert eval(numbers, {"ceil": ceil}) == pytest.approx(line.value, rel=1e-4), line
        assert names
        assert line.unit
    shown = {line.what: line.value for line in lines}
    assert len(shown) == len(lines)
    assert shown["memory per device"] == made.memory_per_device
    assert (shown["memory left"] >= 0) is made.fits
    assert ("gathered weights" in shown) is (made.gathered_bytes > 0)
    times = (made.tokens_per_second, made.steps, made.seconds_per_step, made.days, made.device_hours)
    assert tuple(shown[what] for what in ("throughput", "steps", "time per step", "time", "device-hours")) == times
    assert shown["total FLOPs"] == made.total_flops


def test_formulas_are_written_out():
    lines = {line.what: line for line in planned(parallel="fsdp", mfu=0.3).lines()}
    assert lines["weights"] == ("weights", "weight_bytes / devices = 2,000 / 4", 500, "bytes")
    assert lines["gathered weights"].formula == "pieces in flight × piece_bytes = 2 × 200"
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
    ("changes", "said"),
    [
        ({"devices": 0}, "devices must be at least 1, got 0"),
        ({"parallel": "fdsp"}, "parallel must be one of ddp, fsdp, tensor; got 'fdsp'. Did you mean 'fsdp'"),
        ({"dtype": "bf16"}, "dtype must be one of"),
        ({"hardware": hardware("TPU v4"), "dtype": "float32"}, "TPU v4 has no peak for float32"),
        ({"tokens": 0}, "tokens must be a finite number above 0"),
        ({"tokens": inf}, "tokens must be a finite number above 0"),
    ],
)
def test_nonsense_is_refused(changes, said):
    with types_unchecked(), pytest.raises(ValueError, match=said):
        planned(**changes)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("parameters", 0, "parameters must be at least 1"),
        ("tokens_per_batch", 0, "tokens_per_batch must be at least 1"),
        ("flops_per_token", 0, "flops_per_token must be a finite number above 0"),
        ("weight_bytes", -1, "weight_bytes must be a finite number of at least 0, got -1"),
        ("optimizer_bytes", nan, "optimizer_bytes must be a finite number of at least 0, got nan"),
        ("piece_bytes", -1, "piece_bytes must be a finite number of at least 0, got -1"),
    ],
)
def test_impossible_facts_are_refused(field, value, said):
    with pytest.raises(ValueError, match=said):
        replace(FACTS, **{field: value})


def test_wrong_types_are_refused():
    with types_unchecked():
        with pytest.raises(TypeError, match="devices must be a whole number"):
            planned(devices=2.5)
        with pytest.raises(ValueError, match="weight_bytes must be a finite number of at least 0, got '2 GB'"):
            replace(FACTS, weight_bytes="2 GB")
        with pytest.raises(ValueError, match="tokens_per_parameter must be a finite number above 0"):
            compute_optimal_tokens(10, 0)
