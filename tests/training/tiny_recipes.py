"""Every recipe of the package made tiny: a few rows to learn by heart, a model of a few thousand weights."""

import json
import random
from collections.abc import Callable
from pathlib import Path

ANIMALS = ("cat", "dog", "cow", "hen", "fox", "owl")
DOINGS = ("eats", "sees", "hears", "finds", "likes", "wants")
THINGS = ("fish", "bread", "milk", "corn", "cheese", "rain")
GERMAN = {
    **dict(zip(ANIMALS, ("katze", "hund", "kuh", "henne", "fuchs", "eule"), strict=True)),
    **dict(zip(DOINGS, ("frisst", "sieht", "hört", "findet", "mag", "will"), strict=True)),
    **dict(zip(THINGS, ("fisch", "brot", "milch", "korn", "käse", "regen"), strict=True)),
}


def sentence(number: int) -> str:
    draw = random.Random(number)
    return f"the {draw.choice(ANIMALS)} {draw.choice(DOINGS)} the {draw.choice(THINGS)}"


def german(text: str) -> str:
    return " ".join(GERMAN.get(word, "das") for word in text.split())


def write_text(folder: Path, documents: int = 24, sentences: int = 4) -> list[str]:
    path = folder / "text.txt"
    rows = [". ".join(sentence(10 * n + m) for m in range(sentences)) + "." for n in range(documents)]
    path.write_text("\n\n".join(rows) + "\n")
    return ["data.format=text", f"data.train={path}", "data.held_out=0.2"]


def write_pairs(folder: Path) -> list[str]:
    rows = [sentence(number) for number in range(24)]
    (folder / "a.en").write_text("".join(f"{row}\n" for row in rows))
    (folder / "a.de").write_text("".join(f"{german(row)}\n" for row in rows))
    return [f"data.train.source={folder / 'a.en'}", f"data.train.target={folder / 'a.de'}", "data.held_out=0.1"]


def _jsonl(folder: Path, rows: list[dict[str, str]]) -> list[str]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["data.format=jsonl", f"data.train={path}", "data.held_out=0.1"]


def write_labelled(folder: Path) -> list[str]:
    texts = [sentence(number) for number in range(32)]
    rows = [{"text": text, "label": "animal" if "cat" in text or "dog" in text else "other"} for text in texts]
    return [*_jsonl(folder, rows), "data.columns={text: text, label: label}"]


def write_tasks(folder: Path) -> list[str]:
    texts = [sentence(number) for number in range(16)]
    rows = [{"source": f"translate: {text}", "target": german(text)} for text in texts]
    return _jsonl(folder, rows + [{"source": f"who: {text}", "target": text.split()[1]} for text in texts])


def write_summaries(folder: Path) -> list[str]:
    rows = [{"source": f"{sentence(n)}. {sentence(n)}.", "target": sentence(n).split()[1]} for n in range(16)]
    return _jsonl(folder, rows)


def write_tagged(folder: Path) -> list[str]:
    path = folder / "tags.txt"
    tags = {**dict.fromkeys(ANIMALS, "B-LIVING"), **dict.fromkeys(THINGS, "B-THING")}
    rows = [[f"en:{word}\t{tags.get(word, 'O')}" for word in sentence(n).split()] for n in range(24)]
    path.write_text("\n\n".join("\n".join(row) for row in rows) + "\n")
    return [f"data.train={path}", "data.held_out=0.1"]


def write_questions(folder: Path) -> list[str]:
    path = folder / "questions.json"
    paragraphs = []
    for number in range(16):
        text = sentence(number)
        answer = text.split()[1]
        asked = {"id": str(number), "question": f"who {text.split()[2]}?"}
        asked |= {"answers": [{"text": answer, "answer_start": text.index(answer)}]}  # type: ignore[dict-item]
        paragraphs.append({"context": text, "qas": [asked]})
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}))
    return [f"data.train={path}", "data.held_out=0.1"]


def gpt2_sizes(layers: int = 1) -> list[str]:
    return [f"model.sizes={{n_layer: {layers}, n_head: 2, n_embd: 32, n_positions: 64}}"]


def bert_sizes(**more: str) -> list[str]:
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 64, **more}
    return [f"model.sizes.{name}={value}" for name, value in sizes.items()] + [
        f"model.sizes.{name}=0.0" for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")
    ]


