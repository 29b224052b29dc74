"""Blocks that run again: the same gradients to the bit from fewer bytes, and nothing else changes."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from glassformer import TransformerLM, hub
from glassformer.config import ModelConfig, Stack
from glassformer.models.transformer import Transformer
from glassformer.nn.block import Block
from glassformer.nn.cache import KVCache
from glassformer.training import block_calls as recompute
from glassformer.training.block_calls import checkpoint_blocks
from tests.configs import CONFIGS, random_config, tokens
from tests.helpers import randomise, right_padded, some_at_once
from tests.parity.cases import CASES
from tests.parity.harness import Case, Pair, pad_rows

LINEAGES = list({case.architecture.split("For")[0].removesuffix("Model"): case for case in CASES}.values())


def with_dropout(facts: ModelConfig) -> ModelConfig:
    def stack(facts: Stack | None) -> Stack | None:
        if facts is None:
            return None
        return replace(
            facts,
            dropout=0.2,
            final_dropout=0.1,
            attention=replace(facts.attention, dropout=0.2),
            ffn=replace(facts.ffn, dropout=0.2),
        )

    return replace(facts, encoder=stack(facts.encoder), decoder=stack(facts.decoder))


def made(config: str | ModelConfig, dtype: torch.dtype = torch.float32) -> Transformer:
    model = Transformer(with_dropout(CONFIGS[config] if isinstance(config, str) else config), dtype=dtype)
    randomise(model)
    return model.train()


def model_inputs(model: Transformer, rows: int = 2, length: int = 7) -> dict[str, Any]:
    real = right_padded(*([length] * (rows - 1)), length - 2, width=length)
    inputs: dict[str, Any] = {"ids": tokens(rows, length) % model.config.vocab, "mask": real}
    if model.config.family == "encoder-decoder":
        inputs |= {"target": tokens(rows, length - 1, seed=1) % model.config.vocab, "target_mask": real[:, 1:]}
    return inputs


def loss_of(answer: Any) -> torch.Tensor:
    return sum(part.float().square().mean() for part in (answer if isinstance(answer, tuple) else (answer,)))


def gradients(model: nn.Module, call: Callable[[], Any]) -> tuple[dict[str, torch.Tensor], int]:
    """Gradients of one pass from the same random numbers, and how many bytes it held besides the weights."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held: dict[int, torch.Tensor] = {}

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        held.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    model.zero_grad()
    torch.manual_seed(3)
    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        loss = loss_of(call())
    nbytes = sum(tensor.untyped_storage().nbytes() for address, tensor in held.items() if address not in own)
    loss.backward()
    result = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return result | {"the loss": loss.detach(), "the next draw": torch.rand(3)}, nbytes


def compare(model: nn.Module, call: Callable[[], Any]) -> tuple[int, int]:
    """The bytes held before and after; gradients must be equal to the bit."""
    plain, before = gradients(model, call)
    checkpoint_blocks(model)
    again, after = gradients(model, call)
    assert plain.keys() == again.keys()
    different = [name for name, gradient in plain.items() if not torch.equal(gradient, again[name])]
    assert not different
    return before, after


@pytest.mark.parametrize("dtype", some_at_once([torch.float32, torch.float64], {torch.float32}.__contains__))
@pytest.mark.parametrize("config", sorted(CONFIGS))
def test_the_same_gradients_from_fewer_bytes(config: str, dtype: torch.dtype) -> None:
    model = made(config, dtype)
    inputs = model_inputs(model)
    before, after = compare(model, lambda: model(**inputs))
    assert after < 0.55 * before


@pytest.mark.parametrize("case", some_at_once(LINEAGES, LINEAGES[::3].__contains__))
def test_the_same_gradients_for_every_lineage(case: Case, tmp_path: Path) -> None:
    pair = Pair.make(case, tmp_path)
    model = made(pair.ours.config)
    model.load_state_dict(pair.ours.state_dict())
    rows, targets = pair.inputs()
    ids, mask = pad_rows(rows, "right", case.pad)
    more, _ = pair.side_inputs(ids)
    if targets:
        more["target"], more["target_mask"] = pad_rows(targets, "right", case.pad)
    before, after = compare(model, lambda: model(ids, mask, **more))
    assert after < before


@pytest.mark.parametrize("seed", some_at_once(range(12), lambda seed: seed < 4))
def test_the_same_gradients_for_random_config(seed: int) -> None:
    model = made(random_config(seed))
    inputs = model_inputs(model)
    compare(model, lambda: model(**inputs))


class Scaled(Block):
    """A block with a part of its own around the usual ones."""

    def forward(self, x: torch.Tensor, *more: Any, **surroundings: Any) -> torch.Tensor:
        return self.ffn_norm(super().forward(x, *more, **surroundings))


