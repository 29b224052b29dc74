"""The queries about runs: summaries as `compare` reads them, and logs in pieces, as they are written."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from glassformer.hub import load
from glassformer.recipes.files import read_recipe
from glassformer.training.compare import read_runs
from glassformer.training.logging.sinks import RunLog, read_log
from glassformer.viewer import queries_runs
from glassformer.viewer.contents import Contents, open_contents, read_text, run_texts
from glassformer.viewer.encode import decode
from glassformer.viewer.queries_runs import LogParams, RunsParams, run_log, runs
from glassformer.viewer.subject import QueryError
from tests.training.small_sessions import trained


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of the toy recipe that differ in one key."""
    folder = tmp_path_factory.mktemp("runs")
    for name, rate in (("quick", "5e-3"), ("slow", "1e-4")):
        changes = ["run.steps=12", "evaluation.every=6", f"optimizer.lr={rate}"]
        trained(read_recipe("toy", changes), folder / name)
    return folder / "quick", folder / "slow"


def ask(contents: Contents, run: int = 0, after: int = 0, file: int | None = None) -> dict:
    return run_log(contents, LogParams(run, after, file))


def test_summaries(pair: tuple[Path, Path]) -> None:
    answer = runs(Contents(runs=pair), RunsParams())
    assert answer["differs"] == ["optimizer.lr"]
    for entry, summary in zip(answer["runs"], read_runs(pair), strict=True):
        assert (entry["name"], entry["error"]) == (summary.name, None)
        assert (entry["steps"], entry["planned"], entry["finished"]) == (12, 12, True)
        assert entry["tokens_per_second"] == summary.tokens_per_second > 0
        assert entry["parameters"] == summary.parameters > 1000
        assert entry["results"] == summary.results
        assert entry["checkpoints"] == [12]
        assert entry["age"] >= 0
    assert [entry["recipe"]["optimizer.lr"] for entry in answer["runs"]] == ["0.005", "0.0001"]


def test_a_log_equals_its_lines(pair: tuple[Path, Path]) -> None:
    answer = ask(Contents(runs=pair), 1)
    lines = read_log(pair[1] / "log.jsonl")
    steps = [line for line in lines if line["kind"] == "step"]
    assert decode(answer["steps"]).tolist() == [line["step"] for line in steps] == list(range(1, 13))
    for name in ("loss", "lr", "grad_norm", "tokens_seen"):
        np.testing.assert_allclose(decode(answer["values"][name]), [line[name] for line in steps], rtol=1e-6)
    speeds = [line["tokens"] / line["measured"]["seconds"] for line in steps]
    np.testing.assert_allclose(decode(answer["values"]["tokens_per_second"]), speeds, rtol=1e-6)
    samples = [(line["step"], line["number"], line["text"]) for line in lines if line["kind"] == "sample"]
    assert [(one["step"], one["number"], one["text"]) for one in answer["samples"]] == samples
    assert {step for step, _, _ in samples} == {0, 6, 12}
    assert "merci" in samples[0][2]
    assert (answer["again"], answer["more"], answer["thinned"]) == (False, False, False)
    # Nothing is new.
    rest = ask(Contents(runs=pair), 1, answer["next"], answer["file"])
    assert decode(rest["steps"]).tolist() == []
    assert rest["next"] == answer["next"]
    assert not rest["again"]


def test_lines_as_they_come(tmp_path: Path) -> None:
    contents, path = Contents(runs=[tmp_path]), tmp_path / "log.jsonl"
    first = ask(contents)
    assert (decode(first["steps"]).tolist(), first["file"], first["next"]) == ([], None, 0), "no log yet"
    with RunLog(path) as log:
        log.write("step", 1, {"loss": 3.0, "lr": 0.1, "tokens": 8}, {"seconds": 0.5})
        second = ask(contents, 0, first["next"], first["file"])
        assert decode(second["steps"]).tolist() == [1]
        assert decode(second["values"]["tokens_per_second"]).tolist() == [16]
        log.write("step", 2, {"loss": float("nan")})
        log.write("validation", 2, {"loss": 2.5, "best": True, "accuracy": 0.5}, {"seconds": 1.0})
        log.write("sample", 2, {"number": 1, "text": "once\nupon"})
        log.write("checkpoint", 2, {"best": True})
        third = ask(contents, 0, second["next"], second["file"])
        assert decode(third["steps"]).tolist() == [2]
        assert np.isnan(decode(third["values"]["loss"])).all()
        assert third["validation"] == [{"step": 2, "loss": 2.5, "best": True, "accuracy": 0.5}]
        assert third["samples"] == [{"step": 2, "number": 1, "text": "once\nupon"}]
        assert third["checkpoints"] == [{"step": 2, "best": True}]
    # Half a line waits for its end.
    with path.open("a") as file:
        file.write('{"kind": "step", "step": 3, "lo')
        file.flush()
        fourth = ask(contents, 0, third["next"], third["file"])
        assert decode(fourth["steps"]).tolist() == []
        assert fourth["next"] == third["next"]
        file.write('ss": 2.0}\n')
        file.flush()
        fifth = ask(contents, 0, fourth["next"], fourth["file"])
        assert decode(fifth["steps"]).tolist() == [3]
        assert decode(fifth["values"]["loss"]).tolist() == [2.0]


