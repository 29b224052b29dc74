"""``glassformer demo --train``: train a small language model on the bytes of Python's documentation, then generate."""

import codecs
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from glassformer.cli.console import visible
from glassformer.cli.errors import InputError
from glassformer.families.cs336 import CS336

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from glassformer.models.transformer import Transformer
    from glassformer.objectives.base import Batch
    from glassformer.training.loop import StepReport

# Of the models that can be trained in a minute on two cores, this one generates the best text.
CONTEXT, BATCH = 128, 16
LAYERS, WIDTH, HEADS = 3, 128, 4
SIZES = {
    "vocab_size": 256, "context_length": CONTEXT, "d_model": WIDTH, "num_layers": LAYERS, "num_heads": HEADS,
    "d_ff": 384,  # 8/3 · WIDTH, rounded up to a multiple of 64
}  # fmt: skip
LEARNING_RATE = 6e-3
HELD_OUT = 0.05  # share of the text that training never sees


@dataclass(frozen=True, kw_only=True)
class TrainingDemo:
    """How long to train, and what to generate."""

    seconds: float | None = None
    steps: int | None = None
    prompt: str = "The "
    length: int = 400
    temperature: float = 0.7
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InputError("--prompt is empty; the model needs at least one character to continue from.")
        if self.steps is not None and self.seconds is not None:
            raise InputError("--steps and --seconds both limit the training; use one of them.")


def train_and_generate(console: Console, options: TrainingDemo) -> None:
    """Train, then generate text."""
    model = _train(console, options)
    _generate(console, model, options)


def _train(console: Console, options: TrainingDemo) -> "Transformer":
    import numpy as np
    import torch

    from glassformer.data.batching import FixedPlan
    from glassformer.data.loader import Loader
    from glassformer.inspect.parameters import num_parameters
    from glassformer.models.transformer import Transformer
    from glassformer.objectives.causal_lm import NextToken, Windows
    from glassformer.text.plain_text import python_documentation
    from glassformer.training.loop import Settings, Trainer, evaluate
    from glassformer.training.optim import adamw

    # Data and model: windows of CONTEXT bytes; the end of the text is held out.
    corpus = np.frombuffer(python_documentation(), dtype=np.uint8)
    end = len(corpus) - int(len(corpus) * HELD_OUT)
    torch.manual_seed(options.seed)
    model, objective = Transformer(CS336.facts(SIZES, "lm")), NextToken()

    def batches(text: "NDArray[np.uint8]") -> "Loader[Tensor, Batch]":
        windows = Windows(text, CONTEXT)
        plan = FixedPlan(len(windows), BATCH, seed=options.seed)
        return Loader(windows, objective.prepare, plan, seed=options.seed)

    # Held-out loss before and after training.
    valid = list(islice(batches(corpus[end:]), 4))
    before = evaluate(model, objective, valid).loss
    console.print(
        f"A Transformer language model of [bold]{num_parameters(model):,}[/] parameters ({LAYERS} blocks, "
        f"width {WIDTH}, {HEADS} heads) is trained on {end:,} bytes of Python's documentation.\n"
    )
    seconds = 60.0 if options.seconds is None and options.steps is None else options.seconds
    settings = Settings(steps=options.steps, seconds=seconds)
    trainer = Trainer(model, objective, batches(corpus[:end]), [adamw(model, LEARNING_RATE)], settings)
    steps, tokens, spent = _show_progress(console, trainer)
    console.print(
        f"\n{steps:,} steps, {tokens:,} bytes in {spent:.0f} s. Loss on held-out text: "
        f"{before:.2f} → [bold]{evaluate(model, objective, valid).loss:.2f}[/] nats per byte (uniform guessing: 5.55)."
    )
    return model


def _show_progress(console: Console, reports: "Iterable[StepReport]") -> tuple[int, int, float]:
    """Show a progress bar on a terminal, else a line per tenth of the run; return steps, tokens and seconds."""
    line = "loss {loss:.2f}  {speed:,.0f} tokens/s  {left:.0f} s left"
    bar = Progress(
        BarColumn(),
        TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,
    )
    next_line = seconds = 0.0
    with bar:
        task = bar.add_task("", total=1.0)
        for report in reports:
            seconds += report.seconds
            left = seconds * (1 - report.fraction) / report.fraction
            text = line.format(loss=report.loss, speed=report.tokens_seen / seconds, left=left)
            bar.update(task, completed=report.fraction, description=text)
            if not console.is_terminal and (report.fraction >= next_line or report.fraction >= 1):
                next_line = report.fraction + 0.1
                console.print(f"step {report.step:5d}  {text}")
    return report.step, report.tokens_seen, seconds


def _generate(console: Console, model: "Transformer", options: TrainingDemo) -> None:
    """Print bytes as they are generated: multi-byte characters as a whole, control characters escaped."""
    import torch

    from glassformer.generation.search import sample_stream

    console.print("\nGenerated text:\n")
    console.print(visible(options.prompt, keep="\n"), end="", style="bold cyan", markup=False)
    prompt = torch.tensor(list(options.prompt.encode(errors="surrogateescape")))  # any bytes will do
    stream = sample_stream(
        model.eval(), prompt, context_length=CONTEXT, temperature=options.temperature, seed=options.seed
    )
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for byte in islice(stream, options.length):
        console.out(visible(decoder.decode(bytes([byte])), keep="\n"), end="", highlight=False)
    console.out(visible(decoder.decode(b"", final=True), keep="\n"), highlight=False)
