"""Every number with its formula: parts worked out by hand, and formulas that evaluate to the counted number."""

import re

import pytest

from glassformer import account
from glassformer.inspect.account.explain import Explanation, Formula, Section, evaluate, explain
from tests.configs import CONFIGS, random_config
from tests.helpers import some_at_once
from tests.inspect.counting import shallow

EAGER = {"mode": "train", "attention": "eager", "dtype": "bfloat16"}
SLOW = pytest.mark.slow


def section(explanation: Explanation, title: str) -> Section:
    return next(section for section in explanation.sections if section.title.startswith(title))


def lines(explanation: Explanation, title: str) -> dict[str, tuple[str, str, int]]:
    return {line.what: (line.formula, line.numbers, line.value) for line in section(explanation, title).lines}


def test_a_feed_forward_network_by_hand() -> None:
    counted = account(shallow("gpt2-xl"), mode="train")
    explanation = explain(counted, "blocks.0.ffn")
    assert explanation.subject == "decoder.blocks.0.ffn"
    assert lines(explanation, "parameters") == {
        "up.weight": ("hidden × width", "6,400 × 1,600", 10_240_000),
        "up.bias": ("hidden", "6,400", 6_400),
        "down.weight": ("width × hidden", "1,600 × 6,400", 10_240_000),
        "down.bias": ("width", "1,600", 1_600),
    }
    assert section(explanation, "parameters").total == 20_488_000
    assert section(explanation, "parameters").share == pytest.approx(20_488_000 / counted.parameters)
    up = ("2 · batch·tokens · width · hidden", "2 · 1,024 · 1,600 · 6,400", 20_971_520_000)
    assert lines(explanation, "matrix products, forward")["up"] == up
    assert section(explanation, "matrix products, training step").total == 3 * 2 * 20_971_520_000
    # x³, its share, + x, × √(2 / π), tanh, + 1, × 0.5, × x: each one operation on each of the hidden numbers
    gelu = ("8 · tokens · hidden", "8 · 1,024 · 6,400", 52_428_800)
    assert lines(explanation, "element-wise")["activation (gelu)"] == gelu
    saved = lines(explanation, "saved")
    assert saved["up (addmm)"] == ("4 bytes · batch·tokens · width", "4 · 1,024 · 1,600", 6_553_600)  # its input
    assert saved["down (addmm)"] == ("4 bytes · batch·tokens · hidden", "4 · 1,024 · 6,400", 26_214_400)


def test_grouped_query_attention_by_hand() -> None:
    facts = shallow("llama-3.2-1b")  # 32 heads of 64, 8 of keys
    counted = account(facts, batch=2, context=480, dtype="bfloat16", mode="train")
    explanation = explain(counted, "blocks.3.attention")
    assert lines(explanation, "parameters")["k.weight"] == ("key/value heads·head × width", "512 × 2,048", 1_048_576)
    products = lines(explanation, "matrix products, forward")
    scores = ("2 · batch·heads · queries · head · keys", "2 · 64 · 480 · 64 · 480", 1_887_436_800)
    assert products["scores"] == scores
    v = ("2 · batch·tokens · width · key/value heads·head", "2 · 960 · 2,048 · 512", 2_013_265_920)
    assert products["v"] == v
    saved = [line for line in section(explanation, "saved").lines if line.what.startswith("kernel")]
    assert {line.formula for line in saved} == {  # queries and result, keys and values, a float32 per query and head
        "calls · 2 bytes · batch · heads · tokens · head",
        "calls · 2 bytes · batch · key/value heads · tokens · head",
        "4 bytes · batch · heads · tokens",
    }
    assert sum(line.value for line in saved) == 4 * 2_048 * 960 + 4 * 512 * 960 + 4 * 64 * 480
    first = {line.what: line.formula for line in section(explain(counted, "blocks.0.attention"), "saved").lines}
    assert first["elementwise (mul)"] == "calls · 4 bytes · tokens · rotary pairs"  # cosines and sines in float32
    assert "elementwise (mul)" not in {
        line.what for line in section(explanation, "saved").lines
    }  # shared by all layers


def test_the_sums_of_cross_attention_have_the_sizes_of_their_products() -> None:
    explanation = explain(account(shallow("transformer-base"), context=96, source=80), "decoder.blocks.0.cross")
    biases = lines(explanation, "element-wise")
    assert biases["q (addmm)"][0] == "batch·tokens · heads·head"
    assert biases["k (addmm)"][0] == "batch·source · key/value heads·head"
    assert biases["o (addmm)"][0] == "batch·tokens · width"


@pytest.mark.parametrize(
    "source", some_at_once([100, 512, 700], {512}.__contains__)
)  # as many as the target, as wide as the model, neither
@pytest.mark.parametrize("attention", some_at_once(["sdpa", "eager"], {"sdpa"}.__contains__))
def test_keys_of_cross_attention_are_the_source(source: int, attention: str) -> None:
    counted = account("t5-small", context=100, source=source, attention=attention)
    products = lines(explain(counted, "decoder.blocks.0.cross"), "matrix products, forward")
    assert products["scores"][:2] == ("2 · batch·heads · queries · head · keys", f"2 · 8 · 100 · 64 · {source}")
    assert products["weighted_sum"][:2] == ("2 · batch·heads · queries · keys · head", f"2 · 8 · 100 · {source} · 64")
    assert products["q"][0] == "2 · batch·tokens · width · heads·head"
    assert products["k"][0] == products["v"][0] == "2 · batch·source · width · key/value heads·head"


