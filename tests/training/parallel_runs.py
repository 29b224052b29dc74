"""Small runs for one process or for several: what is trained, on what, and what a run tells of itself."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from glassformer import config
from glassformer.models.transformer import Transformer
from glassformer.objectives.base import Batch, Objective
from glassformer.objectives.causal_lm import NextToken
from glassformer.objectives.masked_lm import MaskedLM
from glassformer.objectives.masking import Masking, MaskVocabulary
from glassformer.objectives.replaced_tokens import GeneratorAndDiscriminator, ReplacedTokens
from glassformer.objectives.seq2seq import SequenceToSequence, SourceTarget
from glassformer.training import checkpoint_contents, parallel
from glassformer.training.block_calls import checkpoint_blocks, compile_model
from glassformer.training.checkpoint_contents import read_run, write_run
from glassformer.training.checkpoint_folders import Checkpoints
from glassformer.training.loop import Settings, Trainer, evaluate
from glassformer.training.optim import adamw, muon_and_adamw, parameter_names
from glassformer.training.parallel import (
    Process,
    all_gather,
    full_tensor,
    is_shard,
    on_rank_zero,
    rank_zero_first,
    shard_like,
)
from glassformer.training.schedules import schedule
from tests.configs import CONFIGS

MICRO_BATCHES = 4  # of a whole step
ALONE = Process(torch.device("cpu"))
FINGERPRINT = {"data": "uneven", "batch": {"micro_batches": MICRO_BATCHES}}
MASKING = Masking(vocabulary=MaskVocabulary(31, 30, frozenset(range(3))), share=0.4)
OBJECTIVES: dict[str, Objective[Any]] = {
    "next": NextToken(),
    "unused": NextToken(),
    "chunks": NextToken(chunk=3),  # looks inside the model, past its forward
    "shared blocks": MaskedLM(masking=MASKING),
    "two stacks": SequenceToSequence(start=2),
    "two models": ReplacedTokens(masking=MASKING, weight=5.0),
}


def model_of(what: str, dropout: float = 0.0) -> nn.Module:
    if what == "shared blocks":
        return Transformer(CONFIGS["albert"])
    if what == "two stacks":
        return Transformer(CONFIGS["t5"])
    if what == "two models":
        task = config.TaskHead(task="replaced", labels=("replaced",), hidden="gelu")
        return GeneratorAndDiscriminator(
            Transformer(CONFIGS["roberta"]), Transformer(replace(CONFIGS["roberta"], head=task)), "tied"
        )
    facts = CONFIGS["gpt2"]
    assert facts.decoder is not None
    facts = replace(facts, decoder=replace(facts.decoder, dropout=dropout))
    if what == "unused":
        facts = replace(facts, embed=replace(facts.embed, languages=3))  # and no batch says a language
    return Transformer(facts)


class Uneven:
    """Batches made from their own number, of very different sizes; process ``rank`` of ``world`` gets its share."""

    def __init__(self, what: str, rank: int = 0, world: int = 1) -> None:
        self.what, self.rank, self.world, self.number = what, rank, world, 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        made = batch(self.what, self.number + self.rank)
        self.number += self.world
        return made

    def state(self) -> dict[str, Any]:
        return {"number": self.number}

    def resume(self, state: Mapping[str, Any]) -> None:
        self.number = state["number"]


def batch(what: str, number: int) -> Batch:
    generator = torch.Generator().manual_seed(number)
    lengths = torch.randint(3, 12, (int(torch.randint(1, 4, (), generator=generator)),), generator=generator).tolist()
    rows: list[Any] = [torch.randint(3, 29, (n,), generator=generator) for n in lengths]
    if what == "two stacks":
        rows = [SourceTarget(row, row.flip(0)[: 2 + len(row) // 2]) for row in rows]
    return OBJECTIVES[what].prepare(rows, generator)


class Plan(NamedTuple):
    """What a run is like."""

    what: str = "next"
    kind: parallel.ParallelKind = "ddp"
    optimizer: str = "adamw"
    precision: Any = "float32"
    dtype: torch.dtype = torch.float64
    steps: int = 3
    dropout: float = 0.0
    recomputes: bool = False
    compiles: bool = False


class RunRecord(NamedTuple):
    """What a run says of itself."""

    losses: list[float]
    norms: list[float]
    tokens: list[int]
    parts: list[dict[str, float]]
    weights: dict[str, Tensor]
    notes: list[str]
    drawn: float
    shards: int  # of its parameters, how many it holds a part of


def made(process: Process, plan: Plan) -> Trainer:
    torch.manual_seed(process.rank)  # the weights of the first are meant to count
    model = model_of(plan.what, plan.dropout).to(plan.dtype)
    if plan.recomputes:
        checkpoint_blocks(model)
    if plan.compiles:
        compile_model(model, backend="eager")
    wrap = parallel.wrap(plan.kind, model)
    settings = Settings(
        steps=plan.steps,
        accumulate=parallel.micro_batches_per_process(MICRO_BATCHES, process.world),
        precision=plan.precision,
        clip=0.5,
        schedule=schedule("linear", warmup=0.3, start=0.3),
    )
    batches = Uneven(plan.what, process.rank, process.world)
    return Trainer(model, OBJECTIVES[plan.what], batches, optimizers(model, plan.optimizer), settings, wrap=wrap)


def optimizers(model: nn.Module, name: str) -> list[Optimizer]:
    if name == "sgd":
        return [torch.optim.SGD(model.parameters(), 0.5)]
    return [adamw(model, 0.01)] if name == "adamw" else muon_and_adamw(model, 0.01)


def record_run(trainer: Trainer, notes: list[str] | None = None, steps: int | None = None) -> RunRecord:
    """Train to the end, or for some steps."""
    reports = list(trainer) if steps is None else [trainer.advance() for _ in range(steps)]
    with torch.random.fork_rng([]):  # nobody draws another number because this one was looked at
        drawn = float(torch.rand(()))
    return RunRecord(
        [r.loss for r in reports],
        [r.grad_norm for r in reports],
        [r.tokens for r in reports],
        [r.metrics for r in reports],
        {name: full_tensor(tensor).clone() for name, tensor in trainer.model.state_dict().items()},
        notes or [],
        drawn,
        sum(is_shard(p) for p in trainer.model.parameters()),
    )


def train(process: Process, plan: Plan) -> RunRecord:
    return record_run(made(process, plan))


class Average:
    """A mean of weights beside a run, and a count: something that must be saved with it."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = parameter_names(model)
        self.means = {name: torch.zeros_like(p).detach() for p, name in self.weights.items()}
        self.count = 0

    @torch.no_grad()
    def update(self) -> None:
        self.count += 1
        for p, name in self.weights.items():
            self.means[name].lerp_(p, 0.25)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self.means, {"count": self.count}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        for name, mean in self.means.items():
            mean.copy_(tensors[name])
        self.count = values["count"]