SEQ2SEQ = [
    "model.sizes={d_model: 32, encoder_layers: 1, decoder_layers: 1, encoder_attention_heads: 2, "
    "decoder_attention_heads: 2, encoder_ffn_dim: 64, decoder_ffn_dim: 64, max_position_embeddings: 64, dropout: 0.0}"
]
T5 = [
    "model.sizes={num_layers: 1, num_decoder_layers: 1, d_model: 32, d_ff: 64, d_kv: 16, num_heads: 2, "
    "dropout_rate: 0.0}"
]
SIZES = {
    "lm-bytes": gpt2_sizes(),
    "lm-bpe": [
        "model.sizes={num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1, hidden_size: 32, "
        "intermediate_size: 64, max_position_embeddings: 64, tie_word_embeddings: true}"
    ],
    "stories": [
        "model.sizes={num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1, hidden_size: 32, "
        "intermediate_size: 64, max_position_embeddings: 64, tie_word_embeddings: true}",
        "model.facts={}",
        "data.documents=blank line",
        "data.marker=null",
    ],
    "ctrl": [
        "model.sizes={n_layer: 1, n_head: 2, n_embd: 32, dff: 64, n_positions: 64, resid_pdrop: 0.0, embd_pdrop: 0.0}"
    ],
    "translate": [
        "model.sizes={d_model: 32, nhead: 2, num_encoder_layers: 1, num_decoder_layers: 1, dim_feedforward: 64, "
        "dropout: 0.0, norm_first: true, final_norm: true}"
    ],
    "m2m": SEQ2SEQ,
    "en-zh": SEQ2SEQ,
    "summarise": SEQ2SEQ,
    "bart-denoise": SEQ2SEQ,
    "t5-tasks": T5,
    "t5-span": T5,
    "xlm-tlm": [
        "model.sizes={emb_dim: 32, n_layers: 1, n_heads: 2, n_langs: 2, max_position_embeddings: 64, dropout: 0.0, "
        "attention_dropout: 0.0}"
    ],
    "albert-sop": [*bert_sizes(), "model.sizes.embedding_size=16"],
    "electra": [*bert_sizes(), "model.sizes.embedding_size=32", "model.helper={}"],
    "deberta-v3-rtd": [*bert_sizes(), "model.helper={}"],
    "bigbird-4096": [
        *bert_sizes(),
        "model.sizes.block_size=4",
        "model.sizes.num_random_blocks=1",
        "model.sizes.max_position_embeddings=64",
    ],
    **{name: bert_sizes() for name in ("bert-mlm", "mlm-en", "roberta", "xlmr", "classify", "tag")},
    "answer": [*bert_sizes(), "objective.stride=16"],
    "toy": [],
    "distil": [
        "model.sizes={dim: 32, n_layers: 1, n_heads: 2, hidden_dim: 64, dropout: 0.0, max_position_embeddings: 128}"
    ],
    "finetune": [],
    "ner-en": ['data.prefix="en:"'],
}
DATA: dict[str, Callable[[Path], list[str]]] = {
    **dict.fromkeys(("translate", "m2m", "en-zh", "xlm-tlm"), write_pairs),
    **dict.fromkeys(("ctrl", "classify", "finetune"), write_labelled),
    "t5-tasks": write_tasks,
    "summarise": write_summaries,
    "tag": write_tagged,
    "ner-en": write_tagged,
    "answer": write_questions,
    "toy": lambda _: [],
}  # the others learn from plain text
VOCABULARY = {"bytes": None, "bpe": 320, "wordpiece": 150, "unigram": 150}


def tiny(name: str, folder: Path, kind: str | None) -> list[str]:
    """Changes that make a recipe tiny; ``kind`` is that of its tokenizer."""
    size = VOCABULARY.get(str(kind))
    sentinels = 100 if name in ("t5-span", "t5-tasks") else 0
    vocabulary = [] if size is None else [f"tokenizer.size={size + sentinels}"]
    batch = ["batch.examples=8", "batch.tokens=null", "batch.length=48", "batch.workers=0"]
    if name == "toy":
        return ["run.steps=60", "evaluation.every=60"]
    pace = ["run.steps=60", "optimizer.lr=5e-3", "optimizer.warmup=5", "optimizer.schedule=constant"]
    evaluation = ["evaluation.every=60", "evaluation.rows=4", "evaluation.samples=0", "evaluation.beam=1"]
    evaluation += ["evaluation.last=1", "run.checkpoint_every=60", "evaluation.by=loss", "optimizer.weight_decay=0.0"]
    data = DATA.get(name, write_text)(folder)
    return [*data, *SIZES[name], *vocabulary, *batch, *pace, *evaluation]
