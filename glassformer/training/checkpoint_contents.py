"""What a checkpoint contains, written and read: the model, as ``glassformer.load`` opens it, and in ``run/`` the rest.

``write_run`` writes all that a run needs to resume, ``read_run`` restores it; the folders: ``checkpoint_folders``.

The *fingerprint* of a run, settings and hashes that tell whether its data, recipe and model are still the same, is
saved under the key ``identity``. Resuming a run whose fingerprint has changed is an error that shows the difference. (A
new run that starts from a checkpoint's weights compares nothing.)

A run that trains adapters saves only those: ``base`` is the fingerprint of the frozen weights, which resuming needs.

Tensors are saved in full, however many processes wrote them, so any number of processes can resume. That number is not
part of the run's fingerprint; the number of micro-batches of a whole step is, ``["batch"]["micro_batches"]``. With
several processes all of them call these functions. No pickle is written or read: tensors go into safetensors files,
everything else into JSON.
"""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from glassformer import hub
from glassformer.config import shapes
from glassformer.config.checks import Setting
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.text.tokenizer import Tokenizer
from glassformer.training.adapters import adapter_state
from glassformer.training.checkpoint_folders import CheckpointError, check
from glassformer.training.loop import Trainer
from glassformer.training.optim import optimizer_state, restore_optimizer
from glassformer.training.parallel import (
    all_gather,
    copy_full,
    full_tensors,
    is_shard,
    on_rank_zero,
    rank,
    seed_per_rank,
    shard_like,
    world_size,
)
from glassformer.weights.convert import plain_names
from glassformer.weights.files import WeightFiles, open_weights, some
from glassformer.weights.saving import write_text, write_weights

NamedTensors = dict[str, Tensor]


@runtime_checkable
class Stateful(Protocol):
    """Something else that a run saves and restores: a moving average of the weights, early stopping …"""

    def state(self) -> tuple[NamedTensors, dict[str, Any]]:
        """Return its tensors by name, and its other values, as JSON can write them."""

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore what ``state`` gave. A tensor that it gives as a shard comes as this process's shard."""


def random_state(device: torch.device | None = None) -> NamedTensors:
    """Return the state of every random number generator that training on a device draws from."""
    version, numbers, gauss = random.getstate()
    state = {"torch.cpu": torch.get_rng_state(), "python": torch.tensor([version, *numbers], dtype=torch.int64)}
    if gauss is not None:
        state["python.gauss"] = torch.tensor(gauss, dtype=torch.float64)
    if device is not None and device.type == "cuda":
        state["torch.cuda"] = torch.cuda.get_rng_state(device)  # of this GPU only: others belong to other processes
    if device is not None and device.type == "mps":
        state["torch.mps"] = torch.mps.get_rng_state()
    return state


def restore_random(state: Mapping[str, Tensor], device: torch.device | None = None) -> None:
    """Restore the random number generators."""
    version, *numbers = state["python"].tolist()
    gauss = state["python.gauss"].item() if "python.gauss" in state else None
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch.cpu"])
    if "torch.cuda" in state and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["torch.cuda"], device)
    if "torch.mps" in state and device is not None and device.type == "mps":
        torch.mps.set_rng_state(state["torch.mps"])


RUN_FOLDER = "run"


def write_run(
    folder: Path,
    trainer: Trainer,
    fingerprint: Mapping[str, Any],
    *,
    tokenizer: Tokenizer | None = None,
    lineage: str | None = None,
    extras: Mapping[str, Stateful] | None = None,
    write_exported: Callable[[Path], None] | None = None,
    base: str | None = None,
) -> None:
    """Fill a checkpoint's folder.

    Args:
        folder: the checkpoint's.
        trainer: the run.
        fingerprint: of the run, as JSON can write it.
        tokenizer: saved beside the model, if not None.
        lineage: of the model, if it has one; saved with it, for conversion.
        extras: what else to save, by name.
        write_exported: writes the model that ``glassformer.load`` opens, if that is not the trained one: its average,
            or the model with merged adapters. The trained weights are then saved in ``run/``.
        base: the fingerprint of frozen weights that are elsewhere and are not written; needs ``write_exported``.
    """
    inside, full_fingerprint = folder / RUN_FOLDER, _completed(fingerprint, trainer)
    if write_exported is None:
        write_model(folder, trainer.model, tokenizer, lineage)
    else:
        write_exported(folder)
        _write(inside, "model", _by_plain_name(trainer.model) if base is None else adapter_state(trainer.model))
    values = {
        "step": trainer.step,
        "tokens_seen": trainer.tokens_seen,
        "batches": trainer.batches.state(),
        "scaler": trainer.scaler.state_dict(),
        **_write_states(inside, trainer, _checked(extras)),
        "processes": world_size(),
        "threads": torch.get_num_threads() if trainer.device.type == "cpu" else None,
        "seed": torch.initial_seed(),
        "base": base,
        "identity": full_fingerprint,
    }
    on_rank_zero(partial(write_text, inside / "state.json", json.dumps(values, indent=2) + "\n"))


