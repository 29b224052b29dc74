"""Masking: which tokens of a row are masked, and what replaces them (Devlin et al., 2018, section 3.1).

The papers' programs differ in how many tokens are masked; ``count`` chooses one of three ways:

* ``fixed``: round(share · tokens), at least 1 (Devlin et al., 2018; Clark et al., 2020).
* ``rounded``: ⌊share · tokens + u⌋ for a random u in [0, 1), so that the share is exact on average (Liu et al., 2019).
* ``independent``: each token with probability ``share`` (Conneau and Lample, 2019).

In the first two, special tokens around the text count towards the length, as in those programs, though they are never
masked themselves. In each of the three at least one token of a row is masked, if any can be. Left out: a maximum number
of masked tokens per row (their programs need it for fixed shapes), and the preference of the third for rare words.

Shapes: ``B`` rows, ``T`` tokens of one row.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.config.checks import check_choice, check_positive_integer, check_probability
from glassformer.data.loader import Dataset
from glassformer.data.packing import Packed, PackedRows, StreamPlan
from glassformer.data.records import TextRecord
from glassformer.data.token_files import TokenFile
from glassformer.hub import Loaded
from glassformer.nn.modes import Evaluating
from glassformer.nn.norm import upcast
from glassformer.objectives.base import IGNORE, Batch, Padding, TokenRow, as_ids
from glassformer.objectives.examples import Mapped, PlainTextJob, texts_of, token_file
from glassformer.objectives.job import RunContext
from glassformer.recipes.rows import Records
from glassformer.tasks.batches import text_tokens
from glassformer.text.tokenizer import Tokenizer

CountRule = Literal["fixed", "rounded", "independent"]
COUNTS = get_args(CountRule)
RowFill = Literal["full", "documents"]
SAMPLE_TOKENS = 60
BLANK = "____"
_SPACES = "\u0120\u010a\u0109\u010d"  # space, new line, tab and carriage return in byte-level vocabularies


@dataclass(frozen=True)
class MaskVocabulary:
    """The vocabulary, as far as masking needs it."""

    size: int
    mask: int  # the id of the mask token
    special: frozenset[int]  # ids that are never masked and never used as random replacements

    def __post_init__(self) -> None:
        check_positive_integer(size=self.size)
        wrong = [number for number in (self.mask, *self.special) if not 0 <= number < self.size]
        if wrong:
            raise ValueError(f"special ids {wrong} are outside a vocabulary of {self.size}.")
        if len(self.special) == self.size:
            raise ValueError(f"all {self.size} ids are special; none is left as a random replacement.")

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "MaskVocabulary":
        """Return the vocabulary of a tokenizer; tokens with a role and those that it marks as special are special."""
        if tokenizer.mask is None:
            raise ValueError("this tokenizer has no mask token, so words cannot be masked; add one to its vocabulary.")
        added = tokenizer.backend.get_added_tokens_decoder()
        marked = {number for number, token in added.items() if token.special and number < tokenizer.vocab_size}
        return cls(
            tokenizer.vocab_size,
            tokenizer.mask,
            frozenset(marked | set(map(tokenizer.id_of, tokenizer.special.values()))),
        )

    @cached_property
    def is_ordinary(self) -> Bool[Tensor, "_"]:
        """True at the ids that are not special."""
        return torch.ones(self.size, dtype=torch.bool).index_fill(0, torch.tensor(sorted(self.special)).long(), False)

    @cached_property
    def ordinary(self) -> Int[Tensor, "_"]:
        """The ids that are not special."""
        return self.is_ordinary.nonzero().squeeze(-1)


def choose_tokens(
    maskable: Bool[Tensor, "T"],
    share: float,
    generator: torch.Generator,
    *,
    count: CountRule = "fixed",
    words: Int[Tensor, "T"] | None = None,
) -> Bool[Tensor, "T"]:
    """Return which of the maskable tokens to mask.

    With ``words``, the number of each token's word, all tokens of a word are masked or none; a word that would exceed
    the number of tokens to mask is skipped, unless nothing else is masked.
    """
    # Draw from positions, or from numbers of words.
    candidates, sizes = maskable.nonzero().squeeze(-1), None
    if words is not None:
        candidates, sizes = torch.unique(words[maskable], return_counts=True)
    if not len(candidates):
        return torch.zeros_like(maskable)
    # How many of them, in a random order.
    order = torch.randperm(len(candidates), generator=generator)
    if count == "independent":
        taken = order[torch.rand(len(candidates), generator=generator) < share]
    else:
        uniform = float(torch.rand((), generator=generator, dtype=torch.float64)) if count == "rounded" else None
        length = share * len(maskable)
        budget = max(1, round(length) if uniform is None else math.floor(length + uniform))
        taken = order[:budget] if sizes is None else order[_within(sizes[order], budget)]
    # At least one; of words, all of their tokens.
    drawn = candidates[taken if len(taken) else order[:1]]
    if words is not None:
        return torch.isin(words, drawn) & maskable
    return torch.zeros_like(maskable).index_fill(0, drawn, True)


def _within(sizes: Int[Tensor, "W"], budget: int) -> Bool[Tensor, "W"]:
    """Return which words to take, in this order, so that they have at most ``budget`` tokens."""
    taken = []
    for size in sizes.tolist():
        taken.append(size <= budget)
        budget -= size if taken[-1] else 0
    return torch.tensor(taken)


def replace_tokens(
    ids: Int[Tensor, "T"],
    chosen: Bool[Tensor, "T"],
    vocabulary: MaskVocabulary,
    generator: torch.Generator,
    split: tuple[float, float, float] = (0.8, 0.1, 0.1),
) -> Int[Tensor, "T"]:
    """Return ids with the chosen ones replaced: by the mask token, by a random ordinary token, or by themselves.

    ``split`` are the probabilities of the three, drawn for each token, also within a word.
    """
    number = int(chosen.sum())
    uniform = torch.rand(number, generator=generator, dtype=torch.float64)
    random = vocabulary.ordinary[torch.randint(len(vocabulary.ordinary), (number,), generator=generator)]
    replacements = ids[chosen].where(uniform >= split[0] + split[1], random).where(uniform >= split[0], vocabulary.mask)
    return ids.masked_scatter(chosen, replacements)


@dataclass(frozen=True, kw_only=True)
class Masking:
    """How tokens are masked."""

    vocabulary: MaskVocabulary
    share: float = 0.15
    split: tuple[float, float, float] = (0.8, 0.1, 0.1)  # mask token, random token, the token itself
    count: CountRule = "fixed"
    whole_words: bool = False

    def __post_init__(self) -> None:
        check_probability(share=self.share)
        check_choice("count", self.count, COUNTS)
        if min(self.split) < 0 or not math.isclose(sum(self.split), 1):
            raise ValueError(
                f"split holds the probabilities of mask, random and same token, which add up to 1; got {self.split}."
            )

    def apply(
        self, ids: Int[Tensor, "T"], generator: torch.Generator, words: Int[Tensor, "T"] | None = None
    ) -> tuple[Int[Tensor, "T"], Int[Tensor, "T"]]:
        """(Ids with some masked, labels: the original id of a masked token, else ``IGNORE``)."""
        if self.whole_words and words is None:
            raise ValueError("whole_words needs the words of the tokens: pass words, a number per token.")
        maskable = self.vocabulary.is_ordinary[ids]
        if words is not None:
            maskable &= words >= 0
        chosen = choose_tokens(
            maskable, self.share, generator, count=self.count, words=words if self.whole_words else None
        )
        noisy = replace_tokens(ids, chosen, self.vocabulary, generator, self.split)
        return noisy, ids.where(chosen, IGNORE)


def masked_batch(texts: Sequence[TokenRow], masking: Masking, generator: torch.Generator, padding: Padding) -> Batch:
    """Return a batch of rows with masked tokens; its labels and count are named ``masked``."""
    noisy, labels = [], []
    for text in texts:
        words = None if text.words is None else as_ids(text.words)
        ids, targets = masking.apply(as_ids(text.ids), generator, words)
        noisy.append(replace(text, ids=ids))
        labels.append(targets)
    inputs, padded = padding.inputs(noisy), padding.labels(labels)  # B T
    count = int((padded != IGNORE).sum())
    tokens = sum(len(text.ids) for text in texts)
    return Batch(inputs=inputs, labels={"masked": padded}, counts={"masked": count}, tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class MaskingOptions:
    """Recipe options: which tokens are masked, and how they are replaced."""

    share: float = 0.15
    split: tuple[float, ...] = (0.8, 0.1, 0.1)  # probabilities of the mask token, a random token, the token itself
    count: CountRule = "fixed"
    whole_words: bool = False  # all tokens of a word or none

    def __post_init__(self) -> None:
        check_probability(share=self.share)
        if len(self.split) != 3:
            raise ValueError(
                f"masking.split holds 3 probabilities: mask token, random token, the token itself; got {self.split}."
            )

    def masking(self, tokenizer: Tokenizer) -> Masking:
        """Return these options with the vocabulary of a tokenizer."""
        mask, random, same = self.split
        return Masking(
            vocabulary=MaskVocabulary.of(tokenizer),
            share=self.share,
            split=(mask, random, same),
            count=self.count,
            whole_words=self.whole_words,
        )

    def refuse_whole_words(self, job: str) -> None:
        """Raise if ``whole_words`` is set, for jobs whose rows have no word numbers."""
        if self.whole_words:
            raise ValueError(f"the job {job} masks tokens one by one; leave masking.whole_words at false.")


class WordNumbering:
    """Numbers the words of a row. Which tokens begin a word follows from the vocabulary.

    With WordPiece all tokens without the prefix ``##`` begin a word; in byte-level vocabularies those that begin with
    white space, in others those that begin with ``▁``. In the latter two, punctuation that touches a word belongs to
    it. Other vocabularies are an error. In scripts without spaces a word ends at white space.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Which tokens begin a word, by the kind of vocabulary.
        page = json.loads(tokenizer.backend.to_str())
        model = page["model"]
        splitting = json.dumps([page["pre_tokenizer"], page["normalizer"]], ensure_ascii=False)
        names = [tokenizer.backend.id_to_token(number) or "" for number in range(tokenizer.vocab_size)]
        if model["type"] == "WordPiece":
            begins = [not name.startswith(model["continuing_subword_prefix"]) for name in names]
        elif '"ByteLevel"' in splitting:
            begins = [name[:1] in _SPACES and name != "" for name in names]
        elif "▁" in splitting:
            begins = [name.startswith("▁") for name in names]
        else:
            raise ValueError(
                "this vocabulary does not say which of its pieces begin a word (it has no ##, no ▁ and no bytes), so "
                "masking.whole_words is impossible; leave it at false."
            )
        self._begins = torch.tensor(begins)
        self._ordinary = MaskVocabulary.of(tokenizer).is_ordinary

    def __call__(self, ids: Int[Tensor, "T"]) -> Int[Tensor, "T"]:
        """Return the number of each token's word, from 0; −1 for special tokens, after which a new word begins."""
        ordinary = self._ordinary[ids]
        after_special = torch.cat((torch.tensor([True]), ~ordinary[:-1]))[: len(ids)]
        begins = (self._begins[ids] | after_special) & ordinary
        return (begins.cumsum(-1) - 1).where(ordinary, -1)


