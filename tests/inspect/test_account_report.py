"""An account as rows and data: what it must come to for a model worked out by hand, and sums that must agree."""

import json
from dataclasses import replace
from math import prod
from typing import get_args

import pytest

from glassformer import account
from glassformer.config import change
from glassformer.inspect.account import report
from glassformer.inspect.account.counts import AccountMode
from glassformer.inspect.account.hardware import custom_hardware, time_on
from glassformer.inspect.account.plan import plan_of
from glassformer.inspect.account.report import duration, human, scale_for
from glassformer.inspect.account.sweep import (
    FlopsCurve,
    Grid,
    Sweep,
    account_at,
    crossings,
    parse_sweep,
    run_sweep,
    solve,
)
from glassformer.inspect.account.tree import AMOUNTS
from glassformer.inspect.parameters import num_parameters
from glassformer.models.transformer import Transformer
from tests.configs import CONFIGS, random_config
from tests.helpers import some_at_once
from tests.inspect.counting import shallow

SAMPLE = (
    "cs336-small",
    "albert-base-v2",
    "deberta-v2-xlarge",
    "deberta-v3-base",
    "gpt-neo-125m",
    "t5-small",
    "llama-3.2-1b",
)
SHARES_OF_LAYERS = {
    "cs336-small": (21.4, 14.3, 64.3),
    "cs336-medium": (22.2, 11.1, 66.7),
    "cs336-large": (22.7, 9.1, 68.2),
    "cs336-xl": (23.1, 7.4, 69.4),
}


@pytest.mark.slow  # tests/cli/test_account.py asks for the same
def test_the_exercise() -> None:
    counted = account("cs336-xl")
    assert counted.parameters == 2_127_057_600
    assert counted.memory_bytes == 8_508_230_400
    assert counted.flops == 4_513_336_524_800
    longer = account("cs336-xl", context=16_384)
    assert longer.flops == 149_522_795_724_800
    assert longer.flops / counted.flops == pytest.approx(33.1, abs=0.05)
    layers = [sum(item.layer_shares().values()) for item in (longer, counted)]
    assert layers[0] / layers[1] == pytest.approx(33.8, abs=0.05)
    share = {share.kind: share.of_all for share in report.shares_of(longer)}
    assert share["attention"] == pytest.approx(0.552, abs=0.0005)


@pytest.mark.parametrize("name", some_at_once(SHARES_OF_LAYERS, {"cs336-small", "cs336-xl"}.__contains__))
def test_shares_of_the_layers_alone(name: str) -> None:
    shares = {share.kind: share for share in report.shares_of(account(shallow(name)))}  # of however many layers
    percentages = tuple(round(100 * (shares[kind].of_layers or 0), 1) for kind in ("projections", "attention", "ffn"))
    assert percentages == SHARES_OF_LAYERS[name]
    assert shares["head"].of_layers is None
    assert 3 * shares["projections"].flops == shares["ffn"].flops  # 8 d² and 24 d², whatever the size


@pytest.mark.parametrize("name", some_at_once(SAMPLE, {"deberta-v2-xlarge", "t5-small"}.__contains__))
def test_every_product_belongs_to_one_kind(name: str) -> None:
    counted = account(shallow(name))
    products = [product for part in counted.root.walk() for product in part.products]
    assert sum(counted.shares().values()) == counted.forward_flops == sum(product.flops for product in products)
    assert sum(share.of_all for share in report.shares_of(counted)) == pytest.approx(1)
    assert sum(report.main_kinds(counted.shares()).values()) == counted.forward_flops
    assert ("convolution" in counted.shares()) == (name == "deberta-v2-xlarge")


@pytest.mark.parametrize("config", some_at_once(CONFIGS, {"gpt2", "t5", "albert"}.__contains__))
def test_folded_blocks_have_all_their_numbers(config: str) -> None:
    counted = account(CONFIGS[config], context=7, batch=2, mode="train")
    folded = report.fold(counted.root)
    for field in AMOUNTS:
        assert getattr(folded, field) == getattr(counted.root, field)
        leaves = [part for part in folded.walk() if not part.parts]
        assert sum(getattr(part, field) for part in leaves) <= getattr(counted.root, field)
    assert not any(name.isdigit() for part in folded.walk() for name in part.path.split("."))
    assert sum(len(part.weights) for part in folded.walk()) == sum(len(part.weights) for part in counted.root.walk())


