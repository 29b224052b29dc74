"""What a Transformer does in one pass, told to a ``Walk`` operation by operation, from the facts alone.

The shadow of ``models`` and ``nn``, function by function, without padding; tests hold the two together.
"""

from dataclasses import dataclass, replace
from typing import Literal

from glassformer.config import BlockSparse, Disentangled, Embed, MaskDecoder, Model, Stack
from glassformer.inspect.account import parts
from glassformer.inspect.account.attention import Looking, attend, masked
from glassformer.inspect.account.heads import answers
from glassformer.inspect.account.positions import Shared, disentangled, shared, turn
from glassformer.inspect.account.sparse import attend_blocks
from glassformer.inspect.account.walk import Product, Size, Value, Walk

Mode = Literal["forward", "train", "decode"]


@dataclass(frozen=True)
class Job:
    """What is run: the sizes that no page of facts states."""

    batch: int
    tokens: int  # of the decoder, or of the encoder where there is no decoder
    source: int  # of the encoder
    mode: Mode = "forward"
    exact: bool = False
    clamps: bool = False  # numbers are kept within the range of their type; see nn.feedforward.finite_in_half

    def new(self, *, causal: bool) -> int:
        """Tokens that pass through a stack."""
        if not causal:
            return self.source
        return 1 if self.mode == "decode" else self.tokens


@dataclass(frozen=True)
class Around:
    """What surrounds one layer."""

    layer: int
    known: Shared
    memory: Value | None = None  # what cross-attention looks at
    source: Value | None = None  # what self-attention looks at, if not at its own input


