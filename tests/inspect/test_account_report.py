"""An account as rows and data: what it must come to for a model worked out by hand, and sums that must agree."""

import json
from dataclasses import replace
from typing import get_args

import pytest

from glassformer import account, presets
from glassformer.config import change
from glassformer.inspect.account import report, timing
from glassformer.inspect.account.growth import Growth, at, solve
from glassformer.inspect.account.hardware import own
from glassformer.inspect.account.load import Mode
from glassformer.inspect.account.sweep import Sweep, crossings, parse_sweep, run_sweep
from glassformer.inspect.account.tree import AMOUNTS
from glassformer.inspect.account.units import duration, human, scale_for
from tests.helpers import some_at_once
from tests.inspect.counting import shallow
from tests.pages import PAGES, any_page

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
    layers = [sum(one.layer_shares().values()) for one in (longer, counted)]
    assert layers[0] / layers[1] == pytest.approx(33.8, abs=0.05)
    share = {one.kind: one.of_all for one in report.shares_of(longer)}
    assert share["attention"] == pytest.approx(0.552, abs=0.0005)


@pytest.mark.parametrize("name", some_at_once(SHARES_OF_LAYERS, {"cs336-small", "cs336-xl"}.__contains__))
def test_shares_of_the_layers_alone(name: str) -> None:
    shares = {one.kind: one for one in report.shares_of(account(shallow(name)))}  # of however many layers
    found = tuple(round(100 * (shares[kind].of_layers or 0), 1) for kind in ("projections", "attention", "ffn"))
    assert found == SHARES_OF_LAYERS[name]
    assert shares["head"].of_layers is None
    assert 3 * shares["projections"].flops == shares["ffn"].flops  # 8 d² and 24 d², whatever the size


@pytest.mark.parametrize("name", some_at_once(SAMPLE, {"deberta-v2-xlarge", "t5-small"}.__contains__))
def test_every_product_belongs_to_one_kind(name: str) -> None:
    counted = account(shallow(name))
    products = [product for part in counted.root.walk() for product in part.products]
    assert sum(counted.shares().values()) == counted.forward_flops == sum(product.flops for product in products)
    assert sum(one.of_all for one in report.shares_of(counted)) == pytest.approx(1)
    assert sum(report.five_kinds(counted.shares()).values()) == counted.forward_flops
    assert ("convolution" in counted.shares()) == (name == "deberta-v2-xlarge")


@pytest.mark.parametrize("page", some_at_once(PAGES, {"gpt2", "t5", "albert"}.__contains__))
def test_folded_blocks_have_all_their_numbers(page: str) -> None:
    counted = account(PAGES[page], context=7, batch=2, mode="train")
    folded = report.fold(counted.root)
    for field in AMOUNTS:
        assert getattr(folded, field) == getattr(counted.root, field)
        leaves = [part for part in folded.walk() if not part.parts]
        assert sum(getattr(part, field) for part in leaves) <= getattr(counted.root, field)
    assert not any(name.isdigit() for part in folded.walk() for name in part.path.split("."))
    assert sum(len(part.weights) for part in folded.walk()) == sum(len(part.weights) for part in counted.root.walk())


def test_rows_of_the_table_count_blocks_once() -> None:
    rows = list(report.table_rows(account("gpt2")))
    labels = [row.label for row in rows]
    assert labels.count("blocks × 12") == 1
    ffn = next(row for row in rows if row.label == "ffn")
    assert ffn.level == 3
    assert ffn.part.parameters == 12 * (2 * 768 * 3072 + 768 + 3072)
    assert max(row.level for row in report.table_rows(account("gpt2"), depth=2)) == 2
    assert [row.label for row in report.table_rows(account("gpt2"), full=True)].count("ffn") == 12
    assert "blocks × 12, weights of 1" in [row.label for row in report.table_rows(account("albert-base-v2"))]


def test_data_is_plain_whole_and_complete() -> None:
    counted = account("t5-small", mode="train", context=16, source=24)
    data = json.loads(json.dumps(report.as_dict(counted)))
    assert data["parameters"] == preset_parameters("t5-small")
    assert data["flops"] == data["forward_flops"] + data["backward_flops"] == 3 * data["forward_flops"]
    assert (data["source"], data["optimizer"]) == (24, "adamw")
    assert report.as_dict(account("gpt2"), 0)["source"] is None
    assert report.as_dict(account("gpt2"), 0)["optimizer"] is None
    assert data["memory"]["held"] == data["memory_bytes"]
    assert sum(part["flops"] for part in data["parts"]) == data["flops"]
    assert sum(part["share"] for part in data["parts"]) == pytest.approx(1)
    product = data["parts"][0]["parts"] or data["parts"][1]["parts"]
    assert product  # there is a tree
    stack = [*data["parts"]]
    products = []
    while stack:
        part = stack.pop()
        products += part["products"]
        stack += part["parts"]
    assert sum(one["flops"] for one in products) == data["forward_flops"]
    for one in products:
        assert one["flops"] == 2 * one["m"] * one["n"] * one["p"] * one["times"] * one["runs"]


