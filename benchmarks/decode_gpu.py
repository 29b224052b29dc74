"""Generation on a GPU: tokens per second of every way to run steps, beside transformers and the bare products.

Usage: python -m benchmarks.decode_gpu [--only gpt2,llama] [--ways graph] [--no-peers] [--no-check] [--profile].
Before anything is timed, kernels are compared with their formulas, and small models in float32 must generate the same
texts in every way; otherwise nothing is timed, and the exit status is 1. Weights are random, in bfloat16. A row is the
median of three runs after one that warms up, prompts included. A case that fails prints its error; the others go on.
"""

import argparse
import statistics
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.decode_kernels import check_kernels
from glassformer import Transformer, preset
from glassformer.config import change
from glassformer.generation import GenerationSettings, generate, steps
from glassformer.generation.decoder import AHEAD

CUDA = torch.device("cuda")
GAP = 1e-3  # between scores, which are sums of log-probabilities in float32
INT8, FP8 = (f"Llama-2-7B's shape in {kind}, batch 1" for kind in ("int8", "fp8"))
ROWS: list[tuple[str, str, float, str]] = []  # case, who, number, unit


def prompts(rows: int, width: int, vocabulary: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    ids: list[list[int]] = torch.randint(5, vocabulary, (rows, width), generator=generator).tolist()
    return ids


def tiny() -> dict[str, Transformer]:
    """Small models of three kinds."""
    torch.manual_seed(0)
    gpt2 = change(change(preset("gpt2"), "decoder.layers", 2), "vocab", 1000)
    llama = change(change(preset("llama-2-7b"), "decoder.layers", 2), "vocab", 1000)
    bart = change(change(change(preset("bart-base"), "decoder.layers", 2), "encoder.layers", 2), "vocab", 1000)
    return {
        name: Transformer(facts, device=CUDA).eval()
        for name, facts in (("gpt2", gpt2), ("bart", bart), ("llama", llama))
    }


def check(decodings: list[str]) -> list[str]:
    """Every way generates the texts of the dynamic one; return what does not."""
    wrong = []
    for name, model in tiny().items():
        for kind, options in (
            ("greedy", {}),
            ("sampling", {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "samples": 2}),
            ("beam", {"beam_size": 4, "top_beams": 2, "eos": (7, 8)}),
            ("min_new", {"min_new_tokens": 4, "eos": tuple(range(5, 300))}),
            ("growing", {"max_new_tokens": 100}),
        ):
            steps.AHEAD = 8 if kind == "growing" else AHEAD
            asked = GenerationSettings(**{"max_new_tokens": 24, **options})
            start = {"start": [2]} if model.encoder is not None else {}
            ids = [row[: 6 + 3 * number] for number, row in enumerate(prompts(4, 20, 1000))]
            expected = generate(model, ids, asked, decoding="dynamic", **start)
            for decoding in decodings:
                if decoding == "compiled" and (name, kind) not in (("gpt2", "greedy"), ("bart", "beam")):
                    continue
                case = f"{name} {kind} {decoding}"
                try:
                    for _ in range(2):  # the second time with a captured step that was kept
                        found = generate(model, ids, asked, decoding=decoding, **start)
                    pairs = [(a, b) for x, y in zip(expected, found, strict=True) for a, b in zip(x, y, strict=True)]
                    same = sum(a.ids == b.ids and a.ended == b.ended for a, b in pairs)
                    gap = max(abs(a.score - b.score) for a, b in pairs)
                    print(f"check {case}: {same} of {len(pairs)} equal, scores within {gap:.1e}")
                    if same < len(pairs) or not gap <= GAP:  # NaN compares false
                        wrong.append(f"{case}: {same} of {len(pairs)} texts are equal, scores differ by {gap:.1e}")
                except Exception as error:
                    traceback.print_exc(limit=-6)
                    wrong.append(f"{case}: {type(error).__name__}")
    steps.AHEAD = AHEAD
    return wrong


def timed(run: Callable[[], Any], rounds: int = 3) -> float:
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    print(f"    first run {time.perf_counter() - started:.2f} s", flush=True)
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - started)
    return statistics.median(took)


def measure(case: str, who: str, run: Callable[[], Any], count: int, unit: str) -> None:
    try:
        rate = count / timed(run)
        ROWS.append((case, who, rate, unit))
        print(f"{case} {who}: {rate:,.0f} {unit}", flush=True)
    except Exception:
        print(f"{case} {who}: FAILED")
        traceback.print_exc(limit=-6)


def profile(case: str, run: Callable[[], Any]) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)[:16]
    print(f"--- kernels of {case}")
    for row in rows:
        print(f"  {row.self_device_time_total / 1000:9.2f} ms {row.count:7d} × {row.key[:110]}")


def language_model(case: str, name: str, rows: int, new: int, decodings: list[str], args: Any, **load: Any) -> None:
    facts = preset(name)
    model = Transformer(facts, device=CUDA, dtype=torch.bfloat16).eval()
    if load.get("quantize"):
        from glassformer.models.quantize import quantize

        quantize(model, load["quantize"])
    ids, asked = prompts(rows, 16, facts.vocab), GenerationSettings(max_new_tokens=new)
    for decoding in decodings:
        few = GenerationSettings(max_new_tokens=min(new, 48)) if decoding == "dynamic" else asked
        run = partial(generate, model, ids, few, decoding=decoding)
        measure(case, decoding, run, rows * few.max_new_tokens, "tok/s")
        if args.profile and decoding != "dynamic":
            short = GenerationSettings(max_new_tokens=40)
            generate(model, ids, short, decoding=decoding)
            profile(f"{case} {decoding}, 40 tokens", partial(generate, model, ids, short, decoding=decoding))


