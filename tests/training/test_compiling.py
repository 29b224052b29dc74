"""Compiled in place: the same answers and gradients, the same names, and a handful of graphs for batches of any size.

What compiles runs in a process of its own: the run-time shape checks of the other tests are Python that no compiler can
trace.
"""

import copy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from glassformer import hub
from glassformer.models.transformer import Transformer
from glassformer.nn.cache import KVCache
from glassformer.nn.kernels.compiler import VERSIONS
from glassformer.objectives.causal_lm import NextToken
from glassformer.training import block_calls
from glassformer.training.block_calls import (
    Call,
    checkpoint_blocks,
    compile_model,
    missing_compiler,
)
from glassformer.training.loop import evaluate
from tests.configs import CONFIGS, tokens
from tests.helpers import largest_difference, randomise, right_padded
from tests.training.small_sessions import small, trained
from tests.training.test_activation_checkpointing import gradients, made, model_inputs

RAGGED = ((2, 7), (3, 5), (4, 9), (2, 4), (5, 6), (3, 11), (6, 8), (2, 13))  # rows and tokens of batches


@pytest.fixture
def without_compilers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from torch._inductor import config

    monkeypatch.setattr(block_calls, "HAS_TRITON", False)
    with config.patch({"cpp.cxx": ("/nonexistent/g++",)}):
        yield


@pytest.mark.usefixtures("without_compilers")
def test_a_machine_without_compilers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {device: missing_compiler(torch.device(device)) or "" for device in ("cpu", "cuda")}
    assert missing["cpu"].startswith("torch.compile needs a C++ compiler: install one")
    assert missing["cuda"].startswith("torch.compile needs")
    monkeypatch.setattr(block_calls, "HAS_TRITON", True)
    assert missing_compiler(torch.device("cuda")) is None


