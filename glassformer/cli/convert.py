"""``glassformer convert``: from one format of models to another."""

from pathlib import Path
from typing import Annotated

import typer

from glassformer.cli.errors import plain_errors


def convert(
    source: Annotated[
        str, typer.Argument(help="A folder, a GGUF or llama2.c file, or a name in the Hugging Face cache.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where to write; made if it is not there.")],
    to: Annotated[str, typer.Option(help="hf: for Hugging Face. glassformer: facts and part names of our own.")] = "hf",
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 or float64; as stored unless given.")
    ] = None,
    head: Annotated[str | None, typer.Option(help="Another head than the source's own: lm, classify, none …")] = None,
    strict: Annotated[bool, typer.Option(help="Refuse keys of config.json that the lineage does not know.")] = False,
    allow_pickle: Annotated[bool, typer.Option(help="Open .bin, .pt and .pth files, for their tensors alone.")] = False,
    check_finite: Annotated[bool, typer.Option(help="Refuse weights with NaN or infinities.")] = False,
) -> None:
    """Load SOURCE, with every weight accounted for, and write it to FOLDER."""
    with plain_errors():
        import torch

        from glassformer import hub
        from glassformer.config.checks import check_choice
        from glassformer.text.pieces import TokenizerError

        check_choice("--to", to, ("glassformer", "hf"))
        types = {
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
            "float64": torch.float64,
        }
        if dtype is not None:
            check_choice("--dtype", dtype, types)
        options: hub.Options = {"strict": strict, "allow_pickle": allow_pickle, "check_finite": check_finite}
        if head is not None:
            options["head"] = head
        loaded = hub.load(source, dtype=None if dtype is None else getattr(torch, dtype), **options)
        try:
            tokenizer = loaded.tokenizer
        except TokenizerError as error:
            tokenizer = None
            typer.echo(f"no tokenizer is written: {error}", err=True)
        hub.save(loaded, folder, to=to, tokenizer=tokenizer)
    for name, reason in loaded.report.spare.items():
        typer.echo(f"left out {name}: {reason}", err=True)
    for key in loaded.report.foreign:
        typer.echo(f"config.json has a key of its own that plays no part: {key}", err=True)
    typer.echo(f"wrote {folder}")