def gpt2_peer(case: str, rows: int, new: int) -> None:
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).to(CUDA, torch.bfloat16).eval()
    ids = torch.tensor(prompts(rows, 16, 50257), device=CUDA)
    how = {"max_new_tokens": new, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    run = lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **how)  # noqa: E731
    measure(case, "transformers", run, rows * new, "tok/s")


def beams(decodings: list[str], args: Any) -> None:
    case, rows, new = "beam 4, 6+6×512, 64 sentences", 64, 32
    facts = preset("transformer-base")
    model = Transformer(facts, device=CUDA, dtype=torch.bfloat16).eval()
    ids, asked = prompts(rows, 24, facts.vocab), GenerationSettings(max_new_tokens=new, beam_size=4)
    for decoding in decodings:
        run = partial(generate, model, ids, asked, start=[2], decoding=decoding)
        measure(case, decoding, run, rows, "sentences/s")
        if decoding != "dynamic":
            few = GenerationSettings(max_new_tokens=2, beam_size=4)
            short = partial(generate, model, ids, few, start=[2], decoding=decoding)
            print(f"    with one step: {timed(short):.4f} s, of {rows / ROWS[-1][2]:.4f} s")
        if args.profile and decoding != "dynamic":
            profile(f"{case} {decoding}", run)


def bart_peer() -> None:
    import transformers

    sizes = {"encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
    config = transformers.BartConfig(vocab_size=37000, d_model=512, **sizes, **heads)
    model = transformers.BartForConditionalGeneration(config).to(CUDA, torch.bfloat16).eval()
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    model.generation_config.pad_token_id = 1
    ids = torch.tensor(prompts(64, 24, 37000), device=CUDA)
    how: dict[str, Any] = {"max_new_tokens": 32, "do_sample": False, "num_beams": 4}
    run = lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **how)  # noqa: E731
    measure("beam 4, 6+6×512, 64 sentences", "transformers", run, 64, "sentences/s")


def bare_products() -> None:
    """The products of one token of Llama-2-7B's shape in one CUDA graph, and nothing else."""
    shapes = [(4096, 4096)] * 4 + [(11008, 4096)] * 2 + [(4096, 11008)]
    weights = [torch.randn(shape, device=CUDA, dtype=torch.bfloat16) for _ in range(32) for shape in shapes]
    weights.append(torch.randn(32000, 4096, device=CUDA, dtype=torch.bfloat16))
    vectors = {width: torch.randn(1, width, device=CUDA, dtype=torch.bfloat16) for width in (4096, 11008)}
    graph = torch.cuda.CUDAGraph()
    for weight in weights:
        F.linear(vectors[weight.shape[1]], weight)
    with torch.cuda.graph(graph):
        for weight in weights:
            F.linear(vectors[weight.shape[1]], weight)
    measure("Llama-2-7B's shape, batch 1", "bare products", lambda: [graph.replay() for _ in range(20)], 20, "tok/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="gpt2,gpt2-32,llama,llama-int8,llama-fp8,beam")
    parser.add_argument("--ways", default="dynamic,graph,compiled")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    decodings = [way for way in args.ways.split(",") if way != "none"]
    if not args.no_check:
        wrong = [*check_kernels(CUDA), *check([way for way in decodings if way != "dynamic"])]
        if wrong:
            raise SystemExit("\n".join(["FAILED:", *wrong]))
    only = args.only.split(",")
    cases: dict[str, Callable[[], None]] = {
        "gpt2": lambda: language_model("GPT-2 124M, batch 1", "gpt2", 1, 256, decodings, args),
        "gpt2-32": lambda: language_model("GPT-2 124M, batch 32", "gpt2", 32, 256, decodings, args),
        "llama": lambda: language_model("Llama-2-7B's shape, batch 1", "llama-2-7b", 1, 200, decodings, args),
        "llama-int8": lambda: language_model(INT8, "llama-2-7b", 1, 200, decodings, args, quantize="int8"),
        "llama-fp8": lambda: language_model(FP8, "llama-2-7b", 1, 200, decodings, args, quantize="fp8"),
        "beam": lambda: beams(decodings, args),
    }
    peers: dict[str, Callable[[], None]] = {
        "gpt2": lambda: gpt2_peer("GPT-2 124M, batch 1", 1, 64),
        "gpt2-32": lambda: gpt2_peer("GPT-2 124M, batch 32", 32, 64),
        "llama": bare_products,
        "beam": bart_peer,
    }
    for name in only:
        for group in [cases] if args.no_peers else [cases, peers]:
            try:
                if name in group:
                    group[name]()
            except Exception:
                print(f"{name}: FAILED")
                traceback.print_exc(limit=-6)
            torch.cuda.empty_cache()
    print("\n| case | who | rate |\n|---|---|---|")
    for case, who, rate, unit in ROWS:
        print(f"| {case} | {who} | {rate:,.0f} {unit} |")


if __name__ == "__main__":
    main()
