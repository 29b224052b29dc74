"""``account``: parameters, matrix products, element-wise work and memory of one model under one load."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Literal, get_args

from glassformer.config import Model, buffers, shapes
from glassformer.config.checks import check_choice, check_positive
from glassformer.inspect.account.memory import Memory, Optimizer, memory_of
from glassformer.inspect.account.passes import Job, Mode, Pass
from glassformer.inspect.account.walk import Leaf, Product, Walk
from glassformer.inspect.facts import facts_of

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}  # bytes of a number
USUAL_CONTEXT = 512  # for a model whose positions never end
GROUPS = {
    "projections": ("q", "k", "v", "o", "position_q", "position_k"),
    "attention": ("scores", "weighted_sum", "c2p", "p2c"),
    "ffn": ("up", "gate", "down"),
}  # of work, in which shares are told; what is in none of them goes by a name of its own
Dtype = Literal["float32", "float16", "bfloat16", "float64"]
Causal = Literal["dense", "exact"]
Kernel = Literal["fused", "eager"]


@dataclass
class Part:
    """One part of a model and all inside it, the whole model by the path ""; ``flops`` are of one forward pass."""

    path: str
    parameters: int = 0
    flops: int = 0
    recomputed: int = 0  # FLOPs that a backward pass repeats
    elementwise: int = 0  # operations on single numbers in one forward pass
    bytes_moved: int = 0  # read and written in one forward pass
    activation_bytes: int = 0  # held for the backward pass
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    products: list[Product] = field(default_factory=list)
    parts: list["Part"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last word of the path."""
        return self.path.rpartition(".")[2]

    def walk(self) -> Iterator["Part"]:
        """This part and all parts inside it, from the outside in."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def called(self, path: str) -> list["Part"]:
        """This part and those inside it whose path is this one, or ends so."""
        return [part for part in self.walk() if f".{part.path}".endswith(f".{path}")]

    @property
    def is_repeated(self) -> bool:
        """Whether it is in a stack's later block, and so like a part of the first one."""
        return re.search(r"\.blocks\.(?!0\b)", self.path) is not None


@dataclass(frozen=True)
class Account:
    """The books of one model; see ``account``."""

    name: str
    config: Model
    batch: int
    context: int
    source: int
    follows: bool  # nobody said how long the source is: it is as long as the context
    dtype: Dtype
    mode: Mode
    attention: Kernel
    causal: Causal
    optimizer: Optimizer
    root: Part
    memory: Memory

    @property
    def parameters(self) -> int:
        """Numbers that are stored, each once."""
        return self.root.parameters

    @property
    def trainable_parameters(self) -> int:
        """Those that training changes: all of them. Positions that are computed are no parameters."""
        return self.root.parameters

    @property
    def forward_flops(self) -> int:
        """Of all matrix products of one pass from ids to answer."""
        return self.root.flops

    @property
    def backward_flops(self) -> int:
        """Of the gradients of both sides of every product; 0 unless it is trained."""
        return 2 * self.root.flops if self.mode == "train" else 0

    @property
    def recomputed_flops(self) -> int:
        """Of products that a fused kernel does again on the way back instead of storing their results."""
        return self.root.recomputed if self.mode == "train" else 0

    @property
    def flops(self) -> int:
        """Of one pass, or one training step; what is only computed again is not counted."""
        return self.forward_flops + self.backward_flops

    @property
    def memory_bytes(self) -> int:
        """What is held from one pass to the next: weights, and gradients, optimizer states or cache by the mode."""
        return self.memory.held

    @property
    def bytes_per_number(self) -> int:
        """Of a weight and, as a rule, of an activation."""
        return WIDTHS[self.dtype]

    @property
    def tokens(self) -> int:
        """Tokens that one pass answers."""
        return self.batch * (1 if self.mode == "decode" else self.context)

    def shares(self) -> dict[str, int]:
        """FLOPs by kind of work: projections, attention, ffn, head, and whatever else multiplies."""
        return flops_by_kind(self.root)

    def layer_shares(self) -> dict[str, int]:
        """The same for the layers alone: without embedding, head and what else stands beside the blocks."""
        return flops_by_kind(self.root, outside=0)

    def walk(self, walk: Walk) -> None:
        """Tell another walk of the same pass."""
        job = _job(self.batch, self.context, self.source, self.mode, self.causal, self.dtype)
        Pass(walk, self.config, job).run()

    def find(self, path: str) -> Part:
        """A part by its path, or by the end of it; the error for an unknown one names the nearest."""
        return find_part(self.root, path)


