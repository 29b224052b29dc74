"""The benchmarks of a GPU run, in tiny sizes on a CPU; the page of their results is up to date. No figure is tested."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import report
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import check, encoding, rows, timing
from glassformer.inspect.account import account

ALWAYS = ("train-lm-bytes", "train-transformer", "long-window-256")  # the others import transformers
CEILINGS = timing.Ceilings("a machine", 1e12, 1e11)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> rows.Setup:
    monkeypatch.setattr(rows, "measure_ceilings", lambda _: CEILINGS)
    return rows.Setup(device="cpu", quick=True)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ALWAYS else pytest.mark.slow) for n in rows.all_rows()]
)
@pytest.mark.filterwarnings("ignore")  # of the peers
def test_a_row_measures_everybody_and_is_reported(name: str, quick: rows.Setup, tmp_path: Path) -> None:
    if name not in ALWAYS:
        pytest.importorskip("transformers")
    result = rows.run_row(name, quick, tmp_path)
    page = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert len(page["measurements"]) == len(result.measurements) > 1
    for found in result.measurements:
        assert found.rate is not None or found.note.startswith("not measured: --peer nanogpt"), found
    text = report.table(report.read_results(tmp_path))
    assert all(f"| {found.name} |" in text for found in result.measurements)
    assert "a machine" in text


def test_a_peer_of_no_row_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu", "--list", "--peer", "nanogtp=there"])
    with pytest.raises(SystemExit):
        command.main()
    assert "no row has a peer called nanogtp; known: nanogpt." in capsys.readouterr().err


def test_a_contestant_that_fails_leaves_the_others() -> None:
    def broken() -> timing.Timing:
        raise RuntimeError("no such kernel\nand more")

    def silent() -> timing.Timing:
        raise AssertionError

    assert rows.contestant("peer", broken, 1.0).note == "failed: RuntimeError: no such kernel"
    assert rows.contestant("peer", silent, 1.0).note == "failed: AssertionError: "
    assert rows.contestant("peer", lambda: timing.Timing(0.5, None, 1.0), 10.0).rate == 20.0


def test_a_ratio_is_ours_divided_by_theirs() -> None:
    page = {
        "unit": "tokens",
        "floor_seconds": 0.5,
        "values": {"factor": 2.0},
        "measurements": [
            {"name": "ours", "rate": 300.0, "seconds": 1.0, "peak_bytes": 2**30, "note": ""},
            {"name": "peer", "rate": 200.0, "seconds": 1.5, "peak_bytes": None, "note": ""},
            {"name": "other", "rate": None, "note": "not measured: why"},
        ],
    }
    assert report.row_table(page)[2:] == [
        "| ours | 300 | 1.00 s | 1.0 GiB | 50% |  |",
        "| peer | 200 | 1.50 s |  | 33% | 1.50 |",
        "| other | not measured: why | | | | |",
        "",
        "factor: 2.",
    ]


def test_flops_of_texts_are_those_of_each_length() -> None:
    facts = encoding.facts_of("bert", "none", num_hidden_layers=2, num_attention_heads=2, hidden_size=32)
    lengths = [9, 9, 100, 333]
    assert encoding.flops_of_texts(facts, lengths) == pytest.approx(
        sum(account(facts, context=length).flops for length in lengths), rel=1e-12
    )


def test_the_page_is_made_from_the_stored_results() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.page_text(), "run python -m benchmarks.report"


@pytest.mark.slow
def test_every_fast_path_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.run_checks("cpu", quick=True) == 0
    printed = capsys.readouterr().out
    for name in ("causal", "padding", "by blocks", "fused loss", "fused modules, sdpa: BERT"):
        assert name in printed


@pytest.mark.parametrize("change", [1e-2, float("nan")])
def test_a_fast_path_that_is_off_is_noticed(change: float) -> None:
    def run(dtype: torch.dtype, fast: bool) -> dict[str, Tensor]:
        exact = torch.arange(1.0, 9.0, dtype=torch.float64).to(dtype)
        return {"out": exact + change * exact if fast else exact}

    found, bound = check.compare(check.Check("wrong", run), torch.float32)
    assert not found <= bound
