"""A run in a checkpoint: its model as ``glassformer.load`` opens it, and in ``run/`` what it takes to go on.

What a run is of (data, settings, model) is written down with it. Going on with something else is an error that shows
the difference; starting from a checkpoint's weights is another thing, and needs none of this.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glassformer import hub
from glassformer.text.tokenizer import Tokenizer
from glassformer.train.checkpoint import CheckpointError, check
from glassformer.train.loop import Trainer
from glassformer.train.state import optimizer_state, random_state, restore_optimizer, restore_random
from glassformer.weights.files import open_weights
from glassformer.weights.saving import write_weights

INSIDE = "run"


def write_run(
    folder: Path, trainer: Trainer, identity: Mapping[str, Any], *, tokenizer: Tokenizer | None = None
) -> None:
    """Fill a checkpoint's folder. ``identity`` says what the run is of, as JSON can write it."""
    hub.save(trainer.model, folder, tokenizer=tokenizer)
    inside = folder / INSIDE
    remembered = []
    for number, optimizer in enumerate(trainer.optimizers):
        tensors, facts = optimizer_state(optimizer, trainer.model)
        remembered.append(facts)
        write_weights(inside, tensors, file_name=f"optimizer{number}.safetensors")
    write_weights(inside, random_state(), file_name="random.safetensors")
    said = {
        "step": trainer.step,
        "tokens_seen": trainer.tokens_seen,
        "batches": trainer.batches.state(),
        "scaler": trainer.scaler.state_dict(),
        "optimizers": remembered,
        "identity": identity,
    }
    (inside / "state.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def read_run(path: Path, trainer: Trainer, identity: Mapping[str, Any]) -> None:
    """Put a run that has not begun into the state of a checkpoint; every file is checked before anything changes."""
    check(path)
    inside = path / INSIDE
    if not (inside / "state.json").is_file():
        raise CheckpointError(f"{path} holds a model but no run to go on with; start from its weights with init_from.")
    said = json.loads((inside / "state.json").read_text(encoding="utf-8"))
    changed = list(differences(said["identity"], json.loads(json.dumps(identity))))
    if changed:
        lines = "\n".join(f"  {name}: was {before!r}, is {now!r}" for name, before, now in changed)
        raise CheckpointError(
            f"{path} is of another run:\n{lines}\nGo on with what it was, or start from its weights with init_from."
        )
    trainer.model.load_state_dict(hub.load(path).model.state_dict())
    for number, optimizer in enumerate(trainer.optimizers):
        with open_weights(inside / f"optimizer{number}.safetensors") as stored:
            tensors = {name: stored.read(name) for name in stored.entries}
        restore_optimizer(optimizer, trainer.model, tensors, said["optimizers"][number])
    trainer.scaler.load_state_dict(said["scaler"])
    trainer.step, trainer.tokens_seen = said["step"], said["tokens_seen"]
    trainer.batches.resume(said["batches"])
    with open_weights(inside / "random.safetensors") as stored:
        restore_random({name: stored.read(name) for name in stored.entries})  # last: what came before may have drawn


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The places where two values of JSON differ: (name, before, now)."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            inner = f"{name}.{key}" if name else str(key)
            yield from differences(before.get(key), now.get(key), inner)
    elif before != now:
        yield name, before, now
