"""Rows of training: dropout 0, the same batch again and again, bfloat16 by autocast, fused AdamW, gradients clipped."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.ours import floor_of_step, our_training_step, training_flops, without_dropout
from benchmarks.gpu.peers import TorchTransformer, fused_adamw, nanogpt_step, plain_step, tf32, transformers_step
from benchmarks.gpu.rows import Measurement, Result, Setup, contestant, not_measured, row
from benchmarks.gpu.timing import Ceilings, Timing, allocated, time_steps
from glassformer.config import ModelConfig, change
from glassformer.config.checks import check_positive_integer
from glassformer.families import lineages, preset
from glassformer.models.transformer import Transformer
from glassformer.objectives.base import Batch, Objective
from glassformer.objectives.causal_lm import NextToken
from glassformer.objectives.masked_lm import MaskedLM
from glassformer.objectives.masking import Masking, MaskVocabulary
from glassformer.objectives.seq2seq import SequenceToSequence

MASKED = 0.15  # share of the tokens


@dataclass(frozen=True)
class Sizes:
    """Of a stack and of a batch; ``source`` tokens if there is an encoder too."""

    layers: int
    width: int
    heads: int
    rows: int
    tokens: int
    vocab: int

    def __post_init__(self) -> None:
        check_positive_integer(**vars(self))

    def __str__(self) -> str:
        return (
            f"{self.layers} layers of width {self.width}, {self.heads} heads, vocabulary {self.vocab:,}, "
            f"batch {self.rows} × {self.tokens:,}"
        )


QUICK = Sizes(1, 32, 2, 2, 16, 64)


def facts_of(lineage: str, head: str, **config: Any) -> ModelConfig:
    """Return the facts of a lineage by the keys of its config.json, without dropout."""
    model_type = lineages()[lineage].model_type
    facts = lineages()[lineage].facts({"model_type": model_type, **config}, head)
    return without_dropout(facts)


def random_ids(sizes: Sizes, device: str, *, extra: int = 0) -> Tensor:
    """Return token ids (rows, tokens + extra), the same on every call."""
    generator = torch.Generator().manual_seed(1)
    shape = (sizes.rows, sizes.tokens + extra)
    return torch.randint(5, sizes.vocab, shape, generator=generator).to(device)


def ours(facts: ModelConfig, objective: Objective[Any], batch: Batch, setup: Setup) -> Timing:
    """Build and time our side."""
    before = allocated(setup.device)
    torch.manual_seed(0)
    model = Transformer(facts, setup.device).train()
    step = our_training_step(model, objective, batch, compiled=setup.compiles)
    return time_steps(step, setup.device, quick=setup.quick, before=before)


def theirs(make_step: Callable[[], Callable[[], None]], setup: Setup) -> Timing:
    """Build and time a peer."""
    before = allocated(setup.device)
    torch.manual_seed(0)
    with tf32():
        return time_steps(make_step(), setup.device, quick=setup.quick, before=before)


def next_tokens(ids: Tensor) -> Batch:
    """Return full rows for ``NextToken``: (rows, tokens + 1) ids."""
    inputs, labels = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return Batch(
        inputs={"ids": inputs}, labels={"next": labels}, counts={"next": labels.numel()}, tokens=labels.numel()
    )


def floor(facts: ModelConfig, sizes: Sizes, ceilings: Ceilings, **more: Any) -> float:
    """Return the least seconds of a step."""
    flops = training_flops(facts, batch=sizes.rows, context=sizes.tokens, **more)
    parameters = sum(p.numel() for p in Transformer(facts, "meta").parameters())
    return floor_of_step(flops, parameters, ceilings.product, ceilings.copy)


def beside_nanogpt(facts: ModelConfig, sizes: Sizes, title: str, setup: Setup, ceilings: Ceilings) -> Result:
    """Measure a GPT-2 of ours and nanoGPT's."""
    ids = random_ids(sizes, setup.device, extra=1)
    batch, tokens = next_tokens(ids), sizes.rows * sizes.tokens
    own = contestant("glassformer", lambda: ours(facts, NextToken(), batch, setup), tokens)
    folder = setup.peers.get("nanogpt")
    if folder is None:
        peer: Measurement = not_measured("nanoGPT", "--peer nanogpt=FOLDER was not given")
    else:
        shape = {"n_layer": sizes.layers, "n_head": sizes.heads, "n_embd": sizes.width, "block_size": sizes.tokens}
        inputs, targets = batch.inputs["ids"], batch.labels["next"]

        def make_step() -> Callable[[], None]:
            named = {**shape, "vocab_size": sizes.vocab}
            return nanogpt_step(folder, named, inputs, targets, compiles=setup.compiles)

        peer = contestant("nanoGPT", lambda: theirs(make_step, setup), tokens, "its model.py, its step, torch.compile")
    least = floor(facts, sizes, ceilings)
    return Result(title=title, settings=str(sizes), unit="tokens", measurements=[own, peer], floor_seconds=least)


