"""One Transformer for all three families, encoder, decoder and encoder-decoder: its config says which stacks it has.

``forward`` = embed → encoder → decoder → head, each if the model has it. ``encode`` and ``decode`` are the two halves
of an encoder-decoder, so that a memory can be computed once and used many times.

Shapes: ``B`` batch, ``T`` tokens, ``U`` target tokens, ``M`` tokens of the memory, ``N`` rows of the memory, ``D``
model width.
"""

from contextlib import nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from glassformer import config
from glassformer.models.embed import Embed, positions_from_mask, positions_in_documents
from glassformer.models.initialise import initialise
from glassformer.models.output_heads import LMHead, PretrainingHead, Targets, make_head
from glassformer.models.stack import Stack, StackInput
from glassformer.nn.attention import AttentionPath
from glassformer.nn.cache import KVCache
from glassformer.nn.cross_entropy import TokenLoss
from glassformer.nn.kernels.operators import set_fused
from glassformer.nn.linear import look_up
from glassformer.nn.masks import fits
from glassformer.nn.observer import ModelKey, is_observed, observe, observer_of

AnyRowMask = Bool[Tensor, "B T"] | Integer[Tensor, "B T"]


class Transformer(nn.Module):
    """A Transformer built from its facts (the values of a config). In every mask, ``True`` is a real token.

    Without a mask every token counts as real: padding is never inferred from ids. Positions count real tokens, so the
    output does not depend on padding, on either side.

    For several documents packed into one row, the mask is integers: 0 for padding, 1, 2, 3 … for the document of each
    token. Tokens then attend within their document, and positions restart in each.
    """

    def __init__(
        self,
        facts: config.ModelConfig,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(facts, config.ModelConfig):
            raise TypeError(
                f"a Transformer is built from a config.ModelConfig, got {facts!r:.80}. A published model's config is "
                f"glassformer.preset(name); glassformer.load(folder) loads its weights too."
            )
        self.config = facts
        self.model_key = ModelKey()
        self.family, self.max_length = facts.family, facts.max_length
        with nullcontext() if device is None else torch.device(device):
            self._build(facts)
        if dtype is not None:
            self.to(dtype)

    def _build(self, facts: config.ModelConfig) -> None:
        # On the meta device modules initialise no memory; all weights are drawn once, below.
        with torch.device("meta"):
            self.embed = Embed(facts)
            self.encoder = None if facts.encoder is None else Stack(facts.encoder, facts.norm, facts.width)
            self.target_embed = Embed(facts, has_tokens=False) if facts.family == "encoder-decoder" else None
            self.decoder = None if facts.decoder is None else Stack(facts.decoder, facts.norm, facts.width)
            self.head = make_head(facts)
        device = torch.get_default_device()
        # As to_empty, whose empty_like of a meta tensor imports sympy: 0.4 s in every program.
        self._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device))  # type: ignore[no-untyped-call]
        initialise(self, facts)
        self.fused = True

    @property
    def fused(self) -> bool:
        """Whether linear layers, embeddings, LayerNorms and activations run as fused kernels; see ``nn.kernels``."""
        return self._fused

    @fused.setter
    def fused(self, fused: bool) -> None:
        self._fused = fused
        set_fused(self, fused)

    def forward(
        self,
        ids: Integer[Tensor, "B T"],
        mask: AnyRowMask | None = None,
        *,
        target: Integer[Tensor, "B U"] | None = None,
        target_mask: Bool[Tensor, "B U"] | None = None,
        segments: Integer[Tensor, "B T"] | None = None,
        languages: Integer[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "... T"] | None = None,
        cache: KVCache | None = None,
        path: AttentionPath = "sdpa",
    ) -> Any:
        """Return the output of the head: for ``ids``, or for ``target`` in an encoder-decoder.

        Args:
            ids: token ids.
            mask: True at real tokens; or the number of each token's document, 0 for padding.
            target: token ids of the decoder, for an encoder-decoder.
            target_mask: as ``mask``, for ``target``.
            segments: one segment number per token, for models with segment embeddings; default 0.
            languages: one language number per token; by default no language embedding is added.
            positions: one per token; by default they count the real tokens of each row or document.
            cache: keys and values of earlier calls; ``ids`` (``target`` in an encoder-decoder) are the tokens after
                those.
            path: how attention is computed: ``sdpa``, by fused kernels, or ``eager``, by the formula (see
                ``nn.attention``). For everything else ``fused`` decides that.
        """
        kwargs: dict[str, Any] = {"segments": segments, "languages": languages, "positions": positions, "path": path}
        # Decoder-only.
        if self.encoder is None:
            if target is not None or target_mask is not None:
                raise _unused(target=target, target_mask=target_mask, reason="this model has no encoder; pass ids")
            return self.apply_head(self.decode(ids, mask, cache=cache, **kwargs), mask)
        # Encoder-only.
        if self.decoder is None:
            if target is not None or target_mask is not None or cache is not None:
                raise _unused(target=target, target_mask=target_mask, cache=cache, reason="this model has no decoder")
            return self.apply_head(self.encode(ids, mask, **kwargs), mask)
        # Encoder-decoder.
        if target is None:
            raise ValueError(
                "an encoder-decoder needs target=, the decoder's token ids; to run the encoder alone, call encode."
            )
        memory = self.encode(ids, mask, **kwargs)
        hidden = self.decode(target, target_mask, memory=memory, memory_mask=mask, cache=cache, path=path)
        return self.apply_head(hidden, target_mask)

    def encode(
        self,
        ids: Integer[Tensor, "B T"],
        mask: AnyRowMask | None = None,
        *,
        segments: Integer[Tensor, "B T"] | None = None,
        languages: Integer[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "... T"] | None = None,
        path: AttentionPath = "sdpa",
    ) -> Float[Tensor, "B T D"]:
        """Return the encoder's hidden states; in an encoder-decoder, they are the memory."""
        if self.encoder is None:
            raise ValueError("this model has no encoder; decode returns the hidden states of its decoder.")
        positions, token_mask, documents = self._token_inputs(ids, mask, positions, None)
        if token_mask is not None:
            ids = ids.where(token_mask, 0)
            segments, languages = (_zero_padding(x, token_mask) for x in (segments, languages))
        x = self._embed("embed", None, ids, positions, segments=segments, languages=languages)  # B T D
        inputs = StackInput(
            positions,
            token_mask,
            documents=documents,
            **self._mask_decoder_inputs(positions),
            observer=observer_of(self, "encoder", ids.shape[1], path=path),
        )
        return self.encoder(x, inputs, path=path)

    def decode(
        self,
        ids: Integer[Tensor, "B T"],
        mask: AnyRowMask | None = None,
        *,
        memory: Float[Tensor, "N M D"] | None = None,
        memory_mask: Bool[Tensor, "N M"] | None = None,
        segments: Integer[Tensor, "B T"] | None = None,
        languages: Integer[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "... T"] | None = None,
        cache: KVCache | None = None,
        path: AttentionPath = "sdpa",
    ) -> Float[Tensor, "B T D"]:
        """Return the decoder's hidden states, before the head. With a cache, ``ids`` are the tokens after those in it.

        A memory may have fewer rows than ``ids``: each then serves the same number of consecutive rows.
        """
        if self.decoder is None:
            raise ValueError("this model has no decoder; encode returns the hidden states of its encoder.")
        if (memory is None) != (self.encoder is None):
            raise ValueError(
                "an encoder-decoder's decoder needs memory= (the encoder's output); a decoder-only model takes none."
            )
        # Positions and mask of the tokens.
        positions, token_mask, documents = self._token_inputs(ids, mask, positions, cache)
        # The memory: zeros in its padding, which may hold NaN, unless its keys and values are cached already.
        if memory is not None and len(memory) != len(ids) and (len(memory) == 0 or len(ids) % len(memory)):
            raise ValueError(f"{len(memory)} rows of memory cannot be shared evenly by {len(ids)} rows of ids.")
        if memory is not None and cache is not None:
            cache.check_memory(memory, memory_mask)
        if memory is not None and memory_mask is not None:
            _check_memory_mask(memory, memory_mask)
            if cache is None or not cache.length:
                memory = memory.where(memory_mask.unsqueeze(-1), 0.0)
        # Embed the tokens (B, T, D); ids of padding may be anything, such as −100.
        if token_mask is not None:
            ids = ids.where(token_mask, 0)
            segments, languages = (_zero_padding(x, token_mask) for x in (segments, languages))
        name, cached = "embed" if self.target_embed is None else "target_embed", None if cache is None else cache.length
        assert self.embed.token is not None
        table = self.embed.token.weight
        x = self._embed(name, cached, ids, positions, segments=segments, languages=languages, table=table)
        observer = observer_of(self, "decoder", ids.shape[1], cached, path)
        inputs = StackInput(positions, token_mask, documents, memory, memory_mask, cache, observer=observer)
        return self.decoder(x, inputs, path=path)

    def fuses_loss(self, hidden: Float[Tensor, "..."]) -> bool:
        """Whether ``token_loss`` computes the loss of such hidden states without holding all logits."""
        return isinstance(self.head, LMHead) and self.head.fuses_loss(hidden) and not is_observed(self)

    def token_loss(self, hidden: Float[Tensor, "B T D"], targets: Targets) -> TokenLoss:
        """Return the cross-entropy of the logits of a language-model head, which are not all in memory if fused."""
        if not isinstance(self.head, LMHead):
            raise TypeError(
                f"token_loss needs a model with an LMHead; the head of this one is {self.config.head!r:.80}."
            )
        assert self.embed.token is not None
        return self.head(hidden, None, self.embed.token.weight, targets)

    def apply_head(self, hidden: Float[Tensor, "B T D"], mask: AnyRowMask | None = None) -> Any:
        """Return the output of the head for these hidden states; without a head, the hidden states themselves."""
        if self.head is None:
            return hidden
        if mask is not None and mask.dtype != torch.bool:
            if self.config.has_pooled_output:
                raise ValueError(
                    "this head gives one output per row, so documents cannot be packed into one row. If the mask is 1 "
                    "and 0 for tokens and padding, pass mask.bool()."
                )
            mask = mask > 0
        assert self.embed.token is not None
        output = self.head(hidden, mask, self.embed.token.weight)
        observer = observer_of(self, "head", hidden.shape[1])
        if isinstance(output, tuple):
            return (observe(observer, "output", output[0]), *output[1:])
        return observe(observer, "output", output)

    def _embed(self, part: str, cached: int | None, ids: Tensor, *args: Any, **kwargs: Any) -> Float[Tensor, "B T D"]:
        """Embed tokens by one of the parts for that; ``cached``: tokens in the cache, if there is one."""
        embed: nn.Module = getattr(self, part)
        observer = observer_of(self, part, ids.shape[1], cached)
        if observer is None or isinstance(embed, Embed):
            return embed(ids, *args, **kwargs, **({} if observer is None else {"observer": observer}))
        return observe(observer, "output", embed(ids, *args, **kwargs))  # not the library's own module

    def _mask_decoder_inputs(self, positions: Int[Tensor, "... T"]) -> dict[str, Any]:
        """Return the position vectors for the last layer, if the head has a mask decoder."""
        lm = self.head.lm if isinstance(self.head, PretrainingHead) else self.head
        if not isinstance(lm, LMHead) or lm.position is None or lm.facts.mask_decoder is None:
            return {}
        vectors = look_up(lm.position.weight, positions, what="position", fused=self.fused)  # ... T D
        return {"mask_decoder_positions": vectors, "mask_decoder_steps": lm.facts.mask_decoder.steps}

    def _token_inputs(
        self, ids: Tensor, mask: Tensor | None, positions: Tensor | None, cache: KVCache | None
    ) -> tuple[Int[Tensor, "... T"], Tensor | None, Tensor | None]:
        """Return the position of each token, the token mask, and each token's document if the mask has integers."""
        # Shapes and types.
        if not isinstance(ids, Tensor):
            raise TypeError(f"ids are a tensor of shape (batch, tokens), got {type(ids).__name__}: torch.tensor(ids).")
        if ids.ndim != 2:
            raise ValueError(f"ids have the shape (batch, tokens); got {tuple(ids.shape)}. One sequence is ids[None].")
        if mask is not None and (mask.shape != ids.shape or mask.is_floating_point()):
            raise ValueError(
                f"mask must be booleans of the ids' shape {tuple(ids.shape)}, True at real tokens, or integers, the "
                f"document of each token; got {mask.dtype} of shape {tuple(mask.shape)}."
            )
        if positions is not None and (positions.shape[-1] != ids.shape[-1] or not fits(positions.shape, ids.shape)):
            raise ValueError(f"positions of shape {tuple(positions.shape)} do not fit ids of shape {tuple(ids.shape)}.")
        # An integer mask numbers the documents of a row.
        documents = None if mask is None or mask.dtype == torch.bool else mask
        if documents is not None and (cache is not None or self.family == "encoder-decoder"):
            raise ValueError(
                "a mask of integers numbers packed documents, which neither a cache nor an encoder-decoder supports. "
                "If it is 1 and 0 for tokens and padding, pass mask.bool()."
            )
        token_mask = mask if documents is None else documents > 0
        # Positions: the argument, or the number of real tokens before each one, those of earlier calls included.
        if positions is not None:
            positions = positions.long()
            return positions if token_mask is None else positions.where(token_mask, 0), token_mask, documents
        if documents is not None:
            positions = positions_in_documents(documents)
        elif cache is not None and cache.length:
            positions = cache.next_positions(ids.shape, token_mask)
        elif token_mask is not None:
            positions = positions_from_mask(token_mask)
        else:
            positions = torch.arange(ids.shape[-1], device=ids.device)
        # Read the positions only where they may be too large: on a GPU that waits for them. Whoever steps with a static
        # cache counts the steps.
        length = ids.shape[-1] + (0 if cache is None else cache.length)
        if self.max_length is not None and length > self.max_length and not (cache is not None and cache.is_static):
            _check_length(int(positions.max()) + 1, self.max_length)
        return positions, token_mask, documents


