"""``make mutations``: flip every fact of every lineage, one at a time, and see that parity notices.

A fact that no comparison notices is either no fact or untested, so each must be listed here with its reason. Facts that
shape weights are noticed before any number is computed: the weights do not fit.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from glassformer.config import (
    InputPosition,
    ModelConfig,
    Norm,
    Rotary,
    RotaryScaling,
    change,
    get_fact,
    leaves,
    shapes,
)  # fmt: skip
from glassformer.config.parts import ACTIVATION_NAMES, PLACEMENTS
from glassformer.models.transformer import Transformer
from tests.configs import score_biases
from tests.parity.cases import CASES
from tests.parity.harness import Case, Pair

# Paths whose value cannot show in an answer, with the reason.
WITH_WEIGHTS = ("encoder", "decoder", "convolution", "head", "mask_decoder")  # where there is none, loading notices one
SILENT = {
    "dropout": "acts while training alone",
    "dropout_on": "acts while training alone",
    "input_dropout": "acts while training alone",
    "final_dropout": "acts while training alone",
    "bias_trained": "whether it learns; tests/families/test_lineages.py compares it with the buffers of the reference",
    "init.std": "where training starts",
    "init.table_std": "where training starts",
    "init.residual_scaling": "where training starts",
    "init.by_inputs": "where training starts",
    "tokens.bos": "for generating text",
    "tokens.eos": "for generating text",
    "tokens.pad": "for generating text; the mask states the padding",
    "tokens.start": "for generating text",
    "task": "names the answer; its shape follows from the other facts",
    "labels": "names; their number shapes weights",
    "length": "a limit on the input; of a learned table, it shapes weights",
    "scale_in_dtype": "float64 holds the factor; tests/models/test_transformer.py compares in bfloat16",
    "seed": "plays no part in the reference's semantics",
}
OTHER = {
    "kind": {
        "layer": "rms",
        "rms": "layer",
        "learned": "sinusoidal",
        "sinusoidal": "learned",
        "linear": "yarn",
        "smooth": "linear",
        "yarn": "linear",
    },
    "layout": {"interleaved": "halves", "halves": "interleaved", "fairseq": "halves"},
    "pairing": {"halves": "interleaved", "interleaved": "halves"},
    "pool": {"first": "last", "last": "first", "mean": "first"},
    "semantics": {"reference": "set", "set": "reference"},
}


def other_values(path: str, value: Any) -> Iterator[Any]:
    """Values that are not the one a fact has."""
    name = path.rsplit(".", 1)[-1]
    for known, table in OTHER.items():
        if (path == known or name == known) and value in table:
            yield table[value]
            return
    if isinstance(value, bool):
        yield not value
    elif name == "placement":
        yield from (placement for placement in PLACEMENTS if placement != value)
    elif name in ("activation", "transform", "hidden") and isinstance(value, str):
        yield from (activation for activation in ACTIVATION_NAMES if activation != value)
    elif name == "biases":
        yield "".join(projection for projection in "qkvo" if projection not in value) or "qk"
    elif name == "terms":
        yield value[:1] if len(value) > 1 else ("p2c",) if value == ("c2p",) else ("c2p",)
    elif name == "windows":
        yield (None,) if value != (None,) else (3,)
    elif name == "eps":
        yield max(1e-5, 10 * value)
    elif name == "scale" and value is None:
        yield 1.0
    elif isinstance(value, float):
        yield value * 1.5
    elif name in ("max_distance", "original_length") and isinstance(value, int):
        yield 2 * value  # a little more may fall into the same buckets
    elif isinstance(value, int):
        yield value + (2 if name in ("dim", "kernel") else 1)
    elif value is None:
        yield from () if name in WITH_WEIGHTS else instead_of_none()[name]
    else:
        raise TypeError(f"{path} is {value!r}: say here what else it might be.")


def instead_of_none() -> dict[str, list[Any]]:
    """What a fact that a model lacks might be, by its name."""
    return {
        "kv_heads": [1],
        "unique_layers": [1],
        "width": [8],
        "rotary": [Rotary(dim=2, length=64)],
        "score_bias": list(score_biases()),
        "position": [InputPosition(kind="sinusoidal", length=64)],
        "scaling": [RotaryScaling(kind="linear", factor=2.0)],
        "transform": ["gelu"],
        "pool": ["first"],
        "hidden": ["tanh"],
        "qk_norm": [Norm(kind="rms")],
    }


def parts(facts: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every part that is a table of facts, with its path: one without facts of its own is noticed by its absence."""
    for item in fields(facts):
        value, path = getattr(facts, item.name), f"{where}.{item.name}".lstrip(".")
        if is_dataclass(value):
            yield path, value
            yield from parts(value, path)


