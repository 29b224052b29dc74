"""Which steps become CUDA graphs, and when graphs are forgotten; a step that counts calls stands for a recorded one."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer import Transformer
from glassformer.config import BlockSparse
from glassformer.nn.observer import thread_observers
from glassformer.objectives.base import Batch
from glassformer.objectives.causal_lm import NextToken
from glassformer.training import capture
from glassformer.training.capture import MAX_EXACT_SHAPES, CapturedSteps, CaptureError, obstacles, recording
from glassformer.training.loop import TrainModule
from tests.configs import CONFIGS, LONGEST, built, tokens
from tests.helpers import types_unchecked
from tests.objectives.models import seeded
from tests.objectives.test_objectives import OBJECTIVES

CPU = torch.device("cpu")


@dataclass
class Counted:
    """Steps, ordinary and recorded ones."""

    steps: CapturedSteps
    optimizer: torch.optim.Optimizer
    log: list[str]

    def made(self, *batches: Batch) -> str:
        """How a step with these micro-batches was made."""
        self.log.clear()
        self.steps(batches, {"next": 1})
        return " ".join(self.log)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded steps are called; what needs a GPU is left out."""

    class Recorded:
        def __init__(self, step: Any, *_: Any) -> None:
            self.step = step

        def replay(self, *_: Any) -> Any:
            self.step.__self__.log.append("graph")
            return None, torch.zeros(1)

    monkeypatch.setattr(capture, "_Graph", Recorded)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)


class Step:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.log = model, optimizer, list[str]()

    def make(self, *_: Any) -> Any:
        self.log.append("step")
        for weight in self.model.parameters():
            weight.grad = torch.zeros_like(weight)
        self.optimizer.step()
        return None, torch.zeros(1)


def counted(model: nn.Module, trained: Iterable[Tensor] | None = None) -> Counted:
    optimizer = torch.optim.AdamW(model.parameters() if trained is None else trained, 0.1, fused=True)
    step = Step(model, optimizer)
    return Counted(CapturedSteps(step.make, model, [optimizer], CPU), optimizer, step.log)


def rows(*lengths: int) -> Batch:
    return NextToken().prepare([torch.arange(length + 1) % 31 for length in lengths], seeded())


@pytest.mark.usefixtures("on_cpu")
def test_the_second_batch_of_a_shape_is_recorded() -> None:
    run = counted(built("gpt2"))
    assert [run.made(rows(n, n)) for n in (5, 6, 5, 5, 6)] == ["step", "step", "graph", "graph", "graph"]
    assert run.made(rows(6, 5)) == "step"  # the same size, with a mask
    assert run.made(rows(5, 5), rows(5, 5)) == "step"  # two micro-batches


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("moved", ["weight", "frozen weight", "buffer", "state"])
def test_graphs_are_forgotten_when_what_they_read_is_elsewhere(moved: str) -> None:
    model = built("gpt2")
    model.register_buffer("table", torch.zeros(3))
    first, *others = model.parameters()
    run = counted(model, others if moved == "frozen weight" else [first, *others])
    assert [run.made(rows(5, 5)) for _ in range(2)] == ["step", "graph"]
    pool = run.steps._pool
    if moved.endswith("weight"):
        first.data = first.data.clone()
    elif moved == "buffer":
        model.table = torch.zeros(3)
    else:
        run.optimizer.load_state_dict({**run.optimizer.state_dict(), "state": {}})
    assert [run.made(rows(5, 5)) for _ in range(3)] == ["step", "graph", "graph"]
    assert run.steps._pool is not pool


@pytest.mark.usefixtures("on_cpu")
def test_many_shapes_become_few_but_no_longer_than_the_positions() -> None:
    run = counted(built("gpt2"))
    for length in range(8, 8 + MAX_EXACT_SHAPES + 1):
        assert run.made(rows(length)) == "step"
    assert run.made(rows(9)) == "step"
    assert run.made(rows(10)) == "graph"  # padded to the same length
    assert LONGEST == 24
    assert rows(17).enlarged(20).inputs["ids"].shape == (1, 20)
    assert rows(21).enlarged(20).inputs["ids"].shape == (1, 21)
    assert [run.made(rows(LONGEST - n)) for n in (0, 1)] == ["step", "graph"]
    assert [run.made(rows(LONGEST + 8)) for _ in range(2)] == ["step", "step"]  # the model reads these positions


