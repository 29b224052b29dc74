"""Scores and unpicked samples of the shipped models, from their saved folders.

Usage: python -m benchmarks.pretrained.evaluate NAME DATA [--model FOLDER], where NAME is en-zh, stories, mlm-en or
ner-en, and DATA holds the files of ``prepare``. It prints what ``build`` writes as "evaluation" into results.json, for
the shipped weights or those of FOLDER, in float32; on one CPU core that takes two to four minutes.
"""

import argparse
import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sacrebleu
import torch

import glassformer
from benchmarks.pretrained.prepare import MARK, sentence_key
from glassformer import pretrained
from glassformer.hub import Loaded
from glassformer.recipes.files import recipe_of
from glassformer.training.evaluation import evaluate_model, evaluation_recipe

Translator = Callable[[Sequence[str], str, str], list[str]]  # texts, source language, target language
Results = dict[str, Any]
COMMON = 50  # sentences; a trigram of fewer is never too frequent to compare by
RUN = 40  # tokens; a longer run from the training text counts as learned by heart

ORDINARY = {
    "en": (
        "I love you.",
        "Where is the station?",
        "Tom is a student.",
        "The weather is nice today.",
        "My sister works in a hospital.",
        "What time does the train leave?",
        "I would like a cup of coffee, please.",
        "She is reading a book in the garden.",
        "We are going to the cinema tonight.",
        "How much does this bag cost?",
        "He forgot his umbrella at school.",
        "Please open the window.",
        "They live in a small house near the river.",
        "I don't understand this question.",
        "My father can't swim.",
        "Do you want to eat dinner with us?",
        "It will rain tomorrow.",
        "The children are playing in the park.",
        "I have been waiting for an hour.",
        "Can you help me find my keys?",
        "This is the best cake I have ever eaten.",
        "Tom and Mary are good friends.",
        "I usually get up at six in the morning.",
        "The dog is sleeping under the table.",
    ),
    "zh": (
        "我爱你。",
        "车站在哪里？",
        "汤姆是学生。",
        "今天天气很好。",
        "我妹妹在医院工作。",
        "火车几点出发？",
        "请给我一杯咖啡。",
        "她在花园里看书。",
        "我们今晚去看电影。",
        "这个包多少钱？",
        "他把雨伞忘在学校了。",
        "请打开窗户。",
        "他们住在河边的一座小房子里。",
        "我不明白这个问题。",
        "我爸爸不会游泳。",
        "你想和我们一起吃晚饭吗？",
        "明天会下雨。",
        "孩子们在公园里玩。",
        "我已经等了一个小时了。",
        "你能帮我找钥匙吗？",
        "这是我吃过的最好吃的蛋糕。",
        "汤姆和玛丽是好朋友。",
        "我通常早上六点起床。",
        "狗在桌子下面睡觉。",
    ),
}
OPENINGS = (
    "Once upon a time",
    "One day, a little girl named Lily",
    "Once there was a brave dog",
    "Tom and his mom went to the park.",
    "The sun was shining and",
    "There was a small red car",
    "Sara had a big box.",
    "One night, a cat",
    "Ben wanted to build a house",
    "In a forest, there lived a bear",
)


# Translation


def read_pairs(data: Path, part: str) -> list[tuple[str, str]]:
    """English and Chinese sentences of a part."""
    sides = ((data / f"{part}.{code}").read_text(encoding="utf-8").splitlines() for code in ("en", "zh"))
    return list(zip(*sides, strict=True))


def score_texts(written: Sequence[str], references: Sequence[str], target: str) -> dict[str, float]:
    """chrF and BLEU by sacrebleu; for English with its usual tokenisation too."""
    kinds = ("zh", "13a") if target == "en" else ("zh",)
    scores = {"chrf": sacrebleu.corpus_chrf(list(written), [list(references)]).score}
    for kind in kinds:
        scores[f"bleu tok:{kind}"] = sacrebleu.corpus_bleu(list(written), [list(references)], tokenize=kind).score
    return {name: round(score, 2) for name, score in scores.items()}


