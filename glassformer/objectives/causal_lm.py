"""Causal language modelling: predict each token from all before it (Radford et al., 2018), for a decoder.

Inputs are a row without its last token, labels the row without its first; they are shifted nowhere else. A prompt or a
control code (Keskar et al., 2019) is read but not predicted. Documents packed into one row attend only to themselves
(the mask has their numbers), and none predicts the first token of the next.

Shapes: ``B`` rows, ``T`` tokens of a row, ``M`` documents, ``N`` tokens of a text, ``n`` tokens of a window.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int, Int64, Integer
from torch import Tensor, nn

from glassformer.config import LMHead
from glassformer.config.checks import check_choice, check_count, check_positive_integer, check_probability
from glassformer.data.loader import Dataset
from glassformer.data.packing import BestFitPlan, Documents, Packed, PackedRows
from glassformer.data.records import LabelledRecord, TextRecord
from glassformer.data.token_files import TokenFile
from glassformer.generation.prompts import PromptInput
from glassformer.generation.text import generate_text
from glassformer.hub import Loaded
from glassformer.metrics.text import perplexity
from glassformer.nn.modes import Evaluating
from glassformer.objectives.base import (
    IGNORE,
    Batch,
    Ids,
    Loss,
    ModelRequirement,
    Padding,
    TokenRow,
    as_ids,
    label_loss,
)
from glassformer.objectives.examples import (
    DatasetSlice,
    EncodedExamples,
    Mapped,
    PlainTextJob,
    texts_of,
    token_file,
)
from glassformer.objectives.job import Job, RunContext
from glassformer.recipes.rows import Records
from glassformer.text.tokenizer import TokenizerError

_TOO_SHORT = "a row of fewer than two tokens has no next token to predict; leave it out."
NEEDS = ModelRequirement("NextToken", LMHead, families=("decoder",))
SAMPLE_TOKENS = 120


@dataclass(frozen=True, eq=False)
class Document:
    """A text whose first ``prompt_tokens`` tokens (a prompt, a control code) are read but not predicted."""

    ids: Ids
    prompt_tokens: int = 0
    language: int | None = None  # for models with language embeddings

    def __post_init__(self) -> None:
        check_count(prompt_tokens=self.prompt_tokens)


@dataclass(frozen=True, eq=False)
class PackedDocuments:
    """Several documents in one row, each attending only to itself."""

    documents: Sequence[Ids | Document]


def with_code(ids: Ids, code: int, *, bos: int | None = None, predicted: bool = False) -> Document:
    """``bos`` (if any), a control code and a text (Keskar et al., 2019, section 3).

    A code that comes first cannot be predicted: there is nothing before it to predict it from.
    """
    if predicted and bos is None:
        raise ValueError(f"the control code {code} comes first, so nothing predicts it; pass bos, or predicted=False.")
    before = [code] if bos is None else [bos, code]
    return Document(torch.cat((torch.tensor(before), as_ids(ids))), prompt_tokens=0 if predicted else len(before))


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """Cross-entropy of every token but the first of each document. A row of N tokens has N − 1 labels."""

    smoothing: float = 0.0
    padding: Padding = field(default_factory=Padding)
    chunk: int | None = None  # positions whose logits are computed at a time; see ``model_token_loss``

    def __post_init__(self) -> None:
        check_probability(smoothing=self.smoothing)

    @property
    def traceable(self) -> bool:
        """With a ``chunk``, heads that are not fused select positions by value."""
        return self.chunk is None

    def prepare(self, examples: Sequence[Ids | Document | PackedDocuments], generator: torch.Generator) -> Batch:
        """Return rows of ids, documents or packed documents; nothing is random."""
        del generator
        # Windows of one length, the usual case: nothing to pad, so all rows at once.
        rows = [row for row in examples if isinstance(row, Tensor) and row.ndim == 1 and row.dtype == torch.long]
        lengths = {len(row) for row in rows}
        if len(rows) == len(examples) and len(lengths) == 1 and min(lengths) > 1 and self.padding.multiple == 1:
            ids = torch.stack(rows)  # B T+1
            inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()  # B T
            count = targets.numel()
            return Batch(inputs={"ids": inputs}, labels={"next": targets}, counts={"next": count}, tokens=count)
        # Otherwise rows are padded, and packed documents get their numbers as the mask.
        texts, labels, numbers = zip(*(_row(example) for example in examples), strict=True) if examples else ((),) * 3
        arguments = self.padding.inputs(texts)
        if any(isinstance(example, PackedDocuments) for example in examples):
            arguments["mask"] = self.padding.padded(numbers, 0)
        targets = self.padding.labels(labels)  # B T
        count = int((targets != IGNORE).sum())
        tokens = sum(len(text.ids) for text in texts)
        return Batch(inputs=arguments, labels={"next": targets}, counts={"next": count}, tokens=tokens)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return one term, ``next``."""
        NEEDS.check(model)
        return label_loss(model, batch, "next", smoothing=self.smoothing, chunk=self.chunk)


