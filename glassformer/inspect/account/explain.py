"""Explains the numbers of an account: every term with its formula, in names and in numbers.

A formula reads ``hidden × width = 6,400 × 1,600``.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from glassformer.config import Disentangled, Stack, TaskHead
from glassformer.inspect.account.account import Account
from glassformer.inspect.account.counts import OpCount, Product
from glassformer.inspect.account.memory import BLOCK
from glassformer.inspect.account.tree import Multiplication, PartCost

SUBJECTS = ("flops", "memory")  # besides the parts
TABLES = {
    "token": "vocabulary", "position": "positions", "segment": "segments", "language": "languages",
    "relative": "distances",
}  # fmt: skip
LINEAR = ("rows", "inputs", "outputs")
PRODUCTS = {
    "q": ("batch·tokens", "width", "heads·head"),
    "k": ("batch·tokens", "width", "key/value heads·head"),
    "v": ("batch·tokens", "width", "key/value heads·head"),
    "o": ("batch·tokens", "heads·head", "width"),
    "position_q": ("rows of the table", "width", "heads·head"),
    "position_k": ("rows of the table", "width", "heads·head"),
    "up": ("batch·tokens", "width", "hidden"),
    "gate": ("batch·tokens", "width", "hidden"),
    "down": ("batch·tokens", "hidden", "width"),
    "scores": ("queries", "head", "keys"),
    "position_scores": ("queries", "head", "rows of the table"),
    "weighted_sum": ("queries", "keys", "head"),
}  # the names of the three sizes of a part's product
ROWS = ("batch·tokens", "batch·source", "queries of a group", "rows of the table", "batch")
WIDTHS = (
    "width", "hidden", "vocabulary", "width of the embedding", "heads·head", "key/value heads·head", "head", "labels",
)  # fmt: skip
FIRST = (
    "batch", "batch·tokens", "batch·heads", "batch·key/value heads", "heads", "key/value heads", "tokens",
    "rows of the table", "source",
)  # fmt: skip
MIDDLE = ("tokens", "queries of a group", "heads", "key/value heads", "source", "rows of the table", "head")
LAST = (*WIDTHS, "tokens", "source", "rows of the table", "rotary pairs")
TIMES = ("batch·heads", "batch·key/value heads")


class FormulaTerm(NamedTuple):
    """One term: ``formula`` in names, the same in ``numbers``, and its ``value``."""

    what: str
    formula: str
    numbers: str
    value: int


class Section(NamedTuple):
    """Terms of one kind and their sum; ``total`` is None if they do not add up."""

    title: str
    unit: str
    lines: list[FormulaTerm]
    total: int | None
    share: float | None = None  # of the whole model


class Explanation(NamedTuple):
    """The sections that explain one subject."""

    subject: str
    sections: list[Section]


class Formula(NamedTuple):
    """A formula in names, and the same in numbers."""

    names: str
    numbers: str

    def times(self, count: int, what: str) -> "Formula":
        """Return the formula ``count`` times."""
        if count == 1:
            return self
        sign = " × " if " × " in self.numbers else " · "
        names, numbers = (f"({text})" if " + " in re.sub(r"\([^()]*\)", "", text) else text for text in self)
        return Formula(f"{what}{sign}{names}" if names else "", f"{count:,}{sign}{numbers}")


def evaluate(numbers: str) -> int:
    """Return the value of a formula in numbers: integers, ``·``, ``×``, ``+`` and brackets."""
    total = 0
    for term in re.split(r" \+ (?![^(]*\))", numbers):
        factors = re.split(r" [·×] (?![^(]*\))", term)
        total += prod(evaluate(f[1:-1]) if f.startswith("(") else int(f.replace(",", "")) for f in factors)
    return total


class Size(NamedTuple):
    """A number and its name."""

    label: str
    value: int


def product_of(sizes: Iterable[Size], sign: str = " · ") -> Formula:
    """Return the product of sizes."""
    factors = list(sizes) or [Size("1", 1)]
    return Formula(sign.join(size.label for size in factors), sign.join(f"{size.value:,}" for size in factors))


class Formulas:
    """The formulas of one account.

    Operators have the shapes of their tensors; the facts name the sizes. A size without a name is its number.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._sizes_by_stack = {name: self._sizes(name) for name in ("encoder", "decoder")}
        # In cross-attention, the keys come from the source.
        self._sizes_by_stack["cross"] = self._sizes_by_stack["decoder"] | {"keys": account.source}

    def of_product(self, multiplication: Multiplication) -> Formula:
        """Return the formula of a product's FLOPs: 2 · m · n · p, times its runs."""
        name, product, runs = multiplication.name, multiplication.product, multiplication.runs
        m, n, p = self._product(name, product)
        sizes = (m, n, p) if product.pairs is None else (n, Size("unmasked pairs", product.pairs))
        times = (
            ()
            if product.times == 1
            else (self._labelled(name, product.times, TIMES, "batch·heads·blocks" if product.role else "times"),)
        )
        return product_of((Size("2", 2), *times, *sizes)).times(runs, "runs")

    def of_weight(self, part: PartCost, name: str, shape: tuple[int, ...]) -> Formula:
        """Return the formula of a weight's parameter count, in the sizes of its product or of the facts."""
        table = TABLES.get(name.removesuffix(".weight").rpartition(".")[2])
        if table is not None and len(shape) == 2:
            width = self._labelled(name, shape[1], (*WIDTHS, "heads"), "width")
            return product_of((Size(table, shape[0]), width), " × ")
        for multiplication in part.products:
            _, n, p = self._product(multiplication.name, multiplication.product)
            if (p.value, n.value)[: len(shape)] == shape:
                return product_of((p, n)[: len(shape)], " × ")
        return product_of((self._labelled(name, size, WIDTHS) for size in shape), " × ")

    def of_elementwise(self, op: OpCount) -> Formula:
        """Return the formula of an operator's element-wise operations: per element, and for norms also per row."""
        total, products = op.work.elementwise, op.work.products
        if products:  # steps per entry of a product
            role = products[0].role or (op.label if op.label in PRODUCTS else "")  # a linear layer is named by its path
            m, _, p = self._product(f"{op.path}.{role}" if role else op.path, products[0])
            heads = self._labelled(op.path, products[0].times, TIMES, "times")
            sizes = [size for size in (heads, m, p) if size.value != 1]
            return self._counted(total, sizes)
        sizes = self._shape(op.path, op.shape)
        whole = prod(op.shape)
        steps, rest = divmod(total, whole)
        rows = prod(op.shape[:-1])
        if not rest:
            return self._counted(total, sizes)
        if steps and not rest % rows:
            elements = self._counted(steps * whole, sizes)
            per_row = self._counted(rest, self._shape(op.path, op.shape[:-1]))
            return Formula(f"{elements.names} + {per_row.names}", f"{elements.numbers} + {per_row.numbers}")
        return Formula(f"{total:,}", f"{total:,}")

    def of_saved(self, op: OpCount, shape: tuple[int, ...], size: int) -> Formula:
        """Return the formula of the bytes saved for the backward pass: bytes per element · elements."""
        elements = prod(shape)
        if elements == 0 or size % elements:
            return Formula(f"{size:,}", f"{size:,}")
        width = size // elements
        unit = Size(f"{width} {'byte' if width == 1 else 'bytes'}", width)
        return product_of((unit, *self._shape(op.path, shape)))

    def _counted(self, total: int, sizes: Sequence[Size]) -> Formula:
        """Return a total as steps · sizes."""
        steps, rest = divmod(total, prod(size.value for size in sizes))
        if rest:
            return Formula(f"{total:,}", f"{total:,}")
        return product_of((*(() if steps == 1 and sizes else (Size(f"{steps:,}", steps),)), *sizes))

    def _product(self, path: str, product: Product) -> tuple[Size, Size, Size]:
        """Return the three sizes of a product with their names."""
        *outer, part = path.split(".")
        labels = PRODUCTS.get(part, LINEAR)
        rows = "batch·source" if "cross" in outer and part in ("k", "v") else labels[0]
        known = [(rows, *ROWS), (labels[1], *WIDTHS), (labels[2], *WIDTHS)]
        otherwise = list(LINEAR)
        if product.role and self._account.mode != "decode":  # a fused kernel with the blocks of a window
            known = [(label,) for label in labels]
            otherwise = [f"{label} of a block" for label in labels]
        sizes = [self._labelled(path, *size) for size in zip(product[:3], known, otherwise, strict=True)]
        return sizes[0], sizes[1], sizes[2]

    def _shape(self, path: str, shape: Sequence[int]) -> list[Size]:
        """Return the sizes of a shape with their names, without axes of size 1."""
        last = len(shape) - 1
        axes = (
            (size, FIRST if not axis and last else LAST if axis == last else MIDDLE) for axis, size in enumerate(shape)
        )
        return [self._labelled(path, size, labels) for size, labels in axes if size != 1]

    def _labelled(self, path: str, value: int, labels: Iterable[str], otherwise: str = "") -> Size:
        """Return a size with the first of these labels whose value is equal.

        Else ``otherwise``, or the number itself.
        """
        stack = "cross" if ".cross." in path else "encoder" if self._is_encoder(path) else "decoder"
        sizes = self._sizes_by_stack[stack]
        label = next((label for label in labels if sizes.get(label) == value), otherwise or f"{value:,}")
        return Size(label, value)

    def _is_encoder(self, path: str) -> bool:
        config = self._account.config
        if config is None or config.encoder is None:
            return False
        return config.decoder is None or path.startswith(("encoder", "embed"))

    def _sizes(self, stack_name: str) -> dict[str, int]:
        """Return the named sizes of a stack, the embeddings and the head."""
        account, config = self._account, self._account.config
        stack: Stack | None = None if config is None else getattr(config, stack_name)
        if config is None or stack is None:
            return {}
        batch, source, is_encoder = account.batch, account.source, stack_name == "encoder"
        tokens = source if is_encoder else 1 if account.mode == "decode" else account.context
        heads, head = stack.attention.heads, stack.attention.head_dim
        kv_heads = stack.attention.kv_heads or heads
        sizes = {
            # Tokens.
            "batch": batch,
            "tokens": tokens,
            "queries": tokens,
            "batch·tokens": batch * tokens,
            # Widths.
            "width": config.width,
            "hidden": stack.ffn.hidden,
            "vocabulary": config.vocab,
            # Heads.
            "heads": heads,
            "key/value heads": kv_heads,
            "head": head,
            "batch·heads": batch * heads,
            "batch·key/value heads": batch * kv_heads,
            "queries of a group": heads // kv_heads * tokens,
            "heads·head": heads * head,
            "key/value heads·head": kv_heads * head,
            # Embeddings, the encoder's input, and the keys of attention.
            "width of the embedding": config.embed.width or config.width,
            "source": source,
            "batch·source": batch * source,
            "keys": source if is_encoder else account.context,
        }
        if isinstance(stack.attention.score_bias, Disentangled):
            sizes["rows of the table"] = 2 * stack.attention.score_bias.span
        if stack.attention.rotary is not None:
            sizes["rotary pairs"] = stack.attention.rotary.dim // 2
        if isinstance(config.head, TaskHead):
            sizes["labels"] = len(config.head.labels)
        return sizes