def _write_states(inside: Path, trainer: Trainer, extras: Mapping[str, Stateful]) -> dict[str, Any]:
    """Write the tensors of optimizers, extras and random generators; return what else belongs to the first two."""
    optimizers = []
    for number, optimizer in enumerate(trainer.optimizers):
        tensors, optimizer_values = optimizer_state(optimizer, trainer.model)
        optimizers.append(optimizer_values)
        _write(inside, f"optimizer{number}", tensors)
    extra_values = {}
    for name, extra in extras.items():
        tensors, extra_values[name] = extra.state()
        _write(inside, f"extra-{name}", tensors)
    _write_random(inside, trainer.device)
    return {"optimizers": optimizers, "extras": extra_values}


def read_run(
    path: Path,
    trainer: Trainer,
    fingerprint: Mapping[str, Any],
    *,
    extras: Mapping[str, Stateful] | None = None,
    base: str | None = None,
) -> list[str]:
    """Restore a run that has not begun from a checkpoint; every file is checked before anything changes.

    The arguments are those of ``write_run``. A checkpoint of adapters is refused if the frozen weights differ.

    Returns notes on what could not be restored: with another number of processes, random numbers start anew, from the
    run's seed, its step and the rank of each process. Otherwise there are none.
    """
    # Check the files, and that the run is the same.
    on_rank_zero(partial(check, path))
    inside, saved = path / RUN_FOLDER, _state(path)
    _check_same(path, differences(saved["identity"], _completed(fingerprint, trainer)))
    extras = _checked(extras)
    if changed := extras.keys() ^ saved["extras"].keys():
        raise CheckpointError(
            f"{path} was written with the extras {sorted(saved['extras'])}, and this run has {sorted(extras)}: "
            f"{some(changed)} would be lost or start anew. Resume with those it had."
        )
    # Model, optimizers and extras.
    _read_model(path, trainer.model, saved.get("base"), base)
    for number, optimizer in enumerate(trainer.optimizers):
        with open_weights(inside / f"optimizer{number}.safetensors") as stored:
            restore_optimizer(optimizer, trainer.model, _LazyTensors(stored), saved["optimizers"][number])
    for name, extra in extras.items():
        own, tensors = extra.state()[0], _read(inside, f"extra-{name}")
        shards = {key: shard_like(tensor, own[key]) if key in own else tensor for key, tensor in tensors.items()}
        extra.restore(shards, saved["extras"][name])
    # Position of the run.
    trainer.scaler.load_state_dict(saved["scaler"])
    trainer.step, trainer.tokens_seen = saved["step"], saved["tokens_seen"]
    trainer.batches.resume(saved["batches"])
    return _restore_random(inside, saved, trainer.device)  # last: the steps above may have drawn numbers


def fingerprint_of(path: Path) -> dict[str, Any]:
    """Return the fingerprint of the run in a checkpoint."""
    fingerprint: dict[str, Any] = _state(path)["identity"]
    return fingerprint


def saved_threads(path: Path) -> int | None:
    """Return how many CPU threads wrote a checkpoint; None: a GPU, or not known."""
    threads: int | None = _state(path).get("threads")
    return threads


def needs_base(path: Path) -> bool:
    """Whether a checkpoint holds only adapters, and their base weights are elsewhere."""
    return _state(path).get("base") is not None


def compare(path: Path, fingerprint: Mapping[str, Any], paths: Mapping[str, str] | None = None) -> None:
    """Raise if a checkpoint is of another run, as far as ``fingerprint`` is known by now.

    ``paths``: by key, for the error message, such as the files of ``data.train``.
    """
    before = fingerprint_of(path)
    changed = [*differences({key: before.get(key) for key in fingerprint}, json.loads(json.dumps(fingerprint)))]
    if changed:
        check(path)  # a damaged checkpoint is not another run
    _check_same(path, changed, paths)


