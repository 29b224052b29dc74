"""``account``: parameters, matrix products, element-wise operations and memory of one model under one workload."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from glassformer.config import ModelConfig
from glassformer.config.checks import check_choice, check_positive_integer
from glassformer.config.options import AttentionPath
from glassformer.inspect.account.counts import AccountMode, ExactPairs, Workload
from glassformer.inspect.account.memory import Memory, Optimizer, memory_of
from glassformer.inspect.account.tree import PartCost, build_tree, find_part

if TYPE_CHECKING:
    from torch import nn

    from glassformer.hub import Loaded
    from glassformer.inspect.account.trace import Inputs, OpTrace

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}  # bytes per element
DEFAULT_CONTEXT = 512  # for a model without a longest position
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


@dataclass(frozen=True, repr=False)
class Account:
    """The cost of one model under one workload; see ``account``."""

    name: str
    config: ModelConfig | None  # None: a module that is not of this library
    workload: Workload
    source_follows: bool  # no source length was set: it equals the context
    dtype: str
    causal: Causal
    optimizer: Optimizer
    root: PartCost
    memory: Memory
    trainable_parameters: int

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.workload.batch

    @property
    def context(self) -> int:
        """Tokens per sequence."""
        return self.workload.context

    @property
    def source(self) -> int:
        """Tokens that the encoder of an encoder-decoder reads."""
        return self.workload.source

    @property
    def mode(self) -> AccountMode:
        """What is run."""
        return self.workload.mode

    @property
    def attention(self) -> AttentionPath:
        """How attention is computed."""
        return self.workload.attention

    @property
    def has_source(self) -> bool:
        """Whether the model is an encoder-decoder."""
        return self.config is not None and self.config.family == "encoder-decoder"

    @property
    def parameters(self) -> int:
        """Number of parameters, shared ones once."""
        return self.root.parameters

    @property
    def forward_flops(self) -> int:
        """FLOPs of the matrix products of the forward pass."""
        return self.root.flops

    @property
    def backward_flops(self) -> int:
        """FLOPs of the matrix products of the backward pass; 0 unless ``mode="train"``."""
        return self.root.backward_flops

    @property
    def recomputed_flops(self) -> int:
        """FLOPs of products that a fused kernel recomputes in the backward pass instead of storing their results."""
        return self.root.recomputed

    @property
    def flops(self) -> int:
        """FLOPs of one pass, or one training step, without recomputation."""
        return self.forward_flops + self.backward_flops

    @property
    def memory_bytes(self) -> int:
        """Memory resident between passes: weights and, by mode, gradients, optimizer states or KV cache."""
        return self.memory.resident

    @property
    def bytes_per_number(self) -> int:
        """Bytes of a weight and, as a rule, of an activation."""
        return WIDTHS[self.dtype]

    @property
    def tokens(self) -> int:
        """Tokens that one pass computes outputs for."""
        return self.batch * (1 if self.mode == "decode" else self.context)

    def __repr__(self) -> str:
        from glassformer.inspect.account.report import human

        what = {"forward": "forward pass", "train": "training step", "decode": "new token"}[self.mode]
        return (
            f"<Account of {self.name}: {self.parameters:,} parameters; one {what}, batch {self.batch}, context "
            f"{self.context:,}, {self.dtype}: {human(self.flops, 'FLOP')}, peak memory {human(self.memory.peak, 'B')}>"
        )

    def shares(self) -> dict[str, int]:
        """Forward FLOPs by kind of work: projections, attention, ffn, head, and any other part with products."""
        return _by_kind(self.root.walk())

    def layer_shares(self) -> dict[str, int]:
        """Return the same for the layers alone, without embeddings, head and other parts outside the layers."""
        return _by_kind(part for part in self.root.walk() if is_in_layers(part.path))

    def find(self, path: str) -> PartCost:
        """Return a part by its path, or by the end of it; the error for an unknown part suggests the closest ones."""
        return find_part(self.root, path)


def account(
    model: "ModelConfig | str | Path | nn.Module | Loaded",
    inputs: "Inputs | None" = None,
    *,
    batch: int = 1,
    context: int | None = None,
    source: int | None = None,
    dtype: Dtype | None = None,
    mode: AccountMode = "forward",
    attention: AttentionPath = "sdpa",
    causal: Causal = "dense",
    optimizer: Optimizer = "adamw",
) -> Account:
    """Count the cost of a model by running it on fake tensors, which have shapes and no memory.

    Args:
        model: facts, the name of a published model, a model's folder or file, a model of this library, or any
            ``torch.nn.Module``, which computes attention its own way.
        inputs: for a module that is not of this library, what its ``forward`` is called with: a tensor, several in a
            sequence, or a dictionary by name. They take the place of ``batch``, ``context`` and ``source``.
        batch: sequences per batch.
        context: tokens per sequence; by default as many as the model has positions. When decoding, the last of them is
            the new token and the others are in the cache.
        source: tokens per sequence for the encoder of an encoder-decoder; by default as many as ``context``.
        dtype: type of weights and activations; by default that of a module, else float32.
        mode: ``forward``, one pass; ``train``, a pass, cross-entropy (for a torch module of your own: none), the
            backward pass and the optimizer, dropout as a GPU computes it; ``decode``, one new token with a cache.
        attention: how attention is computed: fused kernels that never materialise the scores (``sdpa``), or the plain
            formula, which does (``eager``). With ``eager``, linear layers, norms and activations are computed by
            formula too.
        causal: count all query-key pairs, as papers do (``dense``), or only unmasked ones, as kernels do (``exact``).
        optimizer: memory of the optimizer. ``adamw``: two numbers per weight, in its dtype; ``adamw-master``: these and
            a copy of the weight, all in float32; ``adamw-8bit``: two bytes per weight; ``none``: nothing.
    """
    check_choice("mode", mode, get_args(AccountMode))
    check_choice("attention", attention, get_args(AttentionPath))
    check_choice("causal", causal, get_args(Causal))
    check_choice("optimizer", optimizer, get_args(Optimizer))
    if dtype is not None:
        check_choice("dtype", dtype, WIDTHS)
    from glassformer.inspect.account.trace import sizes_of, trace_model, trace_module

    subject = _resolve(model, dtype)
    facts = subject.config
    if facts is None or inputs is not None:
        # A custom module, or custom inputs: the sizes are those of the inputs.
        if (batch, context, source) != (1, None, None) and inputs is not None:
            raise ValueError("inputs already have a batch and a length; leave out batch, context and source.")
        if causal == "exact":
            raise ValueError("causal='exact' needs a model of this library, whose masks are known; use causal='dense'.")
        inputs = _default_inputs(subject.module, batch, context) if inputs is None else inputs
        workload = Workload(*sizes_of(inputs), mode, attention)
        return _account(subject, workload, trace_module(subject.module, inputs, mode), causal, optimizer)
    # A Transformer of this library: the sizes are arguments.
    context = (facts.max_length or DEFAULT_CONTEXT) if context is None else context
    source_follows = source is None or facts.family != "encoder-decoder"
    workload = Workload(batch, context, context if source is None or source_follows else source, mode, attention)
    check_positive_integer(batch=batch, context=context, source=workload.source)
    trace = trace_model(subject.module, workload)  # type: ignore[arg-type]
    return _account(subject, workload, trace, causal, optimizer, source_follows=source_follows)


def _account(
    subject: "AccountedModule",
    workload: Workload,
    trace: "OpTrace",
    causal: Causal,
    optimizer: Optimizer,
    *,
    source_follows: bool = True,
) -> Account:
    """Build the account of a trace."""
    exact = None
    if causal == "exact" and subject.config is not None:
        exact = ExactPairs(subject.config, workload, trace.recorder.ops)
    weights = {name: weight.shape for name, weight in trace.weights.items()}
    return Account(
        subject.name,
        subject.config,
        workload,
        source_follows,
        subject.dtype,
        causal,
        optimizer,
        build_tree(trace.recorder.ops, weights, trace.modules, exact),
        memory_of(trace, workload, optimizer),
        sum(weight.numel for weight in trace.weights.values() if weight.is_trained),
    )


class AccountedModule(NamedTuple):
    """The module that is accounted for, its name and, for a Transformer of this library, its facts."""

    name: str
    module: "nn.Module"
    dtype: str
    config: ModelConfig | None = None


def _resolve(model: "ModelConfig | str | Path | nn.Module | Loaded", dtype: str | None) -> AccountedModule:
    """Return the module to account for; one that is described by facts is built on the meta device."""
    import torch
    from torch import nn

    from glassformer.models.transformer import Transformer

    if isinstance(model, ModelConfig | str | Path):
        from glassformer.inspect.facts import facts_of

        facts = model if isinstance(model, ModelConfig) else facts_of(model)
        name, dtype = "model" if isinstance(model, ModelConfig) else str(model), dtype or "float32"
        return AccountedModule(name, Transformer(facts, "meta", getattr(torch, dtype)), dtype, facts)
    module = model if isinstance(model, nn.Module) else _loaded_module(model)
    # The dtype of a module is that of its first floating-point parameter, float32 if it has none.
    floating = (weight.dtype for weight in module.parameters() if weight.is_floating_point())
    module_dtype = str(next(floating, torch.float32)).removeprefix("torch.")
    if dtype is not None and dtype != module_dtype:
        raise ValueError(f"this module is {module_dtype}, not {dtype}; convert it with module.to(torch.{dtype}).")
    if module_dtype not in WIDTHS:
        raise ValueError(f"this module is {module_dtype}; an account needs {', '.join(WIDTHS)}. Convert it with .to().")
    config = module.config if isinstance(module, Transformer) else None
    return AccountedModule(type(module).__name__, module, module_dtype, config)


def _loaded_module(model: "Loaded") -> "nn.Module":
    from glassformer.hub import Loaded

    if not isinstance(model, Loaded):
        raise TypeError(
            f"model must be a name, a path, a ModelConfig, a loaded model or a torch.nn.Module; got {model!r:.80}."
        )
    return model.model


def _default_inputs(module: "nn.Module", batch: int, context: int | None) -> "Inputs":
    """Return token ids (batch, context) for a TransformerLM; other modules need explicit inputs."""
    import torch

    from glassformer.models.course import TransformerLM

    if not isinstance(module, TransformerLM):
        raise ValueError(
            f"an account of a {type(module).__name__} needs the inputs of its forward: account(module, inputs), with "
            f"a tensor, several of them, or a dictionary by name."
        )
    return torch.zeros(batch, context or module.context_length, dtype=torch.long)


def _by_kind(parts: Iterable[PartCost]) -> dict[str, int]:
    """Forward FLOPs by kind of work."""
    flops: dict[str, int] = {}
    for part in parts:
        if part.products:
            kind = kind_of(part.path)
            flops[kind] = flops.get(kind, 0) + sum(product.flops for product in part.products)
    return flops


def is_in_layers(path: str) -> bool:
    """Whether a part is inside a layer of a module list."""
    return re.search(r"(^|\.)\d+\.", path) is not None


def kind_of(path: str) -> str:
    """Return the kind of work of a part: its group; else, inside the layers, its name; else its top-level part."""
    names = [name for name in path.split(".") if name != "product" and not name.isdigit()] or [path]
    first, last = names[0], names[-1]
    group = next((group for group, members in GROUPS.items() if last in members), None)
    if group is not None or is_in_layers(path):
        return group or last
    return {"target_embed": "embed", "encoder": last, "decoder": last}.get(first, first)
