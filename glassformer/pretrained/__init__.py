"""The trained models that ship with the package: their names, their folders and what each is for.

Each folder has the Hugging Face layout and a model card. The name of a shipped model can be used wherever a model's
folder can; an existing file or folder of that name comes first. The weights are stored in bfloat16 to be small, and
computed in float32 by default, in commands, in Python and in the viewer alike.
"""

import os
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class ShippedModel:
    """A trained model in this package."""

    name: str
    task: str
    score: str  # on the held-out test set; the model card has all scores
    example: str  # a command

    @property
    def folder(self) -> Path:
        """The folder with its config, weights and tokenizer."""
        return FOLDER / self.name

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.stat().st_size for file in self.folder.iterdir())


MODELS = {
    model.name: model
    for model in (
        ShippedModel(
            "en-zh",
            "English to Chinese, Chinese to English",
            "chrF 30.2 to Chinese, 51.3 to English",
            'glassformer translate en-zh "I love you."',
        ),
        ShippedModel(
            "stories",
            "short stories from an opening",
            "perplexity 11.2 per token",
            'glassformer generate stories "Once upon a time" --stream',
        ),
        ShippedModel(
            "mlm-en",
            "masked words, sentence pairs",
            "45.2 % of masked tokens",
            'glassformer fill mlm-en "There was a little [MASK] named Lily."',
        ),
        ShippedModel(
            "ner-en",
            "persons, places, organisations",
            "entity F1 0.672",
            'glassformer tag ner-en "Marie Curie was born in Warsaw."',
        ),
    )
}


def names() -> tuple[str, ...]:
    """Return the names of the shipped models."""
    return tuple(MODELS)


def path(name: str) -> Path:
    """Return the folder of a shipped model."""
    if name not in MODELS:
        raise ValueError(f"no shipped model is called {name!r}; there are {', '.join(MODELS)}.")
    return MODELS[name].folder


def is_named(name_or_path: str | os.PathLike[str]) -> bool:
    """Whether this names a shipped model; an existing file or folder of that name comes first."""
    local = Path(name_or_path)
    return str(local) in MODELS and not local.exists()


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """Return the path itself if it exists or names no shipped model, else the folder of the shipped model."""
    if not os.fspath(name_or_path):  # a variable of the shell that is not set, say
        raise ValueError("the name of the model is empty; the current folder is '.'.")
    return MODELS[str(Path(name_or_path))].folder if is_named(name_or_path) else Path(name_or_path)
