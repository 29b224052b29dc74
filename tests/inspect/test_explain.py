"""Every number with its formula: parts worked out by hand, and formulas that come to the number that was counted."""

import re

import pytest

from glassformer import account
from glassformer.inspect.account.explain import Explanation, Section, explain
from glassformer.inspect.account.formulas import Formula, evaluate
from tests.helpers import some_at_once
from tests.pages import PAGES, any_page

EAGER = {"mode": "train", "attention": "eager", "dtype": "bfloat16"}
SLOW = pytest.mark.slow


def section(found: Explanation, title: str) -> Section:
    return next(one for one in found.sections if one.title.startswith(title))


def lines(found: Explanation, title: str) -> dict[str, tuple[str, str, int]]:
    return {line.what: (line.formula, line.numbers, line.value) for line in section(found, title).lines}


def test_a_feed_forward_network_by_hand() -> None:
    found = explain(account("gpt2-xl", mode="train"), "blocks.0.ffn")
    assert found.subject == "decoder.blocks.0.ffn"
    assert lines(found, "parameters") == {
        "up.weight": ("hidden × width", "6,400 × 1,600", 10_240_000),
        "up.bias": ("hidden", "6,400", 6_400),
        "down.weight": ("width × hidden", "1,600 × 6,400", 10_240_000),
        "down.bias": ("width", "1,600", 1_600),
    }
    assert section(found, "parameters").total == 20_488_000
    assert section(found, "parameters").share == pytest.approx(20_488_000 / 1_557_611_200)
    up = ("2 · batch·tokens · width · hidden", "2 · 1,024 · 1,600 · 6,400", 20_971_520_000)
    assert lines(found, "matrix products, forward")["up"] == up
    assert section(found, "matrix products, training step").total == 3 * 2 * 20_971_520_000
    # x³, its share, + x, × √(2 / π), tanh, + 1, × 0.5, × x: each one operation on each of the hidden numbers
    gelu = ("8 · tokens · hidden", "8 · 1,024 · 6,400", 52_428_800)
    assert lines(found, "element-wise")["activation (gelu)"] == gelu
    kept = lines(found, "kept")
    assert kept["up (addmm)"] == ("4 bytes · batch·tokens · width", "4 · 1,024 · 1,600", 6_553_600)  # its input
    assert kept["down (addmm)"] == ("4 bytes · batch·tokens · hidden", "4 · 1,024 · 6,400", 26_214_400)


def test_grouped_query_attention_by_hand() -> None:
    counted = account("llama-3.2-1b", batch=2, context=480, dtype="bfloat16", mode="train")  # 32 heads of 64, 8 of keys
    found = explain(counted, "blocks.3.attention")
    assert lines(found, "parameters")["k.weight"] == ("key/value heads·head × width", "512 × 2,048", 1_048_576)
    products = lines(found, "matrix products, forward")
    scores = ("2 · batch·heads · queries · head · keys", "2 · 64 · 480 · 64 · 480", 1_887_436_800)
    assert products["scores"] == scores
    v = ("2 · batch·tokens · width · key/value heads·head", "2 · 960 · 2,048 · 512", 2_013_265_920)
    assert products["v"] == v
    kept = [line for line in section(found, "kept").lines if line.what.startswith("kernel")]
    assert {line.formula for line in kept} == {  # queries and result, keys and values, a float32 per query and head
        "calls · 2 bytes · batch · heads · tokens · head",
        "calls · 2 bytes · batch · key/value heads · tokens · head",
        "4 bytes · batch · heads · tokens",
    }
    assert sum(line.value for line in kept) == 4 * 2_048 * 960 + 4 * 512 * 960 + 4 * 64 * 480
    first = {line.what: line.formula for line in section(explain(counted, "blocks.0.attention"), "kept").lines}
    assert first["elementwise (mul)"] == "calls · 4 bytes · tokens · rotary dimension"  # cosines and sines in float32
    assert "elementwise (mul)" not in {line.what for line in section(found, "kept").lines}  # shared by all layers


def test_exact_pairs_are_triangular_numbers() -> None:
    found = explain(account("cs336-small", causal="exact", context=100), "blocks.0.attention.scores")
    scores = ("2 · batch·heads · head · pairs that see each other", "2 · 12 · 64 · 5,050", 7_756_800)
    assert lines(found, "matrix products, forward") == {"scores": scores}


def test_several_blocks_are_one_line() -> None:
    found = explain(account("gpt2"), "decoder.blocks")
    up = ("layers × hidden × width", "12 × 3,072 × 768", 28_311_552)
    assert lines(found, "parameters")["*.ffn.up.weight"] == up
    runs = explain(account("albert-base-v2"), "encoder.blocks")
    q = ("runs · 2 · batch·tokens · width · heads·head", "12 · 2 · 512 · 768 · 768", 7_247_757_312)
    assert lines(runs, "matrix products, forward")["*.attention.q"] == q


