"""Sequence to sequence (Sutskever et al., 2014): one text from another, for an encoder-decoder with teacher forcing.

The decoder's input is the target shifted right by one, after a start token; its labels are the target itself. They are
shifted nowhere else.

Languages (Fan et al., 2020): ``with_languages`` puts the token of its language before each text; the decoder predicts
that of the target first.

Shapes: ``B`` rows, ``U`` tokens of a target, ``V`` vocabulary.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import tokenizers
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.config import LMHead
from glassformer.config.checks import check_choice, check_probability
from glassformer.data.loader import Dataset
from glassformer.data.records import PairRecord
from glassformer.generation.text import generate_text, prepare_translation
from glassformer.hub import Loaded
from glassformer.metrics.text import bleu, chrf, rouge
from glassformer.nn.modes import Evaluating
from glassformer.objectives.base import (
    Batch,
    Ids,
    Loss,
    ModelRequirement,
    Padding,
    TokenRow,
    as_ids,
    label_loss,
)
from glassformer.objectives.examples import EncodedExamples
from glassformer.objectives.job import Job, RunContext
from glassformer.recipes.rows import Records
from glassformer.text.languages import languages_of
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.vocabularies import Vocabulary, set_template

NEEDS = ModelRequirement("SequenceToSequence", LMHead, families=("encoder-decoder",))
MAX_TASKS = 20  # with more, the words before colons are not taken for names of tasks
TextMetric = Literal["translation", "summaries", "exact"]
START, END = "<s>", "</s>"


@dataclass(frozen=True, eq=False)
class SourceTarget:
    """The input of the encoder and the target of the decoder, both with special tokens; the target ends with EOS."""

    source: Ids
    target: Ids
    start: int | None = None  # the decoder's first input, if it is not the objective's: a language, for example


def with_languages(
    source: Ids, target: Ids, *, source_language: int, target_language: int, eos: int, start: int | None = None
) -> SourceTarget:
    """Return both texts between the token of their language and EOS; ``Languages.resolve`` returns the tokens."""
    end = torch.tensor([eos])
    encoder_ids = torch.cat((torch.tensor([source_language]), as_ids(source), end))
    return SourceTarget(encoder_ids, torch.cat((torch.tensor([target_language]), as_ids(target), end)), start)


def shift_right(
    targets: Int[Tensor, "B U"], token_mask: Bool[Tensor, "B U"], starts: Int[Tensor, "B"]
) -> Int[Tensor, "B U"]:
    """Return the inputs of the decoder: its start token, and all but the last token of each row of ``targets``."""
    first = token_mask & (token_mask.cumsum(-1) == 1)
    return starts[:, None].where(first, targets.roll(1, -1))


@dataclass(frozen=True, kw_only=True)
class SequenceToSequence:
    """Cross-entropy of every token of the target, with label smoothing (0.1 in Vaswani et al., 2017, section 5.4)."""

    start: int  # the decoder's first input; config.tokens.start of the model
    smoothing: float = 0.0
    padding: Padding = field(default_factory=Padding)
    chunk: int | None = None  # positions whose logits are computed at a time; see ``model_token_loss``

    def __post_init__(self) -> None:
        check_probability(smoothing=self.smoothing)

    @property
    def traceable(self) -> bool:
        """With a ``chunk``, heads that are not fused select positions by value."""
        return self.chunk is None

    def prepare(self, examples: Sequence[SourceTarget], generator: torch.Generator) -> Batch:
        """Return pairs of texts; nothing is random."""
        del generator
        targets = [as_ids(example.target) for example in examples]
        if not all(map(len, targets)):
            raise ValueError(
                "a target has no tokens, not even EOS, so there is nothing to learn from it; leave it out."
            )
        # The decoder reads the target shifted right by one, after its start token.
        starts = [self.start if example.start is None else example.start for example in examples]
        inputs = self.padding.inputs([TokenRow(example.source) for example in examples])
        labels, target_mask = self.padding.labels(targets), self.padding.mask(targets)  # B U, B U
        shifted = shift_right(labels, target_mask, torch.tensor(starts))
        inputs["target"] = shifted.where(target_mask, self.padding.fill)
        if not bool(target_mask.all()):
            inputs["target_mask"] = target_mask
        count = int(target_mask.sum())
        return Batch(
            inputs=inputs,
            labels={"target": labels},
            counts={"target": count},
            tokens=sum(len(example.source) for example in examples) + count,
        )

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return one term, ``target``."""
        NEEDS.check(model)
        return label_loss(model, batch, "target", smoothing=self.smoothing, chunk=self.chunk)


