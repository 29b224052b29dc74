"""Blanks in a text: which tokens a model that was trained to guess masked words would put there.

Shapes: ``N`` blanks, ``V`` vocabulary.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from jaxtyping import Float
from torch import Tensor

from glassformer.config.checks import check_positive
from glassformer.generation.prompts import check_texts
from glassformer.generation.settings import Side
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import Batch, Progress, ask_in_batches, encoded
from glassformer.tasks.texts import Framed, check_head, fit, frame, trim
from glassformer.text.tokenizer import Tokenizer

Candidates = list[list[tuple[int, float]]]  # per blank: ids with their probabilities, falling


@dataclass(frozen=True)
class Guess:
    """One token for one blank."""

    token: str  # as the vocabulary writes it
    id: int
    probability: float
    text: str  # with this blank filled and the others left, as the tokenizer writes it


@dataclass(frozen=True)
class Blank:
    """A blank and the best guesses for it alone, the most probable first."""

    start: int  # the characters [start, end) of the text with mask tokens
    end: int
    guesses: tuple[Guess, ...]


@dataclass(frozen=True)
class Filling:
    """One token for every blank; the probability is the product of theirs."""

    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    probability: float
    text: str


@dataclass(frozen=True)
class Filled:
    """A text with its blanks, and the best fillings of all blanks together, the most probable first."""

    text: str  # with mask tokens
    blanks: tuple[Blank, ...]
    fillings: tuple[Filling, ...]


def fill(
    loaded: Loaded,
    texts: Sequence[str],
    *,
    top: int = 5,
    blank: str | None = None,
    truncate: Side | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> list[Filled]:
    """The best guesses for the blanks of texts, in the order of the texts.

    Several blanks in a text are judged from the same pass, each as if the others stayed blank. The probability of a
    filling takes them as independent, which they are not: "in [MASK] York [MASK]" is better filled one by one.

    Args:
        loaded: an encoder with a head of the kind lm or pretraining, and its tokenizer.
        texts: texts with blanks, written as the tokenizer's mask token or as ``blank``.
        top: how many guesses per blank, and how many fillings.
        blank: a string that stands for the mask token in the texts, whatever the tokenizer calls it.
        truncate: the side on which to cut texts that are too long; unless given, they are an error.
        batch_size: texts at a time.
        progress: called with how many are done, and of how many.
    """
    check_texts(loaded, texts)
    check_positive(top=top)
    model, tokenizer = loaded.model, loaded.tokenizer
    check_head(model.config, ("lm", "pretraining"), "fill", ("encoder",))
    texts = [_with_masks(text, f"text {number}", blank, tokenizer) for number, text in enumerate(texts)]
    whole = [frame(tokenizer, text, name=f"text {number}") for number, text in enumerate(texts)]
    framed = [fit(one, model.config.longest, truncate) for one in whole]
    for before, after in zip(whole, framed, strict=True):
        _check_blanks(before, after, tokenizer)
    rows = [one.row for one in framed]

    def ask(model: Transformer, batch: Batch) -> list[Candidates]:
        found = []
        for hidden, number in zip(encoded(model, batch), batch.numbers, strict=True):
            places = _places(rows[number].ids, tokenizer)
            answer = model.apply_head(hidden[places].unsqueeze(0))  # logits where the blanks are and nowhere else
            logits = answer[0] if isinstance(answer, tuple) else answer  # 1 N V
            found.append(_best(logits.squeeze(0), min(top, tokenizer.vocab_size), tokenizer.vocab_size))
        return found

    answers = ask_in_batches(model, rows, ask, batch_size, progress)
    return [_filled(*one, tokenizer, top) for one in zip(texts, framed, answers, strict=True)]


def _with_masks(text: str, name: str, blank: str | None, tokenizer: Tokenizer) -> str:
    """The text with mask tokens for blanks."""
    if tokenizer.mask is None:
        raise ValueError("this tokenizer names no mask token, so a blank cannot be written.")
    if blank is None:
        return text
    if not blank or blank not in text:
        raise ValueError(f"{name} does not hold blank={blank!r}: {text!r:.60}. Write it where a word is to be guessed.")
    return text.replace(blank, tokenizer.special["mask"])


def _places(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    return [place for place, number in enumerate(ids) if number == tokenizer.mask]


def _check_blanks(whole: Framed, cut: Framed, tokenizer: Tokenizer) -> None:
    """Raise unless there is a blank, and none was cut off."""
    blanks, left = (len(_places(one.row.ids, tokenizer)) for one in (whole, cut))
    if not blanks:
        raise ValueError(
            f"{whole.name} has no blank. This model's is written {tokenizer.special['mask']!r}; "
            f"blank= lets another string stand for it."
        )
    if left < blanks:
        raise ValueError(f"{blanks - left} of the {blanks} blanks of {whole.name} would be cut off; shorten it.")


def _best(logits: Float[Tensor, "N V"], top: int, vocabulary: int) -> Candidates:
    """(id, probability) of the best tokens for each blank, among those that can be written.

    A table may have more rows than the vocabulary has tokens: those rows share in the probabilities, as in training.
    """
    best = upcast(logits).softmax(-1)[:, :vocabulary].topk(top)
    return [list(zip(*one, strict=True)) for one in zip(best.indices.tolist(), best.values.tolist(), strict=True)]


def _filled(text: str, framed: Framed, candidates: Candidates, tokenizer: Tokenizer, top: int) -> Filled:
    ids = [token.id for token in framed.first]
    places = _places(ids, tokenizer)

    def written(chosen: dict[int, int]) -> str:
        return tokenizer.decode(chosen.get(place, number) for place, number in enumerate(ids))

    blanks = []
    for place, options in zip(places, candidates, strict=True):
        names = tokenizer.tokens(number for number, _ in options)
        guesses = [
            Guess(name, *option, written({place: option[0]})) for name, option in zip(names, options, strict=True)
        ]
        blanks.append(Blank(*trim(text, framed.first[place].start, framed.first[place].end), tuple(guesses)))
    fillings = []
    for chosen in islice(best_products([[chance for _, chance in options] for options in candidates]), top):
        picked = [options[index] for options, index in zip(candidates, chosen, strict=True)]
        numbers = tuple(number for number, _ in picked)
        text_filled = written(dict(zip(places, numbers, strict=True)))
        chance = math.prod(chance for _, chance in picked)
        fillings.append(Filling(tuple(tokenizer.tokens(numbers)), numbers, chance, text_filled))
    return Filled(text, tuple(blanks), tuple(fillings))


def best_products(lists: Sequence[Sequence[float]]) -> Iterator[tuple[int, ...]]:
    """Choices of one item from each list (by index), by falling product; the lists fall too.

    Best first: from a choice, go one step down in one list, never in a list before the one last stepped in. So every
    choice is come to once, and only those next to the ones given are ever looked at. Logarithms, for long products.
    """
    logs = [[math.log(max(value, 1e-300)) for value in values] for values in lists]
    start = (0,) * len(logs)
    queue = [(-math.fsum(values[0] for values in logs), start, 0)]
    while queue:
        _, chosen, last = heapq.heappop(queue)
        yield chosen
        for place in range(last, len(logs)):
            if chosen[place] + 1 < len(logs[place]):
                step = (*chosen[:place], chosen[place] + 1, *chosen[place + 1 :])
                cost = -math.fsum(values[index] for values, index in zip(logs, step, strict=True))
                heapq.heappush(queue, (cost, step, place))
