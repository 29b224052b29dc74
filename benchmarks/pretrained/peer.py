"""The same-size ``torch.nn.Transformer``, trained on the batches, the optimizer and the schedule of the recipe en-zh.

It differs from the recipe's model in nothing that the recipe states: widths, layers, heads, dropouts, norms before the
sublayers, ReLU, sinusoidal positions, one table for both vocabularies and the output. ``beam_search`` decodes any
encoder-decoder without a cache, which is slow and simple.

Shapes: ``B`` rows, ``S`` source tokens, ``T`` target tokens, ``K`` beams, ``V`` vocabulary.
"""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.config import ModelConfig
from glassformer.metrics.text import chrf
from glassformer.objectives.base import Batch, Loss, LossTerm, token_cross_entropy
from glassformer.objectives.seq2seq import SequenceToSequence
from glassformer.recipes.recipe import Recipe
from glassformer.text.languages import languages_of
from glassformer.text.tokenizer import Tokenizer
from glassformer.training import parallel
from glassformer.training.averaging import MovingAverage
from glassformer.training.build import Run, build_run, make_optimizers
from glassformer.training.loop import Trainer

NextLogits = Callable[[Tensor, Tensor, Tensor], Tensor]  # source (B S), mask (B S), target (B T) -> logits (B V)


