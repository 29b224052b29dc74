"""Accounts of modules that are not of this library: counted by hand, by PyTorch's own counter where that is right."""

import threading
from collections import UserDict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from glassformer import Transformer, TransformerLM, account, hub, preset
from glassformer.config import change
from glassformer.inspect.account import OperatorRule, Product, Work, register_rule
from glassformer.inspect.account import rules as known_rules
from glassformer.inspect.account.hardware import OPTIMIZER, custom_hardware, time_on
from glassformer.inspect.account.rules import UnknownOperatorError
from glassformer.training.adapters import add_adapters
from tests.configs import CONFIGS
from tests.inspect.counting import SavedTensors
from tests.inspect.levels import peak

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
    assert forward.parameters == sum(weight.numel() for weight in module.parameters())
    assert module.training is is_training
    layer = forward.find("encoder.layers.0.self_attn")
    assert {part.name: part.flops for part in layer.parts if part.flops} == {
        "in_proj": 3 * 2 * B * S * D * D,
        "scores": 2 * B * S * S * D,
        "weighted_sum": 2 * B * S * S * D,
        "out_proj": 2 * B * S * D * D,
    }
    assert set(forward.shares()) == {"projections", "attention", "ffn"}


def test_a_mask_whose_values_matter() -> None:
    """Whether it is causal is read off the numbers of the mask, which are known."""
    mask = nn.Transformer.generate_square_subsequent_mask(T)
    inputs = {"src": torch.randn(B, S, D), "tgt": torch.randn(B, T, D), "tgt_mask": mask}
    assert account(transformer(), inputs).flops == by_hand()


class After(nn.Module):
    """A linear layer, and any function after it."""

    def __init__(self, function: Callable[..., Any], width: int = 8) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(width, width), function

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        return self.function(self.linear(x), *more)


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
def test_custom_attention(dropout: float, fused: bool) -> None:
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


def test_what_a_fused_kernel_with_dropout_saves() -> None:
    """Queries, keys and values, which are one tensor, the result, and a number for each query and head."""
    saved = BYTES * (3 * B * T * D + B * T * D + B * H * T)
    with_dropout, without = (account(OwnAttention(p), torch.randn(B, T, D), mode="train") for p in (0.1, 0.0))
    assert with_dropout.memory.activations == without.memory.activations == saved


def test_dropout_by_formula_saves_a_byte_per_element() -> None:
    """Against a real pass, which keeps a factor of four bytes."""
    module, x = OwnAttention(0.1, fused=False), torch.randn(B, T, D)
    with SavedTensors([*module.parameters(), x]) as saved:
        module(x)
    dropped = B * H * T * T
    assert account(module, x, mode="train").memory.activations == saved.nbytes - (BYTES - 1) * dropped


def test_memory_of_a_deep_network() -> None:
    """Every layer keeps its input, but the last its output too; the peak is reached in the backward pass."""
    layers, width = 6, 32
    module = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))
    memory = account(module, torch.randn(8, width), mode="train").memory
    assert memory.activations == layers * 8 * width * BYTES
    assert memory.gradients == memory.weights == layers * (width * width + width) * BYTES
    assert memory.optimizer == 2 * memory.weights


def level(module: nn.Module, x: Tensor) -> int:
    """The highest of a training step that was measured, besides weights and the inputs."""

    def step() -> None:
        y = module(x)
        torch.autograd.backward([y], [torch.ones_like(y)])

    return peak(step)


def accounted_level(module: nn.Module, x: Tensor) -> int:
    memory = account(module, x, mode="train").memory
    return memory.peak - memory.weights - memory.optimizer


class Residual(nn.Module):
    """Layers that add up, run again in the backward pass or not."""

    def __init__(self, again: str | None = None, layers: int = 3) -> None:
        super().__init__()
        self.again, self.first = again, nn.Linear(16, 16)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = self._layer(layer, x)
        return x

    def _layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        def run(x: Tensor) -> Tensor:
            return x + layer(x) + 1

        options = {"use_reentrant": self.again == "reentrant", "preserve_rng_state": False}
        return checkpoint(run, x, **options) if self.again else run(x)


