"""Plots: their format follows the suffix, they contain the expected texts, and they are reproducible."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from glassformer import account
from glassformer.inspect.account.plot import check_plot, plot_models, plot_sweep
from glassformer.inspect.account.sweep import Sweep, crossings, run_sweep
from tests.configs import CONFIGS
from tests.inspect.counting import shallow

SVG = "{http://www.w3.org/2000/svg}"


def words(path: Path) -> list[str]:
    """The texts of an SVG file, line by line."""
    root = ElementTree.fromstring(path.read_bytes())
    assert root.tag == f"{SVG}svg"
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def places(path: Path) -> dict[str, tuple[float, float]]:
    """Where each text stands."""
    root = ElementTree.fromstring(path.read_bytes())
    positions = {}
    for text in root.iter(f"{SVG}text"):
        moved = re.match(r"translate\((\S+) (\S+)\)", text.get("transform", ""))
        x, y = moved.groups() if moved else (text.get("x", 0), text.get("y", 0))
        positions["".join(text.itertext())] = (float(x), float(y))
    return positions


def test_models_side_by_side(tmp_path: Path) -> None:
    accounts = [account("gpt2"), account("cs336-small")]
    plot_models(accounts, tmp_path / "shares.svg")
    texts = words(tmp_path / "shares.svg")
    for expected in (
        "Where the FLOPs go, model by model", "one forward pass, batch 1, 1,024 tokens", "gpt2", "cs336-small",
        "349.6 GFLOP", "291.6 GFLOP", "49.8", "19.9", "share of the FLOPs of all matrix products, %", "head",
        "feed-forward network", "projections q, k, v, o",
    ):  # fmt: skip
        assert expected in texts, expected
    assert "other" not in texts  # neither has anything else


@pytest.mark.slow
def test_models_of_different_contexts_show_theirs(tmp_path: Path) -> None:
    plot_models([account("gpt2"), account("deberta-v2-xlarge", mode="train")], tmp_path / "a.svg")
    texts = words(tmp_path / "a.svg")
    assert {"1,024 tokens", "512 tokens", "other"} <= set(texts)


@pytest.mark.slow
def test_a_sweep_marks_where_attention_overtakes(tmp_path: Path) -> None:
    base = replace(account(shallow("cs336-xl")), name="cs336-xl")
    sweep = Sweep("context", (1024, 4096, 16384))
    plot_sweep(run_sweep(base, sweep), sweep, crossings(base), tmp_path / "context.svg")
    texts = words(tmp_path / "context.svg")
    for expected in (
        "Where the FLOPs of cs336-xl go, by context", "attention = feed-forward", "at 9,600", "attention = projections",
        "at 3,200", "1,024", "14.88 TFLOP", "context, tokens (and total FLOPs)",
    ):  # fmt: skip
        assert expected in texts, expected
    narrow = Sweep("context", (1024, 2048))
    plot_sweep(run_sweep(base, narrow), narrow, crossings(base), tmp_path / "narrow.svg")
    assert not [text for text in words(tmp_path / "narrow.svg") if "attention =" in text]


@pytest.mark.slow
def test_close_marks_do_not_overlap(tmp_path: Path) -> None:
    base, sweep = account(shallow("t5-v1_1-large")), Sweep("context", (128, 4096))
    plot_sweep(run_sweep(base, sweep), sweep, crossings(base), tmp_path / "close.svg")
    where = places(tmp_path / "close.svg")
    first, second = where["attention = projections"], where["attention = feed-forward"]
    assert 0 < first[0] < second[0]
    assert abs(first[0] - second[0]) > 170 or abs(first[1] - second[1]) > 24  # points: as wide and high as the words


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_same_bytes_every_time(tmp_path: Path, suffix: str) -> None:
    """In another process too: nothing depends on the date, on hashes or on what was drawn before."""
    sweep = Sweep("context", (512, 1024))
    plot_sweep(run_sweep(account("gpt2"), sweep), sweep, [], tmp_path / "a.png")
    plot_models([account("gpt2")], tmp_path / f"1.{suffix}")
    code = "import sys; from pathlib import Path; from glassformer import account\n"
    code += (
        "from glassformer.inspect.account.plot import plot_models; plot_models([account('gpt2')], Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / f"2.{suffix}"], check=True, env={"PYTHONHASHSEED": "7"})
    assert (tmp_path / f"1.{suffix}").read_bytes() == (tmp_path / f"2.{suffix}").read_bytes()


def test_png_is_png(tmp_path: Path) -> None:
    plot_models([account(CONFIGS["gpt2"])], tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("name", "message"), [("a", "Use a.svg"), ("a.pdf", r"\.svg or \.png"), ("no/a.svg", "no folder")]
)
def test_wrong_paths_are_refused_first(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_plot(tmp_path / name)


def test_one_value_is_no_curve(tmp_path: Path) -> None:
    sweep = Sweep("context", (64,))
    with pytest.raises(ValueError, match="at least two values; got context=64"):
        plot_sweep(run_sweep(account(CONFIGS["gpt2"]), sweep), sweep, [], tmp_path / "a.svg")


def test_matplotlib_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'glassformer\[plot\]'"):
        plot_models([account("gpt2")], tmp_path / "a.svg")
