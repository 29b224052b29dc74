"""Whole training steps beside the formula: as CUDA graphs, compiled whole, and both; with one shape and with several.

Steps of the Trainer with a changing learning rate; compared are the losses and, at the end, the weights. Some are steps
as CUDA graphs alone: of so many shapes that batches are enlarged, of two micro-batches, and of a model with windows,
whose padded batches are ordinary steps.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.ours import Repeated
from benchmarks.gpu.training import facts_of, next_tokens
from glassformer.config import ModelConfig
from glassformer.models.transformer import Transformer
from glassformer.objectives.base import Batch, Objective
from glassformer.objectives.causal_lm import NextToken
from glassformer.objectives.masked_lm import MaskedLM
from glassformer.objectives.masking import Masking, MaskVocabulary
from glassformer.training.loop import Settings, Trainer
from glassformer.training.optim import adamw

LR, VOCAB, WIDTH = 1e-3, 300, 64
# Tokens of the longest row, batch by batch. Many: two rounds until shapes are few and seen, and one of graphs.
ONE_SHAPE, SHAPES, MANY = (24,) * 6, (24, 17, 24, 30, 17, 24), (24, 17, 30, 9, 21, 27) * 3
WAYS = {
    "as CUDA graphs": (True, False),
    "compiled whole": (False, True),
    "compiled whole and as CUDA graphs": (True, True),
}
Values = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A small model with its batches."""

    name: str
    facts: ModelConfig
    objective: Objective[Any]
    batches: tuple[Batch, ...]
    accumulate: int = 1
    compiles: bool = True  # is also checked compiled

    @property
    def steps(self) -> int:
        """How many the batches are enough for."""
        return len(self.batches) // self.accumulate


def steps_run(case: Case, capture: bool, compiles: bool, device: str, dtype: torch.dtype, fast: bool) -> Values:
    """Make the steps and return the losses and the weights; by the formula, without graphs, unless ``fast``."""
    from benchmarks.gpu.check import by_formula

    torch.manual_seed(0)
    model = Transformer(case.facts, device).train()
    is_mixed = dtype == torch.bfloat16  # as in training: weights in float32, products in bfloat16
    model = model.to(torch.float32 if is_mixed else dtype)
    if not fast:
        model.fused = False
        by_formula(model)
    settings = Settings(
        steps=case.steps,
        accumulate=case.accumulate,
        precision="bfloat16" if is_mixed else "float32",
        schedule=lambda done: 1 - 0.5 * done,
    )
    batches = Several(case.batches[0], case.batches)
    trainer = Trainer(model, case.objective, batches, [adamw(model, LR)], settings, capture=capture and fast)
    if compiles and fast:
        trainer.train_module.compile_whole()
    trainer.must_fetch = lambda _: False
    losses = [report.loss for report in trainer]
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return {"losses": torch.tensor(losses), "weights": weights}


class Several(Repeated):
    """Some batches in turns."""

    def __init__(self, batch: Batch, batches: Sequence[Batch]) -> None:
        super().__init__(batch)
        self.all = cycle(batches)

    def __next__(self) -> Batch:
        return next(self.all)


def cases(device: str, chance: random.Random) -> Iterator[Case]:
    """A decoder on full rows, an encoder of masked words on padded ones, a decoder with windows on both."""
    generator = torch.Generator().manual_seed(chance.randint(0, 999))
    placed: Callable[[Batch], Batch] = Batch.pin_memory if device != "cpu" else lambda batch: batch

    def rows(length: int) -> Tensor:
        return torch.randint(5, VOCAB, (4, length), generator=generator)

    shape = {"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH}
    gpt2 = facts_of("gpt2", "lm", n_layer=1, n_head=4, n_embd=WIDTH, n_positions=64, vocab_size=VOCAB)
    bert = facts_of("bert", "lm", **shape, vocab_size=VOCAB, max_position_embeddings=64)
    mistral = facts_of(
        "mistral", "lm", **shape, num_key_value_heads=2, sliding_window=8, vocab_size=VOCAB, max_position_embeddings=64
    )
    masked = MaskedLM(masking=Masking(vocabulary=MaskVocabulary(VOCAB, 4, frozenset(range(5)))))

    def full(lengths: Sequence[int]) -> tuple[Batch, ...]:
        return tuple(placed(next_tokens(rows(length + 1))) for length in lengths)

    def padded(objective: Objective[Any], lengths: Sequence[int]) -> tuple[Batch, ...]:
        texts = [[row[: chance.randint(4, length)] for row in rows(length)] for length in lengths]
        texts = [[*rest, rows(length)[0]] for rest, length in zip(texts, lengths, strict=True)]
        return tuple(placed(objective.prepare(rows_of_text, generator)) for rows_of_text in texts)

    lm, graphs = NextToken(), {"compiles": False}
    for name, lengths in (("of one shape", ONE_SHAPE), ("of several shapes", SHAPES)):
        yield Case(f"GPT-2, batches {name}", gpt2, lm, full(lengths))
        yield Case(f"BERT, padded batches {name}", bert, masked, padded(masked, lengths))
    yield Case("GPT-2, batches of many shapes", gpt2, lm, full(MANY), **graphs)
    yield Case("BERT, padded batches of many shapes", bert, masked, padded(masked, MANY), **graphs)
    yield Case("GPT-2, two micro-batches", gpt2, lm, full((24, 17) * 4), accumulate=2, **graphs)
    both = tuple(batch for pair in zip(full(ONE_SHAPE), padded(lm, ONE_SHAPE), strict=True) for batch in pair)
    yield Case("Mistral with a window, batches with and without padding", mistral, lm, both, **graphs)


def steps_checks(device: str, chance: random.Random, *, compiles: bool) -> Iterator[tuple[str, Callable[..., Values]]]:
    """Yield the title of every comparison, and its run; graphs exist on GPUs alone."""
    found = list(cases(device, chance))
    for way, (capture, compiled) in WAYS.items():
        if (capture and device == "cpu") or (compiled and not compiles):
            continue
        for case in found:
            if case.compiles or not compiled:
                yield f"{case.steps} steps {way}: {case.name}", partial(steps_run, case, capture, compiled, device)
    if device == "cpu":
        for case in found:
            yield f"{case.steps} steps: {case.name}", partial(steps_run, case, False, False, device)
