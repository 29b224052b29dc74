"""From rows of many lengths to rectangles. What is real comes from the lengths, never from an id.

Shapes: ``B`` rows, ``T`` tokens of the longest row, ``N`` tokens of one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor

from glassformer.config.checks import check_choice, check_positive
from glassformer.data.objectives.base import IGNORE

Ids = Sequence[int] | Integer[Tensor, "_"]
PER_TOKEN = ("segments", "languages", "positions")  # what a model may be told of each token


@dataclass(frozen=True, eq=False)
class Text:
    """A row of tokens, framed as the model wants it, and what is known of each; all are as long as the ids."""

    ids: Ids
    segments: Ids | None = None
    languages: Ids | None = None
    positions: Ids | None = None  # None: counted from 0
    words: Ids | None = None  # the number of the word that each token is part of, −1 for a token of the frame

    def __post_init__(self) -> None:
        for name in (*PER_TOKEN, "words"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.ids):
                raise ValueError(f"{name} are one number per token: {len(self.ids)} ids, but {len(given)} {name}.")


def as_ids(ids: Ids) -> Int[Tensor, "N"]:
    """Numbers as a tensor of one axis; a tensor is not copied, so what comes back must not be written to."""
    found = torch.as_tensor(ids) if len(ids) else torch.zeros(0, dtype=torch.long)
    if found.ndim != 1 or found.is_floating_point() or found.dtype == torch.bool:
        raise TypeError(f"a row of ids is whole numbers in one axis; got {found.dtype} of shape {tuple(found.shape)}.")
    return found.long()


def as_text(example: Ids | Text) -> Text:
    """Ids alone are a text of which nothing more is known."""
    return example if isinstance(example, Text) else Text(as_ids(example))


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How rows are filled up to one length."""

    side: Literal["right", "left"] = "right"
    multiple: int = 1  # lengths are rounded up to a multiple of it: some hardware likes 8 or 64
    fill: int = 0  # the id in padded slots; the mask says that they are not real, so it matters to nobody

    def __post_init__(self) -> None:
        check_choice("side", self.side, ("right", "left"))
        check_positive(multiple=self.multiple)

    def rectangle(self, rows: Sequence[Integer[Tensor, "_"]], fill: int) -> Int[Tensor, "B T"]:
        """Rows with ``fill`` on one side."""
        real = self.mask(rows)
        out = torch.full(real.shape, fill)
        out[real] = torch.cat([*rows]).long()  # all at once: a batch of many short rows would take long otherwise
        return out

    def mask(self, rows: Sequence[Integer[Tensor, "_"]]) -> Bool[Tensor, "B T"]:
        """True where a row has a token."""
        if not rows:
            raise ValueError("a batch needs at least one example, got none.")
        lengths = [row.shape[0] for row in rows]
        width = -(-max(1, *lengths) // self.multiple) * self.multiple
        places, count = torch.arange(width), torch.tensor(lengths)[:, None]
        return places < count if self.side == "right" else places >= width - count

    def labels(self, rows: Sequence[Integer[Tensor, "_"]]) -> Int[Tensor, "B T"]:
        """Labels of tokens; padding is not judged."""
        return self.rectangle(rows, IGNORE)

    def inputs(self, texts: Sequence[Text]) -> dict[str, Tensor]:
        """The arguments of a model that reads these texts.

        There is no mask where nothing is padded: attention is quicker without one.
        """
        rows = [as_ids(text.ids) for text in texts]
        found = {"ids": self.rectangle(rows, self.fill)}
        if min(row.shape[0] for row in rows) < found["ids"].shape[-1]:
            found["mask"] = self.mask(rows)
        for name in PER_TOKEN:
            given = [getattr(text, name) for text in texts if getattr(text, name) is not None]
            if given and len(given) < len(texts):
                raise ValueError(f"{len(given)} of the {len(texts)} texts of a batch have {name}; say them for all.")
            if given:
                found[name] = self.rectangle([as_ids(numbers) for numbers in given], 0)
        return found
