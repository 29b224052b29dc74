"""A step of training beside the same model in Hugging Face's transformers and a plain loop; and how long steps wait for
their batches.

Usage: python -m benchmarks.training [--rounds N] [--device cuda] [--precision bfloat16] [--only steps|loading]
[--quick] [--profile]. Steps: forward, loss, backward, clipping, AdamW in its fused form; ours by the Trainer, theirs by
model(**batch).loss.backward() and so on. Both read the same batches, prepared beforehand, from the same first weights,
with the dropout that is each model's default. Before anything is timed, the losses of the first steps without dropout
must agree. The two take turns in changing order, so that a busy machine slows both; the ratio is the median over the
rounds. Tokens are real ones; padding does not count.

Loading: three recipes of the package at their own settings on generated text. Printed is how long a step waits
for its batch, which threads prepare during the step before; beside it, how long it would take to make the batch
without them.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.hardware import describe
from benchmarks.loading import report_loading
from glassformer import load
from glassformer.data.batching import FixedPlan
from glassformer.data.loader import Loader
from glassformer.objectives.base import IGNORE, Batch, Objective
from glassformer.objectives.causal_lm import NextToken
from glassformer.objectives.masked_lm import MaskedLM
from glassformer.objectives.masking import Masking, MaskVocabulary
from glassformer.objectives.seq2seq import SequenceToSequence, SourceTarget
from glassformer.training.loop import DTYPES, Precision, Settings, StepReport, Trainer
from glassformer.training.optim import adamw

# Different batches; steps whose losses must agree, and how closely: the first step of AdamW amplifies rounding.
BATCHES, CHECKED, CLOSE = 4, 2, 3e-4
START, MASK, FIRST = 2, 4, 5  # the decoder's first input, the mask token, the first id that is no special token
LR, BETAS, CLIP = 1e-4, (0.9, 0.95), 1.0  # no weight decay: which weights decay is another choice in the two loops


@dataclass(frozen=True, kw_only=True)
class Sizes:
    vocab: int = 8192
    width: int = 384
    layers: int = 4
    heads: int = 6
    rows: int = 4
    length: int = 256


LARGE = Sizes(vocab=32_768, width=768, layers=12, heads=12, rows=16, length=512)  # for a GPU
QUICK = Sizes(vocab=64, width=16, layers=1, heads=2, rows=2, length=8)
Prepared = tuple[Objective[Any], Batch, dict[str, Tensor]]  # a batch of ours and of theirs


def texts(sizes: Sizes, generator: torch.Generator) -> list[Tensor]:
    """Rows of random ids, of half to the whole length; one is of the whole."""
    shortest = sizes.length // 2
    lengths = [sizes.length, *torch.randint(shortest, sizes.length, (sizes.rows - 1,), generator=generator).tolist()]
    return [torch.randint(FIRST, sizes.vocab, (length,), generator=generator) for length in lengths]


def next_tokens(sizes: Sizes, generator: torch.Generator) -> Prepared:
    """Full rows. Theirs reads the last token too, though nothing is asked of it; so that the work is the same, ours."""
    ids = torch.randint(FIRST, sizes.vocab, (sizes.rows, sizes.length), generator=generator)
    labels = {"next": F.pad(ids[:, 1:], (0, 1), value=IGNORE)}
    counts = {"next": sizes.rows * (sizes.length - 1)}
    batch = Batch(inputs={"ids": ids}, labels=labels, counts=counts, tokens=ids.numel())
    return NextToken(), batch, {"input_ids": ids, "labels": ids}


def masked_words(sizes: Sizes, generator: torch.Generator) -> Prepared:
    """Rows of different lengths, padded."""
    objective = MaskedLM(masking=Masking(vocabulary=MaskVocabulary(sizes.vocab, MASK, frozenset(range(FIRST)))))
    batch = objective.prepare(texts(sizes, generator), generator)
    return objective, batch, _theirs(batch, "masked")


def pairs(sizes: Sizes, generator: torch.Generator) -> Prepared:
    """Sources and targets of different lengths, padded."""
    objective = SequenceToSequence(start=START)
    both = zip(texts(sizes, generator), texts(sizes, generator), strict=True)
    batch = objective.prepare([SourceTarget(source, target) for source, target in both], generator)
    return objective, batch, _theirs(batch, "target")


def _theirs(batch: Batch, labels: str) -> dict[str, Tensor]:
    named = {"input_ids": batch.inputs["ids"], "attention_mask": batch.inputs["mask"].long()}
    return {**named, "labels": batch.labels[labels]}


def gpt2(sizes: Sizes) -> dict[str, Any]:
    shape = {"n_embd": sizes.width, "n_layer": sizes.layers, "n_head": sizes.heads}
    return {**shape, "vocab_size": sizes.vocab, "n_positions": sizes.length, "bos_token_id": 0, "eos_token_id": 0}


def bert(sizes: Sizes) -> dict[str, Any]:
    shape = {"hidden_size": sizes.width, "num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads}
    shape |= {"intermediate_size": 4 * sizes.width}
    return {**shape, "vocab_size": sizes.vocab, "max_position_embeddings": sizes.length}


def bart(sizes: Sizes) -> dict[str, Any]:
    each = {"layers": sizes.layers, "attention_heads": sizes.heads, "ffn_dim": 4 * sizes.width}
    shape = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in each.items()}
    shape |= {"d_model": sizes.width, "vocab_size": sizes.vocab, "max_position_embeddings": sizes.length}
    return {**shape, "decoder_start_token_id": START}


def t5(sizes: Sizes) -> dict[str, Any]:
    shape = {"d_model": sizes.width, "d_kv": sizes.width // sizes.heads, "d_ff": 4 * sizes.width}
    shape |= {"num_layers": sizes.layers, "num_heads": sizes.heads, "vocab_size": sizes.vocab}
    return {**shape, "decoder_start_token_id": START}


@dataclass(frozen=True)
class Case:
    """A model as transformers calls it, what it learns, and what its config calls its dropouts."""

    title: str
    name: str
    head: str
    config: Callable[[Sizes], dict[str, Any]]
    prepare: Callable[[Sizes, torch.Generator], Prepared]
    dropouts: tuple[str, ...]


CASES = (
    Case("decoder (GPT-2)", "GPT2", "LMHeadModel", gpt2, next_tokens, ("resid_pdrop", "embd_pdrop", "attn_pdrop")),
    Case(
        "masked words (BERT)", "Bert", "ForMaskedLM", bert, masked_words,
        ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    ),
    Case("encoder-decoder (BART)", "Bart", "ForConditionalGeneration", bart, pairs, ("dropout",)),
    Case("encoder-decoder (T5)", "T5", "ForConditionalGeneration", t5, pairs, ("dropout_rate",)),
)  # fmt: skip


def plain_loop(model: nn.Module, batches: list[dict[str, Tensor]], precision: Precision) -> Iterator[Tensor]:
    """The loop that everybody writes; every step gives its loss."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=0.0, fused=True)
    model.train()
    for given in cycle(batches):
        batch = {name: tensor.to(device, non_blocking=True) for name, tensor in given.items()}
        with nullcontext() if precision == "float32" else torch.autocast(device.type, DTYPES[precision]):
            loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