def account(
    config: Model | str | Path,
    *,
    batch: int = 1,
    context: int | None = None,
    source: int | None = None,
    dtype: Dtype = "float32",
    mode: Mode = "forward",
    attention: Kernel = "fused",
    causal: Causal = "dense",
    optimizer: Optimizer = "adamw",
) -> Account:
    """Count what a model costs.

    Args:
        config: a page of facts, the name of a published model, or a model's folder or file.
        batch: rows.
        context: tokens in each row; as many as the model's positions allow unless given. In ``decode`` the new token
            is the last of them and the others lie in the cache.
        source: tokens that an encoder-decoder's encoder reads; as many as ``context`` unless given.
        dtype: of weights and activations.
        mode: ``forward``, one pass; ``train``, a pass, cross-entropy, its gradients and the optimizer, dropout as a
            GPU keeps it; ``decode``, one new token, as the engine of ``generate`` computes it.
        attention: ``fused`` kernels write no scores down, ``eager`` does; linear maps, LayerNorms and activations
            follow (see ``nn.kernels``).
        causal: ``dense`` counts the product of every query and key, as papers do and as a masked product costs;
            ``exact`` only pairs that see each other, which is what a causal kernel does.
        optimizer: ``adamw`` keeps two numbers per weight in its type, ``adamw-master`` besides them a copy of the
            weight, all in float32, ``adamw-8bit`` two bytes per weight; ``none`` nothing.
    """
    check_choice("dtype", dtype, WIDTHS)
    check_choice("mode", mode, get_args(Mode))
    check_choice("attention", attention, get_args(Kernel))
    check_choice("causal", causal, get_args(Causal))
    check_choice("optimizer", optimizer, get_args(Optimizer))
    facts = config if isinstance(config, Model) else facts_of(config)
    context = context if context is not None else facts.longest or USUAL_CONTEXT
    follows = source is None or facts.family != "encoder-decoder"
    source = context if source is None or follows else source
    check_positive(batch=batch, context=context, source=source)
    if mode == "decode" and facts.decoder is None:
        raise ValueError("mode='decode' is the next token of a decoder, and this model has none; use 'forward'.")
    job = _job(batch, context, source, mode, causal, dtype)
    walk = Walk(WIDTHS[dtype], differentiable=mode == "train", fused=attention == "fused")
    Pass(walk, facts, job).run()
    name = "model" if isinstance(config, Model) else str(config)
    root = _tree(facts, walk.leaves)
    memory = memory_of(facts, walk, job, root.parameters, optimizer)
    return Account(
        name, facts, batch, context, source, follows, dtype, mode, attention, causal, optimizer, root, memory
    )


def _job(batch: int, context: int, source: int, mode: Mode, causal: Causal, dtype: Dtype) -> Job:
    return Job(batch, context, source, mode, causal == "exact", clamps=dtype == "float16")


def flops_by_kind(root: Part, times: Mapping[str, int] | None = None, *, outside: int = 1) -> dict[str, int]:
    """FLOPs of the products of one forward pass, by kind of work.

    Args:
        root: of the tree.
        times: how often the blocks of a stack count, by its name; once unless given.
        outside: how often the rest counts.
    """
    found: dict[str, int] = {}
    for part in root.walk():
        stack, in_blocks, _ = part.path.partition(".blocks.")
        count = (times or {}).get(stack, 1) if in_blocks else outside
        if part.products and count:
            kind = kind_of(part.path)
            found[kind] = found.get(kind, 0) + count * sum(product.flops for product in part.products)
    return found


def kind_of(path: str) -> str:
    """The kind of work that a part does: its group inside the blocks, else what it belongs to."""
    first, name = path.split(".")[0], path.rpartition(".")[2]
    if ".blocks." in path:
        return next((group for group, names in GROUPS.items() if name in names), name)
    return {"target_embed": "embed", "encoder": name, "decoder": name}.get(first, first)


def _tree(facts: Model, leaves: dict[str, Leaf]) -> Part:
    """Weights and books put under the parts they belong to, and added up; parts in the order in which they run."""
    known = {"": Part("")}
    for leaf_path in leaves:
        _along(known, leaf_path)
    for weight, shape in shapes(facts).items():
        if weight in buffers(facts):  # no parameter
            continue
        parts = _along(known, weight.removesuffix(".weight").removesuffix(".bias"))
        for part in parts:
            part.parameters += prod(shape)
        parts[-1].weights[weight] = shape
    for leaf_path, leaf in leaves.items():
        parts = _along(known, leaf_path)
        flops = sum(product.flops for product in leaf.products)
        for part in parts:
            part.flops += flops
            part.recomputed += leaf.recomputed
            part.elementwise += leaf.elementwise
            part.bytes_moved += leaf.moved
            part.activation_bytes += leaf.saved
        parts[-1].products += leaf.products
    return known[""]


def _along(known: dict[str, Part], path: str) -> list[Part]:
    """The parts on the way from the root, made where they are missing."""
    found, names = [known[""]], path.split(".")
    for length in range(1, len(names) + 1):
        inside = ".".join(names[:length])
        if inside not in known:
            known[inside] = Part(inside)
            found[-1].parts.append(known[inside])
        found.append(known[inside])
    return found


def find_part(root: Part, path: str) -> Part:
    """A part by its path, or by the end of it; the error for an unknown one names the nearest."""
    ends = root.called(path)
    if not ends:
        first = [part.path for part in root.walk() if not part.is_repeated]
        near = get_close_matches(path, first, n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        at_top = ", ".join(part.name for part in root.parts)
        raise ValueError(f"no part of this model is called {path!r}.{hint} At the top there are: {at_top}.")
    return min(ends, key=lambda part: len(part.path))
