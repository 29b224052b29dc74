"""The next token of plain text, and of text behind a control code."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64

from glassformer.config.checks import check_choice
from glassformer.data.loader import Dataset
from glassformer.data.objectives import Document, NextToken, PackedDocuments, with_code
from glassformer.data.packing import BestFitPlan, Documents, Packed, PackedRows
from glassformer.data.records import Labelled, Text
from glassformer.data.token_files import TokenFile
from glassformer.data.windows import Windows
from glassformer.generation.text import generate_text
from glassformer.hub import Loaded
from glassformer.nn.modes import Evaluating
from glassformer.text.tokenizer import TokenizerError
from glassformer.training.jobs.base import Encoded, Job, RunContext
from glassformer.training.jobs.documents import Mapped, Part, PlainText, texts_of, token_file
from glassformer.training.metrics.perplexity import perplexity
from glassformer.training.reading import Records

SAMPLE_TOKENS = 120


@dataclass(frozen=True, kw_only=True)
class LanguageOptions:
    """How text is cut into rows.

    ``windows``: every stretch of the text, across the ends of documents, from a random token on. ``documents``: whole
    documents packed into rows, each of which sees only itself.
    """

    rows: Literal["windows", "documents"] = "windows"
    smoothing: float = 0.0
    chunk: int | None = None  # judge so many places at a time, for a large vocabulary
    prompt: str | None = None  # what samples start with; None: an empty line, or the start of a document

    def __post_init__(self) -> None:
        check_choice("objective.rows", self.rows, ("windows", "documents"))


class Language(PlainText):
    """Plain text; without files to judge by, the last part of the text is set apart."""

    head = "lm"
    options_type = LanguageOptions
    holds_out_rows = False

    def vocabulary(self, rows: Records[Text]) -> Iterable[str]:
        """The part of the text that is trained on: its end may be set apart."""
        share = 0.0 if self.recipe.data.valid is not None else self.recipe.data.held_out
        left = round((1 - share) * sum(len(row.text) for row in rows))
        for row in rows:
            yield row.text[:left]
            left -= len(row.text)
            if left <= 0:
                return

    def objective(self, kit: RunContext) -> NextToken:
        """Cross-entropy of every token but the first of its row."""
        del kit
        return NextToken(smoothing=self.options.smoothing, chunk=self.options.chunk)

    def examples(self, kit: RunContext, parts: Mapping[str, Records[Text]]) -> dict[str, Dataset[Any]]:
        """Rows of ``batch.length`` tokens."""
        tokenizer, alone = kit.tokenizer, self.options.rows == "documents"
        frame = {"start": tokenizer.bos if alone else None, "end": tokenizer.eos}
        files = {
            part: token_file(kit.folder, part, texts_of(rows), rows.fingerprint, tokenizer, **frame)
            for part, rows in parts.items()
        }
        if alone:
            return {part: self._packed(*some) for part, some in self._documents(files).items()}
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
        """The documents of each part, and their lengths."""
        found: dict[str, tuple[Documents, Any]] = {part: (file, file.lengths) for part, file in files.items()}
        share = self.recipe.data.held_out
        if "valid" in files or "train" not in files or not share:
            return found
        whole, lengths = files["train"], files["train"].lengths
        if len(whole) < 2:
            raise ValueError("one document cannot be both trained on and judged by; say data.valid=FILE.")
        cut = len(whole) - max(1, int(len(whole) * share))
        for part, first, last in (("train", 0, cut), ("valid", cut, len(whole))):
            some = Part(whole, first, last, f"{whole.fingerprint} documents {first} to {last}")
            found[part] = some, lengths[first:last]
        return found

    def _packed(self, documents: Documents, lengths: Int64[np.ndarray, "M"]) -> Dataset[Any]:
        length = self.recipe.batch.length + 1  # the last token of a row is only predicted
        rows = PackedRows(documents, BestFitPlan(lengths, length, too_long="split"))

        def unpack(row: Packed) -> PackedDocuments:
            return PackedDocuments(row.pieces())

        return Mapped[PackedDocuments](rows, unpack, [length] * len(rows))

    def of_loss(self, loss: float) -> dict[str, float]:
        """Perplexity per token."""
        return {"perplexity": perplexity(loss, 1).perplexity}

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Text]) -> list[str]:
        """A text as the model would go on."""
        room = kit.recipe.batch.length - 1
        usual = "" if self.options.rows == "documents" and kit.tokenizer.bos is not None else "\n"
        prompts = [usual if self.options.prompt is None else self.options.prompt for _ in rows]
        length = max(1, min(SAMPLE_TOKENS, room - 1))
        found = generate_text(loaded, prompts, max_new_tokens=length, temperature=0.8, top_k=200, seed=0)
        return [f"{prompt}{texts[0].text}" for prompt, texts in zip(prompts, found, strict=True)]


def code_token(label: str) -> str:
    """The special token of a control code."""
    return f"<|{label}|>"


class Controlled(Job[Labelled]):
    """Text behind a control code that says what kind of text it is (Keskar et al., 2019)."""

    record = Labelled
    head = "lm"
    options_type = LanguageOptions

    def texts(self, row: Labelled) -> Iterable[str]:
        """The text."""
        return (row.text,)

    def special(self, rows: Iterable[Labelled]) -> tuple[str, ...]:
        """A token for every label."""
        return tuple(code_token(label) for label in sorted({row.label for row in rows}))

    def objective(self, kit: RunContext) -> NextToken:
        """Cross-entropy of every token after the code."""
        del kit
        return NextToken(smoothing=self.options.smoothing, chunk=self.options.chunk)

    def examples(self, kit: RunContext, parts: Mapping[str, Records[Labelled]]) -> dict[str, Dataset[Any]]:
        """Documents behind their codes, cut to ``batch.length``."""
        return {part: self._coded(kit, rows) for part, rows in parts.items()}

    def _coded(self, kit: RunContext, rows: Records[Labelled]) -> Encoded[Document]:
        tokenizer, length = kit.tokenizer, self.recipe.batch.length
        end = [] if tokenizer.eos is None else [tokenizer.eos]
        found, cut = [], 0
        for row in rows:
            ids = tokenizer.encode(row.text, special=False, allow_special=False) + end
            found.append(with_code(torch.tensor(ids[:length], dtype=torch.long), _code(kit, row)))
            cut += len(ids) > length
        return Encoded(found, [len(one.ids) for one in found], rows.fingerprint, cut=cut)

    def figures(self, kit: RunContext, loaded: Loaded, rows: Sequence[Labelled]) -> dict[str, float]:
        """How often the text is likeliest behind its own code: the code does steer."""
        codes = {row.label: _code(kit, row) for row in sorted(rows, key=lambda row: row.label)}
        if len(codes) < 2:
            return {}
        right = 0
        for row in rows:
            ids = kit.tokenizer.encode(row.text, special=False, allow_special=False)[: kit.recipe.batch.length]
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

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Labelled]) -> list[str]:
        """What the model writes behind the codes of these rows."""
        length = max(1, min(SAMPLE_TOKENS, kit.recipe.batch.length - 2))
        prompts = [[_code(kit, row)] for row in rows]
        found = generate_text(loaded, prompts, max_new_tokens=length, temperature=0.8, top_k=200, seed=0)
        return [f"{code_token(row.label)} {texts[0].text}" for row, texts in zip(rows, found, strict=True)]


def _code(kit: RunContext, row: Labelled) -> int:
    """The id of the control code of a row; one that the vocabulary lacks is an error."""
    try:
        return kit.tokenizer.id_of(code_token(row.label))
    except TokenizerError as error:
        raise ValueError(
            f"{row.origin}: the label {row.label!r} has no token {code_token(row.label)!r} in the vocabulary, which "
            f"has one for every label that is trained on. Correct it, or train on rows that have it."
        ) from error