def _row(example: Ids | Document | PackedDocuments) -> tuple[TokenRow, Tensor, Tensor]:
    """(Inputs, labels, the number of each token's document from 1) of one row."""
    items = example.documents if isinstance(example, PackedDocuments) else [example]
    documents = [item if isinstance(item, Document) else Document(item) for item in items]
    rows = [as_ids(document.ids) for document in documents]
    if sum(map(len, rows)) < 2:
        raise ValueError(_TOO_SHORT)
    labels = [
        row.where(torch.arange(len(row)) >= max(1, d.prompt_tokens), IGNORE)
        for row, d in zip(rows, documents, strict=True)
    ]
    numbers = torch.cat([torch.full_like(row, number) for number, row in enumerate(rows, start=1)])
    text = TokenRow(torch.cat(rows)[:-1], languages=_languages(documents, rows))
    return text, torch.cat(labels)[1:], numbers[:-1]


def _languages(documents: Sequence[Document], rows: Sequence[Tensor]) -> Tensor | None:
    languages = [document.language for document in documents if document.language is not None]
    if not languages:
        return None
    if len(languages) < len(rows):
        raise ValueError(f"{len(languages)} of the {len(rows)} documents of a row have a language; set it for all.")
    return torch.cat([torch.full_like(row, number) for row, number in zip(rows, languages, strict=True)])[:-1]


