"""``glassformer generate``, ``translate``, ``summarise`` and ``task``: generate texts and print them."""

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text as Styled

from glassformer.cli.console import (
    WordWrap,
    bar,
    check_writable,
    note,
    on_terminal,
    print_rounded_json,
    print_table,
    read_texts,
    read_whole,
    rounded,
    stderr_on_terminal,
    stdout_console,
    visible,
)
from glassformer.cli.errors import InputError, numbering_texts
from glassformer.cli.options import (
    TEXT,
    AsJson,
    ComputeOptions,
    GenerationKeywords,
    InputOptions,
    LoadingOptions,
    ModelName,
    Texts,
    Truncate,
    computing_command,
    setting,
    unescaped,
)
from glassformer.cli.search_tables import alternatives_table, beam_table, token_text
from glassformer.text.plain_text import counted

if TYPE_CHECKING:
    from glassformer.generation.prompts import PromptInput
    from glassformer.generation.search import Node
    from glassformer.generation.text import Text
    from glassformer.hub import Loaded
    from glassformer.text.tokenizer import Tokenizer

SLICE = 8  # batches between two prints: enough to find prompts of equal length
WHY = {
    "eos": "ended by itself",
    "stop": "ended at a stop string",
    "length": "cut off at --max-new-tokens",
    "context": "cut off at the model's last position",
}


@dataclass(frozen=True, kw_only=True)
class TextOutput:
    """How texts are printed.

    Args:
        stream: print each piece of text as it is generated.
        keep_special: print special tokens too.
        record: write every step of the search to a file.
        beam_tree: after the texts of a beam search, print its beams as a tree, with their scores.
    """

    as_json: AsJson = False
    stream: bool = False
    truncate: Truncate = None
    keep_special: bool = False
    record: Path | None = setting(None, metavar="FILE.json")
    beam_tree: bool = False


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """All options of a command that generates text."""

    output: TextOutput
    reading: InputOptions
    loading: LoadingOptions
    generation: GenerationKeywords
    computing: ComputeOptions

    def load(self, model: str) -> "Loaded":
        """Load the model, after checks that do not need it."""
        if self.output.record is not None:
            if self.output.stream:
                raise ValueError("--record keeps a whole search; leave out --stream.")
            check_writable(self.output.record, "--record")
        if self.output.beam_tree and (self.output.stream or self.output.as_json):
            raise InputError("--beam-tree prints a whole search as text; leave out --stream and --json.")
        return self.loading.load(model)

    def generate(
        self,
        loaded: "Loaded",
        prompts: Sequence["PromptInput"],
        shown: Sequence[str],
        defaults: dict[str, Any] | None = None,
    ) -> None:
        """Generate a text for each prompt and print it.

        Args:
            loaded: the model.
            prompts: the inputs of the model.
            shown: the prompts as people see them.
            defaults: options for what the user does not set; stop strings are added to the user's.
        """
        from glassformer.generation.defaults import notes_for

        defaults = defaults or {}
        options: dict[str, Any] = {**defaults, **self.generation}
        if "stop" in defaults:
            options["stop"] = [*self.generation.get("stop", ()), *defaults["stop"]]
        for text in notes_for(loaded, **options):
            note(text)
        if self.output.record is not None or self.output.beam_tree:
            options["record"] = True
        options |= self.computing.options(self.loading)
        options |= {"truncate": self.output.truncate, "keep_special": self.output.keep_special}
        print_all = _stream_texts if self.output.stream else _print_texts
        print_all(loaded, prompts, shown, options, self)


# ---- commands


@computing_command
def generate(
    model: ModelName,
    job: GenerateOptions,
    texts: Texts = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Few-shot examples to put before each text: JSON lines with input and output.",
            rich_help_panel=TEXT,
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="STRING",
            help="Template that formats each of --examples.",
            show_default=r"{input}\n{output}\n\n",
            rich_help_panel=TEXT,
        ),
    ] = None,
) -> None:
    """Continue texts with a decoder, or generate from them with an encoder-decoder.

    Options that you do not set have the values in generation_config.json in the model's folder, if there is one.
    """
    if template is not None and examples is None:
        raise ValueError("--template is for --examples, and there are none.")
    lines = read_texts(texts, job.reading)
    prompts, defaults = lines, None
    if examples is not None:
        from glassformer.generation.prompts import TEMPLATE, FewShot, read_examples

        few_shot = FewShot(read_examples(examples), TEMPLATE if template is None else unescaped(template))
        prompts, defaults = [few_shot.prompt(text) for text in lines], {"stop": [few_shot.separator]}
    job.generate(job.load(model), prompts, lines, defaults)