@pytest.mark.parametrize("again", [None, "plain", "reentrant"])
def test_memory_of_checkpointed_residuals(again: str | None) -> None:
    """To the byte; a real pass saves numbers besides the tensors."""
    module, x = Residual(again), torch.randn(64, 16)
    assert 0 <= level(module, x) - accounted_level(module, x) <= 100
    with SavedTensors([*module.parameters(), x]) as saved:
        module(x)
    assert account(module, x, mode="train").memory.activations == saved.nbytes


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y + y,
        lambda y: (y * y + y).exp() + y,
        lambda y: y[torch.arange(5)].exp(),
        lambda y: y.gather(0, torch.zeros(3, 8, dtype=torch.long)).exp(),
        lambda y: y.index_select(0, torch.tensor([1, 2])).exp(),
        lambda y: y.max(0).values,
    ],
)
def test_memory_of_accumulated_and_filled_gradients(function: Callable[[Tensor], Tensor]) -> None:
    module, x = After(function), torch.randn(512, 8)
    assert accounted_level(module, x) == level(module, x)


@pytest.mark.parametrize("name", ["atan", "asinh", "cumprod"])
def test_formulas_of_autograd_that_add(name: str) -> None:
    def function(y: Tensor) -> Tensor:
        return y.cumprod(0) if name == "cumprod" else getattr(y, name)()

    assert account(After(function), torch.randn(3, 8), mode="train").flops == 2 * 2 * 3 * 8 * 8


@pytest.mark.parametrize("again", ["plain", "reentrant"])
def test_checkpointed_work_is_recomputed(again: str) -> None:
    """All of it, or without the last product, whose result nobody needs; neither is it counted as backward."""
    x, widths = torch.randn(32, 16), 16 * 64
    once, twice = (account(Residual(how), x, mode="train") for how in (None, again))
    assert (twice.forward_flops, twice.backward_flops) == (once.forward_flops, once.backward_flops)
    assert once.recomputed_flops == 0
    assert twice.recomputed_flops == 3 * (2 if again == "reentrant" else 1) * 2 * 32 * widths
    assert twice.find("layers.1.0").recomputed == 2 * 32 * widths
    assert twice.find("layers").calls == once.find("layers").calls == 3


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x.clone() @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return (gradient + 1) @ weight.t(), x.t() @ gradient


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(x, self.weight)


