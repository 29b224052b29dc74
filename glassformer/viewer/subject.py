"""The subject of a query: a loaded model, and the token ids that it reads for the query's input.

Between two queries only a cache is kept, of values that could be computed again.
"""

import re
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar, cast

import torch

from glassformer.config.checks import SettingError
from glassformer.generation.api import generate
from glassformer.generation.defaults import settings_for
from glassformer.generation.prompts import SourceText, read_prompt, special_ids
from glassformer.generation.search import GenerationOutput
from glassformer.generation.settings import GenerationSettings
from glassformer.generation.stops import TokenBytes
from glassformer.generation.text import prepare_translation
from glassformer.hub import Loaded
from glassformer.inspect.intervene import ablate
from glassformer.tasks.batches import text_tokens
from glassformer.viewer import passes, work
from glassformer.viewer.cache import Cache
from glassformer.viewer.encode import in_8_bits
from glassformer.viewer.errors import QueryError as QueryError
from glassformer.viewer.inputs import Input, Sequences, Source
from glassformer.viewer.kinds import AttentionKind, check_head, layers_of, name_of, stack_of

Value = TypeVar("Value")
Coarse = tuple[torch.Tensor, torch.Tensor]  # weights as u1 (H, T, S), and the factor of each row (H, T)
EXAMPLES = (
    "time flies like an arrow",
    "fruit flies like a banana",
    "The animal didn't cross the street because it was too tired.",
)
SHIPPED = {  # first of all for the shipped models
    "en-zh": ("Where is the station?", "The weather is nice today.", "我爱你。"),
    "stories": ("Once upon a time, there was a little girl named Lily.",),
    "mlm-en": ("There was a little [MASK] named Lily.",),
    "ner-en": ("Marie Curie was born in Warsaw.",),
}
VALUES = 2**29  # bytes of values that are kept
AT_ONCE = 2**26  # bytes of attention weights that are computed for all layers at once
BROKEN = re.compile("[\udc80-\udcff]+")  # bytes that are not UTF-8, as surrogateescape writes them
TRANSLATION = 128  # tokens of a target that the model generates itself


def visible_bytes(data: bytes) -> str:
    """Return text, with bytes that are no whole character as numbers: ``⟨e3 80⟩``."""
    text = data.decode("utf-8", "surrogateescape")
    return BROKEN.sub(lambda found: f"⟨{found[0].encode('utf-8', 'surrogateescape').hex(' ')}⟩", text)