@pytest.mark.usefixtures("without_compilers")
def test_a_run_that_cannot_be_compiled_does_not_begin(tmp_path: Path) -> None:
    recipe = small("lm-bytes", tmp_path, "run.compile=true")
    with pytest.raises(ValueError, match=r"run\.compile=true is not possible: torch\.compile needs a C\+\+ compiler"):
        trained(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Counting:
    """A backend that runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        del inputs
        self.graphs += 1
        return graph.forward


def layered(layers: int) -> Transformer:
    facts = CONFIGS["llama"]
    assert facts.decoder is not None
    model = Transformer(replace(facts, decoder=replace(facts.decoder, layers=layers)))
    randomise(model)
    return model


def equal(model: Transformer, plain: Transformer, inputs: dict[str, Any], bound: float = 1e-5) -> None:
    (item, _), (other, _) = (gradients(m, lambda m=m: m(**inputs)) for m in (model, plain))
    assert item.keys() == other.keys()
    wrong = {name: gap for name in item if (gap := largest_difference(item[name], other[name])) > bound}
    assert not wrong, wrong


# ---- each runs in a process of its own


def settles_for_ragged_batches(layers: int) -> None:
    """Padded batches of eight sizes: one graph serves all blocks, a second or third all sizes, and no more come."""
    counting, model, plain = Counting(), layered(layers).train(), layered(layers).train()
    compile_model(model, backend=counting)
    counts = []
    for rows, length in RAGGED:
        equal(model, plain, model_inputs(model, rows, length))
        counts.append(counting.graphs)
    assert counts[0] == 1, counts
    assert counts[-1] == counts[3] <= 3, counts


def serves_every_way_in() -> None:
    """An encoder-decoder by its call and by its halves; chunked losses; evaluation; with a cache."""
    counting, model, plain = Counting(), made("t5").eval(), made("t5").eval()
    compile_model(model, backend=counting, dynamic=True)
    inputs = model_inputs(model, 3, 6)
    equal(model, plain, inputs)
    after = counting.graphs
    assert 2 <= after <= 6, after

    def halves(item: Transformer) -> Any:
        memory = item.encode(inputs["ids"], inputs["mask"])
        hidden = item.decode(inputs["target"], inputs["target_mask"], memory=memory, memory_mask=inputs["mask"])
        return item.apply_head(hidden, inputs["target_mask"])

    assert largest_difference(halves(model), halves(plain)) < 1e-5
    assert counting.graphs == after
    with torch.no_grad():
        memory = model.encode(inputs["ids"], inputs["mask"])
        before, cache = counting.graphs, KVCache()
        steps = [
            model.decode(inputs["target"][:, at : at + 1], memory=memory, memory_mask=inputs["mask"], cache=cache)
            for at in range(4)
        ]
        assert counting.graphs == before
        whole = plain.decode(inputs["target"][:, :4], memory=memory, memory_mask=inputs["mask"])
        assert largest_difference(torch.cat(steps, 1), whole) < 1e-5


def serves_objectives() -> None:
    counting, model, plain = Counting(), layered(2), layered(2)
    compile_model(model, backend=counting)
    rows = [tokens(length, seed=length) for length in (5, 9, 7)]
    for objective in (NextToken(), NextToken(chunk=4)):
        batch = objective.prepare(rows, torch.Generator().manual_seed(0))
        item, other = (evaluate(m, objective, [batch]).loss for m in (model, plain))
        assert abs(item - other) < 1e-6
        assert counting.graphs == 1, counting.graphs


def recomputes_what_is_compiled(backend: str) -> None:
    """Dropout falls on the same values when a compiled block runs again, and less is held."""
    model, plain = made("gpt2"), made("gpt2")
    inputs = model_inputs(plain, 3, 12)
    expected, before = gradients(plain, lambda: plain(**inputs))
    checkpoint_blocks(model)
    compile_model(model, backend=backend, dynamic=True)
    actual, after = gradients(model, lambda: model(**inputs))
    wrong = {name: gap for name in expected if (gap := largest_difference(actual[name], expected[name])) > 1e-6}
    assert not wrong, wrong
    assert after < 0.4 * before, (before, after)


def compiles_the_whole() -> None:
    torch._dynamo.reset()
    counting, model, plain = Counting(), layered(3), layered(3)
    compile_model(model, "whole", backend=counting, dynamic=True)
    for rows, length in RAGGED[:4]:
        equal(model, plain, model_inputs(model, rows, length))
    assert counting.graphs == 1, counting.graphs
    ids, cache = tokens(2, 4), KVCache()
    assert largest_difference(model.apply_head(model.decode(ids)), plain(ids)) < 1e-5
    assert largest_difference(model(ids, cache=cache), plain(ids)) < 1e-5
    assert counting.graphs == 1, counting.graphs


def works_with_the_default_backend() -> None:
    model, plain = layered(3).train(), layered(3).train()
    checkpoint_blocks(model)
    compile_model(model)
    for rows, length in RAGGED[:4]:
        equal(model, plain, model_inputs(model, rows, length), 1e-4)
        with torch.autocast("cpu", torch.bfloat16):
            low = model(tokens(rows, length), right_padded(*[length] * rows, width=length))
        assert largest_difference(low, plain(tokens(rows, length))) < 0.3


def elsewhere(call: str) -> str:
    code = f"from tests.training import test_compiling as t; t.{call}; print('fine')"
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    return result.stdout.strip() or result.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        "settles_for_ragged_batches(2)",
        "settles_for_ragged_batches(5)",
        "serves_every_way_in()",
        "serves_objectives()",
        "recomputes_what_is_compiled('eager')",
        "recomputes_what_is_compiled('aot_eager')",
        "compiles_the_whole()",
    ],
)
def test_compiled(call: str) -> None:
    assert elsewhere(call) == "fine"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's default backend needs a C++ compiler")
def test_compiled_by_the_default_backend() -> None:
    assert elsewhere("works_with_the_default_backend()") == "fine"


# ---- what does not compile anything yet


@pytest.mark.parametrize("parts", ["blocks", "whole"])
def test_names_types_and_files_stay(parts: Any, tmp_path: Path) -> None:
    model, plain = layered(2), layered(2)
    compile_model(model, parts, backend="eager")
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [type(part) for part in model.modules()] == [type(part) for part in plain.modules()]
    hub.save(model, tmp_path)
    assert torch.equal(hub.load(tmp_path).model(tokens(1, 4)), plain(tokens(1, 4)))
    twin = copy.deepcopy(model)
    assert not any(isinstance(part._compiled_call_impl, Call) for part in twin.modules())
    assert torch.equal(twin(tokens(1, 4)), plain(tokens(1, 4)))
    assert torch._dynamo.config.recompile_limit >= VERSIONS


def standing(model: torch.nn.Module) -> list[tuple[bool, bool]]:
    calls = [part._compiled_call_impl for part in model.modules()]
    return [(call.compiled is not None, call.recomputes) for call in calls if isinstance(call, Call)]


def test_blocks_are_compiled_and_recomputed_in_either_order() -> None:
    model = layered(2)
    compile_model(model, backend="eager")
    assert standing(model) == [(True, False)] * 2
    checkpoint_blocks(model)
    assert standing(model) == [(True, True)] * 2
    model = layered(2)
    checkpoint_blocks(model)
    assert standing(model) == [(False, True)] * 2
    compile_model(model, backend="eager")
    assert standing(model) == [(True, True)] * 2


def test_one_graph_would_lose_what_blocks_do() -> None:
    model = layered(2)
    checkpoint_blocks(model)
    with pytest.raises(ValueError, match='would not recompute; use parts="blocks"'):
        compile_model(model, "whole", backend="eager")
    model = layered(2)
    compile_model(model, "whole", backend="eager")
    with pytest.raises(ValueError, match="the whole model is compiled as one"):
        checkpoint_blocks(model)


def test_wrong_wishes() -> None:
    with pytest.raises(ValueError, match="this Linear has no blocks"):
        compile_model(torch.nn.Linear(2, 2))
    model = layered(2)
    model.decoder.blocks[1].compile(backend="eager")
    with pytest.raises(ValueError, match="this Block is compiled already"):
        compile_model(model, backend="eager")
