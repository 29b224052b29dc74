"""Averages of weights: the moving one beside a run, and the mean over checkpoints."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from glassformer import hub
from glassformer.models.transformer import Transformer
from glassformer.training.averaging import MovingAverage, average_checkpoints, load_average
from glassformer.training.checkpoint_folders import CheckpointError, Checkpoints
from glassformer.training.optim import parameter_names
from glassformer.weights.files import WeightsError
from glassformer.weights.saving import write_weights
from tests.configs import CONFIGS, built, tokens
from tests.helpers import randomise


def walk(model: nn.Module, seed: int) -> None:
    """Other weights, as a step would make them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise.to(parameter.dtype), alpha=0.1)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(entry: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return entry.keys() == other.keys() and all(torch.equal(entry[name], other[name]) for name in entry)


# ---- the moving average


def test_the_moving_average_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 8.0)
    average, expected = MovingAverage(model, 0.3), 8.0
    for value, decay in ((1.0, 2 / 11), (5.0, 3 / 12), (-2.0, 0.3), (7.0, 0.3)):  # (1 + n) / (10 + n), 0.3 at most
        nn.init.constant_(model.weight, value)
        average.update()
        expected = decay * expected + (1 - decay) * value
        assert average.state()[0]["weight"].item() == pytest.approx(expected, abs=1e-14)


