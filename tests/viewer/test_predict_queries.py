"""Queries about predictions and generation, against the model's own logits and the library's own searches."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from glassformer.generation.beam import penalised
from glassformer.generation.defaults import settings_for
from glassformer.viewer import queries_predict
from glassformer.viewer.encode import decode
from glassformer.viewer.inputs import Input
from glassformer.viewer.subject import QueryError
from tests.viewer.conftest import TEXT, ask, shipped, tiny


def logits_of(name: str, text: str) -> torch.Tensor:
    """The model's logits at every position (T, V)."""
    subject = shipped(name)
    read = subject.sequences(Input(text))
    with torch.no_grad():
        if read.encoder is None:
            return subject.model(torch.tensor([read.decoder]))[0]
        if read.decoder is None:
            output = subject.model(torch.tensor([read.encoder]), segments=torch.tensor([read.segments]))
            return output[0][0] if isinstance(output, tuple) else output[0]
        return subject.model(torch.tensor([read.encoder]), target=torch.tensor([read.decoder]))[0]


@pytest.mark.parametrize("name", ["stories", "en-zh", "mlm-en"])
def test_predictions_are_the_models_logits(name: str) -> None:
    subject, logits = shipped(name), logits_of(name, TEXT[name])
    ids = subject.sequences(Input(TEXT[name]))
    for position in (None, 1):
        answer = ask(subject, "predict", position=position)
        at = answer["position"]
        np.testing.assert_allclose(decode(answer["logits"]), logits[at], atol=1e-4)
        assert answer["logsumexp"] == pytest.approx(float(logits[at].logsumexp(-1)), abs=1e-4)
        best = int(logits[at].argmax())
        assert (answer["top"][0]["id"], len(answer["top"])) == (best, 200)
        assert answer["top"][0]["prob"] == pytest.approx(float(logits[at].softmax(-1)[best]), abs=1e-4)
    last = len(ids.decoder or ids.encoder or ()) - 1
    blank = (ids.encoder or (0,)).index(subject.tokenizer.mask) if name == "mlm-en" else last
    first = ask(subject, "predict")
    chosen = blank - 2 if name == "en-zh" else blank  # before the last word, its full stop and the end
    assert (first["position"], first["family"]) == (chosen, "mask" if name == "mlm-en" else "next")


@pytest.mark.parametrize("query", ["predict", "lens"])
def test_a_position_is_one_of_the_text(query: str) -> None:
    subject = shipped("stories")
    last = len(subject.sequences(Input(TEXT["stories"])).decoder or ()) - 1
    assert {ask(subject, query, position=position)["position"] for position in (-1, last)} == {last}
    for position in (-2, -(10**9), last + 1, 10**30):
        with pytest.raises(QueryError, match=f"position must be from 0 to {last}, or -1 or null; got {position}"):
            ask(subject, query, position=position)


def test_tokens_that_are_part_of_a_character_are_marked() -> None:
    subject = shipped("en-zh")
    marked = {word["id"]: word["fragment"] for word in ask(subject, "predict")["top"]}
    expected = {n: n not in subject.special and "\ufffd" in subject.tokenizer.decode([n]) for n in marked}
    assert marked == expected
    assert set(expected.values()) == {True, False}


def test_a_large_vocabulary_is_sent_whole() -> None:
    subject = tiny("gpt2", {"vocab_size": 150_000, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64})
    answer = ask(subject, "predict", "Once upon a time")
    ids = torch.tensor([subject.sequences(Input("Once upon a time")).decoder])
    with torch.inference_mode():
        logits = subject.model(ids)[0, -1]
    np.testing.assert_allclose(decode(answer["logits"]), logits, atol=1e-4)
    assert answer["logsumexp"] == pytest.approx(float(logits.logsumexp(-1)), abs=1e-4)
    assert [token["id"] for token in answer["top"]] == logits.topk(200).indices.tolist()


@pytest.mark.parametrize("name", ["stories", "en-zh"])
def test_steps_are_predictions_at_every_position(name: str) -> None:
    subject, probs = shipped(name), logits_of(name, TEXT[name]).softmax(-1)
    answer = ask(subject, "steps")
    for position, row in enumerate(probs):
        assert answer["predicted"][position]["id"] == int(row.argmax())
        following = answer["next"][position]
        if following is None:
            assert (answer["prob_next"][position], answer["rank_next"][position]) == (None, None)
            continue
        assert answer["prob_next"][position] == pytest.approx(float(row[following["id"]]), abs=1e-4)
        assert answer["rank_next"][position] == int((row > row[following["id"]]).sum()) + 1
    assert (answer["next"][-1] is None) == (name == "stories")
    assert answer["given"] == (2 if name == "en-zh" else 0)