def gpt2_facts(sizes: Sizes) -> ModelConfig:
    """Return GPT-2's facts in these sizes."""
    shape = {"n_layer": sizes.layers, "n_head": sizes.heads, "n_embd": sizes.width, "n_positions": sizes.tokens}
    return facts_of("gpt2", "lm", **shape, vocab_size=sizes.vocab)


@row("train-gpt2", "training")
def train_gpt2(setup: Setup, ceilings: Ceilings) -> Result:
    """GPT-2, 124M parameters, beside nanoGPT."""
    sizes = QUICK if setup.quick else Sizes(12, 768, 12, 32, 1024, 50_304)
    return beside_nanogpt(gpt2_facts(sizes), sizes, "GPT-2, 124M parameters", setup, ceilings)


@row("train-lm-bytes", "training")
def train_lm_bytes(setup: Setup, ceilings: Ceilings) -> Result:
    """The model of the recipe ``lm-bytes``, beside nanoGPT's of the same size."""
    sizes = QUICK if setup.quick else Sizes(6, 384, 6, 64, 256, 257)
    return beside_nanogpt(gpt2_facts(sizes), sizes, "the model of the recipe lm-bytes", setup, ceilings)


@row("train-llama", "training")
def train_llama(setup: Setup, ceilings: Ceilings) -> Result:
    """A Llama in the size of GPT-2, beside transformers."""
    sizes = QUICK if setup.quick else Sizes(12, 768, 12, 32, 1024, 50_304)
    shape = {"num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads, "hidden_size": sizes.width}
    shape |= {"vocab_size": sizes.vocab, "max_position_embeddings": sizes.tokens}
    shape |= {"intermediate_size": 64 * (-(-8 * sizes.width // 3) // 64), "num_key_value_heads": sizes.heads}
    facts = facts_of("llama", "lm", **shape, tie_word_embeddings=False)
    ids = random_ids(sizes, setup.device, extra=1)
    batch, tokens = next_tokens(ids), sizes.rows * sizes.tokens

    def make_step() -> Callable[[], None]:
        import transformers

        config = transformers.LlamaConfig(**shape, tie_word_embeddings=False, use_cache=False, pad_token_id=None)
        # The model shifts labels itself, so the last position has none; ``shift_labels`` are used as they are.
        inputs = {"input_ids": batch.inputs["ids"], "labels": batch.labels["next"]}
        inputs["shift_labels"] = batch.labels["next"]
        return transformers_step(config, "LlamaForCausalLM", inputs, compiles=setup.compiles)

    return Result(
        title="Llama's blocks in GPT-2's size",
        settings=f"{sizes}, head of its own",
        unit="tokens",
        measurements=[
            contestant("glassformer", lambda: ours(facts, NextToken(), batch, setup), tokens),
            contestant("transformers", lambda: theirs(make_step, setup), tokens, "sdpa, torch.compile"),
        ],
        floor_seconds=floor(facts, sizes, ceilings),
    )


@row("train-bert", "training")
def train_bert(setup: Setup, ceilings: Ceilings) -> Result:
    """Masked words with BERT-base, beside transformers."""
    sizes = QUICK if setup.quick else Sizes(12, 768, 12, 64, 512, 30_522)
    shape = {"num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads, "hidden_size": sizes.width}
    shape |= {"vocab_size": sizes.vocab, "max_position_embeddings": sizes.tokens, "intermediate_size": 4 * sizes.width}
    facts = facts_of("bert", "lm", **shape)
    objective = MaskedLM(masking=Masking(vocabulary=MaskVocabulary(sizes.vocab, 4, frozenset(range(5)))))
    batch = objective.prepare([*random_ids(sizes, "cpu")], torch.Generator().manual_seed(2)).to(setup.device)
    tokens = sizes.rows * sizes.tokens

    def make_step() -> Callable[[], None]:
        import transformers

        off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        inputs = {"input_ids": batch.inputs["ids"], "labels": batch.labels["masked"]}
        return transformers_step(
            transformers.BertConfig(**shape, **off), "BertForMaskedLM", inputs, compiles=setup.compiles
        )

    return Result(
        title="BERT-base, masked words",
        settings=f"{sizes}, {MASKED:.0%} masked",
        unit="tokens",
        measurements=[
            contestant("glassformer", lambda: ours(facts, objective, batch, setup), tokens),
            contestant("transformers", lambda: theirs(make_step, setup), tokens, "sdpa, torch.compile"),
        ],
        floor_seconds=floor(facts, sizes, ceilings, counted=MASKED),
    )


@row("train-transformer", "training")
def train_transformer(setup: Setup, ceilings: Ceilings) -> Result:
    """The Transformer of 2017, beside ``torch.nn.Transformer``."""
    sizes = QUICK if setup.quick else Sizes(6, 512, 8, 256, 64, 37_000)
    facts = without_dropout(preset("transformer-base"))
    named = {"vocab": sizes.vocab, "width": sizes.width, "embed.scale": sizes.width**0.5}
    for side in ("encoder", "decoder"):
        named |= {f"{side}.layers": sizes.layers, f"{side}.attention.heads": sizes.heads}
        named |= {f"{side}.attention.head_dim": sizes.width // sizes.heads, f"{side}.ffn.hidden": 4 * sizes.width}
    for path, value in named.items():
        facts = change(facts, path, value)
    source, target = random_ids(sizes, setup.device), random_ids(sizes, setup.device, extra=1)
    inputs, labels = target[:, :-1].contiguous(), target[:, 1:].contiguous()
    tokens = labels.numel()
    batch = Batch(
        inputs={"ids": source, "target": inputs},
        labels={"target": labels},
        counts={"target": tokens},
        tokens=2 * tokens,
    )
    objective = SequenceToSequence(start=2, smoothing=0.1)

    def make_step() -> Callable[[], None]:
        model = TorchTransformer(sizes.vocab, sizes.width, sizes.heads, sizes.layers, 4 * sizes.width, sizes.tokens)
        model = model.to(setup.device).train()
        call = torch.compile(model) if setup.compiles else model
        loss = lambda: call(source, inputs, labels)  # noqa: E731
        return plain_step(loss, [*model.parameters()], fused_adamw(model), setup.device)

    return Result(
        title="the Transformer of 2017, translation",
        settings=f"{sizes} on each side, label smoothing 0.1; target tokens are counted",
        unit="target tokens",
        measurements=[
            contestant("glassformer", lambda: ours(facts, objective, batch, setup), tokens),
            contestant("torch.nn.Transformer", lambda: theirs(make_step, setup), tokens, "torch.compile"),
        ],
        floor_seconds=floor(facts, sizes, ceilings, source=sizes.tokens),
    )
