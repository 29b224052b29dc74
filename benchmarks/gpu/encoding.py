"""Rows of encoding, without gradients and in bfloat16: full batches of token ids, and texts of mixed lengths.

Full batches: ours is ``Transformer.encode`` with compiled blocks. Peers: ``torch.nn.TransformerEncoder`` by its fast
path and compiled without it, and transformers compiled.

Texts: the lengths of ``benchmarks.encode``, tokenizer included. Ours is ``embed``; transformers reads batches of 32, in
the given order, and sorted by length as sentence-transformers does.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.encode import BATCH, LONGEST, draw_lengths, draw_texts, write_small_model
from benchmarks.gpu.rows import Result, Setup, contestant, row
from benchmarks.gpu.timing import Ceilings, Timing, allocated, time_steps
from benchmarks.gpu.training import QUICK, Sizes, facts_of, random_ids
from glassformer import embed, load
from glassformer.config import ModelConfig
from glassformer.inspect.account import account
from glassformer.models.transformer import Transformer
from glassformer.training.block_calls import compile_model

TEXTS, ROUNDS = 1024, 7
CLOSE = 0.05  # how far the vectors of two libraries may be apart in bfloat16, of length 1
BERT_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}


class TorchEncoder(nn.Module):
    """BERT's embedding and blocks around ``torch.nn.TransformerEncoder``."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(sizes.vocab, sizes.width), nn.Embedding(sizes.tokens, sizes.width)
        self.norm = nn.LayerNorm(sizes.width)
        hidden = 4 * sizes.width
        layer = nn.TransformerEncoderLayer(sizes.width, sizes.heads, hidden, 0.0, "gelu", batch_first=True)
        self.stack = nn.TransformerEncoder(layer, sizes.layers, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the hidden states."""
        return self.stack(self.norm(self.token(ids) + self.position.weight[: ids.shape[1]]))


def timed(build: Callable[[], Callable[[], Any]], setup: Setup) -> Timing:
    """Build and time an encoder without gradients."""
    before = allocated(setup.device)
    with torch.inference_mode():
        return time_steps(build(), setup.device, quick=setup.quick, before=before)


def torch_nn(sizes: Sizes, ids: Tensor, setup: Setup, *, compiles: bool) -> Callable[[], Tensor]:
    """Return a pass of ``torch.nn.TransformerEncoder``, compiled or by its fast path."""
    model = TorchEncoder(sizes).to(setup.device, torch.bfloat16).eval()
    torch.backends.mha.set_fastpath_enabled(not compiles)
    call = torch.compile(model) if compiles and setup.compiles else model
    return lambda: call(ids)


@row("encode-bert", "encoding")
def encode_bert(setup: Setup, ceilings: Ceilings) -> Result:
    """BERT-base on full batches."""
    sizes = QUICK if setup.quick else Sizes(12, 768, 12, 64, 512, 30_522)
    shape = {"num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads, "hidden_size": sizes.width}
    shape |= {"vocab_size": sizes.vocab, "max_position_embeddings": sizes.tokens, "intermediate_size": 4 * sizes.width}
    facts, ids = facts_of("bert", "none", **shape), random_ids(sizes, setup.device)

    def ours() -> Callable[[], Tensor]:
        model = Transformer(facts, setup.device, torch.bfloat16).eval()
        if setup.compiles:
            compile_model(model)
        return lambda: model.encode(ids)

    def transformers() -> Callable[[], Any]:
        from transformers import BertConfig, BertModel

        model = BertModel._from_config(BertConfig(**shape), attn_implementation="sdpa", dtype=torch.bfloat16)
        model = model.to(setup.device).eval()
        call = torch.compile(model) if setup.compiles else model
        return lambda: call(ids).last_hidden_state

    peers = {
        "torch.nn.TransformerEncoder, compiled": lambda: torch_nn(sizes, ids, setup, compiles=True),
        "torch.nn.TransformerEncoder, fast path": lambda: torch_nn(sizes, ids, setup, compiles=False),
        "transformers, compiled": transformers,
    }
    flops = account(facts, batch=sizes.rows, context=sizes.tokens).flops
    measured = [contestant(name, lambda b=b: timed(b, setup), ids.numel()) for name, b in peers.items()]
    torch.backends.mha.set_fastpath_enabled(True)
    return Result(
        title="BERT-base, full batches",
        settings=str(sizes),
        unit="tokens",
        measurements=[contestant("glassformer", lambda: timed(ours, setup), ids.numel()), *measured],
        floor_seconds=flops / ceilings.product,
    )


@row("encode-texts", "encoding")
def encode_texts(setup: Setup, ceilings: Ceilings) -> Result:
    """Embed texts of mixed lengths with BERT-base."""
    lengths = draw_lengths(16 if setup.quick else TEXTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_small_model(folder, **({} if setup.quick else BERT_BASE))
        texts = draw_texts(folder, lengths)
        runs = {
            "glassformer": lambda: our_embeddings(folder, texts, setup),
            "transformers": lambda: their_embeddings(folder, texts, setup, by_length=False),
            "transformers, sorted by length": lambda: their_embeddings(folder, texts, setup, by_length=True),
        }
        found: dict[str, Tensor] = {}
        measured = [
            contestant(who, lambda who=who, make=make: time_runs(make(), setup, found, who), len(texts))
            for who, make in runs.items()
        ]
        facts = load(folder, head="none").model.config
    apart = max((float((found["glassformer"] - vectors).norm(dim=-1).max()) for vectors in found.values()), default=0.0)
    if not apart <= CLOSE:
        raise RuntimeError(f"the vectors are {apart:.1e} apart; the libraries do not do the same.")
    flops = flops_of_texts(facts, lengths)
    return Result(
        title="texts of mixed lengths to vectors",
        settings=f"{facts.encoder.layers} layers of width {facts.width}, {len(texts):,} texts of {min(lengths)} to "
        f"{max(lengths)} tokens, {sum(lengths) / len(lengths):.0f} on average, tokenizer included",
        unit="texts",
        measurements=measured,
        floor_seconds=flops / ceilings.product,
        values={"largest difference of the vectors": apart},
    )


def flops_of_texts(facts: ModelConfig, lengths: Sequence[int]) -> float:
    """Return the FLOPs of one pass over each text. They are quadratic in the length: three accounts suffice."""
    low, middle, high = known = (8, 64, 512)
    at = {length: account(facts, context=length).flops for length in known}
    ways = ((low, middle, high), (middle, high, low), (high, low, middle))
    return sum(at[a] * (n - b) * (n - c) / ((a - b) * (a - c)) for n in lengths for a, b, c in ways)


def our_embeddings(folder: Path, texts: Sequence[str], setup: Setup) -> Callable[[], Tensor]:
    """Return ``embed`` of all texts, with its own batches."""
    loaded = load(folder, head="none", dtype=torch.bfloat16, device=setup.device)
    return lambda: embed(loaded, texts, pool="mean", normalise=True).float().cpu()


def their_embeddings(folder: Path, texts: Sequence[str], setup: Setup, *, by_length: bool) -> Callable[[], Tensor]:
    """Return the same by transformers: batches of 32 padded to their longest, pooled on the device."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    model = model.to(setup.device).eval()

    @torch.inference_mode()
    def run() -> Tensor:
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number])) if by_length else range(len(texts))
        vectors = torch.empty(len(texts), model.config.hidden_size, device=setup.device)
        for first in range(0, len(texts), BATCH):
            numbers = list(order[first : first + BATCH])
            options = {"padding": True, "truncation": True, "max_length": LONGEST, "return_tensors": "pt"}
            inputs = tokenizer([texts[number] for number in numbers], **options).to(setup.device)
            hidden = model(**inputs).last_hidden_state.float()  # B T D
            weights = inputs["attention_mask"].unsqueeze(-1).float()
            vectors[numbers] = F.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)
        return vectors.cpu()

    return run


def time_runs(run: Callable[[], Tensor], setup: Setup, found: dict[str, Tensor], who: str) -> Timing:
    """Return the median of whole runs, which end with the vectors in main memory, and keep the vectors."""
    before = allocated(setup.device)
    start = time.perf_counter()
    for _ in range(1 if setup.quick else 3):
        found[who] = run()
    warmup, seconds = time.perf_counter() - start, []
    for _ in range(1 if setup.quick else ROUNDS):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    peak = None if setup.device == "cpu" else torch.cuda.max_memory_allocated() - before
    return Timing(statistics.median(seconds), peak, warmup)