def is_idle(facts: ModelConfig, path: str) -> str | None:
    """Why a fact plays no part in this one model; None if it does."""
    owner, _, name = path.rpartition(".")
    if name == "layout" and get_fact(facts, f"{owner}.kind") == "learned":
        return "a learned table has no layout"
    if name == "kv_heads" and get_fact(facts, f"{owner}.heads") == 1:
        return "one head has one key/value head"
    if name == "bias" and get_fact(facts, f"{owner}.labels", None) == ():
        return "without labels there are no scores to add a bias to"
    if name in ("low", "high", "original_length") and get_fact(facts, f"{owner}.kind") == "linear":
        return "linear scaling treats all frequencies alike"
    if name == "bias" and isinstance(norm := get_fact(facts, owner), Norm) and norm.kind == "rms":
        return "RMSNorm has no bias"
    terms = get_fact(facts, f"{owner}.terms", None)  # of disentangled attention
    if name == "max_distance" and terms is not None and not get_fact(facts, f"{owner}.buckets"):
        return "one row per distance has no farthest bucket"
    if name == "key_bias" and ("c2p" not in (terms or ()) or get_fact(facts, f"{owner}.shared_projections")):
        return "positions have no projection as keys to which it could belong"
    if name == "shared_projections" and terms == ():
        return "positions pass through no projection at all"
    return None


def flipped(facts: ModelConfig, path: str, value: Any) -> ModelConfig | None:
    """The config with another value, or None where no such config can be."""
    try:
        return change(facts, path, value)
    except (ValueError, TypeError):
        return None


def notices(pair: Pair, facts: ModelConfig) -> bool:
    """Whether the comparison sees that the facts are not those of the reference."""
    if shapes(facts) != shapes(pair.ours.config):
        return True  # the weights do not fit
    model = Transformer(facts).double().eval()
    model.load_state_dict(pair.ours.state_dict())
    tokens, targets = pair.inputs()
    other = replace(pair, ours=model)
    try:
        return any(not other.compare(tokens, targets, side) <= pair.case.bound for side in ("none", "right"))
    except (ValueError, IndexError, RuntimeError, AssertionError):
        return True


def survey(case: Case) -> tuple[int, list[str]]:
    """How many flips there were, and those that nothing noticed."""
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair.make(case, Path(folder))
    flips, unseen = 0, []
    facts = pair.ours.config
    assert not notices(pair, facts), f"{case.id} differs from its reference before anything is flipped"
    for path, value in (*leaves(facts), *parts(facts)):
        if any(path == name or path.endswith(f".{name}") for name in SILENT) or is_idle(facts, path):
            continue
        for other in (None,) if is_dataclass(value) else other_values(path, value):
            changed = flipped(facts, path, other)
            if changed is None or changed == facts:
                continue
            flips += 1
            if not notices(pair, changed):
                unseen.append(f"{case.id}: {path} {value!r} → {other!r}")
    return flips, unseen


def main() -> int:
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    total, unseen = 0, []
    for case in CASES:
        flips, missed = survey(case)
        total += flips
        unseen += missed
        print(f"{case.id}: {flips} flips, {len(missed)} unnoticed", flush=True)
    print(f"\n{total} flips of facts over {len(CASES)} models; unnoticed: {len(unseen)}")
    print("\n".join(unseen))
    return int(bool(unseen))


if __name__ == "__main__":
    sys.exit(main())