class Windows:
    """Windows over one long text, by number: window i starts at token i · ``stride``.

    A window has ``length`` tokens and the next one, so that each of its tokens has a label. With ``stride=length``
    every token of the text but the first is a label exactly once; the last window is shorter. ``fingerprint`` is a
    SHA-256 of the tokens and the settings.

    Args:
        tokens: the text as ids; may be memory-mapped.
        length: tokens of a window.
        stride: tokens from the start of one window to the start of the next.
        source: a SHA-256 of the tokens, if it is known; else it is computed.
    """

    def __init__(
        self, tokens: Integer[np.ndarray, "N"], length: int, *, stride: int = 1, source: str | None = None
    ) -> None:
        check_positive_integer(length=length, stride=stride)
        if len(tokens) < 2:
            raise ValueError(f"a text of {len(tokens)} tokens has no next token to learn; pass a longer text.")
        self._tokens, self._length, self._stride = tokens, length, stride
        self._count = max(1, -(-(len(tokens) - 1 - length) // stride) + 1)
        source = source or hashlib.sha256(np.ascontiguousarray(tokens).tobytes()).hexdigest()
        facts = f"windows {source} {len(tokens)} {length} {stride}"
        self.fingerprint = hashlib.sha256(facts.encode()).hexdigest()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Int[Tensor, "n"]:
        if not 0 <= number < self._count:
            raise IndexError(f"there are {self._count:,} windows, numbered from 0; got {number}.")
        start = number * self._stride
        return torch.from_numpy(self._tokens[start : start + self._length + 1].astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class LanguageOptions:
    """How text is split into rows.

    ``windows``: windows that start at a random token, across the ends of documents. ``documents``: whole documents
    packed into rows, each attending only to itself.
    """

    rows: Literal["windows", "documents"] = "windows"
    smoothing: float = 0.0
    chunk: int | None = None  # positions whose logits are computed at a time, for a large vocabulary
    prompt: str | None = None  # of samples; None: an empty line, or the start of a document

    def __post_init__(self) -> None:
        check_choice("objective.rows", self.rows, ("windows", "documents"))


class LanguageJob(PlainTextJob):
    """Plain text; without validation files, the end of the text is held out."""

    head = "lm"
    options_type = LanguageOptions
    holds_out_rows = False

    def tokenizer_texts(self, rows: Records[TextRecord]) -> Iterable[str]:
        """Yield the training text, without its end if that is held out."""
        share = 0.0 if self.recipe.data.valid is not None else self.recipe.data.held_out
        left = round((1 - share) * sum(len(row.text) for row in rows))
        for row in rows:
            yield row.text[:left]
            left -= len(row.text)
            if left <= 0:
                return

    def objective(self, run: RunContext) -> NextToken:
        """Return the objective: cross-entropy of every token but the first of its row."""
        del run
        return NextToken(smoothing=self.options.smoothing, chunk=self.options.chunk)

    def examples(self, run: RunContext, parts: Mapping[str, Records[TextRecord]]) -> dict[str, Dataset[Any]]:
        """Return rows of ``batch.length`` tokens."""
        tokenizer, alone = run.tokenizer, self.options.rows == "documents"
        specials = {"start": tokenizer.bos if alone else None, "end": tokenizer.eos}
        files = {
            part: token_file(run.folder, part, texts_of(rows), rows.fingerprint, tokenizer, **specials)
            for part, rows in parts.items()
        }
        if alone:
            return {part: self._packed(*documents) for part, documents in self._documents(files).items()}
        return self._windows(files)

    def _windows(self, files: Mapping[str, TokenFile]) -> dict[str, Dataset[Any]]:
        length, share = self.recipe.batch.length, self.recipe.data.held_out
        tokens = {part: (file.tokens, file.fingerprint) for part, file in files.items()}
        if "valid" not in tokens and "train" in tokens and share:
            whole, name = tokens["train"]
            cut = len(whole) - max(2, int(len(whole) * share))
            tokens |= {"train": (whole[:cut], f"{name} to {cut}"), "valid": (whole[cut:], f"{name} from {cut}")}
        return {
            part: Windows(ids, length, stride=1 if part == "train" else length, source=name)
            for part, (ids, name) in tokens.items()
        }

    def _documents(self, files: Mapping[str, TokenFile]) -> dict[str, tuple[Documents, Int64[np.ndarray, "M"]]]:
        """Return the documents of each part, and their lengths."""
        documents: dict[str, tuple[Documents, Any]] = {part: (file, file.lengths) for part, file in files.items()}
        share = self.recipe.data.held_out
        if "valid" in files or "train" not in files or not share:
            return documents
        whole, lengths = files["train"], files["train"].lengths
        if len(whole) < 2:
            raise ValueError("a single document cannot be both training and validation data; set data.valid=FILE.")
        cut = len(whole) - max(1, int(len(whole) * share))
        for part, first, last in (("train", 0, cut), ("valid", cut, len(whole))):
            rows = DatasetSlice(whole, first, last, f"{whole.fingerprint} documents {first} to {last}")
            documents[part] = rows, lengths[first:last]
        return documents

    def _packed(self, documents: Documents, lengths: Int64[np.ndarray, "M"]) -> Dataset[Any]:
        length = self.recipe.batch.length + 1  # the last token of a row is only a label
        rows = PackedRows(documents, BestFitPlan(lengths, length, too_long="split"))

        def unpack(row: Packed) -> PackedDocuments:
            return PackedDocuments(row.pieces())

        return Mapped[PackedDocuments](rows, unpack, [length] * len(rows))

    def derived_metrics(self, loss: float) -> dict[str, float]:
        """Return perplexity per token."""
        return {"perplexity": perplexity(loss, 1).perplexity}

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[TextRecord]) -> list[str]:
        """Return texts that the model generates after a prompt."""
        default = "" if self.options.rows == "documents" and run.tokenizer.bos is not None else "\n"
        prompt = default if self.options.prompt is None else self.options.prompt
        return [f"{prompt}{text}" for text in _continuations(run, loaded, [prompt] * len(rows))]


def _continuations(run: RunContext, loaded: Loaded, prompts: Sequence[PromptInput]) -> list[str]:
    """Return what the model samples after each prompt, each with a seed of its own: prompts may be equal."""
    length = max(1, min(SAMPLE_TOKENS, run.recipe.batch.length - 2))
    seeds = range(len(prompts))
    generated = generate_text(loaded, prompts, max_new_tokens=length, temperature=0.8, top_k=200, seed=[*seeds])
    return [texts[0].text for texts in generated]


def code_token(label: str) -> str:
    """Return the special token of a control code."""
    return f"<|{label}|>"


class ControlledJob(Job[LabelledRecord]):
    """Text after a control code that names its kind (Keskar et al., 2019)."""

    head = "lm"
    options_type = LanguageOptions

    def texts(self, row: LabelledRecord) -> Iterable[str]:
        """Return the text."""
        return (row.text,)

    def special(self, rows: Iterable[LabelledRecord]) -> tuple[str, ...]:
        """Return a token for every label."""
        return tuple(code_token(label) for label in sorted({row.label for row in rows}))

    def objective(self, run: RunContext) -> NextToken:
        """Return the objective: cross-entropy of every token after the code."""
        del run
        return NextToken(smoothing=self.options.smoothing, chunk=self.options.chunk)

    def examples(self, run: RunContext, parts: Mapping[str, Records[LabelledRecord]]) -> dict[str, Dataset[Any]]:
        """Return documents after their codes, truncated to ``batch.length``."""
        return {part: self._coded(run, rows) for part, rows in parts.items()}

    def _coded(self, run: RunContext, rows: Records[LabelledRecord]) -> EncodedExamples[Document]:
        tokenizer, length = run.tokenizer, self.recipe.batch.length
        end = [] if tokenizer.eos is None else [tokenizer.eos]
        documents, cut = [], 0
        for row in rows:
            ids = tokenizer.encode(row.text, special=False, allow_special=False) + end
            documents.append(with_code(torch.tensor(ids[:length], dtype=torch.long), _code(run, row)))
            cut += len(ids) > length
        return EncodedExamples(documents, [len(document.ids) for document in documents], rows.fingerprint, cut=cut)

    def metrics(self, run: RunContext, loaded: Loaded, rows: Sequence[LabelledRecord]) -> dict[str, float]:
        """Return the share of texts that are most likely after their own code, of all codes."""
        codes = {row.label: _code(run, row) for row in sorted(rows, key=lambda row: row.label)}
        if len(codes) < 2:
            return {}
        right = 0
        for row in rows:
            ids = run.tokenizer.encode(row.text, special=False, allow_special=False)[: run.recipe.batch.length]
            losses = {label: self._loss(loaded, ids, code) for label, code in codes.items()}
            right += min(losses, key=losses.__getitem__) == row.label
        return {"code accuracy": right / len(rows)}

    @torch.no_grad()
    def _loss(self, loaded: Loaded, ids: Sequence[int], code: int) -> float:
        device = next(loaded.model.parameters()).device
        batch = NextToken().prepare([with_code(ids, code)], torch.Generator()).to(device)
        with Evaluating(loaded.model):
            mean = float(NextToken().loss(loaded.model, batch).mean())
        return mean if math.isfinite(mean) else math.inf

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[LabelledRecord]) -> list[str]:
        """Return what the model generates after the codes of these rows."""
        texts = _continuations(run, loaded, [[_code(run, row)] for row in rows])
        return [f"{code_token(row.label)} {text}" for row, text in zip(rows, texts, strict=True)]


def _code(run: RunContext, row: LabelledRecord) -> int:
    """Return the id of the control code of a row; raise if the vocabulary lacks it."""
    try:
        return run.tokenizer.id_of(code_token(row.label))
    except TokenizerError as error:
        raise ValueError(
            f"{row.origin}: the label {row.label!r} has no token {code_token(row.label)!r} in the vocabulary, which "
            f"has a token for every label of the training rows. Correct it, or train on rows that have it."
        ) from error
