"""Accounts of modules that are not of this library: counted by hand, by PyTorch's own counter where that is right."""

import threading
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from glassformer import Transformer, TransformerLM, account, hub, preset
from glassformer.config import change
from glassformer.inspect.account import Product, Rule, Work, register_rule
from glassformer.inspect.account import rules as known_rules
from glassformer.inspect.account.rules import UnknownOperatorError
from tests.inspect.counting import Kept

B, T, S, D, H, FF = 2, 10, 14, 64, 4, 128
BYTES = 4


def transformer(dropout: float = 0.1) -> nn.Transformer:
    return nn.Transformer(D, H, 2, 3, FF, dropout=dropout, batch_first=True)


def by_hand() -> int:
    """2 · m · n · p of every product of two encoder and three decoder layers."""
    attend = 2 * 2 * B * D  # scores and weighted sum, for each pair
    encoder = 4 * 2 * B * S * D * D + attend * S * S + 2 * 2 * B * S * D * FF
    crossed = 2 * 2 * B * T * D * D + 2 * 2 * B * S * D * D + attend * T * S
    decoder = 4 * 2 * B * T * D * D + attend * T * T + crossed + 2 * 2 * B * T * D * FF
    return 2 * encoder + 3 * decoder


def counted_by_torch(module: nn.Module, *inputs: Tensor) -> int:
    """In training mode, and by formula: of fused kernels on the CPU, and of the fast path, it counts nothing."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module.train()(*inputs)
    return int(counter.get_total_flops())


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "evaluation"])
def test_torch_transformer(is_training: bool) -> None:
    """Its fast path, taken in evaluation mode, costs what the modules do one by one."""
    module, inputs = transformer().train(is_training), (torch.randn(B, S, D), torch.randn(B, T, D))
    forward, trained = account(module, inputs), account(module, inputs, mode="train")
    assert forward.flops == trained.forward_flops == by_hand() == counted_by_torch(deepcopy(module), *inputs)
    assert forward.parameters == sum(one.numel() for one in module.parameters())
    assert module.training is is_training
    layer = forward.find("encoder.layers.0.self_attn")
    assert {part.name: part.flops for part in layer.parts if part.flops} == {
        "in_proj": 3 * 2 * B * S * D * D,
        "scores": 2 * B * S * S * D,
        "weighted_sum": 2 * B * S * S * D,
        "out_proj": 2 * B * S * D * D,
    }
    assert set(forward.shares()) == {"projections", "attention", "ffn"}


def test_a_mask_whose_numbers_decide() -> None:
    """Whether it is causal is read off the numbers of the mask, which are known."""
    mask = nn.Transformer.generate_square_subsequent_mask(T)
    inputs = {"src": torch.randn(B, S, D), "tgt": torch.randn(B, T, D), "tgt_mask": mask}
    assert account(transformer(), inputs).flops == by_hand()


class OwnAttention(nn.Module):
    """Attention as anyone writes it, through the fused kernel or by its formula."""

    def __init__(self, dropout: float, *, fused: bool = True) -> None:
        super().__init__()
        self.dropout, self.fused = dropout, fused
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        share = self.dropout if self.training else 0.0
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=share, is_causal=True)
        else:
            hidden = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            weights = (q @ k.transpose(-1, -2) / 4).masked_fill(hidden, -torch.inf).softmax(-1)
            y = F.dropout(weights, share, self.training) @ v
        return self.out(y.transpose(1, 2).reshape(B, T, D))


ATTEND, LINEAR = 2 * B * T * T * D, 2 * B * T * D * D


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "formula"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_of_ones_own(dropout: float, fused: bool) -> None:
    module, x = OwnAttention(dropout, fused=fused), torch.randn(B, T, D)
    trained = account(module, x, mode="train")
    assert trained.forward_flops == 4 * LINEAR + 2 * ATTEND == counted_by_torch(module, x)
    # The input has no gradient, so its projection has one product less backward.
    assert trained.backward_flops == 2 * trained.forward_flops - 3 * LINEAR
    assert trained.recomputed_flops == (ATTEND if fused else 0)
    assert {part.path: part.flops for part in trained.root.walk() if part.products} == {
        "qkv": 3 * LINEAR, "scores": ATTEND, "weighted_sum": ATTEND, "out": LINEAR,
    }  # fmt: skip
    assert account(module.eval(), x).flops == account(module.train(), x).flops == trained.forward_flops


def test_what_a_fused_kernel_with_dropout_keeps() -> None:
    """Queries, keys and values, which are one tensor, the result, and a number for each query and head."""
    kept = BYTES * (3 * B * T * D + B * T * D + B * H * T)
    with_dropout, without = (account(OwnAttention(p), torch.randn(B, T, D), mode="train") for p in (0.1, 0.0))
    assert with_dropout.memory.activations == without.memory.activations == kept


def test_what_a_dropout_by_formula_keeps_is_a_byte_for_each_number() -> None:
    """Against a real pass, which keeps a factor of four bytes."""
    module, x = OwnAttention(0.1, fused=False), torch.randn(B, T, D)
    with Kept([*module.parameters(), x]) as kept:
        module(x)
    dropped = B * H * T * T
    assert account(module, x, mode="train").memory.activations == kept.nbytes - (BYTES - 1) * dropped


def test_memory_of_a_deep_network() -> None:
    """Every layer keeps its input, but the last its output too; the peak is reached in the backward pass."""
    layers, width = 6, 32
    module = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))
    memory = account(module, torch.randn(8, width), mode="train").memory
    assert memory.activations == layers * 8 * width * BYTES
    assert memory.gradients == memory.weights == layers * (width * width + width) * BYTES
    assert memory.optimizer == 2 * memory.weights


def test_convolutions() -> None:
    x = torch.randn(2, 6, 9, 11, requires_grad=True)
    for kind in (nn.Conv2d, nn.ConvTranspose2d):
        made = kind(6, 4, (3, 5), stride=2, padding=1)
        with FlopCounterMode(display=False) as counter:
            made(x).sum().backward()
        assert account(made, x, mode="train").flops == counter.get_total_flops()
    grouped = account(nn.Conv2d(6, 4, (3, 5), stride=2, padding=1, groups=2), x, mode="train")
    assert grouped.flops == 3 * 2 * (2 * 4 * 5 * 5) * (3 * 3 * 5)  # 4 × 5 × 5 numbers, each of 3 channels and 15 places


def test_frozen_weights_have_no_gradients() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    module[0].requires_grad_(False)
    trained = account(module, torch.randn(3, 8), mode="train")
    assert trained.backward_flops == 2 * 3 * 8 * 8
    assert trained.memory.gradients == (8 * 8 + 8) * BYTES


def test_the_module_stays_as_it_was() -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1)), torch.randn(3, 8)
    state, drawn = deepcopy(module.state_dict()), torch.get_rng_state()
    before = {name: set(vars(one)) for name, one in module.named_modules()}
    account(module, x, mode="train")
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())
    assert {name: set(vars(one)) for name, one in module.named_modules()} == before
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in module.modules())
    assert all(one.grad is None for one in module.parameters())
    module(x)  # and it runs on real tensors


def test_several_threads_at_a_time() -> None:
    module, inputs, found = transformer(), (torch.randn(B, S, D), torch.randn(B, T, D)), []
    threads = [threading.Thread(target=lambda: found.append(account(module, inputs).flops)) for _ in range(3)]
    for one in threads:
        one.start()
    real = module.eval()(*inputs)
    for one in threads:
        one.join()
    assert found == [by_hand()] * 3
    assert real.shape == (B, T, D)


@torch.library.custom_op("glassformer_tests::scan", mutates_args=())
def scan(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cumsum(x @ weight, 0)


@scan.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


class Scans(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.weight = nn.Parameter(torch.ones(4, 6))
        self.inner.forward = lambda x: scan(x, self.weight)  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_an_operator_without_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Scans().requires_grad_(False), torch.ones(5, 4)
    remedy = r"operator glassformer_tests.scan, which the part 'inner' uses.*register_rule\('glassformer_tests.scan'"
    with pytest.raises(UnknownOperatorError, match=remedy):
        account(module, x)
    monkeypatch.setattr(known_rules, "_RULES", dict(known_rules._RULES))
    rule = Rule("product", work=lambda a, b, out: Work((Product(len(a), len(b), b.shape[1]),), 0, out.numel()))
    register_rule(torch.ops.glassformer_tests.scan, rule)
    counted = account(module, x)
    assert (counted.flops, counted.root.elementwise) == (2 * 5 * 4 * 6, 5 * 6)


def test_a_number_that_depends_on_weights_is_refused() -> None:
    class Peeks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[: int(self.weight.sum())]

    with pytest.raises(UnknownOperatorError, match="the model itself reads a number"):
        account(Peeks(4, 4), torch.ones(3, 4))


def test_models_of_this_library(tmp_path) -> None:
    facts = change(change(preset("gpt2"), "decoder.layers", 2), "vocab", 64)
    model = Transformer(facts)
    hub.save(model, tmp_path)
    expected = account(facts, batch=2, context=9)
    for one in (model, hub.load(tmp_path), tmp_path):
        found = account(one, batch=2, context=9)
        assert (found.flops, found.root.bytes_moved, found.memory) == (
            expected.flops, expected.root.bytes_moved, expected.memory,
        )  # fmt: skip
    narrow = account(Transformer(facts, dtype=torch.bfloat16), context=9)
    assert (narrow.dtype, narrow.memory.weights) == ("bfloat16", expected.memory.weights // 2)
    course = TransformerLM(64, 16, 32, 2, 4, 48)
    counted = account(course)
    layers = 2 * (4 * 2 * 16 * 32 * 32 + 2 * 2 * 16 * 16 * 32 + 3 * 2 * 16 * 32 * 48)
    assert (counted.context, counted.flops) == (16, layers + 2 * 16 * 32 * 64)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: account(nn.Linear(2, 2)), "with the inputs of its forward"),
        (lambda: account(nn.Linear(2, 2), torch.ones(1, 2), batch=3), "leave out batch"),
        (lambda: account(nn.Linear(2, 2), torch.ones(1, 2), mode="decode"), "needs a Transformer of this library"),
        (lambda: account(nn.Linear(2, 2), torch.ones(1, 2), causal="exact"), "causal='dense'"),
        (lambda: account(nn.Linear(2, 2), torch.ones(1, 2), dtype="float16"), r"module.to\(torch.float16\)"),
        (lambda: account(nn.Linear(2, 2), ()), "inputs has none"),
        (lambda: account(nn.ReLU(), torch.ones(1, 2), mode="train"), "use mode='forward'"),
    ],
)
def test_what_cannot_be_accounted_for(ask, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ask()