def test_the_lens_is_the_head_behind_the_final_norm_of_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries_predict, "PIECE", 3 * 4096)  # three positions at a time
    subject = shipped("stories")
    answer = ask(subject, "lens", top=2)
    model, streams = subject.model, subject.streams(Input(TEXT["stories"]), "decoder")
    assert model.decoder is not None
    assert model.decoder.norm is not None
    with torch.inference_mode():
        probs = torch.stack([model.apply_head(model.decoder.norm(stream)[None])[0] for stream in streams]).softmax(-1)
    best = probs.topk(2, dim=-1)
    np.testing.assert_array_equal(decode(answer["ids"]), best.indices)
    np.testing.assert_allclose(decode(answer["probs"]), best.values, atol=1e-4)
    final = probs[-1].argmax(-1)
    expected = probs[:, torch.arange(len(final)), final]
    np.testing.assert_allclose(decode(answer["actual"]), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["stories", "mlm-en"])
def test_the_lens_ends_at_the_models_prediction(name: str) -> None:
    subject, logits = shipped(name), logits_of(name, TEXT[name])
    answer = ask(subject, "lens", top=3)
    ids, probs = decode(answer["ids"]), decode(answer["probs"])
    layers = ask(subject, "model")["stacks"][answer["stack"]]["layers"]
    assert ids.shape == (layers + 1, len(logits), 3)
    np.testing.assert_array_equal(ids[-1], logits.topk(3).indices)
    np.testing.assert_allclose(probs[-1], logits.softmax(-1).topk(3).values, atol=1e-4)
    np.testing.assert_allclose(decode(answer["actual"])[-1], probs[-1, :, 0], atol=1e-5)
    one = ask(subject, "lens", top=3, position=2)
    np.testing.assert_array_equal(decode(one["ids"])[:, 0], ids[:, 2])
    some = ask(subject, "lens", top=3, rows=[1, 4])
    for name in ("ids", "probs", "actual"):
        np.testing.assert_allclose(decode(some[name]), decode(answer[name])[:, 1:4], atol=1e-5)
    assert answer["layers"][:2] == ["embed", "0"]
    assert answer["texts"][str(ids[0, 0, 0])] == subject.token_texts([int(ids[0, 0, 0])])[0]


# --- generation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stories", "en-zh"])
def test_greedy_text_is_that_of_generate(name: str) -> None:
    subject = shipped(name)
    answer = ask(subject, "generate", settings={"max_new_tokens": 6}, kind="decoder", layer=1, head=2)
    if name == "stories":
        expected = subject.loaded.generate(TEXT[name], max_new_tokens=6, temperature=0.0)
    else:
        expected = subject.loaded.translate(TEXT[name], max_new_tokens=6, beam_size=1)
    new = list(expected.written.ids)
    assert [step["id"] for step in answer["steps"]] == new
    assert answer["prompt"] == len(answer["given"])
    for step, log_prob in zip(answer["steps"], expected.written.log_probs, strict=True):
        assert step["prob"] == pytest.approx(math.exp(log_prob), abs=1e-4)
        assert step["chosen_prob"] == 1.0
        assert step["top"][0]["id"] == step["id"]
        assert len(step["top"]) == 10


def test_the_attention_of_a_step_is_the_row_that_predicts_it() -> None:
    subject = shipped("stories")
    answer = ask(subject, "generate", settings={"max_new_tokens": 4}, kind="decoder", layer=2, head=3)
    text = TEXT["stories"] + answer["text"]
    weights = subject.weights(Input(text), "decoder", 2)[3]
    for number, step in enumerate(answer["steps"]):
        row = answer["prompt"] - 1 + number
        np.testing.assert_allclose(decode(step["attention"]), weights[row, : row + 1], atol=1e-5)
        assert step["keys"] == "decoder"
    cross = ask(shipped("en-zh"), "generate", settings={"max_new_tokens": 3}, kind="cross", layer=1, head=0)
    source = shipped("en-zh").sequences(Input(TEXT["en-zh"]))
    rows = shipped("en-zh").weights(Input(TEXT["en-zh"]), "cross", 1)[0]
    for number, step in enumerate(cross["steps"]):
        assert len(decode(step["attention"])) == len(source.encoder or ())
        np.testing.assert_allclose(decode(step["attention"]), rows[cross["prompt"] - 1 + number], atol=1e-5)


def test_a_given_target_is_continued() -> None:
    answer = ask(shipped("en-zh"), "generate", "I love you.", input={"target": "我"}, settings={"max_new_tokens": 3})
    assert answer["given"][-1]["text"] == "我"
    assert [step["attention"] for step in answer["steps"]] == [None] * len(answer["steps"])