def evaluate_translation(translate: Translator, data: Path) -> Results:
    """Both directions on the test pairs, beside two baselines; and ordinary sentences that are not in training."""
    train, test = read_pairs(data, "train"), read_pairs(data, "test")
    known = [{sentence_key(pair[side]) for pair in train} for side in (0, 1)]
    results: Results = {}
    for side, (source, target) in enumerate((("en", "zh"), ("zh", "en"))):
        texts, references = ([pair[number] for pair in test] for number in (side, 1 - side))
        written = translate(texts, source, target)
        nearest = nearest_translations(texts, [(pair[side], pair[1 - side]) for pair in train])
        ordinary = ORDINARY[source]
        results[f"{source}-{target}"] = {
            "model": score_texts(written, references, target),
            "copy of the source": score_texts(texts, references, target),
            "translation of the nearest training sentence": score_texts(nearest, references, target),
            "samples": [list(row) for row in zip(texts, written, references, strict=True)][:40],
            "ordinary sentences": [
                {"source": text, "written": output, "in training": sentence_key(text) in known[side]}
                for text, output in zip(ordinary, translate(ordinary, source, target), strict=True)
            ],
        }
    return results


def nearest_translations(texts: Sequence[str], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """For each text the translation of the sentence that shares most of its rare character trigrams, by cosine."""

    def grams(text: str) -> Counter[str]:
        padded = f" {text.lower()} "
        return Counter(padded[start : start + n] for n in (2, 3) for start in range(len(padded) - n + 1))

    vectors = [grams(source) for source, _ in pairs]
    frequency = Counter(gram for vector in vectors for gram in vector)
    weight = {gram: math.log(len(pairs) / count) for gram, count in frequency.items()}
    norms = [math.sqrt(sum((weight[g] * n) ** 2 for g, n in vector.items())) or 1.0 for vector in vectors]
    postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, vector in enumerate(vectors):
        for gram, count in vector.items():
            if frequency[gram] <= max(COMMON, len(pairs) // 20):  # the most frequent ones say little, and cost most
                postings[gram].append((number, count))
    results = []
    for text in texts:
        products: dict[int, float] = defaultdict(float)
        for gram, count in grams(text).items():
            for number, other in postings.get(gram, ()):
                products[number] += weight[gram] ** 2 * count * other
        best = max(products, key=lambda number: (products[number] / norms[number], -number), default=0)
        results.append(pairs[best][1])
    return results


def translator_of(loaded: Loaded, beams: int = 4) -> Translator:
    """Beam search with a saved model."""

    def translate(texts: Sequence[str], source: str, target: str) -> list[str]:
        options: dict[str, Any] = {"beam_size": beams, "max_new_tokens": 48, "batch_size": 128}
        outputs = glassformer.translate(loaded, list(texts), source=source, target=target, **options)
        return [texts[0].text for texts in outputs]

    return translate


# Stories


def read_stories(path: Path) -> list[str]:
    return [story.strip() for story in path.read_text(encoding="utf-8").split(MARK) if story.strip()]


@torch.inference_mode()
def story_perplexity(loaded: Loaded, stories: Sequence[str]) -> dict[str, float]:
    """Perplexity per token and per byte, and bits per byte, with the end token; a story is read from its beginning."""
    tokenizer, model = loaded.tokenizer, loaded.model
    device, longest = next(model.parameters()).device, loaded.config.max_length or 512
    nats = tokens = size = cut = 0
    for story in stories:
        ids = torch.tensor([tokenizer.bos, *tokenizer.encode(story, special=False), tokenizer.eos], device=device)
        cut += len(ids) > longest
        for begin in range(0, len(ids) - 1, longest):  # the rest of a long story is read anew
            window = ids[begin : begin + longest + 1]
            logits = model(window[None, :-1]).float()
            nats += float(torch.nn.functional.cross_entropy(logits[0], window[1:], reduction="sum"))
        tokens, size = tokens + len(ids) - 1, size + len(story.encode())
    return {
        "perplexity per token": math.exp(nats / tokens),
        "perplexity per byte": math.exp(nats / size),
        "bits per byte": nats / size / math.log(2),
        "stories": len(stories),
        "tokens": tokens,
        "bytes": size,
        "stories longer than the context": cut,
    }


def longest_runs(samples: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], unit: int = 8) -> list[int]:
    """The length of the longest run of tokens of each sample that occurs in a text; 0 for one below ``unit``."""
    positions: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    wanted = {tuple(s[i : i + unit]) for s in samples for i in range(len(s) - unit + 1)}
    for number, text in enumerate(texts):
        for start in range(len(text) - unit + 1):
            key = tuple(text[start : start + unit])
            if key in wanted:
                positions[key].append((number, start))
    longest = []
    for sample in samples:
        best = 0
        for start in range(len(sample) - unit + 1):
            for number, place in positions.get(tuple(sample[start : start + unit]), ()):
                text, length = texts[number], unit
                while sample[start + length : start + length + 1] == text[place + length : place + length + 1] != []:
                    length += 1
                best = max(best, length)
        longest.append(best)
    return longest


def evaluate_stories(loaded: Loaded, data: Path) -> Results:
    """Perplexity on the held-out stories, and samples with their longest run from the training text."""
    options: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 300, "batch_size": len(OPENINGS)}
    outputs = glassformer.generate(loaded, list(OPENINGS), seed=0, **options)
    samples = [opening + texts[0].text for opening, texts in zip(OPENINGS, outputs, strict=True)]
    encode = loaded.tokenizer.encode_batch
    runs = longest_runs(encode(samples, special=False), encode(read_stories(data / "train.txt"), special=False))
    return {
        "test": story_perplexity(loaded, read_stories(data / "test.txt")),
        "valid": story_perplexity(loaded, read_stories(data / "valid.txt")),
        f"samples with a run of {RUN} tokens from training": sum(run >= RUN for run in runs),
        "samples": [{"text": text, "longest run": run} for text, run in zip(samples, runs, strict=True)],
    }


