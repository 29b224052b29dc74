"""How probable texts are under a language model: token by token, as perplexity, as bits per byte.

What is averaged is averaged over predicted tokens, all of them together, so batches make no difference. Texts that are
longer than the model are read window by window: every token is predicted once, with as much before it as the window
holds.

The texts are those that the tokenizer makes, with its own tokens around them: where it puts a token before the text,
all of the text is predicted; where it does not, nothing stands before the first token, and it is not predicted.

Shapes: ``T`` tokens, ``D`` model width, ``V`` vocabulary.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.config.checks import Setting, SettingError
from glassformer.generation.prompts import check_loaded, check_texts
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import Batch, Progress, Row, ask_in_batches, encoded, start_token, vectors
from glassformer.tasks.perplexity import bits_of, perplexity_of
from glassformer.tasks.texts import Framed, Pair, check_head, check_text_or_pair, fit, frame
from glassformer.tasks.windows import Window, check_windows, sliding
from glassformer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenScore:
    """One token and its log-probability, base e; None where nothing stands before it to predict it from."""

    token: str  # as the vocabulary writes it
    id: int
    start: int  # the characters [start, end) of the text that it covers; none for a token that is not in the text
    end: int
    log_prob: float | None


@dataclass(frozen=True)
class Total:
    """What is said of all predicted tokens together; the averages are None where none was predicted."""

    log_prob: float  # sum of the log-probabilities
    predicted: int  # how many tokens were predicted
    bytes: int  # of UTF-8, of the text that was predicted
    perplexity: float | None  # exp of the mean of −log_prob
    bits_per_byte: float | None


@dataclass(frozen=True)
class Score:
    """A text with the score of every token."""

    text: str
    source: str | None  # what an encoder-decoder was given
    tokens: tuple[TokenScore, ...]
    total: Total


def score(
    loaded: Loaded,
    texts: Sequence[str | Pair],
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> list[Score]:
    """The log-probabilities of texts, in their order.

    Args:
        loaded: a decoder or encoder-decoder with a head of the kind lm, and its tokenizer.
        texts: texts for a decoder; pairs (source, text) for an encoder-decoder, which is asked how probable the text is
            given the source. Those must fit into the model.
        window: tokens that a decoder sees at once; the most it takes unless given.
        stride: how many new tokens each window after the first predicts; half the window unless given. The fewer, the
            more stands before each, and the longer it takes.
        batch_size: windows at a time.
        progress: called with how many are done, and of how many.
    """
    check_texts(loaded, texts, check_text_or_pair)
    model, tokenizer = loaded.model, loaded.tokenizer
    check_head(model.config, ("lm",), "score")
    if model.config.family == "encoder":
        raise ValueError(
            "this model guesses masked words and predicts no next token; score it with score_masked (--masked)."
        )
    if model.config.family == "encoder-decoder":
        if window is not None or stride is not None:
            template = "{} and {} are for decoders; an encoder-decoder reads a pair as a whole."
            raise SettingError(template, Setting("window"), Setting("stride"))
        return _score_pairs(loaded, texts, batch_size, progress)
    single = [text for text in texts if isinstance(text, str)]
    if len(single) < len(texts):
        raise ValueError("this model has no encoder for the source of a pair (source, text): give it single texts.")
    framed = [frame(tokenizer, text, name=f"text {number}") for number, text in enumerate(single)]
    streams = [[token.id for token in one.tokens] for one in framed]
    found = _score_streams(model, streams, (window, stride), batch_size, progress)
    return [_scored(text, None, one, logs, tokenizer) for text, one, logs in zip(single, framed, found, strict=True)]


def score_file(
    loaded: Loaded,
    path: Path | str,
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> Total:
    """The log-probability of a whole file of UTF-8 text as one stream of tokens; see ``score`` for the arguments.

    Logits are there for one window at a time, so that memory does not grow with the file but by its ids.
    """
    check_loaded(loaded)
    model, tokenizer = loaded.model, loaded.tokenizer
    check_head(model.config, ("lm",), "scoring a whole file", ("decoder",))
    text = Path(path).read_bytes().decode("utf-8")  # bytes: no line ending is changed
    framed = frame(tokenizer, text, name=str(path))
    (logs,) = _score_streams(model, [[token.id for token in framed.tokens]], (window, stride), batch_size, progress)
    return _total(text, framed, logs)


def score_masked(
    loaded: Loaded, texts: Sequence[str], *, batch_size: int = 16, progress: Progress | None = None
) -> list[Score]:
    """Pseudo-log-likelihoods of texts under a model that guesses masked words (Salazar et al., 2020), in their order.

    Each token of a text is masked in its turn and guessed from all others. That is no probability of the text, and its
    perplexity no rival of a language model's: later tokens are seen.

    Args:
        loaded: an encoder with a head of the kind lm or pretraining, and its tokenizer.
        texts: must fit into the model; a text of n tokens takes n passes.
        batch_size: passes at a time.
        progress: called with how many are done, and of how many.
    """
    check_texts(loaded, texts)
    model, tokenizer = loaded.model, loaded.tokenizer
    check_head(model.config, ("lm", "pretraining"), "scoring by masks", ("encoder",))
    if tokenizer.mask is None:
        raise ValueError("this tokenizer names no mask token, so no token can be hidden from the model.")
    framed = [frame(tokenizer, text, name=f"text {number}") for number, text in enumerate(texts)]
    rows = _Masked([fit(one, model.config.longest, None) for one in framed], tokenizer.mask)

    def ask(model: Transformer, batch: Batch) -> list[float]:
        places, wanted = zip(*(rows.hidden(number) for number in batch.numbers), strict=True)
        hidden = encoded(model, batch)[torch.arange(len(places)), torch.tensor(places)]  # B D
        return _log_probabilities(model, hidden, wanted)

    logs = iter(ask_in_batches(model, rows, ask, batch_size, progress))
    scores = []
    for text, one in zip(texts, framed, strict=True):
        known = {len(one.before) + place: next(logs) for place in range(len(one.first))}
        scores.append(_scored(text, None, one, [known.get(place) for place in range(len(one.tokens))], tokenizer))
    return scores


def summarise(scores: Iterable[Score]) -> Total:
    """All texts together: every predicted token counts once, however many are in its text."""
    totals = [one.total for one in scores]
    predicted, size = (sum(numbers) for numbers in ([one.predicted for one in totals], [one.bytes for one in totals]))
    return _averaged([one.log_prob for one in totals], predicted, size)


class _Slices:
    """Windows over streams of ids as rows, cut when they are asked for: what they share needs no room twice."""

    def __init__(self, streams: Sequence[Sequence[int]], windows: Sequence[tuple[int, Window]]) -> None:
        self.streams, self.windows = streams, windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, number: int) -> Row:
        stream, window = self.windows[number]
        ids = self.streams[stream][window.start : window.end]
        return Row(ids, [0] * len(ids))


class _Masked:
    """For each token of each text a row in which it is masked, made when it is asked for."""

    def __init__(self, texts: Sequence[Framed], mask: int) -> None:
        self.texts, self.mask = texts, mask
        self.places = [(text, len(text.before) + place) for text in texts for place in range(len(text.first))]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> Row:
        text, place = self.places[number]
        ids, segments, _ = text.row
        return Row([*ids[:place], self.mask, *ids[place + 1 :]], segments)

    def hidden(self, number: int) -> tuple[int, int]:
        """The masked place of a row, and the id that stood there."""
        text, place = self.places[number]
        return place, text.tokens[place].id


def _score_streams(
    model: Transformer,
    streams: Sequence[Sequence[int]],
    sizes: tuple[int | None, int | None],
    batch_size: int,
    progress: Progress | None,
) -> list[list[float | None]]:
    """The log-probability of every id, None for the first of each stream; ``sizes`` are window and stride."""
    size, step = check_windows(*sizes, model.config.longest, max(map(len, streams), default=0))
    windows = [(number, one) for number, stream in enumerate(streams) for one in sliding(len(stream), size, step)]

    def ask(model: Transformer, batch: Batch) -> list[list[float]]:
        found = []
        for hidden, number in zip(encoded(model, batch), batch.numbers, strict=True):
            stream, (start, new, end) = windows[number]
            first = max(new, 1)  # nothing stands before the very first
            before = hidden[first - 1 - start : end - 1 - start]  # the vectors that predict the ids after them
            found.append(_log_probabilities(model, before, streams[stream][first:end]))
        return found

    logs: list[list[float | None]] = [[None] for _ in streams]
    answers = ask_in_batches(model, _Slices(streams, windows), ask, batch_size, progress)
    for (number, _), more in zip(windows, answers, strict=True):
        logs[number] += more
    return logs


def _score_pairs(
    loaded: Loaded, texts: Sequence[str | Pair], batch_size: int, progress: Progress | None
) -> list[Score]:
    """Texts given their sources; the decoder's start token predicts the first."""
    model, tokenizer = loaded.model, loaded.tokenizer
    pairs = [pair for pair in texts if not isinstance(pair, str)]
    if len(pairs) < len(texts):
        raise ValueError("an encoder-decoder scores pairs (source, text), not single texts.")
    sources, targets = (
        [
            fit(frame(tokenizer, pair[side], name=f"{what} {number}"), model.config.longest, None)
            for number, pair in enumerate(pairs)
        ]
        for side, what in enumerate(("source", "text"))
    )
    wanted = [target.row.ids for target in targets]
    start = start_token(model.config)
    rows = [source.row._replace(target=[start, *ids[:-1]]) for source, ids in zip(sources, wanted, strict=True)]

    def ask(model: Transformer, batch: Batch) -> list[list[float]]:
        hidden, _ = vectors(model, batch)
        both = [(row, wanted[number]) for row, number in zip(hidden, batch.numbers, strict=True)]
        return [_log_probabilities(model, row[: len(ids)], ids) for row, ids in both]

    found = ask_in_batches(model, rows, ask, batch_size, progress)
    return [
        _scored(text, source, framed, logs, tokenizer)
        for (source, text), framed, logs in zip(pairs, targets, found, strict=True)
    ]