@runtime_checkable
class HasTransformer(Protocol):
    """A model with other module names that can return itself as a Transformer, such as ``TransformerLM``."""

    def as_transformer(self) -> Transformer:
        """Return a Transformer that shares the weights; and the ``model_key``, if the model can be observed."""
        ...


def unwrapped(model: nn.Module) -> Transformer:
    """Return the model without the wrappers of compilation and distribution."""
    while not isinstance(model, Transformer):
        inner = getattr(model, "_orig_mod", getattr(model, "module", None))
        if not isinstance(inner, nn.Module):
            raise TypeError(f"expected a Transformer; got a {type(model).__name__}.")
        model = inner
    return model


def transformer_of(model: nn.Module) -> Transformer:
    """Return the model as a Transformer: without its wrappers, or by its ``as_transformer``."""
    return model.as_transformer() if isinstance(model, HasTransformer) else unwrapped(model)


def _check_length(length: int, max_length: int) -> None:
    if length > max_length:
        raise ValueError(
            f"a sequence of {length} tokens is too long: the positions of this model end at {max_length}. "
            f"Shorten the input to {max_length} tokens."
        )


def _zero_padding(numbers: Tensor | None, token_mask: Bool[Tensor, "B T"]) -> Tensor | None:
    """Set segments or languages to 0 in padded slots; those of a wrong shape are left to ``Embed`` to report."""
    return numbers if numbers is None or numbers.shape != token_mask.shape else numbers.where(token_mask, 0)


def _check_memory_mask(memory: Tensor, mask: Tensor) -> None:
    if mask.shape != memory.shape[:-1] or mask.dtype != torch.bool:
        raise ValueError(
            f"memory_mask must be booleans of the shape {tuple(memory.shape[:-1])} for a memory of shape "
            f"{tuple(memory.shape)}, True at real tokens; got {mask.dtype} of shape {tuple(mask.shape)}."
        )


def _unused(*, reason: str, **arguments: object) -> ValueError:
    names = [name for name, value in arguments.items() if value is not None]
    return ValueError(f"{' and '.join(names)} cannot be used: {reason}.")
