"""Queries behind the teaching figures that need no model: the family tree, activations, the six-word vocabulary."""

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.config import ModelConfig, Stack
from glassformer.config.parts import ACTIVATION_NAMES
from glassformer.families import lineages as known_lineages
from glassformer.families import presets
from glassformer.nn.feedforward import ACTIVATIONS
from glassformer.viewer import work
from glassformer.viewer.encode import array
from glassformer.viewer.family_tree import TREE
from glassformer.viewer.mechanisms import score_bias_name, window_name
from glassformer.viewer.queries_model import Nothing
from glassformer.viewer.subject import QueryError

# The family tree.


def lineages(params: Nothing) -> dict[str, Any]:  # noqa: ARG001
    """Return every lineage with its paper, its parent, and what it changed, in words and in facts."""
    return {"lineages": [dict(entry) for entry in _tree()]}


@cache
def _tree() -> tuple[dict[str, Any], ...]:
    facts = {name: presets()[next(iter(lineage.sizes))].facts for name, lineage in known_lineages().items()}
    entries = []
    for name, lineage in known_lineages().items():
        branch, paper = TREE[name], lineage.paper
        reported = branch.reported
        before = {} if branch.parent is None else _design(facts[branch.parent])
        after = _design(facts[name])
        entries.append(
            {
                "name": name,
                "title": branch.title,
                "parent": branch.parent,
                "family": facts[name].family,
                "year": branch.since or paper.year,
                "paper": {"title": paper.title, "authors": paper.authors, "year": paper.year, "url": paper.url},
                "changed": {"en": branch.changed.en, "zh": branch.changed.zh},
                "reported": None if reported is None else {"en": reported.en, "zh": reported.zh},
                "facts": after,
                "differs": [key for key in before if before[key] != after[key]],
                "presets": list(lineage.sizes),
            }
        )
    return tuple(sorted(entries, key=lambda entry: entry["year"]))


def _design(facts: ModelConfig) -> dict[str, str]:
    """Return the choices that tell architectures apart, each as one word."""
    stack = facts.encoder or facts.decoder
    assert stack is not None
    attention = stack.attention
    groups = attention.heads // (attention.kv_heads or attention.heads)
    return {
        "family": facts.family,
        "placement": stack.placement,
        "norm": facts.norm.kind,
        "activation": stack.ffn.activation + ("-gated" if stack.ffn.gated else ""),
        "positions": _positions(facts, stack),
        "attention": _pattern(stack),
        "keys": "each" if groups == 1 else "shared",
        "biases": "yes" if attention.biases else "no",
        "scale": "no" if attention.scale == 1.0 else "yes",
        "layers": "each" if stack.unique_layers is None else "shared",
        "segments": "yes" if facts.embed.segments else "no",
        "embedding": "full" if facts.embed.width in (None, facts.width) else "factorised",
    }


def _positions(facts: ModelConfig, stack: Stack) -> str:
    words: list[str] = [] if facts.embed.position is None else [facts.embed.position.kind]
    words += ["rotary"] if stack.attention.rotary is not None else []
    words += [] if stack.attention.score_bias is None else [score_bias_name(stack.attention.score_bias)]
    return "+".join(words) or "none"


def _pattern(stack: Stack) -> str:
    names = {window_name(window) for window in stack.attention.windows}
    if "block-sparse" in names:
        return "block-sparse"
    return "alternating" if len(names) > 1 else names.pop()


# Activations.


@dataclass(frozen=True)
class Range:
    """Where to compute curves."""

    limit: float = 4.0  # from −limit to limit
    points: int = 161


def activations(params: Range) -> dict[str, Any]:
    """Return the activations and their slopes, by the functions that the models use."""
    if not (0 < params.limit <= 100 and 2 <= params.points <= 2001):
        raise QueryError(f"limit must be up to 100 and points up to 2,001; got {params.limit:g} and {params.points}.")
    x = torch.linspace(-params.limit, params.limit, params.points, dtype=torch.float64)
    curves = {}
    for name in ACTIVATION_NAMES:
        with torch.inference_mode(False), torch.enable_grad():
            inputs = x.clone().requires_grad_()
            values = ACTIVATIONS[name](inputs)
            (slopes,) = torch.autograd.grad(values.sum(), inputs)
        curves[name] = {"value": array(values), "slope": array(slopes)}
    return {"x": array(x), "curves": curves}


