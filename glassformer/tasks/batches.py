"""From texts to the inputs of a model: special tokens, truncation, windows, padded batches.

The special tokens around a text are kept apart from its own tokens, so that a truncated text or a window of it keeps
them. Errors name a text by its index in the list.

``run_in_batches`` sorts sequences by length, pads them on the right with id 0, and restores their order; masks are True
at real tokens. ``plan_batches`` limits the tokens of a batch instead of its rows, so that time and memory of a batch
are about the same for short texts and for long ones.

Shapes: ``B`` batch, ``T`` tokens, ``U`` tokens of an encoder-decoder's decoder, ``D`` model width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from tokenizers import Encoding
from torch import Tensor, nn

from glassformer import config
from glassformer.config.checks import Item, Setting, SettingError, check_choice, check_positive_integer
from glassformer.config.options import Progress as Progress
from glassformer.generation.prompts import check_text
from glassformer.generation.settings import Side
from glassformer.models.stack import Stack
from glassformer.models.transformer import Transformer
from glassformer.nn.modes import evaluation_view
from glassformer.nn.observer import is_observed
from glassformer.text.tokenizer import Tokenizer

# Tokens of a batch, padding included. On a CPU, products run at full speed from about 512 tokens on; with 8,192
# or 16,384 a token takes up to a third longer, probably because the vectors exceed the caches (benchmarks/LOG.md).
BATCH_TOKENS = 2048
GPU_BATCH_TOKENS = 32_768  # where no logits of a vocabulary are made; fewer leave a large GPU waiting for its CPU
PADDING_SHARE = 16  # at most 1/16 of the tokens of a batch is padding: more would cost more than another batch
PACKED_PADDING_SHARE = 2  # at most 1/2 where padding is not computed (packed rows) and only takes memory
MAX_SPECIAL = 4  # special tokens around a text, at most: a longer row has tokens of its text
ENCODED_TEXTS = 1024  # texts that the tokenizer encodes at once: its own form of them takes much memory

Pair = tuple[str, str]
Result = TypeVar("Result")


class TaskRow(NamedTuple):
    """One sequence; ``target`` is for the decoder of an encoder-decoder."""

    ids: Sequence[int]
    segments: Sequence[int]
    target: Sequence[int] | None = None


class TextToken(NamedTuple):
    """One token of a text, or a special token around it."""

    id: int
    segment: int
    start: int  # the characters [start, end) of its text that it covers
    end: int
    word: int | None  # index of its word, as the tokenizer splits the text first; None for special tokens


TokenTuple = tuple[TextToken, ...]


@dataclass(frozen=True)
class TextTokens:
    """The tokens of a text or a pair of texts, and the special tokens around them; missing parts are empty."""

    name: Item | str  # of the text in errors
    before: TokenTuple
    first: TokenTuple
    between: TokenTuple
    second: TokenTuple
    after: TokenTuple

    @property
    def tokens(self) -> TokenTuple:
        """All tokens in order."""
        return self.before + self.first + self.between + self.second + self.after

    @property
    def special_count(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    @property
    def row(self) -> TaskRow:
        """The model's input."""
        return TaskRow([token.id for token in self.tokens], [token.segment for token in self.tokens])


def all_text_tokens(tokenizer: Tokenizer, texts: Sequence[str | Pair], what: str = "text") -> list[TextTokens]:
    """Return the ``text_tokens`` of many texts or pairs of texts, which errors call ``what`` and their index.

    The tokenizer encodes them on all cores; ``TOKENIZERS_PARALLELISM`` and ``RAYON_NUM_THREADS`` limit these.
    """
    encoded: list[TextTokens] = []
    for first in range(0, len(texts), ENCODED_TEXTS):
        part = [text if isinstance(text, str) else (text[0], text[1]) for text in texts[first : first + ENCODED_TEXTS]]
        for text, encoding in zip(part, tokenizer.backend.encode_batch(part), strict=True):
            encoded.append(_split_tokens(encoding, text, Item(what, len(encoded))))
    return encoded


def text_rows(tokenizer: Tokenizer, texts: Sequence[str], longest: int | None, truncate: Side | None) -> list[TaskRow]:
    """Return the model's inputs for texts that are used whole: the rows of ``fit(all_text_tokens(…))``.

    Only texts that must be cut, or begin or end with a special token, are taken apart token by token.
    """
    check_side(truncate)
    rows: list[TaskRow] = []
    for first in range(0, len(texts), ENCODED_TEXTS):
        part = texts[first : first + ENCODED_TEXTS]
        for text, encoding in zip(part, tokenizer.backend.encode_batch(list(part)), strict=True):
            ids = encoding.ids
            is_plain = len(ids) > MAX_SPECIAL and ids[0] != ids[1] and ids[-1] != ids[-2]
            if is_plain and (longest is None or len(ids) <= longest):
                rows.append(TaskRow(ids, encoding.type_ids))
            else:
                rows.append(fit(_split_tokens(encoding, text, Item("text", len(rows))), longest, truncate).row)
    return rows