@torch.no_grad()
def roughen(model: nn.Module) -> None:
    """Weights that make a difference: a fresh model gives all tokens about the same chance, whatever it reads."""
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.normal_(0.0, weight.shape[-1] ** -0.5)
        else:
            weight.add_(torch.randn_like(weight), alpha=0.1)


@dataclass(frozen=True, eq=False)
class Pairing:
    """The same training twice: next() on either makes a step."""

    ours: Iterator[StepReport]
    theirs: Iterator[Tensor]


def pairing(case: Case, sizes: Sizes, device: str, precision: Precision = "float32", *, dropout: bool) -> Pairing:
    """Both loops with the same weights; those of theirs, which ours loads. Without dropout the two can be compared."""
    import transformers

    torch.manual_seed(0)
    off = {} if dropout else dict.fromkeys(case.dropouts, 0.0)
    config = getattr(transformers, f"{case.name}Config")(**case.config(sizes), **off)
    theirs = getattr(transformers, f"{case.name}{case.head}")(config)
    if not dropout:
        roughen(theirs)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = load(folder, device=device).model
    generator = torch.Generator().manual_seed(1)
    objectives, mine, batches = zip(*(case.prepare(sizes, generator) for _ in range(BATCHES)), strict=True)
    plan = FixedPlan(BATCHES, 1, seed=0, shuffle=False)
    loader = Loader(mine, lambda some, _: some[0], plan, seed=0)  # every batch is there already
    settings = Settings(steps=10**6, clip=CLIP, precision=precision, schedule=lambda _: 1.0)
    optimizers = [adamw(ours, LR, weight_decay=0.0, betas=BETAS)]
    trainer = Trainer(ours, objectives[0], loader, optimizers, settings)
    return Pairing(iter(trainer), plain_loop(theirs.to(device), list(batches), precision))