def _state(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((path / RUN_FOLDER / "state.json").read_text(encoding="utf-8"))
        if not isinstance(state, dict) or not isinstance(state.get("identity"), dict):
            raise ValueError("not the state of a run")
    except (OSError, ValueError) as error:
        check(path)  # reports what is damaged, if anything is
        raise CheckpointError(
            "{} holds a model but no run to resume; start a new one from its weights with {}.",
            str(path),
            Setting("model.start", str(path), external_name="init_from"),
        ) from error
    return state


def _by_plain_name(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    return {plain: state[name] for plain, name in plain_names(state).items()}


def write_model(folder: Path, model: nn.Module, tokenizer: Tokenizer | None, lineage: str | None = None) -> None:
    """Save a plain model so that ``hub.load`` opens it; of anything else (two models together) only the weights."""
    tensors = _by_plain_name(model)
    facts = _facts_of(model)
    if facts is None or {*shapes(facts)} != {*tensors}:
        _write(folder / RUN_FOLDER, "model", tensors)
    elif any(is_shard(tensor) for tensor in tensors.values()):
        weights = full_tensors(tensors)
        on_rank_zero(lambda: hub.save(_built(facts, weights), folder, tokenizer=tokenizer, lineage=lineage))
    else:
        on_rank_zero(lambda: hub.save(model, folder, tokenizer=tokenizer, lineage=lineage))


def _facts_of(model: nn.Module) -> Any:
    try:
        return unwrapped(model).config
    except TypeError:
        return None  # several models together


def _built(facts: Any, weights: Mapping[str, Tensor]) -> Transformer:
    with torch.device("meta"):
        model = Transformer(facts)
    model.load_state_dict(weights, assign=True)
    return model


def _read_model(path: Path, model: nn.Module, written_for: str | None, base: str | None) -> None:
    """Read weights into the model, one tensor at a time."""
    if written_for is not None and written_for != base:
        raise CheckpointError(
            f"{path} holds adapters for frozen weights with the SHA-256 {written_for}, and those of this run have "
            f"{base}: the new parts of the model are initialised differently here. Resume where the run began, with "
            f"the same version of PyTorch."
        )
    targets = _by_plain_name(model) if written_for is None else adapter_state(model)
    own = path / RUN_FOLDER / "model.safetensors"
    with open_weights(own if own.is_file() else path) as stored:
        saved = {name: entry.shape for name, entry in stored.entries.items()}
        expected = {name: tuple(target.shape) for name, target in targets.items()}
        if saved != expected:
            wrong = {name for name in {*saved, *expected} if saved.get(name) != expected.get(name)}
            raise CheckpointError(
                f"{path} is of another model. Missing in one of the two, or of another shape: {some(wrong)}."
            )
        for name, target in targets.items():
            copy_full(stored.borrow(name), target)


def _write(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> None:
    full = full_tensors(tensors)
    on_rank_zero(partial(write_weights, folder, full, file_name=f"{name}.safetensors"))


class _LazyTensors(Mapping[str, Tensor]):
    """Tensors that are read when they are used, so that no process holds all of them in full."""

    def __init__(self, stored: WeightFiles) -> None:
        self._stored = stored

    def __getitem__(self, name: str) -> Tensor:
        return self._stored.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored.entries)

    def __len__(self) -> int:
        return len(self._stored.entries)


def _read(folder: Path, name: str) -> dict[str, Tensor]:
    with open_weights(folder / f"{name}.safetensors") as stored:
        return {name: stored.read(name) for name in stored.entries}


def _write_random(inside: Path, device: torch.device) -> None:
    """Write the states of the random number generators of every process."""
    states = enumerate(all_gather(random_state(device)))
    _write(inside, "random", {f"{rank}/{name}": state for rank, own in states for name, state in own.items()})


def _restore_random(inside: Path, saved: Mapping[str, Any], device: torch.device) -> list[str]:
    if saved["processes"] != world_size():
        seed_per_rank(saved["seed"], saved["step"])
        return [
            f"{saved['processes']} processes wrote this checkpoint, and {world_size()} resume it: random numbers "
            f"start anew, from the seed {saved['seed']} and the step {saved['step']}."
        ]
    own = f"{rank()}/"
    states = _read(inside, "random")
    restore_random({name.removeprefix(own): state for name, state in states.items() if name.startswith(own)}, device)
    return []


def _completed(fingerprint: Mapping[str, Any], trainer: Trainer) -> dict[str, Any]:
    """Return the fingerprint with the number of micro-batches of a whole step; as JSON gives it back."""
    number = trainer.settings.accumulate * world_size()
    batch = dict(fingerprint.get("batch", {}))
    if batch.setdefault("micro_batches", number) != number:
        raise ValueError(
            f"the fingerprint says {batch['micro_batches']} micro-batches a step, and {world_size()} processes read "
            f"{trainer.settings.accumulate} each. Use parallel.micro_batches_per_process."
        )
    result: dict[str, Any] = json.loads(json.dumps({**fingerprint, "batch": batch}))
    return result


def _check_same(path: Path, changed: Iterable[tuple[str, Any, Any]], paths: Mapping[str, str] | None = None) -> None:
    lines = []
    for name, before, now in changed:
        key = name.removeprefix("recipe.")  # as it is typed
        where = f" ({paths[key]})" if paths and key in paths else ""
        lines.append(f"  {key}{where}: was {before!r}, is {now!r}")
    if lines:
        table = "\n".join(lines)
        template = "{} is of another run:\n{}\nRestore these values, or choose another folder for a new run with {}"
        values: list[Setting | str] = [str(path), table, Setting("out")]
        if not needs_base(path):
            template += "; if its job can start from weights, start from these with {}"
            values.append(Setting("model.start", str(path), external_name="init_from"))
        raise CheckpointError(f"{template}.", *values)


def _checked(extras: Mapping[str, Stateful] | None) -> Mapping[str, Stateful]:
    """Check the names, which become file names."""
    for name, extra in (extras or {}).items():
        if not re.fullmatch(r"[a-z0-9_-]+", name) or not isinstance(extra, Stateful):
            raise ValueError(
                f"an extra has a name of lower-case letters, digits, _ and -, "
                f"and methods state and restore; got {name!r}."
            )
    return extras or {}


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield where two JSON values differ: (name, before, now)."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            inner = f"{name}.{key}" if name else str(key)
            yield from differences(before.get(key), now.get(key), inner)
    elif before != now:
        yield name, before, now