def test_all_flops() -> None:
    found = explain(account("cs336-xl"), "flops")
    assert [one.title for one in found.sections] == ["matrix products, forward"]
    assert section(found, "matrix").total == 4_513_336_524_800
    head = ("2 · batch·tokens · width · vocabulary", "2 · 1,024 · 1,600 · 50,257", 164_682_137_600)
    assert lines(found, "matrix")["head.out"] == head


@pytest.mark.parametrize(
    "optimizer", some_at_once(("adamw", "adamw-master", "adamw-8bit", "none"), {"adamw-8bit"}.__contains__)
)
def test_memory_of_training(optimizer: str) -> None:
    counted = account("gpt2", mode="train", dtype="bfloat16", optimizer=optimizer)  # type: ignore[arg-type]
    found = lines(explain(counted, "memory"), "memory")
    assert found["weights"] == ("parameters · bytes of a number", "124,439,808 · 2", 248_879_616)
    assert found["gradients"][2] == counted.memory.gradients
    assert found[f"optimizer ({optimizer})"][2] == counted.memory.optimizer
    assert found["held from pass to pass"][2] == counted.memory_bytes
    assert found["activations, kept for the backward pass"][2] == counted.memory.activations
    assert found["the same if layers run again"][2] == counted.memory.checkpointed
    assert found["peak"][2] == counted.memory.peak


@pytest.mark.parametrize(
    ("name", "per_token"), [("llama-3.2-1b", 16 * 2 * 8 * 64 * 2), ("t5-small", 6 * 2 * 8 * 64 * 2)]
)
def test_memory_of_decoding(name: str, per_token: int) -> None:
    counted = account(name, mode="decode", dtype="bfloat16", batch=3, context=100, source=None)
    found = lines(explain(counted, "memory"), "memory")
    assert found["KV cache of one token"][2] == per_token == counted.memory.kv_cache_per_token
    assert found["KV cache"][2] == counted.memory.kv_cache == 3 * (200 if name == "t5-small" else 100) * per_token
    assert found["peak"][2] == counted.memory.peak


def check(counted: object, subject: str) -> None:
    for one in explain(counted, subject).sections:  # type: ignore[arg-type]
        assert all(evaluate(line.numbers) == line.value for line in one.lines)
        if one.total is not None:
            assert sum(line.value for line in one.lines) == one.total, one.title


@pytest.mark.parametrize("page", some_at_once(PAGES, {"gpt2", "t5", "deberta_v2", "llama"}.__contains__))
@pytest.mark.parametrize("given", [{"mode": "train"}, pytest.param({}, marks=SLOW), pytest.param(EAGER, marks=SLOW)])
def test_formulas_come_to_what_was_counted(page: str, given: dict[str, str]) -> None:
    counted = account(PAGES[page], context=7, batch=2, **given)  # type: ignore[arg-type]
    for subject in ("memory", "flops", counted.root.path):
        check(counted, subject)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=SLOW) for n in range(3, 15))])
def test_formulas_come_to_what_was_counted_on_any_page(seed: int) -> None:
    counted = account(any_page(seed), context=9, mode="train")
    check(counted, "memory")
    check(counted, counted.root.path)


@pytest.mark.parametrize(
    "name", some_at_once(("cs336-small", "bert-base-uncased", "llama-3.2-1b", "t5-small"), {"t5-small"}.__contains__)
)
def test_nearly_every_formula_has_names(name: str) -> None:
    counted = account(name, mode="train", context=96)
    terms = [line for one in explain(counted, name).sections for line in one.lines]
    assert [line.what for line in terms if not line.formula] == ["forward"]
    numbers = [line for line in terms if re.search(r"(?<![·×] )\b\d{2,}", line.formula)]
    assert len(numbers) <= len(terms) // 10, numbers  # sizes that the facts do not name


def test_an_unknown_part_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"called 'blocks.0.fnn'. Did you mean decoder.blocks.0.ffn"):
        explain(account("gpt2"), "blocks.0.fnn")


@pytest.mark.parametrize(
    ("numbers", "value"), [("3", 3), ("1,024 · 2", 2048), ("2 × 3 + 4", 10), ("48 · (2 · 3 + 1) + 5", 341)]
)
def test_formulas_are_evaluated(numbers: str, value: int) -> None:
    assert evaluate(numbers) == value


def test_many_of_a_sum_are_in_brackets() -> None:
    assert Formula("a + b", "1 + 2").times(3, "blocks") == Formula("blocks · (a + b)", "3 · (1 + 2)")
    assert Formula("", "(1 + 2) · 4").times(3, "blocks") == Formula("", "3 · (1 + 2) · 4")
    assert Formula("a × b", "1 × 2").times(3, "blocks").numbers == "3 × 1 × 2"
