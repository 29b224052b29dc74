"""A step of decoding is the model's own modules with a cache: equal to the model without one, hooks and all."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer import load, save
from glassformer.config import LMHead
from glassformer.generation.api import generate
from glassformer.generation.decoder import Decoder
from glassformer.generation.settings import GenerationSettings
from glassformer.models.transformer import Transformer
from glassformer.nn.cache import KVCache
from glassformer.nn.linear import Linear
from glassformer.nn.multi_head import Attention, AttentionContext
from tests.configs import built, random_config, tokens
from tests.helpers import relative_difference, some_at_once
from tests.parity.cases import CASES, FEW, FIRST, one_of_each
from tests.parity.harness import VOCAB, Case
from tests.promises.test_five_promises import built as built_case
from tests.promises.test_five_promises import facts_of

WRITERS = [case for case in CASES if facts_of(case).decoder is not None and isinstance(facts_of(case).head, LMHead)]
# Of the largest vector, in the type of the model; bfloat16 has three digits, and the paths round at different places.
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.01}
LENGTHS = (7, 3, 6)
PIECES = (1, 3, 1, 2)  # new tokens of each call


def memory_of(model: Transformer, rows: int, vocabulary: int) -> dict[str, Tensor]:
    if model.encoder is None:
        return {}
    real = torch.arange(5) < torch.tensor([5, 2, 4][:rows])[:, None]
    with torch.no_grad():
        memory = model.encode(tokens(rows, 5, seed=3) % vocabulary, real)
    return {"memory": memory.where(real.unsqueeze(-1), 0.0), "memory_mask": real}


@torch.inference_mode()
def worst_gap(model: Transformer, *, padded: bool, shared: int = 1, vocabulary: int = VOCAB) -> float:
    """Steps with a cache that evicts against the whole text at once; ``shared`` rows read each memory."""
    rows = len(LENGTHS) if padded else 2
    width = max(LENGTHS)
    mask = (torch.arange(width) >= width - torch.tensor(LENGTHS)[:, None]) if padded else None
    text = tokens(rows, width, seed=1) % vocabulary
    memory = memory_of(model, rows, vocabulary)
    cache, worst = KVCache(width + sum(PIECES), evicts=True), 0.0
    model.decode(text, mask, cache=cache, **memory)
    every = torch.arange(rows).repeat_interleave(shared)
    cache.select(every, memory_rows=torch.arange(rows))
    text, own = text[every], {name: value[every] for name, value in memory.items()}
    mask = None if mask is None else mask[every]
    for number, new in enumerate(PIECES):
        ids = tokens(rows * shared, new, seed=10 + number) % vocabulary
        text = torch.cat((text, ids), dim=1)
        mask = None if mask is None else torch.cat((mask, torch.ones_like(ids, dtype=torch.bool)), dim=1)
        expected = model.decode(text, mask, **own)[:, -new:]
        got = model.decode(ids, cache=cache, **memory)
        assert got.dtype == expected.dtype
        assert cache.length == text.shape[1]
        worst = max(worst, relative_difference(got, expected))
        worst = max(worst, relative_difference(model.apply_head(got), model.apply_head(expected)))
    return worst


@pytest.mark.parametrize("case", one_of_each(WRITERS))
def test_steps_equal_the_whole_text(case: Case) -> None:
    model = built_case(case)
    assert worst_gap(model, padded=False) < BOUNDS[torch.float64]
    assert worst_gap(model, padded=True, shared=1 if model.encoder is None else 3) < BOUNDS[torch.float64]


@pytest.mark.parametrize(
    ("case", "dtype"),
    some_at_once(
        product([case for case in WRITERS if case.id in FIRST], [dtype for dtype in BOUNDS if dtype != torch.float64]),
        lambda given: given[0].id in FEW and given[1] == torch.bfloat16,
    ),
)
def test_steps_equal_the_whole_text_in_narrower_types(case: Case, dtype: torch.dtype) -> None:
    model = built_case(case, dtype)
    assert worst_gap(model, padded=True) < BOUNDS[dtype]


def test_steps_equal_the_whole_text_for_random_config_of_facts() -> None:
    """Dozens of configs: every fact that a decoder can have, alone and together."""
    seen = 0
    for seed in range(150):
        facts = random_config(seed)
        if facts.decoder is None or not isinstance(facts.head, LMHead):
            continue
        if facts.max_length is not None and facts.max_length < max(LENGTHS) + sum(PIECES):
            continue
        seen += 1
        gap = worst_gap(built(facts), padded=seed % 2 == 0, shared=1 + seed % 3, vocabulary=facts.vocab)
        assert gap < BOUNDS[torch.float64], (seed, facts)
    assert seen > 8, seen


@pytest.mark.parametrize("config", ["gpt_neo", "t5", "llama"])
def test_what_stands_in_padding_does_not_matter(config: str) -> None:
    model = built(config)
    mask = torch.arange(7) >= torch.tensor([[0], [4]])
    memory = memory_of(model, 2, 31)
    found = []
    with torch.inference_mode():
        for fill in (0, 17):
            cache, ids = KVCache(10, evicts=True), tokens(2, 7).where(mask, fill)
            model.decode(ids, mask, cache=cache, **memory)
            found.append(model.decode(tokens(2, 3, seed=2), cache=cache, **memory))
    assert torch.equal(*found)


def test_rows_of_memory_must_serve_evenly() -> None:
    model = built("bart")
    memory = memory_of(model, 2, 31)
    with pytest.raises(ValueError, match="2 rows of memory cannot be shared evenly by 3 rows"):
        model.decode(tokens(3, 2), **memory)
    with pytest.raises(ValueError, match="0 rows of memory"):
        model.decode(tokens(3, 2), memory=memory["memory"][:0])


def test_weights_of_rows_that_share_a_memory() -> None:
    cross, memory = built("bart").decoder.blocks[0].cross, torch.randn(2, 5, 16, dtype=torch.float64)
    x = torch.randn(6, 3, 16, dtype=torch.float64)
    context = AttentionContext(memory=memory, path="eager").cross_attention
    out, weights = cross(x, memory, context=context, return_weights=True)
    expected, wanted = cross(x, memory.repeat_interleave(3, 0), context=context, return_weights=True)
    assert relative_difference(out, expected) < 1e-12
    assert weights.shape == wanted.shape
    assert relative_difference(weights, wanted) < 1e-12


# --- models that someone has changed ---------------------------------------------------------------------------------


class Slow(nn.Module):
    """A linear layer with something added: a part from elsewhere, as adapters are."""

    def __init__(self, base: Linear) -> None:
        super().__init__()
        self.base = base
        self.added = nn.Parameter(torch.randn(base.weight.shape[0], dtype=base.weight.dtype) * 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.added


def _hook(model: Transformer) -> None:
    model.decoder.blocks[1].ffn.register_forward_hook(lambda _, __, out: out * 3)


def _hook_before(model: Transformer) -> None:
    model.decoder.blocks[0].attention.register_forward_pre_hook(lambda _, args: (args[0] * 3, *args[1:]))


def _replace(model: Transformer) -> None:
    model.decoder.blocks[1].ffn.down = Slow(model.decoder.blocks[1].ffn.down)


def _patch(model: Transformer) -> None:
    before = model.decoder.blocks[0].forward
    model.decoder.blocks[0].forward = lambda x, *rest, **more: before(x, *rest, **more) * -1


def _subclass(model: Transformer) -> None:
    class Other(Attention):
        def forward(self, *given: Any, **more: Any) -> Any:
            return super().forward(*given, **more) * 3

    model.decoder.blocks[0].attention.__class__ = Other


CHANGES = {"hook": _hook, "pre-hook": _hook_before, "replaced": _replace, "patched": _patch, "subclass": _subclass}


@pytest.mark.parametrize(
    ("config", "change"), some_at_once(product(("gpt2", "bart"), CHANGES), lambda given: given[0] == "gpt2")
)
def test_a_changed_model_writes_as_it_now_computes(config: str, change: str, tmp_path: Path) -> None:
    model, asked = load(save(built(config), tmp_path)).model, GenerationSettings(max_new_tokens=6)
    start = None if model.encoder is None else [2]
    before = generate(model, [[3, 4, 5], [6, 1]], asked, start=start)
    CHANGES[change](model)
    after, eager = (generate(model, [[3, 4, 5], [6, 1]], asked, start=start, path=path) for path in ("sdpa", "eager"))
    assert [text.ids for [text] in after] == [text.ids for [text] in eager]
    assert [text.ids for [text] in after] != [text.ids for [text] in before]
    assert [t.score for [t] in after] == pytest.approx([t.score for [t] in eager], abs=1e-10)


def test_a_hook_sees_every_step_and_is_free_to_go() -> None:
    model, seen = built("gpt2"), []
    hook = model.decoder.blocks[0].register_forward_hook(lambda _, args, __: seen.append(args[0].shape[:2]))
    generate(model, [[3, 4, 5]], GenerationSettings(max_new_tokens=4))
    assert seen == [(1, 3), (1, 1), (1, 1), (1, 1)]
    hook.remove()
    generate(model, [[3, 4, 5]], GenerationSettings(max_new_tokens=4))
    assert len(seen) == 4


def test_a_hook_on_every_module_there_is_fires_too() -> None:
    model, seen = built("gpt2"), []
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, _, __: seen.append(1) if module is model.decoder.blocks[0].ffn else None
    )
    try:
        generate(model, [[3, 4, 5]], GenerationSettings(max_new_tokens=4))
    finally:
        hook.remove()
    assert len(seen) == 4


@pytest.mark.parametrize("config", ["gpt2", "t5"])
def test_changed_weights_are_seen_by_the_next_text(config: str) -> None:
    model, asked = built(config), GenerationSettings(max_new_tokens=5, top_alternatives=3)
    start = None if model.encoder is None else [2]
    first = generate(model, [[3, 4, 5]], asked, start=start)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    second = generate(model, [[3, 4, 5]], asked, start=start)
    assert first != second
    eager = generate(model, [[3, 4, 5]], asked, start=start, path="eager")
    assert second[0][0].ids == eager[0][0].ids
    assert second[0][0].log_probs == pytest.approx(eager[0][0].log_probs, abs=1e-12)
    model.decoder.blocks[0].ffn.up.weight = nn.Parameter(model.decoder.blocks[0].ffn.up.weight * 2)  # another tensor
    third = generate(model, [[3, 4, 5]], asked, start=start)
    assert third[0][0].log_probs != pytest.approx(second[0][0].log_probs, abs=1e-6)


def test_models_that_cannot_write_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a source"):
        Decoder(built("bart"))
    with pytest.raises(ValueError, match="another head"):
        Decoder(built(random_config_with_other_head()))
    with pytest.raises(ValueError, match="no decoder"):
        Decoder(built("bert"), torch.ones(1, 2, dtype=torch.long))


def random_config_with_other_head() -> Any:
    return next(
        config for config in map(random_config, range(200)) if config.family == "decoder" and config.head is None
    )
