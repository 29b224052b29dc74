"""Generation beside Hugging Face's ``generate``: time per step and memory, with the bare matrix products as the limit.

Usage: python -m benchmarks.generate [--rounds N] [--tokens N] [--threads N] [--only greedy|beam] [--profile]. Two cases
on the CPU in float32, random weights, the same in both libraries: greedy search of one text with a decoder in GPT-2's
shape (124M parameters), and beam search of 16 texts with 4 beams each with an encoder-decoder of 6 + 6 layers and width
512. Glassformer runs with float32 weights, which is the measure of the ratios, and with int8 weights. "Bare products"
are the matrix products of one step and nothing else, by the kernels Glassformer uses and by ``F.linear``. All take
turns in changing order, so that a busy machine slows all of them; reported are medians over the rounds, and ratios
within them. Times are CPU times of the process, which others on the machine hardly change: of all threads together, so
by default there is one. Memory is the peak of a process that loads the model and generates, measured in a process of
its own.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.hardware import describe
from glassformer.nn.kernels import operators

BATCH, BEAMS, SOURCE, PROMPT = 16, 4, 24, 8
CASES = {
    "greedy": "greedy, batch 1, 124M-parameter decoder",
    "beam": f"beam {BEAMS}, batch {BATCH}, 6 + 6 layers of width 512",
}


def write_folder(case: str, folder: Path) -> None:
    """A random model, as Hugging Face saves it."""
    import transformers

    torch.manual_seed(0)
    if case == "greedy":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    else:
        sizes = {"encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
        heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
        config = transformers.BartConfig(vocab_size=37000, d_model=512, **sizes, **heads)
        model = transformers.BartForConditionalGeneration(config)
    model.save_pretrained(folder)


def inputs(case: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    rows, width = (1, PROMPT) if case == "greedy" else (BATCH, SOURCE)
    return torch.randint(5, 30_000, (rows, width), generator=generator)


def theirs(case: str, folder: Path, tokens: int) -> Callable[[], list[list[int]]]:
    import transformers

    auto = transformers.AutoModelForCausalLM if case == "greedy" else transformers.AutoModelForSeq2SeqLM
    model = auto.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None  # so that no text ends before its time
    model.generation_config.forced_eos_token_id = None
    model.generation_config.pad_token_id = 1
    ids = inputs(case)
    new = ids.shape[1] if case == "greedy" else 1
    how: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False, "num_beams": 1 if case == "greedy" else BEAMS}

    def run() -> list[list[int]]:
        found: Tensor = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
        return found[:, new:].tolist()

    return run


def ours(case: str, folder: Path, tokens: int, **options: Any) -> Callable[[], list[list[int]]]:
    from glassformer import load
    from glassformer.generation.api import generate
    from glassformer.generation.settings import GenerationSettings

    model = load(folder, **options).model
    settings = GenerationSettings(max_new_tokens=tokens, beam_size=1 if case == "greedy" else BEAMS)
    ids = inputs(case)
    return lambda: [texts[0].ids for texts in generate(model, ids, settings)]


def bare(
    case: str, folder: Path, tokens: int, product: Callable[[Tensor, Tensor], Tensor] = operators.product
) -> Callable[[], None]:
    """The products of all steps: every matrix of the decoder and the head, but for the keys and values of a memory.

    The first step reads the prompt, and its head one token of it.
    """
    from glassformer import load

    model = load(folder).model
    names = {name: weight for name, weight in model.named_parameters() if name.startswith("decoder.blocks")}
    skipped = ("cross.k.weight", "cross.v.weight")
    weights = [w for name, w in names.items() if w.ndim == 2 and not name.endswith(skipped)]
    head = model.embed.token.weight
    first, rows = (PROMPT, 1) if case == "greedy" else (BATCH, BATCH * BEAMS)

    def step(rows: int) -> None:
        for weight in weights:
            product(vectors[weight.shape[1]][:rows], weight)

    vectors = {width: torch.randn(max(first, rows), width) for width in {w.shape[1] for w in (*weights, head)}}

    def run() -> None:
        with torch.inference_mode():
            for number in range(tokens):
                step(rows if number else first)
                product(vectors[head.shape[1]][:rows], head)

    return run


WHO: dict[str, Callable[[str, Path, int], Callable[[], Any]]] = {
    "glassformer": ours,
    "glassformer, int8": partial(ours, quantize="int8"),
    "transformers": theirs,
    "bare products": bare,
    "bare products, F.linear": partial(bare, product=F.linear),
}


def measure(case: str, folder: Path, tokens: int, rounds: int) -> None:
    runs = {who: make(case, folder, tokens) for who, make in WHO.items()}
    texts = {who: run() for who, run in runs.items()}  # warms up, too
    same = texts["glassformer"] == texts["transformers"]
    times: dict[str, list[float]] = {who: [] for who in runs}
    order = list(runs)
    for _ in range(rounds):
        random.shuffle(order)
        for who in order:
            start = time.process_time()
            runs[who]()
            times[who].append((time.process_time() - start) / tokens * 1000)
    print(f"\n{CASES[case]}: {tokens} tokens, texts {'equal' if same else 'DIFFERENT'}")
    mine = times["glassformer"]
    for who, took in times.items():
        ratio = statistics.median(a / b for a, b in zip(took, mine, strict=True))
        middle, least = statistics.median(took), min(took)
        print(f"  {who:24} {middle:6.1f} ms a step (quickest {least:6.1f})   {ratio:.2f} × glassformer's time")


def measure_memory(case: str, folder: Path, tokens: int) -> None:
    for who in ("glassformer", "transformers"):
        command = [sys.executable, "-m", "benchmarks.generate", "--child", who, "--only", case]
        command += ["--folder", str(folder), "--tokens", str(tokens)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        print(f"  {who:14} peak memory {found['peak']:.0f} MB, of which {found['added']:.0f} MB by generating")


def child(who: str, case: str, folder: Path, tokens: int) -> None:
    run = WHO[who](case, folder, tokens)
    loading, before = memory("VmHWM"), memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    run()
    generating = memory("VmHWM")
    print(json.dumps({"peak": max(loading, generating), "added": generating - before}))


def memory(what: str) -> float:
    """Megabytes that this process holds (VmRSS) or has held at most (VmHWM); Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status says nothing of {what}.")


def show_profile(case: str, folder: Path, tokens: int) -> None:
    """Where the time goes, by operator."""
    from torch.profiler import ProfilerActivity, profile

    run = ours(case, folder, tokens)
    run()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--profile", action="store_true", help="show where our time goes instead")
    parser.add_argument("--child", choices=WHO, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.child:
        child(options.child, options.only, options.folder, options.tokens)
        return
    import transformers

    transformers.logging.set_verbosity_error()
    print(f"{describe()}, transformers {transformers.__version__}")
    for case in [options.only] if options.only else CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_folder(case, folder)
            if options.profile:
                show_profile(case, folder, options.tokens)
                continue
            measure(case, folder, options.tokens, options.rounds)
            measure_memory(case, folder, options.tokens)


if __name__ == "__main__":
    main()