@pytest.mark.usefixtures("on_cpu")
def test_a_model_with_windows_reads_masks() -> None:
    run = counted(built("gpt_neo"))
    assert [run.made(rows(9, 4)) for _ in range(3)] == ["step"] * 3
    assert [run.made(rows(9, 9)) for _ in range(2)] == ["step", "graph"]


@pytest.mark.usefixtures("on_cpu")
def test_a_step_that_python_code_watches_is_an_ordinary_one() -> None:
    model = built("gpt2")
    run, part, weight = counted(model), model.decoder, next(model.parameters())
    assert [run.made(rows(5, 5)) for _ in range(2)] == ["step", "graph"]
    assert isinstance(part, nn.Module)
    for register in (
        part.register_forward_pre_hook,
        part.register_forward_hook,
        part.register_full_backward_hook,
        weight.register_hook,
        weight.register_post_accumulate_grad_hook,
    ):
        handle = register(lambda *_: None)
        assert run.made(rows(5, 5)) == "step"
        handle.remove()
        assert run.made(rows(5, 5)) == "graph"
    thread_observers()[model.model_key] = lambda _: None
    try:
        assert run.made(rows(5, 5)) == "step"
    finally:
        del thread_observers()[model.model_key]


@pytest.mark.usefixtures("on_cpu")
def test_hooks_of_optimizers_and_of_all_modules_are_called() -> None:
    run = counted(built("gpt2"))
    assert [run.made(rows(5, 5)) for _ in range(2)] == ["step", "graph"]
    for register in (
        run.optimizer.register_step_pre_hook,
        run.optimizer.register_step_post_hook,
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
        register_module_forward_pre_hook,
        register_module_forward_hook,
        register_module_full_backward_pre_hook,
        register_module_full_backward_hook,
    ):
        handle = register(lambda *_: None)  # type: ignore[operator]
        try:
            assert run.made(rows(5, 5)) == "step"
        finally:
            handle.remove()
        assert run.made(rows(5, 5)) == "graph"


