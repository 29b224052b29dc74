"""Token ids in, token ids out: ``generate`` runs every search, ``generate_stream`` also yields each token as it comes.

Both continue prompts, or decode sources with an encoder-decoder, as ``GenerationSettings`` say. For text instead of ids
see ``text.generate_text``, which is ``glassformer.generate``.

Shapes: ``B`` prompts, ``T`` tokens.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from operator import index

import torch
from jaxtyping import Bool, Integer
from torch import Tensor, nn

from glassformer.config.checks import Item, Setting, SettingError, check_choice, check_positive_integer
from glassformer.config.options import Decoding
from glassformer.generation.beam import beam_search
from glassformer.generation.contrastive import contrastive_rows
from glassformer.generation.decoder import Decoder, check_generates
from glassformer.generation.device_beam import beams_on_device, device_beam_search
from glassformer.generation.device_search import chooses_on_device, device_rows
from glassformer.generation.search import GenerationOutput, IsDone, NewToken, rectangle, search_rows
from glassformer.generation.settings import GenerationSettings
from glassformer.generation.speculative import Draft, speculative_rows
from glassformer.generation.steps import DECODINGS, choose_decoding
from glassformer.models.transformer import Transformer, transformer_of
from glassformer.nn.attention import PATHS, AttentionPath
from glassformer.nn.modes import evaluation_view

Prompts = Sequence[Sequence[int]] | Integer[Tensor, "B T"]
DEFAULT = GenerationSettings()


class TokenIdError(SettingError, IndexError):
    """A prompt with an id that the vocabulary does not have."""


def generate(
    model: nn.Module,
    prompts: Prompts,
    settings: GenerationSettings = DEFAULT,
    *,
    mask: Bool[Tensor, "B T"] | None = None,
    start: Sequence[int] | None = None,
    is_done: IsDone | None = None,
    path: AttentionPath = "sdpa",
    chunk: int | None = None,
    draft: Draft | None = None,
    decoding: Decoding = "auto",
) -> list[list[GenerationOutput]]:
    """Generate token ids: for each prompt a list of its samples or best beams.

    Args:
        model: a ``Transformer`` or ``TransformerLM``: a decoder, which continues the prompts, or an encoder-decoder,
            which feeds them to its encoder. It runs without dropout, whatever mode it is in, and stays in that mode.
        prompts: lists of ids, of any length, or a tensor with a mask, padded on either side.
        settings: what to generate and how to search.
        mask: True at real tokens of a tensor; None: all tokens are real.
        start: the ids that an encoder-decoder's text begins with; None: its start token.
        is_done: called after each token; whether the text ends here.
        path: the attention path, ``sdpa`` or ``eager``.
        chunk: prefill prompts in chunks of this many tokens; None: in one.
        draft: proposes tokens for speculative decoding, which is faster and leaves the distribution as it is.
        decoding: how steps are run: ``dynamic``, ``static``, ``graph``, ``compiled``, or by ``auto`` as a CUDA graph
            wherever that is possible; see ``generation.steps``.
    """
    plain = evaluation_view(_checked_model(model, settings))
    _check_draft(draft, settings)
    _check_options(path, chunk, decoding)
    rows = _rows(prompts, mask)
    if not rows:
        return []
    with torch.inference_mode():
        decoder, prefixes, max_new = _prepare(plain, rows, settings, start, path, chunk)
        decoder.decoding = choose_decoding(plain, decoding, _why_dynamic(settings, is_done, draft))
        if settings.mode == "beam":
            search = beam_search if decoder.decoding == "dynamic" else device_beam_search
            return search(decoder, prefixes, max_new, settings, is_done)
        return _drained(_search(decoder, rows, prefixes, max_new, settings, is_done, draft))


def generate_stream(
    model: nn.Module,
    prompts: Prompts,
    settings: GenerationSettings = DEFAULT,
    *,
    mask: Bool[Tensor, "B T"] | None = None,
    start: Sequence[int] | None = None,
    is_done: IsDone | None = None,
    path: AttentionPath = "sdpa",
    chunk: int | None = None,
    draft: Draft | None = None,
    decoding: Decoding = "auto",
) -> Generator[NewToken, None, list[list[GenerationOutput]]]:
    """Like ``generate``, yielding one token at a time; not for beam search, whose tokens are final only at its end.

    Prompts are continued side by side, with a draft one after the other. Wrong arguments raise at once.
    """
    plain = _checked_model(model, settings)
    if settings.mode == "beam":
        raise SettingError(
            "a beam search decides at its end, so its tokens cannot be streamed; use generate, or leave {} at 1.",
            Setting("beam_size"),
        )
    _check_draft(draft, settings)
    _check_options(path, chunk, decoding)
    rows = _rows(prompts, mask)
    if not rows:
        return _nothing()
    with torch.inference_mode():  # detached: between two tokens the caller may train the model
        view = evaluation_view(plain, detached=True)
        decoder, prefixes, max_new = _prepare(view, rows, settings, start, path, chunk)
        decoder.decoding = choose_decoding(view, decoding, _why_dynamic(settings, is_done, draft))
    return _without_gradients(_search(decoder, rows, prefixes, max_new, settings, is_done, draft))


def _search(
    decoder: Decoder,
    rows: list[list[int]],
    prefixes: list[list[int]],
    max_new: list[int],
    settings: GenerationSettings,
    is_done: IsDone | None,
    draft: Draft | None,
) -> Generator[NewToken, None, list[list[GenerationOutput]]]:
    """Return the search that the settings select, token by token."""
    if draft is not None:
        sources = None if decoder.model.encoder is None else rows
        return speculative_rows(decoder, draft, prefixes, max_new, settings, is_done, sources)
    if settings.mode == "contrastive":
        return contrastive_rows(decoder, prefixes, max_new, settings, is_done)
    if decoder.decoding != "dynamic" and is_done is None and chooses_on_device(settings):
        return device_rows(decoder, prefixes, max_new, settings)
    return search_rows(decoder, prefixes, max_new, settings, is_done)


def _why_dynamic(settings: GenerationSettings, is_done: IsDone | None, draft: Draft | None) -> str | None:
    """Return why a search needs a cache that grows and shrinks; None if it does not."""
    if draft is not None:
        return "speculative decoding takes back the tokens that it rejects"
    if settings.mode == "contrastive":
        return "contrastive search computes several candidates and keeps one"
    if settings.mode == "beam" and (is_done is not None or not beams_on_device(settings)):
        return "this beam search has groups, constraints, stop strings, alternatives or a record, which need Python"
    return None


def _nothing() -> Generator[NewToken, None, list[list[GenerationOutput]]]:
    yield from ()
    return []


def _without_gradients(
    stream: Generator[NewToken, None, list[list[GenerationOutput]]],
) -> Generator[NewToken, None, list[list[GenerationOutput]]]:
    """Run every step in inference mode, and leave the caller's mode alone between two steps.

    (Torch's own decorator does not recognise a generator function that is wrapped, as type checks do.)
    """
    with closing(stream):
        while True:
            with torch.inference_mode():
                try:
                    token = next(stream)
                except StopIteration as end:
                    return list(end.value)
            yield token


def _check_options(path: AttentionPath, chunk: int | None, decoding: Decoding) -> None:
    """Raise for options that do not exist, whatever the prompts."""
    check_choice("path", path, PATHS)
    check_choice("decoding", decoding, DECODINGS)
    if chunk is not None:
        check_positive_integer(chunk=chunk)


def _prepare(
    model: Transformer,
    rows: list[list[int]],
    settings: GenerationSettings,
    start: Sequence[int] | None,
    path: AttentionPath,
    chunk: int | None,
) -> tuple[Decoder, list[list[int]], list[int]]:
    """Return the decoder, the ids that it is fed first for each text, and how many tokens fit after them."""
    if isinstance(settings.seed, tuple) and len(settings.seed) != len(rows):
        raise ValueError(f"got {len(settings.seed)} seeds for {len(rows)} prompts; pass one for all, or one for each.")
    # Check every prompt before the first is fed to the model.
    max_length = model.config.max_length
    last = model.config.vocab - 1
    for number, row in enumerate(rows):
        if not row:
            prompt = Item("prompt", number)
            raise SettingError("{} has no tokens; a model needs at least one to continue from.", prompt)
        _check_length(number, len(row), max_length, is_prompt=model.encoder is None)
        if wrong := [token for token in row if not 0 <= token <= last]:
            template = f"{{}} holds the id {wrong[0]}; the vocabulary goes from 0 to {last}."
            raise TokenIdError(template, Item("prompt", number))
    # What the encoder is fed, and what the decoder is fed first.
    if model.encoder is None:
        if start is not None:
            raise ValueError("start is for encoder-decoders; a decoder's text begins with its prompt.")
        source, mask, prefixes = None, None, rows
    else:
        first = _start(model) if start is None else list(start)
        if not first:
            raise ValueError("start has no tokens; an encoder-decoder's text begins with at least one.")
        prefixes = [first] * len(rows)
        source, mask = rectangle(rows, next(model.parameters()).device)
    max_new = [settings.max_new_tokens if max_length is None else max_length - len(prefix) for prefix in prefixes]
    return Decoder(model, source, mask, path=path, chunk=chunk), prefixes, max_new


def _checked_model(model: nn.Module, settings: object) -> Transformer:
    """Return the model without wrappers; raise unless it can generate."""
    if not isinstance(settings, GenerationSettings):
        raise TypeError(f"settings must be a GenerationSettings(...), got {type(settings).__name__}.")
    plain = transformer_of(model)
    check_generates(plain)
    return plain


def _check_draft(draft: Draft | None, settings: GenerationSettings) -> None:
    if draft is not None and not isinstance(draft, Draft):
        raise TypeError(f"a draft is a ModelDraft(model) or a PromptLookup(); got {type(draft).__name__}.")
    if draft is not None and settings.mode not in ("greedy", "sample"):
        raise SettingError(
            f"a draft works with greedy search and sampling, and these settings select {settings.mode} search; "
            "leave the draft out, or {} and {}.",
            Setting("beam_size"),
            Setting("contrastive_alpha"),
        )


def _check_length(number: int, length: int, max_length: int | None, *, is_prompt: bool) -> None:
    if max_length is not None and length + is_prompt > max_length:
        besides = ", of which at least one is for the answer" if is_prompt else ""
        raise SettingError(
            f"{{}} has {length} tokens, and the model's positions end at {max_length}{besides}. Shorten it to "
            f"{max_length - is_prompt}, or cut it from the left ({{}}).",
            Item("prompt", number),
            Setting("truncate", "left"),
        )


def _start(model: Transformer) -> list[int]:
    tokens = model.config.tokens
    if tokens.start is None:
        raise ValueError("this model's facts name no start token (tokens.start); pass start=, the ids to begin with.")
    return [tokens.start]


def _rows(prompts: Prompts, mask: Tensor | None) -> list[list[int]]:
    """Return the real tokens of every prompt."""
    # Lists of ids.
    if not isinstance(prompts, Tensor):
        if mask is not None:
            raise ValueError("a mask is for a tensor of padded ids; lists of ids need none.")
        if isinstance(prompts, str) or not all(isinstance(prompt, Sequence | Tensor) for prompt in prompts):
            raise TypeError(f"prompts are a list with the ids of each, as [[464, 3280], [15496]]; got {prompts!r:.60}.")
        if any(isinstance(prompt, str) for prompt in prompts):
            raise TypeError("prompts are ids here; for text use glassformer.generate, or the tokenizer's encode_batch.")
        try:
            return [[index(token) for token in prompt] for prompt in prompts]
        except TypeError as error:
            raise TypeError(f"prompts are lists of token ids, which are integers: {error}.") from error
    # A tensor, with a mask where rows are padded.
    if prompts.ndim != 2 or (mask is not None and (mask.shape != prompts.shape or mask.dtype != torch.bool)):
        mask_shape = "" if mask is None else f" and a mask of {mask.dtype}, shape {tuple(mask.shape)}"
        raise ValueError(
            f"ids are (prompts, tokens) and a mask is booleans of the same shape, True at real tokens; got ids of "
            f"shape {tuple(prompts.shape)}{mask_shape}."
        )
    kept = torch.ones_like(prompts, dtype=torch.bool) if mask is None else mask
    return [row[is_real].tolist() for row, is_real in zip(prompts, kept, strict=True)]


def _drained(stream: Generator[NewToken, None, list[list[GenerationOutput]]]) -> list[list[GenerationOutput]]:
    while True:
        try:
            next(stream)
        except StopIteration as end:
            return list(end.value)
