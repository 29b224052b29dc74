"""A small run, to be killed.

It trains for some steps with dropout, writes a checkpoint every third step and a line of log every step, and goes on
from the last checkpoint if there is one.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from glassformer.models.transformer import Transformer
from glassformer.objectives.base import Batch
from glassformer.objectives.causal_lm import NextToken
from glassformer.training.checkpoint_contents import read_run, write_run
from glassformer.training.checkpoint_folders import Checkpoints
from glassformer.training.logging.sinks import RunLog
from glassformer.training.loop import Settings, Trainer
from glassformer.training.optim import muon_and_adamw
from tests.configs import CONFIGS

STEPS = 24
FINGERPRINT = {"data": "counted", "settings": {"lr": 0.01}}


class Counted:
    """Batches made from their own number; some are short, some long."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        generator = torch.Generator().manual_seed(self.number)
        rows = [
            torch.randint(3, 29, (int(torch.randint(3, 9, (), generator=generator)),), generator=generator)
            for _ in range(3)
        ]
        self.number += 1
        return NextToken().prepare(rows, generator)

    def state(self) -> dict[str, Any]:
        return {"number": self.number}

    def resume(self, state: Mapping[str, Any]) -> None:
        self.number = state["number"]


def made() -> Trainer:
    torch.manual_seed(0)
    random.seed(0)
    facts = CONFIGS["gpt2"]
    assert facts.decoder is not None
    model = Transformer(replace(facts, decoder=replace(facts.decoder, dropout=0.2)))
    settings = Settings(steps=STEPS, accumulate=2)
    return Trainer(model, NextToken(), Counted(), muon_and_adamw(model, 0.01), settings)


def run(folder: Path) -> Trainer:
    """Start, or go on; to the end."""
    trainer, kept = made(), Checkpoints(folder / "checkpoints", keep=2)
    kept.tidy()
    last = kept.latest()
    if last is not None:
        read_run(last, trainer, FINGERPRINT)
    with RunLog(folder / "log.jsonl", after=trainer.step) as log:
        for report in trainer:
            facts = asdict(report)
            log.write("step", report.step, facts, {"seconds": facts.pop("seconds")})
            if report.step % 3 == 0 or report.step == STEPS:
                kept.write(report.step, lambda path: write_run(path, trainer, FINGERPRINT))
    return trainer
