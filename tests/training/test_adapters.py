"""Low-rank adapters: the formula, what learns, what is left after merging, and what is written."""

import copy
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from glassformer import TransformerLM, hub
from glassformer.config import Init, Tokens, change
from glassformer.generation.api import generate
from glassformer.generation.settings import GenerationSettings
from glassformer.models.transformer import Transformer
from glassformer.nn.linear import Linear
from glassformer.training.adapters import (
    AdaptedLinear,
    adapted,
    adapter_state,
    add_adapters,
    load_adapters,
    merge,
    merged,
    restore_adapters,
    save_adapters,
)
from glassformer.training.optim import adamw, list_groups
from glassformer.weights.files import WeightsError
from glassformer.weights.fingerprint import fingerprint
from tests.configs import CONFIGS, at_token, built, tokens
from tests.helpers import largest_difference, normal, right_padded

EVERYWHERE = ("attention.*", "cross.*", "ffn.*")


def args(model: Transformer) -> dict[str, Any]:
    inputs: dict[str, Any] = {"ids": tokens(2, 6), "mask": right_padded(6, 4, width=6)}
    if model.config.family == "encoder-decoder":
        inputs |= {"target": tokens(2, 5, seed=1), "target_mask": right_padded(3, 5, width=5)}
    return inputs


def answer(model: Transformer) -> torch.Tensor:
    return at_token(model(**args(model)))


def learn(model: nn.Module, seed: int = 0) -> None:
    """Adapters as training leaves them: neither of the two is zero."""
    for number, part in enumerate(adapted(model).values()):
        with torch.no_grad():
            part.lora_a.copy_(normal(*part.lora_a.shape, seed=seed + number) * 0.3)
            part.lora_b.copy_(normal(*part.lora_b.shape, seed=seed + 500 + number) * 0.3)


# ---- the formula


@pytest.mark.parametrize("bias", [True, False])
def test_the_formula(bias: bool) -> None:
    plain = Linear(5, 7, dtype=torch.float64, bias=bias)
    if plain.bias is not None:
        nn.init.normal_(plain.bias)
    part, x = AdaptedLinear(plain, 3, 12.0), normal(2, 4, 5)
    assert torch.equal(part(x), plain(x))
    nn.init.normal_(part.lora_b)
    low = torch.stack([part.lora_b @ (part.lora_a @ row) for row in x.reshape(-1, 5)]).reshape(2, 4, 7)
    assert largest_difference(part(x), plain(x) + 4 * low) < 1e-13
    assert largest_difference(part(x), plain(x)) > 0.1
    assert part.weight is plain.weight
    assert "rank=3, alpha=12" in repr(part)


def test_a_starts_normal_and_as_large_as_it_reads() -> None:
    part = AdaptedLinear(Linear(400, 10), 50, 1.0)
    assert torch.equal(part.lora_b, torch.zeros(10, 50))
    assert part.lora_a.mean().abs() < 0.002
    assert part.lora_a.std().item() == pytest.approx(1 / 20, rel=0.05)
    shape = part.lora_a.flatten() / part.lora_a.std()
    assert (shape**4).mean().item() == pytest.approx(3, rel=0.1)  # of a uniform draw it would be 1.8


def test_dropout_falls_on_the_adapter_alone_and_in_training_alone() -> None:
    plain = Linear(6, 4, dtype=torch.float64)
    part, x = AdaptedLinear(plain, 2, 2.0, dropout=0.5), torch.ones(2000, 6, dtype=torch.float64)
    assert torch.equal(part.train()(x), plain(x))
    nn.init.normal_(part.lora_b)
    whole = part.eval()(x)
    assert torch.equal(whole, part(x))
    dropped = part.train()(x)
    assert (dropped != whole).all(-1).float().mean() > 0.9
    assert largest_difference(dropped.mean(0), whole[0]) < 0.15


@pytest.mark.parametrize("config", sorted(CONFIGS))
@torch.no_grad()  # a bias on the scores that is frozen lets PyTorch choose another kernel, which rounds otherwise
def test_the_start_is_the_base_model_to_the_bit(config: str) -> None:
    for dtype in (torch.float64, torch.float32):
        model = built(config, dtype)
        before = answer(model)
        assert add_adapters(model, targets=["attention.*", "ffn.*"], dropout=0.1)
        assert torch.equal(answer(model), before)