def explain(account: Account, subject: str) -> Explanation:
    """Explain a part by its path or the end of it, the model by its name, or ``flops`` or ``memory``."""
    if subject == "memory":
        return Explanation(subject, [Section("memory", "bytes", list(_memory(account)), None)])
    try:
        part = account.root if subject in ("flops", account.name) else account.find(subject)
    except ValueError as error:
        raise ValueError(f"{error} You can also explain: {', '.join(SUBJECTS)}.") from error
    formulas = Formulas(account)
    sections = [_products(account, part, formulas), *_training(account, part)]
    if subject != "flops":
        sections = [_parameters(account, part, formulas), *sections, *_elementwise_and_saved(part, formulas)]
    return Explanation(part.path or subject, [section for section in sections if section.lines])


def _parameters(account: Account, part: PartCost, formulas: Formulas) -> Section:
    terms = (
        (_relative_path(part, weight), formulas.of_weight(inner, weight, shape))
        for inner in part.walk()
        for weight, shape in inner.weights.items()
    )
    share = None if part is account.root else part.parameters / account.parameters
    return Section("parameters", "parameters", _merged(terms), part.parameters, share)


def _products(account: Account, part: PartCost, formulas: Formulas) -> Section:
    products = (product for inner in part.walk() for product in inner.products)
    terms = ((_relative_path(part, product.name), formulas.of_product(product)) for product in products)
    share = None if part is account.root else part.flops / account.forward_flops
    return Section("matrix products, forward", "FLOPs", _merged(terms), part.flops, share)


