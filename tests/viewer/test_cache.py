"""What a model's page keeps between queries stays within its limits, for any number of texts."""

from dataclasses import dataclass

import pytest
import torch

from glassformer.viewer.cache import Cache, size_of
from glassformer.viewer.inputs import Input
from glassformer.viewer.queries_attention import Summary
from tests.viewer.conftest import ask, tiny

SMALL = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 400}
TEXTS = 60


def test_the_size_of_a_value_is_that_of_everything_in_it() -> None:
    @dataclass
    class Both:
        tensor: torch.Tensor
        text: str

    tensor = torch.zeros(1000)
    assert size_of(tensor) == 4000
    assert size_of(tensor[:1]) == 4000  # a view keeps the whole tensor
    assert 4000 + 10_000 < size_of(Both(tensor, "a" * 10_000)) < 4000 + 10_500
    assert size_of({"a": [tensor, (tensor, {"b": tensor})]}) > 12_000
    assert size_of(tuple(range(1000, 2000))) >= 1000 * 8
    assert size_of(Input("a" * 1000)) > 1000


def test_values_without_a_size_are_measured() -> None:
    held = Cache(entries=100, size=10_000)
    for number in range(20):
        held.get(number, lambda: torch.zeros(500))
    assert 2000 <= held.used <= 10_000
    assert held.find(19) is not None
    assert held.find(0) is None
    held.put("large", torch.zeros(5000))  # alone, a value may be larger
    assert held.find("large") is not None
    assert held.find(19) is None


def test_many_texts_take_no_more_memory_than_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = tiny("gpt2", SMALL)
    limits = {"results": 2**16, "_values": 2**17, "_sequences": 2**14}
    for name, size in limits.items():
        assert getattr(subject, name).size <= 2**29
        monkeypatch.setattr(subject, name, Cache(getattr(subject, name).entries, size))
    for number in range(TEXTS):
        text = f"a little girl had {number} dogs and a cat {'and a bird ' * (number % 7)}"
        for query in ("attention_overview", "attention"):
            ask(subject, query, text)
    for name, size in limits.items():
        assert size // 2 < getattr(subject, name).used <= size, name
    # Beside its own account: the tensors that are really there.
    summaries = [value for value, _ in subject.results._held.values() if isinstance(value, Summary)]
    assert 0 < sum(each.thumbs.nbytes for each in summaries) <= limits["results"]
    values = [value for value, _ in subject._values._held.values() if isinstance(value, torch.Tensor)]
    assert 0 < sum(value.nbytes for value in values) <= limits["_values"]