# The six-word vocabulary.

SHOWN = (0, 1, 2, 3, 5, 8, 12, 20, 30, 50, 75, 100, 150, 200)  # steps after which distributions are kept
_TRAINING = threading.RLock()


def toy(params: Nothing) -> dict[str, Any]:  # noqa: ARG001
    """Train the recipe ``toy``, which takes a second or two, once: targets, and the distributions on the way."""
    with work.holding(_TRAINING):
        return _trained()


@dataclass(frozen=True)
class Training:
    """A run of the recipe: its rows, and for each of ``steps`` the distributions of each row."""

    pairs: list[Any]
    tokenizer: Any
    steps: list[int]
    kept: list[list[Tensor]]  # (positions of the target, vocabulary)
    losses: list[float]
    seconds: float


@cache
def _trained() -> dict[str, Any]:
    run = _train()
    end = run.tokenizer.special["eos"]
    targets = [[*pair.target.split(), end] for pair in run.pairs]
    words = [*dict.fromkeys(word for target in targets for word in target if word != end), end]
    numbers = [run.tokenizer.id_of(word) for word in words]
    pairs = []
    for number, (pair, target) in enumerate(zip(run.pairs, targets, strict=True)):
        one_hot = [[float(word == other) for other in words] for word in target]
        probs = torch.stack([each[number][:, numbers] for each in run.kept])
        pairs.append({"source": pair.source, "target": target, "one_hot": array(one_hot), "probs": array(probs)})
    return {
        "words": words,
        "vocab": run.tokenizer.vocab_size,
        "steps": run.steps,
        "losses": array(run.losses),
        "pairs": pairs,
        "seconds": run.seconds,
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread: for so small a model, several take longer to meet than to compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # of this thread; but threads that start later would also get it
    other = threading.Thread(target=torch.set_num_threads, args=(before,))
    other.start()
    other.join()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train() -> Training:
    from glassformer.recipes.files import read_recipe
    from glassformer.training import parallel
    from glassformer.training.build import Run, build_run

    def look(run: Run) -> list[Tensor]:
        return [_distributions(run.model, *example) for example in examples]

    began = time.perf_counter()
    python_state = random.getstate()
    try:  # the queries that run meanwhile draw from generators of their own
        with (
            _one_thread(), torch.random.fork_rng(devices=[]), torch.inference_mode(False),
            tempfile.TemporaryDirectory() as folder,
        ):  # fmt: skip
            # Build the run, and keep its examples to look at.
            run = build_run(read_recipe("toy"), Path(folder), parallel.Process(torch.device("cpu")))
            tokenizer, pairs = run.context.tokenizer, list(run.parts["train"])
            texts = [(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs]
            examples = [(source, run.context.start, target) for source, target in texts]
            # Train; look at the predictions before the first step and at those of SHOWN.
            steps, kept, losses = [0], [look(run)], []
            for report in run.trainer:
                work.check()
                losses.append(report.loss)
                if report.step in SHOWN:
                    steps.append(report.step)
                    kept.append(look(run))
    # Leave the program's random numbers as they were.
    finally:
        random.setstate(python_state)
    return Training(pairs, tokenizer, steps, kept, losses, time.perf_counter() - began)


@torch.no_grad()
def _distributions(model: torch.nn.Module, source: list[int], start: int, target: list[int]) -> Tensor:
    """Return the distribution over the vocabulary at every position of the target, after the true words before it."""
    was_training = model.training
    model.eval()
    logits = model(torch.tensor([source]), target=torch.tensor([[start, *target[:-1]]]))
    model.train(was_training)
    return torch.softmax(logits[0].float(), -1)


QUERIES = {"lineages": (lineages, Nothing), "activations": (activations, Range), "toy": (toy, Nothing)}