def test_samples_depend_on_the_seed_and_the_filters() -> None:
    settings = {"max_new_tokens": 5, "greedy": False, "temperature": 1.5}
    first, again, other = (ask(shipped("stories"), "generate", settings={**settings, "seed": s}) for s in (1, 1, 2))
    assert first["text"] == again["text"] != other["text"]
    narrow = ask(shipped("stories"), "generate", settings={**settings, "top_k": 1})
    greedy = ask(shipped("stories"), "generate", settings={"max_new_tokens": 5})
    assert narrow["text"] == greedy["text"]
    assert [step["chosen_prob"] for step in narrow["steps"]] == pytest.approx([1.0] * 5)
    logits = logits_of("stories", TEXT["stories"])[-1]
    step = first["steps"][0]
    assert step["prob"] == pytest.approx(float(logits.softmax(-1)[step["id"]]), abs=1e-4)
    assert step["chosen_prob"] == pytest.approx(float((logits / 1.5).softmax(-1)[step["id"]]), abs=1e-4)
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    assert step["entropy"] == pytest.approx(float(entropy), abs=1e-3)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_beams_are_the_search_of_the_library(penalty: float) -> None:
    subject = shipped("en-zh")
    answer = ask(subject, "beams", beam_size=3, max_new_tokens=12, length_penalty=penalty)
    options = {"beam_size": 3, "top_beams": 3, "max_new_tokens": 12, "length_penalty": penalty, "temperature": 0.0}
    found, _ = subject.search(Input(TEXT["en-zh"]), **options)
    nodes = {node["id"]: node for node in answer["nodes"]}
    assert len(answer["texts"]) == 3
    for rank, (text, output) in enumerate(zip(answer["texts"], found, strict=True), start=1):
        assert text["score"] == pytest.approx(output.score)
        node, path = nodes[text["node"]], []
        assert (node["rank"], node["status"]) == (rank, "ended")
        assert node["final"] == pytest.approx(text["score"], abs=1e-5)
        while node is not None:
            path.append(node)
            node = None if node["parent"] is None else nodes[node["parent"]]
        assert [each["token"] for each in reversed(path)] == output.ids
        assert all(each["winner"] for each in path) == (rank == 1)
        # One statement: the forced language is no choice and counts in the length only.
        assert [each["forced"] for each in reversed(path)] == [True] + [False] * (len(path) - 1)
        assert sum(each["logprob"] for each in path if not each["forced"]) == pytest.approx(text["sum"], abs=1e-4)
        assert path[0]["score"] == text["sum"]
        assert text["score"] == pytest.approx(text["sum"] / text["length"] ** penalty, abs=1e-5)
    settings, _ = settings_for(subject.loaded, **options)
    greedy = answer["greedy"]
    length = len(subject.sequences(Input(TEXT["en-zh"])).expected or ())
    assert greedy["final"] == pytest.approx(penalised(greedy["sum"], length, settings), abs=1e-4)
    ((written,), _) = subject.search(Input(TEXT["en-zh"]), max_new_tokens=12, temperature=0.0, beam_size=1)
    assert greedy["sum"] == pytest.approx(sum(written.log_probs[1:]), abs=1e-4)
    translated = subject.loaded.translate(TEXT["en-zh"], beam_size=3, max_new_tokens=12, length_penalty=penalty)
    assert answer["texts"][0]["score"] == pytest.approx(translated.written.score, abs=1e-4)
    assert answer["texts"][0]["text"] == translated.text
    assert {node["status"] for node in nodes.values()} == {"kept", "ended", "dropped"}


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_tasks_answer_as_the_library_does() -> None:
    filled = ask(shipped("mlm-en"), "fill")
    (expected,) = shipped("mlm-en").loaded.fill([TEXT["mlm-en"]], top=10)
    (blank,) = filled["blanks"]
    assert blank["guesses"] == [asdict(guess) for guess in expected.blanks[0].guesses] or blank["guesses"] == tuple(
        asdict(guess) for guess in expected.blanks[0].guesses
    )
    ids = shipped("mlm-en").sequences(Input(TEXT["mlm-en"])).encoder or ()
    assert ids[blank["position"]] == shipped("mlm-en").tokenizer.mask
    tagged = ask(shipped("ner-en"), "tag")
    (words,) = shipped("ner-en").loaded.tag([TEXT["ner-en"]])
    assert tagged == asdict(words)


def test_an_ablated_head_changes_what_a_task_answers() -> None:
    heads = [["encoder.attention", layer, head] for layer in range(2) for head in range(4)]
    before = ask(shipped("mlm-en"), "fill")["blanks"][0]["guesses"][0]["probability"]
    after = ask(shipped("mlm-en"), "fill", input={"ablate": heads})["blanks"][0]["guesses"][0]["probability"]
    assert abs(before - after) > 1e-4
    assert ask(shipped("mlm-en"), "fill")["blanks"][0]["guesses"][0]["probability"] == before, "nothing remains"


def test_classes_and_answers() -> None:
    config = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    config |= {"max_position_embeddings": 64}
    subject = tiny("bert", {**config, "id2label": {"0": "no", "1": "yes"}}, "classify")
    answer = ask(subject, "classify", "a little girl")
    (expected,) = subject.loaded.classify(["a little girl"])
    assert [label["name"] for label in answer["labels"]] == [label.name for label in expected.labels]
    assert sum(label["probability"] for label in answer["labels"]) == pytest.approx(1)
    with pytest.raises(QueryError, match="no language-model head"):
        ask(subject, "predict", "a little girl")
    reader = tiny("bert", config, "span")
    with pytest.raises(QueryError, match="needs a context"):
        ask(reader, "answer", "Who?")
    spans = ask(reader, "answer", "Who?", input={"text_b": "a little girl went home"})
    assert spans["answers"][0]["text"] in "a little girl went home"
