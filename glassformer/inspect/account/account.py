"""``account``: parameters, matrix products, element-wise work and memory of one model under one load."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from glassformer.config import Model
from glassformer.config.checks import check_choice, check_positive
from glassformer.inspect.account.load import Kernel, Load, Mode
from glassformer.inspect.account.memory import Memory, Optimizer, memory_of
from glassformer.inspect.account.pairs import ExactPairs
from glassformer.inspect.account.tree import Part, build_tree, find_part

if TYPE_CHECKING:
    from torch import nn

    from glassformer.hub import Loaded
    from glassformer.inspect.account.subject import Subject
    from glassformer.inspect.account.trace import Inputs, Trace

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}  # bytes of a number
USUAL_CONTEXT = 512  # for a model whose positions never end
GROUPS = {
    "projections": (
        "q", "k", "v", "o", "position_q", "position_k", "q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "out_proj",
        "output_proj", "query", "key", "value",
    ),
    "attention": ("scores", "weighted_sum", "position_scores"),
    "ffn": ("up", "gate", "down", "w1", "w2", "w3", "linear1", "linear2", "fc1", "fc2"),
}  # fmt: skip
Dtype = Literal["float32", "float16", "bfloat16", "float64"]
Causal = Literal["dense", "exact"]


@dataclass(frozen=True)
class Account:
    """What one model costs under one load; see ``account``."""

    name: str
    config: Model | None  # None: a module that is not of this library
    load: Load
    follows: bool  # nobody said how long the source is: it is as long as the context
    dtype: str
    causal: Causal
    optimizer: Optimizer
    root: Part
    memory: Memory
    trainable_parameters: int  # numbers that training changes

    @property
    def batch(self) -> int:
        """Rows."""
        return self.load.batch

    @property
    def context(self) -> int:
        """Tokens in each row."""
        return self.load.context

    @property
    def source(self) -> int:
        """Tokens that an encoder-decoder's encoder reads."""
        return self.load.source

    @property
    def mode(self) -> Mode:
        """What is run."""
        return self.load.mode

    @property
    def attention(self) -> Kernel:
        """How attention is computed."""
        return self.load.attention

    @property
    def has_source(self) -> bool:
        """Whether it is an encoder-decoder."""
        return self.config is not None and self.config.family == "encoder-decoder"

    @property
    def parameters(self) -> int:
        """Numbers that are stored, each once."""
        return self.root.parameters

    @property
    def forward_flops(self) -> int:
        """Of all matrix products of one pass from inputs to answer."""
        return self.root.flops

    @property
    def backward_flops(self) -> int:
        """Of the products of the backward pass; 0 unless it is trained."""
        return self.root.backward_flops

    @property
    def recomputed_flops(self) -> int:
        """Of products that a fused kernel does again in the backward pass instead of storing their results."""
        return self.root.recomputed

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
        return _by_kind(self.root.walk())

    def layer_shares(self) -> dict[str, int]:
        """The same for the layers alone: without embedding, head and what else stands beside the layers."""
        return _by_kind(part for part in self.root.walk() if is_in_layers(part.path))

    def find(self, path: str) -> Part:
        """A part by its path, or by the end of it; the error for an unknown one names the nearest."""
        return find_part(self.root, path)