@dataclass(frozen=True, kw_only=True)
class TextToTextOptions:
    """What is learned, and how it is evaluated."""

    metric: TextMetric = "translation"  # BLEU and chrF, ROUGE, or exact match
    smoothing: float = 0.1
    chunk: int | None = None
    prefix: str = ""  # text before every source
    special: bool = False  # read special tokens in the data (<extra_id_0>) as such; False: as plain text
    languages: bool = False  # a token of its language before each text
    both_ways: bool = False  # learn target to source as well
    max_new_tokens: int = 128
    length_penalty: float = 1.0
    tokenize: str = "13a"  # of BLEU, by sacrebleu's names

    def __post_init__(self) -> None:
        check_choice("objective.metric", self.metric, ("translation", "summaries", "exact"))
        if self.both_ways and not self.languages:
            raise ValueError("objective.both_ways needs objective.languages: nothing else says which way to translate.")


def language_token(language: str) -> str:
    """Return the special token of a language."""
    return f"__{language}__"


class TextToTextJob(Job[PairRecord]):
    """Text to text, for an encoder-decoder: translation, summaries, any task in words."""

    head = "lm"
    options_type = TextToTextOptions

    def texts(self, row: PairRecord) -> Iterable[str]:
        """Return both texts."""
        return self.options.prefix + row.source, row.target

    def special(self, rows: Iterable[PairRecord]) -> tuple[str, ...]:
        """Return a token for every language, if texts begin with one."""
        if not self.options.languages:
            return ()
        return tuple(language_token(code) for code in sorted({code for row in rows for code in _languages(row)}))

    def objective(self, run: RunContext) -> SequenceToSequence:
        """Return the objective: cross-entropy of the target, with label smoothing."""
        return SequenceToSequence(start=run.start, smoothing=self.options.smoothing, chunk=self.options.chunk)

    def examples(self, run: RunContext, parts: Mapping[str, Records[PairRecord]]) -> dict[str, Dataset[Any]]:
        """Return pairs of texts with special tokens; the length of a pair is that of its longer side."""
        return {part: self._encoded(run, rows) for part, rows in parts.items()}

    def _encoded(self, run: RunContext, rows: Records[PairRecord]) -> EncodedExamples[SourceTarget]:
        pairs = list(rows)
        if self.options.both_ways:
            pairs = [pair for row in rows for pair in (row, _reversed(row))]
        # Encode all texts at once, with special tokens unless they are between language tokens.
        longest = self.recipe.batch.length
        is_framed = not self.options.languages
        sources, targets = (
            run.tokenizer.encode_batch(texts, special=is_framed, allow_special=self.options.special)
            for texts in ([self.options.prefix + row.source for row in pairs], [row.target for row in pairs])
        )
        both = list(zip(sources, targets, strict=True))
        if is_framed:
            examples = [
                SourceTarget(_ids(_cut(source, longest)), _ids(_cut(target, longest))) for source, target in both
            ]
        else:
            examples = _with_languages(run, pairs, both, longest - 2)
        # Lengths, and how many pairs were truncated.
        lengths = [max(len(example.source), len(example.target)) for example in examples]
        cut = sum(max(map(len, pair)) > longest - (0 if is_framed else 2) for pair in both)
        return EncodedExamples(examples, lengths, rows.fingerprint, cut=cut)

    def generate(self, run: RunContext, loaded: Loaded, rows: Sequence[PairRecord]) -> list[str]:
        """Return what the model generates for the sources."""
        options: dict[str, Any] = {
            "max_new_tokens": min(self.options.max_new_tokens, run.recipe.batch.length),
            "beam_size": run.recipe.evaluation.beam,
            "batch_size": 64,
            "truncate": "right",
        }
        if run.recipe.evaluation.beam > 1:
            options["length_penalty"] = self.options.length_penalty
        sources, encoding = [self.options.prefix + row.source for row in rows], {"allow_special": self.options.special}
        if not self.options.languages:
            outputs = generate_text(loaded, loaded.tokenizer.encode_batch(sources, **encoding), **options)
            return [texts[0].text for texts in outputs]
        # One language pair after the other.
        known, generated = languages_of(loaded.tokenizer, loaded.folder), dict[int, str]()
        for pair in sorted({_languages(row) for row in rows}):
            numbers = [number for number, row in enumerate(rows) if _languages(row) == pair]
            inputs = [known.source(sources[number], pair[0], **encoding) for number in numbers]
            _, language_options = prepare_translation(loaded, [], *pair)
            outputs = generate_text(loaded, inputs, **language_options, **options)
            generated |= {number: texts[0].text for number, texts in zip(numbers, outputs, strict=True)}
        return [generated[number] for number in range(len(rows))]

    def metrics(self, run: RunContext, loaded: Loaded, rows: Sequence[PairRecord]) -> dict[str, float]:
        """Return BLEU and chrF, ROUGE, or exact match."""
        return score_texts(self.options.metric, self.generate(run, loaded, rows), rows, self.options.tokenize)

    def metric_notes(self) -> list[str]:
        """Return the signature of BLEU, without which its score cannot be compared."""
        if self.options.metric != "translation":
            return []
        return [f"BLEU: {bleu(['a'], ['a'], tokenize=self.options.tokenize).signature}"]

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[PairRecord]) -> list[str]:
        """Return source, generated text and target."""
        generated = self.generate(run, loaded, rows)
        return [f"{row.source}\n  → {text}\n  = {row.target}" for row, text in zip(rows, generated, strict=True)]