def preset_parameters(name: str) -> int:
    return presets()[name].parameters


def test_depth_cuts_the_tree_but_not_the_numbers() -> None:
    counted = account("gpt2")
    assert report.as_dict(counted, 0)["parts"] == []
    assert [part["path"] for part in report.as_dict(counted, 1)["parts"]] == ["embed", "decoder", "head"]
    assert {row["level"] for row in report.part_rows(counted, 2)} == {0, 1, 2}
    assert report.part_rows(counted, 0)[0]["flops"] == counted.flops


@pytest.mark.parametrize(
    ("said", "axis", "values"),
    [
        ("context=1024..8192", "context", (1024, 2048, 4096, 8192)),
        ("context=1000..5000", "context", (1000, 2000, 4000, 5000)),
        ("batch=1,3,4", "batch", (1, 3, 4)),
        ("source = 7", "source", (7,)),
    ],
)
def test_sweeps_are_read(said: str, axis: str, values: tuple[int, ...]) -> None:
    assert parse_sweep(said) == Sweep(axis, values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("1024..2048", "names what it varies"),
        ("contxt=1..2", "Did you mean 'context'"),
        ("context=", "whole numbers of at least 1"),
        ("context=0..4", "whole numbers of at least 1"),
        ("context=-4..4", "whole numbers of at least 1"),
        ("context=1k..4k", "whole numbers of at least 1"),
        ("context=8..4", "values of a sweep rise"),
        ("context=4,4", "values of a sweep rise"),
        ("context=1..2..3", "whole numbers of at least 1"),
    ],
)
def test_a_wrong_sweep_is_told_the_form(said: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_sweep(said)


def test_a_sweep_varies_one_size() -> None:
    base = account("t5-small", context=8, source=4, batch=3)
    swept = run_sweep(base, Sweep("source", (2, 16)))
    assert [(one.source, one.context, one.batch, one.name) for one in swept] == [
        (2, 8, 3, "t5-small"),
        (16, 8, 3, "t5-small"),
    ]
    assert at(account("t5-small", context=8), "context", 32).source == 32  # it was as long as the context, and stays so
    assert at(base, "context", 32).source == 4
    with pytest.raises(ValueError, match="reads no source"):
        run_sweep(account("gpt2"), Sweep("source", (2,)))


AT_ONCE = ("gpt-neo-125m", "t5-small", "bigbird-roberta-base")


LATER = (*(name for name in SAMPLE if name not in AT_ONCE), "mistral-7b-v0.1")


@pytest.mark.parametrize("name", [*AT_ONCE, *(pytest.param(name, marks=pytest.mark.slow) for name in LATER)])
@pytest.mark.parametrize("causal", ["dense", pytest.param("exact", marks=pytest.mark.slow)])
def test_a_formula_gives_the_kinds_at_any_size(name: str, causal: str) -> None:
    """Within a window and beyond it, in whole blocks and with a part of one; all layers from a few."""
    base = account(shallow(name), context=40, causal=causal)  # type: ignore[arg-type]
    growth = Growth(base, "context")
    assert growth.farthest == 2**40
    for size in (96, 5000):
        assert growth.at(size) == at(base, "context", size).shares(), size


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 20))])
def test_a_formula_gives_the_kinds_of_any_page(seed: int) -> None:
    base = account(any_page(seed), context=11)
    growth = Growth(base, "context")
    for size in (1, 9, 41):
        assert growth.at(size) == at(base, "context", size).shares()