def test_a_custom_backward_belongs_to_its_module() -> None:
    trained = account(nn.Sequential(nn.Linear(8, 8), Own()), torch.randn(3, 8), mode="train")
    assert {part.path: part.backward_flops for part in trained.root.parts if part.backward_flops} == {
        "0": 384,
        "1": 768,
    }


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.out = nn.Linear(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(sum(layer(x).tanh() for layer in self.inner)).sigmoid()[:, :16].exp()


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Expert() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_nested_module_lists() -> None:
    """What is saved by each layer of the outer list is one piece; its calls are counted apart from the inner ones."""
    stacked, x = Stacked(), torch.randn(10, 16)
    trained = account(stacked, x, mode="train")
    with SavedTensors([*stacked.parameters(), x], list(stacked.layers), lambda args, _: args) as saved:
        stacked(x)
    assert trained.memory.checkpointed == saved.checkpointed < trained.memory.activations
    assert {part.path: part.calls for part in trained.root.walk() if part.calls} == {
        "layers": 3, "layers.0.inner": 2, "layers.1.inner": 2, "layers.2.inner": 2,
    }  # fmt: skip


def test_pooling() -> None:
    x = torch.randn(2, 3, 8, 8)
    for kind in (nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(2), nn.MaxPool2d(2, return_indices=True), nn.LPPool2d(2, 2)):
        module = nn.Sequential(nn.Conv2d(3, 4, 3), kind)
        assert account(module, x, mode="train").forward_flops == 2 * (2 * 4 * 6 * 6) * (3 * 9)


def test_convolutions() -> None:
    x = torch.randn(2, 6, 9, 11, requires_grad=True)
    for kind in (nn.Conv2d, nn.ConvTranspose2d):
        convolution = kind(6, 4, (3, 5), stride=2, padding=1)
        with FlopCounterMode(display=False) as counter:
            convolution(x).sum().backward()
        assert account(convolution, x, mode="train").flops == counter.get_total_flops()
    grouped = account(nn.Conv2d(6, 4, (3, 5), stride=2, padding=1, groups=2), x, mode="train")
    assert grouped.flops == 3 * 2 * (2 * 4 * 5 * 5) * (3 * 3 * 5)  # 4 × 5 × 5 numbers, each of 3 channels and 15 places


def test_frozen_weights_have_no_gradients() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    module[0].requires_grad_(False)
    trained = account(module, torch.randn(3, 8), mode="train")
    assert trained.backward_flops == 2 * 3 * 8 * 8
    assert trained.memory.gradients == (8 * 8 + 8) * BYTES
    assert (trained.parameters, trained.trainable_parameters) == (2 * 72, 72)
    updated = next(
        operation
        for operation in time_on(trained, custom_hardware(flops=1e12, bandwidth=1e12)).work
        if operation.name == OPTIMIZER
    )
    assert updated.bytes == 72 * BYTES * (2 + 4 + 1)  # the weight and two moments, read and written; the gradient, read


def test_adapters_alone_are_trained() -> None:
    facts = change(change(preset("gpt2"), "decoder.layers", 1), "vocab", 64)
    model = Transformer(facts, "meta")
    add_adapters(model, rank=2)
    trained = account(model, context=4)
    assert trained.trainable_parameters == sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert 0 < trained.trainable_parameters < trained.parameters


def test_the_module_stays_as_it_was() -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1)), torch.randn(3, 8)
    state, drawn = deepcopy(module.state_dict()), torch.get_rng_state()
    before = {name: set(vars(one)) for name, one in module.named_modules()}
    account(module, x, mode="train")
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())
    assert {name: set(vars(one)) for name, one in module.named_modules()} == before
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in module.modules())
    assert all(weight.grad is None for weight in module.parameters())
    module(x)  # and it runs on real tensors


def test_a_weight_from_outside_is_refused() -> None:
    """A forward that captures the module itself and not its copy would leave fake gradients in it."""
    module, x = Scans(), torch.ones(5, 4)
    module.inner.forward = lambda x: F.linear(x, module.weight.t())  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="the part 'inner' uses the weight 'weight' of the original model"):
        account(module, x, mode="train")
    assert module.weight.grad is None
    assert account(module, x).flops == 2 * 5 * 4 * 6


def test_several_threads_at_a_time() -> None:
    module, inputs, flops = transformer(), (torch.randn(B, S, D), torch.randn(B, T, D)), []
    threads = [threading.Thread(target=lambda: flops.append(account(module, inputs).flops)) for _ in range(3)]
    for thread in threads:
        thread.start()
    real = module.eval()(*inputs)
    for thread in threads:
        thread.join()
    assert flops == [by_hand()] * 3
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
    rule = OperatorRule("product", work=lambda a, b, out: Work((Product(len(a), len(b), b.shape[1]),), 0, out.numel()))
    register_rule(torch.ops.glassformer_tests.scan, rule)
    counted = account(module, x)
    assert (counted.flops, counted.root.elementwise) == (2 * 5 * 4 * 6, 5 * 6)