def score_texts(
    metric: TextMetric, generated: Sequence[str], rows: Sequence[PairRecord], tokenize: str = "13a"
) -> dict[str, float]:
    """Return the metric of generated texts, compared with the targets of the rows."""
    references = [row.target for row in rows]
    if metric == "summaries":
        return rouge(generated, references).metrics()
    if metric == "translation":
        return bleu(generated, references, tokenize=tokenize).metrics() | chrf(generated, references).metrics()
    scores = {"exact match": exact_match(generated, references)}
    tasks = Counter(row.source.partition(": ")[0] for row in rows if ": " in row.source)
    for task in sorted(tasks) if 1 < len(tasks) <= MAX_TASKS else []:
        numbers = [n for n, row in enumerate(rows) if row.source.startswith(f"{task}: ")]
        scores[f"exact match of {task}"] = exact_match(
            [generated[n] for n in numbers], [references[n] for n in numbers]
        )
    return scores


def exact_match(generated: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of texts that equal their targets, apart from white space at both ends."""
    return sum(text.strip() == target.strip() for text, target in zip(generated, references, strict=True)) / len(
        references
    )


def _languages(row: PairRecord) -> tuple[str, str]:
    if row.source_language is None or row.target_language is None:
        raise ValueError(f"{row.origin}: the languages of this pair are not known; set data.languages=[en, de].")
    return row.source_language, row.target_language


def _with_languages(
    run: RunContext, rows: Sequence[PairRecord], texts: Iterable[tuple[list[int], list[int]]], longest: int
) -> list[SourceTarget]:
    """Return the texts of each row, truncated to ``longest`` tokens, with the tokens of their languages."""
    known, eos = languages_of(run.tokenizer, run.folder), run.token("eos")
    examples = []
    for row, (source, target) in zip(rows, texts, strict=True):
        ours, theirs = (known.resolve(code) for code in _languages(row))
        specials = {"source_language": ours, "target_language": theirs, "eos": eos}
        examples.append(with_languages(_ids(source[:longest]), _ids(target[:longest]), **specials))
    return examples


def _reversed(row: PairRecord) -> PairRecord:
    return PairRecord(row.target, row.source, row.target_language, row.source_language, row.origin)


def _ids(ids: Sequence[int]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.long)


def _cut(ids: list[int], longest: int) -> list[int]:
    """Return a text truncated to ``longest`` tokens, of which the last one, EOS, stays."""
    return ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]]


class ToyJob(TextToTextJob):
    """Two sentences to translate with a vocabulary of six words; samples are the decoder's distributions."""

    def own_tokenizer(self, rows: Iterable[PairRecord]) -> Tokenizer:
        """Return a tokenizer with a token for each word of the rows."""
        words = {word: None for row in rows for text in (row.source, row.target) for word in text.split()}
        numbers = {word: number for number, word in enumerate([START, END, *words])}
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token=START))
        backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        backend.add_special_tokens([START, END])
        set_template(backend, start=[], end=[END])
        return Tokenizer(Vocabulary(backend, {"bos": START, "eos": END, "pad": START, "unk": START}))

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[PairRecord]) -> list[str]:
        """Return a table per row: the probability of each word at each position of the target."""
        return [_table(run, row, self._probabilities(run, loaded, row), _words(rows)) for row in rows]

    @torch.no_grad()
    def _probabilities(self, run: RunContext, loaded: Loaded, row: PairRecord) -> Float[Tensor, "U V"]:
        model = loaded.model
        device = next(model.parameters()).device
        source = torch.tensor([run.tokenizer.encode(row.source)], device=device)
        target = torch.tensor([[run.start, *run.tokenizer.encode(row.target)[:-1]]], device=device)
        with Evaluating(model):
            logits = model(source, target=target)
        return torch.softmax(logits[0].float(), -1).cpu()


def _words(rows: Sequence[PairRecord]) -> list[str]:
    """Return the words of all targets, and the end token."""
    return [*dict.fromkeys(word for row in rows for word in row.target.split()), END]


def _table(run: RunContext, row: PairRecord, probs: Float[Tensor, "U V"], words: Sequence[str]) -> str:
    targets = [*row.target.split(), END]
    width = max(map(len, (*words, "target", "others"))) + 2
    numbers = [run.tokenizer.id_of(word) for word in words]
    lines = [row.source, "  target".ljust(width + 2) + "".join(word.rjust(width) for word in (*words, "others"))]
    for word, line in zip(targets, probs, strict=True):
        shares = [*line[numbers].tolist(), 1 - float(line[numbers].sum())]
        lines.append(f"  {word}".ljust(width + 2) + "".join(f"{100 * share:.1f} %".rjust(width) for share in shares))
    return "\n".join(lines)