def test_a_formula_that_does_not_hold_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a window is not known to leave something out, each size is traced by itself."""
    base = account(change(PAGES["llama"], "decoder.attention.windows", (16,)), context=40, causal="exact")
    right = Growth(base, "context").at(30)
    monkeypatch.setattr("glassformer.inspect.account.growth._last_full", lambda _: 1)
    growth = Growth(base, "context")
    assert growth.farthest < 2**40
    assert growth.at(30) == right == at(base, "context", 30).shares()


def test_equations_are_solved_exactly() -> None:
    rows = [[1, size, size**2] for size in (2, 4, 6)]
    assert solve(rows, [7 + 10**12 * size + 3 * size**2 for size in (2, 4, 6)]) == [7, 10**12, 3]
    assert solve([[1, 1], [2, 2]], [3, 6]) == [3, 0]


@pytest.mark.parametrize(
    ("given", "projections", "ffn"),
    [
        ({}, 3200, 9600),  # 8 d² T = 4 d T² and 24 d² T = 4 d T²
        ({"mode": "decode"}, 3200, 9600),
        ({"mode": "train", "batch": 3}, 3200, 9600),
        ({"causal": "exact"}, 6399, 19199),  # 4 d · T (T + 1) / 2
    ],
)
def test_where_attention_catches_up(given: dict[str, object], projections: int, ffn: int) -> None:
    base = account(shallow("cs336-xl"), **given)  # type: ignore[arg-type]
    assert [(one.rival, one.value) for one in crossings(base)] == [("projections", projections), ("ffn", ffn)]
    before, there = at(base, "context", ffn - 1).shares(), at(base, "context", ffn).shares()
    assert before["attention"] < before["ffn"]
    assert there["attention"] >= there["ffn"]


def test_block_sparse_attention_never_catches_up() -> None:
    assert {one.value for one in crossings(account(shallow("bigbird-roberta-base")))} == {None}


def test_time_is_the_roofline_of_every_operation() -> None:
    counted = account("cs336-small", context=64)
    compute = timing.time_on(counted, own(flops=1e9, bandwidth=1e30))
    assert compute.seconds == pytest.approx(counted.flops / 1e9)
    assert (compute.bound, compute.compute_share) == ("compute", pytest.approx(1))
    memory = timing.time_on(counted, own(flops=1e30, bandwidth=1e9))
    assert memory.seconds == pytest.approx(counted.root.bytes_moved / 1e9)
    assert memory.bound == "memory"
    assert memory.tokens_per_second == pytest.approx(64 / memory.seconds)
    kernels = [one for one in memory.work if one.name.endswith(".kernel")]
    assert len(kernels) == 12
    assert all(one.flops and one.bytes for one in kernels)  # the products and their data are one operation


def test_time_of_training_has_the_backward_pass_what_is_done_again_and_the_optimizer() -> None:
    counted = account("cs336-small", context=64, mode="train")
    work = timing.time_on(counted, own(flops=1e12, bandwidth=1e12)).work
    assert sum(one.flops for one in work) == counted.flops + counted.recomputed_flops
    updated = next(one for one in work if one.name == "optimizer")
    assert updated.bytes == (2 + 1 + 2 * 2) * 4 * counted.parameters  # weights there and back, gradients, two means
    assert sum(one.bytes for one in work) == counted.root.bytes_moved + counted.root.backward_bytes + updated.bytes
    assert counted.root.backward_bytes > counted.root.bytes_moved


def test_a_plan_is_of_training() -> None:
    counted = account("cs336-small", mode="train", batch=2)
    device = own(flops=1e15, bandwidth=1e12, memory=80e9)
    found = timing.plan_of(counted, device, devices=4, tokens=1e9)
    assert found.facts.tokens_per_batch == 4 * 2 * 1024
    assert found.facts.flops_per_token == counted.flops / 2048
    assert found.memory_per_device == counted.memory.held + counted.memory.working
    assert timing.plan_of(counted, device, devices=4, parallel="tensor").facts.tokens_per_batch == 2 * 1024
    with pytest.raises(ValueError, match="mode='train'"):
        timing.plan_of(replace(counted, load=replace(counted.load, mode="forward")), device, devices=4)


@pytest.mark.parametrize(
    ("name", "batch", "context"),
    [
        ("gpt2", 32, 1024),
        pytest.param("xlm-roberta-base", 64, 128, marks=pytest.mark.slow),
        pytest.param("deberta-v3-xsmall", 32, 512, marks=pytest.mark.slow),
        pytest.param("t5-small", 1, 64, marks=pytest.mark.slow),
        ("gpt2", 1, 8),
    ],
)
def test_a_plan_never_promises_less_memory_than_the_step_needs(name: str, batch: int, context: int) -> None:
    counted = account(name, mode="train", batch=batch, context=context)
    found = timing.plan_of(counted, own(flops=1e12, bandwidth=1e12, memory=80e9), devices=1)
    assert counted.memory.peak <= found.memory_per_device <= counted.memory.peak + counted.memory.gradients


def test_checkpointing_in_a_plan() -> None:
    counted = account("gpt2", mode="train", batch=8)
    device = own(flops=1e12, bandwidth=1e12)
    plain, again = (timing.plan_of(counted, device, devices=2, checkpointing=on) for on in (False, True))
    saved = counted.memory.activations - counted.memory.checkpointed
    assert plain.memory_per_device - again.memory_per_device == saved > 0
    assert plain.tokens_per_second == again.tokens_per_second


def test_a_plan_counts_the_tokens_of_source_and_target() -> None:
    counted = account("t5-small", mode="train", batch=2, context=100, source=400)
    found = timing.plan_of(counted, own(flops=1e12, bandwidth=1e12), devices=3)
    assert found.facts.tokens_per_batch == 3 * 2 * 500
    assert found.facts.flops_per_token == counted.flops / 1000


def test_the_largest_piece_is_what_is_gathered() -> None:
    device = own(flops=1e12, bandwidth=1e12)
    shared = timing.plan_of(account("albert-base-v2", mode="train", context=8), device, devices=2, parallel="fsdp")
    counted = account("albert-base-v2", mode="train", context=8)
    block = counted.find("encoder.blocks.0").parameters
    assert block > counted.find("embed").parameters
    assert shared.gathered_bytes == 2 * 4 * block
    wide = timing.plan_of(account("xlm-roberta-base", mode="train", context=8), device, devices=2, parallel="fsdp")
    assert wide.gathered_bytes == 2 * 4 * account("xlm-roberta-base", context=8).find("embed").parameters


def test_tensor_parallelism_shares_out_the_heads() -> None:
    counted = account("gpt2", mode="train", context=8)
    device = own(flops=1e12, bandwidth=1e12)
    assert timing.plan_of(counted, device, devices=6, parallel="tensor").shards == 6
    with pytest.raises(ValueError, match="8 devices do not divide the 12 heads of gpt2; take one of 1, 2, 3, 4, 6, 12"):
        timing.plan_of(counted, device, devices=8, parallel="tensor")


def test_a_source_that_was_said_stays_and_one_that_was_not_follows() -> None:
    """Even if it happens to be as long as the context."""
    said, unsaid = account("t5-small", context=64, source=64), account("t5-small", context=64)
    for base, source in ((said, 64), (unsaid, 256)):
        [swept] = run_sweep(base, Sweep("context", (256,)))
        assert (swept.context, swept.source) == (256, source)
    for one in crossings(said):
        assert one.value is not None
        grown = account("t5-small", context=one.value, source=64).shares()
        before = account("t5-small", context=one.value - 1, source=64).shares()
        assert grown["attention"] >= grown[one.rival]
        assert before["attention"] < before[one.rival]


def test_nothing_is_computed_again_unless_it_is_trained() -> None:
    rows = report.part_rows(account("gpt2", context=8))
    assert all(row["recomputed_flops"] == 0 for row in rows)
    assert any(row["recomputed_flops"] for row in report.part_rows(account("gpt2", context=8, mode="train")))


def test_the_cache_of_a_token_is_told_in_every_mode() -> None:
    assert {account("gpt2", context=8, mode=mode).memory.kv_cache_per_token for mode in get_args(Mode)} == {73_728}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.000 kB"), (999_949, "999.9 kB"), (999_950, "1.000 MB"),
        (8_508_230_400, "8.508 GB"), (20_971_520_000, "20.97 GB"), (-5e9, "-5.000 GB"), (1e30, "1,000,000.0 YB"),
    ],
)  # fmt: skip
def test_numbers_for_people(value: float, shown: str) -> None:
    assert human(value, "B") == shown


def test_a_column_has_one_unit() -> None:
    scale = scale_for(4_513_336_524_800, "FLOP")
    assert scale.unit == "GFLOP"
    assert [scale(4_513_336_524_800), scale(1_000_000), scale(1), scale(0)] == ["4,513.337", "0.001", "< 0.001", ""]
    assert scale_for(149_522_795_724_800, "FLOP").unit == "TFLOP"
    assert scale_for(9_999, "B")(9_999) == "9,999"


def test_durations_have_the_unit_that_suits() -> None:
    assert [duration(seconds) for seconds in (65.0, 0.5, 2.5e-5, 3e-9)] == ["65 s", "500 ms", "25 µs", "3 ns"]