@dataclass(frozen=True, eq=False)
class Frame:
    """The tokenizer's special tokens around a text, and the numbering of words if it is needed."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    words: WordNumbering | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, whole_words: bool = False) -> "Frame":
        """Return the special tokens that a tokenizer puts around a text."""
        letter = text_tokens(tokenizer, "a", name="a letter")
        before, after = (tuple(token.id for token in part) for part in (letter.before, letter.after))
        return cls(before, after, WordNumbering(tokenizer) if whole_words else None)

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.after)

    def max_text(self, length: int) -> int:
        """Return the most tokens of text in a row of ``length``."""
        if length <= self.size:
            raise ValueError(f"batch.length={length} leaves no space for text between {self.size} special tokens.")
        return length - self.size

    def add_to(self, ids: Int[Tensor, "_"]) -> TokenRow:
        """Return ids with the special tokens around; one that ends the text already is not doubled."""
        if self.after and len(ids) and int(ids[-1]) == self.after[0]:
            ids = ids[:-1]
        row = torch.cat((torch.tensor(self.before, dtype=torch.long), ids, torch.tensor(self.after, dtype=torch.long)))
        return TokenRow(row, words=None if self.words is None else self.words(row))


def separator(run: RunContext) -> int:
    """Return the token between texts: ``sep`` if the tokenizer has it, else ``eos``."""
    return run.token("sep" if run.tokenizer.sep is not None or run.tokenizer.eos is None else "eos")


def text_rows(
    run: RunContext, parts: Mapping[str, Records[Any]], rows: RowFill, *, whole_words: bool
) -> dict[str, Dataset[TokenRow]]:
    """Return rows of at most ``batch.length`` tokens with special tokens around, of every part.

    ``full``: rows continue across documents, with a separator between them (Liu et al., 2019, section 4.2), and end
    where they are full, even within a sentence. ``documents``: one row per document, truncated.
    """
    special = Frame.of(run.tokenizer, whole_words=whole_words)
    longest, end = special.max_text(run.recipe.batch.length), separator(run) if rows == "full" else None
    datasets: dict[str, Dataset[TokenRow]] = {}
    for part, records in parts.items():
        file = token_file(run.folder, part, texts_of(records), records.fingerprint, run.tokenizer, end=end)
        datasets[part] = (_full_rows if rows == "full" else _document_rows)(file, longest, special)
    return datasets


def _full_rows(file: TokenFile, longest: int, special: Frame) -> Mapped[TokenRow]:
    packed = PackedRows(file, StreamPlan(file.lengths, longest))
    lengths = np.full(len(packed), longest + special.size)
    lengths[-1] -= longest * len(packed) - len(file.tokens)

    def with_specials(row: Packed) -> TokenRow:
        return special.add_to(row.ids[row.documents > 0])

    return Mapped(packed, with_specials, lengths)


def _document_rows(file: TokenFile, longest: int, special: Frame) -> Mapped[TokenRow]:
    lengths = file.lengths

    def with_specials(ids: Int[Tensor, "_"]) -> TokenRow:
        return special.add_to(ids[:longest])

    return Mapped(file, with_specials, np.minimum(lengths, longest) + special.size, cut=int((lengths > longest).sum()))


def sample_row(run: RunContext, text: str, *, whole_words: bool) -> TokenRow:
    """Return the beginning of a text with special tokens around, short enough to print."""
    special = Frame.of(run.tokenizer, whole_words=whole_words)
    ids = run.tokenizer.encode(text, special=False, allow_special=False)
    longest = min(SAMPLE_TOKENS, special.max_text(run.recipe.batch.length))
    return special.add_to(torch.tensor(ids[:longest]).long())


@torch.no_grad()
def predict_row(loaded: Loaded, text: TokenRow) -> Any:
    """Return the output of the model's head for one row."""
    device = next(loaded.model.parameters()).device
    inputs = {name: tensor.to(device) for name, tensor in Padding().inputs([text]).items()}
    with Evaluating(loaded.model):
        return loaded.model(**inputs)


