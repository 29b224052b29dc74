"""Names of the values of a pass, and how listeners are attached to a model: recorders and interventions use both.

Listeners act in the thread that attached them, and only until the ``with`` block ends. The model itself stays as it is:
it asks ``nn.observer`` who observes it. ``record`` has the table of names.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache

from torch import Tensor, nn

from glassformer import config
from glassformer.loaded import Loaded
from glassformer.models.transformer import HasTransformer, Transformer, transformer_of
from glassformer.nn.observer import Observer, PartCall, thread_observers

PARTS = ("embed", "encoder", "target_embed", "decoder", "head")  # of a model, in the order in which they run
Hook = Callable[[str, Tensor], Tensor]  # the name of a value and the value; returns it, or its replacement
AnyModel = Loaded | nn.Module


def value_names(facts: config.ModelConfig) -> tuple[str, ...]:
    """Return the names of all values of a model, in the order in which they are computed."""
    names = _embed_names("embed", facts.embed)
    if facts.encoder is not None:
        steps = 0 if facts.lm is None or facts.lm.mask_decoder is None else facts.lm.mask_decoder.steps - 1
        names += _stack_names("encoder", facts.encoder, facts.encoder.layers + steps, convolves=convolves(facts))
    if facts.decoder is not None:
        names += _embed_names("target_embed", facts.embed) if facts.encoder is not None else []
        names += _stack_names("decoder", facts.decoder, facts.decoder.layers)
    return tuple(names if facts.head is None else [*names, "head"])


def convolves(facts: config.ModelConfig) -> bool:
    """Whether a convolution is added to the first layer of the encoder; a mask decoder's own layer has none."""
    if facts.encoder is None or facts.encoder.convolution is None:
        return False
    return facts.encoder.layers > 1 or facts.lm is None or facts.lm.mask_decoder is None


def _embed_names(part: str, facts: config.Embed) -> list[str]:
    has = {"segment": facts.segments, "language": facts.languages, "position": facts.position is not None}
    return [f"{part}.token", *(f"{part}.{name}" for name, there in has.items() if there), part]


def _stack_names(part: str, facts: config.Stack, layers: int, *, convolves: bool = False) -> list[str]:
    attention, bias = facts.attention, facts.attention.score_bias
    rotary = ["q_rotary", "k_rotary"] if attention.rotary is not None else []
    has_bias = bias is not None and not (isinstance(bias, config.Disentangled) and not bias.terms)
    before, after = ["input", "q", "k", "v"], ["scores", "weights", "heads", "output"]
    sublayers = {"attention": [*before, *rotary, *(["bias"] if has_bias else []), *after]}
    if facts.cross:
        sublayers["cross"] = [*before, *after]
    sublayers["ffn"] = ["input", "hidden", "output"]
    inside = [f"{name}.{value}" for name, values in sublayers.items() for value in values]
    layer = ["input", *inside, "output"]
    first = ["input", *inside, "convolution.input", "convolution.output", "output"] if convolves else layer
    numbered = [(number, name) for number in range(layers) for name in (layer if number else first)]
    return [*(f"{part}.blocks.{number}.{name}" for number, name in numbered), f"{part}.output"]


