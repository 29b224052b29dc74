"""Writes the model cards of the shipped models from docs/results: python -m benchmarks.pretrained.cards."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glassformer import pretrained
from glassformer.recipes.files import read_recipe

RESULTS = Path(__file__).parents[2] / "docs" / "results"
Results = dict[str, Any]
COMMANDS = {
    "en-zh": "data.train.source=train.en data.train.target=train.zh \\\n"
    "    data.valid.source=valid.en data.valid.target=valid.zh",
    "stories": "data.train=train.txt data.valid=valid.txt",
    "mlm-en": "data.train=train.txt data.valid=valid.txt",
    "ner-en": "model.start=mlm-en data.train=train.conll data.valid=valid.conll",
}
SNIPPETS = {  # how transformers uses a model that needs more than its classes
    "en-zh": """; the language of the text is
written before it, and that of the translation is the first token:

```python
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from glassformer import pretrained

folder = pretrained.path("en-zh")  # or a copy of it
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
inputs = tokenizer("__en__Where is the station?", return_tensors="pt")
ids = model.generate(**inputs, forced_bos_token_id=tokenizer.convert_tokens_to_ids("__zh__"))
print(tokenizer.decode(ids[0], skip_special_tokens=True))  # 车站在哪里？
```""",
}
CHRF, BLEU = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no", "nrefs:1|case:mixed|eff:no|tok:{}|smooth:exp"


def results_of(name: str) -> Results:
    """The content of a run's results.json."""
    page: Results = json.loads((RESULTS / name / "results.json").read_text(encoding="utf-8"))
    return page


def table(*rows: Sequence[object]) -> str:
    """A Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def card(name: str) -> str:
    """The model card: front matter, description, scores, training, limits, samples."""
    results, model = results_of(name), pretrained.MODELS[name]
    front, text, scores, limits, samples = WRITERS[name](results)
    size, recipe = results["bytes"]["model.safetensors"] / 1e6, read_recipe(name)
    start = "From mlm-en" if name == "ner-en" else "From scratch"
    training, torch_version = results["training seconds"], results["torch"].partition("+")[0]
    return f"""---
{front.strip()}
library_name: transformers
---

# {name}

{text.strip()}

```console
{model.example}
```

{results["parameters"]:,} parameters in bfloat16, {size:.1f} MB. It ships with Glassformer under this name, which
computes it in float32, and loads with transformers' `AutoTokenizer` and `AutoModel` classes{SNIPPETS.get(name, ".")}

## Scores

{scores.strip()}

SOURCE holds the data sets, OUT the files that the first command writes; the second takes minutes on one CPU core, and
gives the samples too:

```console
python -m benchmarks.pretrained.prepare {name} SOURCE OUT
python -m benchmarks.pretrained.evaluate {name} OUT
```

## Training

{start}, by the recipe `{name}`: {results["steps"]:,} steps in {training:.0f} seconds on one {results["hardware"]}
(torch {torch_version}, seed {recipe.run.seed}). Log, loss curve and the full recipe: `docs/results/{name}/`. In OUT:

```console
glassformer train {name} {COMMANDS[name]}
```

## What it is bad at

{limits.strip()}

## Samples

{samples.strip()}
"""


Parts = tuple[str, str, str, str, str]  # front matter, description, scores, limits, samples


def translation(results: Results) -> Parts:
    """en-zh."""
    ours, peer = results["evaluation"], results_of("en-zh-torch")["evaluation"]
    directions = {"en-zh": "English to Chinese", "zh-en": "Chinese to English"}

    def row(label: str, direction: str, scores: dict[str, float]) -> tuple[object, ...]:
        return directions[direction], label, scores["chrf"], scores["bleu tok:zh"], scores.get("bleu tok:13a", "")

    rows: list[Sequence[object]] = [("direction", "", "chrF", "BLEU tok:zh", "BLEU tok:13a")]
    for direction in directions:
        rows += [
            row("**this model**", direction, ours[direction]["model"]),
            row("`torch.nn.Transformer`, same size and recipe", direction, peer[direction]["model"]),
            row(
                "translation of the nearest training sentence",
                direction,
                ours[direction]["translation of the nearest training sentence"],
            ),
            row("copy of the source", direction, ours[direction]["copy of the source"]),
        ]
    first = [(s["source"], s["written"], "yes" if s["in training"] else "no") for s in _ordinary(ours, "en-zh")[:4]]
    unpicked = [("source", "this model", "reference")]
    unpicked += [tuple(sample) for direction in directions for sample in ours[direction]["samples"][::8]]
    return (
        "language: [en, zh]\nlicense: cc-by-2.0\npipeline_tag: translation\ntags: [m2m_100, translation, glassformer]",
        """