def show_predictions(loaded: Loaded, text: TokenRow, masking: Masking) -> str:
    """Return a row with blanks, and the model's prediction for each with its probability; the label if it is wrong."""
    words = None if text.words is None else as_ids(text.words)
    blanks = replace(masking, split=(1.0, 0.0, 0.0))
    ids, labels = blanks.apply(as_ids(text.ids), torch.Generator().manual_seed(0), words)
    output = predict_row(loaded, replace(text, ids=ids))
    logits = output[0] if isinstance(output, tuple) else output
    masked = labels != IGNORE
    best = upcast(logits[0].cpu()[masked]).softmax(-1).max(-1)
    name = partial(show_token, loaded.tokenizer)
    predictions = [
        f"{name(token)} {probability:.0%}" + ("" if token == label else f" ({name(label)})")
        for token, probability, label in zip(
            best.indices.tolist(), best.values.tolist(), labels[masked].tolist(), strict=True
        )
    ]
    return f"{show_ids(loaded.tokenizer, ids.tolist())}\n  → {' · '.join(predictions)}"


def show_token(tokenizer: Tokenizer, number: int) -> str:
    """Return a token as readable text; white space as in Python source."""
    text = tokenizer.decode([number])
    return text.strip() or repr(text)


def show_ids(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Return ids as one line: blanks for mask tokens, and no other special tokens."""
    special = {tokenizer.id_of(token) for token in tokenizer.special.values()} - {tokenizer.mask}
    text = tokenizer.decode(number for number in ids if number not in special)
    if tokenizer.mask is not None:
        text = text.replace(tokenizer.special["mask"], f" {BLANK} ")
    return " ".join(text.split())


class MaskingJob(PlainTextJob):
    """Base of the jobs that mask tokens of plain text; their options have ``masking`` and ``rows``."""

    def examples(self, run: RunContext, parts: Mapping[str, Records[TextRecord]]) -> dict[str, Dataset[Any]]:
        """Return rows of at most ``batch.length`` tokens, special tokens included."""
        return {**text_rows(run, parts, self.options.rows, whole_words=self.options.masking.whole_words)}

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[TextRecord]) -> list[str]:
        """Return the beginning of each text, with the model's predictions (``sample``)."""
        options: MaskingOptions = self.options.masking
        masking = options.masking(run.tokenizer)
        texts = [sample_row(run, row.text, whole_words=options.whole_words) for row in rows]
        return [self.sample(loaded, text, masking) for text in texts]

    def sample(self, loaded: Loaded, text: TokenRow, masking: Masking) -> str:
        """Return a row with blanks, and the model's predictions."""
        return show_predictions(loaded, text, masking)
