"""How long steps of training wait for their batches; a part of ``benchmarks.training``, which says more.

The text is generated, about as much and as long as that of the data sets that the recipes are meant for. Words are made
of syllables and come as often as in real text: the n-th most frequent one with a chance of 1 / n.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from glassformer.data.loader import Loader
from glassformer.objectives.base import Batch
from glassformer.recipes.files import read_recipe
from glassformer.training.build import Run, batch_plan, build_run
from glassformer.training.parallel import Process

ROWS, FEW = 20_000, 200  # of a data set, and of one that only shows that all runs
SYLLABLES = [a + b for a in "bdfgklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "is", "ol", "ut")]


class Writer:
    """Sentences of one language, which is decided by the seed."""

    def __init__(self, seed: int, words: int = 12_000) -> None:
        self._random = random.Random(seed)
        lengths = self._random.choices((1, 2, 3, 4), (1, 4, 4, 2), k=words)
        self._words = ["".join(self._random.choices(SYLLABLES, k=length)) for length in lengths]
        self._chances = list(accumulate(1 / rank for rank in range(1, words + 1)))

    def sentence(self, shortest: int = 5, longest: int = 20) -> str:
        count = self._random.randint(shortest, longest)
        return " ".join(self._random.choices(self._words, cum_weights=self._chances, k=count)).capitalize() + "."


def write_text(folder: Path, rows: int) -> list[str]:
    """About a megabyte of 20,000 sentences. Like the others: the changes that let a recipe read it."""
    writer, path = Writer(0), folder / "text.txt"
    paragraphs = (" ".join(writer.sentence() for _ in range(5)) for _ in range(rows // 5))
    path.write_text("\n\n".join(paragraphs) + "\n")
    return ["data.format=text", f"data.train={path}", "data.documents=file"]


def write_pairs(folder: Path, rows: int) -> list[str]:
    """Lines in two languages that belong to each other by their numbers alone."""
    changes = []
    for side, seed in (("source", 0), ("target", 1)):
        writer, path = Writer(seed), folder / side
        path.write_text("".join(f"{writer.sentence()}\n" for _ in range(rows)))
        changes.append(f"data.train.{side}={path}")
    return changes


def write_labelled(folder: Path, rows: int) -> list[str]:
    """Texts with one of six labels."""
    writer, path = Writer(0), folder / "rows.txt"
    lines = (f"{writer.sentence(5, 35)};{number % 6}\n" for number in range(rows))
    path.write_text("text;label_name\n" + "".join(lines))
    return [f"data.train={path}"]


@dataclass(frozen=True)
class Trial:
    """A recipe, what writes its data, how many steps are timed (one may take seconds), what makes it tiny."""

    recipe: str
    write: Callable[[Path, int], list[str]]
    steps: int
    tiny: tuple[str, ...]


TRIALS = (
    Trial("lm-bytes", write_text, 3, ("model.sizes={n_layer: 1, n_head: 2, n_embd: 16, n_positions: 32}",)),
    Trial(
        "translate", write_pairs, 24,
        ("model.sizes={d_model: 16, nhead: 2, num_encoder_layers: 1, num_decoder_layers: 1}", "tokenizer.size=300"),
    ),
    Trial(
        "classify", write_labelled, 300,
        ("model.sizes={num_hidden_layers: 1, num_attention_heads: 2, hidden_size: 16}", "tokenizer.size=300"),
    ),
)  # fmt: skip


class Waiting:
    """Batches, and how long each was waited for."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.seconds: list[float] = []

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        start = time.perf_counter()
        batch: Batch = next(self.batches)
        self.seconds.append(time.perf_counter() - start)
        return batch

    def state(self) -> dict[str, Any]:
        return dict(self.batches.state())

    def resume(self, state: Mapping[str, Any]) -> None:
        self.batches.resume(state)


@dataclass(frozen=True)
class Waits:
    """Seconds: of each step, waiting included; waited in it; and what a batch takes that is made on the spot."""

    steps: list[float]
    waits: list[float]
    at_once: list[float]

    def __str__(self) -> str:
        mean = sum(self.steps) / len(self.steps)
        wait, made = sum(self.waits) / len(self.waits), sum(self.at_once) / len(self.at_once)
        told = f"{len(self.steps):7}{mean * 1e3:11.1f} ms{wait * 1e3:10.2f} ms"
        return f"{told}{wait / mean:12.2%}{max(self.waits) / mean:12.2%}{made / mean:14.2%}"


def wait_for_batches(run: Run, steps: int) -> Waits:
    """Make steps of a run; the first, which waits for the first batch whoever makes it, does not count."""
    assert isinstance(run.trainer.batches, Loader)
    with run.trainer.batches as loader:
        run.trainer.batches = waiting = Waiting(loader)
        reports = [run.trainer.advance() for _ in range(steps + 1)]
    examples = run.examples["train"]
    with Loader(examples, run.objective.prepare, batch_plan(run.recipe, examples), seed=0) as loader:
        direct = Waiting(loader)
        for _ in range(steps + 1):
            next(direct)
    return Waits([report.seconds for report in reports[1:]], waiting.seconds[1:], direct.seconds[1:])


def measure_loading(trial: Trial, device: str, quick: bool) -> None:
    """One line: a run of a recipe without validation and checkpoints."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = trial.write(folder, FEW if quick else ROWS)
        recipe = read_recipe(trial.recipe, [*data, *(("batch.length=32", *trial.tiny) if quick else ())])
        run = build_run(recipe, folder / "run", Process(torch.device(device)))
        waits = wait_for_batches(run, 2 if quick else trial.steps)
    print(f"{trial.recipe:24}{recipe.batch.workers:8}{waits}", flush=True)


def report_loading(device: str, quick: bool) -> None:
    """A table."""
    print("\nloading: recipes at their own settings, on generated text; the aim is to wait less than 3 % of a step")
    print(f"{'':24} workers  steps       a step        waits   of a step     at most  made at once")
    for trial in TRIALS:
        measure_loading(trial, device, quick)
