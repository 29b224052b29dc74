"""How probable texts are under a language model: token by token, as perplexity, as bits per byte.

Averages are over all predicted tokens together, so that batches make no difference. Texts that are longer than the
model takes are read window by window: every token is predicted once, with as much context as the window holds.

Texts are encoded with the tokenizer's special tokens. If there is one before the text, all of the text is predicted;
otherwise the first token has no context and is not predicted.

Shapes: ``T`` tokens, ``D`` model width, ``V`` vocabulary.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.config.checks import Setting, SettingError
from glassformer.generation.prompts import check_can, check_loaded, check_texts
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import (
    Pair,
    Progress,
    TaskBatch,
    TaskRow,
    TextTokens,
    Window,
    all_text_tokens,
    check_text_or_pair,
    check_windows,
    encode,
    fit,
    head_input,
    run_in_batches,
    sliding,
    start_token,
    text_tokens,
)
from glassformer.tasks.perplexity import bits_of, perplexity_of
from glassformer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenScore:
    """One token and its log-probability, base e; None if it has no context to be predicted from."""

    token: str  # its name in the vocabulary
    id: int
    start: int  # the characters [start, end) of the text; empty for special tokens
    end: int
    log_prob: float | None


@dataclass(frozen=True)
class Total:
    """All predicted tokens together; the averages are None if no token was predicted."""

    log_prob: float  # sum of the log-probabilities
    predicted: int  # how many tokens were predicted
    bytes: int  # of the predicted text in UTF-8
    perplexity: float | None  # exp of the mean of −log_prob
    bits_per_byte: float | None


@dataclass(frozen=True)
class Score:
    """A text with the score of every token."""

    text: str
    source: str | None  # what an encoder-decoder's encoder read
    tokens: tuple[TokenScore, ...]
    total: Total


@overload
def score(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
    loaded: Loaded,
    texts: str,
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Score: ...


@overload
def score(
    loaded: Loaded,
    texts: Sequence[str | Pair],
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[Score]: ...


def score(
    loaded: Loaded,
    texts: str | Sequence[str | Pair],
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Score | list[Score]:
    """Return the log-probabilities of a text, or of a list of texts in their order.

    Args:
        loaded: a decoder or encoder-decoder with a head of the kind lm, and its tokenizer.
        texts: one text, which gives one result, or a list of them for a decoder; a list of pairs (source, text) for an
            encoder-decoder, which gives the probability of the text given the source. Pairs must fit the model.
        window: tokens that a decoder reads at once; None: the most it takes.
        stride: how many new tokens each window after the first predicts; None: half the window. A smaller stride gives
            every token more context, and takes longer.
        batch_size: windows per batch; None: by their tokens, see ``tasks.batches``.
        progress: called with the number done and the total.
    """
    check_loaded(loaded)
    model, tokenizer = loaded.model, loaded.tokenizer
    if model.config.family == "encoder" and "fill" in loaded.abilities:
        template = "this model predicts masked tokens and no next token; score it with {}."
        raise SettingError(template, Setting("score_masked", external_name="masked"))
    check_can(loaded, "score")
    if isinstance(texts, str):
        return score(loaded, [texts], window=window, stride=stride, batch_size=batch_size, progress=progress)[0]
    check_texts(loaded, texts, check_text_or_pair)
    if model.config.family == "encoder-decoder":
        if window is not None or stride is not None:
            template = "{} and {} are for decoders; an encoder-decoder reads a pair as a whole."
            raise SettingError(template, Setting("window"), Setting("stride"))
        return _score_pairs(loaded, texts, batch_size, progress)
    single = [text for text in texts if isinstance(text, str)]
    if len(single) < len(texts):
        raise ValueError("this model has no encoder for the source of a pair (source, text): pass single texts.")
    # Ids of every text as a stream, scored in windows.
    encoded = all_text_tokens(tokenizer, single)
    streams = [[token.id for token in text.tokens] for text in encoded]
    logs = _score_streams(model, streams, (window, stride), batch_size, progress)
    rows = zip(single, encoded, logs, strict=True)
    return [_scored(text, None, tokens, text_logs, tokenizer) for text, tokens, text_logs in rows]


def score_file(
    loaded: Loaded,
    path: Path | str,
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Total:
    """Return the log-probability of a whole file of UTF-8 text as one stream of tokens.

    See ``score`` for the arguments.

    Logits are computed for one batch of windows at a time, so that memory grows with the file only by its ids.
    """
    check_can(loaded, "scoring a whole file", ("lm",), ("decoder",))
    model, tokenizer = loaded.model, loaded.tokenizer
    text = Path(path).read_bytes().decode("utf-8")  # bytes, so that line endings stay as they are
    encoded = text_tokens(tokenizer, text, name=str(path))
    (logs,) = _score_streams(model, [[token.id for token in encoded.tokens]], (window, stride), batch_size, progress)
    return _total(text, encoded, logs)


@overload
def score_masked(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
    loaded: Loaded, texts: str, *, batch_size: int | None = None, progress: Progress | None = None
) -> Score: ...


@overload
def score_masked(
    loaded: Loaded, texts: Sequence[str], *, batch_size: int | None = None, progress: Progress | None = None
) -> list[Score]: ...


def score_masked(
    loaded: Loaded, texts: str | Sequence[str], *, batch_size: int | None = None, progress: Progress | None = None
) -> Score | list[Score]:
    """Return pseudo-log-likelihoods of texts under a masked language model (Salazar et al., 2020), in their order.

    Each token of a text is masked in turn and predicted from all others. That is not a probability of the text, and its
    perplexity cannot be compared with that of a causal model: later tokens are visible.

    Args:
        loaded: an encoder with a head of the kind lm or pretraining, and its tokenizer.
        texts: one text, which gives one result, or a list; must fit the model. A text of n tokens takes n passes.
        batch_size: passes per batch; None: by their tokens, see ``tasks.batches``.
        progress: called with the number done and the total.
    """
    check_can(loaded, "scoring by masks", ("lm", "pretraining"), ("encoder",))
    if isinstance(texts, str):
        return score_masked(loaded, [texts], batch_size=batch_size, progress=progress)[0]
    check_texts(loaded, texts)
    model, tokenizer = loaded.model, loaded.tokenizer
    if tokenizer.mask is None:
        raise ValueError("this tokenizer has no mask token, so no token can be masked.")
    encoded = all_text_tokens(tokenizer, texts)
    rows = _Masked([fit(text, model.config.max_length, None) for text in encoded], tokenizer.mask)

    def run(model: Transformer, batch: TaskBatch) -> list[float]:
        indices, targets = zip(*(rows.masked(number) for number in batch.numbers), strict=True)
        hidden = encode(model, batch)[torch.arange(len(indices)), torch.tensor(indices)]  # (B, D)
        return _log_probs(model, hidden, targets)

    # One pass per token; special tokens have no score.
    logs = iter(run_in_batches(model, rows, run, batch_size, progress))
    scores = []
    for text, tokens in zip(texts, encoded, strict=True):
        known = {len(tokens.before) + index: next(logs) for index in range(len(tokens.first))}
        all_logs = [known.get(index) for index in range(len(tokens.tokens))]
        scores.append(_scored(text, None, tokens, all_logs, tokenizer))
    return scores


def summarise(scores: Iterable[Score]) -> Total:
    """Return the total of all texts: every predicted token counts once, whatever the length of its text."""
    totals = [score.total for score in scores]
    predicted, size = sum(total.predicted for total in totals), sum(total.bytes for total in totals)
    return _averaged([total.log_prob for total in totals], predicted, size)


class _Slices:
    """Windows over streams of ids as rows, created on access, so that overlaps are not stored twice."""

    def __init__(self, streams: Sequence[Sequence[int]], windows: Sequence[tuple[int, Window]]) -> None:
        self.streams, self.windows = streams, windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, number: int) -> TaskRow:
        stream, window = self.windows[number]
        ids = self.streams[stream][window.start : window.end]
        return TaskRow(ids, [0] * len(ids))


class _Masked:
    """For each token of each text a row in which it is masked, created on access."""

    def __init__(self, texts: Sequence[TextTokens], mask: int) -> None:
        self.texts, self.mask = texts, mask
        self.rows = [(text, len(text.before) + index) for text in texts for index in range(len(text.first))]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> TaskRow:
        text, index = self.rows[number]
        ids, segments, _ = text.row
        return TaskRow([*ids[:index], self.mask, *ids[index + 1 :]], segments)

    def masked(self, number: int) -> tuple[int, int]:
        """Return the index of the masked token of a row, and its id."""
        text, index = self.rows[number]
        return index, text.tokens[index].id


def _score_streams(
    model: Transformer,
    streams: Sequence[Sequence[int]],
    sizes: tuple[int | None, int | None],
    batch_size: int | None,
    progress: Progress | None,
) -> list[list[float | None]]:
    """Return the log-probability of every id, None for the first of each stream; ``sizes`` are window and stride."""
    size, step = check_windows(*sizes, model.config.max_length, max(map(len, streams), default=0))
    windows = [(number, w) for number, stream in enumerate(streams) for w in sliding(len(stream), size, step)]

    def run(model: Transformer, batch: TaskBatch) -> list[list[float]]:
        logs = []
        for hidden, number in zip(encode(model, batch), batch.numbers, strict=True):  # hidden (T, D)
            stream, (start, new, end) = windows[number]
            first = max(new, 1)  # the first token of a stream has no context
            before = hidden[first - 1 - start : end - 1 - start]  # each predicts the next id
            logs.append(_log_probs(model, before, streams[stream][first:end]))
        return logs

    # Every window adds the tokens that no earlier window has.
    logs: list[list[float | None]] = [[None] for _ in streams]
    new_logs = run_in_batches(model, _Slices(streams, windows), run, batch_size, progress)
    for (number, _), more in zip(windows, new_logs, strict=True):
        logs[number] += more
    return logs


def _score_pairs(
    loaded: Loaded, texts: Sequence[str | Pair], batch_size: int | None, progress: Progress | None
) -> list[Score]:
    """Return scores of texts given their sources; the decoder's start token predicts the first token."""
    model, tokenizer = loaded.model, loaded.tokenizer
    pairs = [pair for pair in texts if not isinstance(pair, str)]
    if len(pairs) < len(texts):
        raise ValueError("an encoder-decoder scores pairs (source, text), not single texts.")
    # Encode sources and texts, each with its special tokens.
    sources, targets = (
        [
            fit(text, model.config.max_length, None)
            for text in all_text_tokens(tokenizer, [pair[side] for pair in pairs], what)
        ]
        for side, what in enumerate(("source", "text"))
    )
    # Teacher forcing: the decoder reads [start, y1 … y(n−1)], and its hidden state i predicts y(i).
    target_ids = [target.row.ids for target in targets]
    start = start_token(model.config)
    rows = [source.row._replace(target=[start, *ids[:-1]]) for source, ids in zip(sources, target_ids, strict=True)]

    def run(model: Transformer, batch: TaskBatch) -> list[list[float]]:
        # Padding is on the right, so the first len(ids) states of a row are those of its tokens.
        hidden, _ = head_input(model, batch)  # (B, T, D)
        rows = [(row, target_ids[number]) for row, number in zip(hidden, batch.numbers, strict=True)]
        return [_log_probs(model, row[: len(ids)], ids) for row, ids in rows]

    all_logs = run_in_batches(model, rows, run, batch_size, progress)
    return [
        _scored(text, source, encoded, logs, tokenizer)
        for (source, text), encoded, logs in zip(pairs, targets, all_logs, strict=True)
    ]


