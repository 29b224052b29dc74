"""A word in two sentences and a matrix product: values beside those that a pass of the model gives."""

from functools import cache
from typing import Literal

import numpy as np
import pytest
import torch

from glassformer.hub import load
from glassformer.inspect.record import record
from glassformer.viewer.encode import decode
from glassformer.viewer.inputs import Input
from glassformer.viewer.queries_words import ProductParams, WordsParams, product, words
from glassformer.viewer.subject import QueryError, Subject
from tests.viewer.conftest import ask, shipped, tiny

ARROW, BANANA = "time flies like an arrow", "fruit flies like a banana"


@cache
def subject(name: str) -> Subject:
    return Subject(load(name), name)


def states(name: str, text: str) -> tuple[list[int], list[torch.Tensor]]:
    """The ids that a model reads, and its residual stream: before the first layer and after each."""
    loaded = subject(name).loaded
    stack = "encoder" if loaded.config.encoder is not None else "decoder"
    ids = list(getattr(subject(name).sequences(Input(text, target="" if name == "en-zh" else None)), stack))
    with record(loaded, f"{stack}.blocks.*.*put") as trace, torch.no_grad():
        inputs = torch.tensor([ids])
        loaded.model.encode(inputs) if name == "en-zh" else loaded.model(inputs)
    layers = (loaded.config.encoder or loaded.config.decoder).layers
    names = [f"{stack}.blocks.0.input", *(f"{stack}.blocks.{number}.output" for number in range(layers))]
    return ids, [trace[one][0] for one in names]


@pytest.mark.parametrize("name", ["mlm-en", "stories", pytest.param("en-zh", marks=pytest.mark.slow)])
def test_a_word_becomes_two_vectors(name: str) -> None:
    answer = words(subject(name), WordsParams())
    assert answer["word"] == "flies"
    assert [one["word"] for one in answer["shared"]] == ["flies", "like"]
    found = answer["shared"][0]
    cosines = decode(found["cosine"])
    streams = [states(name, text) for text in (ARROW, BANANA)]
    assert len(cosines) == answer["layers"] + 1 == len(streams[0][1])
    for text, (ids, _), tokens in zip((ARROW, BANANA), streams, found["tokens"], strict=True):
        spelled = "".join(subject(name).token_texts([ids[number] for number in tokens]))
        assert spelled.strip() == "flies", text
    for layer, cosine in enumerate(cosines):
        a, b = (stream[layer][tokens[-1]] for (_, stream), tokens in zip(streams, found["tokens"], strict=True))
        assert cosine == pytest.approx(torch.cosine_similarity(a.double(), b.double(), dim=0).item(), abs=1e-5)
    for vector, (_, stream), tokens in zip(answer["vectors"], streams, found["tokens"], strict=True):
        np.testing.assert_allclose(decode(vector)[1], stream[1][tokens[-1]].float(), atol=1e-5)
    assert cosines[-1] < 0.98, "the context tells the two apart"


def test_the_same_word_at_the_same_position_enters_alike() -> None:
    answer = words(subject("mlm-en"), WordsParams(texts=("the dog flies home", "one cat flies away")))
    assert decode(answer["shared"][0]["cosine"])[0] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (WordsParams(word="arrow"), "both texts must have the word 'arrow'; they share flies, like"),
        (WordsParams(texts=("one two", "three four")), "share no word"),
        (WordsParams(texts=("alone",)), "two texts, got 1"),
    ],
)
def test_words_that_cannot_be_compared(params: WordsParams, reason: str) -> None:
    with pytest.raises(QueryError, match=reason):
        words(subject("mlm-en"), params)


CASES = [
    ("mlm-en", "encoder", "q"),
    ("stories", "decoder", "k"),
    pytest.param("en-zh", "cross", "q", marks=pytest.mark.slow),
    pytest.param("en-zh", "cross", "v", marks=pytest.mark.slow),
    pytest.param("stories", "decoder", "q", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "kind", "part"), CASES)
def test_a_product_is_what_the_layer_computes(name: str, kind: str, part: str) -> None:
    chosen = Input("Lily likes cats.", target="莉莉喜欢猫。" if kind == "cross" else None)
    answer = product(subject(name), ProductParams(kind=kind, layer=1, head=3, name=part, input=chosen))
    x, w, y = (decode(answer[key]) for key in ("x", "w", "y"))
    bias = 0 if answer["bias"] is None else decode(answer["bias"])
    np.testing.assert_allclose(x @ w + bias, y, atol=1e-4)
    place = (
        f"{'encoder' if kind == 'encoder' else 'decoder'}.blocks.1.{'cross' if kind == 'cross' else 'attention'}.{part}"
    )
    recorded = subject(name).values(chosen, [place])[place]
    assert answer["own"] == 3 * recorded.shape[0] // 8 if name == "stories" else answer["own"] == 3
    np.testing.assert_allclose(y, recorded[answer["own"]][: len(y)], rtol=0.01, atol=0.01)  # weights in bfloat16
    assert answer["keys"] == ("encoder" if kind == "encoder" or part == "v" else "decoder")
    assert answer["tokens"] == len(x)


@pytest.mark.parametrize("part", ["q", "k"])
def test_a_norm_of_queries_and_keys_follows_the_product(part: Literal["q", "k"]) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    shown = tiny("qwen3", {**sizes, "intermediate_size": 48, "head_dim": 8, "max_position_embeddings": 64})
    assert ask(shown, "model")["stacks"]["decoder"]["qk_norm"] == "rms"
    chosen = Input("Lily likes cats.")
    answer = product(shown, ProductParams(layer=1, head=3, name=part, input=chosen))
    place = f"decoder.blocks.1.attention.{part}"
    recorded = shown.values(chosen, [place])[place][answer["own"]]
    norm = getattr(shown.model.decoder.blocks[1].attention, f"{part}_norm")
    with torch.no_grad():
        after = norm(torch.tensor(decode(answer["y"])))
    np.testing.assert_allclose(after, recorded[: len(after)], rtol=1e-4, atol=1e-5)
    assert ask(shipped("stories"), "model")["stacks"]["decoder"]["qk_norm"] is None


def test_products_of_heads_that_do_not_exist() -> None:
    with pytest.raises(QueryError, match="head must be"):
        product(subject("mlm-en"), ProductParams(kind="encoder", head=99, input=Input("a")))
    with pytest.raises(QueryError, match="layer must be"):
        product(subject("mlm-en"), ProductParams(kind="encoder", layer=99, input=Input("a")))
    with pytest.raises(QueryError, match="no attention of the kind cross"):
        product(subject("mlm-en"), ProductParams(kind="cross", input=Input("a")))


def test_the_translator_begins_with_what_it_translates_well() -> None:
    shown = subject("en-zh")
    texts = shown.examples
    assert [shown.loaded.translate(text).text for text in texts[:2]] == ["车站在哪里？", "今天天气很好。"]
    assert {ARROW, BANANA, "The animal didn't cross the street because it was too tired."} <= set(texts)
