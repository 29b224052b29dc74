"""One text from another: translation, summaries, any task that is told in words."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from glassformer.config.checks import check_choice
from glassformer.data.loader import Dataset
from glassformer.data.objectives import SequenceToSequence, SourceTarget, with_languages
from glassformer.data.records import Pair
from glassformer.generation.text import generate_text
from glassformer.generation.translation import prepare_translation
from glassformer.hub import Loaded
from glassformer.text.languages import languages_of
from glassformer.training.jobs.base import Encoded, Job, RunContext
from glassformer.training.metrics.summaries import rouge
from glassformer.training.metrics.translation import bleu, chrf
from glassformer.training.reading import Records

MOST_TASKS = 20  # if there are more, the words before colons tell no tasks
TokenLoss = Literal["translation", "summaries", "exact"]


@dataclass(frozen=True, kw_only=True)
class TextToTextOptions:
    """What is learned, and how it is judged."""

    judged: TokenLoss = "translation"  # by BLEU and chrF, by ROUGE, or by whether it is the very text
    smoothing: float = 0.1
    chunk: int | None = None
    prefix: str = ""  # words before every source
    special: bool = False  # letters of special tokens in rows are these tokens, such as <extra_id_0>
    languages: bool = False  # a token of its language before each text
    both_ways: bool = False  # learn target to source as well
    max_new_tokens: int = 128
    length_penalty: float = 1.0
    tokenize: str = "13a"  # for BLEU, as sacrebleu calls it

    def __post_init__(self) -> None:
        check_choice("objective.judged", self.judged, ("translation", "summaries", "exact"))
        if self.both_ways and not self.languages:
            raise ValueError("objective.both_ways needs objective.languages: nothing else tells which way to go.")


def language_token(language: str) -> str:
    """The special token of a language."""
    return f"__{language}__"


class TextToText(Job[Pair]):
    """For an encoder-decoder."""

    record = Pair
    head = "lm"
    options_type = TextToTextOptions

    def texts(self, row: Pair) -> Iterable[str]:
        """Both texts."""
        return self.options.prefix + row.source, row.target

    def special(self, rows: Iterable[Pair]) -> tuple[str, ...]:
        """A token for every language, where texts carry them."""
        if not self.options.languages:
            return ()
        return tuple(language_token(code) for code in sorted({code for row in rows for code in _languages(row)}))

    def objective(self, kit: RunContext) -> SequenceToSequence:
        """Cross-entropy of the target, smoothed."""
        return SequenceToSequence(start=kit.start, smoothing=self.options.smoothing, chunk=self.options.chunk)

    def examples(self, kit: RunContext, parts: Mapping[str, Records[Pair]]) -> dict[str, Dataset[Any]]:
        """Pairs of framed texts. The length of one is that of its longer side."""
        return {part: self._encoded(kit, rows) for part, rows in parts.items()}

    def _encoded(self, kit: RunContext, rows: Records[Pair]) -> Encoded[SourceTarget]:
        pairs = [row for given in rows for row in ((given, _turned(given)) if self.options.both_ways else (given,))]
        longest = self.recipe.batch.length
        framed = not self.options.languages
        sources, targets = (
            kit.tokenizer.encode_batch(texts, special=framed, allow_special=self.options.special)
            for texts in ([self.options.prefix + row.source for row in pairs], [row.target for row in pairs])
        )
        both = list(zip(sources, targets, strict=True))
        if framed:
            found = [SourceTarget(_ids(_cut(source, longest)), _ids(_cut(target, longest))) for source, target in both]
        else:
            found = _with_languages(kit, pairs, both, longest - 2)
        lengths = [max(len(one.source), len(one.target)) for one in found]
        cut = sum(max(map(len, pair)) > longest - (0 if framed else 2) for pair in both)
        return Encoded(found, lengths, rows.fingerprint, cut=cut)

    def write(self, kit: RunContext, loaded: Loaded, rows: Sequence[Pair]) -> list[str]:
        """What the model makes of the sources."""
        options: dict[str, Any] = {
            "max_new_tokens": min(self.options.max_new_tokens, kit.recipe.batch.length),
            "beam_size": kit.recipe.evaluation.beam,
            "batch_size": 64,
            "truncate": "right",
        }
        if kit.recipe.evaluation.beam > 1:
            options["length_penalty"] = self.options.length_penalty
        sources, letters = [self.options.prefix + row.source for row in rows], {"allow_special": self.options.special}
        if not self.options.languages:
            found = generate_text(loaded, loaded.tokenizer.encode_batch(sources, **letters), **options)
            return [texts[0].text for texts in found]
        known, written = languages_of(loaded.tokenizer, loaded.folder), dict[int, str]()
        for pair in sorted({_languages(row) for row in rows}):
            numbers = [number for number, row in enumerate(rows) if _languages(row) == pair]
            given = [known.source(sources[number], pair[0], **letters) for number in numbers]
            _, asked = prepare_translation(loaded, [], *pair)
            made = generate_text(loaded, given, **asked, **options)
            written |= {number: texts[0].text for number, texts in zip(numbers, made, strict=True)}
        return [written[number] for number in range(len(rows))]

    def figures(self, kit: RunContext, loaded: Loaded, rows: Sequence[Pair]) -> dict[str, float]:
        """BLEU and chrF, ROUGE, or the share of texts that are written exactly."""
        return judge(self.options.judged, self.write(kit, loaded, rows), rows, self.options.tokenize)

    def footnotes(self) -> list[str]:
        """The signature of BLEU, without which its score says little."""
        if self.options.judged != "translation":
            return []
        return [f"BLEU: {bleu(['a'], ['a'], tokenize=self.options.tokenize).signature}"]

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Pair]) -> list[str]:
        """Source, what the model writes, and what it should."""
        written = self.write(kit, loaded, rows)
        return [f"{row.source}\n  → {text}\n  = {row.target}" for row, text in zip(rows, written, strict=True)]


def judge(judged: TokenLoss, written: Sequence[str], rows: Sequence[Pair], tokenize: str = "13a") -> dict[str, float]:
    """How good written texts are, beside the targets of the rows."""
    wanted = [row.target for row in rows]
    if judged == "summaries":
        return rouge(written, wanted).metrics()
    if judged == "translation":
        return bleu(written, wanted, tokenize=tokenize).metrics() | chrf(written, wanted).metrics()
    found = {"exact match": exact_match(written, wanted)}
    tasks = Counter(row.source.partition(": ")[0] for row in rows if ": " in row.source)
    for task in sorted(tasks) if 1 < len(tasks) <= MOST_TASKS else []:
        some = [n for n, row in enumerate(rows) if row.source.startswith(f"{task}: ")]
        found[f"exact match of {task}"] = exact_match([written[n] for n in some], [wanted[n] for n in some])
    return found


def exact_match(written: Sequence[str], wanted: Sequence[str]) -> float:
    """The share of texts that are exactly what is wanted, white space at their ends apart."""
    return sum(one.strip() == other.strip() for one, other in zip(written, wanted, strict=True)) / len(wanted)


def _languages(row: Pair) -> tuple[str, str]:
    if row.source_language is None or row.target_language is None:
        raise ValueError(f"{row.origin}: the languages of this pair are not known; say data.languages=[en, de].")
    return row.source_language, row.target_language


def _with_languages(
    kit: RunContext, rows: Sequence[Pair], texts: Iterable[tuple[list[int], list[int]]], room: int
) -> list[SourceTarget]:
    """The texts of each row, cut to their room, with tokens of their languages."""
    known, eos = languages_of(kit.tokenizer, kit.folder), kit.token("eos")
    found = []
    for row, (source, target) in zip(rows, texts, strict=True):
        ours, theirs = (known.resolve(code) for code in _languages(row))
        frame = {"source_language": ours, "target_language": theirs, "eos": eos}
        found.append(with_languages(_ids(source[:room]), _ids(target[:room]), **frame))
    return found


def _turned(row: Pair) -> Pair:
    return Pair(row.target, row.source, row.target_language, row.source_language, row.origin)


def _ids(ids: Sequence[int]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.long)


def _cut(ids: list[int], longest: int) -> list[int]:
    """A framed text that is too long loses tokens before its last one, which ends it."""
    return ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]]