def _training(account: Account, part: PartCost) -> list[Section]:
    """Return the section of training FLOPs. A product Y = X·W has two backward ones: dX = dY·Wᵀ and dW = Xᵀ·dY."""
    if account.mode != "train" or not part.flops:
        return []
    forward, backward = part.flops, part.backward_flops
    formula = Formula("", f"{backward:,}")
    if backward == 2 * forward:
        formula = Formula("2 (the gradient of each factor) · forward", f"2 · {forward:,}")
    lines = [FormulaTerm("forward", "", f"{forward:,}", forward), _term("backward", formula)]
    return [Section("matrix products, training step", "FLOPs", lines, forward + backward)]


def _elementwise_and_saved(part: PartCost, formulas: Formulas) -> list[Section]:
    """Return the sections of element-wise operations and of tensors saved for the backward pass, by operator."""
    ops = [(_operator_relative_path(part, inner, op), op) for inner in part.walk() for op in inner.ops]
    elementwise = ((name, formulas.of_elementwise(op)) for name, op in ops if op.work.elementwise)
    saved = ((name, formulas.of_saved(op, shape, size)) for name, op in ops for shape, size in op.saved if size)
    return [
        Section("element-wise operations, forward", "operations", _merged(elementwise, "calls"), part.elementwise),
        Section("saved for the backward pass", "bytes", _merged(saved, "calls"), part.activation_bytes),
    ]