def test_the_start_is_forgotten_soon() -> None:
    """With 0.999 from the beginning the average would be 99 % of the start after ten steps."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1000.0)
    average = MovingAverage(model)
    nn.init.constant_(model.weight, 1.0)
    for _ in range(10):
        average.update()
    assert 1.0 <= average.state()[0]["weight"].item() < 1.1


def test_half_precision_weights_are_averaged_in_float32() -> None:
    model = nn.Linear(3, 2).bfloat16()
    average = MovingAverage(model, 0.0)
    assert {tensor.dtype for tensor in average.state()[0].values()} == {torch.float32}
    nn.init.constant_(model.weight, 1.0)
    average.update()
    average.decay, average.updates = 0.999, 100_000
    nn.init.constant_(model.weight, 1.0078125)  # the next bfloat16 after 1: the average must move by less
    average.update()
    assert average.state()[0]["weight"][0, 0].item() == pytest.approx(1 + 0.0078125 / 1000, abs=1e-7)
    assert {tensor.dtype for tensor in MovingAverage(model.double()).state()[0].values()} == {torch.float64}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_gets_its_own_weights_back_to_the_bit(dtype: torch.dtype) -> None:
    model = built("t5", dtype)
    average = MovingAverage(model, 0.5)
    walk(model, 1)
    average.update()
    walk(model, 2)
    own, objects = weights(model), list(model.parameters())
    with average.applied():
        averaged = weights(model)
        assert not any(torch.equal(own[name], averaged[name]) for name in own)
        assert all(torch.equal(averaged[name], mean.to(dtype)) for name, mean in average.state()[0].items())
    assert same(weights(model), own)
    with pytest.raises(ZeroDivisionError), average.applied():
        raise ZeroDivisionError
    assert same(weights(model), own)
    assert all(entry is other for entry, other in zip(model.parameters(), objects, strict=True))  # optimizers hold them


def test_no_average_of_the_average() -> None:
    model = built("gpt2")
    average = MovingAverage(model)
    with average.applied():
        with pytest.raises(RuntimeError, match="update after the with statement"):
            average.update()
        with pytest.raises(RuntimeError, match="applied already"), average.applied():
            pass
    average.update()


def test_shared_weights_once_frozen_ones_never_and_buffers_stay() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2)
            self.two = self.one
            self.frozen.requires_grad_(False)
            self.register_buffer("seen", torch.tensor(3))

    model = Shared()
    average = MovingAverage(model)
    assert sorted(average.state()[0]) == ["one.bias", "one.weight"]
    model.seen += 1
    walk(model.one, 1)
    with average.applied():
        assert model.seen == 4
        assert torch.equal(model.two.weight, average.state()[0]["one.weight"])
    with pytest.raises(ValueError, match="no parameter of this model requires a gradient"):
        MovingAverage(model.requires_grad_(False))


def test_an_average_goes_on_from_where_it_was() -> None:
    def run(steps: range, average: MovingAverage, model: nn.Module) -> None:
        for step in steps:
            walk(model, step)
            average.update()

    whole = built("bert", torch.float32)
    expected = MovingAverage(whole, 0.9)
    run(range(8), expected, whole)
    first = built("bert", torch.float32)
    before = MovingAverage(first, 0.9)
    run(range(3), before, first)
    tensors, facts = before.state()
    assert sorted(tensors) == sorted(parameter_names(first).values())
    stored = {name: tensor.clone() for name, tensor in tensors.items()}
    second = built("bert", torch.float32, seed=9)
    after = MovingAverage(second, 0.9)
    second.load_state_dict(first.state_dict())
    after.restore(stored, json.loads(json.dumps(facts)))
    run(range(3, 8), after, second)
    assert same(after.state()[0], expected.state()[0])
    assert after.updates == 8


def test_another_models_average_is_refused_before_anything_changes() -> None:
    average = MovingAverage(built("gpt2"))
    tensors, facts = average.state()
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    name = next(iter(kept))
    with pytest.raises(ValueError, match=f"only one of the two has '{name}'"):
        average.restore({other: tensor for other, tensor in kept.items() if other != name}, facts)
    with pytest.raises(ValueError, match=r"decay=0\.5, and this run has 0\.999"):
        average.restore(kept, facts | {"decay": 0.5})
    last = next(reversed(kept))
    zeros = {other: torch.zeros_like(tensor) for other, tensor in kept.items()}
    with pytest.raises(ValueError, match=f"the averages of {last} do not fit"):
        average.restore(zeros | {last: torch.zeros(1, 2, 3)}, facts)
    assert same(average.state()[0], kept)
    with pytest.raises(ValueError, match="decay must be at least 0 and below 1, got 1"):
        MovingAverage(built("gpt2"), 1.0)


# ---- the mean over checkpoints


def saved(model: nn.Module, **how: str) -> Callable[[Path], None]:
    def fill(path: Path) -> None:
        hub.save(model, path, **how)

    return fill


def written(folder: Path, config: str = "gpt2", dtype: torch.dtype = torch.float32, count: int = 3) -> list[Path]:
    kept = Checkpoints(folder, keep=count)
    for step in range(1, count + 1):
        kept.write(step, saved(built(config, dtype, seed=step)))
    return kept.all()


@pytest.mark.parametrize("config", ["gpt2", "albert", "t5"])
def test_the_mean_over_checkpoints_is_the_mean(config: str, tmp_path: Path) -> None:
    folders = written(tmp_path, config)
    mean = average_checkpoints(folders)
    every = [load_file(folder / "model.safetensors") for folder in folders]
    assert mean.keys() == every[0].keys()
    for name, tensor in mean.items():
        expected = sum(entry[name].double() for entry in every) / 3
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected.float()), name
    entry = average_checkpoints(folders[1:2])
    assert same(entry, every[1])
    model = Transformer(CONFIGS[config])
    load_average(model, folders)
    assert same(weights(model), mean)


def test_sums_are_not_made_in_half_precision(tmp_path: Path) -> None:
    """In bfloat16 300 + 1 is 300: rounded after every addition, the mean would be 50 and not 50.75."""
    kept = Checkpoints(tmp_path, keep=9)
    model = built("gpt2", torch.bfloat16)
    for step, value in enumerate((300.0, 1.0, 1.0, 1.0, 1.0, 1.0)):
        for parameter in model.parameters():
            nn.init.constant_(parameter, value)
        kept.write(step, saved(model))
    mean = average_checkpoints(kept.all())
    assert {tensor.dtype for tensor in mean.values()} == {torch.bfloat16}
    assert all(torch.equal(t, torch.full_like(t, torch.tensor(305 / 6).bfloat16())) for t in mean.values())


def test_the_mean_answers(tmp_path: Path) -> None:
    folders = written(tmp_path, count=2)
    model = Transformer(CONFIGS["gpt2"]).eval()
    load_average(model, folders)
    assert torch.isfinite(model(tokens(2, 5))).all()


def test_checkpoints_of_different_models_have_no_mean(tmp_path: Path) -> None:
    folders = written(tmp_path / "one", count=1)
    facts = CONFIGS["gpt2"]
    other_eps = randomise(Transformer(replace(facts, norm=replace(facts.norm, eps=1e-3))))
    Checkpoints(tmp_path / "two").write(1, saved(other_eps))
    other = tmp_path / "two" / "step-00000001"
    with pytest.raises(CheckpointError, match=r"no mean:\n  norm\.eps: 1e-05, and 0\.001"):
        average_checkpoints([*folders, other])
    with pytest.raises(CheckpointError, match=r"and the model are of different models.*\n  norm\.eps"):
        load_average(other_eps, folders)
    double = written(tmp_path / "three", dtype=torch.float64, count=1)
    with pytest.raises(CheckpointError, match=r"has the type torch\.float32 in .*but torch\.float64 in"):
        average_checkpoints(folders + double)
    with pytest.raises(ValueError, match="no checkpoints"):
        average_checkpoints([])


def test_other_names_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    folders = written(tmp_path / "run", count=1)
    kept = Checkpoints(tmp_path / "other")

    def renamed(path: Path) -> None:
        hub.save(built("gpt2", torch.float32), path)
        tensors = load_file(path / "model.safetensors")
        tensors["embed.tokens.weight"] = tensors.pop("embed.token.weight")
        write_weights(path, tensors)

    with pytest.raises(CheckpointError, match=r"'embed\.token\.weight', 'embed\.tokens\.weight' are in only one of"):
        average_checkpoints([*folders, kept.write(1, renamed)])
    reference = kept.write(2, saved(built("gpt2"), to="hf", lineage="gpt2"))
    with pytest.raises(CheckpointError, match="is not a checkpoint of a run"):
        average_checkpoints([reference])


def test_damage_is_noticed(tmp_path: Path) -> None:
    folders = written(tmp_path, count=2)
    file = folders[1] / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match="checksum differs"):
        average_checkpoints(folders)
    model = built("gpt2", torch.float32)
    nn.init.constant_(model.embed.token.weight, torch.nan)
    spoilt = Checkpoints(tmp_path / "nan").write(1, saved(model))
    with pytest.raises(WeightsError, match="NaN"):
        average_checkpoints([folders[0], spoilt])