def _log_probs(model: Transformer, hidden: Float[Tensor, "T D"], targets: Sequence[int]) -> list[float]:
    """Return the log-probability of each target id under the logits of its hidden state."""
    if not targets:
        return []
    output = model.apply_head(hidden.unsqueeze(0))
    logits = (output[0] if isinstance(output, tuple) else output).squeeze(0)  # (T, V)
    logs = upcast(logits).log_softmax(-1)
    return logs.gather(-1, torch.tensor(targets, device=logs.device).unsqueeze(-1)).squeeze(-1).tolist()


def _scored(
    text: str, source: str | None, encoded: TextTokens, logs: Sequence[float | None], tokenizer: Tokenizer
) -> Score:
    names = tokenizer.tokens(token.id for token in encoded.tokens)
    tokens = [
        TokenScore(name, token.id, token.start, token.end, log)
        for name, token, log in zip(names, encoded.tokens, logs, strict=True)
    ]
    return Score(text, source, tuple(tokens), _total(text, encoded, logs))


def _total(text: str, encoded: TextTokens, logs: Sequence[float | None]) -> Total:
    known = [log for log in logs if log is not None]
    begin = 0
    if logs[0] is None and not encoded.before:  # the first token of the text was not predicted: its bytes do not count
        begin = min([encoded.first[0].end, *(token.start for token in encoded.first[1:2])])
        begin = begin if known else len(text)
    return _averaged(known, len(known), len(text[begin:].encode()))


def _averaged(logs: Sequence[float], predicted: int, size: int) -> Total:
    total = math.fsum(logs)
    if not predicted:
        return Total(total, predicted, size, None, None)
    return Total(total, predicted, size, perplexity_of(-total / predicted), bits_of(-total) / size if size else None)