Translates short everyday sentences from English to Chinese and from Chinese to English: an encoder-decoder with
language tokens, as M2M-100, three and three layers of width 256. `glassformer translate` infers the direction from the
script of each text; `--from` and `--to` set it.

Data: Tatoeba's English–Chinese sentence pairs (tatoeba.org, CC BY 2.0 FR, by its contributors). Pairs that share a
sentence on either side are in one part, so no test sentence is in the training data: 27,555 pairs.
""",
        f"""
1,000 held-out pairs, beam size 4, one reference each. sacreBLEU signatures:
chrF `{CHRF}`, BLEU
`{BLEU.format("zh")}` and `{BLEU.format("13a")}`.

{table(*rows)}

The `torch.nn.Transformer` is trained, on a GPU, and evaluated by
`python -m benchmarks.pretrained.build en-zh --data OUT --out PEER --peer`, all other rows by the commands below.
""",
        """
Long sentences, rare words and names: it leaves out parts of a sentence ("They live in a small house near the river."
becomes "They live near the river."), and replaces rare words by others (*cinema* by *website*, *wood* by *water*).
Its training data are short sentences, many of them about Tom, with little written language and nothing longer than a
sentence. Check every translation that matters.
""",
        f"""
{table(("source", "this model", "in the training data"), *first)}

Of the 40 shortest test sentences every eighth, in each direction, not selected; longer sentences with a reader's
judgement are in `docs/results.md`:

{table(*unpicked)}
""",
    )


def _ordinary(evaluation: Results, direction: str) -> list[Results]:
    sentences: list[Results] = evaluation[direction]["ordinary sentences"]
    return sentences


def stories(results: Results) -> Parts:
    """stories."""
    evaluation = results["evaluation"]
    test, samples = evaluation["test"], evaluation["samples"]
    longest = max(sample["longest run"] for sample in samples)
    copied = evaluation["samples with a run of 40 tokens from training"]
    texts = "\n\n".join("> " + sample["text"].replace("\n", "\n>\n> ") for sample in samples[:6])
    return (
        "language: [en]\nlicense: cdla-sharing-1.0\npipeline_tag: text-generation\ntags: [llama, stories, glassformer]",
        """
Writes short children's stories in English from an opening: a decoder of Llama's type (RMSNorm, rotary positions,
SwiGLU, grouped-query attention), five layers of width 256, 512 tokens.

Data: 4,759 stories (3.9 MB) of TinyStories (Eldan and Li, 2023; CDLA-Sharing 1.0). No story of the test set shares a
run of 100 characters with a training story. Some stories had lost their capitals, which were restored.
""",
        f"""
{
            table(
                (f"{test['stories']} held-out stories", "value"),
                ("perplexity per token", f"{test['perplexity per token']:.2f}"),
                ("perplexity per byte", f"{test['perplexity per byte']:.3f}"),
                ("bits per byte", f"{test['bits per byte']:.3f}"),
            )
        }

Of {len(samples)} samples, {copied} repeat 40 or more tokens of the training data; the longest repeated run has {
            longest
        } tokens.
""",
        """
Plot: a sentence follows from the one before it, a story often does not. Persons change names and objects change places;
some samples repeat themselves (below, the one about the sun). It answers no questions, follows no instructions, and
has read nothing but such stories.
""",
        f"""
The first six of ten openings (seed 0, temperature 0.8, top-p 0.95, at most 300 tokens), not selected:

