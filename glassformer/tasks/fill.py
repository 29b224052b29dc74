"""Fill blanks (masked tokens) in texts with a masked language model.

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
from glassformer.loaded import check_ability
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import Batch, Progress, encode, run_in_batches
from glassformer.tasks.texts import Framed, fit, frame, trim
from glassformer.text.tokenizer import Tokenizer

Candidates = list[list[tuple[int, float]]]  # per blank: ids with their probabilities, descending


@dataclass(frozen=True)
class Guess:
    """One token for one blank."""

    token: str  # its name in the vocabulary
    id: int
    probability: float
    text: str  # decoded, with this blank filled and the others left


@dataclass(frozen=True)
class Blank:
    """A blank and the best tokens for it, the most probable first."""

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
    """The best tokens for the blanks of texts, in the order of the texts.

    Several blanks in a text are predicted in the same pass, each as if the others stayed blank. The probability of a
    filling treats them as independent, which they are not: "in [MASK] York [MASK]" is better filled one by one.

    Args:
        loaded: an encoder with a head of the kind lm or pretraining, and its tokenizer.
        texts: texts with blanks, written as the tokenizer's mask token or as ``blank``.
        top: how many tokens per blank, and how many fillings.
        blank: a string that stands for the mask token in the texts.
        truncate: the side on which to cut texts that are too long; None: they are an error.
        batch_size: texts per batch.
        progress: called with the number done and the total.
    """
    check_texts(loaded, texts)
    check_positive(top=top)
    model, tokenizer = loaded.model, loaded.tokenizer
    check_ability(model.config, "fill")
    texts = [_with_masks(text, f"text {number}", blank, tokenizer) for number, text in enumerate(texts)]
    whole = [frame(tokenizer, text, name=f"text {number}") for number, text in enumerate(texts)]
    framed = [fit(text, model.config.longest, truncate) for text in whole]
    for before, after in zip(whole, framed, strict=True):
        _check_blanks(before, after, tokenizer)
    rows = [text.row for text in framed]

    def run(model: Transformer, batch: Batch) -> list[Candidates]:
        candidates = []
        for hidden, number in zip(encode(model, batch), batch.numbers, strict=True):  # hidden (T, D)
            blanks = hidden[_mask_indices(rows[number].ids, tokenizer)]  # (N, D): logits are computed for blanks only
            output = model.apply_head(blanks.unsqueeze(0))
            logits = output[0] if isinstance(output, tuple) else output  # (1, N, V)
            candidates.append(_best(logits.squeeze(0), min(top, tokenizer.vocab_size), tokenizer.vocab_size))
        return candidates

    candidates = run_in_batches(model, rows, run, batch_size, progress)
    return [_filled(*row, tokenizer, top) for row in zip(texts, framed, candidates, strict=True)]


def _with_masks(text: str, name: str, blank: str | None, tokenizer: Tokenizer) -> str:
    """The text with mask tokens for blanks."""
    if tokenizer.mask is None:
        raise ValueError("this tokenizer has no mask token, so a blank cannot be encoded.")
    if blank is None:
        return text
    if not blank or blank not in text:
        raise ValueError(f"{name} does not hold blank={blank!r}: {text!r:.60}. Put it where a word is to be predicted.")
    return text.replace(blank, tokenizer.special["mask"])


def _mask_indices(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    return [index for index, token_id in enumerate(ids) if token_id == tokenizer.mask]


def _check_blanks(whole: Framed, cut: Framed, tokenizer: Tokenizer) -> None:
    """Raise unless there is a blank, and none was cut off."""
    blanks, left = (len(_mask_indices(text.row.ids, tokenizer)) for text in (whole, cut))
    if not blanks:
        raise ValueError(
            f"{whole.name} has no blank. This model's is written {tokenizer.special['mask']!r}; "
            f"blank= lets another string stand for it."
        )
    if left < blanks:
        raise ValueError(f"{blanks - left} of the {blanks} blanks of {whole.name} would be cut off; shorten it.")


def _best(logits: Float[Tensor, "N V"], top: int, vocabulary: int) -> Candidates:
    """(id, probability) of the best tokens for each blank, among those of the tokenizer.

    The embedding table may have more rows than the tokenizer has tokens: the softmax includes them, as in training.
    """
    best = upcast(logits).softmax(-1)[:, :vocabulary].topk(top)
    return [list(zip(*pair, strict=True)) for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)]


def _filled(text: str, framed: Framed, candidates: Candidates, tokenizer: Tokenizer, top: int) -> Filled:
    ids = [token.id for token in framed.first]
    indices = _mask_indices(ids, tokenizer)

    def decode(chosen: dict[int, int]) -> str:
        return tokenizer.decode(chosen.get(index, token_id) for index, token_id in enumerate(ids))

    blanks = []
    for index, options in zip(indices, candidates, strict=True):
        names = tokenizer.tokens(token_id for token_id, _ in options)
        guesses = [
            Guess(name, *option, decode({index: option[0]})) for name, option in zip(names, options, strict=True)
        ]
        blanks.append(Blank(*trim(text, framed.first[index].start, framed.first[index].end), tuple(guesses)))
    fillings = []
    for chosen in islice(best_products([[probability for _, probability in options] for options in candidates]), top):
        picked = [options[index] for options, index in zip(candidates, chosen, strict=True)]
        chosen_ids = tuple(token_id for token_id, _ in picked)
        filled = decode(dict(zip(indices, chosen_ids, strict=True)))
        probability = math.prod(probability for _, probability in picked)
        fillings.append(Filling(tuple(tokenizer.tokens(chosen_ids)), chosen_ids, probability, filled))
    return Filled(text, tuple(blanks), tuple(fillings))


def best_products(lists: Sequence[Sequence[float]]) -> Iterator[tuple[int, ...]]:
    """Choices of one item from each list (by index), by descending product; the lists are in descending order.

    Best-first search: from a choice, take one step down in one list, never in a list before the last one stepped in. So
    every choice is reached once, and only neighbours of those yielded are computed. Sums of logarithms, so that long
    products do not underflow.
    """
    logs = [[math.log(max(value, 1e-300)) for value in values] for values in lists]
    start = (0,) * len(logs)
    queue = [(-math.fsum(values[0] for values in logs), start, 0)]
    while queue:
        _, chosen, last = heapq.heappop(queue)
        yield chosen
        for position in range(last, len(logs)):
            if chosen[position] + 1 < len(logs[position]):
                step = (*chosen[:position], chosen[position] + 1, *chosen[position + 1 :])
                cost = -math.fsum(values[index] for values, index in zip(logs, step, strict=True))
                heapq.heappush(queue, (cost, step, position))
