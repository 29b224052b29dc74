"""One model used from several threads: each gets what it gets alone, and the model is left as it was."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from glassformer.config import ModelConfig
from glassformer.generation.api import generate, generate_stream
from glassformer.generation.settings import GenerationSettings
from glassformer.models.transformer import Transformer
from glassformer.nn.modes import evaluation_view
from tests.configs import CONFIGS, built, tokens
from tests.helpers import some_at_once

THREADS, ROUNDS = 8, 2
SEARCHES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"beam_size": 3},
    {"contrastive_alpha": 0.5, "top_k": 3},
    {"temperature": 0.7, "top_p": 0.9, "seed": 5},
    {"repetition_penalty": 1.3},
    {"beam_size": 2, "length_penalty": 0.5},
    {"temperature": 1.3, "top_k": 4, "seed": 1},
]


def with_dropout(facts: ModelConfig) -> ModelConfig:
    """Dropout in every place that a config has for it."""
    stacks = {
        name: replace(
            stack,
            dropout=0.3,
            final_dropout=0.2,
            attention=replace(stack.attention, dropout=0.3),
            ffn=replace(stack.ffn, dropout=0.3),
        )
        for name, stack in (("encoder", facts.encoder), ("decoder", facts.decoder))
        if stack is not None
    }
    return replace(facts, embed=replace(facts.embed, dropout=0.3), **stacks)


def state(model: nn.Module) -> list[Any]:
    """All that calls could leave changed."""
    modes = [(name, part.training, sorted(part.__dict__)) for name, part in model.named_modules()]
    return [modes, [(name, id(weight), weight._version) for name, weight in model.named_parameters()]]


def job(model: Transformer, number: int) -> Any:
    """One of several uses: a search, token by token or not, by one of the paths of attention, or a plain forward."""
    settings = GenerationSettings(max_new_tokens=6, **SEARCHES[number % len(SEARCHES)])
    how = {"path": ("sdpa", "eager")[number % 2], "start": None if model.encoder is None else [1]}
    prompts = [[3, 4, 5], [1 + number, 2]]
    if settings.mode != "beam" and number % 3 == 0:
        return [(token.prompt, token.token) for token in generate_stream(model, prompts, settings, **how)]
    return [[text.ids for text in texts] for texts in generate(model, prompts, settings, **how)]


@pytest.mark.parametrize(
    ("config", "training"),
    some_at_once(product(("gpt2", "llama", "t5"), (True, False)), {("llama", False), ("t5", True)}.__contains__),
)
def test_each_thread_gets_what_it_gets_alone(config: str, training: bool) -> None:
    model = built(with_dropout(CONFIGS[config])).train(training)
    before = state(model)
    alone = [job(built(with_dropout(CONFIGS[config])), number) for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(lambda number: job(model, number % THREADS), range(THREADS * ROUNDS)))
    assert together == alone * ROUNDS
    assert state(model) == before


def test_a_view_shares_weights_buffers_and_hooks_and_has_no_dropout() -> None:
    model = built(with_dropout(CONFIGS["gpt2"]))
    assert evaluation_view(model) is model
    model.decoder.blocks[1].train()  # a part is enough
    view, ids = evaluation_view(model), tokens(2, 5)
    assert view is not model
    assert not any(part.training for part in view.modules())
    assert model.decoder.blocks[1].training
    assert [id(weight) for weight in view.parameters()] == [id(weight) for weight in model.parameters()]
    expected = built(with_dropout(CONFIGS["gpt2"]))(ids)
    assert torch.equal(view(ids), expected)
    seen: list[int] = []
    model.decoder.blocks[0].register_forward_hook(lambda *_: seen.append(1))  # later than the view
    model.decoder.norm.weight = nn.Parameter(torch.zeros_like(model.decoder.norm.weight))
    model.decoder.norm.bias = nn.Parameter(torch.zeros_like(model.decoder.norm.bias))
    assert torch.equal(view.decode(ids), torch.zeros(2, 5, model.config.width, dtype=torch.float64))
    assert seen == [1]


def test_a_stream_survives_training_between_two_tokens() -> None:
    model, settings = built(with_dropout(CONFIGS["gpt2"])), GenerationSettings(max_new_tokens=6)
    [[expected]] = generate(model, [[3, 4, 5]], settings)
    stream = generate_stream(model, [[3, 4, 5]], settings)
    found = []
    for token in stream:
        found.append(token.token)
        model.train()
    assert found == expected.ids


def test_a_forward_method_set_on_an_instance() -> None:
    model = built(with_dropout(CONFIGS["gpt2"])).train()
    ffn = model.decoder.blocks[0].ffn
    ffn.forward = ffn.forward  # a bound method goes over to the view
    assert torch.equal(evaluation_view(model)(tokens(1, 3)), built(with_dropout(CONFIGS["gpt2"]))(tokens(1, 3)))
    plain = ffn.forward
    ffn.forward = lambda x: plain(x) * 2  # a function that knows this very module cannot
    with pytest.raises(ValueError, match=r"forward method of a FeedForward was replaced.*call model.eval\(\) first"):
        evaluation_view(model)(tokens(1, 3))
    model.eval()
    assert evaluation_view(model) is model
    view = evaluation_view(model, detached=True)
    assert torch.equal(view(tokens(1, 3)), model(tokens(1, 3)))
    ffn.train()
    with pytest.raises(ValueError, match="was replaced"):
        view(tokens(1, 3))


def test_a_compiled_part_is_viewed_as_the_part_it_was_made_of() -> None:
    model = built(with_dropout(CONFIGS["gpt2"]))
    expected = model(tokens(1, 3))
    model.decoder.blocks[0] = torch.compile(model.decoder.blocks[0], backend="eager")
    model.train()
    assert torch.equal(evaluation_view(model)(tokens(1, 3)), expected)


def test_a_class_that_makes_its_objects_in_another_way() -> None:
    """As PyTorch's sharded modules do: their class replaces that of the module, and its __new__ runs __init__."""

    class Sharded(Transformer):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            made = object.__new__(Transformer)
            made.__init__(*args, **kwargs)
            return made

    model = built(with_dropout(CONFIGS["gpt2"]))
    expected = model(tokens(1, 3))
    model.__class__ = Sharded
    assert torch.equal(evaluation_view(model.train())(tokens(1, 3)), expected)
