"""``glassformer demo``: train a small byte-level language model on text this machine already has, then let it write."""

import codecs
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from glassformer.cli.options import Threads, set_threads
from glassformer.cli.outputs import visible
from glassformer.families.cs336 import CS336

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from glassformer.models.transformer import Transformer
    from glassformer.training.loop import Report
    from glassformer.training.objectives.base import Batch

# Chosen by trying: of the models that a minute on two cores can train on half a megabyte, this one writes best.
CONTEXT, BATCH = 128, 16
LAYERS, WIDTH, HEADS = 3, 128, 4
SIZES = {
    "vocab_size": 256, "context_length": CONTEXT, "d_model": WIDTH, "num_layers": LAYERS, "num_heads": HEADS,
    "d_ff": 384,  # 8/3 · WIDTH, rounded up to a multiple of 64
}  # fmt: skip
LEARNING_RATE = 6e-3
HELD_OUT = 0.05  # share of the text that training never sees


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What the user asked for."""

    seconds: float | None
    steps: int | None
    prompt: str
    length: int
    temperature: float
    seed: int


def demo(
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="How long to train: 60 unless --steps is given.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Train so many steps instead: the same each time.")] = None,
    prompt: Annotated[str, typer.Option(help="What the model's text starts with.")] = "The ",
    length: Annotated[int, typer.Option(min=1, help="How many bytes it writes.")] = 400,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is the likeliest byte each time.")] = 0.7,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Fixes the starting weights, the batches and the text.")
    ] = 0,
    threads: Threads = None,
) -> None:
    """Train a small Transformer for a minute, then let it write. Nothing is downloaded or saved."""
    if not prompt:
        raise typer.BadParameter("the prompt is empty; the model needs at least one character to continue from.")
    if steps is not None and seconds is not None:
        raise typer.BadParameter("say how long to train once: either --steps or --seconds.")
    set_threads(threads)
    console = Console(highlight=False)
    options = DemoOptions(
        seconds=60.0 if seconds is None and steps is None else seconds,
        steps=steps,
        prompt=prompt,
        length=length,
        temperature=temperature,
        seed=seed,
    )
    try:
        run(console, options)
    except KeyboardInterrupt:
        console.print("\n[yellow]Stopped.[/] Nothing was saved.")
        raise typer.Exit(130) from None


def run(console: Console, options: DemoOptions) -> None:
    """Train, then write, on any console: a terminal, a file or a recording one."""
    model = _train(console, options)
    _write(console, model, options)


def _train(console: Console, options: DemoOptions) -> "Transformer":
    import numpy as np
    import torch

    from glassformer.data.batching import FixedPlan
    from glassformer.data.loader import Loader
    from glassformer.data.packing import Windows
    from glassformer.inspect.parameters import num_parameters
    from glassformer.models.transformer import Transformer
    from glassformer.text.corpora import python_documentation
    from glassformer.training.loop import Settings, Trainer, evaluate
    from glassformer.training.objectives.causal_lm import NextToken
    from glassformer.training.optim import adamw

    corpus = np.frombuffer(python_documentation(), dtype=np.uint8)
    end = len(corpus) - int(len(corpus) * HELD_OUT)
    torch.manual_seed(options.seed)
    model, objective = Transformer(CS336.facts(SIZES, "lm")), NextToken()

    def batches(text: "NDArray[np.uint8]") -> "Loader[Tensor, Batch]":
        windows = Windows(text, CONTEXT)
        plan = FixedPlan(len(windows), BATCH, seed=options.seed)
        return Loader(windows, objective.prepare, plan, seed=options.seed)

    test = list(islice(batches(corpus[end:]), 4))
    before = evaluate(model, objective, test).loss
    console.print(
        f"A Transformer language model of [bold]{num_parameters(model):,}[/] parameters ({LAYERS} blocks, "
        f"width {WIDTH}, {HEADS} heads) reads {end:,} bytes of Python's documentation, byte by byte.\n"
    )
    settings = Settings(steps=options.steps, seconds=options.seconds)
    trainer = Trainer(model, objective, batches(corpus[:end]), [adamw(model, LEARNING_RATE)], settings)
    steps, tokens, seconds = _show(console, trainer)
    console.print(
        f"\n{steps:,} steps, {tokens:,} bytes in {seconds:.0f} s. Loss on text it has not seen: "
        f"{before:.2f} → [bold]{evaluate(model, objective, test).loss:.2f}[/] nats per byte (guessing blindly: 5.55)."
    )
    return model


def _show(console: Console, reports: "Iterable[Report]") -> tuple[int, int, float]:
    """A live bar in a terminal; elsewhere a line for every tenth of the run. Returns steps, tokens and seconds."""
    figures = "loss {loss:.2f}  {speed:,.0f} tokens/s  {left:.0f} s left"
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
            text = figures.format(loss=report.loss, speed=report.tokens_seen / seconds, left=left)
            bar.update(task, completed=report.fraction, description=text)
            if not console.is_terminal and (report.fraction >= next_line or report.fraction >= 1):
                next_line = report.fraction + 0.1
                console.print(f"step {report.step:5d}  {text}")
    return report.step, report.tokens_seen, seconds


def _write(console: Console, model: "Transformer", options: DemoOptions) -> None:
    """Print the model's bytes as they come: characters of several bytes whole, control characters made harmless."""
    import torch

    from glassformer.generation.sampling import write_on

    console.print("\nIt writes:\n")
    console.print(visible(options.prompt, keep="\n"), end="", style="bold cyan", markup=False)
    prompt = torch.tensor(list(options.prompt.encode(errors="surrogateescape")))  # any bytes will do
    stream = write_on(model.eval(), prompt, context_length=CONTEXT, temperature=options.temperature, seed=options.seed)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for byte in islice(stream, options.length):
        console.out(visible(decoder.decode(bytes([byte])), keep="\n"), end="", highlight=False)
    console.out(visible(decoder.decode(b"", final=True), keep="\n"), highlight=False)
