"""Training data of the shipped models, from the files of their data sets.

Usage: python -m benchmarks.pretrained.prepare NAME SOURCE OUT, where NAME is en-zh, stories, mlm-en or ner-en, SOURCE
is the folder that holds the data sets (tatoeba-en-zh, tinystories, wikiann-en, squad), and OUT is a folder to write.
The same files give the same output, to the byte; ``facts.json`` in OUT counts what was kept and left out.

* ``en-zh`` (Tatoeba): train, valid and test, one sentence per line, as ``train.en`` and ``train.zh``. Rows that share
  a sentence on either side, apart from case, spaces, punctuation and the width of characters, are in one part.
* ``stories`` (TinyStories): ``train.txt``, ``valid.txt``, ``test.txt`` with <|endoftext|> after each story. Lower-case
  stories of the larger file get capital letters back (``truecase``); no story of valid or test shares a run of 100
  characters with a story of train.
* ``mlm-en``: the same stories, WikiANN's training sentences and SQuAD's paragraphs, a blank line between documents.
* ``ner-en`` (WikiANN): ``train.conll``, and the dev sentences as ``valid.conll`` and ``test.conll``.
"""

import argparse
import json
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pretrained.truecase import Truecaser, word_accuracy

SEED = 20_240_501
TEST_PAIRS, VALID_PAIRS = 1_000, 500
TEST_STORIES, VALID_STORIES = 200, 100
VALID_TAGGED = 2_000
MARK = "<|endoftext|>"
PROBE = 100  # characters; stories that share such a run are the same story
Facts = dict[str, Any]


# English and Chinese sentences


def sentence_key(text: str) -> str:
    """A sentence without case, spaces, punctuation and the width of its characters."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in folded if character.isalnum()) or folded.strip()


def components(pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Numbers of pairs, grouped so that pairs of different groups share no sentence on either side."""
    parent: dict[tuple[int, str], tuple[int, str]] = {}

    def root(node: tuple[int, str]) -> tuple[int, str]:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    keys = [[(side, sentence_key(text)) for side, text in enumerate(pair)] for pair in pairs]
    for source, target in keys:
        parent[root(source)] = root(target)
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, (source, _) in enumerate(keys):
        groups[root(source)].append(number)
    return list(groups.values())


def split_pairs(
    pairs: Sequence[tuple[str, str]], test: int = TEST_PAIRS, valid: int = VALID_PAIRS, seed: int = SEED
) -> dict[str, list[tuple[str, str]]]:
    """Pairs as train, valid and test, with no sentence in two parts; whole components are drawn at random."""
    groups = components(pairs)
    random.Random(seed).shuffle(groups)
    wanted = {"test": test, "valid": valid}
    parts: dict[str, list[int]] = {"test": [], "valid": [], "train": []}
    for group in groups:
        part = next((name for name, size in wanted.items() if len(parts[name]) + len(group) <= size), "train")
        parts[part] += group
    return {name: [pairs[number] for number in sorted(numbers)] for name, numbers in parts.items()}


def prepare_pairs(source: Path, out: Path) -> Facts:
    """en-zh."""
    lines = (source / "tatoeba-en-zh" / "cmn.txt").read_text(encoding="utf-8").splitlines()
    rows = [tuple(line.split("\t")[:2]) for line in lines if line.count("\t") >= 1]
    pairs = list(dict.fromkeys((" ".join(en.split()), " ".join(zh.split())) for en, zh in rows))
    parts = split_pairs(pairs)
    # The split keeps every sentence on one side; this states it once more, from the result.
    train = [{sentence_key(pair[side]) for pair in parts["train"]} for side in (0, 1)]
    for name in ("valid", "test"):
        for side in (0, 1):
            assert not any(sentence_key(pair[side]) in train[side] for pair in parts[name])
    for name, part in parts.items():
        for side, language in enumerate(("en", "zh")):
            write_lines(out / f"{name}.{language}", (pair[side] for pair in part))
    return {"rows": len(lines), "pairs": len(pairs)} | {name: len(part) for name, part in parts.items()}


