"""A run in a checkpoint: its model as ``glassformer.load`` opens it, and in ``run/`` what it takes to go on.

What a run is of (data, settings, model) is written down with it. Going on with something else is an error that shows
the difference; starting from a checkpoint's weights is another thing, and needs none of this.

A run that trains adapters keeps those alone: ``base`` is the fingerprint of the frozen weights, which it needs again to
go on.

Everything is stored whole, however many processes wrote it, so any number of them can go on. How many there are is no
part of what a run is of; how many micro-batches all of them read in a step is, and is noted for every run as
``identity["batch"]["micro_batches"]``. With several processes all of them call these functions.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer import hub
from glassformer.config import shapes
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.text.tokenizer import Tokenizer
from glassformer.training.adapter_files import adapter_state
from glassformer.training.checkpoint import CheckpointError, check
from glassformer.training.loop import Trainer
from glassformer.training.processes import by_first, gathered, rank, seed_apart, world
from glassformer.training.shards import collected, is_shard, put, shared_out
from glassformer.training.state import Stateful, optimizer_state, random_state, restore_optimizer, restore_random
from glassformer.weights.convert import plain_names
from glassformer.weights.files import WeightFiles, open_weights, some
from glassformer.weights.saving import write_text, write_weights

INSIDE = "run"


def write_run(
    folder: Path,
    trainer: Trainer,
    identity: Mapping[str, Any],
    *,
    tokenizer: Tokenizer | None = None,
    lineage: str | None = None,
    extras: Mapping[str, Stateful] | None = None,
    show: Callable[[Path], None] | None = None,
    base: str | None = None,
) -> None:
    """Fill a checkpoint's folder.

    Args:
        folder: where to.
        trainer: the run.
        identity: says what the run is of, as JSON can write it.
        tokenizer: lies beside the model, if given.
        lineage: of the model, if it has one; noted with it, for those who convert it.
        extras: what else the run must remember, by name.
        show: writes the model that the folder is to open as, where that is not the one that learns: its average, or
            the one with its adapters merged. The weights that learn are then kept in ``run/``.
        base: the fingerprint of frozen weights that lie elsewhere and are not written; needs ``show``.
    """
    inside = folder / INSIDE
    of = _completed(identity, trainer)
    if show is None:
        write_model(folder, trainer.model, tokenizer, lineage)
    else:
        show(folder)
        _write(inside, "model", _by_plain_name(trainer.model) if base is None else adapter_state(trainer.model))
    optimizers = []
    for number, optimizer in enumerate(trainer.optimizers):
        tensors, facts = optimizer_state(optimizer, trainer.model)
        optimizers.append(facts)
        _write(inside, f"optimizer{number}", tensors)
    told = {}
    for name, extra in _checked(extras).items():
        tensors, told[name] = extra.state()
        _write(inside, f"extra-{name}", tensors)
    every = gathered(random_state(trainer.device))
    _write(inside, "random", {f"{place}/{name}": one for place, own in enumerate(every) for name, one in own.items()})
    said = {
        "step": trainer.step,
        "tokens_seen": trainer.tokens_seen,
        "batches": trainer.batches.state(),
        "scaler": trainer.scaler.state_dict(),
        "optimizers": optimizers,
        "extras": told,
        "processes": world(),
        "seed": torch.initial_seed(),
        "base": base,
        "identity": of,
    }
    by_first(partial(write_text, inside / "state.json", json.dumps(said, indent=2) + "\n"))


def read_run(
    path: Path,
    trainer: Trainer,
    identity: Mapping[str, Any],
    *,
    extras: Mapping[str, Stateful] | None = None,
    base: str | None = None,
) -> list[str]:
    """Put a run that has not begun into the state of a checkpoint; every file is checked before anything changes.

    The arguments are those of ``write_run``; a checkpoint of adapters is refused by other frozen weights than its own.

    Returns what could not be taken up as it was, in words for a log: with another number of processes, random numbers
    start anew, from the run's seed, its step and the rank of each process. Otherwise that is nothing.
    """
    by_first(partial(check, path))
    inside, said = path / INSIDE, _state(path)
    _check_same(path, differences(said["identity"], _completed(identity, trainer)))
    things = _checked(extras)
    if other := things.keys() ^ said["extras"].keys():
        raise CheckpointError(
            f"{path} was written with the extras {sorted(said['extras'])}, and this run has {sorted(things)}: "
            f"{some(other)} would be lost or start anew. Go on with those it had."
        )
    _read_model(path, trainer.model, said.get("base"), base)
    for number, optimizer in enumerate(trainer.optimizers):
        with open_weights(inside / f"optimizer{number}.safetensors") as stored:
            restore_optimizer(optimizer, trainer.model, _OneByOne(stored), said["optimizers"][number])
    for name, thing in things.items():
        own, tensors = thing.state()[0], _read(inside, f"extra-{name}")
        parts = {key: shared_out(one, own[key]) if key in own else one for key, one in tensors.items()}
        thing.restore(parts, said["extras"][name])
    trainer.scaler.load_state_dict(said["scaler"])
    trainer.step, trainer.tokens_seen = said["step"], said["tokens_seen"]
    trainer.batches.resume(said["batches"])
    return _go_on_drawing(inside, said, trainer.device)  # last: what came before may have drawn


def identity_of(path: Path) -> dict[str, Any]:
    """What the run in a checkpoint is of."""
    identity: dict[str, Any] = _state(path)["identity"]
    return identity


def needs_base(path: Path) -> bool:
    """Whether a checkpoint holds adapters alone, and the weights that they belong to lie elsewhere."""
    return _state(path).get("base") is not None


def compare(path: Path, identity: Mapping[str, Any], places: Mapping[str, str] | None = None) -> None:
    """Raise if a checkpoint is of another run, as far as ``identity`` says by now what this one is of.

    ``places`` says where that lies which is compared, by its name: the files of ``data.train``, say.
    """
    before = identity_of(path)
    changed = [*differences({key: before.get(key) for key in identity}, json.loads(json.dumps(identity)))]
    if changed:
        check(path)  # a damaged one is no other run
    _check_same(path, changed, places)


def _state(path: Path) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads((path / INSIDE / "state.json").read_text(encoding="utf-8"))
        if not isinstance(said, dict) or not isinstance(said.get("identity"), dict):
            raise ValueError("no state of a run")
    except (OSError, ValueError) as error:
        check(path)  # says what is damaged, if anything is
        raise CheckpointError(
            f"{path} holds a model but no run to go on with; start a new one from its weights with --init-from {path}."
        ) from error
    return said


def _by_plain_name(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    return {plain: state[name] for plain, name in plain_names(state).items()}


def write_model(folder: Path, model: nn.Module, tokenizer: Tokenizer | None, lineage: str | None = None) -> None:
    """One that is just what its facts say lies as ``hub.load`` opens it; of anything else the weights are kept."""
    tensors = _by_plain_name(model)
    facts = _facts_of(model)
    if facts is None or {*shapes(facts)} != {*tensors}:
        _write(folder / INSIDE, "model", tensors)
    elif any(is_shard(tensor) for tensor in tensors.values()):
        weights = collected(tensors)
        by_first(lambda: hub.save(_built(facts, weights), folder, tokenizer=tokenizer, lineage=lineage))
    else:
        by_first(lambda: hub.save(model, folder, tokenizer=tokenizer, lineage=lineage))


def _facts_of(model: nn.Module) -> Any:
    try:
        return unwrapped(model).config
    except TypeError:
        return None  # several models together, say


def _built(facts: Any, weights: Mapping[str, Tensor]) -> Transformer:
    with torch.device("meta"):
        model = Transformer(facts)
    model.load_state_dict(weights, assign=True)
    return model


def _read_model(path: Path, model: nn.Module, written_for: str | None, base: str | None) -> None:
    """Weights into their places, one tensor at a time."""
    if written_for is not None and written_for != base:
        raise CheckpointError(
            f"{path} holds adapters for frozen weights with the SHA-256 {written_for}, and those of this run have "
            f"{base}: the parts that are new in the model are drawn differently here. Go on where the run began, with "
            f"the same version of PyTorch."
        )
    places = _by_plain_name(model) if written_for is None else adapter_state(model)
    own = path / INSIDE / "model.safetensors"
    with open_weights(own if own.is_file() else path) as stored:
        sizes = {name: entry.shape for name, entry in stored.entries.items()}
        wanted = {name: tuple(place.shape) for name, place in places.items()}
        if sizes != wanted:
            wrong = {name for name in {*sizes, *wanted} if sizes.get(name) != wanted.get(name)}
            raise CheckpointError(f"{path} is of another model: not in both, or of another shape, are {some(wrong)}.")
        for name, place in places.items():
            put(stored.borrow(name), place)


def _write(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> None:
    whole = collected(tensors)
    by_first(partial(write_weights, folder, whole, file_name=f"{name}.safetensors"))


class _OneByOne(Mapping[str, Tensor]):
    """Tensors that are read when they are asked for: all at once would be all of them, in every process."""

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


def _go_on_drawing(inside: Path, said: Mapping[str, Any], device: torch.device) -> list[str]:
    if said["processes"] != world():
        seed_apart(said["seed"], said["step"])
        return [
            f"{said['processes']} processes wrote this checkpoint, and {world()} go on: random numbers start anew, "
            f"from the seed {said['seed']} and the step {said['step']}."
        ]
    own = f"{rank()}/"
    states = _read(inside, "random")
    restore_random({name.removeprefix(own): one for name, one in states.items() if name.startswith(own)}, device)
    return []


def _completed(identity: Mapping[str, Any], trainer: Trainer) -> dict[str, Any]:
    """What a run is of, with the number of micro-batches of a whole step; as JSON gives it back."""
    number = trainer.settings.accumulate * world()
    batch = dict(identity.get("batch", {}))
    if batch.setdefault("micro_batches", number) != number:
        raise ValueError(
            f"the identity says {batch['micro_batches']} micro-batches a step, and {world()} processes read "
            f"{trainer.settings.accumulate} each. parallel.share_of says how many each should read."
        )
    result: dict[str, Any] = json.loads(json.dumps({**identity, "batch": batch}))
    return result


def _check_same(path: Path, changed: Iterable[tuple[str, Any, Any]], places: Mapping[str, str] | None = None) -> None:
    lines = []
    for name, before, now in changed:
        key = name.removeprefix("recipe.")  # as it is typed
        where = f" ({places[key]})" if places and key in places else ""
        lines.append(f"  {key}{where}: was {before!r}, is {now!r}")
    if lines:
        told = "\n".join(lines)
        again = f"; where its job can start from weights, from these with --init-from {path}"
        raise CheckpointError(
            f"{path} is of another run:\n{told}\nGo on with what it was, or say another --out for a new run"
            f"{'' if needs_base(path) else again}."
        )


def _checked(extras: Mapping[str, Stateful] | None) -> Mapping[str, Stateful]:
    """Names become names of files."""
    for name, extra in (extras or {}).items():
        if not re.fullmatch(r"[a-z0-9_-]+", name) or not isinstance(extra, Stateful):
            raise ValueError(f"an extra has a name of small letters, digits, _ and -, state and restore; got {name!r}.")
    return extras or {}


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The places where two values of JSON differ: (name, before, now)."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            inner = f"{name}.{key}" if name else str(key)
            yield from differences(before.get(key), now.get(key), inner)
    elif before != now:
        yield name, before, now
