"""``glassformer models``, ``info``, ``convert`` and ``download``: list, describe, convert and download models."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from glassformer import pretrained
from glassformer.cli.console import percent, print_json, print_table, print_truncated, stdout_console
from glassformer.cli.errors import InputError, message
from glassformer.cli.options import AsJson, FactsKeywords, Keywords, LoadingOptions, as_command, computing_command
from glassformer.config import ModelConfig, count, to_dict
from glassformer.config.options import ModelOptions
from glassformer.families import lineage_of, presets
from glassformer.inspect.facts import facts_of
from glassformer.inspect.parts import Part, part_tree
from glassformer.weights.reader import read_config

if TYPE_CHECKING:
    from glassformer.hub import Loaded

TABLE_WIDTH = 80  # columns of a terminal; in fewer, the words of a table would be cut


@as_command
def models(as_json: AsJson = False) -> None:
    """List the trained models that ship with this program; their names can be used as MODEL in other commands."""
    rows = [_shipped(model) for model in pretrained.MODELS.values()]
    if as_json:
        for row in rows:
            print_json(row)
        return
    console = stdout_console()
    print_table(_table_of(rows) if console.width >= TABLE_WIDTH else _blocks_of(rows))
    console.print("\nTry:")
    for row in rows:
        console.print(Text(f"  {row['example']}", "bold"))


def _table_of(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("model", "family", "parameters", "size"):
        table.add_column(name, justify="right" if name in ("parameters", "size") else "left", no_wrap=True)
    for name in ("task", "score"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["family"], f"{row['parameters']:,}", _size(row), row["task"], row["score"])
    return table


def _blocks_of(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the same for a narrow terminal: what a model is, beside its name."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        sizes = f"{row['family']}, {row['parameters']:,} parameters, {_size(row)}"
        table.add_row(row["name"], "\n".join([row["task"], sizes, row["score"]]))
    return table


def _size(row: dict[str, Any]) -> str:
    return f"{row['bytes'] / 1e6:.1f} MB"


def _shipped(model: pretrained.ShippedModel) -> dict[str, Any]:
    """Return a row of the list of shipped models."""
    facts = facts_of(model.folder)
    return {
        "name": model.name,
        "family": facts.family,
        "lineage": lineage_of(read_config(model.folder / "config.json")).name,
        "task": model.task,
        "parameters": count(facts),
        "bytes": model.size,
        "score": model.score,
        "example": model.example,
        "folder": str(model.folder),
    }


@as_command
def info(
    reading: FactsKeywords,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A published or shipped model, a model folder, a GGUF or llama2.c file."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the config and the number of parameters as JSON.")
    ] = False,
) -> None:
    """List the published models, or show one model as a tree of its parts, with their parameters and config values."""
    console = stdout_console()
    if model is None:
        _list(console, as_json)
        return
    facts = facts_of(model, **reading)
    if as_json:
        typer.echo(json.dumps({"name": model, "parameters": count(facts), "model": to_dict(facts)}, indent=2))
        return
    console.print(_tree(model, facts))


def _list(console: Console, as_json: bool) -> None:
    known = presets().values()
    if as_json:
        rows = [
            {"name": p.name, "lineage": p.lineage.name, "parameters": p.parameters, "paper": p.paper.title}
            for p in known
        ]
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("family", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("paper", overflow="fold")
    paper = ""
    for model in known:
        cited = f"{model.paper.authors} {model.paper.year}: {model.paper.title}"
        table.add_row(model.name, model.facts.family, f"{model.parameters:,}", "" if cited == paper else cited)
        paper = cited
    print_truncated(table)
    console.print(f"\n{len(known)} models. [bold]glassformer info NAME[/bold] shows one.")


def _tree(name: str, facts: ModelConfig) -> Tree:
    root = part_tree(facts)
    tree = Tree(_line(name, root, root.parameters))
    _branch(tree, root, root.parameters)
    return tree


def _branch(tree: Tree, part: Part, whole: int, copies: int = 1) -> None:
    for child in part.parts:
        _branch(tree.add(_line(child.name, child, whole, copies)), child, whole, copies * child.copies)


def _line(name: str, part: Part, whole: int, copies: int = 1) -> Text:
    """Return name, parameters of one copy, share of all copies in the model, and the facts."""
    line = Text.assemble((name, "bold"), f"  {part.parameters:,}")
    if part.copies > 1:
        line.append(f" × {part.copies} = {part.parameters * part.copies:,}")
    if part.parameters != whole:
        line.append(f"  {percent(part.parameters * part.copies * copies / whole)}", "dim")
    if part.description:
        line.append(f"  {part.description}", "cyan")
    return line


_NEGATABLE = {name: {"flags": [f"--{name}/--no-{name}".replace("_", "-")]} for name in ("strict", "check_finite")}
CheckKeywords = Annotated[ModelOptions, Keywords(ModelOptions, tuple(_NEGATABLE), "Options", changed=_NEGATABLE)]


@dataclass(frozen=True, kw_only=True)
class ConvertLoadingOptions(LoadingOptions):
    """How the model is loaded.

    Args:
        dtype: load weights as float32, bfloat16, float16 or float64; the default is the stored type.
    """


@computing_command
def convert(
    model: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A shipped model (glassformer models), a folder, a GGUF or llama2.c file, or a name in the Hugging "
            "Face cache.",
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to write; created if missing.")],
    loading: ConvertLoadingOptions,
    checks: CheckKeywords,
    to: Annotated[
        Literal["hf", "glassformer"],
        typer.Option(metavar="hf|glassformer", help="Write the format of Hugging Face or of this library."),
    ] = "hf",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a model in FOLDER.")] = False,
) -> None:
    """Convert a model to the format of Hugging Face or of this library.

    A missing or unknown weight is an error.
    """
    _check_folder(model, folder, force)
    source = str(pretrained.resolve(model))  # from its folder, a shipped model keeps the stored type
    _write(loading.load(source, **checks), folder, to)


def _write(loaded: "Loaded", folder: Path, to: str) -> None:
    from glassformer import hub
    from glassformer.text.pieces import TokenizerError

    try:
        tokenizer = loaded.tokenizer
    except TokenizerError as error:
        tokenizer = None
        typer.echo(f"no tokenizer is written: {message(error)}", err=True)
    hub.save(loaded, folder, to=to, tokenizer=tokenizer)
    for name, reason in loaded.report.unused.items():
        typer.echo(f"left out {name}: {reason}", err=True)
    for key in loaded.report.unknown_keys:
        typer.echo(f"config.json has an unknown key, which is ignored: {key}", err=True)
    typer.echo(f"wrote {folder}")


def _check_folder(model: str, folder: Path, force: bool) -> None:
    """Raise where a model would be overwritten: the source itself, or a model in the folder."""
    source = pretrained.resolve(Path(model).expanduser())
    if source.exists() and folder.exists() and source.samefile(folder):
        raise InputError(f"{folder} is SOURCE itself; name another folder to write to.")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder to write to.")
    held = [name for name in ("config.json", "glassformer.json") if (folder / name).exists()]
    if held and not force:
        raise InputError(f"{folder} already holds a model ({held[0]}); name another folder, or add --force.")


@as_command
def download(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model on the hub, such as openai-community/gpt2.")],
    revision: Annotated[str | None, typer.Option(metavar="REVISION", help="A branch, a tag or a commit.")] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Also download .bin, .pt and .pth files if there are no safetensors.")
    ] = False,
) -> None:
    """Download a model into the local Hugging Face cache and print its folder.

    Only weights, configs and tokenizers are downloaded, never code. NAME can then be used as MODEL in other commands.
    """
    from glassformer.weights.source import download_model

    typer.echo(download_model(name, revision=revision, allow_pickle=allow_pickle))