{texts}
""",
    )


def masked(results: Results) -> Parts:
    """mlm-en."""
    evaluation = results["evaluation"]
    test, single = evaluation["test"], evaluation["test, single texts"]
    rows = [
        (s["text"].replace("[MASK]", "`[MASK]`"), ", ".join(f"{word} {p:.3f}" for word, p in s["words"]))
        for s in evaluation["samples"]
    ]
    return (
        "language: [en]\nlicense: [cdla-sharing-1.0, cc-by-sa-4.0]\npipeline_tag: fill-mask\n"
        "tags: [bert, fill-mask, glassformer]",
        """
Predicts masked tokens, and whether a second sentence follows a first: a small cased BERT, three layers of width 192,
128 tokens. With both heads it also serves to show attention between two sentences; `ner-en` starts from it.

Data: TinyStories (CDLA-Sharing 1.0), WikiANN's English training sentences (Wikipedia text, CC BY-SA) and paragraphs of
SQuAD v1.1 (Wikipedia text, CC BY-SA 4.0).
""",
        f"""
{
            table(
                ("held-out documents", "value"),
                ("masked tokens, accuracy (pairs of segments)", f"{100 * test['masked accuracy']:.1f} %"),
                ("sentence pairs, accuracy (chance: 50 %)", f"{100 * test['pair accuracy']:.1f} %"),
                ("loss of both", f"{test['loss']:.3f}"),
                ("masked tokens, accuracy (single texts)", f"{100 * single['accuracy']:.1f} %"),
                ("loss of single texts", f"{single['loss']:.3f}"),
            )
        }
""",
        """
Meaning: it follows grammar and the phrases of stories, and often misses what the rest of a sentence implies ("Tom was
very happy because he lost his toy"; no German town before "Germany"). Its decision whether one sentence follows another
is only somewhat better than chance. Its vectors are poor for search, for want of text.
""",
        table(("text", "five most probable, with probability"), *rows),
    )


def tagged(results: Results) -> Parts:
    """ner-en."""
    evaluation = results["evaluation"]
    test = evaluation["test"]
    rows = [
        (s["text"].replace("|", "\\|"), ", ".join(f"{text} ({kind})" for kind, text in s["entities"]) or "none")
        for s in evaluation["samples"][:10]
    ]
    kinds = {"persons": "PER", "places": "LOC", "organisations": "ORG"}
    return (
        "language: [en]\nlicense: cc-by-sa-4.0\npipeline_tag: token-classification\n"
        "tags: [bert, token-classification, glassformer]",
        """
Tags persons (PER), places (LOC) and organisations (ORG) in English: `mlm-en` with a tagging head, trained on.

Data: WikiANN English (Pan et al., 2017; Wikipedia text, CC BY-SA), 20,000 sentences; those of its dev part are the
validation and test sets. `mlm-en` was trained on TinyStories (CDLA-Sharing 1.0), the same training sentences and
paragraphs of SQuAD v1.1 (CC BY-SA 4.0).
""",
        f"""
By whole entities, as seqeval counts them, on the 8,000 held-out sentences,
262 of which are in the training part of the set too:

{
            table(
                ("", "value"),
                ("entity F1", f"**{test['entity f1']:.3f}**"),
                ("precision, recall", f"{test['entity precision']:.3f}, {test['entity recall']:.3f}"),
                *((f"F1 of {name}", f"{test[f'entity f1 of {kind}']:.3f}") for name, kind in kinds.items()),
                ("tag accuracy", f"{100 * test['tag accuracy']:.1f} %"),
            )
        }
""",
        """
Names that it has not seen, and running text: WikiANN's sentences are mostly titles and lists, so ordinary sentences are
harder for it (below, "Angela Merkel met Barack Obama", and *Apple* as a company). Organisations are its weakest kind.
The labels of WikiANN were made by a program, and some are wrong.
""",
        table(("text", "entities"), *rows)
        + "\n\nEight sentences written for this purpose, then test sentences; not selected.",
    )


WRITERS: dict[str, Callable[[Results], Parts]] = {
    "en-zh": translation,
    "stories": stories,
    "mlm-en": masked,
    "ner-en": tagged,
}


def main() -> None:
    for name in pretrained.names():
        (pretrained.path(name) / "README.md").write_text(card(name), encoding="utf-8")


if __name__ == "__main__":
    main()