# Stories

_MOJIBAKE = (
    ("â€œ", '"'),
    ("â€\x9d", '"'),
    ("â€™", "'"),
    ("â€˜", "'"),
    ("â€¦", "..."),
    ("â€“", "-"),
    ("â€”", "-"),
    ("â€", '"'),
)
_PLAIN = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "—": "-", "…": "...", "«": '"', "»": '"'})
_OPENING = re.compile(r"(?:once|one day|one morning|one night|one sunny|there (?:was|were|once))\b")
SHORTEST = 250  # characters of a story without a usual opening


def clean_story(text: str) -> str:
    """A story with plain quotation marks, one line per paragraph, single spaces, and no broken encoding."""
    for broken, character in _MOJIBAKE:
        text = text.replace(broken, character)
    lines = (" ".join(line.split()) for line in text.translate(_PLAIN).splitlines())
    return "\n".join(line for line in lines if line)


def split_stories(text: str) -> list[str]:
    """Stories of a text that ends paragraphs by a blank line and stories by a single line break.

    Some stories have single line breaks inside: a part that neither has a usual opening nor is long enough, or that
    begins with a quotation mark, belongs to the story before it.
    """
    stories: list[str] = []
    for part in re.split(r"(?<!\n)\n(?!\n)", text):
        plain = part.strip()
        is_start = _OPENING.match(plain) or (len(plain) >= SHORTEST and plain[0] not in "\"'â“")
        if stories and not is_start:
            stories[-1] += "\n" + plain
        elif plain:
            stories.append(plain)
    return stories


def probe_text(story: str) -> str:
    """A story in lower case with single spaces, for comparison."""
    return " ".join(clean_story(story).lower().split())


class Probes:
    """Finds runs of 100 characters of texts in other texts, wherever they begin there."""

    def __init__(self, stories: Iterable[str]) -> None:
        self._starts: set[int] = set()
        for story in stories:
            text = probe_text(story)
            self._starts.update(hash(text[start : start + PROBE]) for start in range(max(1, len(text) - PROBE + 1)))

    def share(self, story: str) -> float:
        """The share of the probes of a story, one after the other, that occur in the texts."""
        text = probe_text(story)
        probes = [text[start : start + PROBE] for start in range(0, max(1, len(text) - PROBE + 1), PROBE)]
        return sum(hash(probe) in self._starts for probe in probes) / len(probes)


def read_stories(source: Path) -> tuple[dict[str, list[str]], Facts]:
    """Stories of both files as train, valid and test."""
    folder = source / "tinystories"
    cased_text = (folder / "tinystories_2M_cased.txt").read_text(encoding="utf-8")
    cased = [clean_story(story) for story in cased_text.split(MARK)]
    cased = list(dict.fromkeys(story for story in cased[:-1] if story))  # the last one is cut off by the file's end
    lower = split_stories((folder / "tinystories_4M.txt").read_text(encoding="utf-8"))
    parts, facts = assemble_stories(cased, lower)
    return parts, facts