def _operator_relative_path(part: PartCost, inner: PartCost, op: OpCount) -> str:
    """Return the path of an inner part relative to ``part``, and the operator."""
    return f"{_relative_path(part, inner.path)} ({op.operator.removeprefix('aten.').strip('_')})"


def _relative_path(part: PartCost, path: str) -> str:
    """Return a path relative to a part, with ``*`` for the indices of layers."""
    relative = part.name or "model" if path == part.path else path.removeprefix(f"{part.path}.")
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", relative)


def _merged(terms: Iterable[tuple[str, Formula]], what: str = "layers") -> list[FormulaTerm]:
    """Merge equal terms of several layers or calls."""
    return [_term(name, formula.times(count, what)) for (name, formula), count in Counter(terms).items()]


def _term(what: str, formula: Formula) -> FormulaTerm:
    return FormulaTerm(what, formula.names, formula.numbers, evaluate(formula.numbers))


def _memory(account: Account) -> Iterator[FormulaTerm]:
    memory, width = account.memory, account.bytes_per_number
    numbers = f"{account.parameters:,} · {width}"
    weights = Formula("parameters · bytes per number", numbers)
    is_plain = memory.weights == account.parameters * width  # one dtype, and no buffers
    yield _term("weights", weights if is_plain else Formula("parameters and buffers", f"{memory.weights:,}"))
    if memory.gradients:
        is_plain = memory.gradients == account.parameters * width
        yield _term("gradients", weights if is_plain else Formula("trained parameters", f"{memory.gradients:,}"))
        yield _optimizer(account, width)
    yield from _cache(account)
    sizes = {"weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer}
    resident = {name: size for name, size in (sizes | {"cache": memory.kv_cache}).items() if size}
    yield _term("resident between passes", _sum(resident))
    if memory.activations:
        parts = {part.name: part.activation_bytes for part in account.root.parts if part.activation_bytes}
        yield _term("activations, saved for the backward pass", _sum(parts))
        formula = "input of every layer + activations of the largest layer + everything outside layers"
        yield FormulaTerm("the same with checkpointing", formula, f"{memory.checkpointed:,}", memory.checkpointed)
    # Gradients are allocated as activations are freed, so they count in the peak of the pass.
    constant = {name: size for name, size in resident.items() if name != "gradients"}
    pass_name = "activations and gradients" if account.mode == "train" else "temporary tensors"
    yield _term("peak", _sum(constant | {f"peak of {pass_name}": memory.peak - sum(constant.values())}))


def _optimizer(account: Account, width: int) -> FormulaTerm:
    states, count = account.memory.optimizer, account.memory.gradients // width
    formulas = {
        "adamw": Formula("two moments · parameters · bytes per number", f"2 · {count:,} · {width}"),
        "adamw-master": Formula("(two moments + a copy) · parameters · 4 bytes", f"3 · {count:,} · 4"),
        "adamw-8bit": Formula(
            f"two moments · (parameters · 1 byte + a scale of 4 bytes per {BLOCK})",
            f"2 · ({count:,} + 4 · {-(-count // BLOCK):,})",
        ),
        "none": Formula("", "0"),
    }
    formula = formulas[account.optimizer]
    is_plain = evaluate(formula.numbers) == states  # parameters of one dtype
    return _term(
        f"optimizer ({account.optimizer})", formula if is_plain else Formula("optimizer states", f"{states:,}")
    )


def _cache(account: Account) -> Iterator[FormulaTerm]:
    per_token = account.memory.kv_cache_per_token
    decoder = None if account.config is None else account.config.decoder
    if decoder is None or not per_token:
        return
    layer = Formula("layers · keys and values of a layer", f"{decoder.layers} · {per_token // decoder.layers:,}")
    yield _term("KV cache per token", layer)
    if account.memory.kv_cache:
        slots = ("(tokens + source)", f"({account.context:,} + {account.source:,})")
        if not account.has_source:
            slots = ("tokens", f"{account.context:,}")
        formula = Formula(f"batch · {slots[0]} · KV cache per token", f"{account.batch:,} · {slots[1]} · {per_token:,}")
        is_plain = evaluate(formula.numbers) == account.memory.kv_cache
        yield _term("KV cache", formula if is_plain else Formula("cached tensors", f"{account.memory.kv_cache:,}"))


def _sum(terms: dict[str, int]) -> Formula:
    return Formula(" + ".join(terms), " + ".join(f"{size:,}" for size in terms.values()))