class Subject:
    """A model that the page shows.

    Args:
        loaded: the model with its tokenizer.
        name: as the page shows it.
        max_tokens: the longest input that is accepted.
        texts: of the model's own data, to begin with.
    """

    def __init__(self, loaded: Loaded, name: str, *, max_tokens: int = 1024, texts: Sequence[str] = ()) -> None:
        self.loaded, self.name, self.max_tokens, self.texts = loaded, name, max_tokens, tuple(texts)
        self.facts, self.tokenizer, self.model = loaded.config, loaded.tokenizer, loaded.model
        self.lock = threading.RLock()
        self.results = Cache(256, 2**26)  # small results that take long
        self._values = Cache(4096, VALUES)
        self._sequences = Cache(64, 2**23)

    # --- tokens -------------------------------------------------------------------------------------------------------

    @cached_property
    def special(self) -> set[int]:
        """The ids of tokens that are not text."""
        return special_ids(self.tokenizer)

    @cached_property
    def examples(self) -> tuple[str, ...]:
        """Texts to begin with: those of the model's own data first; a model that fills blanks gets one with a blank.

        Of a small vocabulary, those that it holds.
        """
        mask = self.tokenizer.special.get("mask")
        masked = (EXAMPLES[2].replace("tired", mask),) if mask and "fill" in self.loaded.abilities else ()
        texts = tuple(dict.fromkeys((*self.texts, *SHIPPED.get(self.name, ()), *masked, *EXAMPLES)))
        return tuple(filter(self._knows, texts)) or texts

    def _knows(self, text: str) -> bool:
        """Whether the vocabulary holds every word of a text."""
        unknown = self.tokenizer.special.get("unk")
        return unknown is None or self.tokenizer.id_of(unknown) not in self.tokenizer.encode(text, special=False)

    def token_texts(self, ids: Iterable[int]) -> list[str]:
        """Return tokens as people read them: a leading space is a space, parts of characters are bytes, ``⟨e3 80⟩``."""
        return [self._token_text(number) for number in ids]

    def is_fragment(self, number: int) -> bool:
        """Whether a token is part of a character, or nothing at all: no text can be continued with it alone."""
        return number not in self.special and self._decoded(number) is None

    def _token_text(self, number: int) -> str:
        if not 0 <= number < self.tokenizer.vocab_size:
            return f"[{number}]"  # a model may have more rows than its vocabulary
        (name,) = self.tokenizer.tokens([number])
        if number in self.special or self._anchor is None:
            return name
        return self._decoded(number) or visible_bytes(TokenBytes(self.tokenizer)(number)) or name

    def _decoded(self, number: int) -> str | None:
        """Return the text of a token; None if it has none of its own."""
        if self._anchor is None or not 0 <= number < self.tokenizer.vocab_size:
            return None
        # Decoders strip the space before a first word, so decode after another token.
        before, both = self.tokenizer.decode([self._anchor]), self.tokenizer.decode([self._anchor, number])
        text = both[len(before) :] if both.startswith(before) else self.tokenizer.decode([number])
        return None if not text or "\ufffd" in text else text

    @cached_property
    def _anchor(self) -> int | None:
        """A token that decodes to a letter, after which others keep their space."""
        ids = self.tokenizer.encode("a", special=False)
        return ids[-1] if ids else None

    # --- what the model reads -----------------------------------------------------------------------------------------

    def sequences(self, model_input: Input) -> Sequences:
        """Return the token ids of an input."""
        return self._once(self._sequences, model_input.cache_key, lambda: self._read(model_input))

    def _read(self, model_input: Input) -> Sequences:
        family = self.facts.family
        if model_input.text_b is not None and self.writes_text:
            raise QueryError("a second text is for models that read pairs, such as BERT; leave it out.")
        if (model_input.target is not None or model_input.target_ids is not None) and family != "encoder-decoder":
            raise QueryError("a target is for encoder-decoders; leave it out.")
        if not self.writes_text:
            return self._read_for_task(model_input)
        if family == "decoder":
            ids = self._short(read_prompt(self.loaded, model_input.text).ids)
            return Sequences(decoder=ids, given=len(ids))
        # An encoder-decoder: the target is the given one, or what greedy search writes.
        source = self.source(model_input.text)
        written = self._given_target(model_input)
        if written is None:
            ((found,), _) = self.search(model_input, max_new_tokens=TRANSLATION, beam_size=1, temperature=0.0)
            written = [token for token in found.ids if token not in source.eos][source.forced is not None :]
        decoder = self._short([*source.first, *written])
        expected = (*decoder[1:], *source.eos[:1]) if source.eos else decoder[1:]
        return Sequences(encoder=source.ids, decoder=decoder, expected=expected, given=len(source.first))

    @property
    def writes_text(self) -> bool:
        """Whether the model writes text, by a decoder and a language-model head.

        Others read a text, or a pair of texts, as a whole.
        """
        return self.facts.family != "encoder" and self.facts.lm is not None

    def _read_for_task(self, model_input: Input) -> Sequences:
        """Read what tasks such as ``classify`` do; a decoder beside an encoder reads the same text, one token later."""
        if not self.tokenizer.encode(model_input.text, special=False):
            raise QueryError("the text is empty; type something.", "empty")
        row = text_tokens(self.tokenizer, model_input.text, model_input.text_b, name="the text").row
        ids = self._short(row.ids)
        if self.facts.family == "decoder":
            return Sequences(decoder=ids, given=len(ids))
        if self.facts.decoder is None:
            return Sequences(encoder=ids, segments=tuple(row.segments))
        after = self._given_target(model_input)
        decoder = self._short([self._start, *(ids[:-1] if after is None else after)])
        return Sequences(encoder=ids, segments=tuple(row.segments), decoder=decoder, given=len(decoder))

    def _given_target(self, model_input: Input) -> list[int] | None:
        """Return the tokens of a target that an input has; None: the model writes it."""
        if model_input.target_ids is None:
            return None if model_input.target is None else self.tokenizer.encode(model_input.target, special=False)
        for number in model_input.target_ids:
            if not 0 <= number < self.facts.vocab:
                raise QueryError(f"target_ids must be from 0 to {self.facts.vocab - 1}, got {number}.")
        return list(model_input.target_ids)

    def lengths(self, model_input: Input, kind: AttentionKind) -> tuple[int, int]:
        """Return how many queries and keys a kind of attention has."""
        stack_of(self, kind)
        sequences = self.sequences(model_input)
        queries = len((sequences.encoder if kind == "encoder" else sequences.decoder) or ())
        return queries, len((sequences.decoder if kind == "decoder" else sequences.encoder) or ())

    def source(self, text: str) -> Source:
        """Return what an encoder-decoder begins with."""
        try:
            prompts, options = prepare_translation(self.loaded, [text], None, None)
        except SettingError:  # a model of many languages or tasks: the text says what to do
            prompts, options = [text], {}
        (prompt,) = prompts
        start = options.get("start") or [self._start]
        settings, _ = settings_for(self.loaded, prefix_length=len(start), task=options.get("task"))
        forced = options.get("forced_first", settings.forced_first)
        if isinstance(prompt, SourceText):
            forced = prompt.forced_first
        ids = self._short(read_prompt(self.loaded, prompt).ids)
        task = {"task": options["task"]} if "task" in options else {}
        return Source(ids, tuple(start), forced, tuple(settings.eos), task)

    @property
    def _start(self) -> int:
        if self.facts.tokens.start is None:
            raise QueryError("this model's config names no start token, so its decoder cannot begin.")
        return self.facts.tokens.start

    def _short(self, ids: Sequence[int]) -> tuple[int, ...]:
        longest = self.facts.max_length
        if longest is not None and len(ids) > longest:
            message = f"the text has {len(ids)} tokens, and this model reads up to {longest}; shorten it."
            raise QueryError(message, "beyond", tokens=len(ids), longest=longest)
        if len(ids) > self.max_tokens:
            message = f"the text has {len(ids)} tokens, and this page shows up to {self.max_tokens} (--max-tokens)."
            raise QueryError(message, "long", tokens=len(ids), longest=self.max_tokens)
        return tuple(ids)

    # --- running ------------------------------------------------------------------------------------------------------

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Use the model alone, without gradients."""
        with work.holding(self.lock), torch.inference_mode():
            yield

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return a result that takes long: of several queries that want it at a time, one makes it, the others wait."""
        return self._once(self.results, key, make)

    def _once(self, held: Cache, key: Hashable, make: Callable[[], Value]) -> Value:
        found = held.find(key)
        if found is None:
            with work.holding(self.lock):
                found = held.find(key)
                if found is None:
                    found = make()
                    if not held.holds(key):
                        held.put(key, found)
        return cast(Value, found)

    def search(self, model_input: Input, **options: Any) -> tuple[list[GenerationOutput], GenerationSettings]:
        """Continue the text, or write the target of an encoder-decoder from its source (and the given target).

        Returns the texts, one or the best beams, and the settings that were used.
        """
        if self.facts.family == "encoder":
            raise QueryError("an encoder generates no text.", "ability")
        start: list[int] | None = None
        if self.facts.family == "decoder":
            prompt = list(self.sequences(model_input).decoder or ())
            settings, _ = settings_for(self.loaded, prefix_length=len(prompt), **options)
        else:
            source = self.source(model_input.text)
            prompt, start = list(source.ids), list(self.prefix(model_input))
            is_given = self._given_target(model_input) is not None  # with the forced token
            forced = None if is_given else source.forced
            options = {"forced_first": forced, **source.task, **options}
            settings, _ = settings_for(self.loaded, prefix_length=len(start), **options)

        def is_done(number: int, ids: Sequence[int]) -> bool:  # noqa: ARG001
            work.check()
            return False

        with self.alone(), self.ablated(model_input):
            return generate(self.model, [prompt], settings, start=start, is_done=is_done)[0], settings

    @contextmanager
    def ablated(self, model_input: Input) -> Iterator[None]:
        """Switch off the heads that an input names."""
        if not model_input.ablate:
            yield
            return
        heads: dict[str, list[int]] = {}
        for place, layer, head in model_input.ablate:
            stack, _, sublayer = str(place).partition(".")
            kind: AttentionKind = "cross" if sublayer == "cross" else "encoder" if stack == "encoder" else "decoder"
            check_head(self, kind, int(layer), int(head))
            heads.setdefault(name_of(kind, int(layer)), []).append(int(head))
        with ablate(self.model, heads):
            yield

    def prefix(self, model_input: Input) -> tuple[int, ...]:
        """Return what the decoder reads before a search chooses its first token, which may be forced."""
        if self.facts.family == "decoder":
            return self.sequences(model_input).decoder or ()
        source = self.source(model_input.text)
        written = self._given_target(model_input)
        return source.start if written is None else (*source.first, *written)

    def run(self, sequences: Sequences) -> None:
        """One pass over token ids, for those who see its values."""
        device = next(self.model.parameters()).device

        def row(ids: tuple[int, ...]) -> torch.Tensor:
            return torch.tensor([ids], device=device)

        if sequences.encoder is None:
            assert sequences.decoder is not None
            self.model.decode(row(sequences.decoder))
            return
        segments = None if sequences.segments is None or not self.facts.embed.segments else row(sequences.segments)
        memory = self.model.encode(row(sequences.encoder), segments=segments)
        if sequences.decoder is not None:
            self.model.decode(row(sequences.decoder), memory=memory)

    def pass_over(self, sequences: Sequences, model_input: Input, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return values of a pass by name, without the batch axis."""
        found: dict[str, torch.Tensor] = {}

        def see(name: str, value: torch.Tensor) -> None:
            found[name] = passes.kept(value)

        self._see(sequences, model_input, names, see)
        return found

    def show(self, model_input: Input, names: Sequence[str], see: passes.See) -> None:
        """Show values of the pass over an input as they are computed, without their batch axis."""
        self._see(self.sequences(model_input), model_input, names, see)

    def _see(self, sequences: Sequences, model_input: Input, names: Sequence[str], see: passes.See) -> None:
        with self.alone(), self.ablated(model_input), passes.seeing(self.model, names, see):
            self.run(sequences)

    def values(self, model_input: Input, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return values of the pass over an input, by name: those that are held, and the others from one more pass."""
        found = self._held(model_input, names)
        if len(found) == len(set(names)):
            return found
        sequences = self.sequences(model_input)
        with work.holding(self.lock):  # another query may just have computed them
            found = self._held(model_input, names)
            missing = [name for name in names if name not in found]
            computed = self.pass_over(sequences, model_input, missing) if missing else {}
            for name, value in computed.items():
                self._values.put((model_input, name), value, value.nbytes)
        return found | computed

    def _held(self, model_input: Input, names: Sequence[str]) -> dict[str, torch.Tensor]:
        return {name: value for name in names if (value := self._values.find((model_input, name))) is not None}

    def weights(self, model_input: Input, kind: AttentionKind, layer: int) -> torch.Tensor:
        """Return the attention weights of a layer (H, T, S).

        Those of all layers are computed at once if they are few.
        """
        name = f"{name_of(kind, layer)}.weights"
        held = self._values.find((model_input, name))
        if held is not None:
            return cast(torch.Tensor, held)
        queries, keys = self.lengths(model_input, kind)
        layers = range(layers_of(self, kind))
        stack = self.facts.encoder if kind == "encoder" else self.facts.decoder
        assert stack is not None
        size = len(layers) * stack.attention.heads * queries * keys * 4
        names = [f"{name_of(kind, number)}.weights" for number in layers] if size <= AT_ONCE else [name]
        return self.values(model_input, names)[name]

    def coarse_weights(self, model_input: Input, kind: AttentionKind, layer: int) -> Coarse:
        """Return the attention weights of a layer in 8 bits; beyond the first, those of all layers if they fit."""
        key = model_input, name_of(kind, layer), "8 bits"

        def make() -> Coarse:
            numbers = range(layers_of(self, kind)) if layer and self.fits_coarse(model_input, kind) else [layer]
            layers = {f"{name_of(kind, number)}.weights": number for number in numbers}
            self.show(
                model_input, list(layers), lambda name, value: self.put_coarse(model_input, kind, layers[name], value)
            )
            return cast(Coarse, self._values.find(key))

        return self._once(self._values, key, make)

    def fits_coarse(self, model_input: Input, kind: AttentionKind) -> bool:
        """Whether the weights of all layers can be held in 8 bits."""
        queries, keys = self.lengths(model_input, kind)
        return layers_of(self, kind) * stack_of(self, kind).attention.heads * queries * keys <= VALUES // 2

    def put_coarse(self, model_input: Input, kind: AttentionKind, layer: int, weights: torch.Tensor) -> None:
        """Hold weights (H, T, S) that a pass shows, in 8 bits."""
        coarse = in_8_bits(weights.float().cpu())
        size = sum(part.nbytes for part in coarse)
        self._values.put((model_input, name_of(kind, layer), "8 bits"), coarse, size)

    def trace(self, model_input: Input, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the same as ``values``, with a batch axis of 1."""
        return {name: value[None] for name, value in self.values(model_input, names).items()}

    def hidden(self, model_input: Input) -> torch.Tensor:
        """Return the output of the last stack (T, D), which the head reads."""
        stack = "encoder" if self.facts.decoder is None else "decoder"
        name = f"{stack}.output"
        if not self._values.holds((model_input, name)):
            self.streams(model_input, stack)  # which is small and wanted next
        return self.values(model_input, [name])[name]

    def streams(self, model_input: Input, stack: str) -> list[torch.Tensor]:
        """Return the residual stream before the first layer and after every layer, each (T, D)."""
        layers = range(layers_of(self, "encoder" if stack == "encoder" else "decoder"))
        names = [f"{stack}.blocks.0.input", *(f"{stack}.blocks.{number}.output" for number in layers)]
        values = self.values(model_input, [*names, f"{stack}.output"])
        return [values[name] for name in names]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits (T, V) over the vocabulary of hidden states (T, D)."""
        if self.facts.lm is None:
            raise QueryError("this model has no language-model head, so it predicts no tokens.", "ability")
        weight = next(self.model.parameters())
        with self.alone():
            output = self.model.apply_head(hidden.to(weight.device, weight.dtype)[None])
        logits = output[0] if isinstance(output, tuple) else output
        return passes.kept(logits[0])