def _log_probabilities(model: Transformer, hidden: Float[Tensor, "T D"], wanted: Sequence[int]) -> list[float]:
    """The log-probability of each wanted id under the logits of the vector beside it."""
    if not wanted:
        return []
    answer = model.apply_head(hidden.unsqueeze(0))
    logits = (answer[0] if isinstance(answer, tuple) else answer).squeeze(0)  # T V
    logs = upcast(logits).log_softmax(-1)
    return logs.gather(-1, torch.tensor(wanted, device=logs.device).unsqueeze(-1)).squeeze(-1).tolist()


def _scored(text: str, source: str | None, framed: Framed, logs: Sequence[float | None], tokenizer: Tokenizer) -> Score:
    names = tokenizer.tokens(token.id for token in framed.tokens)
    tokens = [
        TokenScore(name, token.id, token.start, token.end, log)
        for name, token, log in zip(names, framed.tokens, logs, strict=True)
    ]
    return Score(text, source, tuple(tokens), _total(text, framed, logs))


def _total(text: str, framed: Framed, logs: Sequence[float | None]) -> Total:
    known = [log for log in logs if log is not None]
    begin = 0
    if logs[0] is None and not framed.before:  # the first token of the text was not predicted: its bytes do not count
        begin = min([framed.first[0].end, *(token.start for token in framed.first[1:2])])
        begin = begin if known else len(text)
    return _averaged(known, len(known), len(text[begin:].encode()))


def _averaged(logs: Sequence[float], predicted: int, size: int) -> Total:
    total = math.fsum(logs)
    if not predicted:
        return Total(total, predicted, size, None, None)
    return Total(total, predicted, size, perplexity_of(-total / predicted), bits_of(-total) / size if size else None)
