"""How near a run is to the peak of its hardware: every figure by hand."""

import resource
from typing import get_args

import pytest
import torch

from glassformer.config import ModelConfig, change
from glassformer.inspect.account.account import account
from glassformer.inspect.account.hardware import HARDWARE, custom_hardware
from glassformer.objectives.base import Batch
from glassformer.training.logging import throughput
from glassformer.training.logging.throughput import (
    RowLength,
    Utilisation,
    flops_per_token,
    known_peak,
    peak_memory,
    typical_row,
)
from glassformer.training.loop import Precision
from tests.configs import CONFIGS
from tests.helpers import right_padded


def batch(**inputs: torch.Tensor) -> Batch:
    return Batch(inputs=inputs, labels={}, counts={}, tokens=0)


def products(facts: ModelConfig, *, head: bool = True) -> int:
    """Parameters of a decoder that are multiplied with: all matrices of its blocks, and the table of its head."""
    stack = facts.decoder
    assert stack is not None
    inner, ffn = stack.attention.heads * stack.attention.head_dim, stack.ffn
    keys = (stack.attention.kv_heads or stack.attention.heads) * stack.attention.head_dim
    of_a_block = 2 * facts.width * inner + 2 * facts.width * keys + (3 if ffn.gated else 2) * facts.width * ffn.hidden
    return stack.layers * of_a_block + (facts.vocab * facts.width if head else 0)


@pytest.mark.parametrize("config", ["gpt2", "llama"])
def test_flops_per_token_of_a_decoder_by_hand(config: str) -> None:
    """6 for each parameter that multiplies, and 12 · layers · width for each token that it looks at."""
    facts, context = CONFIGS[config], 11
    stack = facts.decoder
    assert stack is not None
    looking = 12 * stack.layers * stack.attention.heads * stack.attention.head_dim * context
    assert flops_per_token(facts, RowLength(context)) == 6 * products(facts) + looking
    assert flops_per_token(facts, RowLength(context), trained=False) == (6 * products(facts) + looking) / 3
    half = flops_per_token(facts, RowLength(context), head_share=0.5)
    assert half == 3 * (products(facts) + products(facts, head=False)) + looking


def test_tokens_of_an_encoder_decoder_are_those_of_source_and_target() -> None:
    facts = CONFIGS["t5"]
    whole = account(facts, context=5, source=9, mode="train").flops
    assert flops_per_token(facts, RowLength(5, 9)) == whole / 14
    read_twice = account(facts, context=7, source=7, mode="train").flops
    assert flops_per_token(facts, RowLength(7)) == read_twice / 7


def test_the_typical_row_stands_for_all_rows() -> None:
    """Lengths 2 and 6: neither the mean, 4, nor the padded width, 8, would give the FLOPs of both rows."""
    ids, mask = torch.zeros(2, 8, dtype=torch.long), right_padded(2, 6, width=8)
    row = typical_row([batch(ids=ids, mask=mask)])
    assert row == RowLength(5)
    facts = CONFIGS["gpt2"]
    both = sum(account(facts, context=length, mode="train").flops for length in (2, 6))
    assert flops_per_token(facts, row) == both / 8
    assert typical_row([batch(ids=ids[:1], mask=mask[:1]), batch(ids=ids[1:], mask=mask[1:])]) == row


def test_rows_without_padding_with_packed_documents_and_with_targets() -> None:
    ids = torch.zeros(3, 7, dtype=torch.long)
    assert typical_row([batch(ids=ids)]) == RowLength(7)
    documents = torch.tensor([[1, 1, 2, 2, 2, 0, 0]])
    assert typical_row([batch(ids=ids[:1], mask=documents)]) == RowLength(5)
    targets = batch(ids=ids, target=ids[:, :4], target_mask=right_padded(2, 2, 2, width=4))
    assert typical_row([targets]) == RowLength(context=2, source=7)