class Pass:
    """One pass of a model over a job, told to a walk."""

    def __init__(self, walk: Walk, model: Model, job: Job) -> None:
        self.walk, self.model, self.job = walk, model, job
        self.width = Size("width", model.width)

    def run(self) -> None:
        """Everything from ids to answer, and to the loss if it is to be trained."""
        model, walk = self.model, self.walk
        x = memory = None
        if model.encoder is not None and self.job.mode != "decode":
            with walk.part("embed"):
                x = self.embed(model.embed, self.job.source)
            with walk.part("encoder"):
                x = memory = self.stack(model.encoder, x, None)
        if model.decoder is not None:
            with walk.part("embed" if model.encoder is None else "target_embed"):
                x = self.embed(model.embed, self.job.new(causal=True))
            with walk.part("decoder"):
                x = self.stack(model.decoder, x, memory)
        del memory
        assert x is not None
        found = [x]
        if model.head is not None:
            with walk.part("head"):
                found = answers(walk, model, model.head, x, self.job.batch)
        if self.job.mode == "train":
            for answer in found:
                parts.cross_entropy(walk, answer)

    def norm(self, name: str, x: Value, width: int | None = None) -> Value:
        """LayerNorm or RMSNorm of the model's width, or of another."""
        return parts.norm(self.walk, self.model.norm, name, x, width or self.model.width)

    def clamp(self, x: Value) -> Value:
        """A narrow type's numbers kept within its range."""
        return parts.clamp(self.walk, x, narrow=self.job.clamps)

    def embed(self, facts: Embed, tokens: int) -> Value:
        """From ids to vectors."""
        walk, width = self.walk, facts.width or self.model.width
        rows = self.job.batch * tokens
        x = walk.look_up("embed.token.weight", self.model.vocab * width, rows * width)
        if facts.scale != 1.0:
            x = walk.point(x)
        if facts.segments:
            x = walk.point(x, walk.look_up("segment", facts.segments * width, width))
        if facts.position is not None:
            places = walk.new(tokens * width)
            if facts.position.kind == "learned":
                table = (facts.position.length + facts.position.offset) * width
                places = walk.look_up("position", table, tokens * width, rows=walk.new(tokens, 8))
            x = walk.point(x, places)
            del places
        if facts.norm:
            x = self.norm("norm", x, width)
        x = parts.dropout(walk, x, facts.dropout)
        if facts.width is None:
            return x
        sizes = Size("batch · tokens", rows), Size("width of the embedding", width), self.width
        return parts.linear(walk, "project", x, sizes, bias=True)

    def stack(self, facts: Stack, x: Value, memory: Value | None) -> Value:
        """All layers. One that runs several times, or lends its weights to others, is booked under one name."""
        walk, job, tokens = self.walk, self.job, self.job.new(causal=facts.causal)
        unique = facts.unique_layers or facts.layers
        known = shared(walk, self.model, facts, tokens, job.tokens if facts.causal else tokens)
        if known.bias is not None and walk.fused and job.mode != "decode":
            known = self._hide(facts, known, known.bias)
        masks, places = self._mask_decoder(facts, tokens)
        for layer in range(facts.layers):
            before, around = x, Around(layer, known, memory)
            runs = 1
            if masks is not None and places is not None and layer == facts.layers - 1:
                x, runs, around = walk.point(x, places), masks.steps, Around(layer, known, memory, source=x)
            for _ in range(runs):
                with walk.part("blocks"), walk.part(str(layer * unique // facts.layers)):
                    x = self.block(facts, x, around)
            if layer == 0 and facts.convolution is not None and around.source is None:
                x = self.convolution(facts, before, x)
        if facts.final_norm:
            x = self.norm("norm", x)
        return parts.dropout(walk, x, facts.final_dropout)

    def _hide(self, facts: Stack, known: Shared, bias: Value) -> Shared:
        """Biases with −∞ where nobody may look: for kernels, made once for all layers that look as far."""
        views = {one.window: one for one in (self._looking(facts, n, cross=False) for n in range(facts.layers))}
        with self.walk.part("relative"):
            hidden = {window: masked(self.walk, one, bias) for window, one in views.items() if one.hides}
        return replace(known, bias=None if hidden.keys() == views.keys() else bias, hidden=hidden)

    def _mask_decoder(self, facts: Stack, tokens: int) -> tuple[MaskDecoder | None, Value | None]:
        """What runs the last layer of an encoder anew, and the positions that it adds there."""
        lm = self.model.lm
        if lm is None or lm.mask_decoder is None or facts is not self.model.encoder:
            return None, None
        name, length = "head.lm.position" if lm is not self.model.head else "head.position", lm.mask_decoder.length
        rows = self.walk.new(tokens, 8)
        return lm.mask_decoder, self.walk.look_up(name, length * self.width.value, tokens * self.width.value, rows)

    def block(self, facts: Stack, x: Value, around: Around) -> Value:
        """Attention, cross-attention, feed-forward network, joined by residual connections."""
        parallel = facts.placement == "parallel"
        with self.walk.piece(*(value for value in (x, around.memory, around.source) if value is not None)):
            both = self.norm("attention_norm", x) if parallel else None
            for step in ("attention", "cross", "ffn") if facts.cross else ("attention", "ffn"):
                y = self.norm(f"{step}_norm", x) if facts.placement == "pre" else both or x
                with self.walk.part(step):
                    if step == "ffn":
                        y = self.feed_forward(facts, y)
                    else:
                        y = self.attention(facts, y, around, cross=step == "cross")
                    y = parts.dropout(self.walk, y, facts.dropout if step in facts.dropout_on else 0.0)
                    y = self.clamp(y) if parallel else y
                with self.walk.part(f"{step}_residual"):
                    x = self.walk.point(x, y)
                    x = self.clamp(x) if step == "ffn" or not parallel else x
                del y
                if facts.placement == "post":
                    x = self.norm(f"{step}_norm", x)
        return x

    def attention(self, facts: Stack, x: Value, around: Around, *, cross: bool) -> Value:
        """Projections around the attention itself."""
        walk, inside, known = self.walk, facts.attention, around.known
        looking = self._looking(facts, around.layer, cross=cross)
        rows, inner = Size("batch · tokens", x.numel // self.width.value), Size("heads · head", self._inner(facts))
        keys, v = self._keys_and_values(facts, looking, around.memory if cross else around.source or x, cross=cross)
        q, k, bias = parts.linear(walk, "q", x, (rows, self.width, inner), bias="q" in inside.biases), keys, None
        if not cross:
            if inside.rotary is not None and known.angles is not None:
                with walk.part("rotary"):
                    q, k = (turn(walk, y, known.angles, inside.rotary, inside) for y in (q, keys))
            bias = known.hidden.get(looking.window, known.bias)
            looking = replace(looking, hidden=looking.window in known.hidden)
            if isinstance(inside.score_bias, Disentangled):
                bias = disentangled(walk, inside, inside.score_bias, known, (q, k), self.job.batch)
            if self.job.mode == "decode":  # what came before lies in the cache
                k = v = self._remembered(facts, looking)
        if isinstance(looking.window, BlockSparse):
            y = attend_blocks(walk, inside, looking, looking.window, q, k, v)
        else:
            y = attend(walk, inside, looking, (q, k, v), bias)
        del q, k, bias
        return parts.linear(walk, "o", y, (rows, inner, self.width), bias="o" in inside.biases)

    @staticmethod
    def _inner(facts: Stack, *, narrow: bool = False) -> int:
        """The width of all heads together, or of the key and value heads."""
        heads = (facts.attention.kv_heads if narrow else None) or facts.attention.heads
        return heads * facts.attention.head_dim

    def _keys_and_values(
        self, facts: Stack, looking: Looking, source: Value | None, *, cross: bool
    ) -> tuple[Value, Value]:
        """Projections of what is looked at; those of a memory that has been read are remembered."""
        if source is None:
            return (self._remembered(facts, looking),) * 2
        rows = Size("batch · source" if cross else "batch · tokens", source.numel // self.width.value)
        sizes = rows, self.width, Size("key/value heads · head", self._inner(facts, narrow=True))
        biases = facts.attention.biases
        k = parts.linear(self.walk, "k", source, sizes, bias="k" in biases)
        return k, parts.linear(self.walk, "v", source, sizes, bias="v" in biases)

    def _remembered(self, facts: Stack, looking: Looking) -> Value:
        """Keys or values in the cache, which is there before the pass."""
        return Value(looking.batch * looking.keys * self._inner(facts, narrow=True), self.walk.width)

    def _looking(self, facts: Stack, layer: int, *, cross: bool) -> Looking:
        """Who looks at whom in one layer; in decoding, a window leaves a slice of the cache, as ``Engine`` has it."""
        inside, job = facts.attention, self.job
        queries = job.new(causal=facts.causal)
        keys = job.source if cross or not facts.causal else job.tokens
        window = None if cross else inside.windows[layer % len(inside.windows)]
        if isinstance(window, int) and job.mode == "decode":
            keys = min(keys, window)
        return Looking(
            job.batch,
            queries,
            keys,
            causal=facts.causal and not cross,
            window=window,
            fused=self.walk.fused,
            exact=job.exact,
            dropout=inside.dropout,
        )

    def feed_forward(self, facts: Stack, x: Value) -> Value:
        """Two linear maps with a bend between them, or three."""
        walk, ffn, rows = self.walk, facts.ffn, Size("batch · tokens", x.numel // self.width.value)
        sizes = rows, self.width, Size("hidden", ffn.hidden)
        hidden = self.clamp(parts.linear(walk, "up", x, sizes, bias=ffn.bias))
        gate = self.clamp(parts.linear(walk, "gate", x, sizes, bias=ffn.bias)) if ffn.gated else None
        with walk.part("activation"):
            if gate is None:
                hidden = parts.activation(walk, ffn.activation, hidden)
            else:
                gate = parts.activation(walk, ffn.activation, gate)
                hidden = walk.point(gate, hidden, saves=(gate, hidden))
                del gate
            hidden = self.clamp(hidden)
        hidden = parts.dropout(walk, hidden, ffn.dropout)
        return parts.linear(walk, "down", hidden, (rows, sizes[2], self.width), bias=ffn.bias)

    def convolution(self, facts: Stack, before: Value, x: Value) -> Value:
        """Neighbouring tokens mixed, beside the first block."""
        conv, walk = facts.convolution, self.walk
        assert conv is not None
        rows, groups = Size("batch · tokens", x.numel // self.width.value), Size("groups", conv.groups)
        into = Size("width of a group · kernel", self.model.width // conv.groups * conv.kernel)
        with walk.part("convolution"):
            around = walk.copy(before, conv.kernel, 1)
            weight = walk.weight("weight", into.value * self.model.width)
            out = Size("width of a group", self.model.width // conv.groups)
            y = walk.multiply(around, weight, Product("", rows, into, out, groups))
            del around
            y = walk.point(y, walk.weight("bias", self.model.width))
            y = parts.activation(walk, conv.activation, parts.dropout(walk, y, conv.dropout))
            return self.norm("norm", walk.point(x, y))