def test_parts_of_ones_own_around_a_block_run_again_as_they_ran() -> None:
    """They lie outside of what a block itself says of kernels."""
    model = made("gpt2")
    for block in model.decoder.blocks:
        block.__class__ = Scaled
    inputs = model_inputs(model)
    compare(model, lambda: model(**inputs))


def test_hooks_on_a_block_run_again_as_they_ran() -> None:
    model = made("gpt2")
    for block in model.decoder.blocks:
        block.register_forward_hook(lambda block, _, x: block.ffn_norm(x))
    inputs = model_inputs(model)
    compare(model, lambda: model(**inputs))


def test_without_the_same_random_numbers_gradients_would_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above notices the mistake that it is there for."""
    model = made("gpt2")
    inputs = model_inputs(model)
    whole = recompute.checkpoint
    monkeypatch.setattr(recompute, "checkpoint", lambda *args, **how: whole(*args, preserve_rng_state=False, **how))
    with pytest.raises(AssertionError):
        compare(model, lambda: model(**inputs))


def test_what_is_held_grows_with_the_inputs_of_the_blocks_alone() -> None:
    """Per layer more: one vector per token, and the state of the random numbers."""

    def held(layers: int) -> int:
        facts = CONFIGS["llama"]
        assert facts.decoder is not None
        model = made(replace(facts, decoder=replace(facts.decoder, layers=layers)))
        checkpoint_blocks(model)
        ids = tokens(2, 20)
        return gradients(model, lambda: model(ids))[1]

    assert held(5) - held(3) == 2 * (2 * 20 * 16 * 4)


@pytest.mark.parametrize("config", ["gpt2", "t5", "deberta"])
def test_under_autocast(config: str) -> None:
    model = made(config)
    inputs = model_inputs(model)

    def call() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(**inputs)

    before, after = compare(model, call)
    assert after < before


def test_the_halves_of_an_encoder_decoder_and_frozen_weights() -> None:
    model = made("2017")
    inputs = model_inputs(model)
    model.embed.requires_grad_(False)
    model.encoder.blocks[0].requires_grad_(False)

    def call() -> Any:
        memory = model.encode(inputs["ids"], inputs["mask"])
        hidden = model.decode(inputs["target"], inputs["target_mask"], memory=memory, memory_mask=inputs["mask"])
        return model.apply_head(hidden, inputs["target_mask"])

    before, after = compare(model, call)
    assert after < before


def test_the_course_model_too() -> None:
    model = TransformerLM(31, 16, 16, 3, 2).train()
    ids = tokens(2, 16)
    before, after = compare(model, lambda: model(ids))
    assert after < 0.5 * before


def test_nothing_else_changes(tmp_path: Path) -> None:
    model, plain = made("gpt2"), made("gpt2")
    checkpoint_blocks(model)
    assert model.config == plain.config
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [type(part) for part in model.modules()] == [type(part) for part in plain.modules()]
    for name, item in (("one", model), ("other", plain)):
        hub.save(item, tmp_path / name)
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "other/model.safetensors").read_bytes()


def count_runs(model: nn.Module) -> list[str]:
    """A list that grows by an entry whenever a block runs."""
    runs: list[str] = []
    for part in model.modules():
        if isinstance(part, Block):
            part.attention_norm.register_forward_hook(lambda *_: runs.append("run"))
    return runs


def test_blocks_run_twice_where_gradients_are_asked_for_and_once_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("gpt2").eval()
    checkpoint_blocks(model)
    runs, ids = count_runs(model), tokens(1, 5)
    with torch.no_grad(), monkeypatch.context() as patch:
        patch.setattr(recompute, "checkpoint", None)  # not even called: it would note the state of the random numbers
        model(ids)
    assert len(runs) == 2
    runs.clear()
    model(ids).sum().backward()
    assert len(runs) == 4


def test_with_a_cache_blocks_run_once_and_gradients_are_right() -> None:
    model, plain = made("gpt2").eval(), made("gpt2").eval()
    checkpoint_blocks(model)
    runs, ids, answers = count_runs(model), tokens(2, 6), []
    for item in (model, plain):
        cache = KVCache()
        answers.append(torch.cat([item(ids[:, :4], cache=cache), item(ids[:, 4:], cache=cache)], dim=1))
        assert cache.length == 6
        answers[-1].square().sum().backward()
        assert cache.length == 6
    assert torch.equal(*answers)
    assert len(runs) == 4
    for item, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(item.grad, other.grad)


def test_a_copy_is_plain() -> None:
    model = made("gpt2")
    checkpoint_blocks(model)
    checkpoint_blocks(model)
    twin = copy.deepcopy(model)
    runs, of_twin = count_runs(model), count_runs(twin)
    twin(tokens(1, 5)).sum().backward()
    assert (len(runs), len(of_twin)) == (0, 2)


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="this Linear has no blocks"):
        checkpoint_blocks(nn.Linear(2, 2))