def test_rows_of_the_table_count_blocks_once() -> None:
    counted = account("gpt2")
    rows = list(report.table_rows(counted))
    labels = [row.label for row in rows]
    assert labels.count("blocks × 12") == 1
    ffn = next(row for row in rows if row.label == "ffn")
    assert ffn.level == 3
    assert ffn.part.parameters == 12 * (2 * 768 * 3072 + 768 + 3072)
    assert max(row.level for row in report.table_rows(counted, depth=2)) == 2
    assert [row.label for row in report.table_rows(counted, full=True)].count("ffn") == 12
    assert "blocks × 12, weights of 1" in [row.label for row in report.table_rows(account("albert-base-v2", context=8))]


def test_data_is_plain_whole_and_complete() -> None:
    counted = account(CONFIGS["t5"], mode="train", context=16, source=24)
    data = json.loads(json.dumps(report.as_dict(counted)))
    assert data["parameters"] == num_parameters(Transformer(CONFIGS["t5"]))
    assert data["flops"] == data["forward_flops"] + data["backward_flops"] == 3 * data["forward_flops"]
    assert (data["source"], data["optimizer"]) == (24, "adamw")
    other = report.as_dict(account(CONFIGS["gpt2"]), 0)
    assert other["source"] is other["optimizer"] is None
    assert data["memory"]["resident"] == data["memory_bytes"]
    assert sum(part["flops"] for part in data["parts"]) == data["flops"]
    assert sum(part["share"] for part in data["parts"]) == pytest.approx(1)
    assert data["parts"][0]["parts"] or data["parts"][1]["parts"]
    stack = [*data["parts"]]
    products = []
    while stack:
        part = stack.pop()
        products += part["products"]
        stack += part["parts"]
    assert sum(product["flops"] for product in products) == data["forward_flops"]
    for product in products:
        sizes = (product[name] for name in ("m", "n", "p", "times", "runs"))
        assert product["flops"] == 2 * prod(sizes)


def test_an_account_shows_itself_in_one_line() -> None:
    cost = account("gpt2", context=32, mode="train", batch=2)
    assert repr(cost) == (
        "<Account of gpt2: 124,439,808 parameters; one training step, batch 2, context 32, float32: "
        f"{human(cost.flops, 'FLOP')}, peak memory {human(cost.memory.peak, 'B')}>"
    )
    assert repr(cost.find("blocks.0.ffn")).startswith("<PartCost decoder.blocks.0.ffn: 4,722,432 parameters, ")


def test_depth_cuts_the_tree_but_not_the_numbers() -> None:
    counted = account(CONFIGS["gpt2"])
    assert report.as_dict(counted, 0)["parts"] == []
    assert [part["path"] for part in report.as_dict(counted, 1)["parts"]] == ["embed", "decoder", "head"]
    assert {row["level"] for row in report.part_rows(counted, 2)} == {0, 1, 2}
    assert report.part_rows(counted, 0)[0]["flops"] == counted.flops