@pytest.mark.parametrize("config", sorted(CONFIGS))
def test_adapted_is_the_same_as_other_weights_and_as_merged(config: str) -> None:
    model, explicit = built(config), built(config)
    targets = EVERYWHERE if explicit.config.family == "encoder-decoder" else ("attention.*", "ffn.*")
    add_adapters(model, rank=3, alpha=6.0, targets=targets)
    learn(model)
    for name, part in adapted(model).items():
        with torch.no_grad():
            explicit.get_submodule(name).weight += 2.0 * part.lora_b @ part.lora_a
    expected = answer(explicit)
    assert largest_difference(expected, answer(built(config))) > 0.1
    assert largest_difference(answer(model), expected) < 1e-12
    twin = merged(model)
    assert largest_difference(answer(twin), expected) < 1e-12
    assert adapted(model)
    merge(model)
    assert largest_difference(answer(model), expected) < 1e-12
    assert model.state_dict().keys() == explicit.state_dict().keys()
    assert [type(part) for part in model.modules()] == [type(part) for part in explicit.modules()]
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_half_precision_maps_and_autocast() -> None:
    model = built("gpt2", torch.bfloat16)
    add_adapters(model)
    parts = adapted(model).values()
    assert {(part.weight.dtype, part.lora_a.dtype, part.lora_b.dtype) for part in parts} == {
        (torch.bfloat16, torch.float32, torch.float32)
    }
    assert answer(model).dtype == torch.bfloat16
    wide = built("gpt2", torch.float32)
    before = answer(wide)
    with torch.autocast("cpu", torch.bfloat16):
        plain = answer(wide)
        add_adapters(wide)
        assert torch.equal(answer(wide), plain)
    learn(wide)
    with torch.autocast("cpu", torch.bfloat16):
        low = answer(wide)
    exact = answer(wide)
    assert 1e-4 < largest_difference(low, exact) < 0.3
    assert largest_difference(exact, before) > 0.5
    low.sum().backward()
    assert {part.lora_a.grad.dtype for part in adapted(wide).values()} == {torch.float32}


# ---- what learns


