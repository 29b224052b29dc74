"""Tagging: the label of each word, predicted at its first token (Devlin et al., 2018, section 4).

Padding has no effect: a text has the same scores and the same loss with padding on either side or none.

Shapes: ``B`` rows, ``T`` tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from glassformer.config import TaskHead
from glassformer.data.loader import Dataset
from glassformer.data.records import BadRowError, TaggedRecord
from glassformer.hub import Loaded
from glassformer.metrics.base import mean
from glassformer.metrics.tasks import score_entities
from glassformer.objectives.base import (
    IGNORE,
    Batch,
    Loss,
    LossTerm,
    ModelRequirement,
    Padding,
    TokenRow,
    as_ids,
    head_output,
    token_cross_entropy,
)
from glassformer.objectives.examples import (
    BATCH_SIZE,
    CUT,
    NoteCounts,
    as_trained,
    encode_rows,
    label_id,
    max_row_tokens,
    readable_rows,
    row_tokens,
    task_token_row,
)
from glassformer.objectives.job import Job, RunContext
from glassformer.recipes.rows import Records
from glassformer.tasks.batches import TextTokens
from glassformer.tasks.entities import find_entities
from glassformer.tasks.tag import tag, take_words

TAGS = ModelRequirement("Tagging", TaskHead, ("tag",))


@dataclass(frozen=True, eq=False)
class TaggingExample:
    """A row with ``words`` (the number of each token's word, −1 for special tokens), and a label for each word."""

    text: TokenRow
    tags: Sequence[int]


def first_token_labels(words: Int[Tensor, "T"], tags: Int[Tensor, "_"]) -> Int[Tensor, "T"]:
    """Return the label of each word at its first token; other tokens are not counted in the loss."""
    if len(words) and int(words.max()) >= len(tags):
        raise ValueError(f"there is a word {int(words.max())} (counted from 0), but labels for {len(tags)} words only.")
    before = torch.cat((torch.tensor([-1]), words[:-1]))
    is_first = (words >= 0) & (words != before)
    return tags[words.clamp(min=0)].where(is_first, IGNORE) if len(tags) else torch.full_like(words, IGNORE)


@dataclass(frozen=True, kw_only=True)
class Tagging:
    """The label of each word, predicted at its first token."""

    traceable: ClassVar[bool] = True

    padding: Padding = field(default_factory=Padding)

    def prepare(self, examples: Sequence[TaggingExample], generator: torch.Generator) -> Batch:
        """Return rows with a label per word; nothing is random."""
        del generator
        rows = []
        for number, example in enumerate(examples):
            if example.text.words is None:
                raise ValueError(f"example {number} has no word numbers: text.words is None.")
            rows.append(first_token_labels(as_ids(example.text.words), as_ids(example.tags)))
        labels = self.padding.labels(rows)
        count = int((labels != IGNORE).sum())
        tokens = sum(len(example.text.ids) for example in examples)
        inputs = self.padding.inputs([example.text for example in examples])
        return Batch(inputs=inputs, labels={"tag": labels}, counts={"tag": count}, tokens=tokens)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return one term, ``tag``, over the words."""
        TAGS.check(model)
        result = token_cross_entropy(head_output(model, batch.inputs), batch.labels["tag"])
        count = batch.counts["tag"]
        return Loss({"tag": LossTerm(result.total, count)}, {"accuracy": (result.correct, count)})


@dataclass(frozen=True, kw_only=True)
class TaggingOptions:
    """What tags are."""

    entities: bool = True  # B-PER, I-PER …, evaluated as whole entities; False: tags of words, such as parts of speech


class TaggingJob(Job[TaggedRecord]):
    """A tag for every word."""

    head = "tag"
    options_type = TaggingOptions

    def texts(self, row: TaggedRecord) -> Iterable[str]:
        """Return the words with single spaces between them, as the model reads them."""
        return (" ".join(row.words),)

    def labels(self, rows: Iterable[TaggedRecord]) -> tuple[str, ...]:
        """Return all tags that occur, in alphabetical order."""
        tags = tuple(sorted({tag for row in rows for tag in row.tags}))
        if self.options.entities:
            try:
                score_entities([tags], [tags])
            except ValueError as error:
                raise ValueError(f"{error} If they mark no entities, set objective.entities=false.") from error
        return tags

    def objective(self, run: RunContext) -> Tagging:
        """Return the objective: cross-entropy of the tag of every word."""
        del run
        return Tagging()

    def examples(self, run: RunContext, parts: Mapping[str, Records[TaggedRecord]]) -> dict[str, Dataset[Any]]:
        """Return sentences with special tokens, truncated to ``batch.length`` between words."""
        return {part: encode_rows(run, rows, partial(self._make, run)) for part, rows in parts.items()}

    def _make(self, run: RunContext, row: TaggedRecord, counts: NoteCounts) -> list[TaggingExample]:
        encoded, spans = self._read(run, row)
        kept = self._kept(run, encoded, spans)
        counts[CUT] += kept < len(spans)
        tokens = tuple(token for span in spans[:kept] for token in span.tokens)
        word_numbers = [number for number, span in enumerate(spans[:kept]) for _ in span.tokens]
        words = [*(-1 for _ in encoded.before), *word_numbers, *(-1 for _ in encoded.after)]
        text = task_token_row(run, replace(encoded, first=tokens).row, words)
        return [TaggingExample(text, [label_id(run, name, row.origin) for name in row.tags[:kept]])]

    def _read(self, run: RunContext, row: TaggedRecord) -> tuple[TextTokens, Sequence[Any]]:
        """Return the sentence with its special tokens, and the tokens of each word."""
        encoded = row_tokens(run, row.origin, " ".join(row.words))
        try:
            spans = take_words(row.words, encoded)
        except ValueError as error:
            raise BadRowError(row.origin, "a word without a token", str(error), "Take the word out") from error
        if not self._kept(run, encoded, spans):
            problem = f"the first, {row.words[0]!r:.40}, has {len(spans[0].tokens)} tokens"
            remedy = f"Raise batch.length={max_row_tokens(run)}, of which {encoded.special_count} are special tokens"
            raise BadRowError(row.origin, "a word that is too long", problem, remedy)
        return encoded, spans

    def _kept(self, run: RunContext, encoded: TextTokens, spans: Sequence[Any]) -> int:
        """Return the number of words that fit into a row."""
        longest = max_row_tokens(run) - encoded.special_count
        return sum(total <= longest for total in accumulate(len(span.tokens) for span in spans))

    def _predict(self, loaded: Loaded, rows: Sequence[TaggedRecord]) -> list[list[str]]:
        tagged = tag(as_trained(loaded), [row.words for row in rows], batch_size=BATCH_SIZE)
        return [[word.label for word in sentence.words] for sentence in tagged]

    def metrics(self, run: RunContext, loaded: Loaded, rows: Sequence[TaggedRecord]) -> dict[str, float]:
        """Return precision, recall and F1 of entities, and the share of words with the right tag."""
        rows = readable_rows(run, rows, self._read)
        predicted, gold = self._predict(loaded, rows), [row.tags for row in rows]
        pairs = [pair for both in zip(predicted, gold, strict=True) for pair in zip(*both, strict=True)]
        entities = score_entities(predicted, gold).metrics() if self.options.entities else {}
        return {**entities, "tag accuracy": mean([tag == gold_tag for tag, gold_tag in pairs])}

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[TaggedRecord]) -> list[str]:
        """Return a sentence with the predicted tags, and with the right ones."""
        rows = readable_rows(run, rows, self._read)
        shown = zip(rows, self._predict(loaded, rows), strict=True)
        return [f"→ {_marked(row.words, tags)}\n  = {_marked(row.words, row.tags)}" for row, tags in shown]


def _marked(words: Sequence[str], tags: Sequence[str]) -> str:
    """Return a sentence with its entities in brackets, each after its kind."""
    parts, done = [], 0
    for span in find_entities(tags):
        parts += [*words[done : span.first], f"[{span.kind}: {' '.join(words[span.first : span.end])}]"]
        done = span.end
    return " ".join([*parts, *words[done:]])
