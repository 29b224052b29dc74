"""``record``: keep the values of a pass, by name.

    with record(model, "decoder.blocks.*.attention.weights") as trace:
        model(ids)
    trace["decoder.blocks.0.attention.weights"]  # (batch, heads, queries, keys)

The names are the same for every model. Layers are counted as they run: a layer that runs several times, because layers
share weights or because DeBERTa's mask decoder repeats the last one (``config.MaskDecoder``), has a number each time.

| name | value | shape |
|---|---|---|
| `embed.token`, `.segment`, `.language`, `.position` | the vectors that are added up | B T E |
| `embed` | embeddings, after norm and projection; `target_embed` … those of the decoder's tokens | B T D |
| `STACK.blocks.N.input`, `.output` | the residual stream before and after layer N; `encoder` or `decoder` | B T D |
| `….attention.input`, `….cross.input` | what self- or cross-attention reads: in pre-norm, after the norm | B T D |
| `….q`, `.k`, `.v` | queries, keys, values of each head, before rotary positions, after their norm | B H T K, B G S K |
| `….q_rotary`, `.k_rotary` | the same after rotary positions, where there are any | B H T K, B G S K |
| `….bias` | bias on the scores by position, where there is one | B or 1 H T S |
| `….scores` | q · k · scale + bias; −inf where masked | B H T S |
| `….weights` | softmax of the scores, before dropout | B H T S |
| `….heads` | the output of each head, before the output projection | B H T K |
| `….output` | the output of the sublayer as it is added to the stream | B T D |
| `….ffn.input`, `.hidden`, `.output` | feed-forward network; `hidden`, after activation and gate, is B T F | B T D |
| `….convolution.input`, `.output` | beside the first layer: the stream before it is added, and what is added | B T D |
| `STACK.output` | the output of the stack, after its final norm | B T D |
| `head` | the output of the head (logits, scores of labels), the first one if there are several | B T V … |

``B`` batch, ``T`` tokens of the call, ``S`` keys (those in the cache included), ``H`` heads, ``G`` key/value heads,
``K`` width of a head, ``E`` width of the embedding table, ``D`` model width, ``F`` hidden width, ``V`` vocabulary.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer import config
from glassformer.inspect.listeners import (
    AnyModel,
    Hook,
    Listener,
    StepCounter,
    attached,
    count_range,
    list_names,
    match_names,
)
from glassformer.inspect.listeners import value_names as value_names
from glassformer.models.transformer import Transformer
from glassformer.nn.observer import PartCall

PER_HEAD = ("q", "k", "v", "q_rotary", "k_rotary", "bias", "scores", "weights", "heads")
LIMIT_BYTES = 4 * 2**30


class NotRecordedError(KeyError):
    """A trace does not hold this value."""

    def __str__(self) -> str:
        return str(self.args[0])


class TraceLimitError(MemoryError):
    """A trace would become larger than its limit."""


class Trace(Mapping[str, Tensor]):
    """Recorded values: ``trace[name]`` is that of the last call that computed it.

    ``steps`` has one mapping of names to values for each call of the model, such as each step of ``generate``. A call
    is a run through embeddings, encoder, decoder and head; an encoder-decoder's encoder belongs to the first step.
    """

    def __init__(
        self,
        facts: config.ModelConfig,
        names: Sequence[str],
        *,
        heads: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = "cpu",
        detach: bool = True,
        limit_bytes: int | None = LIMIT_BYTES,
    ) -> None:
        self.facts = facts
        self.wanted = tuple(names)  # the names that the globs match
        self.heads = None if heads is None else tuple(heads)
        self.limit_bytes = limit_bytes
        self.steps: list[dict[str, Tensor]] = []
        self.bytes = 0  # of all steps
        self._dtype, self._device, self._detach = dtype, device, detach
        self._switched: set[str] = set()
        self._counter = StepCounter()
        self._open = True
        self._copies: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}  # of the residual stream, by identity
        self._check_heads()

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the trace holds, in the order of a pass."""
        held = {name for step in self.steps for name in step}
        return tuple(name for name in self.wanted if name in held)

    @property
    def switched(self) -> tuple[str, ...]:
        """The attention sublayers that were computed by the formula because their scores or weights are recorded.

        Fused kernels, and the blocks of block-sparse attention, compute the same results up to rounding.
        """
        return tuple(sorted(self._switched, key=self._order))

    def find(self, glob: str | Sequence[str]) -> dict[str, Tensor]:
        """Return the values whose names match a glob, or any of several, in the order of a pass."""
        return {name: self[name] for name in match_names(glob, self.names)}

    def __getitem__(self, name: str) -> Tensor:
        for step in reversed(self.steps):
            if name in step:
                return step[name]
        if name in self.wanted:
            raise NotRecordedError(f"{name!r} has not been computed: the model was not called, or not that part of it.")
        if name in value_names(self.facts):
            raise NotRecordedError(f"{name!r} was not recorded; add it to the names of record.")
        held = list_names(self.names)
        raise NotRecordedError(f"no value of this model is called {name!r}. The trace holds: {held}.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        calls = f"{len(self.steps)} call{'' if len(self.steps) == 1 else 's'}"
        lines: dict[tuple[str, str], list[int]] = {}  # equal values of several blocks are one line
        for name, value in self.items():
            stack, inside, rest = name.partition(".blocks.")
            number, _, kind = rest.partition(".")
            shape = f"{tuple(value.shape)} {value.dtype}".replace("torch.", "")
            numbers = lines.setdefault((f"{stack}.blocks.N.{kind}" if inside else name, shape), [])
            numbers += [int(number)] if inside else []
        shown = [
            f"{name}: {shape}" + (f", N = {count_range(numbers)}" if numbers else "")
            for (name, shape), numbers in lines.items()
        ]
        return "\n  ".join([f"<Trace of {calls}: {len(self)} names, {self.bytes:,} bytes", *shown]) + ">"

    def _listener(self) -> Listener:
        return Listener(frozenset(self.wanted), self._begin, is_recorder=True)

    def _close(self) -> None:
        self._open = False
        self._copies.clear()

    def _begin(self, call: PartCall) -> Hook:
        if torch._C._current_graph_task_id() != -1:  # a backward pass that computes the head again
            return lambda _, value: value
        if self._counter.count(call) == len(self.steps):
            self.steps.append({})
            self._copies.clear()
        self._note_switches(call)
        return partial(self._see, self.steps[-1], call)

    def _see(self, step: dict[str, Tensor], call: PartCall, name: str, value: Tensor) -> Tensor:
        """Keep a value, unless it is there already: a backward pass may compute a block again."""
        if not self._open or name in step:
            return value
        kept = self._chosen(name, value, call)
        # A value that was copied under another name is kept once.
        is_stream = name.endswith((".input", ".output"))
        copy = self._copies.get(id(value)) if is_stream else None
        if copy is not None and copy[0]() is value:  # the output of a layer is the input of the next
            step[name] = copy[1]
            return value
        # Copy it, if the trace stays below its limit.
        dtype = kept.dtype if self._dtype is None else self._dtype
        size = prod(kept.shape) * dtype.itemsize
        if self.limit_bytes is not None and self.bytes + size > self.limit_bytes:
            raise TraceLimitError(
                f"recording {name!r} ({size:,} bytes) would make the trace larger than limit_bytes="
                f"{self.limit_bytes:,}; it holds {self.bytes:,}. Record fewer names or heads, a smaller dtype, or "
                f"raise the limit."
            )
        self.bytes += size
        step[name] = self._copy(kept, dtype)
        if is_stream:
            self._copies[id(value)] = (weakref.ref(value), step[name])
        return value

    def _copy(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        device = value.device if self._device is None else torch.device(self._device)
        if not self._detach:
            return value.to(device, dtype)
        with torch.inference_mode(False), torch.no_grad():
            return torch.empty(value.shape, dtype=dtype, device=device).copy_(value)

    def _chosen(self, name: str, value: Tensor, call: PartCall) -> Tensor:
        """Return the chosen heads, and scores and weights for all keys."""
        _, sublayer, kind = f"..{name}".rsplit(".", 2)
        if kind not in PER_HEAD:
            return value
        if self.heads is not None:
            stack = self._stack(call.part)
            # The key head that serves each chosen head.
            groups = [head * value.shape[-3] // stack.attention.heads for head in self.heads]
            value = value[:, groups]
        # A window attends to the last keys only, and its cache may hold no others.
        hidden = (call.cached or 0) + call.tokens - value.shape[-1] if sublayer == "attention" else 0
        if kind in ("scores", "weights") and hidden > 0:
            value = F.pad(value, (hidden, 0), value=0.0 if kind == "weights" else -torch.inf)
        return value

    def _stack(self, part: str) -> config.Stack:
        stack = self.facts.encoder if part == "encoder" else self.facts.decoder
        assert stack is not None
        return stack

    def _note_switches(self, call: PartCall) -> None:
        for name in self.wanted:
            sublayer, _, kind = name.rpartition(".")
            if kind not in ("scores", "weights") or not name.startswith(f"{call.part}."):
                continue
            stack, number = self._stack(call.part), int(name.split(".")[2])
            window = stack.window(number) if sublayer.endswith("attention") else None
            if call.path != "eager" or isinstance(window, config.BlockSparse):
                self._switched.add(sublayer)

    def _order(self, sublayer: str) -> int:
        return next(number for number, name in enumerate(self.wanted) if name.startswith(f"{sublayer}."))

    def _check_heads(self) -> None:
        for part in ("encoder", "decoder"):
            if self.heads is None or not any(name.startswith(f"{part}.") for name in self.wanted):
                continue
            count = self._stack(part).attention.heads
            wrong = [head for head in self.heads if not isinstance(head, int) or not 0 <= head < count]
            if wrong or not self.heads:
                raise ValueError(f"the {part} has heads 0 to {count - 1}; got heads={list(self.heads)}.")


@contextmanager
def record(
    model: AnyModel,
    names: str | Sequence[str] = "*",
    *,
    heads: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = "cpu",
    detach: bool = True,
    limit_bytes: int | None = LIMIT_BYTES,
) -> Iterator[Trace]:
    """Record the values of every call of a model inside the ``with`` block, and of no other thread's calls.

    Attention weights and scores do not exist inside fused kernels: the layers in which they are recorded are computed
    by the formula (``trace.switched`` names them), and the output differs by rounding. All others run as without
    recording.

    Args:
        model: what ``load`` returns, a ``Transformer`` or a ``TransformerLM``. Compiled models cannot be recorded.
        names: a glob, or several, of the names listed at the top of this module. ``*`` at its beginning or end matches
            any characters (``*.weights``, ``decoder.*``); elsewhere, such as in ``decoder.blocks.*.output``, any within
            one part of a name, and ``**`` any number of parts.
        heads: keep these heads only; of keys and values that heads share, the one that serves each of them.
        dtype: of the recorded values; None: as computed.
        device: where the recorded values are kept; None: where they are computed.
        detach: copy the values, without their gradients. False keeps them as part of the graph, for ``backward``.
        limit_bytes: raise ``TraceLimitError`` before the trace gets larger than this; None: no limit.
    """
    made: list[Trace] = []

    def listener(transformer: Transformer) -> Listener:
        facts = transformer.config
        wanted = match_names(names, value_names(facts))
        trace = Trace(
            facts, wanted, heads=heads, dtype=dtype, device=device, detach=detach, limit_bytes=limit_bytes
        )  # fmt: skip
        made.append(trace)
        return trace._listener()

    with attached(model, listener):
        try:
            yield made[0]
        finally:
            made[0]._close()