def assemble_stories(
    cased: Sequence[str], lower: Sequence[str], test: int = TEST_STORIES, valid: int = VALID_STORIES, seed: int = SEED
) -> tuple[dict[str, list[str]], Facts]:
    """Held-out stories, drawn from the cased ones, and all others, of which lower-case ones get capital letters."""
    order = list(range(len(cased)))
    random.Random(seed).shuffle(order)
    held = sorted(order[: test + valid])
    kept = [cased[number] for number in sorted(order[test + valid :])]
    # Lower-case stories that neither repeat a cased one nor share a run with it.
    known = Probes(cased)
    new = [story for story in map(clean_story, lower) if story and known.share(story) == 0.0]
    truecaser = Truecaser(kept)
    accuracy = word_accuracy(truecaser, (cased[number] for number in held))
    train = kept + list(dict.fromkeys(truecaser.restore(story.lower()) for story in new))
    random.Random(seed + 1).shuffle(train)
    # Held-out stories that share a run of characters with a story that is trained on are left out of both.
    trained = Probes(train)
    clean = [number for number in held if not trained.share(cased[number])]
    chosen = {number: position for position, number in enumerate(order)}
    parts = {
        "train": train,
        "valid": [cased[number] for number in clean if chosen[number] >= test],
        "test": [cased[number] for number in clean if chosen[number] < test],
    }
    facts = {
        "cased stories": len(cased),
        "lower-case stories": len(lower),
        "lower-case stories that are new": len(new),
        "held-back stories left out": len(held) - len(clean),
        "words with the right capital after truecasing": round(accuracy, 5),
    }
    return parts, facts | {name: len(part) for name, part in parts.items()} | {"bytes": len("\n".join(train).encode())}


def prepare_stories(source: Path, out: Path) -> Facts:
    """stories."""
    parts, facts = read_stories(source)
    for name, stories in parts.items():
        write_lines(out / f"{name}.txt", (f"{story}\n{MARK}" for story in stories))
    return facts


# Masked words


def prepare_masked(source: Path, out: Path) -> Facts:
    """mlm-en: stories, WikiANN's training sentences and SQuAD's paragraphs; valid and test are stories alone."""
    parts, facts = read_stories(source)
    squad = json.loads((source / "squad" / "train.json").read_text(encoding="utf-8"))
    paragraphs = [page["context"] for article in squad["data"] for page in article["paragraphs"]]
    tagged = read_tagged(source / "wikiann-en" / "train")
    sentences = [" ".join(word for word, _ in sentence) for sentence in tagged]
    further = list(dict.fromkeys(" ".join(text.split()) for text in (*paragraphs, *sentences)))
    parts["train"] = parts["train"] + further
    random.Random(SEED).shuffle(parts["train"])
    for name, documents in parts.items():
        write_lines(out / f"{name}.txt", (f"{document}\n" for document in documents))
    return facts | {"paragraphs": len(paragraphs), "sentences": len(sentences), "train": len(parts["train"])}


# Named entities


def read_tagged(path: Path) -> list[list[tuple[str, str]]]:
    """Sentences of a WikiANN file as words with tags, without the language before each word."""
    sentences: list[list[tuple[str, str]]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        word, _, tag = line.partition("\t")
        if not line.strip():
            sentences.append([])
        elif word.partition(":")[2].strip():
            sentences[-1].append((word.partition(":")[2], tag.strip()))
    return [sentence for sentence in sentences if sentence]


def prepare_tagged(source: Path, out: Path) -> Facts:
    """ner-en."""
    train, dev = (read_tagged(source / "wikiann-en" / name) for name in ("train", "dev"))
    order = list(range(len(dev)))
    random.Random(SEED).shuffle(order)
    valid = [dev[number] for number in sorted(order[:VALID_TAGGED])]
    test = [dev[number] for number in sorted(order[VALID_TAGGED:])]
    seen = {tuple(word for word, _ in sentence) for sentence in train}
    for name, part in (("train", train), ("valid", valid), ("test", test)):
        write_lines(out / f"{name}.conll", ("".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in part))
    return {
        "train": len(train),
        "valid": len(valid),
        "test": len(test),
        "test sentences that are in train": sum(tuple(word for word, _ in sentence) in seen for sentence in test),
        "tags": dict(sorted(Counter(tag for sentence in train for _, tag in sentence).items())),
    }


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


PREPARE: dict[str, Callable[[Path, Path], Facts]] = {
    "en-zh": prepare_pairs,
    "stories": prepare_stories,
    "mlm-en": prepare_masked,
    "ner-en": prepare_tagged,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PREPARE)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {"name": options.name, "seed": SEED} | PREPARE[options.name](options.source, options.out)
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    (options.out / "facts.json").write_text(f"{text}\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