def test_a_resumed_run_is_read_again(tmp_path: Path) -> None:
    contents, path = Contents(runs=[tmp_path]), tmp_path / "log.jsonl"
    with RunLog(path) as log:
        for step in (1, 2, 3):
            log.write("step", step, {"loss": 4.0 - step})
    seen = ask(contents)
    assert decode(seen["steps"]).tolist() == [1, 2, 3]
    with RunLog(path, after=1) as log:
        for step in (2, 3, 4, 5):
            log.write("step", step, {"loss": 9.0})
        again = ask(contents, 0, seen["next"], seen["file"])
    assert again["again"]
    assert decode(again["steps"]).tolist() == [1, 2, 3, 4, 5]


def test_a_long_log_is_thinned_and_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents, path = Contents(runs=[tmp_path]), tmp_path / "log.jsonl"
    count = 30_000
    losses = [10.0 / step if step != 777 else 99.0 for step in range(1, count + 1)]
    path.write_text(
        "".join(json.dumps({"kind": "step", "step": n, "loss": loss}) + "\n" for n, loss in enumerate(losses, 1))
    )
    answer = ask(contents)
    steps = decode(answer["steps"])
    assert answer["thinned"]
    assert len(steps) <= 2 * queries_runs.POINTS + 1
    assert 777 in steps, "extremes stay"
    assert steps[-1] == count, "and the newest step"
    monkeypatch.setattr(queries_runs, "BYTES", 2**14)
    seen, piece, rounds = 0, ask(contents), 0
    while True:
        seen, rounds = seen + len(decode(piece["steps"])), rounds + 1
        if not piece["more"]:
            break
        piece = ask(contents, 0, piece["next"], piece["file"])
    assert (seen, piece["next"]) == (count, os.path.getsize(path))
    assert rounds > 50


def test_a_line_without_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries_runs, "BYTES", 1000)
    contents, path = Contents(runs=[tmp_path]), tmp_path / "log.jsonl"
    path.write_text(json.dumps({"kind": "step", "step": 1, "loss": 1.0}) + "\n" + "x" * 999)
    first = ask(contents)
    assert decode(first["steps"]).tolist() == [1]
    assert first["more"]
    half = ask(contents, 0, first["next"], first["file"])  # it may still be being written
    assert (half["next"], half["more"]) == (first["next"], False)
    with path.open("a") as log:
        log.write("x")
    with pytest.raises(QueryError, match=r"log\.jsonl is not the log of a run: a line has more than 1,000 bytes"):
        ask(contents, 0, first["next"], first["file"])


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    empty.mkdir()
    broken.mkdir()
    (broken / "log.jsonl").write_text("not a log\n")
    contents = Contents(runs=[empty, broken])
    waiting, wrong = runs(contents, RunsParams())["runs"]
    assert "has no log yet" in waiting["error"]
    assert "recipe.yaml" in wrong["error"]
    with pytest.raises(QueryError, match="not the log of a run"):
        ask(contents, 1)
    for number in (-1, 2):
        with pytest.raises(QueryError, match="there is no run"):
            ask(contents, number)


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "other"]
    assert queries_runs.run_names(folders) == [str(folders[0]), str(folders[1]), "other"]


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        ("merci\n  target      thanks", "merci"),  # a table
        ("A cat.\n  → 一只猫。\n  = 猫。", "A cat."),  # a source, what the model wrote, the target
        ("It rains. | It is wet.\n  → yes (90%)\n  = yes", "It rains."),  # a pair of texts
        ("a ____ cat\n  → black 10%", "a [MASK] cat"),  # a text with a blank
        ("→ [PER: Marie Curie] was in [LOC: Warsaw].\n  = Marie", "Marie Curie was in Warsaw."),
        ("\n\nOnce upon a time\nthere was", "Once upon a time"),  # what a language model wrote
        (" ".join("word" for _ in range(50)), " ".join("word" for _ in range(12))),
        ("", ""),
    ],
)
def test_the_text_that_a_sample_was_made_from(sample: str, text: str) -> None:
    assert read_text(sample, "[MASK]") == text


def test_a_run_begins_with_its_last_samples(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert run_texts(pair[0], None) == ["merci", "je suis étudiant"]
    assert run_texts(tmp_path, None) == []
    lines = [{"kind": "sample", "step": step, "number": 1, "text": f"text {step}"} for step in (0, 5)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"kind": "sample", "te')
    assert run_texts(tmp_path, None) == ["text 5"]
    # The page opens Learn, unless it is given a text.
    for state, view in (({}, "learn"), ({"text": "merci"}, None), ({"view": "heads"}, "heads")):
        contents = open_contents([str(pair[0])], load, state=state)
        assert (contents.state or {}).get("view") == view
        assert contents.subjects[0].examples == ("merci", "je suis étudiant")