def account(
    model: "Model | str | Path | nn.Module | Loaded",
    inputs: "Inputs | None" = None,
    *,
    batch: int = 1,
    context: int | None = None,
    source: int | None = None,
    dtype: Dtype | None = None,
    mode: Mode = "forward",
    attention: Kernel = "fused",
    causal: Causal = "dense",
    optimizer: Optimizer = "adamw",
) -> Account:
    """Count what a model costs, by running it on tensors that have shapes and no memory.

    Args:
        model: facts, the name of a published model, a model's folder or file, a model of this library, or any
            ``torch.nn.Module``.
        inputs: for a module that is not of this library, what its ``forward`` is called with: a tensor, several in a
            sequence, or a dictionary by name. They take the place of ``batch``, ``context`` and ``source``.
        batch: rows.
        context: tokens in each row; as many as the model's positions allow unless given. In ``decode`` the new token
            is the last of them and the others lie in the cache.
        source: tokens that an encoder-decoder's encoder reads; as many as ``context`` unless given.
        dtype: of weights and activations; float32, or that of a module, unless given.
        mode: ``forward``, one pass; ``train``, a pass, cross-entropy (for a module of one's own: none), the backward
            pass and the optimizer, dropout as a GPU computes it; ``decode``, one new token with a cache.
        attention: ``fused`` kernels write no scores down, ``eager`` does; linear maps, LayerNorms and activations
            follow (``Transformer.fused``). A module of one's own computes it as it does.
        causal: ``dense`` counts the product of every query and key, as papers do and as a masked product costs;
            ``exact`` only pairs that see each other, which is what a causal kernel does.
        optimizer: ``adamw`` keeps two numbers per weight in its type, ``adamw-master`` besides them a copy of the
            weight, all in float32, ``adamw-8bit`` two bytes per weight; ``none`` nothing.
    """
    check_choice("mode", mode, get_args(Mode))
    check_choice("attention", attention, get_args(Kernel))
    check_choice("causal", causal, get_args(Causal))
    check_choice("optimizer", optimizer, get_args(Optimizer))
    if dtype is not None:
        check_choice("dtype", dtype, WIDTHS)
    from glassformer.inspect.account.subject import subject_of

    subject = subject_of(model, dtype)
    asked = Asked(mode, attention, causal, optimizer)
    if subject.config is None or inputs is not None:
        if (batch, context, source) != (1, None, None) and inputs is not None:
            raise ValueError("inputs have a batch and a length of their own; leave out batch, context and source.")
        return _of_module(subject, subject.inputs_of(inputs, batch, context), asked)
    facts = subject.config
    context = context if context is not None else facts.longest or USUAL_CONTEXT
    follows = source is None or facts.family != "encoder-decoder"
    source = context if source is None or follows else source
    check_positive(batch=batch, context=context, source=source)
    if mode == "decode" and facts.decoder is None:
        raise ValueError("mode='decode' is the next token of a decoder, and this model has none; use 'forward'.")
    return _of_model(subject, Load(batch, context, source, mode, attention), asked, follows=follows)


class Asked(NamedTuple):
    """What is asked besides the sizes."""

    mode: Mode
    attention: Kernel
    causal: Causal
    optimizer: Optimizer


def _of_model(subject: "Subject", load: Load, asked: Asked, *, follows: bool) -> Account:
    """A Transformer of this library, at these sizes."""
    from glassformer.inspect.account.trace import kv_cache_per_token, trace_model

    assert subject.config is not None
    trace = trace_model(subject.transformer, load)
    exact = ExactPairs(subject.config, load, trace.recorder.ops) if asked.causal == "exact" else None
    per_token = kv_cache_per_token(subject.config, subject.dtype)
    return _account(subject, load, asked, trace, exact=exact, follows=follows, kv_cache_per_token=per_token)


def _of_module(subject: "Subject", inputs: "Inputs", asked: Asked) -> Account:
    """Any module, with these inputs."""
    from glassformer.inspect.account.trace import sizes_of, trace_module

    if asked.causal == "exact":
        raise ValueError("which pairs see each other is known of models of this library alone; say causal='dense'.")
    batch, context = sizes_of(inputs)
    load = Load(batch, context, context, asked.mode, asked.attention)
    return _account(subject, load, asked, trace_module(subject.module, inputs, asked.mode))


def _account(
    subject: "Subject",
    load: Load,
    asked: Asked,
    trace: "Trace",
    *,
    exact: ExactPairs | None = None,
    follows: bool = True,
    kv_cache_per_token: int = 0,
) -> Account:
    weights = {name: weight.shape for name, weight in trace.weights.items()}
    return Account(
        subject.name,
        subject.config,
        load,
        follows,
        subject.dtype,
        asked.causal,
        asked.optimizer,
        build_tree(trace.recorder.ops, weights, trace.modules, exact),
        memory_of(trace, load, asked.optimizer, kv_cache_per_token),
        sum(one.numel for one in trace.weights.values() if one.is_trained),
    )


def _by_kind(parts: Iterable[Part]) -> dict[str, int]:
    """FLOPs of the products of one forward pass, by kind of work."""
    found: dict[str, int] = {}
    for part in parts:
        if part.products:
            kind = kind_of(part.path)
            found[kind] = found.get(kind, 0) + sum(one.flops for one in part.products)
    return found


def is_in_layers(path: str) -> bool:
    """Whether a part is inside one of a list of layers."""
    return re.search(r"(^|\.)\d+\.", path) is not None


def kind_of(path: str) -> str:
    """The kind of work that a part does: its group, or what it is called inside the layers, else what it belongs to."""
    names = [name for name in path.split(".") if name != "product" and not name.isdigit()] or [path]
    first, last = names[0], names[-1]
    group = next((group for group, known in GROUPS.items() if last in known), None)
    if group is not None or is_in_layers(path):
        return group or last
    return {"target_embed": "embed", "encoder": last, "decoder": last}.get(first, first)