def test_a_number_that_depends_on_weights_is_refused() -> None:
    class Peeks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[: int(self.weight.sum())]

    with pytest.raises(UnknownOperatorError, match="the model itself reads a number"):
        account(Peeks(4, 4), torch.ones(3, 4))


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda y: y[y > 0], "aten.index"),
        (lambda y: y.nonzero(), "aten.nonzero"),
        (lambda y: y.masked_select(y > 0), "aten.masked_select"),
        (lambda y: y.unique(), "aten._unique2"),
    ],
)
def test_a_size_that_depends_on_weights_is_refused(function: Callable[[Tensor], Tensor], operator: str) -> None:
    with pytest.raises(UnknownOperatorError, match=rf"itself makes a tensor whose size \({operator}\).*torch.where"):
        account(After(function), torch.ones(3, 8))


@pytest.mark.parametrize(
    "function",
    [
        lambda y, n: y.masked_select((n > 1)[:, None]).view(-1, 8),
        lambda y, n: y[n > 1],
        lambda y, n: y[:2].repeat_interleave(n[1:] - 1, 0),
        lambda y, n: y[: len(n.unique())],
        lambda y, n: y[(n > 1).nonzero()[:, 0]],
    ],
)
def test_a_size_that_depends_on_inputs_is_known(function: Callable[..., Tensor]) -> None:
    """Two rows are left, whose map back costs as many products."""
    module, inputs = After(lambda y, n: function(y, n) @ torch.ones(8, 5)), (torch.ones(3, 8), torch.tensor([1, 2, 2]))
    assert account(module, inputs).flops == 2 * 3 * 8 * 8 + 2 * 2 * 8 * 5


def test_values_after_many_operators() -> None:
    def function(y: Tensor) -> Tensor:
        count = torch.zeros((), dtype=torch.long)
        for _ in range(700):
            count = count + 1
        return y[: int(count) - 698] @ torch.ones(8, 5)

    assert account(After(function), torch.ones(3, 8)).flops == 2 * 3 * 8 * 8 + 2 * 2 * 8 * 5


@dataclass
class Answer:
    scores: Tensor
    more: dict[str, Tensor]


def test_custom_dictionaries_and_dataclasses() -> None:
    module = After(lambda y: Answer(y, {"again": y * 2}))
    counted = account(module, UserDict(x=torch.ones(3, 8)), mode="train")
    assert (counted.batch, counted.context, counted.flops) == (3, 8, 2 * 2 * 3 * 8 * 8)
    with pytest.raises(ValueError, match="output of this module, a str, depends"):
        account(After(lambda _: "text"), torch.ones(3, 8), mode="train")


# ---- operators


def test_recurrent_networks() -> None:
    """Four, three or one product with the input and with the state of each step."""
    x = torch.randn(5, 2, 8)
    enabled = torch.backends.mkldnn.enabled
    for kind, gates in ((nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)):
        counted = account(kind(8, 16), x, mode="train")
        assert counted.forward_flops == 2 * 5 * 2 * gates * 16 * (8 + 16)
    assert torch.backends.mkldnn.enabled == enabled
    assert account(nn.LSTM(8, 16, bidirectional=True), x).flops == 2 * 2 * 5 * 2 * 4 * 16 * (8 + 16)


def test_inference_mode_inside() -> None:
    class Inside(OwnAttention):
        @torch.inference_mode()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    counted = account(Inside(0.0), torch.randn(B, T, D))
    assert counted.flops == 4 * LINEAR + 2 * ATTEND
    assert counted.root.bytes_moved == account(OwnAttention(0.0), torch.randn(B, T, D)).root.bytes_moved


