"""Plain text in which words are hidden: the options, rows of text and samples that several jobs have in common.

Shapes: ``T`` tokens of one row.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.config.checks import check_probability
from glassformer.data.loader import Dataset
from glassformer.data.objectives import IGNORE, Masking, Padding, Text, Vocabulary
from glassformer.data.objectives.masking import Count
from glassformer.data.objectives.rows import as_ids
from glassformer.data.packing import Packed, PackedRows, StreamPlan
from glassformer.data.token_files import TokenFile
from glassformer.hub import Loaded
from glassformer.nn.modes import Evaluating
from glassformer.nn.norm import upcast
from glassformer.tasks.texts import frame
from glassformer.text.tokenizer import Tokenizer
from glassformer.training.jobs.base import RunContext
from glassformer.training.jobs.documents import Mapped, texts_of, token_file
from glassformer.training.reading import Records

Filled = Literal["full", "documents"]
SAMPLE_TOKENS = 60
BLANK = "____"
_SPACES = "\u0120\u010a\u0109\u010d"  # how byte-level vocabularies write space, new line, tab and carriage return


@dataclass(frozen=True, kw_only=True)
class Hiding:
    """Which words are hidden, and what stands in their place; see ``data.objectives.masking``."""

    share: float = 0.15
    split: tuple[float, ...] = (0.8, 0.1, 0.1)  # chances of the mask token, a random token, the token itself
    count: Count = "fixed"
    whole_words: bool = False  # all tokens of a word or none

    def __post_init__(self) -> None:
        check_probability(share=self.share)
        if len(self.split) != 3:
            raise ValueError(
                f"masking.split is the chances of the mask token, a random one and the token itself; got {self.split}."
            )

    def masking(self, tokenizer: Tokenizer) -> Masking:
        """The same for a vocabulary."""
        mask, random, same = self.split
        return Masking(
            vocabulary=Vocabulary.of(tokenizer),
            share=self.share,
            split=(mask, random, same),
            count=self.count,
            whole_words=self.whole_words,
        )

    def refuse_whole_words(self, job: str) -> None:
        """For jobs whose rows do not tell which tokens make a word."""
        if self.whole_words:
            raise ValueError(f"the job {job} hides tokens one by one; leave masking.whole_words at false.")


class Words:
    """Numbers the words of a row; which tokens begin one is read off the vocabulary once.

    Pieces of one kind go on with a word if they carry a prefix (``##``); byte-level ones begin one if they begin with
    white space, and ``▁`` says so openly. So punctuation that touches a word belongs to it in the latter two. Of other
    vocabularies it is not known, which is an error. In scripts without spaces a word ends where white space does.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        facts = json.loads(tokenizer.backend.to_str())
        model = facts["model"]
        cut = json.dumps([facts["pre_tokenizer"], facts["normalizer"]], ensure_ascii=False)
        names = [tokenizer.backend.id_to_token(number) or "" for number in range(tokenizer.vocab_size)]
        if model["type"] == "WordPiece":
            begins = [not name.startswith(model["continuing_subword_prefix"]) for name in names]
        elif '"ByteLevel"' in cut:
            begins = [name[:1] in _SPACES and name != "" for name in names]
        elif "▁" in cut:
            begins = [name.startswith("▁") for name in names]
        else:
            raise ValueError(
                "this vocabulary does not say which of its pieces begin a word (it has no ##, no ▁ and no bytes), so "
                "masking.whole_words cannot be; leave it at false."
            )
        self._begins = torch.tensor(begins)
        self._ordinary = Vocabulary.of(tokenizer).is_ordinary

    def __call__(self, ids: Int[Tensor, "T"]) -> Int[Tensor, "T"]:
        """The number of each token's word from 0 on, −1 for special tokens; after one of them a word begins."""
        ordinary = self._ordinary[ids]
        after_special = torch.cat((torch.tensor([True]), ~ordinary[:-1]))[: len(ids)]
        begins = (self._begins[ids] | after_special) & ordinary
        return (begins.cumsum(-1) - 1).where(ordinary, -1)


@dataclass(frozen=True, eq=False)
class Frame:
    """The tokenizer's own tokens around a text, and the numbers of its words where they are asked for."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    words: Words | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, whole_words: bool = False) -> "Frame":
        """That of a tokenizer."""
        found = frame(tokenizer, "a", name="a letter")
        before, after = (tuple(token.id for token in part) for part in (found.before, found.after))
        return cls(before, after, Words(tokenizer) if whole_words else None)

    @property
    def size(self) -> int:
        """How many tokens it has."""
        return len(self.before) + len(self.after)

    def room(self, length: int) -> int:
        """How many tokens of text a row of ``length`` has room for."""
        if length <= self.size:
            raise ValueError(f"batch.length={length} has no room for text within a frame of {self.size} tokens.")
        return length - self.size

    def around(self, ids: Int[Tensor, "_"]) -> Text:
        """A framed row; a token of the frame that ends the text already is not doubled."""
        if self.after and len(ids) and int(ids[-1]) == self.after[0]:
            ids = ids[:-1]
        row = torch.cat((torch.tensor(self.before, dtype=torch.long), ids, torch.tensor(self.after, dtype=torch.long)))
        return Text(row, words=None if self.words is None else self.words(row))


def separator(kit: RunContext) -> int:
    """The token that stands between texts: the one for it, or the one that ends a text."""
    return kit.token("sep" if kit.tokenizer.sep is not None or kit.tokenizer.eos is None else "eos")


def text_rows(
    kit: RunContext, parts: Mapping[str, Records[Any]], rows: Filled, *, whole_words: bool
) -> dict[str, Dataset[Text]]:
    """Framed rows of at most ``batch.length`` tokens, of every part.

    ``full``: the text runs on across documents, with a separator between them (Liu et al., 2019, section 4.2); a row
    ends where it is full, which need not be the end of a sentence. ``documents``: one row per document, cut.
    """
    around = Frame.of(kit.tokenizer, whole_words=whole_words)
    room, end = around.room(kit.recipe.batch.length), separator(kit) if rows == "full" else None
    made: dict[str, Dataset[Text]] = {}
    for part, some in parts.items():
        file = token_file(kit.folder, part, texts_of(some), some.fingerprint, kit.tokenizer, end=end)
        made[part] = _full(file, room, around) if rows == "full" else _documents(file, room, around)
    return made


def _full(file: TokenFile, room: int, around: Frame) -> Mapped[Text]:
    packed = PackedRows(file, StreamPlan(file.lengths, room))
    lengths = np.full(len(packed), room + around.size)
    lengths[-1] -= room * len(packed) - len(file.tokens)

    def framed(row: Packed) -> Text:
        return around.around(row.ids[row.documents > 0])

    return Mapped(packed, framed, lengths)


def _documents(file: TokenFile, room: int, around: Frame) -> Mapped[Text]:
    """One framed row per document."""
    lengths = file.lengths

    def framed(ids: Int[Tensor, "_"]) -> Text:
        return around.around(ids[:room])

    return Mapped(file, framed, np.minimum(lengths, room) + around.size, cut=int((lengths > room).sum()))


def sample_row(kit: RunContext, text: str, *, whole_words: bool) -> Text:
    """The beginning of a text as a framed row, short enough to be read."""
    around = Frame.of(kit.tokenizer, whole_words=whole_words)
    ids = kit.tokenizer.encode(text, special=False, allow_special=False)
    return around.around(torch.tensor(ids[: min(SAMPLE_TOKENS, around.room(kit.recipe.batch.length))]).long())


@torch.no_grad()
def answer_of(loaded: Loaded, text: Text) -> Any:
    """What the model's head says of one row."""
    device = next(loaded.model.parameters()).device
    inputs = {name: tensor.to(device) for name, tensor in Padding().inputs([text]).items()}
    with Evaluating(loaded.model):
        return loaded.model(**inputs)


def guess_words(loaded: Loaded, text: Text, masking: Masking) -> str:
    """A row with blanks, and below it the model's guess for each with its probability; what it was, if it is wrong."""
    words = None if text.words is None else as_ids(text.words)
    blanks = replace(masking, split=(1.0, 0.0, 0.0))
    seen, labels = blanks.hide(as_ids(text.ids), torch.Generator().manual_seed(0), words)
    answer = answer_of(loaded, replace(text, ids=seen))
    logits = answer[0] if isinstance(answer, tuple) else answer
    hidden = labels != IGNORE
    best = upcast(logits[0].cpu()[hidden]).softmax(-1).max(-1)
    name = partial(word, loaded.tokenizer)
    guesses = [
        f"{name(guess)} {chance:.0%}" + ("" if guess == right else f" ({name(right)})")
        for guess, chance, right in zip(
            best.indices.tolist(), best.values.tolist(), labels[hidden].tolist(), strict=True
        )
    ]
    return f"{readable(loaded.tokenizer, seen.tolist())}\n  → {' · '.join(guesses)}"


def word(tokenizer: Tokenizer, number: int) -> str:
    """A token for people; one that is white space as Python writes it."""
    text = tokenizer.decode([number])
    return text.strip() or repr(text)


def readable(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Ids as one line: blanks for mask tokens, and no other special tokens."""
    special = {tokenizer.id_of(token) for token in tokenizer.special.values()} - {tokenizer.mask}
    text = tokenizer.decode(number for number in ids if number not in special)
    if tokenizer.mask is not None:
        text = text.replace(tokenizer.special["mask"], f" {BLANK} ")
    return " ".join(text.split())
