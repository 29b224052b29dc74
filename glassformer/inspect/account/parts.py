"""What layers and heads are made of, told to a ``Walk``: linear maps, norms, activations, dropout, a loss.

The shadows of ``nn.linear``, ``nn.norm`` and ``nn.feedforward``.
"""

from glassformer.config import Norm
from glassformer.inspect.account.walk import Product, Size, Value, Walk

WORK = {"silu": 2, "gelu": 5, "gelu_tanh": 8}  # steps for each number


def linear(walk: Walk, name: str, x: Value, sizes: tuple[Size, Size, Size], *, bias: bool, label: str = "") -> Value:
    """W x + b of so many vectors, from one width to another."""
    _, into, out = sizes
    with walk.part(name):
        weight = walk.weight("weight", into.value * out.value)
        return product(walk, x, weight, Product(label, *sizes), walk.weight("bias", out.value) if bias else None)


def product(walk: Walk, x: Value, weight: Value, of: Product, bias: Value | None) -> Value:
    """A product and a bias, added in the kernel or after it."""
    if bias is not None and walk.fused:
        return walk.multiply(x, weight, of, bias)
    y = walk.multiply(x, weight, of)
    return y if bias is None else walk.point(y, bias)


def norm(walk: Walk, facts: Norm, name: str, x: Value, width: int) -> Value:
    """LayerNorm or RMSNorm, in at least four bytes; no kernel for the latter, or to train either in narrow types."""
    rows = x.numel // width
    with walk.part(name):
        if walk.fused and facts.kind == "layer" and not (walk.differentiable and x.width < 4):
            learned = [walk.weight("weight", width)] + [walk.weight("bias", width)] * facts.bias
            walk.leaf.elementwise += 3 * rows  # / width, + ε, 1 / √
            return walk.point(x, *learned, saves=(x, walk.new(2 * rows)), work=5 + len(learned))
        wide = walk.cast(x, max(x.width, 4))
        if facts.kind == "layer":
            wide = walk.point(wide, walk.point(wide, numel=rows))  # the mean, taken off
        square = walk.point(walk.point(wide, saves=(wide,)), numel=rows)
        scale = walk.point(square, work=3)  # / width, + ε, 1 / √
        walk.keep(scale)
        y = walk.point(wide, scale, saves=(wide, scale), spare=1)
        del wide, scale, square
        y = walk.point(y, walk.weight("weight", width), saves=(y,), spare=1)
        if facts.kind == "layer" and facts.bias:
            y = walk.point(y, walk.weight("bias", width))
        return walk.cast(y, x.width)


def activation(walk: Walk, name: str, x: Value) -> Value:
    """The bend: a kernel, or written out as ``nn.feedforward`` has it."""
    if name in ("relu", "tanh"):  # their slope is read off what they answer
        y = walk.point(x)
        walk.keep(y)
        return y
    if walk.fused:
        return walk.point(x, saves=(x,), work=WORK[name])
    wide = walk.cast(x, max(x.width, 4))
    if name == "silu":
        gate = walk.point(wide)
        walk.keep(gate)
        return walk.cast(walk.point(wide, gate, saves=(wide, gate)), x.width)
    if name == "gelu":
        half, inner = walk.point(wide), walk.point(wide)
        bend = walk.point(inner, saves=(inner,), spare=4)
        del inner
    else:
        inner = walk.point(walk.point(wide, walk.point(walk.point(wide, saves=(wide,), spare=2))))
        half, bend = walk.point(wide), walk.point(inner)
        walk.keep(bend)
    shifted = walk.point(bend)
    del bend
    return walk.cast(walk.point(half, shifted, saves=(half, shifted)), x.width)


def dropout(walk: Walk, x: Value, share: float) -> Value:
    """Some numbers set to zero while training; a byte per number says which, as on a GPU."""
    if share == 0 or not walk.differentiable:
        return x
    return walk.point(x, saves=(walk.new(x.numel, 1),))


def clamp(walk: Walk, x: Value, *, narrow: bool) -> Value:
    """``nn.feedforward.finite_in_half``: numbers of a narrow type kept within what it can hold."""
    return walk.point(x, saves=(x,)) if narrow else x


def cross_entropy(walk: Walk, scores: Value) -> None:
    """Of the last axis: log-softmax, which holds its result, and a mean, which holds how many it is of."""
    with walk.part("loss"):
        logs = walk.point(scores, work=5)
        walk.keep(logs)
        walk.keep(walk.new(1))