def test_a_padding_mask_in_evaluation() -> None:
    """Rows are counted in full: its fast path would leave the padding out."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H, FF, batch_first=True), 2)
    x, padding = torch.randn(B, T, D), torch.zeros(B, T, dtype=torch.bool)
    padded = account(encoder, {"src": x, "src_key_padding_mask": padding})
    assert padded.flops == account(encoder, x).flops
    assert encoder.use_nested_tensor


def test_bilinear_forms_and_distances() -> None:
    x, y = torch.randn(3, 8, requires_grad=True), torch.randn(3, 7, requires_grad=True)
    trained = account(nn.Bilinear(8, 7, 4), (x, y), mode="train")
    assert (trained.forward_flops, trained.backward_flops) == (2 * 3 * 4 * 8 * 7, 3 * 2 * 3 * 4 * 8 * 7)
    near = account(After(lambda y: torch.cdist(y, y)), torch.randn(5, 8), mode="train")
    assert (near.forward_flops, near.root.elementwise) == (2 * 5 * 8 * 8, 5 * 8 + 3 * 5 * 5 * 8)
    far = account(After(lambda y: torch.cdist(y, y)), torch.randn(50, 8), mode="train")
    assert far.forward_flops == 2 * 50 * 8 * 8 + 2 * 50 * 50 * (8 + 2)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2)), (1, 3, 8, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2, mode="bilinear")), (1, 3, 8, 8)),
        (nn.Sequential(nn.Conv3d(3, 4, 3), nn.AvgPool3d(2)), (1, 3, 8, 8, 8)),
        (nn.Sequential(nn.Conv3d(3, 4, 3), nn.MaxPool3d(2)), (1, 3, 8, 8, 8)),
    ],
)
def test_operators_that_resize(module: nn.Module, shape: tuple[int, ...]) -> None:
    counted = account(module, torch.randn(shape), mode="train")
    assert counted.forward_flops == account(module[0], torch.randn(shape)).flops
    assert counted.root.backward_bytes > 0


def test_bags_of_embeddings() -> None:
    assert account(nn.EmbeddingBag(10, 4), torch.randint(10, (3, 4)), mode="train").flops == 0


def test_products_of_different_types_are_refused() -> None:
    for module in (nn.Linear(8, 8), nn.Linear(8, 8, bias=False)):
        with pytest.raises(TypeError, match=r"multiplies float16 and float32 .*\.to\(dtype\)"):
            account(module.half(), torch.randn(3, 8))


def test_models_of_this_library(tmp_path) -> None:
    facts = CONFIGS["gpt2"]
    model = Transformer(facts)
    hub.save(model, tmp_path)
    expected = account(facts, batch=2, context=9)
    for subject in (model, hub.load(tmp_path), tmp_path):
        counted = account(subject, batch=2, context=9)
        assert (counted.flops, counted.root.bytes_moved, counted.memory) == (
            expected.flops, expected.root.bytes_moved, expected.memory,
        )  # fmt: skip
    narrow = account(Transformer(facts, dtype=torch.bfloat16), context=9)
    assert (narrow.dtype, narrow.memory.weights) == ("bfloat16", expected.memory.weights // 2)
    course = TransformerLM(64, 16, 32, 2, 4, 48)
    counted = account(course)
    layers = 2 * (4 * 2 * 16 * 32 * 32 + 2 * 2 * 16 * 16 * 32 + 3 * 2 * 16 * 32 * 48)
    assert (counted.context, counted.flops) == (16, layers + 2 * 16 * 32 * 64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: account(nn.Linear(2, 2)), "needs the inputs of its forward"),
        (lambda: account(nn.Linear(2, 2), torch.ones(1, 2), batch=3), "leave out batch"),
        (lambda: account(nn.Linear(2, 2), torch.ones(1, 2), mode="decode"), "needs a Transformer of this library"),
        (lambda: account(nn.Linear(2, 2), torch.ones(1, 2), causal="exact"), "causal='dense'"),
        (lambda: account(nn.Linear(2, 2), torch.ones(1, 2), dtype="float16"), r"module.to\(torch.float16\)"),
        (lambda: account(nn.Linear(2, 2), ()), "inputs has none"),
        (
            lambda: account(nn.Linear(2, 2).to(torch.float8_e4m3fn), torch.ones(1, 2)),
            "is float8_e4m3fn; an account needs",
        ),
        (lambda: account(nn.ReLU(), torch.ones(1, 2), mode="train"), "use mode='forward'"),
    ],
)
def test_unsupported_accounts_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
