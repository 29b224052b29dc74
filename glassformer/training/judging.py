"""How good the model of a run is: its loss on rows that it does not learn from, the figures of its job, samples.

Nothing here leaves a trace in the model or in the random numbers of the run. Losses are without label smoothing, so
that they can be compared, and in float32. With several processes all of them call these functions; what asks the model
for texts is done by the first alone.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from glassformer import hub
from glassformer.config.checks import check_choice
from glassformer.models.transformer import Transformer
from glassformer.training import parallel
from glassformer.training.adapters import adapted, merged
from glassformer.training.assembling import Run
from glassformer.training.averaging import MovingAverage
from glassformer.training.log import read_log
from glassformer.training.loop import evaluate
from glassformer.training.objectives.job import as_loaded
from glassformer.training.processes import gathered
from glassformer.training.shards import gathered_weights
from glassformer.training.state import random_state, restore_random

REHEARSED = 2  # rows on which everything is tried before a run begins


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Judges a run.

    Args:
        run: what learns.
        average: of its weights; they are what is judged and kept, if there is one.
        process: of those that train together.
        folder: of the run.
    """

    run: Run
    average: MovingAverage | None
    process: parallel.Process
    folder: Path

    def averaged(self) -> AbstractContextManager[None]:
        """The model with the weights that are kept in the end."""
        return nullcontext() if self.average is None else self.average.applied()

    def shown(self) -> Transformer:
        """What of the model is kept in the end, ready to be used."""
        model = self.run.job.shown(self.run.model)
        return merged(model) if adapted(model) else model

    def validate(self, rows: int | None, batches: int | None = None) -> dict[str, float] | None:
        """Loss and figures on the validation rows; None if there are none.

        Args:
            rows: so many for the figures, which cost more than the loss; None: all.
            batches: so many for the loss; None: as many as the recipe says.
        """
        if "valid" not in self.run.examples:
            return None
        with self.averaged():
            some = parallel.own_share(islice(self.run.batches("valid"), batches))
            means = evaluate(self.run.model, self.run.judged, some)
            found = self.run.job.losses(means)
            with gathered_weights(self.run.model):
                if self.process.is_first and "valid" in self.run.parts:
                    found |= self._figures(list(islice(self.run.parts["valid"], rows)))
        return gathered(found)[0]  # the first one measured them

    def _figures(self, rows: list[Any]) -> dict[str, float]:
        return self.run.job.figures(self.run.kit, self._loaded(), rows)

    def _loaded(self) -> hub.Loaded:
        return as_loaded(self.shown(), self.run.kit.tokenizer, self.folder)

    def samples(self, count: int) -> list[str]:
        """What the model makes of a few rows by now."""
        rows = list(islice(self.run.parts.get("valid", self.run.parts["train"]), count))
        if not rows:
            return []
        with self.averaged(), gathered_weights(self.run.model):
            return self.run.job.samples(self.run.kit, self._loaded(), rows) if self.process.is_first else []

    def dry_run(self, by: str, samples: int) -> None:
        """Try everything on a few rows before the run begins: what can only fail should not fail hours later."""
        before = random_state(self.process.device)
        found = self.validate(REHEARSED, batches=1)
        if found is not None:
            check_choice("evaluation.by", by, found)
        self.samples(min(samples, 1))
        restore_random(before, self.process.device)

    def measure(self, place: Path) -> dict[str, dict[str, float]]:
        """Every figure of the kept model, on all rows that it did not learn from; the first process has them all."""
        loaded = hub.load(place, device=self.process.device)
        parts = [part for part in ("valid", "test") if part in self.run.examples]
        found: dict[str, dict[str, float]] = {}
        for part in parts:  # what all processes do together comes before what one does alone
            found[part] = self._kept_loss(loaded.model, part)
        for part in parts if self.process.is_first else []:
            if part in self.run.parts:
                found[part] |= self.run.job.figures(self.run.kit, loaded, list(self.run.parts[part]))
        return found

    def _kept_loss(self, model: Transformer, part: str) -> dict[str, float]:
        """The loss of the kept model. Where only a part of what learned is kept, that has none: the best logged one."""
        if not self.run.job.keeps_all:
            lines = read_log(self.folder / "log.jsonl") if part == "valid" else []
            best = [line for line in lines if line["kind"] == "validation" and line["best"]]
            return {name: value for name, value in best[-1].items() if isinstance(value, float)} if best else {}
        own = parallel.own_share(self.run.batches(part, whole=True))
        return self.run.job.losses(evaluate(model, self.run.judged, own))
