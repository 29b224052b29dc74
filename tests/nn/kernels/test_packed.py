"""Packed documents by a kernel for ragged sequences: equal to the mask of all pairs.

The kernel is a loop here: PyTorch's exists on GPUs alone, where ``python -m benchmarks.gpu --check`` compares it.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.nn.attention import scaled_dot_product_attention
from glassformer.nn.kernels import packed
from glassformer.nn.kernels.packed import PackedMask, has_packed_kernel, make_packed_mask
from tests.configs import attention, built, model, stack

ROWS = torch.tensor([[1, 1, 1, 2, 3, 3, 0, 0], [0, 4, 4, 4, 4, 7, 7, 0]])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The longest document of every call of the kernel, which is there for every type, on every device."""
    found: list[int] = []

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, begins: Tensor, _: Tensor, longest: int, *_more: int, **how: Any
    ) -> Tensor:
        found.append(longest)
        out = torch.empty_like(q)
        for start, end in zip(begins.tolist(), begins[1:].tolist(), strict=False):
            assert end - start <= longest
            parts = (x[start:end].transpose(0, 1) for x in (q, k, v))
            scores = torch.ones(end - start, end - start, dtype=torch.bool)
            mask = scores.tril() if how["window_size"] == (-1, 0) else scores
            attended = scaled_dot_product_attention(*parts, mask, scale=how["scale"], path="eager")
            out[start:end] = attended.transpose(0, 1)
        return out

    for module in ("glassformer.nn.kernels.packed", "glassformer.models.stack"):
        monkeypatch.setattr(f"{module}.has_packed_kernel", lambda *_: not torch.is_grad_enabled())
    monkeypatch.setattr(packed, "_kernel", lambda: kernel)
    return found


def test_where_documents_begin() -> None:
    mask = make_packed_mask(ROWS, causal=False)
    assert mask is not None
    assert mask.offsets.tolist() == [0, 3, 4, 6, 8, 9, 13, 15, 16]
    assert mask.longest == 4
    in_pieces = torch.tensor([[1, 2, 1]])
    assert make_packed_mask(in_pieces, causal=False) is None


def test_which_gpus_types_and_heads_have_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, capability = torch.device("cuda", 0), [(8, 0)]
    monkeypatch.setattr(packed, "_kernel", lambda: print)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability[0])
    assert not has_packed_kernel(gpu, torch.bfloat16, 64)  # with gradients
    with torch.no_grad():
        assert has_packed_kernel(gpu, torch.bfloat16, 64)
        assert not has_packed_kernel(torch.device("cpu"), torch.bfloat16, 64)
        assert not has_packed_kernel(gpu, torch.float32, 64)
        for width, has_it in ((8, True), (20, False), (256, True), (264, False)):
            assert has_packed_kernel(gpu, torch.float16, width) == has_it
            facts = model(encoder=stack(attention=attention(head_dim=width)))
            reader = built(facts).encoder
            assert reader is not None
            assert reader.has_packed_kernel(gpu, torch.float16) == has_it
        capability[0] = (7, 5)
        assert not has_packed_kernel(gpu, torch.float16, 64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_the_kernel_gives_what_the_mask_of_all_pairs_gives(causal: bool, groups: int, calls: list[int]) -> None:
    q, k, v = torch.randn(2, 4, 8, 16), torch.randn(2, groups, 8, 16), torch.randn(2, groups, 8, 16)
    mask = make_packed_mask(ROWS, causal=causal)
    assert isinstance(mask, PackedMask)
    expected = scaled_dot_product_attention(q, k, v, mask, path="eager")
    assert calls == []
    with torch.no_grad():
        found = scaled_dot_product_attention(q, k, v, mask)
        again = scaled_dot_product_attention(q, k, v, mask, dropout=0.5)  # the kernel has no dropout
    assert calls == [4]
    assert not torch.equal(again, found)
    real = (ROWS > 0)[:, None, :, None]
    torch.testing.assert_close(found.where(real, 0), expected.where(real, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_a_model_reads_packed_documents_by_the_kernel(family: str, calls: list[int]) -> None:
    facts = model(**{family: stack(causal=family == "decoder", attention=attention(head_dim=8, kv_heads=2))})
    reader = built(facts)
    read = reader.encode if family == "encoder" else reader.decode
    ids = torch.randint(1, facts.vocab, ROWS.shape)
    expected = read(ids, ROWS)  # with gradients: no kernel
    assert calls == []
    with torch.no_grad():
        found = read(ids, ROWS)
        assert calls == [4] * len(calls)
        assert len(calls) > 0
        torch.testing.assert_close(found[ROWS > 0], expected[ROWS > 0], rtol=1e-5, atol=1e-5)
        count = len(calls)
        read(ids, torch.tensor([[1, 2, 1, 2, 3, 3, 0, 0]] * 2))  # in pieces
        read(ids, ROWS, path="eager")
    assert len(calls) == count


def test_compiled_blocks_read_packed_documents_by_a_mask(calls: list[int]) -> None:
    """Compiled code has no kernel: each block would make the mask of all pairs itself."""
    reader = built(model(encoder=stack(attention=attention(head_dim=8))))
    ids = torch.randint(1, reader.config.vocab, ROWS.shape)
    with torch.no_grad():
        expected = reader.encode(ids, ROWS)
        assert calls == [4, 4]
        assert reader.encoder is not None
        for block in reader.encoder.blocks:
            block._compiled_call_impl = block._call_impl  # as ``compile_model`` sets it
        found = reader.encode(ids, ROWS)
    assert calls == [4, 4]
    torch.testing.assert_close(found[ROWS > 0], expected[ROWS > 0], rtol=1e-5, atol=1e-5)
