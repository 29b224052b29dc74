"""``glassformer generate``, ``translate``, ``summarise`` and ``task``: texts that a model writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli.inputs import check_room, read_texts
from glassformer.cli.options import (
    READING,
    AsJson,
    AsStream,
    Computing,
    Loading,
    ModelName,
    Reading,
    Searching,
    Texts,
    Truncate,
    computing_verb,
    side,
    unescaped,
)

if TYPE_CHECKING:
    from glassformer.generation.prompts import PromptInput
    from glassformer.hub import Loaded


@dataclass(frozen=True, kw_only=True)
class Showing:
    """What is done with the texts."""

    as_json: AsJson = False
    stream: AsStream = False
    truncate: Truncate = None
    keep_special: Annotated[bool, typer.Option("--keep-special", help="Show special tokens in the texts.")] = False
    record: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write every step of the search to a file.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """All options of a verb that writes."""

    showing: Showing
    reading: Reading
    loading: Loading
    searching: Searching
    computing: Computing

    def load(self, model: str) -> "Loaded":
        """The model; but first raise for what can be seen to be wrong without it."""
        side(self.showing.truncate)
        if self.showing.record is not None:
            if self.showing.stream:
                raise ValueError("--record takes down a whole search; leave out --stream.")
            check_room(self.showing.record, "--record")
        return self.loading.load(model)

    def write(
        self, loaded: "Loaded", given: Sequence["PromptInput"], shown: Sequence[str], more: dict[str, Any] | None = None
    ) -> None:
        """Let the model write for what is given, and print it.

        ``shown`` is how people see what was given; ``more`` options that the user's own go before, stop strings beside.
        """
        from glassformer.cli.outputs import note
        from glassformer.cli.texts import print_texts, stream_texts
        from glassformer.generation.defaults import notes_for

        options = {**(more or {}), **self.searching.given()}
        if more is not None and "stop" in more:
            options["stop"] = [*self.searching.given().get("stop", ()), *more["stop"]]
        for text in notes_for(loaded, **options):
            note(text)
        if self.showing.record is not None:
            options["record"] = True
        options |= self.computing.given(self.loading)
        options |= {"truncate": side(self.showing.truncate), "keep_special": self.showing.keep_special}
        output = stream_texts if self.showing.stream else print_texts
        output(loaded, given, shown, options, self)


@computing_verb
def generate(
    model: ModelName,
    job: Job,
    texts: Texts = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Show the task by examples: JSON lines with input and output.",
            rich_help_panel=READING,
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="STRING",
            help=r"How examples are written: {input}\n{output}\n\n unless given.",
            rich_help_panel=READING,
        ),
    ] = None,
) -> None:
    """Let MODEL continue texts; an encoder-decoder answers them.

    What is not said is as generation_config.json in the model's folder recommends, where there is one.
    """
    if template is not None and examples is None:
        raise ValueError("--template says how --examples are written, and there are none.")
    prompts = read_texts(texts, job.reading)
    more: dict[str, Any] | None = None
    given = prompts
    if examples is not None:
        from glassformer.generation.prompts import TEMPLATE, FewShot, read_examples

        shown = FewShot(read_examples(examples), TEMPLATE if template is None else unescaped(template))
        given, more = [shown.prompt(text) for text in prompts], {"stop": [shown.separator]}
    job.write(job.load(model), given, prompts, more)


@computing_verb
def translate(
    model: ModelName,
    job: Job,
    texts: Texts = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="LANGUAGE", help="The language of the texts: en, eng_Latn …")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="LANGUAGE", help="The language to translate into.")
    ] = None,
) -> None:
    """Translate texts with an encoder-decoder. One that knows many languages must be told both."""
    lines = read_texts(texts, job.reading)
    loaded = job.load(model)
    from glassformer.generation.translation import prepare_translation

    given, more = prepare_translation(loaded, lines, source, target)
    job.write(loaded, given, lines, more)


@computing_verb
def summarise(
    model: ModelName,
    job: Job,
    texts: Texts = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="A file or standard input is one text.", rich_help_panel=READING)
    ] = False,
) -> None:
    """Summarise texts with an encoder-decoder, with the words before them that its config.json states, if any."""
    from glassformer.cli.inputs import read_whole

    lines = [read_whole(texts, job.reading)] if whole else read_texts(texts, job.reading)
    loaded = job.load(model)
    _write_task(job, loaded, lines, "summarization", needed=False)


@computing_verb
def task(
    model: ModelName,
    job: Job,
    texts: Texts = None,
    name: Annotated[
        str | None, typer.Option(metavar="TASK", help="A task that the model's config.json states.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="STRING", help="Or the words before each text: 'cola sentence: '.")
    ] = None,
) -> None:
    """Text to text: a task told by the words before each text."""
    if (name is None) == (prefix is None):
        raise ValueError("say the task once: --name of one that the model's config.json states, or --prefix.")
    lines = read_texts(texts, job.reading)
    loaded = job.load(model)
    if prefix is not None:
        job.write(loaded, [text if text.startswith(prefix) else prefix + text for text in lines], lines)
    else:
        _write_task(job, loaded, lines, str(name), needed=True)


def _write_task(job: Job, loaded: "Loaded", lines: Sequence[str], name: str, *, needed: bool) -> None:
    from glassformer.text.prefixes import Task, find_task, tasks_of

    if loaded.config.family != "encoder-decoder":
        family = loaded.config.family
        raise ValueError(f"this needs a model of the family encoder-decoder; this one is of the family {family}.")
    tasks = tasks_of(loaded.folder)
    found = find_task(tasks, name) if needed or name in tasks else Task("")
    job.write(loaded, [found.write(text) for text in lines], lines, {"task": found.options})