@computing_command
def translate(
    model: ModelName,
    job: GenerateOptions,
    texts: Texts = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="LANGUAGE", help="Language of the texts: en, eng_Latn …")
    ] = None,
    target: Annotated[str | None, typer.Option("--to", metavar="LANGUAGE", help="Language to translate into.")] = None,
) -> None:
    """Translate texts with an encoder-decoder.

    A multilingual model needs both --from and --to. A model for English and Chinese detects them from the script.
    """
    lines = read_texts(texts, job.reading)
    loaded = job.load(model)
    from glassformer.generation.text import prepare_translation

    prompts, defaults = prepare_translation(loaded, lines, source, target)
    job.generate(loaded, prompts, lines, defaults)


@computing_command
def summarise(
    model: ModelName,
    job: GenerateOptions,
    texts: Texts = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Read a file or standard input as one text.", rich_help_panel=TEXT)
    ] = False,
) -> None:
    """Summarise texts with an encoder-decoder. A prefix that its config.json defines for this task is added."""
    lines = [read_whole(texts, job.reading)] if whole else read_texts(texts, job.reading)
    _generate_task(job, job.load(model), lines, "summarization", required=False)


@computing_command
def task(
    model: ModelName,
    job: GenerateOptions,
    texts: Texts = None,
    name: Annotated[
        str | None, typer.Option(metavar="TASK", help="A task that the model's config.json defines.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="STRING", help="A prefix for each text, such as 'cola sentence: '.")
    ] = None,
) -> None:
    """Run a text-to-text task, selected by a prefix such as 'summarize: '."""
    if (name is None) == (prefix is None):
        raise ValueError("set the task once: --name, of a task that the model's config.json defines, or --prefix.")
    lines = read_texts(texts, job.reading)
    loaded = job.load(model)
    if prefix is not None:
        job.generate(loaded, [text if text.startswith(prefix) else prefix + text for text in lines], lines)
    else:
        _generate_task(job, loaded, lines, str(name), required=True)


def _generate_task(job: GenerateOptions, loaded: "Loaded", lines: Sequence[str], name: str, *, required: bool) -> None:
    from glassformer.loaded import check_ability
    from glassformer.text.languages import TaskPrefix, find_task, tasks_of

    check_ability(loaded, "task" if required else "summarise", ("lm",), ("encoder-decoder",))
    tasks = tasks_of(loaded.folder)
    chosen = find_task(tasks, name) if required or name in tasks else TaskPrefix("")
    job.generate(loaded, [chosen.write(text) for text in lines], lines, {"task": chosen.options})


# ---- printing


def _print_texts(
    loaded: "Loaded",
    prompts: Sequence["PromptInput"],
    shown: Sequence[str],
    options: dict[str, Any],
    job: GenerateOptions,
) -> None:
    """Generate in slices, and print each slice as soon as it is done."""
    from glassformer.generation.prompts import fit_prompt, read_prompt
    from glassformer.generation.text import generate_text

    continues, recorded = _continues(loaded, prompts, shown), []
    step = SLICE * job.computing.batch_size
    # A prompt that is too long is an error before an hour's work, not after it.
    if len(prompts) > step and options["truncate"] is None:
        with numbering_texts(0):
            for number, prompt in enumerate(prompts):
                fit_prompt(loaded, read_prompt(loaded, prompt, number), None, 0)
    for first in range(0, len(prompts), step):
        part = prompts[first : first + step]
        with bar("generating", len(prompts), first) as progress, numbering_texts(first):
            results = generate_text(loaded, part, batch_size=job.computing.batch_size, progress=progress, **options)
        for number, texts in enumerate(results, start=first):
            stripped = texts if continues else [replace(text, text=text.text.removeprefix(" ")) for text in texts]
            _print_prompt(number, stripped, shown, continues, job, loaded.tokenizer)
        if job.output.record is not None:
            recorded += results
    if job.output.record is not None:
        _save_record(job.output.record, shown, recorded, loaded.tokenizer)


def _print_prompt(
    number: int,
    texts: Sequence["Text"],
    shown: Sequence[str],
    continues: bool,
    job: GenerateOptions,
    tokenizer: "Tokenizer",
) -> None:
    """Print all texts of one prompt."""
    tree = _beam_tree(texts, tokenizer) if job.output.beam_tree else None
    console = stdout_console()
    single = len(shown) == len(texts) == 1
    for sample, text in enumerate(texts):
        if job.output.as_json:
            print_rounded_json(_row(number, sample, shown[number], text, tokenizer))
            continue
        if on_terminal() and not single:
            _heading(console, (number, len(shown)), (sample, len(texts)), text)
        one_per_line = not (continues or on_terminal() or single)
        words = visible(text.text.replace("\n", " ") if one_per_line else text.text)
        console.print(Styled.assemble(_prompt(shown[number], continues), words))
        if any(text.written.alternatives):
            print_table(alternatives_table(text, tokenizer))
        if single:
            _note_end(text)
    if tree is not None:
        console.print()
        print_table(tree)


def _beam_tree(texts: Sequence["Text"], tokenizer: "Tokenizer") -> Table:
    """Return the beams of a search; all texts of a beam search share one record."""
    record = texts[0].written.record
    if record is None or all(node.final is None for node in record.nodes):
        raise InputError("--beam-tree shows a beam search, and this is another search; set --beam-size to 2 or more.")
    return beam_table(record, tokenizer)


def _note_end(text: "Text") -> None:
    """On a terminal, note that a text or its prompt was cut off."""
    if not stderr_on_terminal():
        return
    if text.written.ended in ("length", "context"):
        limit = "--max-new-tokens" if text.written.ended == "length" else "the model's last position"
        note(f"stopped after {counted(len(text.written.ids), 'token')} ({limit}).")
    if text.cut_tokens:
        note(f"cut off from the prompt: {counted(text.cut_tokens, 'token')} (--truncate).")


def _stream_texts(
    loaded: "Loaded",
    prompts: Sequence["PromptInput"],
    shown: Sequence[str],
    options: dict[str, Any],
    job: GenerateOptions,
) -> None:
    """Generate one text after the other, and print each piece as it comes."""
    from glassformer.generation.text import stream_text

    console, continues = stdout_console(), _continues(loaded, prompts, shown)
    for number, (model_input, prompt) in enumerate(zip(prompts, shown, strict=True)):

        def begin(number: int = number, prompt: str = prompt) -> int:
            if job.output.as_json:
                return 0
            if len(prompts) > 1 and on_terminal():
                console.print(f"[dim]── {number + 1} of {len(prompts)}[/]")
            console.print(before := _prompt(prompt, continues), end="")
            sys.stdout.flush()
            return before.wrap(console, console.width)[-1].cell_len if before and continues else 0

        with closing(stream_text(loaded, model_input, **options)) as pieces, numbering_texts(number):
            text = print_pieces(
                pieces if continues else _stripped(pieces), number if job.output.as_json else None, begin
            )
        if job.output.as_json:
            print_rounded_json(_row(number, 0, prompt, text, loaded.tokenizer))
            continue
        console.print()
        if len(prompts) == 1:
            _note_end(text)


def print_pieces(
    pieces: Generator[str, None, "Text"], number: int | None, begin: Callable[[], int] = lambda: 0
) -> "Text":
    """Print pieces of text as they come, as JSON objects if they have a number; return the whole text.

    ``begin`` is called before the first piece is printed, so not where an error comes before it; it returns the column
    where the text begins.
    """
    wrap: WordWrap | None = None
    try:
        while True:
            piece = next(pieces)
            wrap = wrap or _wrap_from(begin())
            if number is None:
                sys.stdout.write(wrap.feed(visible(piece)))
                sys.stdout.flush()
            else:
                print_rounded_json({"number": number, "piece": piece})
    except StopIteration as end:
        wrap = wrap or _wrap_from(begin())
        sys.stdout.write(wrap.flush())
        sys.stdout.flush()
        return end.value
    except KeyboardInterrupt:
        if number is None and wrap is not None:
            sys.stdout.write("\n")  # the cursor leaves the line that was printed so far
        raise


def _wrap_from(column: int) -> WordWrap:
    """Return the wrapping of lines on a terminal; there is none in a pipe."""
    return WordWrap(stdout_console().width if on_terminal() else None, column)


def _stripped(pieces: Generator[str, None, "Text"]) -> Generator[str, None, "Text"]:
    """Yield an answer without the space that separates it from its question."""
    begun = False
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return replace(end.value, text=end.value.text.removeprefix(" "))
        shown = piece if begun else piece.removeprefix(" ")
        begun = begun or bool(piece)
        if shown:
            yield shown


def _continues(loaded: "Loaded", prompts: Sequence["PromptInput"], shown: Sequence[str]) -> bool:
    """Whether texts continue the prompts, rather than answer them."""
    return loaded.config.encoder is None and list(prompts) == list(shown)


def _prompt(prompt: str, continues: bool) -> Styled:
    """Return a prompt before its continuation; before an answer, on its own line, and only on a terminal."""
    if not continues and not on_terminal():
        return Styled()
    return Styled(visible(prompt), "bold cyan") if continues else Styled(visible(prompt) + "\n", "dim")


def _heading(console: Console, prompt: tuple[int, int], sample: tuple[int, int], text: "Text") -> None:
    parts = [f"{prompt[0] + 1} of {prompt[1]}"] if prompt[1] > 1 else []
    parts += [f"text {sample[0] + 1} of {sample[1]}"] if sample[1] > 1 else []
    parts.append(f"score {text.written.score:.2f}")
    parts.append(f"{counted(len(text.written.ids), 'token')}, {WHY[text.written.ended]}")
    console.print(Styled("── " + " · ".join(parts), "dim"))


def _row(number: int, sample: int, prompt: str, text: "Text", tokenizer: "Tokenizer") -> dict[str, Any]:
    """Return a text as a JSON object."""
    written = text.written
    row: dict[str, Any] = {
        "number": number,
        "sample": sample,
        "prompt": prompt,
        "text": text.text,
        "ended": written.ended,
        "score": written.score,
        "prompt_tokens": text.prompt_tokens,
        "cut_tokens": text.cut_tokens,
        "new_tokens": len(written.ids),
    }
    if any(written.alternatives):
        row["tokens"] = _tokens(text, tokenizer)
    return row


def _tokens(text: "Text", tokenizer: "Tokenizer") -> list[dict[str, Any]]:
    written = text.written
    alternatives = written.alternatives or [[] for _ in written.ids]
    return [
        {
            "id": token,
            "token": token_text(tokenizer, token),
            "log_prob": log_prob,
            "alternatives": [{**asdict(other), "text": token_text(tokenizer, other.token)} for other in others],
        }
        for token, log_prob, others in zip(written.ids, written.log_probs, alternatives, strict=True)
    ]


def _save_record(path: Path, shown: Sequence[str], results: Sequence[Sequence["Text"]], tokenizer: "Tokenizer") -> None:
    """Write every prompt with its texts, token by token, and the nodes of its searches: one, or one per sample."""
    from glassformer.weights.saving import write_text

    rows = []
    for number, (prompt, texts) in enumerate(zip(shown, results, strict=True)):
        records = []
        for text in texts:
            if text.written.record is not None and text.written.record not in records:
                records.append(text.written.record)
        rows.append(
            {
                "prompt": prompt,
                "texts": [
                    _row(number, sample, prompt, text, tokenizer) | {"tokens": _tokens(text, tokenizer)}
                    for sample, text in enumerate(texts)
                ],
                "searches": [[_node(node, tokenizer) for node in record.nodes] for record in records],
            }
        )
    write_text(path, json.dumps(rounded(rows), ensure_ascii=False, indent=1) + "\n")


def _node(node: "Node", tokenizer: "Tokenizer") -> dict[str, Any]:
    """Return a node of a search with its text."""
    return {**asdict(node), "text": token_text(tokenizer, node.token)}
