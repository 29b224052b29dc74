"""Token ids in, token ids out: the one door to every search.

``generate`` continues prompts, or decodes sources with an encoder-decoder, as ``GenerationSettings`` say;
``generate_stream`` does the same and yields each token as it comes.

Shapes: ``B`` prompts, ``T`` tokens.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from operator import index

import torch
from jaxtyping import Bool, Integer
from torch import Tensor, nn

from glassformer.config.checks import Setting, SettingError, check_choice, check_positive
from glassformer.generation.beam import beam_search
from glassformer.generation.contrastive import contrastive_rows
from glassformer.generation.decoder import Decoder, check_writes
from glassformer.generation.record import GenerationOutput
from glassformer.generation.search import IsDone, Token, rectangle, write_rows
from glassformer.generation.settings import GenerationSettings
from glassformer.generation.speculative import Draft, speculative_rows
from glassformer.models.transformer import Transformer, transformer_of
from glassformer.nn.attention import PATHS, AttentionPath
from glassformer.nn.modes import evaluation_view

Prompts = Sequence[Sequence[int]] | Integer[Tensor, "B T"]
USUAL = GenerationSettings()


def generate(
    model: nn.Module,
    prompts: Prompts,
    settings: GenerationSettings = USUAL,
    *,
    mask: Bool[Tensor, "B T"] | None = None,
    start: Sequence[int] | None = None,
    is_done: IsDone | None = None,
    path: AttentionPath = "sdpa",
    chunk: int | None = None,
    draft: Draft | None = None,
) -> list[list[GenerationOutput]]:
    """The texts that ``settings`` ask for: for each prompt as many as its samples or best beams.

    Args:
        model: a ``Transformer`` or ``TransformerLM``: a decoder, which continues the prompts, or an encoder-decoder,
            which reads them with its encoder. It runs without dropout, whatever mode it is in, and stays in that mode.
        prompts: ids of unequal length, or a rectangle with a mask; the side of its padding does not matter.
        mask: True at real tokens of a rectangle; None: all of them are.
        start: what an encoder-decoder's text begins with; its start token if not given.
        is_done: asked after each token whether the text has come to its end.
        path: of attention, ``sdpa`` or ``eager``.
        chunk: read prompts in pieces of so many tokens; None: in one piece.
        draft: guesses tokens ahead, which leaves the texts alone and saves time; see ``speculative`` and ``drafts``.
    """
    writer = evaluation_view(_writer(model, settings))
    _check_draft(draft, settings)
    rows = _rows(prompts, mask)
    if not rows:
        return []
    with torch.inference_mode():
        decoder, begun, rooms = _prepare(writer, rows, settings, start, path, chunk)
        if settings.mode == "beam":
            return beam_search(decoder, begun, rooms, settings, is_done)
        return _drained(_search(decoder, rows, begun, rooms, settings, is_done, draft))


def generate_stream(
    model: nn.Module,
    prompts: Prompts,
    settings: GenerationSettings = USUAL,
    *,
    mask: Bool[Tensor, "B T"] | None = None,
    start: Sequence[int] | None = None,
    is_done: IsDone | None = None,
    path: AttentionPath = "sdpa",
    chunk: int | None = None,
    draft: Draft | None = None,
) -> Generator[Token, None, list[list[GenerationOutput]]]:
    """Like ``generate``, one token at a time; for all but beam search, whose tokens are final only at its end.

    Prompts are written side by side, with a draft one after the other. What is wrong with them is said at once.
    """
    writer = _writer(model, settings)
    if settings.mode == "beam":
        raise SettingError(
            "a beam search decides at its end, so its tokens cannot be streamed; use generate, or leave {} at 1.",
            Setting("beam_size"),
        )
    _check_draft(draft, settings)
    rows = _rows(prompts, mask)
    if not rows:
        return _nothing()
    with torch.inference_mode():  # detached: between two tokens the caller may train the model
        decoder, begun, rooms = _prepare(evaluation_view(writer, detached=True), rows, settings, start, path, chunk)
    return _without_gradients(_search(decoder, rows, begun, rooms, settings, is_done, draft))


def _search(
    decoder: Decoder,
    rows: list[list[int]],
    begun: list[list[int]],
    rooms: list[int],
    settings: GenerationSettings,
    is_done: IsDone | None,
    draft: Draft | None,
) -> Generator[Token, None, list[list[GenerationOutput]]]:
    """The search that the settings ask for, token by token."""
    if draft is not None:
        sources = None if decoder.model.encoder is None else rows
        return speculative_rows(decoder, draft, begun, rooms, settings, is_done, sources)
    if settings.mode == "contrastive":
        return contrastive_rows(decoder, begun, rooms, settings, is_done)
    return write_rows(decoder, begun, rooms, settings, is_done)


def _nothing() -> Generator[Token, None, list[list[GenerationOutput]]]:
    yield from ()
    return []


def _without_gradients(
    stream: Generator[Token, None, list[list[GenerationOutput]]],
) -> Generator[Token, None, list[list[GenerationOutput]]]:
    """Every step in inference mode; between them, while the caller has the token, as the caller wants.

    (Torch's own decorator does not know a generator that others have wrapped before, as type checks do.)
    """
    with closing(stream):
        while True:
            with torch.inference_mode():
                try:
                    token = next(stream)
                except StopIteration as end:
                    return list(end.value)
            yield token


def _prepare(
    model: Transformer,
    rows: list[list[int]],
    settings: GenerationSettings,
    start: Sequence[int] | None,
    path: AttentionPath,
    chunk: int | None,
) -> tuple[Decoder, list[list[int]], list[int]]:
    """The steps, what each text begins with, and how many tokens fit after it."""
    check_choice("path", path, PATHS)  # of attention
    if chunk is not None:
        check_positive(chunk=chunk)
    if isinstance(settings.seed, tuple) and len(settings.seed) != len(rows):
        raise ValueError(
            f"{len(settings.seed)} seeds were given for {len(rows)} prompts; give one for all, or one each."
        )
    longest = model.config.longest
    last = model.config.vocab - 1
    for number, row in enumerate(rows):
        if not row:
            raise ValueError(f"prompt {number} has no tokens; a model needs at least one to go on from.")
        _check_length(number, len(row), longest, is_prompt=model.encoder is None)
        if wrong := [token for token in row if not 0 <= token <= last]:
            raise IndexError(f"prompt {number} holds the id {wrong[0]}; the vocabulary goes from 0 to {last}.")
    if model.encoder is None:
        if start is not None:
            raise ValueError("start is for encoder-decoders; a decoder's text begins with its prompt.")
        source, mask, begun = None, None, rows
    else:
        first = _start(model) if start is None else list(start)
        if not first:
            raise ValueError("start has no tokens; an encoder-decoder's text begins with at least one.")
        begun = [first] * len(rows)
        source, mask = rectangle(rows, next(model.parameters()).device)
    rooms = [settings.max_new_tokens if longest is None else longest - len(row) for row in begun]
    return Decoder(model, source, mask, path=path, chunk=chunk), begun, rooms


def _writer(model: nn.Module, settings: object) -> Transformer:
    """The model itself, if it can write."""
    if not isinstance(settings, GenerationSettings):
        raise TypeError(f"settings are a Settings(...), got {type(settings).__name__}.")
    plain = transformer_of(model)
    check_writes(plain)
    return plain


def _check_draft(draft: Draft | None, settings: GenerationSettings) -> None:
    if draft is not None and not isinstance(draft, Draft):
        raise TypeError(f"a draft is a ModelDraft(model) or a PromptLookup(), see drafts; got {type(draft).__name__}.")
    if draft is not None and settings.mode not in ("greedy", "sample"):
        raise ValueError(
            f"a draft guesses for greedy search and sampling, and these settings ask for a {settings.mode} search; "
            "leave the draft out, or beam_size and contrastive_alpha."
        )


def _check_length(number: int, length: int, longest: int | None, *, is_prompt: bool) -> None:
    if longest is not None and length + is_prompt > longest:
        besides = ", of which at least one is for the answer" if is_prompt else ""
        raise ValueError(
            f"prompt {number} has {length} tokens, and the model's positions end at {longest}{besides}. Shorten it to "
            f"{longest - is_prompt}, or cut it from the left (truncate='left')."
        )


def _start(model: Transformer) -> list[int]:
    tokens = model.config.tokens
    if tokens.start is None:
        raise ValueError("this model's facts name no start token (tokens.start); pass start=, the ids to begin with.")
    return [tokens.start]


def _rows(prompts: Prompts, mask: Tensor | None) -> list[list[int]]:
    """The real tokens of every prompt."""
    if not isinstance(prompts, Tensor):
        if mask is not None:
            raise ValueError("a mask belongs to a rectangle of ids; lists of unequal length need none.")
        if isinstance(prompts, str) or not all(isinstance(prompt, Sequence | Tensor) for prompt in prompts):
            raise TypeError(f"prompts are a list with the ids of each, as [[464, 3280], [15496]]; got {prompts!r:.60}.")
        if any(isinstance(prompt, str) for prompt in prompts):
            raise TypeError("prompts are ids here; for text use generate_text, or the tokenizer's encode_batch.")
        try:
            return [[index(token) for token in prompt] for prompt in prompts]
        except TypeError as error:
            raise TypeError(f"prompts are lists of token ids, which are whole numbers: {error}.") from error
    if prompts.ndim != 2 or (mask is not None and (mask.shape != prompts.shape or mask.dtype != torch.bool)):
        given = "" if mask is None else f" and a mask of {mask.dtype}, shape {tuple(mask.shape)}"
        raise ValueError(
            f"ids are (prompts, tokens) and a mask is booleans of the same shape, True at real tokens; got ids of "
            f"shape {tuple(prompts.shape)}{given}."
        )
    kept = torch.ones_like(prompts, dtype=torch.bool) if mask is None else mask
    return [row[real].tolist() for row, real in zip(prompts, kept, strict=True)]


def _drained(stream: Generator[Token, None, list[list[GenerationOutput]]]) -> list[list[GenerationOutput]]:
    while True:
        try:
            next(stream)
        except StopIteration as end:
            return list(end.value)