def _exchange_groups(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[:] = [dict(group) for group in optimizer.param_groups]  # as a loaded state does


CHANGES: dict[str, Callable[[Any, torch.optim.Optimizer], object]] = {
    "weight decay": lambda _, optimizer: optimizer.param_groups[0].update(weight_decay=0.5),
    "betas": lambda _, optimizer: optimizer.param_groups[0].update(betas=(0.5, 0.5)),
    "other groups": _exchange_groups,
    "a frozen weight": lambda model, _: next(model.parameters()).requires_grad_(False),
    "formulas": lambda model, _: setattr(model, "fused", False),
    "formulas in one part": lambda model, _: setattr(model.decoder.blocks[0].attention.q, "fused", False),
}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("change", CHANGES)
def test_graphs_are_forgotten_when_a_setting_changes(change: str) -> None:
    model = built("gpt2")
    run = counted(model)
    assert [run.made(rows(5, 5)) for _ in range(2)] == ["step", "graph"]
    run.optimizer.param_groups[0]["lr"] = 0.3  # the one that a graph takes from outside
    assert run.made(rows(5, 5)) == "graph"
    CHANGES[change](model, run.optimizer)
    assert [run.made(rows(5, 5)) for _ in range(3)] == ["step", "graph", "graph"]


@pytest.mark.usefixtures("on_cpu")
def test_an_ordinary_step_follows_a_change_where_nothing_is_recorded_yet() -> None:
    """It makes the states of weights that were frozen before; a graph would make them anew at every replay."""
    model = built("gpt2")
    first = next(model.parameters()).requires_grad_(False)
    run = counted(model)
    assert run.made(rows(5, 5)) == "step"
    first.requires_grad_(True)
    assert [run.made(rows(5, 5)) for _ in range(2)] == ["step", "graph"]


def test_block_sparse_attention_is_not_one_graph() -> None:
    config = CONFIGS["bert"]
    assert config.encoder is not None
    attention = replace(config.encoder.attention, windows=(BlockSparse(block=2, random=1),) * config.encoder.layers)
    model = Transformer(replace(config, encoder=replace(config.encoder, attention=attention)))
    objective = OBJECTIVES["masked"][0]
    assert obstacles(model, objective) == ["block-sparse attention reads the lengths of rows"]
    with pytest.raises(ValueError, match=r"not one graph: block-sparse .*Compile the blocks alone"):
        TrainModule(model, objective).compile_whole()


# ---- recordings that fail


class EndFails:
    """A CUDA graph whose recording cannot be ended, as after an error inside."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")


@pytest.mark.parametrize("ends", [True, False])
@types_unchecked()  # there is no graph without a GPU
def test_a_failed_recording_says_what_to_do_and_leaves_the_stream(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            left.append(self.name)

    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "the one before")
    monkeypatch.setattr(torch.cuda, "stream", Stream)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext() if ends else EndFails())
    graph: Any = None
    remedy = r"cannot be recorded as a CUDA graph; set run\.capture=false"
    with pytest.raises(CaptureError, match=remedy), recording(graph, CPU):
        raise RuntimeError("operation not permitted when stream is capturing")
    with pytest.raises(torch.OutOfMemoryError, match="tried to allocate"), recording(graph, CPU):
        raise torch.OutOfMemoryError("tried to allocate 3 GiB")
    assert left == ["the one before"] * 2


# ---- that nothing else reads values, or copies them from the CPU


READS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "lift_fresh"}  # the last is ``torch.tensor(1)``


class Reads(TorchDispatchMode):
    """Collects operators for which a GPU would wait, and which a CUDA graph refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator._schema.name.partition("::")[2]
        indices = [x for arg in args if isinstance(arg, list | tuple) for x in arg if isinstance(x, Tensor)]
        if name in READS or (name.startswith("index") and any(x.dtype == torch.bool for x in indices)):
            self.found.add(name)
        return operator(*args, **(kwargs or {}))


def tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    else:
        for part in output if isinstance(output, tuple) else vars(output).values():
            yield from tensors(part) if part is not None else ()


@pytest.mark.parametrize("name", CONFIGS)
def test_models_read_no_values(name: str) -> None:
    model = built(name, torch.float32).train()
    has_windows = any(window is not None for window in capture._windows(model))
    inputs = {"ids": tokens(2, LONGEST)}
    if model.family == "encoder-decoder":
        inputs["target"] = tokens(2, LONGEST)
    mask = torch.arange(LONGEST) < torch.tensor([[LONGEST], [7]])
    masks = {{"ids": "mask", "target": "target_mask"}[side]: mask for side in inputs}
    for more in ({},) if has_windows else ({}, masks):
        with Reads() as reads:
            sum(part.sum() for part in tensors(model(**inputs, **more))).backward()  # type: ignore[union-attr]
        assert not reads.found


@pytest.mark.parametrize("name", [n for n, (objective, *_) in OBJECTIVES.items() if getattr(objective, "traceable", 0)])
def test_traceable_losses_read_no_values(name: str) -> None:
    objective, examples, make, _ = OBJECTIVES[name]
    batch = objective.prepare(examples, seeded())
    counts = {key: torch.tensor(count) for key, count in batch.counts.items()}
    found = {key: torch.arange(labels.numel()) for key, labels in batch.labels.items()}  # as ``to`` finds them
    module = TrainModule(make().train(), objective)
    with Reads() as reads:
        share, _ = module(replace(batch, counts=counts, counted=found), counts)
        share.backward()
    assert not reads.found