def largest_difference(case: Case, sizes: Sizes, device: str) -> float:
    """Between the losses of the first steps without dropout; both loops do the same, or there is nothing to time."""
    both = pairing(case, sizes, device, dropout=False)
    losses = [(next(both.ours).loss, float(next(both.theirs))) for _ in range(CHECKED)]
    worst = max(abs(ours - theirs) for ours, theirs in losses)
    if not worst <= CLOSE:
        raise RuntimeError(f"{case.title}: the two do not do the same; losses of the first steps: {losses}.")
    return worst


def seconds_for(run: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure_steps(case: Case, sizes: Sizes, device: str, precision: Precision, rounds: int) -> None:
    """One line: both loops in turns, after two rounds that pay for memory and threads and do not count."""
    apart = largest_difference(case, sizes, device)
    both = pairing(case, sizes, device, precision, dropout=True)
    tokens: list[int] = []
    runs = {"ours": lambda: tokens.append(next(both.ours).tokens), "theirs": lambda: next(both.theirs)}
    seconds: dict[str, list[float]] = {who: [] for who in runs}
    for number in range(-2, rounds):
        order = list(runs)
        random.Random(number).shuffle(order)
        for who in order:
            taken = seconds_for(runs[who], device)
            if number >= 0:
                seconds[who].append(taken)
    ratio = statistics.median(b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True))
    quickest = min(seconds["theirs"]) / min(seconds["ours"])
    middle = {who: statistics.median(taken) for who, taken in seconds.items()}
    speed = {who: statistics.mean(tokens) / taken for who, taken in middle.items()}
    told = "".join(f"{middle[who] * 1e3:9.1f} ms {speed[who]:8.0f}/s" for who in runs)
    print(f"{case.title:24}{told}{ratio:9.3f}{quickest:10.3f}{apart:12.0e}", flush=True)


def show_profile(case: Case, sizes: Sizes, device: str, precision: Precision) -> None:
    """Where the time of a step goes in both, by operator."""
    from torch.profiler import ProfilerActivity, profile

    both = pairing(case, sizes, device, precision, dropout=True)
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device != "cpu")
    by = "self_cpu_time_total" if device == "cpu" else "self_device_time_total"
    for who, loop in (("glassformer", both.ours), ("transformers", both.theirs)):
        next(loop)
        with profile(activities=kinds) as profiler:
            for _ in range(3):
                next(loop)
        print(f"\n{case.title}, {who}, 3 steps")
        print(profiler.key_averages().table(sort_by=by, row_limit=20, max_name_column_width=50))


def report_steps(sizes: Sizes, device: str, precision: Precision, rounds: int) -> None:
    """A table."""
    stack = f"{sizes.layers} layers (of each side) of width {sizes.width}, {sizes.heads} heads, {sizes.vocab} tokens"
    print(f"\nsteps: {stack}, batch {sizes.rows} × {sizes.length}, {precision}, dropout as usual, {rounds} rounds")
    print("ratio: tokens/s, ours / theirs; the aim is 1.0 or more. apart: losses of the first steps without dropout")
    print(f"{'':24}{'glassformer':>23}{'transformers':>23}    ratio  quickest       apart")
    for case in CASES:
        measure_steps(case, sizes, device, precision, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of the products")
    parser.add_argument("--only", choices=("steps", "loading"))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs; the figures say nothing")
    parser.add_argument("--profile", action="store_true", help="show where the time of steps goes instead")
    asked = parser.parse_args()
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sizes, rounds = (Sizes() if asked.device == "cpu" else LARGE), asked.rounds
    if asked.quick:
        sizes, rounds = QUICK, 2
    hardware = "" if asked.device == "cpu" else f"{torch.cuda.get_device_name()}; "
    print(f"{hardware}{describe()}, transformers {transformers.__version__}")
    if asked.profile:
        for case in CASES:
            show_profile(case, sizes, asked.device, asked.precision)
        return
    if asked.only != "loading":
        report_steps(sizes, asked.device, asked.precision, rounds)
    if asked.only != "steps":
        report_loading(asked.device, asked.quick)


if __name__ == "__main__":
    main()
