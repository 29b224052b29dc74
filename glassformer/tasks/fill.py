"""Fill blanks (masked tokens) in texts with a masked language model.

Shapes: ``N`` blanks, ``V`` vocabulary.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import overload

from jaxtyping import Float
from torch import Tensor

from glassformer.config.checks import Item, Setting, SettingError, check_positive_integer
from glassformer.generation.prompts import check_can, check_texts
from glassformer.generation.settings import Side
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import (
    Progress,
    TaskBatch,
    TextTokens,
    all_text_tokens,
    encode,
    fit,
    run_in_batches,
    trim,
)
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


@overload
def fill(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
    loaded: Loaded,
    texts: str,
    *,
    top: int = 5,
    blank: str | None = None,
    truncate: Side | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Filled: ...


@overload
def fill(
    loaded: Loaded,
    texts: Sequence[str],
    *,
    top: int = 5,
    blank: str | None = None,
    truncate: Side | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[Filled]: ...


def fill(
    loaded: Loaded,
    texts: str | Sequence[str],
    *,
    top: int = 5,
    blank: str | None = None,
    truncate: Side | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Filled | list[Filled]:
    """Return the best tokens for the blanks of a text, or of a list of texts in their order.

    Several blanks in a text are predicted in the same pass, each as if the others stayed blank. The probability of a
    filling treats them as independent, which they are not: "in [MASK] York [MASK]" is better filled one by one.

    Args:
        loaded: an encoder with a head of the kind lm or pretraining, and its tokenizer.
        texts: one text, which gives one result, or a list; blanks are written as the tokenizer's mask token or as
            ``blank``.
        top: how many tokens per blank, and how many fillings.
        blank: another string to write for the mask token in the texts.
        truncate: the side on which to cut texts that are too long; None: raise an error.
        batch_size: texts per batch; None: by their tokens, see ``tasks.batches``.
        progress: called with the number done and the total.
    """
    check_can(loaded, "fill")
    if isinstance(texts, str):
        return fill(loaded, [texts], top=top, blank=blank, truncate=truncate, batch_size=batch_size, progress=progress)[
            0
        ]
    check_texts(loaded, texts)
    check_positive_integer(top=top)
    model, tokenizer = loaded.model, loaded.tokenizer
    # Tokens of the texts with mask tokens, truncated if allowed; no blank may be cut off.
    texts = [_with_masks(text, Item("text", number), blank, tokenizer) for number, text in enumerate(texts)]
    whole = all_text_tokens(tokenizer, texts)
    encoded = [fit(text, model.config.max_length, truncate) for text in whole]
    for before, after in zip(whole, encoded, strict=True):
        _check_blanks(before, after, tokenizer)
    rows = [text.row for text in encoded]

    def run(model: Transformer, batch: TaskBatch) -> list[Candidates]:
        candidates = []
        for hidden, number in zip(encode(model, batch), batch.numbers, strict=True):  # hidden (T, D)
            blanks = hidden[_mask_indices(rows[number].ids, tokenizer)]  # (N, D): logits are computed for blanks only
            output = model.apply_head(blanks.unsqueeze(0))
            logits = output[0] if isinstance(output, tuple) else output  # (1, N, V)
            candidates.append(_best(logits.squeeze(0), min(top, tokenizer.vocab_size), tokenizer.vocab_size))
        return candidates

    candidates = run_in_batches(model, rows, run, batch_size, progress)
    return [_filled(*row, tokenizer, top) for row in zip(texts, encoded, candidates, strict=True)]


def _with_masks(text: str, name: Item, blank: str | None, tokenizer: Tokenizer) -> str:
    """Return the text with mask tokens for blanks."""
    if tokenizer.mask is None:
        raise ValueError("this tokenizer has no mask token, so a blank cannot be encoded.")
    if blank is None:
        return text
    if not blank or blank not in text:
        template = "{} does not hold {}: {}. Put it where a word is to be predicted."
        raise SettingError(template, name, Setting("blank", blank), f"{text!r:.60}")
    return text.replace(blank, tokenizer.special["mask"])


def _mask_indices(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    return [index for index, token_id in enumerate(ids) if token_id == tokenizer.mask]


def _check_blanks(whole: TextTokens, cut: TextTokens, tokenizer: Tokenizer) -> None:
    """Raise unless there is a blank, and none was cut off."""
    blanks, left = (len(_mask_indices(text.row.ids, tokenizer)) for text in (whole, cut))
    if not blanks:
        raise SettingError(
            "{} has no blank. Mark it by {}, or by a string of your own with {}.",
            whole.name,
            repr(tokenizer.special["mask"]),
            Setting("blank"),
        )
    if left < blanks:
        template = f"{blanks - left} of the {blanks} blanks of {{}} would be cut off; shorten it."
        raise SettingError(template, whole.name)


def _best(logits: Float[Tensor, "N V"], top: int, vocabulary: int) -> Candidates:
    """(id, probability) of the best tokens for each blank, among those of the tokenizer.

    The embedding table may have more rows than the tokenizer has tokens: the softmax includes them, as in training.
    """
    best = upcast(logits).softmax(-1)[:, :vocabulary].topk(top)
    return [list(zip(*pair, strict=True)) for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)]


def _filled(text: str, encoded: TextTokens, candidates: Candidates, tokenizer: Tokenizer, top: int) -> Filled:
    ids = [token.id for token in encoded.first]
    indices = _mask_indices(ids, tokenizer)

    def decode(chosen: dict[int, int]) -> str:
        return tokenizer.decode(chosen.get(index, token_id) for index, token_id in enumerate(ids))

    # The best tokens for each blank by itself.
    blanks = []
    for index, options in zip(indices, candidates, strict=True):
        names = tokenizer.tokens(token_id for token_id, _ in options)
        guesses = [
            Guess(name, *option, decode({index: option[0]})) for name, option in zip(names, options, strict=True)
        ]
        blanks.append(Blank(*trim(text, encoded.first[index].start, encoded.first[index].end), tuple(guesses)))
    # The best fillings of all blanks together.
    fillings = []
    for chosen in islice(best_products([[probability for _, probability in options] for options in candidates]), top):
        picked = [options[index] for options, index in zip(candidates, chosen, strict=True)]
        chosen_ids = tuple(token_id for token_id, _ in picked)
        filled = decode(dict(zip(indices, chosen_ids, strict=True)))
        probability = math.prod(probability for _, probability in picked)
        fillings.append(Filling(tuple(tokenizer.tokens(chosen_ids)), chosen_ids, probability, filled))
    return Filled(text, tuple(blanks), tuple(fillings))


def best_products(lists: Sequence[Sequence[float]]) -> Iterator[tuple[int, ...]]:
    """Yield choices of one item from each list (by index), by descending product; the lists are in descending order.

    Best-first search: from a choice, take one step down in one list, never in a list before the last one stepped in. So
    every choice is reached once, and only neighbours of those yielded are computed. Sums of logarithms, so that long
    products do not underflow.
    """
    logs = [[math.log(max(value, 1e-300)) for value in values] for values in lists]
    # The best choice first; the queue is ordered by −log of the product.
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