class Peer(nn.Module):
    """An encoder-decoder around ``torch.nn.Transformer`` with the sizes of a model's facts."""

    def __init__(self, facts: ModelConfig) -> None:
        super().__init__()
        encoder, decoder = facts.encoder, facts.decoder
        assert encoder is not None
        assert decoder is not None
        width, dropout = facts.width, decoder.dropout
        warnings.filterwarnings("ignore", "enable_nested_tensor")  # of no use with norms before the sublayers
        self.core = nn.Transformer(
            width,
            decoder.attention.heads,
            encoder.layers,
            decoder.layers,
            decoder.ffn.hidden,
            dropout,
            batch_first=True,
            norm_first=True,
        )
        for layer in (*self.core.encoder.layers, *self.core.decoder.layers):
            layer.dropout.p = decoder.ffn.dropout  # inside the feed-forward network
            for name in ("self_attn", "multihead_attn"):
                if hasattr(layer, name):
                    getattr(layer, name).dropout = decoder.attention.dropout
        self.token = nn.Embedding(facts.vocab, width)
        nn.init.normal_(self.token.weight, std=width**-0.5)
        self.dropout, self.scale = nn.Dropout(dropout), width**0.5
        self.register_buffer("positions", sinusoids(512, width), persistent=False)

    def embed(self, ids: Tensor) -> Tensor:
        positions: Any = self.positions
        return self.dropout(self.token(ids) * self.scale + positions[: ids.shape[1]])

    def forward(
        self, ids: Tensor, target: Tensor, mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        """Logits (B T V); masks are True at real tokens."""
        length = target.shape[1]
        hidden = torch.triu(torch.ones(length, length, dtype=torch.bool, device=ids.device), 1)
        padding, target_padding = (None if real is None else ~real for real in (mask, target_mask))
        out = self.core(
            self.embed(ids),
            self.embed(target),
            tgt_mask=hidden,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=padding,
        )
        return out @ self.token.weight.T


def sinusoids(length: int, width: int) -> Tensor:
    """Sines and cosines (Vaswani et al., 2017, section 3.5), (length, width)."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), -1)


@dataclass(frozen=True, kw_only=True)
class PeerObjective:
    """The recipe's objective, for a model that is called in one piece."""

    inner: SequenceToSequence

    def prepare(self, examples: Sequence[Any], generator: torch.Generator) -> Batch:
        return self.inner.prepare(examples, generator)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        result = token_cross_entropy(model(**batch.inputs), batch.labels["target"], self.inner.smoothing)
        count = batch.counts["target"]
        return Loss({"target": LossTerm(result.total, count)}, {"accuracy": (result.correct, count)})


@torch.inference_mode()
def beam_search(
    next_logits: NextLogits, source: Tensor, mask: Tensor, *, start: int, first: int, eos: int, beams: int, longest: int
) -> list[list[int]]:
    """The best text of each row, its first token forced, without it and without EOS; score: mean log-probability."""
    rows, device = len(source), source.device
    wide_source, wide_mask = (tensor.repeat_interleave(beams, 0) for tensor in (source, mask))  # B·K S
    target = torch.tensor([[start, first]], device=device).repeat(rows * beams, 1)
    scores = torch.full((rows, beams), -torch.inf, device=device)
    scores[:, 0] = 0.0  # all beams are equal at first
    best: list[tuple[float, list[int]]] = [(-math.inf, [])] * rows
    for length in range(2, longest + 1):
        logits = next_logits(wide_source, wide_mask, target).float()
        total = scores[:, :, None] + logits.log_softmax(-1).view(rows, beams, -1)  # B K V
        vocab = total.shape[-1]
        top, number = total.flatten(1).topk(2 * beams)  # enough that beams remain if all of them end
        beam, token = number // vocab, number % vocab
        # Finished texts are compared by their mean; unfinished ones go on.
        ended = (token == eos).tolist()
        for row, values in enumerate(top.tolist()):
            for rank in range(beams):
                mean = values[rank] / length
                if ended[row][rank] and mean > best[row][0]:
                    prefix = target[row * beams + int(beam[row, rank]), 2:]
                    best[row] = (mean, prefix.tolist())
        open_scores = top.masked_fill(token == eos, -torch.inf)
        scores, chosen = open_scores.topk(beams)
        parents = beam.gather(1, chosen) + torch.arange(rows, device=device)[:, None] * beams
        target = torch.cat((target[parents.flatten()], token.gather(1, chosen).flatten()[:, None]), 1)
        if all(score >= float(value) / length for (score, _), value in zip(best, scores[:, 0], strict=True)):
            break
    rest = target.view(rows, beams, -1)[:, 0, 2:].tolist()
    return [text if score > -math.inf else rest[row] for row, (score, text) in enumerate(best)]


def translate(
    next_logits: NextLogits,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    languages: tuple[str, str],
    *,
    start: int,
    device: torch.device,
    beams: int = 4,
    longest: int = 48,
    batch_size: int = 128,
) -> list[str]:
    """Translations of texts, in their order."""
    known = languages_of(tokenizer)
    sources = [known.source(text, languages[0]) for text in texts]
    order = sorted(range(len(texts)), key=lambda number: len(sources[number]))
    eos, results = tokenizer.eos, dict[int, str]()
    assert eos is not None
    for begin in range(0, len(order), batch_size):
        numbers = order[begin : begin + batch_size]
        width = max(len(sources[number]) for number in numbers)
        padded = [sources[number] + [0] * (width - len(sources[number])) for number in numbers]
        mask = torch.tensor([[place < len(sources[number]) for place in range(width)] for number in numbers])
        options = {"start": start, "first": known.resolve(languages[1]), "eos": eos, "beams": beams}
        ids = torch.tensor(padded, device=device)
        outputs = beam_search(next_logits, ids, mask.to(device), longest=longest, **options)
        results |= {
            number: tokenizer.decode(output, skip_special=True) for number, output in zip(numbers, outputs, strict=True)
        }
    return [results[number] for number in range(len(texts))]


def train_peer(
    recipe: Recipe, folder: Path, minutes: float, log: Callable[[str], None]
) -> tuple[Peer, Run, dict[str, Any]]:
    """Train a peer by a recipe; the averaged weights with the best chrF on the validation rows are kept."""
    with ExitStack() as stack:
        process = stack.enter_context(parallel.start(recipe.run.chosen_device))
        run = build_run(recipe, folder, process)
        torch.manual_seed(recipe.run.seed)
        peer = Peer(run.context.facts).to(process.device)
        objective = run.objective
        assert isinstance(objective, SequenceToSequence)
        optimizers = make_optimizers(recipe.optimizer, peer)
        trainer = Trainer(peer, PeerObjective(inner=objective), run.trainer.batches, optimizers, run.trainer.settings)
        average = MovingAverage(peer, recipe.run.average or 0.0)
        begin, best, curve = time.perf_counter(), (-math.inf, dict[str, Tensor]()), []
        for report in trainer:
            average.update()
            is_over = time.perf_counter() - begin > 60 * minutes
            if report.step % recipe.evaluation.every and report.step != recipe.run.steps and not is_over:
                continue
            with average.applied():
                score = _valid_chrf(peer, run)
                if score > best[0]:
                    best = score, {name: tensor.clone() for name, tensor in peer.state_dict().items()}
            curve.append({"step": report.step, "loss": report.loss, "valid chrf": score})
            log(f"peer, step {report.step}: loss {report.loss:.3f}, valid chrF {score:.2f}")
            if is_over:
                break
        peer.load_state_dict(best[1])
        peer.eval()
    facts = {"parameters": sum(p.numel() for p in peer.parameters()), "seconds": time.perf_counter() - begin}
    return peer, run, facts | {"curve": curve}


def next_logits_of(peer: Peer) -> NextLogits:
    """The logits of the next token."""

    def next_logits(source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        return peer(source, target, mask)[:, -1]

    return next_logits


def _valid_chrf(peer: Peer, run: Run) -> float:
    rows = list(run.parts["valid"])[: run.recipe.evaluation.rows]
    device = next(peer.parameters()).device
    peer.eval()
    written = translate(
        next_logits_of(peer),
        run.context.tokenizer,
        [row.source for row in rows],
        (rows[0].source_language, rows[0].target_language),
        start=run.context.start,
        device=device,
        beams=1,
    )
    return chrf(written, [row.target for row in rows]).score