def train_and_save(process: Process, plan: Plan, folder: Path, stop: int) -> RunRecord:
    """Some steps of a run, and a checkpoint."""
    trainer, kept = made(process, plan), Checkpoints(folder)
    average = Average(trainer.model)
    message = record_run(trainer, steps=stop)
    average.update()
    kept.write(stop, lambda path: write_run(path, trainer, FINGERPRINT, extras={"average": average}))
    return message


def go_on(process: Process, plan: Plan, folder: Path) -> tuple[RunRecord, dict[str, Tensor]]:
    """The rest of the run; and the average as it came out of the checkpoint."""
    trainer, kept = made(process, plan), Checkpoints(folder)
    average = Average(trainer.model)
    kept.tidy()
    last = kept.latest()
    assert last is not None
    notes = read_run(last, trainer, FINGERPRINT, extras={"average": average})
    means = {name: full_tensor(mean) for name, mean in average.means.items()}
    return record_run(trainer, notes), means


def die_while_writing(process: Process, plan: Plan, folder: Path, victim: int, number: int) -> str:
    """A first checkpoint, and a second during which a process is gone as the n-th file is written."""
    trainer, kept = made(process, plan), Checkpoints(folder)
    trainer.advance()
    kept.write(1, lambda path: write_run(path, trainer, FINGERPRINT))
    real, left = checkpoint_contents.write_weights, number

    def mortal(*inputs: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os._exit(9)
        return real(*inputs, **named)

    if process.rank == victim == 0:
        checkpoint_contents.write_weights = mortal
    trainer.advance()
    if process.rank == victim != 0:
        os._exit(9)
    kept.write(2, lambda path: write_run(path, trainer, FINGERPRINT))
    return "it was written"


def full_disk(process: Process, plan: Plan, folder: Path) -> str:
    """The first process cannot write; what the others say."""
    trainer, kept = made(process, plan), Checkpoints(folder)
    trainer.advance()
    kept.write(1, lambda path: write_run(path, trainer, FINGERPRINT))

    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    checkpoint_contents.write_weights = no_room  # type: ignore[assignment]
    trainer.advance()
    try:
        kept.write(2, lambda path: write_run(path, trainer, FINGERPRINT))
    except Exception as error:
        trainer.advance()  # they are still together
        return f"{type(error).__name__}: {error}"
    return "it was written"


def die(process: Process, plan: Plan) -> str:
    trainer = made(process, plan)
    trainer.advance()
    if process.rank == 1:
        os._exit(9)
    trainer.advance()
    return "it went on alone"


def fail(process: Process) -> str:
    """An error in one process, while the other waits for it."""
    if process.rank == 1:
        raise KeyError("mine")
    torch.distributed.barrier()
    return "it went on alone"


def evaluate_and_train(process: Process, plan: Plan, batches: int) -> list[Any]:
    """Evaluate before a step and after it; each process has its share of the batches, and may have none."""
    trainer = made(process, plan)
    objective, result = OBJECTIVES[plan.what], []
    for _ in range(2):
        numbers = parallel.own_batches(range(100, 100 + batches))
        result.append(evaluate(trainer.model, objective, (batch(plan.what, number) for number in numbers)))
        result.append(trainer.advance().loss)
    return result


def draw(_: Process, plan: Plan) -> tuple[float, float]:
    """A random number before and after the model is wrapped; the seeds are the same."""
    torch.manual_seed(7)
    model = model_of(plan.what)
    before = float(torch.rand(()))
    parallel.wrap(plan.kind, model)
    return before, float(torch.rand(()))


def by_the_first(process: Process) -> list[Any]:
    """Work within work; an error; and something that all would have to take part in."""
    result: list[Any] = []
    on_rank_zero(lambda: on_rank_zero(lambda: result.append(process.rank)))
    result += all_gather(process.rank)
    for work in (lambda: 1 // 0, lambda: all_gather(1)):
        try:
            on_rank_zero(work)
        except Exception as error:
            result.append(f"{type(error).__name__}: {error}")
    return [*result, *all_gather(process.rank)]


def first_and_then(process: Process, folder: Path) -> list[Any]:
    """A file that the first writes slowly and the others read; and an error of the first."""
    done: list[int] = []

    def work() -> str:
        done.append(process.rank)
        if not (folder / "note").exists():
            time.sleep(0.2)
            (folder / "note").write_text(f"by {process.rank}")
            return "written"
        return (folder / "note").read_text()

    result = [rank_zero_first(work), *done]
    try:
        rank_zero_first(lambda: 1 // process.rank)
    except Exception as error:
        result.append(type(error).__name__)
    return result


def share_out(process: Process) -> list[int]:
    """How many bytes a part of a tensor keeps alive, and the part put together again."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (process.world,))
    like = distribute_tensor(torch.zeros(7, 4), mesh, [Shard(0)])
    part: Any = shard_like(torch.arange(28.0).reshape(7, 4), like)
    return [part.to_local().untyped_storage().nbytes(), *full_tensor(part).flatten().int().tolist()]


def wrongly_made(_: Process, how: str) -> None:
    """What Trainer must refuse."""
    model = model_of("next")
    early = optimizers(model, "adamw")
    if how == "optimizer first":
        wrap = parallel.wrap("fsdp", model)
        Trainer(model, NextToken(), Uneven("next"), early, Settings(steps=1), wrap=wrap)
    if how == "no wrap":
        Trainer(model, NextToken(), Uneven("next"), early, Settings(steps=1))
    if how == "seconds":
        Trainer(model, NextToken(), Uneven("next"), early, Settings(seconds=1.0), wrap=parallel.wrap("ddp", model))
    if how == "another model":
        Trainer(model_of("next"), NextToken(), Uneven("next"), [], Settings(steps=1), wrap=parallel.wrap("fsdp", model))


if __name__ == "__main__":
    with parallel.start("cpu", timeout=60) as this:
        torch.set_num_threads(1)
        message = train_and_save(this, Plan(kind="fsdp"), Path(sys.argv[1]), 2)
        if this.is_first:
            print(message.losses)