def text_tokens(tokenizer: Tokenizer, text: str, pair: str | None = None, *, name: Item | str) -> TextTokens:
    """Return the tokens of ``tokenizer.encode(text, pair)``, part by part; a text without tokens is an error."""
    return _split_tokens(tokenizer.backend.encode(text, pair), text if pair is None else (text, pair), name)


def _split_tokens(encoding: Encoding, texts: str | Pair, name: Item | str) -> TextTokens:
    text, pair = (texts, None) if isinstance(texts, str) else texts
    # Sort the tokens into the five parts.
    parts: list[list[TextToken]] = [[], [], [], [], []]  # before, first, between, second, after
    part = 0
    spans = zip(encoding.offsets, encoding.word_ids, strict=True)
    for sequence, token_id, segment, ((start, end), word) in zip(
        encoding.sequence_ids, encoding.ids, encoding.type_ids, spans, strict=True
    ):
        part = {None: 2 * ((part + 1) // 2), 0: 1, 1: 3}[sequence]  # special tokens have no sequence
        parts[part].append(TextToken(token_id, segment, start, end, word))
    if pair is None:
        parts[2], parts[4] = [], parts[2]  # the special tokens after a single text
    before, first, between, second, after = map(tuple, parts)
    # A special token that the text itself begins or ends with is not doubled: it counts as the special one.
    if len(before) == 1 and first and first[0].id == before[0].id:
        first = first[1:]
    last = first if pair is None else second
    if len(after) == 1 and last and last[-1].id == after[0].id:
        last = last[:-1]
    first, second = (last, second) if pair is None else (first, last)
    for tokens, content in ((first, text), (second, pair)):
        if content is not None and not tokens:
            raise SettingError("{} gives no token: {}. Leave it out.", name, f"{content!r:.60}")
    return TextTokens(name, before, first, between, second, after)


def fit(encoded: TextTokens, longest: int | None, truncate: Side | None) -> TextTokens:
    """Cut the text on the side that ``truncate`` names, so that it fits the model; of a pair the longer text first."""
    check_side(truncate)
    size = len(encoded.tokens)
    if longest is None or size <= longest:
        return encoded
    if truncate is None:
        raise SettingError(
            f"{{}} has {size} tokens, {encoded.special_count} of them special, and this model takes {longest}. "
            f"Shorten it by {size - longest} tokens, or set {{}} (or 'left') to cut that side.",
            encoded.name,
            Setting("truncate", "right"),
        )
    # Of a pair, each text keeps at least half of the available tokens, or all of its own.
    available = longest - encoded.special_count
    if available < (2 if encoded.second else 1):
        raise ValueError(
            f"this model takes {longest} tokens, too few for {encoded.special_count} special tokens and a text."
        )
    first, second = len(encoded.first), len(encoded.second)
    kept = min(first, max(available - second, available - available // 2))
    return replace(
        encoded,
        first=_cut(encoded.first, kept, truncate),
        second=_cut(encoded.second, min(second, available - kept), truncate),
    )


def check_side(truncate: Side | None) -> None:
    """Raise unless this is a side, or None."""
    check_choice("truncate", "left" if truncate is None else truncate, ("left", "right"))


def _cut(tokens: TokenTuple, kept: int, side: Side) -> TokenTuple:
    return tokens[:kept] if side == "right" else tokens[len(tokens) - kept :]


def trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the characters [start, end) without white space at the ends: many tokens hold the space before a word."""
    span = text[start:end]
    return start + len(span) - len(span.lstrip()), max(start, end - len(span) + len(span.rstrip()))


def check_pair(name: str, value: object, wanted: str = "a pair (text, text)") -> None:
    """Raise unless this is a pair of texts; ``wanted`` describes what is expected."""
    if not isinstance(value, tuple | list):
        hint = f" Put pairs in a list: [{wanted[wanted.index('(') :]}, …]." if isinstance(value, str) else ""
        raise TypeError(f"{name} must be {wanted}, got {value!r:.40} ({type(value).__name__}).{hint}")
    if len(value) != 2:
        raise ValueError(f"{name} must be {wanted}, got {len(value)} parts: {value!r:.60}.")
    for part, text in zip(("first", "second"), value, strict=True):
        check_text(f"the {part} part of {name}", text)


def check_text_or_pair(name: str, value: object) -> None:
    """Raise unless this is a text or a pair of texts."""
    if isinstance(value, tuple | list):
        check_pair(name, value, "a text or a pair (text, text)")
    else:
        check_text(name, value, "a text or a pair (text, text)")


# --- windows ----------------------------------------------------------------------------------------------------------


class Window(NamedTuple):
    """Tokens [start, end) of a sequence; those from ``new`` on are in no earlier window."""

    start: int
    new: int
    end: int


def sliding(length: int, window: int, stride: int) -> list[Window]:
    """Return windows over ``length`` tokens, each ``stride`` further than the one before, the last only to the end."""
    windows = [Window(0, 0, min(window, length))]
    while (reached := windows[-1].end) < length:
        end = min(reached + stride, length)
        windows.append(Window(end - window, reached, end))
    return windows


def check_windows(window: int | None, stride: int | None, longest: int | None, length: int) -> tuple[int, int]:
    """Check window and stride; None: the most that the model takes, and half of the window.

    For a model without a limit, the default is one window over the whole ``length``.
    """
    check_positive_integer(window=1 if window is None else window, stride=1 if stride is None else stride)
    if window is not None and longest is not None and window > longest:
        raise SettingError(f"{{}} tokens are more than this model takes: {longest}.", Setting("window", window))
    size = max(2, length) if longest is None else longest
    size = size if window is None else window
    step = max(1, size // 2) if stride is None else stride
    if size < 2 or step >= size:
        template = "{} must be less than {}, so that every predicted token has context."
        raise SettingError(template, Setting("stride", step), Setting("window", size))
    return size, step


def overlapping(sizes: Sequence[int], max_tokens: int, overlap: int) -> list[tuple[int, int]]:
    """Return ranges [first, last) of words with at most ``max_tokens`` tokens each that share about ``overlap`` tokens.

    ``sizes``: how many tokens each word has, at most ``max_tokens``.
    """
    ranges, first = [], 0
    while True:
        # As many words as fit.
        last, used = first, 0
        while last < len(sizes) and used + sizes[last] <= max_tokens:
            used += sizes[last]
            last += 1
        ranges.append((first, last))
        if last == len(sizes):
            return ranges
        # The next range begins about ``overlap`` tokens before the end of this one.
        again, shared = last, 0
        while again - 1 > first and shared + sizes[again - 1] <= min(overlap, max_tokens - sizes[last]):
            again -= 1
            shared += sizes[again]
        first = again


# --- batches ----------------------------------------------------------------------------------------------------------


@runtime_checkable
class Rows(Protocol):
    """A list of rows, or an object that creates each row on access."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, number: int, /) -> TaskRow:
        """Return one row."""


class TaskBatch(NamedTuple):
    """Padded rows; masks are True at real tokens. ``target``: the ids that the decoder of an encoder-decoder reads."""

    numbers: tuple[int, ...]  # indices of the rows
    lengths: tuple[int, ...]  # of ``ids``, without padding
    ids: Integer[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    segments: Integer[Tensor, "B T"] | None
    target: Integer[Tensor, "B U"] | None
    target_mask: Bool[Tensor, "B U"] | None


def run_in_batches(
    model: Transformer,
    rows: Rows,
    run: Callable[[Transformer, TaskBatch], Sequence[Result]],
    batch_size: int | None = None,
    progress: Progress | None = None,
    *,
    tokens: int = BATCH_TOKENS,
) -> list[Result]:
    """Return the result of ``run`` for each row, in the order of the rows.

    Args:
        model: in any mode; ``run`` gets it in evaluation mode.
        rows: the sequences; each is accessed twice, first for its length.
        run: takes the model and a batch, returns one result per row; called without gradients.
        batch_size: rows per batch; None: by their tokens, see ``plan_batches``.
        progress: called with the number of rows done and their total.
        tokens: of a batch, if ``batch_size`` is None.
    """
    check_positive_integer(batch_size=1 if batch_size is None else batch_size)
    # The longer side of an encoder-decoder's row counts.
    lengths = [max(len(row.ids), len(row.target or ())) for row in map(rows.__getitem__, range(len(rows)))]
    results: dict[int, Result] = {}
    model = evaluation_view(model)
    with torch.inference_mode():
        share = PACKED_PADDING_SHARE if _packs(model) else PADDING_SHARE
        for numbers in plan_batches(lengths, batch_size, tokens, share):
            batch = _make_batch(model, rows, numbers)
            results.update(zip(batch.numbers, run(model, batch), strict=True))
            if progress is not None:
                progress(len(results), len(lengths))
    return [results[number] for number in range(len(lengths))]


def batch_tokens(model: nn.Module) -> int:
    """Return the tokens of a batch for a model whose outputs are small: no logits of a vocabulary."""
    return BATCH_TOKENS if next(model.parameters()).device.type == "cpu" else GPU_BATCH_TOKENS


def plan_batches(
    lengths: Sequence[int],
    batch_size: int | None = None,
    tokens: int = BATCH_TOKENS,
    padding_share: int = PADDING_SHARE,
) -> Iterator[tuple[int, ...]]:
    """Yield the rows of each batch, by index: rows of similar length together, the longest first.

    A batch has ``batch_size`` rows. If that is None, it has at most ``tokens`` tokens, of which at most one in
    ``padding_share`` is padding, and at least one row.
    """
    # Longest first: memory is exhausted at once, if at all.
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    batch: list[int] = []
    padding = 0
    for number in order:
        if batch:
            longest = lengths[batch[0]]
            padding += longest - lengths[number]
            too_large = longest * (len(batch) + 1) > tokens or padding > tokens // padding_share
            if too_large if batch_size is None else len(batch) == batch_size:
                yield tuple(batch)
                batch, padding = [], 0
        batch.append(number)
    if batch:
        yield tuple(batch)


def head_input(model: Transformer, batch: TaskBatch) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B S"]]:
    """Return the hidden states that the head reads, and their mask.

    An encoder-decoder without a target decodes the same text, shifted right by its start token.
    """
    if model.config.encoder is None:
        return model.decode(batch.ids, batch.mask, segments=batch.segments), batch.mask
    hidden = encode(model, batch)
    if model.config.decoder is None:
        return hidden, batch.mask
    target, mask = batch.target, batch.target_mask
    if target is None or mask is None:
        start = torch.full_like(batch.ids[:, :1], start_token(model.config))
        target, mask = torch.cat((start, batch.ids[:, :-1]), -1), batch.mask
    return model.decode(target, mask, memory=hidden, memory_mask=batch.mask), mask


def encode(model: Transformer, batch: TaskBatch) -> Float[Tensor, "B T D"]:
    """Return the hidden states of the encoder, or of the decoder if there is no encoder; those of padding are any.

    Where attention has a kernel for packed documents, padding is not computed: the tokens of all rows are one row.
    """
    read = model.decode if model.config.encoder is None else model.encode
    if min(batch.lengths) == batch.ids.shape[1]:
        return read(batch.ids, segments=batch.segments)
    if _packs(model):
        return _encode_packed(read, batch)
    return read(batch.ids, batch.mask, segments=batch.segments)


def _packs(model: Transformer) -> bool:
    """Whether the model can read the rows of a batch as documents of one row, and is faster then."""
    stack, weight = model.decoder if model.encoder is None else model.encoder, next(model.parameters())
    if model.family == "encoder-decoder" or not isinstance(stack, Stack) or is_observed(model):
        return False
    return stack.has_packed_kernel(weight.device, weight.dtype)


def _encode_packed(read: Callable[..., Tensor], batch: TaskBatch) -> Float[Tensor, "B T D"]:
    """Let the model read all tokens as documents of one row, and put their vectors where the tokens were."""
    lengths = torch.tensor(batch.lengths)
    documents = torch.arange(1, len(lengths) + 1).repeat_interleave(lengths)  # tokens
    before = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    slots = (documents - 1) * batch.ids.shape[1] + torch.arange(len(documents)) - before  # in the padded batch
    slots, documents = slots.to(batch.ids.device), documents.to(batch.ids.device)
    segments = None if batch.segments is None else batch.segments.flatten()[slots][None]
    hidden = read(batch.ids.flatten()[slots][None], documents[None], segments=segments)[0]  # tokens D
    padded = hidden.new_zeros(batch.ids.numel(), hidden.shape[-1])
    return padded.index_copy_(0, slots, hidden).view(*batch.ids.shape, -1)


def start_token(facts: config.ModelConfig) -> int:
    """Return the id that an encoder-decoder's decoder begins with."""
    if facts.tokens.start is None:
        raise ValueError(
            "the config of this encoder-decoder has no start token for its decoder; "
            "set tokens.start with glassformer.config.change."
        )
    return facts.tokens.start


def _make_batch(model: Transformer, rows: Rows, numbers: tuple[int, ...]) -> TaskBatch:
    chosen = [rows[number] for number in numbers]
    device = next(model.parameters()).device
    ids, mask = _pad([row.ids for row in chosen], device)
    segments = None
    if model.config.embed.segments and any(map(any, (row.segments for row in chosen))):  # by default they are 0
        segments, _ = _pad([row.segments for row in chosen], device)
    targets = [row.target for row in chosen if row.target is not None]
    target, target_mask = _pad(targets, device) if targets else (None, None)
    return TaskBatch(numbers, tuple(len(row.ids) for row in chosen), ids, mask, segments, target, target_mask)


def _pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Integer[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Return rows padded on the right with 0, and their mask."""
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.long)
    ids[mask] = torch.from_numpy(np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum())))
    return ids.to(device), mask.to(device)
