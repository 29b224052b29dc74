"""One Transformer for all three families: which of encoder and decoder a page of facts has *is* the family.

``forward`` = embed → encoder → decoder → head, what is absent left out. ``encode`` and ``decode`` are the two halves of
an encoder-decoder, so that a memory can be computed once and used many times.

Shapes: ``B`` batch, ``T`` tokens, ``M`` tokens of the memory, ``D`` model width.
"""

from contextlib import nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from glassformer import config
from glassformer.models.embed import Embed, count_in_documents, count_real
from glassformer.models.initialise import initialise
from glassformer.models.output_heads import LMHead, PretrainingHead, make_head
from glassformer.models.stack import Stack, Tokens
from glassformer.nn.attention import AttentionPath
from glassformer.nn.axes import fits
from glassformer.nn.cache import KVCache
from glassformer.nn.kernels import set_fused
from glassformer.nn.linear import look_up

AnyRowMask = Bool[Tensor, "B T"] | Integer[Tensor, "B T"]


class Transformer(nn.Module):
    """A Transformer built from its page of facts. In every mask, ``True`` is a real token.

    Without a mask every token counts as real: padding is never guessed from an id. Positions count real tokens, so
    that padding on either side, or none, gives the same answer.

    Several documents packed into one row are told apart by whole numbers in place of booleans: 0 is padding, 1, 2, 3 …
    the document that a token belongs to. Tokens then see their own document alone, and positions start anew in each.
    """

    def __init__(
        self,
        facts: config.Model,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(facts, config.Model):
            raise TypeError(
                f"a Transformer is built from a config.Model, got {facts!r:.80}. A published model's facts are "
                f"glassformer.preset(name); glassformer.load(folder) brings its weights too."
            )
        self.config = facts
        with nullcontext() if device is None else torch.device(device):
            self._build(facts)
        if dtype is not None:
            self.to(dtype)

    def _build(self, facts: config.Model) -> None:
        with torch.device("meta"):  # without memory: what the parts would draw for themselves is drawn only once, below
            self.embed = Embed(facts)
            self.encoder = None if facts.encoder is None else Stack(facts.encoder, facts.norm, facts.width)
            self.target_embed = Embed(facts, has_tokens=False) if facts.family == "encoder-decoder" else None
            self.decoder = None if facts.decoder is None else Stack(facts.decoder, facts.norm, facts.width)
            self.head = make_head(facts)
        self.to_empty(device=torch.get_default_device())
        initialise(self, facts)
        self.fused = True

    @property
    def fused(self) -> bool:
        """Whether linear maps, tables, LayerNorms and activations run through fused kernels; see ``nn.kernels``."""
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
        """What the head says of the tokens, of ``target`` where there is a decoder besides the encoder.

        Args:
            ids: token ids.
            mask: True at real tokens; or the number of each token's document, 0 for padding.
            target: the decoder's own tokens, for an encoder-decoder.
            target_mask: as ``mask``, for these.
            segments: one number per token, for models that know them; 0 if not given.
            languages: likewise; without them none is added.
            positions: one per token, if not counted from the mask; for packed documents, say.
            cache: remembers earlier calls; ``ids`` (of an encoder-decoder: ``target``) are then the tokens after them.
            path: of attention: ``sdpa``, PyTorch's fused kernels, or ``eager``, the formula; see ``nn.attention``.
                All else follows ``fused``.
        """
        extra: dict[str, Any] = {"segments": segments, "languages": languages, "positions": positions, "path": path}
        if self.encoder is None:
            _refuse(target=target, target_mask=target_mask, because="this model has no encoder; its tokens are ids")
            return self.apply_head(self.decode(ids, mask, cache=cache, **extra), mask)
        if self.decoder is None:
            _refuse(target=target, target_mask=target_mask, cache=cache, because="this model has no decoder")
            return self.apply_head(self.encode(ids, mask, **extra), mask)
        if target is None:
            raise ValueError(
                "an encoder-decoder needs target, the tokens of its decoder, or use encode for the memory."
            )
        memory = self.encode(ids, mask, **extra)
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
        """The encoder's vectors: the answer of an encoder, the memory of an encoder-decoder."""
        if self.encoder is None:
            raise ValueError("this model has no encoder; decode gives the vectors of its decoder.")
        _check_inputs(ids, mask, positions)
        places = self._places(ids, mask, positions, None)
        real, documents = self._read_mask(mask, None)
        segments, languages = (None if x is None else _filled(x, real) for x in (segments, languages))
        x = self.embed(_filled(ids, real), places, segments=segments, languages=languages)
        tokens = Tokens(places, real, documents=documents, **self._mask_decoder(places))
        return self.encoder(x, tokens, path=path)

    def decode(
        self,
        ids: Integer[Tensor, "B T"],
        mask: AnyRowMask | None = None,
        *,
        memory: Float[Tensor, "Q M D"] | None = None,
        memory_mask: Bool[Tensor, "Q M"] | None = None,
        segments: Integer[Tensor, "B T"] | None = None,
        languages: Integer[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "... T"] | None = None,
        cache: KVCache | None = None,
        path: AttentionPath = "sdpa",
    ) -> Float[Tensor, "B T D"]:
        """The decoder's vectors, before the head. With a cache the ids are those that follow the earlier calls'.

        A memory may have fewer rows than ``ids``: each then serves the same number of rows that follow each other.
        """
        if self.decoder is None:
            raise ValueError("this model has no decoder; encode gives the vectors of its encoder.")
        if (memory is None) != (self.encoder is None):
            raise ValueError("a decoder needs the memory of its encoder exactly if there is one.")
        _check_inputs(ids, mask, positions)
        places = self._places(ids, mask, positions, cache)
        real, documents = self._read_mask(mask, cache)
        if memory is not None and len(memory) != len(ids) and (len(memory) == 0 or len(ids) % len(memory)):
            raise ValueError(f"{len(memory)} rows of memory cannot be shared evenly by {len(ids)} rows of ids.")
        if memory is not None and cache is not None:
            cache.check_memory(memory, memory_mask)
        if memory is not None and memory_mask is not None:
            _check_memory_mask(memory, memory_mask)
            if cache is None or not cache.length:  # else its keys and values are in the cache
                memory = memory.where(memory_mask.unsqueeze(-1), 0.0)  # whatever stands in padding, be it NaN
        embed = self.embed if self.target_embed is None else self.target_embed
        segments, languages = (None if x is None else _filled(x, real) for x in (segments, languages))
        x = embed(_filled(ids, real), places, segments=segments, languages=languages, table=self._table())
        return self.decoder(x, Tokens(places, real, documents, memory, memory_mask, cache), path=path)

    def apply_head(self, hidden: Float[Tensor, "B T D"], mask: AnyRowMask | None = None) -> Any:
        """What the head says of these vectors; without a head, the vectors themselves."""
        if self.head is None:
            return hidden
        real, documents = self._read_mask(mask, None)
        if documents is not None and self.config.pools:
            raise ValueError(
                "this head gives one answer per row, so documents cannot be packed into one; a mask of 1 and 0 is "
                "turned into one of True and False by mask.bool()."
            )
        return self.head(hidden, real, self._table())

    def _table(self) -> Tensor:
        assert self.embed.token is not None
        return self.embed.token.weight

    def _mask_decoder(self, places: Tensor) -> dict[str, Any]:
        """Absolute positions for the last layer, if the head asks for them."""
        lm = self.head.lm if isinstance(self.head, PretrainingHead) else self.head
        if not isinstance(lm, LMHead) or lm.position is None or lm.facts.mask_decoder is None:
            return {}
        rows = look_up(lm.position.weight, places, what="position", fused=self.fused)
        return {"places": rows, "place_steps": lm.facts.mask_decoder.steps}

    def _read_mask(self, mask: Tensor | None, cache: KVCache | None) -> tuple[Tensor | None, Tensor | None]:
        """Which tokens are real, and of which document each is if the mask says so."""
        if mask is None or mask.dtype == torch.bool:
            return mask, None
        if cache is not None or self.config.family == "encoder-decoder":
            raise ValueError(
                "a mask of whole numbers tells packed documents apart, which neither a cache nor an encoder-decoder "
                "can take; a mask of 1 and 0 is turned into one of True and False by mask.bool()."
            )
        return mask > 0, mask

    def _places(
        self, ids: Tensor, mask: Tensor | None, positions: Tensor | None, cache: KVCache | None
    ) -> Int[Tensor, "... T"]:
        """The position of each token: as given, or counted over real tokens, those of earlier calls included."""
        length = ids.shape[-1]
        if positions is not None:
            return positions.long() if mask is None else positions.long().where(mask.bool(), 0)
        if mask is not None and mask.dtype != torch.bool:
            places = count_in_documents(mask)
        elif cache is not None and cache.length:
            places = cache.next_positions(ids.shape, mask)
        else:
            places = torch.arange(length, device=ids.device) if mask is None else count_real(mask)
        longest = self.config.longest
        past = 0 if cache is None else cache.length
        if longest is not None and past + length > longest:  # only then look at the numbers: on a GPU that waits
            _check_length(int(places.max()) + 1, longest)
        return places


@runtime_checkable
class HasTransformer(Protocol):
    """A model under other names that can be had as a Transformer, as ``TransformerLM`` can."""

    def as_transformer(self) -> Transformer:
        """A Transformer that shares the weights."""
        ...


def unwrapped(model: nn.Module) -> Transformer:
    """The model itself, out of the wrappers of compilation and distribution."""
    while not isinstance(model, Transformer):
        inside = getattr(model, "_orig_mod", getattr(model, "module", None))
        if not isinstance(inside, nn.Module):
            raise TypeError(f"a Transformer is needed here, and this is a {type(model).__name__}.")
        model = inside
    return model


def transformer_of(model: nn.Module) -> Transformer:
    """A Transformer to read from: the model itself, out of its wrappers, or what it gives by ``as_transformer``."""
    return model.as_transformer() if isinstance(model, HasTransformer) else unwrapped(model)


def _check_length(length: int, longest: int) -> None:
    if length > longest:
        raise ValueError(
            f"a sequence of {length} tokens does not fit: the positions of this model end at {longest}. "
            f"Shorten the input to {longest} tokens."
        )


def _filled(ids: Tensor, mask: Tensor | None) -> Tensor:
    """Ids with 0 in padded slots: what stands there, be it −100, must matter to nobody."""
    return ids if mask is None or ids.shape != mask.shape else ids.where(mask, 0)


def _check_inputs(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> None:
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids are a tensor of shape (batch, tokens), got {type(ids).__name__}: torch.tensor(ids).")
    if ids.ndim != 2:
        raise ValueError(f"ids have the shape (batch, tokens); got {tuple(ids.shape)}. One sequence is ids[None].")
    if mask is not None and (mask.shape != ids.shape or mask.is_floating_point()):
        raise ValueError(
            f"mask must be booleans of the ids' shape {tuple(ids.shape)}, True at real tokens, or whole numbers, the "
            f"document of each token; got {mask.dtype} of shape {tuple(mask.shape)}."
        )
    if positions is not None and (positions.shape[-1] != ids.shape[-1] or not fits(positions.shape, ids.shape)):
        raise ValueError(f"positions of shape {tuple(positions.shape)} do not fit ids of shape {tuple(ids.shape)}.")


def _check_memory_mask(memory: Tensor, mask: Tensor) -> None:
    if mask.shape != memory.shape[:-1] or mask.dtype != torch.bool:
        raise ValueError(
            f"memory_mask must be booleans of the shape {tuple(memory.shape[:-1])} for a memory of shape "
            f"{tuple(memory.shape)}, True at real tokens; got {mask.dtype} of shape {tuple(mask.shape)}."
        )


def _refuse(*, because: str, **given: object) -> None:
    if names := [name for name, value in given.items() if value is not None]:
        raise ValueError(f"{' and '.join(names)} cannot be used: {because}.")