def test_no_batches_and_a_wrong_share_are_errors() -> None:
    with pytest.raises(ValueError, match="no batch to compute a typical row length"):
        typical_row([])
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"a fraction of the positions, above 0 and at most 1; got {share}"):
            flops_per_token(CONFIGS["gpt2"], RowLength(4), head_share=share)
    with pytest.raises(ValueError, match=r"only an encoder-decoder has source tokens \(9\); this model is a decoder"):
        flops_per_token(CONFIGS["gpt2"], RowLength(4, 9))


def test_mfu_by_hand() -> None:
    assert Utilisation(flops_per_token=6e9, peak=1e14, devices=2).at(10_000) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="peak must be a finite number above 0"):
        Utilisation(flops_per_token=1.0, peak=0.0)


def test_every_device_by_name_is_in_the_table() -> None:
    assert set(throughput.DEVICES.values()) <= set(HARDWARE)
    nameless = {name for name in HARDWARE if name.startswith(("Apple", "TPU"))}  # torch tells no name of these
    assert set(HARDWARE) - set(throughput.DEVICES.values()) == nameless


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A GPU that may be given any name."""
    known = {"name": "NVIDIA H200"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: known["name"])
    return known


def test_published_peaks(gpu: dict[str, str]) -> None:
    peaks = [known_peak("cuda", precision) for precision in get_args(Precision)]
    assert peaks == [67e12, 989.5e12, 989.5e12]
    gpu["name"] = "Tesla V100-SXM2-32GB"
    assert [known_peak("cuda", precision) for precision in get_args(Precision)] == [15.7e12, None, 125e12]


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090 D", "H200", ""])
def test_hardware_that_is_not_known_has_no_peak(gpu: dict[str, str], name: str) -> None:
    gpu["name"] = name
    assert known_peak("cuda", "bfloat16") is None
    assert Utilisation.known(1e9, "cuda", "bfloat16") is None


def test_a_cpu_has_a_peak_only_if_it_was_measured() -> None:
    assert known_peak("cpu", "float32") is None
    measured = custom_hardware(flops={"float32": 1e11}, bandwidth=1e10)
    assert known_peak("cpu", "float32", measured) == 1e11
    assert Utilisation.known(2.0, "cpu", "float32", devices=3, hardware=measured) == Utilisation(
        flops_per_token=2.0, peak=1e11, devices=3
    )
    with pytest.raises(ValueError, match="no peak for bfloat16"):
        known_peak("cpu", "bfloat16", measured)


def test_float32_is_tf32_where_torch_was_told_so(gpu: dict[str, str]) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert known_peak("cuda", "float32") == 494.5e12
        assert known_peak("cuda", "float32", custom_hardware(flops={"float32": 1e12}, bandwidth=1.0)) == 1e12
        gpu["name"] = "Tesla T4"  # which has no such mode
        assert known_peak("cuda", "float32") == 8.1e12
        assert known_peak("cpu", "float32", custom_hardware(flops={"float32": 1e9, "tf32": 1e10}, bandwidth=1.0)) == 1e9
    finally:
        torch.set_float32_matmul_precision(before)


def test_peak_memory_of_this_process() -> None:
    peak = peak_memory("cpu")
    assert peak is not None
    assert peak >= 50_000_000  # Python and torch alone: kilobytes taken for bytes would be less
    held = torch.ones(100_000_000, dtype=torch.uint8)
    after = peak_memory("cpu")
    assert after is not None
    assert after >= held.nbytes
    assert after == pytest.approx(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, rel=0.01)
    assert peak_memory("meta") is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_peak_memory_of_a_gpu() -> None:
    torch.cuda.reset_peak_memory_stats()
    before = peak_memory("cuda") or 0
    held = torch.ones(100_000_000, dtype=torch.uint8, device="cuda")
    del held
    assert (peak_memory("cuda") or 0) >= before + 100_000_000
    assert torch.cuda.get_device_name() not in throughput.DEVICES or known_peak("cuda", "bfloat16") is not None


def test_a_wider_model_has_more_flops() -> None:
    facts = CONFIGS["gpt2"]
    assert facts.decoder is not None
    deeper = change(facts, "decoder.layers", 2 * facts.decoder.layers)
    assert flops_per_token(deeper, RowLength(8)) > flops_per_token(facts, RowLength(8))
