"""``glassformer demo``: what the shipped models do, step by step, each by a command; or train a model in a minute."""

import getpass
import os
import re
import shlex
import stat
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from glassformer import pretrained
from glassformer.cli.console import on_terminal, stdout_console
from glassformer.cli.demo_training import TrainingDemo, train_and_generate
from glassformer.cli.errors import InputError
from glassformer.cli.options import as_command, option_name, set_threads, setting
from glassformer.cli.view import can_serve, has_browser

TRAINING = "Training (with --train)"


@dataclass(frozen=True)
class Step:
    """One part of the demo: what it shows, and the commands that show it."""

    title: str
    about: str
    commands: tuple[str, ...]


STEPS = (
    Step(
        "Translate",
        "An encoder-decoder. Beam search keeps the four most probable beginnings of the translation at every step; the "
        "tree shows where they fork and how the best four end.",
        (
            'glassformer translate en-zh "The weather is nice today." --beam-tree',
            'glassformer translate en-zh "我妹妹在医院工作。"',
        ),
    ),
    Step(
        "Write a story",
        "A decoder of Llama's type, which samples one token after the other.",
        ('glassformer generate stories "One day, a small fox" --seed 13 --stream',),
    ),
    Step(
        "Tag persons, places and organisations",
        "An encoder with a label for every word.",
        ('glassformer tag ner-en "Marie Curie was at the University of Paris in France."',),
    ),
    Step(
        "Fill a blank",
        "An encoder that reads both sides of the blank.",
        (pretrained.MODELS["mlm-en"].example,),
    ),
    Step(
        "Change a config value",
        "The story writer has four heads for keys and values. With a single one, its KV cache is a quarter as large; "
        "the table shows what else changes.",
        ("glassformer account stories --decode --change decoder.attention.kv_heads=1",),
    ),
)
VIEW = 'glassformer view en-zh --text "The weather is nice today."'


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What to show, and how to train.

    Args:
        train: train a small byte-level language model on Python's documentation instead, then generate text.
        threads: CPU threads for torch; one by default, torch's default with --train.
        seconds: train for this long.
        steps: train this many steps instead (reproducible).
        prompt: the beginning of the generated text.
        length: generate this many bytes.
        temperature: divides the logits; 0: always the most probable byte.
        seed: seed of weights, batches and text.
    """

    train: bool = False
    threads: int | None = setting(None, min=1)
    seconds: float | None = setting(
        None, min=0.1, show_default="60, or no limit with --steps", rich_help_panel=TRAINING
    )
    steps: int | None = setting(None, min=1, rich_help_panel=TRAINING)
    prompt: str | None = setting(None, show_default="The ", rich_help_panel=TRAINING)
    length: int | None = setting(None, min=1, show_default="400", rich_help_panel=TRAINING)
    temperature: float | None = setting(None, min=0.0, show_default="0.7", rich_help_panel=TRAINING)
    seed: int | None = setting(None, min=0, max=2**63 - 1, show_default="0", rich_help_panel=TRAINING)


@as_command
def demo(options: DemoOptions) -> None:
    """Show what the shipped models do, in less than a minute; nothing is downloaded.

    The last step opens the viewer in the browser, or without a browser writes its page to a temporary file.
    """
    training = {name: value for name, value in asdict(options).items() if name not in ("train", "threads")}
    training = {name: value for name, value in training.items() if value is not None}
    if training and not options.train:
        raise InputError(f"{option_name(next(iter(training)))} is for training; add --train.")
    console = stdout_console() if not options.train else Console(highlight=False)
    try:
        if options.train:
            set_threads(options.threads)
            train_and_generate(console, TrainingDemo(**training))
        else:
            # The models are so small that a second thread costs more than it computes, above all on a busy machine.
            set_threads(options.threads or 1)
            _show_steps(console)
    except KeyboardInterrupt:
        console.print("\n[yellow]Stopped.[/] Nothing was saved.")
        raise typer.Exit(130) from None


def _show_steps(console: Console) -> None:
    begin = time.perf_counter()
    steps = (*STEPS, _view_step(opens=on_terminal() and can_serve() and has_browser()))
    for number, step in enumerate(steps, start=1):
        if number == len(steps):  # the viewer may run until it is stopped
            seconds = time.perf_counter() - begin
        _heading(console, f"{number} of {len(steps)} · {step.title}")
        console.print(Text(step.about))
        for command in step.commands:
            console.print()
            # A wider argument is wrapped by the terminal: a line break inside quotes would become part of the argument.
            console.print(Text(wrapped(command, console.width), "bold yellow"), soft_wrap=True)
            _run(command)
        console.print()
    _heading(console, f"The first {len(steps) - 1} steps took {seconds:.0f} seconds")
    console.print(Text("Every command above also runs by itself; glassformer --help lists them all."))


def _view_step(*, opens: bool) -> Step:
    """Return the step that shows the translator in the viewer: in the browser, or as a file where there is none."""
    about = (
        "A page that shows every head and vector of the translator at work, with the arithmetic. It opens on where "
        "each word comes from; Tour explains the model, All heads finds heads by what they read, Predict switches "
        "them off."
    )
    if opens:
        return Step("See inside", f"{about} Ctrl-C ends it.", (VIEW,))
    page = _folder() / "demo.html"
    return Step("See inside", f"{about} Open the file in a browser.", (f"{VIEW} --export {shlex.quote(str(page))}",))


def _folder() -> Path:
    """Return a folder for the page that only this user can read; the same in every run, so that one page remains."""
    try:
        folder = Path(tempfile.gettempdir()) / f"glassformer-{getpass.getuser()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        own = folder.lstat()
        if stat.S_ISDIR(own.st_mode) and not own.st_mode & 0o077 and own.st_uid == os.getuid():
            return folder
    except (OSError, AttributeError, KeyError, ImportError):  # a file of that name; a system or a user without names
        pass
    return Path(tempfile.mkdtemp(prefix="glassformer-"))


def _heading(console: Console, text: str) -> None:
    line = Text(f"── {text} ", "bold cyan")
    if on_terminal():
        line.append("─" * (console.width - line.cell_len))
    console.print(line)


QUOTED = r"""(?:"[^"]*"|'[^']*')"""


def wrapped(command: str, width: int) -> str:
    """Return a command after the prompt ``$``, broken with backslashes where it is wider than the terminal.

    Lines break between arguments only: a quoted argument that is wider than the terminal has a line of its own.
    """
    lines = ["$"]
    arguments = rf"--[\w-]+ (?:{QUOTED}|[^\s\"'-]\S*)|{QUOTED}|\S+"  # an option stays with its value
    for word in re.findall(arguments, command):
        if cell_len(f"{lines[-1]} {word} \\") > width and lines[-1] != "$":
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def _run(command: str) -> None:
    """Run a command of this program in this process; end as it does if it fails or is stopped."""
    from glassformer.cli.main import app  # which imports this module

    status = typer.main.get_command(app).main(shlex.split(command)[1:], prog_name="glassformer", standalone_mode=False)
    if status == 130:
        raise KeyboardInterrupt
    if status:
        raise typer.Exit(status)
