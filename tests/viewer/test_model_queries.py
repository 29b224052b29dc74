"""Queries about models and tokens, against the library's own answers."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from glassformer import pretrained
from glassformer.config import to_dict
from glassformer.hub import load
from glassformer.inspect.parts import part_tree
from glassformer.nn.input_positions import sinusoids
from glassformer.nn.relative import alibi_slopes
from glassformer.viewer import queries
from glassformer.viewer.contents import Contents
from glassformer.viewer.encode import decode, to_json
from glassformer.viewer.inputs import Input
from glassformer.viewer.subject import QueryError, Subject, visible_bytes
from tests.browser.tiny import tiny as tiny_folder
from tests.parity.badges import FILE, PAGE, badges
from tests.viewer.conftest import TEXT, ask, shipped, tiny

T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}


@pytest.mark.parametrize("name", pretrained.names())
def test_a_model_is_described_by_its_facts(name: str) -> None:
    subject = shipped(name)
    answer = ask(subject, "model")
    assert answer["facts"] == to_dict(subject.facts)
    assert answer["parts"] == asdict(part_tree(subject.facts))
    assert answer["abilities"] == list(subject.loaded.abilities)
    assert answer["parity"]["error"] <= answer["parity"]["bound"]
    for stack in answer["stacks"]:
        facts = getattr(subject.facts, stack)
        assert answer["stacks"][stack]["heads"] == facts.attention.heads
        assert len(answer["stacks"][stack]["windows"]) == answer["stacks"][stack]["layers"] == facts.layers
    json.loads(to_json(answer))


def test_parity_is_that_of_the_documented_table() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")) == badges(PAGE.read_text(encoding="utf-8"))


def test_tokens_are_those_that_the_model_reads() -> None:
    subject = shipped("stories")
    answer = ask(subject, "tokens")
    ids = subject.tokenizer.encode(TEXT["stories"])
    assert [token["id"] for token in answer["decoder"]] == ids
    assert "".join(token["text"] for token in answer["decoder"] if not token["special"]).strip() == TEXT["stories"]
    assert answer["decoder"][0]["special"]
    assert "encoder" not in answer


def test_a_pair_of_texts_has_segments() -> None:
    subject = shipped("mlm-en")
    answer = ask(subject, "tokens", "a cat", input={"text_b": "a dog"})
    ids, segments = subject.tokenizer.encode_pair("a cat", "a dog")
    assert [token["id"] for token in answer["encoder"]] == ids
    assert [token["segment"] for token in answer["encoder"]] == segments
    assert set(segments) == {0, 1}


def test_a_translator_reads_what_translate_writes() -> None:
    subject = shipped("en-zh")
    answer = ask(subject, "tokens", "I love you.")
    text = subject.loaded.translate("I love you.", beam_size=1)
    written = [token["id"] for token in answer["expected"]]
    assert written == list(text.written.ids)
    assert [token["id"] for token in answer["decoder"]] == [subject.facts.tokens.start, *written[:-1]]
    given = ask(subject, "tokens", "I love you.", input={"target": "我们"})
    assert subject.tokenizer.decode([token["id"] for token in given["decoder"]], skip_special=True) == "我们"


def test_a_target_is_given_by_its_tokens() -> None:
    """The tokens of a translation whose characters are split, which its text would not give again."""
    subject, text = shipped("en-zh"), "I have a pet hamster and a parrot."
    whole = ask(subject, "tokens", text)
    ids = [token["id"] for token in whole["decoder"]]
    written = ids[whole["given"] :]
    assert any("\ufffd" in subject.tokenizer.decode([token]) for token in written)
    again = ask(subject, "tokens", text, input={"target_ids": written})
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}
    assert whole["target"] == subject.tokenizer.decode(written)
    ablated = {"ablate": [["decoder.cross", 2, 1]], "target_ids": written}
    assert [token["id"] for token in ask(subject, "tokens", text, input=ablated)["decoder"]] == ids
    assert ask(subject, "token_texts", ids=ids)["text"] == subject.tokenizer.decode(written)
    for wrong, message in (
        ({"target_ids": [subject.facts.vocab]}, "target_ids must be from 0 to"),
        ({"target_ids": [1], "target": "a"}, "not both"),
    ):
        with pytest.raises(QueryError, match=message):
            ask(subject, "tokens", text, input=wrong)
    with pytest.raises(QueryError, match="encoder-decoders"):
        ask(shipped("stories"), "tokens", input={"target_ids": [1]})


def test_texts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(QueryError, match="shorten"):
        ask(shipped("stories"), "tokens", "word " * 2000)
    with pytest.raises(QueryError, match="empty") as caught:
        ask(shipped("mlm-en"), "tokens", " ")
    assert caught.value.code == "empty"
    with pytest.raises(QueryError, match="second text is for models that read pairs"):
        ask(shipped("stories"), "tokens", "a", input={"text_b": "b"})
    with pytest.raises(QueryError, match="target is for encoder-decoders"):
        ask(shipped("mlm-en"), "tokens", "a", input={"target": "b"})


def test_half_characters_become_a_visible_sign() -> None:
    assert Input("a\ud800b").text == "a\ufffdb"
    ask(shipped("stories"), "tokens", "a\ud800\0b")


def test_costs_are_those_of_the_account() -> None:
    subject = shipped("stories")
    answer = ask(subject, "costs")
    length = len(subject.sequences(Input(TEXT["stories"])).decoder or ())
    counted = subject.loaded.account(context=length)
    assert answer["flops"] == counted.flops
    assert answer["parameters"] == counted.parameters == answer["parts"]["parameters"]
    assert answer["tokens"] == {"decoder": length}
    assert answer["bytes"]["weights"] == counted.memory.weights


def test_token_texts() -> None:
    subject = shipped("stories")
    expected = {"texts": subject.token_texts([0, 300]), "text": subject.tokenizer.decode([300])}  # 0 is special
    assert ask(subject, "token_texts", ids=[0, 300]) == expected
    with pytest.raises(QueryError, match="vocabulary goes from 0 to 4095"):
        ask(subject, "token_texts", ids=[4096])


def test_tokens_that_are_parts_of_characters_are_bytes() -> None:
    subject = shipped("en-zh")
    ids = subject.tokenizer.encode("€ 龘", special=False)
    assert subject.token_texts(ids) == ["⟨e2⟩", "⟨82⟩", "⟨ac⟩", " ", "⟨e9 be⟩", "⟨98⟩"]
    every = subject.token_texts(range(subject.tokenizer.vocab_size))
    assert not any("\ufffd" in text for text in every)
    assert visible_bytes(" ⟨e3\ufffd".encode() + b"\xe3\x80") == " ⟨e3\ufffd⟨e3 80⟩"


@pytest.mark.parametrize("name", ["bart-BartForSequenceClassification", "gpt2-GPT2ForSequenceClassification"])
@pytest.mark.parametrize("pair", [None, "It was a little dog."])
def test_a_model_that_writes_no_text_reads_what_its_task_reads(name: str, pair: str | None) -> None:
    subject = Subject(load(tiny_folder(name)), name)
    text = "The cat sat."
    read = subject.sequences(Input(text, pair))
    if read.encoder is None:
        assert read.decoder is not None
        scores = subject.model(torch.tensor([read.decoder]))
    else:
        assert read.decoder == (subject.facts.tokens.start, *read.encoder[:-1])
        scores = subject.model(torch.tensor([read.encoder]), target=torch.tensor([read.decoder]))
    (found,) = subject.loaded.classify([text if pair is None else (text, pair)])
    by_name = {label.name: label.score for label in found.labels}
    expected = [by_name[label] for label in subject.facts.head.labels]
    assert scores[0].tolist() == pytest.approx(expected, abs=1e-5)
    assert ask(subject, "model")["pairs"]


def test_a_model_of_pairs_has_no_labels_for_one_text() -> None:
    name = "bert-BertForNextSentencePrediction"
    subject = Subject(load(tiny_folder(name)), name)
    assert ask(subject, "classify", input={"text": "The cat sat."})["labels"] == []
    two = ask(subject, "classify", input={"text": "The cat sat.", "text_b": "It slept."})
    assert {label["name"] for label in two["labels"]} == {"next", "random"}


# --- positions --------------------------------------------------------------------------------------------------------


def test_sinusoids_in_both_layouts() -> None:
    (scheme,) = ask(shipped("en-zh"), "positions", length=16)["schemes"]
    position = shipped("en-zh").facts.embed.position
    assert position is not None
    assert scheme["layout"] == position.layout == "fairseq"
    for layout, table in scheme["tables"].items():
        expected = sinusoids(torch.arange(16) + position.offset, 256, layout=layout)
        np.testing.assert_allclose(decode(table), expected, atol=1e-6)
    cosines = decode(scheme["similarity"])
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-5)


def test_learned_positions_are_the_table() -> None:
    subject = shipped("mlm-en")
    (scheme,) = ask(subject, "positions", length=8)["schemes"]
    assert scheme["kind"] == "learned"
    assert subject.model.embed.position is not None
    np.testing.assert_array_equal(decode(scheme["table"]), subject.model.embed.position.weight[:8].detach())


def test_rotary_angles_grow_with_the_position() -> None:
    (scheme,) = ask(shipped("stories"), "positions", length=8)["schemes"]
    angles = decode(scheme["angles"])
    np.testing.assert_allclose(angles[:, 0], np.arange(8))  # the first pair turns by 1 per position
    np.testing.assert_allclose(angles[3], 3 * angles[1], rtol=1e-6)
    assert decode(scheme["similarity"])[2, 5] == pytest.approx(np.cos(3 * angles[1]).mean(), abs=1e-6)


def test_biases_by_distance() -> None:
    subject = tiny("t5", T5)
    encoder, decoder = ask(subject, "positions", length=6)["schemes"]
    assert (encoder["stack"], decoder["stack"]) == ("encoder", "decoder")
    assert subject.model.encoder is not None
    assert subject.model.encoder.relative is not None
    table = subject.model.encoder.relative.weight.detach().numpy()
    np.testing.assert_array_equal(decode(encoder["bias"]), table[decode(encoder["bucket"])].T)
    lesson = ask(shipped("stories"), "positions", length=6, kind="alibi")["schemes"][0]
    slopes = alibi_slopes(8).numpy()
    np.testing.assert_allclose(decode(lesson["bias"])[:, 0], -5 * slopes)
    with pytest.raises(QueryError, match="length must be"):
        ask(subject, "positions", length=0)


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("nothing", {}, "there is no query"),
        ("tokens", [], "JSON object"),
        ("tokens", {"inputs": {}}, "Did you mean 'input'"),
        ("tokens", {"input": {"text": 3}}, "input.text must be a str"),
        ("tokens", {"input": {"text": "a", "ablate": [["decoder.attention", "0", 1]]}}, "ablate has entries"),
        ("tokens", {"model": True}, "model must be a number"),
        ("attention", {"kind": "self"}, "kind"),
        ("attention", {"rows": [0]}, "rows is"),
        ("attention", {"heads": [99]}, "head must be from 0 to 7"),
        ("attention", {"layer": -1}, "layer must be from 0 to 4"),
        ("attention", {"kind": "cross"}, "no attention of the kind cross"),
        ("neuron", {"row": 10**9}, "row must be"),
        ("sublayer", {"token": -1}, "token must be"),
        ("values", {"name": "decoder.blocks.99.output"}, "has no value"),
        ("values", {"name": "decoder.output", "tokens": [10**6]}, "tokens are numbers"),
        ("predict", {"position": 10**6}, "position must be"),
        ("lens", {"top": 10**6}, "top must be"),
        ("generate", {"settings": {"max_new_tokens": 10**6}}, "max_new_tokens must be"),
        ("generate", {"settings": {"greedy": False, "temperature": -1.0}}, "temperature must be"),
        ("beams", {"beam_size": 10**6}, "beam_size must be"),
        ("beams", {"length_penalty": 1e300}, "length_penalty must be"),
        ("mask", {"padding": 10**6}, "padding must be"),
        ("matrix", {"size": 10**6}, "size must be"),
        ("attention_overview", {"size": 10**6}, "size must be"),
        ("fill", {}, "fill needs"),
        ("tokens", {"model": 5}, "no model 5"),
        ("run_log", {"run": 3}, "no run 3"),
    ],
)
def test_requests_that_cannot_be_answered_say_why(name: str, body: object, message: str) -> None:
    if isinstance(body, dict):
        body.setdefault("input", {"text": "a b"}) if name != "run_log" else None
    with pytest.raises(QueryError, match=message):
        queries.answer(Contents([shipped("stories")]), queries.parse(name, body))


def test_every_query_is_documented_with_its_result() -> None:
    undocumented = [name for name, query in queries.QUERIES.items() if "esult" not in (query.function.__doc__ or "")]
    own = [name for name in undocumented if "teaching" not in queries.QUERIES[name].function.__module__]
    assert [name for name in own if name not in ("runs", "run_log", "words", "product")] == []
