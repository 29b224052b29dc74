"""``glassformer info``, ``convert`` and ``download``: what models are, and from where and into what they are read."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from glassformer.cli.errors import InputError, in_words
from glassformer.cli.options import Choosing, Loading, computing_verb, verb
from glassformer.cli.outputs import people, percent, print_table
from glassformer.config import Model, count, to_dict
from glassformer.config.checks import check_choice
from glassformer.families import presets
from glassformer.inspect.facts import facts_of
from glassformer.inspect.parts import Part, part_tree

if TYPE_CHECKING:
    from glassformer.hub import Loaded


@verb
def info(
    choosing: Choosing,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A published model's name, or a model's folder, GGUF or llama2.c file."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="For machines: the facts and the number of parameters.")
    ] = False,
) -> None:
    """List the published models, or show one: its facts as a tree, with the parameters of every part."""
    console = people()
    if model is None:
        _list(console, as_json)
        return
    facts = facts_of(model, **choosing.choices())
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
    for one in known:
        cited = f"{one.paper.authors} {one.paper.year}: {one.paper.title}"
        table.add_row(one.name, one.facts.family, f"{one.parameters:,}", "" if cited == paper else cited)
        paper = cited
    print_table(table)
    console.print(f"\n{len(known)} models. [bold]glassformer info NAME[/bold] shows one.")


def _tree(name: str, facts: Model) -> Tree:
    root = part_tree(facts)
    tree = Tree(_line(name, root, root.parameters))
    _branch(tree, root, root.parameters)
    return tree


def _branch(tree: Tree, part: Part, whole: int, copies: int = 1) -> None:
    for child in part.parts:
        _branch(tree.add(_line(child.name, child, whole, copies)), child, whole, copies * child.times)


def _line(name: str, part: Part, whole: int, copies: int = 1) -> Text:
    """Name, parameters of one copy, share of the whole model for all copies, and what the facts say."""
    line = Text.assemble((name, "bold"), f"  {part.parameters:,}")
    if part.times > 1:
        line.append(f" × {part.times} = {part.parameters * part.times:,}")
    if part.parameters != whole:
        line.append(f"  {percent(part.parameters * part.times * copies / whole)}", "dim")
    if part.says:
        line.append(f"  {part.says}", "cyan")
    return line


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What is refused; the names are those of ``hub.load``."""

    strict: Annotated[bool, typer.Option(help="Refuse keys of config.json that the lineage does not know.")] = False
    check_finite: Annotated[bool, typer.Option(help="Refuse weights with NaN or infinities.")] = False


@computing_verb
def convert(
    model: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A folder, a GGUF or llama2.c file, or a name in the Hugging Face cache."
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; made if it is not there.")],
    loading: Loading,
    checks: Checks,
    to: Annotated[
        str,
        typer.Option(
            metavar="hf|glassformer", help="hf: for Hugging Face. glassformer: facts and part names of our own."
        ),
    ] = "hf",
    force: Annotated[bool, typer.Option("--force", help="Write over a model that FOLDER holds already.")] = False,
) -> None:
    """Load SOURCE, with every weight accounted for, and write it to FOLDER."""
    check_choice("--to", to, ("glassformer", "hf"))
    _check_folder(model, folder, force)
    _write(loading.load(model, **asdict(checks)), folder, to)


def _write(loaded: "Loaded", folder: Path, to: str) -> None:
    from glassformer import hub
    from glassformer.text.pieces import TokenizerError

    try:
        tokenizer = loaded.tokenizer
    except TokenizerError as error:
        tokenizer = None
        typer.echo(f"no tokenizer is written: {in_words(error)}", err=True)
    hub.save(loaded, folder, to=to, tokenizer=tokenizer)
    for name, reason in loaded.report.spare.items():
        typer.echo(f"left out {name}: {reason}", err=True)
    for key in loaded.report.foreign:
        typer.echo(f"config.json has a key of its own that plays no part: {key}", err=True)
    typer.echo(f"wrote {folder}")


def _check_folder(model: str, folder: Path, force: bool) -> None:
    """Raise where a model would be lost: the source itself, or one that lies in the folder already."""
    place = Path(model).expanduser()
    if place.exists() and folder.exists() and place.samefile(folder):
        raise InputError(f"{folder} is SOURCE itself; name another folder to write to.")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder to write to.")
    held = [name for name in ("config.json", "glassformer.json") if (folder / name).exists()]
    if held and not force:
        raise InputError(f"{folder} holds a model already ({held[0]}); name another folder, or write over it: --force.")


@verb
def download(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model of the hub, such as openai-community/gpt2.")],
    revision: Annotated[str | None, typer.Option(metavar="REVISION", help="A branch, a tag or a commit.")] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Fetch .bin, .pt and .pth files where there are no safetensors.")
    ] = False,
) -> None:
    """Download a model into the local Hugging Face cache and print its folder.

    Only weights, configs and tokenizers are fetched, never code. Verbs that load a MODEL then take NAME for it.
    """
    from glassformer.weights.source import fetch

    typer.echo(fetch(name, revision=revision, allow_pickle=allow_pickle))