def trained_names(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_only_adapters_learn_and_all_of_them_do() -> None:
    model = built("llama").train()
    kept = {name: parameter.clone() for name, parameter in model.named_parameters()}
    chosen = add_adapters(model, rank=2)
    assert chosen == [f"decoder.blocks.{n}.attention.{m}" for n in range(2) for m in ("q", "v")]
    expected = {f"{name}.{leaf}" for name in chosen for leaf in ("lora_a", "lora_b")}
    assert trained_names(model) == expected
    width, inner, kv = 16, 16, 8
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 2 * 2 * ((width + inner) + (width + kv))
    optimizer = adamw(model, 0.1, weight_decay=0.0)
    assert {row.name for row in list_groups([optimizer], model)} == expected
    for _ in range(2):  # at the first step A has no gradient, since B is zero
        optimizer.zero_grad()
        answer(model).square().mean().backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        if name in expected:
            assert parameter.grad is not None
            assert parameter.grad.abs().max() > 0, name
        else:
            assert parameter.grad is None, name
            assert torch.equal(parameter, kept[name]), name


def test_a_head_may_learn_besides() -> None:
    model = built("deberta_v2")
    add_adapters(model, also=["head.*"])
    assert {name for name in trained_names(model) if "lora" not in name} == {"head.out.weight", "head.out.bias"}


def test_tied_tables_and_shared_layers() -> None:
    tied = built("gpt2")
    chosen = add_adapters(tied, targets=["*.o"])
    assert chosen == ["decoder.blocks.0.attention.o", "decoder.blocks.1.attention.o"]
    with pytest.raises(ValueError, match=r"no parameter of this model is called 'head\.\*'"):
        add_adapters(built("gpt2"), also=["head.*"])
    shared = built("albert")
    assert len(add_adapters(shared)) == 4  # two blocks, each serving two layers
    learn(shared)
    assert largest_difference(answer(merged(shared)), answer(shared)) < 1e-12


def test_names_that_match_nothing_change_nothing() -> None:
    model = built("t5")
    with pytest.raises(ValueError, match=r"no linear layer .* 'attention\.query'. Similar names: attention\.q"):
        add_adapters(model, targets=["attention.v", "attention.query"])
    with pytest.raises(ValueError, match=r"Similar names: .*cross\.q.*ffn\.up"):
        add_adapters(model, targets=["zzz"])
    with pytest.raises(ValueError, match=r"'ttention\.q'"):
        add_adapters(model, targets=["ttention.q"])  # an end of a name begins at a dot
    with pytest.raises(TypeError, match=r"write \('attention\.q',\)"):
        add_adapters(model, targets="attention.q")
    for wrong in ({"rank": 0}, {"alpha": 0.0}, {"dropout": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            add_adapters(model, **wrong)
    assert not adapted(model)
    assert len(trained_names(model)) == len(list(model.parameters()))
    assert all(".cross." in name for name in add_adapters(model, targets=["decoder.*.cross.q"]))
    with pytest.raises(ValueError, match="adapters already"):
        add_adapters(model)
    with pytest.raises(ValueError, match="no adapters to merge"):
        merge(built("t5"))


def test_the_course_model_takes_adapters_too() -> None:
    model = TransformerLM(31, 8, 16, 2, 2, dtype=torch.float64)
    before = model(tokens(2, 5))
    assert len(add_adapters(model, targets=["attn.q_proj", "ffn.*"])) == 8
    assert torch.equal(model(tokens(2, 5)), before)


# ---- writing, saving


def test_an_adapted_model_writes_what_the_merged_one_writes() -> None:
    model = built("gpt2")
    plain = [text[0].ids for text in generate(model, [[3, 4, 5], [7]], GenerationSettings(max_new_tokens=8))]
    add_adapters(model, alpha=32.0)
    learn(model)
    twin = merged(model)
    result, expected = (
        [text[0].ids for text in generate(entry, [[3, 4, 5], [7]], GenerationSettings(max_new_tokens=8))]
        for entry in (model, twin)
    )
    assert result == expected != plain


def test_adapted_and_merged_maps_use_the_kernels_of_the_model() -> None:
    for fused in (True, False):
        model = built("gpt2")
        model.fused = fused
        add_adapters(model, targets=["attention.*", "ffn.*"])
        for entry in (model, merged(model)):
            assert {part.fused for part in entry.modules() if isinstance(part, Linear)} == {fused}


def test_a_fingerprint_covers_buffers() -> None:
    facts = change(change(CONFIGS["bart"], "head.bias_trained", False), "decoder.dropout", 0.0)
    model = built(facts)
    before = fingerprint(model)
    model.head.bias.add_(1)
    assert fingerprint(model) != before


def test_adapters_are_not_put_into_a_copy() -> None:
    with pytest.raises(TypeError, match="got a TransformerLM"):
        load_adapters(TransformerLM(31, 8, 16, 2, 2), Path("nowhere"))


def test_unmerged_models_are_not_saved_and_merged_ones_are(tmp_path: Path) -> None:
    model = built("gpt2", torch.float32)
    add_adapters(model)
    learn(model)
    with pytest.raises(WeightsError, match="lora_a"):
        hub.save(model, tmp_path / "no")
    assert not (tmp_path / "no").exists()
    twin = merged(model)
    hub.save(twin, tmp_path / "yes", to="hf", lineage="gpt2")
    assert largest_difference(answer(hub.load(tmp_path / "yes").model), answer(twin)) == 0
    assert adapted(model).keys()
    assert largest_difference(answer(twin), answer(model)) < 1e-4


def test_the_copy_and_the_model_go_their_own_ways() -> None:
    model = built("gpt2")
    add_adapters(model)
    learn(model)
    kept, twin = copy.deepcopy(model.state_dict()), merged(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())


def trained(config: str = "deberta_v2", **how: Any) -> Transformer:
    model = built(config, torch.float32)
    add_adapters(model, **{"rank": 2, "alpha": 5.0, "dropout": 0.25, "targets": ["attention.q", "ffn.down"], **how})
    learn(model)
    return model


def test_adapters_are_saved_and_found_again(tmp_path: Path) -> None:
    model = trained(also=["head.*"])
    with torch.no_grad():
        model.head.out.weight += 1
    save_adapters(model, tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["adapters.json", "adapters.safetensors"]
    assert (
        load_file(tmp_path / "a" / "adapters.safetensors").keys() == adapter_state(model).keys() == trained_names(model)
    )
    again = built("deberta_v2", torch.float32)
    with torch.no_grad():
        again.head.out.weight.zero_()  # a fresh head is another at every start, and is in the file
    names = load_adapters(again, tmp_path / "a")
    assert names == list(adapted(model))
    assert torch.equal(answer(again), answer(model))
    assert trained_names(again) == trained_names(model)
    assert {part.dropout.p for part in adapted(again).values()} == {0.25}
    save_adapters(again, tmp_path / "b")
    for file in ("adapters.json", "adapters.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_adapters_of_another_base_are_refused(tmp_path: Path) -> None:
    save_adapters(trained(), tmp_path)
    other = built("deberta_v2", torch.float32)
    with torch.no_grad():
        other.embed.token.weight[3, 2] += 1e-6
    half = built("deberta_v2", torch.bfloat16)
    for base in (other, half):
        with pytest.raises(WeightsError, match="trained on other weights"):
            load_adapters(base, tmp_path)
        assert not adapted(base)
        assert len(trained_names(base)) == len(list(base.parameters()))
        load_adapters(base, tmp_path, any_base=True)
        assert len(adapted(base)) == 4
    for config in ("gpt2", "llama"):
        with pytest.raises(WeightsError, match="do not have the shapes"):
            load_adapters(built(config, torch.float32), tmp_path, any_base=True)


def printed(**other: Any) -> str:
    """The fingerprint of a model, some facts of which are others."""
    model = built("gpt2", torch.float32)
    model.config = replace(model.config, **other)
    return fingerprint(model)


def test_where_training_would_start_is_no_part_of_a_base(tmp_path: Path) -> None:
    for init in (Init(std=0.02), Init(std=0.02, residual_scaling=True), Init(std=0.3, table_std=0.1)):
        assert printed(init=init) == printed()
    model, other = built("deberta_v2", torch.float32), built("deberta_v2", torch.float32)
    model.config, other.config = (replace(model.config, init=Init(std=std)) for std in (0.02, 0.03))
    add_adapters(model)
    save_adapters(model, tmp_path)
    assert len(load_adapters(other, tmp_path)) == 4


def test_every_other_fact_is_part_of_a_base() -> None:
    facts = built("gpt2").config
    assert facts.decoder is not None
    others = (
        {"tokens": Tokens(eos=3)},
        {"norm": replace(facts.norm, eps=1e-3)},
        {"decoder": change(facts.decoder, "attention.windows", (4, None))},
        {"decoder": change(facts.decoder, "attention.scale", 1.0)},
        {"head": change(facts.head, "scale", 0.5)},
        {"head": None},
    )
    assert len({printed(), *(printed(**other) for other in others)}) == 7


def test_facts_that_come_later_leave_old_fingerprints_as_they_are() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Later(Tokens):
        mask: int | None = None

    Later.__name__ = "Tokens"
    assert printed(tokens=Later(eos=3)) == printed(tokens=Tokens(eos=3))
    assert printed(tokens=Later(eos=3, mask=4)) != printed(tokens=Tokens(eos=3))


def test_damaged_files_change_nothing(tmp_path: Path) -> None:
    model = built("deberta_v2", torch.float32)
    with pytest.raises(WeightsError, match=r"adapters\.json: there is no such file"):
        load_adapters(model, tmp_path)
    save_adapters(trained(), tmp_path)
    file = tmp_path / "adapters.json"
    whole = json.loads(file.read_text())
    for text, message in (("{", "damaged"), ("[]", "damaged"), (json.dumps(whole | {"format": 2}), "another version")):
        file.write_text(text)
        with pytest.raises(WeightsError, match=message):
            load_adapters(model, tmp_path)
    file.write_text(json.dumps(whole | {"rank": 3}))
    with pytest.raises(WeightsError, match="do not have the shapes"):
        load_adapters(model, tmp_path)
    file.write_text(json.dumps(whole | {"targets": whole["targets"][1:]}))
    with pytest.raises(WeightsError, match="only one of the two has"):
        load_adapters(model, tmp_path)
    assert not adapted(model)
    file.write_text(json.dumps(whole))
    (tmp_path / "adapters.safetensors").write_bytes(b"x" * 40)
    with pytest.raises(WeightsError):
        load_adapters(model, tmp_path)
    assert not adapted(model)


def test_state_goes_back_into_the_same_adapters() -> None:
    model, other = trained(), trained()
    learn(other, seed=50)
    assert not torch.equal(answer(model), answer(other))
    restore_adapters(other, {name: tensor.clone() for name, tensor in adapter_state(model).items()})
    assert torch.equal(answer(model), answer(other))
    with pytest.raises(WeightsError, match="only one of the two has"):
        restore_adapters(other, {})
    with pytest.raises(ValueError, match="no adapters"):
        adapter_state(built("gpt2"))
