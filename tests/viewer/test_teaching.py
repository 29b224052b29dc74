"""The queries behind the teaching figures: values beside those computed directly."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from glassformer.config.parts import ACTIVATION_NAMES
from glassformer.families import lineages as known_lineages
from glassformer.families import presets
from glassformer.viewer import queries_teaching, work
from glassformer.viewer.encode import decode
from glassformer.viewer.family_tree import TREE
from glassformer.viewer.queries_model import Nothing
from glassformer.viewer.queries_teaching import Range, activations, lineages, toy
from glassformer.viewer.subject import QueryError


def test_every_lineage_is_in_the_tree() -> None:
    entries = {entry["name"]: entry for entry in lineages(Nothing())["lineages"]}
    assert entries.keys() == known_lineages().keys() == TREE.keys()
    (root,) = [name for name, entry in entries.items() if entry["parent"] is None]
    assert root == "transformer2017"
    for name, entry in entries.items():
        ancestors, parent = [], name
        while parent != root:
            parent = entries[parent]["parent"]
            assert parent not in ancestors, "a tree has no circles"
            ancestors.append(parent)
            assert entries[parent]["year"] <= entry["year"], f"{name} is older than its ancestor {parent}"
        paper = known_lineages()[name].paper
        assert entry["paper"] == {"title": paper.title, "authors": paper.authors, "year": paper.year, "url": paper.url}
        for text in (entry["changed"], *([entry["reported"]] if entry["reported"] else [])):
            assert text["en"].endswith(".")
            assert text["zh"].endswith("。")


def test_the_tree_says_which_facts_differ() -> None:
    entries = {entry["name"]: entry for entry in lineages(Nothing())["lineages"]}
    assert entries["gpt2"]["differs"] == ["placement"]
    assert {entries[name]["facts"]["placement"] for name in ("gpt", "gpt2", "gpt-j")} == {"post", "pre", "parallel"}
    assert entries["albert"]["differs"] == ["layers", "embedding"]
    assert set(entries["t5"]["differs"]) == {"placement", "norm", "positions", "biases", "scale"}
    assert entries["bigbird"]["facts"]["attention"] == "block-sparse"
    assert entries["llama"]["facts"]["positions"] == "rotary"
    for name, entry in entries.items():
        assert entry["facts"]["family"] == presets()[entry["presets"][0]].facts.family, name


def test_activations_and_their_slopes() -> None:
    answer = activations(Range(limit=3.0, points=61))
    x = decode(answer["x"])
    assert (x[0], x[-1], len(x)) == (-3.0, 3.0, 61)
    reference = {
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda values: torch.nn.functional.gelu(values, approximate="tanh"),
        "relu": torch.nn.functional.relu,
        "silu": torch.nn.functional.silu,
        "tanh": torch.tanh,
    }
    assert tuple(answer["curves"]) == ACTIVATION_NAMES == tuple(reference)
    for name, function in reference.items():
        inputs = torch.linspace(-3, 3, 61, dtype=torch.float64, requires_grad=True)
        values = function(inputs)
        (slopes,) = torch.autograd.grad(values.sum(), inputs)
        curve = answer["curves"][name]
        np.testing.assert_allclose(decode(curve["value"]), values.detach().numpy(), atol=1e-6)
        np.testing.assert_allclose(decode(curve["slope"]), slopes.numpy(), atol=1e-6)


@pytest.mark.parametrize("params", [Range(limit=0.0), Range(limit=1e9), Range(points=1), Range(points=10**9)])
def test_curves_have_limits(params: Range) -> None:
    with pytest.raises(QueryError, match="limit must be"):
        activations(params)


def test_who_waits_for_the_training_can_leave() -> None:
    began, end = threading.Event(), threading.Event()

    def hold() -> None:
        with queries_teaching._TRAINING:
            began.set()
            end.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    began.wait(30)
    query = work.RunningQuery(30.0)
    threading.Timer(0.2, query.cancel).start()
    try:
        with pytest.raises(work.CancelledError), work.running(query):
            toy(Nothing())
    finally:
        end.set()
        holder.join()


def test_the_training_takes_no_threads_from_other_queries() -> None:
    def count() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.get_num_threads).result()

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with queries_teaching._one_thread():
            assert torch.get_num_threads() == 1
            assert count() == 3
        assert (torch.get_num_threads(), count()) == (3, 3)
    finally:
        torch.set_num_threads(before)


def test_six_words_are_learned() -> None:
    state, draw = random.getstate(), torch.random.get_rng_state()
    with torch.inference_mode():  # as a server may call it
        answer = toy(Nothing())
    assert random.getstate() == state
    assert torch.equal(torch.random.get_rng_state(), draw)
    assert answer["words"] == ["thanks", "i", "am", "a", "student", "</s>"]
    assert [pair["source"] for pair in answer["pairs"]] == ["merci", "je suis étudiant"]
    assert (answer["steps"][0], answer["steps"][-1]) == (0, 200)
    losses = decode(answer["losses"])
    assert len(losses) == 200
    assert losses[-1] < 0.01 < losses[0]
    for pair in answer["pairs"]:
        targets, probs = decode(pair["one_hot"]), decode(pair["probs"])
        assert targets.sum(-1).tolist() == [1.0] * len(pair["target"])
        assert [answer["words"][row.argmax()] for row in targets] == pair["target"]
        assert probs.shape == (len(answer["steps"]), *targets.shape)
        assert (probs.sum(-1) <= 1 + 1e-6).all(), "what is missing from 1 is for words of the source"
        assert (probs[0] * targets).sum(-1).max() < 0.9, "untrained"
        assert (probs[-1] * targets).sum(-1).min() > 0.99, "the recipe promises this"
    # The loss of the first step is the mean cross-entropy of the distributions before it.
    rows = [(decode(pair["probs"])[0] * decode(pair["one_hot"])).sum(-1) for pair in answer["pairs"]]
    assert -np.log(np.concatenate(rows)).mean() == pytest.approx(losses[0], abs=1e-4)
    assert toy(Nothing()) is answer, "trained once"