def test_exact_pairs_are_triangular_numbers() -> None:
    explanation = explain(account("cs336-small", causal="exact", context=100), "blocks.0.attention.scores")
    scores = ("2 · batch·heads · head · unmasked pairs", "2 · 12 · 64 · 5,050", 7_756_800)
    assert lines(explanation, "matrix products, forward") == {"scores": scores}


def test_several_blocks_are_one_line() -> None:
    explanation = explain(account("gpt2"), "decoder.blocks")
    up = ("layers × hidden × width", "12 × 3,072 × 768", 28_311_552)
    assert lines(explanation, "parameters")["*.ffn.up.weight"] == up
    runs = explain(account("albert-base-v2", context=512), "encoder.blocks")
    q = ("runs · 2 · batch·tokens · width · heads·head", "12 · 2 · 512 · 768 · 768", 7_247_757_312)
    assert lines(runs, "matrix products, forward")["*.attention.q"] == q


def test_all_flops() -> None:
    explanation = explain(account("cs336-small"), "flops")
    assert [section.title for section in explanation.sections] == ["matrix products, forward"]
    assert section(explanation, "matrix").total == 349_630_365_696
    head = ("2 · batch·tokens · width · vocabulary", "2 · 1,024 · 768 · 50,257", 79_047_426_048)
    assert lines(explanation, "matrix")["head.out"] == head


@pytest.mark.parametrize(
    "optimizer", some_at_once(("adamw", "adamw-master", "adamw-8bit", "none"), {"adamw-8bit"}.__contains__)
)
def test_memory_of_training(optimizer: str) -> None:
    counted = account("gpt2", mode="train", dtype="bfloat16", optimizer=optimizer)  # type: ignore[arg-type]
    explanation = lines(explain(counted, "memory"), "memory")
    assert explanation["weights"] == ("parameters · bytes per number", "124,439,808 · 2", 248_879_616)
    assert explanation["gradients"][2] == counted.memory.gradients
    assert explanation[f"optimizer ({optimizer})"][2] == counted.memory.optimizer
    assert explanation["resident between passes"][2] == counted.memory_bytes
    assert explanation["activations, saved for the backward pass"][2] == counted.memory.activations
    assert explanation["the same with checkpointing"][2] == counted.memory.checkpointed
    assert explanation["peak"][2] == counted.memory.peak


@pytest.mark.parametrize(
    ("name", "per_token"),
    [pytest.param("llama-3.2-1b", 16 * 2 * 8 * 64 * 2, marks=SLOW), ("t5-small", 6 * 2 * 8 * 64 * 2)],
)
def test_memory_of_decoding(name: str, per_token: int) -> None:
    counted = account(name, mode="decode", dtype="bfloat16", batch=3, context=100, source=None)
    explanation = lines(explain(counted, "memory"), "memory")
    assert explanation["KV cache per token"][2] == per_token == counted.memory.kv_cache_per_token
    assert explanation["KV cache"][2] == counted.memory.kv_cache == 3 * (200 if name == "t5-small" else 100) * per_token
    assert explanation["peak"][2] == counted.memory.peak


def check(counted: object, subject: str) -> None:
    for section in explain(counted, subject).sections:  # type: ignore[arg-type]
        assert all(evaluate(line.numbers) == line.value for line in section.lines)
        if section.total is not None:
            assert sum(line.value for line in section.lines) == section.total, section.title


@pytest.mark.parametrize("config", some_at_once(CONFIGS, {"gpt2", "t5", "deberta_v2", "llama"}.__contains__))
@pytest.mark.parametrize("options", [{"mode": "train"}, pytest.param({}, marks=SLOW), pytest.param(EAGER, marks=SLOW)])
def test_formulas_evaluate_to_the_counted_numbers(config: str, options: dict[str, str]) -> None:
    counted = account(CONFIGS[config], context=7, batch=2, **options)  # type: ignore[arg-type]
    for subject in ("memory", "flops", counted.root.path):
        check(counted, subject)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=SLOW) for n in range(1, 15))])
def test_formulas_evaluate_to_the_counted_numbers_of_any_facts(seed: int) -> None:
    counted = account(random_config(seed), context=9, mode="train")
    check(counted, "memory")
    check(counted, counted.root.path)


@pytest.mark.parametrize(
    "name", some_at_once(("cs336-small", "bert-base-uncased", "llama-3.2-1b", "t5-small"), {"t5-small"}.__contains__)
)
def test_nearly_every_formula_has_names(name: str) -> None:
    counted = account(name, mode="train", context=96)
    terms = [line for section in explain(counted, name).sections for line in section.lines]
    assert [line.what for line in terms if not line.formula] == ["forward"]
    numbers = [line for line in terms if re.search(r"(?<![·×] )\b\d{2,}", line.formula)]
    assert len(numbers) <= len(terms) // 10, numbers  # sizes that the facts do not name


def test_an_unknown_part_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"called 'blocks.0.fnn'. Did you mean decoder.blocks.0.ffn"):
        explain(account(CONFIGS["gpt2"]), "blocks.0.fnn")


@pytest.mark.parametrize(
    ("numbers", "value"), [("3", 3), ("1,024 · 2", 2048), ("2 × 3 + 4", 10), ("48 · (2 · 3 + 1) + 5", 341)]
)
def test_formulas_are_evaluated(numbers: str, value: int) -> None:
    assert evaluate(numbers) == value


def test_many_of_a_sum_are_in_brackets() -> None:
    assert Formula("a + b", "1 + 2").times(3, "blocks") == Formula("blocks · (a + b)", "3 · (1 + 2)")
    assert Formula("", "(1 + 2) · 4").times(3, "blocks") == Formula("", "3 · (1 + 2) · 4")
    assert Formula("a × b", "1 × 2").times(3, "blocks").numbers == "3 × 1 × 2"