def match_names(globs: str | Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that match any of the globs, in their order; no glob, or one that matches none, is an error."""
    globs = [globs] if isinstance(globs, str) else list(globs)
    if not globs:
        raise ValueError(f"names has no glob, so nothing is chosen. There are: {list_names(names)}.")
    for glob in globs:
        if not isinstance(glob, str):
            raise TypeError(f"names are globs such as 'decoder.blocks.*.attention.weights'; got {glob!r}.")
        if not any(matches(name, glob) for name in names):
            wider = re.sub(r"\*+", "**", glob)
            hint = f" ({wider!r} would match: inside a glob, * is one part of a name, and ** any number of them.)"
            hint = hint if any(matches(name, wider) for name in names) else ""
            raise ValueError(f"no value is called {glob!r}.{hint} There are: {list_names(names)}.")
    return tuple(name for name in names if any(matches(name, glob) for glob in globs))


def matches(name: str, glob: str) -> bool:
    """Whether a glob matches a name.

    ``*`` at the beginning or the end of a glob, and ``**``, match any characters; ``*`` elsewhere, such as in
    ``decoder.blocks.*.output``, any within one part of a name. ``?`` and ``[0-3]`` match one character.
    """
    return _pattern(glob).fullmatch(name) is not None


@lru_cache(maxsize=256)
def _pattern(glob: str) -> re.Pattern[str]:
    pieces = [piece for piece in re.split(r"(\*+|\?|\[!?[^]]+])", glob) if piece]
    found = ""
    for number, piece in enumerate(pieces):
        if piece.startswith("*"):
            is_end = number in (0, len(pieces) - 1)
            found += ".*" if is_end or len(piece) > 1 else "[^.]*"
        elif piece == "?":
            found += "[^.]"
        elif piece.startswith("[") and len(piece) > 1:
            found += f"[^{piece[2:]}" if piece[1] == "!" else piece
        else:
            found += re.escape(piece)
    return re.compile(found)


def list_names(names: Sequence[str]) -> str:
    """Return the names as one line, those of the blocks of a stack once for all blocks."""
    items: list[str] = []
    blocks: dict[str, dict[str, list[str]]] = {}
    for name in names:
        start, inside, rest = name.partition(".blocks.")
        number, _, value = rest.partition(".")
        if not inside:
            items.append(name)
            continue
        if start not in blocks:
            items.append(f"{start}.blocks.")
        blocks.setdefault(start, {}).setdefault(number, []).append(value)
    for start, numbers in blocks.items():
        values = dict.fromkeys(value for several in numbers.values() for value in several)
        item = f"{start}.blocks.N.… with N = {count_range(list(map(int, numbers)))} and … = {' | '.join(values)}"
        items[items.index(f"{start}.blocks.")] = item
    return "; ".join(items) or "nothing"


def count_range(numbers: Sequence[int]) -> str:
    """Return numbers as ``0 … 11`` if none between them is missing, else as a list."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
        return f"{first} … {last}"
    return ", ".join(map(str, numbers))


class StepCounter:
    """Counts the calls of a whole model by those of its parts: a part that does not come later begins the next step."""

    def __init__(self) -> None:
        self.step = -1
        self._part = len(PARTS)

    def count(self, call: PartCall) -> int:
        """Return the number of the step that a call belongs to."""
        part = PARTS.index(call.part)
        self.step += part <= self._part
        self._part = part
        return self.step


@dataclass(frozen=True, eq=False)
class Listener:
    """Who sees values: ``begin`` is called for each call of a part, and returns the function that its values go to."""

    names: frozenset[str]
    begin: Callable[[PartCall], Hook]
    is_recorder: bool = False  # sees values after all changes

    @cached_property
    def prefixes(self) -> frozenset[str]:
        """Every part that one of the names is in, with a dot at its end."""
        return frozenset(name[: end + 1] for name in self.names for end, letter in enumerate(name) if letter == ".")


class Scope:
    """The observer of one part of a model: a prefix of names, and who listens to them."""

    def __init__(self, prefix: str, listening: Sequence[tuple[Listener, Hook]]) -> None:
        self.prefix = prefix
        self.listening = listening

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Show a value to all listeners, one after the other."""
        name = self.prefix + name
        for listener, see in self.listening:
            if name in listener.names:
                value = see(name, value)
        return value

    def part(self, name: str) -> "Scope | None":
        """Return the observer of a part of this part, if anyone listens to it."""
        prefix = f"{self.prefix}{name}."
        listening = [pair for pair in self.listening if prefix in pair[0].prefixes]
        return Scope(prefix, listening) if listening else None

    def wants(self, *names: str) -> bool:
        """Whether anyone listens to one of these values."""
        return any(self.prefix + name in listener.names for listener, _ in self.listening for name in names)


class _PartScope:
    """The observer of embeddings or of the head, whose output has the name of the part.

    A call begins with its first value: an id without a vector begins none.
    """

    def __init__(self, call: PartCall, listeners: Sequence[Listener]) -> None:
        self.call = call
        self.listeners = listeners

    @cached_property
    def root(self) -> Scope:
        """The observer of the whole model."""
        return Scope("", [(each, each.begin(self.call)) for each in self.listeners])

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Show a value to all listeners."""
        part = self.call.part
        return self.root(part if name == "output" else f"{part}.{name}", value)

    def part(self, name: str) -> Scope | None:
        """Return the observer of a part of this part, if anyone listens to it."""
        return self.root.part(f"{self.call.part}.{name}")

    def wants(self, *names: str) -> bool:
        """Whether anyone listens to one of these values."""
        return self.root.wants(*(f"{self.call.part}.{name}" for name in names))


class _Listening:
    """The listeners of one thread to one model."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self.listeners = sorted(listeners, key=lambda each: each.is_recorder)  # stable

    def __call__(self, call: PartCall) -> Observer | None:
        """Return the observer of a call."""
        if call.part not in ("encoder", "decoder"):
            return _PartScope(call, self.listeners)
        return Scope("", [(each, each.begin(call)) for each in self.listeners]).part(call.part)


_LOCK = threading.Lock()  # a listener may be removed by another thread than its own


@contextmanager
def attached(model: AnyModel, make: Callable[[Transformer], Listener]) -> Iterator[Transformer]:
    """Attach the listener that ``make`` returns for a model; yield the model. Nothing remains afterwards."""
    transformer = _as_transformer(model)
    listener, observers, key = make(transformer), thread_observers(), transformer.model_key

    def change(find: Callable[[list[Listener]], list[Listener]]) -> None:
        with _LOCK:
            before = observers.get(key)
            after = find(before.listeners if isinstance(before, _Listening) else [])
            observers[key] = _Listening(after)
            if not after:
                del observers[key]

    change(lambda before: [*before, listener])
    try:
        yield transformer
    finally:
        change(lambda before: [each for each in before if each is not listener])


def _as_transformer(model: AnyModel) -> Transformer:
    """Return the model as a Transformer; one with other module names runs as such a one while it is observed."""
    model = model.model if isinstance(model, Loaded) else model
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a model, such as glassformer.load(...) returns; got {type(model).__name__}.")
    _check_not_compiled(model)
    transformer = transformer_of(model)
    if isinstance(model, HasTransformer) and getattr(model, "model_key", None) is not transformer.model_key:
        raise TypeError(
            f"calls of a {type(model).__name__} cannot be observed: its as_transformer returns a model with another "
            f"model_key. Observe that model instead."
        )
    return transformer


def _check_not_compiled(model: nn.Module) -> None:
    """Observers do not act inside compiled code."""
    for part in model.modules():
        call = part._compiled_call_impl
        if "_orig_mod" in part._modules or (call is not None and getattr(call, "compiled", call) is not None):
            raise ValueError(
                "this model, or a part of it, is compiled, and compiled code cannot be observed. Use the model as it "
                "was before torch.compile, or a deep copy of one that was compiled in place."
            )
