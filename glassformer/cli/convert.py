"""``glassformer convert``: from one format of models to another; ``download``: from the Hugging Face hub."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli.errors import InputError, in_words
from glassformer.cli.options import Loading
from glassformer.cli.verbs import computing_verb, verb
from glassformer.config.checks import check_choice

if TYPE_CHECKING:
    from glassformer.hub import Loaded


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

    Only weights, configs and tokenizers are fetched, never code. Every verb then takes NAME as its MODEL.
    """
    from glassformer.weights.source import fetch

    typer.echo(fetch(name, revision=revision, allow_pickle=allow_pickle))