@pytest.mark.parametrize(
    ("text", "axis", "values"),
    [
        ("context=1024..8192", "context", (1024, 2048, 4096, 8192)),
        ("context=1000..5000", "context", (1000, 2000, 4000, 5000)),
        ("batch=1,3,4", "batch", (1, 3, 4)),
        ("source = 7", "source", (7,)),
    ],
)
def test_sweeps_are_parsed(text: str, axis: str, values: tuple[int, ...]) -> None:
    assert parse_sweep(text) == Sweep(axis, values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1024..2048", "names what it varies"),
        ("contxt=1..2", "Did you mean 'context'"),
        ("context=", "integers of at least 1"),
        ("context=0..4", "integers of at least 1"),
        ("context=-4..4", "integers of at least 1"),
        ("context=1k..4k", "integers of at least 1"),
        ("context=8..4", "values of a sweep rise"),
        ("context=4,4", "values of a sweep rise"),
        ("context=1..2..3", "integers of at least 1"),
    ],
)
def test_the_error_of_a_wrong_sweep_shows_the_form(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_sweep(text)


@pytest.mark.slow
def test_a_sweep_varies_one_size() -> None:
    base = account("t5-small", context=8, source=4, batch=3)
    swept = run_sweep(base, Sweep("source", (2, 16)))
    assert [(item.source, item.context, item.batch, item.name) for item in swept] == [
        (2, 8, 3, "t5-small"),
        (16, 8, 3, "t5-small"),
    ]
    assert account_at(account("t5-small", context=8), "context", 32).source == 32  # it follows the context
    assert account_at(base, "context", 32).source == 4
    with pytest.raises(ValueError, match="reads no source"):
        run_sweep(account("gpt2"), Sweep("source", (2,)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAMPLE, "mistral-7b-v0.1"])
@pytest.mark.parametrize("causal", ["dense", "exact"])
def test_a_formula_gives_the_flops_at_any_size(name: str, causal: str) -> None:
    """Within a window and beyond it, with full and partial blocks; all layers from a few."""
    base = account(shallow(name), context=40, causal=causal)  # type: ignore[arg-type]
    curve = FlopsCurve(base, "context")
    assert curve.largest == 2**40
    for size in (96, 5000):
        assert curve.at(size) == account_at(base, "context", size).shares(), size


@pytest.mark.parametrize("seed", some_at_once(range(20), lambda seed: seed == 0))
def test_a_formula_gives_the_flops_of_any_facts(seed: int) -> None:
    base = account(random_config(seed), context=11)
    curve = FlopsCurve(base, "context")
    for size in (1, 9, 41):
        assert curve.at(size) == account_at(base, "context", size).shares()


def test_a_formula_that_does_not_hold_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the formula is wrong because a window has other blocks, each size is traced."""
    base = account(change(CONFIGS["llama"], "decoder.attention.windows", (16,)), context=40)
    right = FlopsCurve(base, "context").at(30)
    monkeypatch.setattr("glassformer.inspect.account.sweep._grid", lambda *_: Grid(7, 16))
    curve = FlopsCurve(base, "context")
    assert curve.largest < 2**40
    assert curve.at(30) == right == account_at(base, "context", 30).shares()


def test_equations_are_solved_exactly() -> None:
    rows = [[1, size, size**2] for size in (2, 4, 6)]
    assert solve(rows, [7 + 10**12 * size + 3 * size**2 for size in (2, 4, 6)]) == [7, 10**12, 3]
    assert solve([[1, 1], [2, 2]], [3, 6]) == [3, 0]


@pytest.mark.parametrize(
    ("options", "projections", "ffn"),
    [
        ({}, 3200, 9600),  # 8 d² T = 4 d T² and 24 d² T = 4 d T²
        pytest.param({"mode": "decode"}, 3200, 9600, marks=pytest.mark.slow),
        pytest.param({"mode": "train", "batch": 3}, 3200, 9600, marks=pytest.mark.slow),
        pytest.param({"causal": "exact"}, 6399, 19199, marks=pytest.mark.slow),  # 4 d · T (T + 1) / 2
    ],
)
def test_where_attention_overtakes(options: dict[str, object], projections: int, ffn: int) -> None:
    base = account(shallow("cs336-xl"), **options)  # type: ignore[arg-type]
    assert [(crossing.rival, crossing.value) for crossing in crossings(base)] == [
        ("projections", projections),
        ("ffn", ffn),
    ]
    before, after = account_at(base, "context", ffn - 1).shares(), account_at(base, "context", ffn).shares()
    assert before["attention"] < before["ffn"]
    assert after["attention"] >= after["ffn"]


@pytest.mark.slow
def test_block_sparse_attention_never_overtakes() -> None:
    assert {crossing.value for crossing in crossings(account(shallow("bigbird-roberta-base")))} == {None}


def test_time_is_the_roofline_of_every_operation() -> None:
    counted = account("cs336-small", context=64)
    compute = time_on(counted, custom_hardware(flops=1e9, bandwidth=1e30))
    assert compute.seconds == pytest.approx(counted.flops / 1e9)
    assert (compute.bound, compute.compute_share) == ("compute", pytest.approx(1))
    memory = time_on(counted, custom_hardware(flops=1e30, bandwidth=1e9))
    assert memory.seconds == pytest.approx(counted.root.bytes_moved / 1e9)
    assert memory.bound == "memory"
    assert memory.tokens_per_second == pytest.approx(64 / memory.seconds)
    kernels = [operation for operation in memory.work if operation.name.endswith(".kernel")]
    assert len(kernels) == 12
    assert all(kernel.flops and kernel.bytes for kernel in kernels)  # products and memory traffic are one operation


def test_the_time_of_training_includes_backward_recomputation_and_optimizer() -> None:
    counted = account("cs336-small", context=64, mode="train")
    work = time_on(counted, custom_hardware(flops=1e12, bandwidth=1e12)).work
    assert sum(operation.flops for operation in work) == counted.flops + counted.recomputed_flops
    optimizer = next(operation for operation in work if operation.name == "optimizer")
    assert (
        optimizer.bytes == (2 + 1 + 2 * 2) * 4 * counted.parameters
    )  # weights read and written, gradients, two moments
    assert sum(operation.bytes for operation in work) == (
        counted.root.bytes_moved + counted.root.backward_bytes + optimizer.bytes
    )
    assert counted.root.backward_bytes > counted.root.bytes_moved


def test_a_plan_needs_a_training_step() -> None:
    counted = account(shallow("cs336-small"), mode="train", batch=2)
    device = custom_hardware(flops=1e15, bandwidth=1e12, memory=80e9)
    plan = plan_of(counted, device, devices=4, tokens=1e9)
    assert plan.costs.tokens_per_batch == 4 * 2 * 1024
    assert plan.costs.flops_per_token == counted.flops / 2048
    assert plan.memory_per_device == counted.memory.resident + counted.memory.working
    assert plan_of(counted, device, devices=4, parallel="tensor").costs.tokens_per_batch == 2 * 1024
    with pytest.raises(ValueError, match="mode='train'"):
        plan_of(replace(counted, workload=replace(counted.workload, mode="forward")), device, devices=4)


@pytest.mark.parametrize(
    ("name", "batch", "context"),
    [
        pytest.param("gpt2", 32, 1024, marks=pytest.mark.slow),
        pytest.param("xlm-roberta-base", 64, 128, marks=pytest.mark.slow),
        pytest.param("deberta-v3-xsmall", 32, 512, marks=pytest.mark.slow),
        pytest.param("t5-small", 1, 64, marks=pytest.mark.slow),
        ("gpt2", 1, 8),
    ],
)
def test_a_plan_never_underestimates_memory(name: str, batch: int, context: int) -> None:
    counted = account(name, mode="train", batch=batch, context=context)
    plan = plan_of(counted, custom_hardware(flops=1e12, bandwidth=1e12, memory=80e9), devices=1)
    assert counted.memory.peak <= plan.memory_per_device <= counted.memory.peak + counted.memory.gradients


def test_checkpointing_in_a_plan() -> None:
    counted = account(shallow("gpt2"), mode="train", batch=8)
    device = custom_hardware(flops=1e12, bandwidth=1e12)
    plain, checkpointed = (plan_of(counted, device, devices=2, checkpointing=on) for on in (False, True))
    saved = counted.memory.activations - counted.memory.checkpointed
    assert plain.memory_per_device - checkpointed.memory_per_device == saved > 0
    assert plain.tokens_per_second == checkpointed.tokens_per_second


def test_a_plan_counts_the_tokens_of_source_and_target() -> None:
    counted = account(CONFIGS["t5"], mode="train", batch=2, context=100, source=400)
    plan = plan_of(counted, custom_hardware(flops=1e12, bandwidth=1e12), devices=3)
    assert plan.costs.tokens_per_batch == 3 * 2 * 500
    assert plan.costs.flops_per_token == counted.flops / 1000


@pytest.mark.slow
def test_fsdp_gathers_the_largest_unit() -> None:
    device = custom_hardware(flops=1e12, bandwidth=1e12)
    shared = plan_of(account("albert-base-v2", mode="train", context=8), device, devices=2, parallel="fsdp")
    counted = account("albert-base-v2", mode="train", context=8)
    block = counted.find("encoder.blocks.0").parameters
    assert block > counted.find("embed").parameters
    assert shared.gathered_bytes == 2 * 4 * block
    wide = plan_of(account("xlm-roberta-base", mode="train", context=8), device, devices=2, parallel="fsdp")
    assert wide.gathered_bytes == 2 * 4 * account("xlm-roberta-base", context=8).find("embed").parameters


def test_tensor_parallelism_divides_the_heads() -> None:
    counted = account("gpt2", mode="train", context=8)
    device = custom_hardware(flops=1e12, bandwidth=1e12)
    assert plan_of(counted, device, devices=6, parallel="tensor").shards == 6
    with pytest.raises(ValueError, match="8 devices do not divide the 12 heads of gpt2; take one of 1, 2, 3, 4, 6, 12"):
        plan_of(counted, device, devices=8, parallel="tensor")


@pytest.mark.slow
def test_a_set_source_stays_and_a_default_source_follows_the_context() -> None:
    """Even if it happens to equal the context."""
    fixed, default = account("t5-small", context=64, source=64), account("t5-small", context=64)
    for base, source in ((fixed, 64), (default, 256)):
        [swept] = run_sweep(base, Sweep("context", (256,)))
        assert (swept.context, swept.source) == (256, source)
    for crossing in crossings(fixed):
        assert crossing.value is not None
        grown = account("t5-small", context=crossing.value, source=64).shares()
        before = account("t5-small", context=crossing.value - 1, source=64).shares()
        assert grown["attention"] >= grown[crossing.rival]
        assert before["attention"] < before[crossing.rival]


def test_only_training_recomputes() -> None:
    rows = report.part_rows(account(CONFIGS["gpt2"], context=8))
    assert all(row["recomputed_flops"] == 0 for row in rows)
    assert any(row["recomputed_flops"] for row in report.part_rows(account(CONFIGS["gpt2"], context=8, mode="train")))


def test_every_mode_reports_the_cache_per_token() -> None:
    facts = shallow("gpt2")  # keys and values of width 768 in four layers, four bytes each
    per_token = {account(facts, context=8, mode=mode).memory.kv_cache_per_token for mode in get_args(AccountMode)}
    assert per_token == {4 * 2 * 768 * 4}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.000 kB"), (999_949, "999.9 kB"), (999_950, "1.000 MB"),
        (8_508_230_400, "8.508 GB"), (20_971_520_000, "20.97 GB"), (-5e9, "-5.000 GB"), (1e30, "1,000,000.0 YB"),
    ],
)  # fmt: skip
def test_numbers_have_a_unit_prefix(value: float, shown: str) -> None:
    assert human(value, "B") == shown


def test_a_column_has_one_unit() -> None:
    scale = scale_for(4_513_336_524_800, "FLOP")
    assert scale.unit == "GFLOP"
    assert [scale(4_513_336_524_800), scale(1_000_000), scale(1), scale(0)] == ["4,513.337", "0.001", "< 0.001", ""]
    assert scale_for(149_522_795_724_800, "FLOP").unit == "TFLOP"
    assert scale_for(9_999, "B")(9_999) == "9,999"


def test_durations_have_a_fitting_unit() -> None:
    assert [duration(seconds) for seconds in (65.0, 0.5, 2.5e-5, 3e-9)] == ["65 s", "500 ms", "25 µs", "3 ns"]
