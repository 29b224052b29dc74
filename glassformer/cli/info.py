"""``glassformer info``: the published models, or one of them (or a folder's) as a tree of its parts."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from glassformer.cli.options import Choosing
from glassformer.cli.outputs import people, percent, print_table
from glassformer.cli.verbs import verb
from glassformer.config import Model, count, to_dict
from glassformer.families import presets
from glassformer.inspect.facts import facts_of
from glassformer.inspect.parts import Part, part_tree


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