# Encoders

BLANKS = (
    "Once upon a time, there was a little [MASK] named Lily.",
    "Tom was very [MASK] because he lost his toy.",
    "The dog ran after the [MASK].",
    "Mom said, \"It is time to go to [MASK].\"",
    "They played in the [MASK] all day.",
    "She was born in [MASK] , Germany .",
    "He opened the [MASK] and looked inside.",
    "The bird could [MASK] high in the sky.",
)  # fmt: skip
NEWS = (
    "Angela Merkel met Barack Obama in Berlin.",
    "Apple opened a new office in Munich last year.",
    "The University of Cambridge is older than the University of London.",
    "Manchester United played against Real Madrid in Spain.",
    "Marie Curie was born in Warsaw and worked in Paris.",
    "The river Thames flows through London.",
    "Nelson Mandela was president of South Africa.",
    "She joined the Labour Party in 1995.",
)


def evaluate_on(loaded: Loaded, format_: str, files: str) -> dict[str, float]:
    """The metrics of the job that a saved model was trained for."""
    metrics, _ = evaluate_model(loaded, recipe_of("evaluation", evaluation_recipe(loaded, format_, files)))
    return metrics


def evaluate_masked(loaded: Loaded, data: Path) -> Results:
    """Loss and accuracy of hidden words and of pairs on held-out stories, and words for a few blanks."""
    metrics = {part: evaluate_on(loaded, "text", str(data / f"{part}.txt")) for part in ("valid", "test")}
    words = glassformer.load(
        loaded.folder, head="lm", dtype=torch.float32, device=next(loaded.model.parameters()).device
    )
    page = evaluation_recipe(words, "text", str(data / "test.txt"), "masked")
    metrics["test, single texts"], _ = evaluate_model(words, recipe_of("evaluation", page))
    filled = glassformer.fill(loaded, list(BLANKS), top=5)
    samples = [
        {"text": text, "words": [[guess.token, round(guess.probability, 3)] for guess in result.blanks[0].guesses]}
        for text, result in zip(BLANKS, filled, strict=True)
    ]
    return {**metrics, "samples": samples}


def evaluate_tagged(loaded: Loaded, data: Path) -> Results:
    """Entity F1 on the held-out sentences, and a few sentences with their entities."""
    metrics = {part: evaluate_on(loaded, "conll", str(data / f"{part}.conll")) for part in ("valid", "test")}
    blocks = (data / "test.conll").read_text(encoding="utf-8").split("\n\n")
    lines = random.Random(0).sample([block for block in blocks if block.strip()], 10)
    texts = [*NEWS, *(" ".join(line.split("\t")[0] for line in block.splitlines()) for block in lines)]
    tagged = glassformer.tag(loaded, texts)
    return {
        **metrics,
        "samples": [
            {"text": text, "entities": [[entity.kind, entity.text] for entity in result.entities]}
            for text, result in zip(texts, tagged, strict=True)
        ],
    }


EVALUATE: dict[str, Callable[[Loaded, Path], Results]] = {
    "en-zh": lambda loaded, data: evaluate_translation(translator_of(loaded), data),
    "stories": evaluate_stories,
    "mlm-en": evaluate_masked,
    "ner-en": evaluate_tagged,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=EVALUATE)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", metavar="FOLDER", type=Path)
    options = parser.parse_args()
    loaded = glassformer.load(options.model or pretrained.path(options.name), dtype=torch.float32)
    print(json.dumps(EVALUATE[options.name](loaded, options.data), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
