"""``glassformer account`` as a user meets it: the numbers of a well-known exercise, data for programs, bad options."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from typer.testing import CliRunner, Result

from glassformer import Transformer, hub, preset
from glassformer.cli.main import app
from glassformer.config import change
from tests.cli.test_cli import run_alone
from tests.configs import CONFIGS
from tests.inspect.test_plot import words

REPOSITORY = Path(__file__).parents[2]
KEYS = {
    "name", "family", "mode", "batch", "context", "source", "dtype", "attention", "causal", "optimizer", "parameters",
    "trainable_parameters", "flops", "memory_bytes", "tokens", "forward_flops", "backward_flops", "recomputed_flops",
    "elementwise", "bytes_moved", "shares", "crossings", "kv_cache_bytes", "kv_cache_bytes_per_token", "memory",
    "parts",
}  # fmt: skip
PART_KEYS = {
    "path", "parameters", "flops", "share", "forward_flops", "recomputed_flops", "elementwise", "bytes_moved",
    "activation_bytes", "weights", "products", "parts",
}  # fmt: skip
MEMORY_KEYS = {
    "weights", "gradients", "optimizer", "kv_cache", "kv_cache_per_token", "activations", "checkpointed", "working",
    "peak", "resident",
}  # fmt: skip
SIZES = {"vocab_size": 31, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16}


def ask(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["account", *map(str, arguments)], color=False)


def told(*arguments: object) -> object:
    result = ask(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_the_exercise() -> None:
    shown = ask("cs336-xl")
    assert (shown.exit_code, shown.stderr) == (0, "")
    output = squeezed(shown.stdout)
    for expected in (
        "blocks × 48 1,966,233,600 4,348.654 96.4 %",
        "total 2,127,057,600 4,513.337 100.0 %",
        "total 4,513,336,524,800 100.0 % 100.0 %",
        "ffn 3,019,898,880,000 66.9 % 69.4 %",
        "weights 8.508 GB",
        "the feed-forward networks from context 9,600 on",
        "dense",
    ):
        assert expected in output, expected
    longer = ask("cs336-xl", "--context", 16384)
    assert "149,522,795,724,800" in longer.stdout
    assert "attention 82,463,372,083,200 55.2 % 56.1 %" in squeezed(longer.stdout)
    assert "positions for 1,024 tokens; the costs of 16,384 are hypothetical" in squeezed(longer.stderr)
    assert "positions for" not in longer.stdout


def test_json_has_what_is_promised() -> None:
    data = told("gpt2")
    assert set(data) == KEYS
    assert (data["parameters"], data["flops"], data["memory_bytes"]) == (
        124_439_808,
        291_648_307_200,
        497_759_232,
    )
    assert set(data["memory"]) == MEMORY_KEYS
    assert set(data["parts"][1]) == PART_KEYS
    up = next(part for part in data["parts"] if part["path"] == "decoder")["parts"][0]["parts"][7]
    while up["parts"]:
        up = next(part for part in up["parts"] if part["path"].endswith(("ffn", "up")))
    assert up["path"] == "decoder.blocks.7.ffn.up"
    assert up["weights"] == {"decoder.blocks.7.ffn.up.weight": [3072, 768], "decoder.blocks.7.ffn.up.bias": [3072]}
    [product] = up["products"]
    expected = {"m": 1024, "n": 768, "p": 3072, "times": 1, "pairs": None, "runs": 1, "flops": 4_831_838_208}
    assert product == {"name": "decoder.blocks.7.ffn.up"} | expected
    assert data["crossings"][1] == {"rival": "ffn", "axis": "context", "value": 3072}
    assert data["shares"]["head"]["of_layers"] is None


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One model's config.json as Hugging Face writes it, and a folder of our own."""
    theirs, ours = tmp_path_factory.mktemp("theirs"), tmp_path_factory.mktemp("ours")
    transformers.GPT2Config(**SIZES, architectures=["GPT2LMHeadModel"]).save_pretrained(theirs)
    hub.save(Transformer(change(preset("bert-tiny"), "encoder.layers", 1)), ours)
    return theirs, ours


def test_folders(folders: tuple[Path, Path]) -> None:
    theirs, ours = folders
    data = told(theirs, "--train", "--batch", 2, "--dtype", "bfloat16", "--optimizer", "adamw-8bit")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES))
    assert data["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert (data["mode"], data["context"], data["batch"], data["name"]) == ("train", 16, 2, str(theirs))
    assert data["memory"]["weights"] == 2 * data["parameters"]
    assert told(ours)["family"] == "encoder"


@pytest.mark.slow
def test_loads() -> None:
    written = told("llama-3.2-1b", "--decode", "--batch", 3, "--context", 100, "--dtype", "bfloat16", "--depth", 0)
    assert written["tokens"] == 3
    assert written["kv_cache_bytes"] == 3 * 100 * written["kv_cache_bytes_per_token"] == 3 * 100 * 16 * 2 * 8 * 64 * 2
    pairs = told("t5-small", "--source", 20, "--context", 10, "--depth", 0)
    assert (pairs["source"], pairs["context"]) == (20, 10)
    dense, exact = (told("distilgpt2", "--causal", causal, "--depth", 0)["shares"] for causal in ("dense", "exact"))
    assert exact["attention"]["flops"] * 2 * 1024 == dense["attention"]["flops"] * 1025
    assert exact["ffn"]["flops"] == dense["ffn"]["flops"]
    eager, fused = (
        told("distilgpt2", "--train", "--attention", kernel, "--depth", 0)["memory"] for kernel in ("eager", "sdpa")
    )
    assert eager["activations"] > fused["activations"]


@pytest.mark.slow
def test_csv_has_a_row_per_part() -> None:
    rows = list(csv.DictReader(io.StringIO(ask("gpt2", "--csv").stdout)))
    assert (rows[0]["model"], rows[0]["path"]) == ("gpt2", "")
    assert int(rows[0]["parameters"]) == 124_439_808
    by_path = {row["path"]: row for row in rows}
    assert len(by_path) == len(rows)
    blocks = [int(by_path[f"decoder.blocks.{number}"]["flops"]) for number in range(12)]
    assert sum(blocks) == int(by_path["decoder.blocks"]["flops"])
    several = list(csv.DictReader(io.StringIO(ask("gpt2", "gpt2-xl", "--csv").stdout)))
    assert [row["name"] for row in several] == ["gpt2", "gpt2-xl"]
    assert float(several[0]["ffn_share"]) == pytest.approx(0.398, abs=5e-4)


@pytest.mark.slow
def test_models_side_by_side() -> None:
    shown = squeezed(ask("--compare", "cs336-small", "cs336-xl").stdout)
    assert "cs336-small cs336-xl parameters 190,460,160 2,127,057,600" in shown
    assert "layers only projections 21.4 % 23.1 % attention 14.3 % 7.4 % ffn 64.3 % 69.4 %" in shown
    assert "attention ≥ ffn from 4,608 9,600" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("--compare", "bert-tiny", "bert-mini"),
        pytest.param(("bert-tiny", "bert-mini"), marks=pytest.mark.slow),
        pytest.param(("--compare", "bert-tiny", "--compare", "bert-mini"), marks=pytest.mark.slow),
        pytest.param(("bert-tiny", "--compare", "bert-mini"), marks=pytest.mark.slow),
    ],
)
def test_models_to_compare_are_named_in_any_way(arguments: tuple[str, ...]) -> None:
    assert [one["name"] for one in told(*arguments, "--depth", 0)] == ["bert-tiny", "bert-mini"]


def test_a_change_shows_what_it_costs() -> None:
    result = ask("bert-tiny", "--context", 8, "--change", "encoder.layers=1", "--change", "encoder.ffn.hidden=256")
    assert (result.exit_code, result.stderr) == (0, "")
    text = squeezed(result.stdout)
    assert text.startswith("bert-tiny, with encoder.layers=1, encoder.ffn.hidden=256: one forward pass, batch 1")
    assert "before after parameters 4,416,698 4,152,634 −6.0 % FLOPs, MFLOP" in text
    assert re.search(r"  ffn +6\.1 % +1\.6 % *\n", result.stdout)
    assert "Unchanged: context." in text


def test_a_changed_model_as_data() -> None:
    before, after = told("bert-tiny", "--context", 8, "--change", "encoder.layers=1")
    assert [before["name"], after["name"]] == ["bert-tiny", "bert-tiny, encoder.layers=1"]
    assert before["parameters"] - after["parameters"] == 198_272
    single = told("bert-tiny", "--context", 8, "--change", "encoder.layers=1", "--explain", "memory")
    assert single["name"] == "bert-tiny, encoder.layers=1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("stories", "--change", "decoder.layers"), "--change is FACT=VALUE, such as decoder.attention.kv_heads=1"),
        (("stories", "--change", "decoder.layer=3"), "Did you mean 'layers'?"),
        (("stories", "en-zh", "--change", "width=8"), "--change takes one model; got stories, en-zh."),
        (("stories", "--change", "decoder.attention.kv_heads=3"), "kv_heads"),
    ],
)
def test_impossible_changes_are_refused(arguments: tuple[str, ...], message: str) -> None:
    result = ask(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_compare_draws(tmp_path: Path) -> None:
    path = tmp_path / "shares.svg"
    drawn = ask("--compare", "bert-tiny", "bert-mini", "--plot", path)
    assert drawn.exit_code == 0, drawn.stderr
    assert path.name in drawn.stderr
    assert {"bert-mini", "bert-tiny"} <= set(words(path))


@pytest.mark.slow
def test_sweeps(tmp_path: Path) -> None:
    sweep = ("cs336-small", "--sweep", "context=8192..16384")
    shown = ask(*sweep, "--plot", tmp_path / "a.png")
    assert "16,384 14.871 6.2 % 66.5 % 18.7 % 8.5 %" in squeezed(shown.stdout)
    assert "the feed-forward networks from context 4,608 on" in shown.stdout
    assert (tmp_path / "a.png").exists()
    data = told("cs336-small", "--sweep", "context=512,1024", "--depth", 0)
    assert (data["sweep"], [one["context"] for one in data["accounts"]]) == ("context", [512, 1024])
    assert data["accounts"][-1]["flops"] == told("cs336-small", "--depth", 0)["flops"]
    assert data["crossings"][0] == {"rival": "projections", "axis": "context", "value": 1536}
    rows = list(csv.DictReader(io.StringIO(ask("t5-small", "--sweep", "source=8,32", "--csv").stdout)))
    assert [row["source"] for row in rows] == ["8", "32"]
    batches = told("distilgpt2", "--sweep", "batch=1..2", "--depth", 0)
    assert batches["accounts"][1]["flops"] == 2 * batches["accounts"][0]["flops"]


def test_explain() -> None:
    shown = squeezed(ask("distilgpt2", "--explain", "blocks.0.ffn").stdout)
    for expected in (
        "up.weight hidden × width = 3,072 × 768 = 2,359,296",
        "up.bias hidden = 3,072",
        "up 2 · batch·tokens · width · hidden = 2 · 1,024 · 768 · 3,072 = 4,831,838,208 (4.832 GFLOP)",
        "total 9,663,676,416 (9.664 GFLOP), 5.2 % of the model's",
    ):
        assert expected in shown, expected
    memory = squeezed(ask("distilgpt2", "--explain", "memory").stdout)
    assert "weights parameters · bytes per number = 81,912,576 · 4 = 327,650,304 (327.7 MB)" in memory
    data = told("distilgpt2", "--explain", "blocks.0.ffn")
    assert data["subject"] == "decoder.blocks.0.ffn"
    line = {"what": "up.bias", "formula": "hidden", "numbers": "3,072", "value": 3072}
    assert line in data["sections"][0]["lines"]
    assert data["sections"][0]["total"] == 2 * 768 * 3072 + 768 + 3072


@pytest.mark.slow
def test_on_a_device() -> None:
    shown = ask("cs336-small", "--hardware", "H100", "--dtype", "bfloat16")
    assert "H100 is taken to be H100 SXM" in shown.stderr
    assert "Time on H100 SXM" in shown.stdout
    assert "tokens/s" in shown.stdout
    data = told("gpt2", "--flops", "1e12", "--bandwidth", "1e30", "--depth", 0)["roofline"]
    assert data["seconds"] == pytest.approx(291_648_307_200 / 1e12)
    assert (data["bound"], data["compute_share"]) == ("compute", pytest.approx(1))
    written = told("distilgpt2", "--decode", "--hardware", "h100-sxm", "--depth", 0)["roofline"]
    assert written["bound"] == "memory"
    assert sum(one["seconds"] for one in written["work"]) == pytest.approx(written["seconds"])
    several = squeezed(ask("bert-tiny", "bert-mini", "--hardware", "T4").stdout)
    assert "bound by" in several


@pytest.mark.slow
def test_a_training_run() -> None:
    wish = (
        "cs336-small",
        "--devices",
        64,
        "--hardware",
        "H100 SXM",
        "--parallel",
        "fsdp",
        "--mfu",
        0.5,
        "--tokens",
        "300e9",
    )
    shown = squeezed(ask(*wish, "--dtype", "bfloat16").stdout)
    assert "weights weight_bytes / devices = 380,920,320 / 64 = 5.952 MB" in shown
    assert "It fits." in shown
    plan = told(*wish, "--dtype", "bfloat16", "--depth", 0)["plan"]
    assert (plan["devices"], plan["parallel"], plan["mfu"], plan["tokens"]) == (64, "fsdp", 0.5, 300e9)
    assert plan["tokens_per_second"] == pytest.approx(64 * 989.4e12 * 0.5 / (3 * 349_630_365_696 / 1024))
    assert plan["fits"] is True
    assert squeezed(ask("gpt-j-6b", "--devices", 1, "--hardware", "T4").stdout).count("It does not fit.") == 1


def test_devices_are_listed_with_their_sources() -> None:
    shown = ask("--list-hardware").stdout
    assert "H100 SXM" in shown
    assert "whitepaper" in shown
    assert {"name", "flops_per_second", "bytes_per_second", "memory_bytes", "source"} == set(told("--list-hardware")[0])


@pytest.mark.slow
def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.inspect.account import measure

    monkeypatch.setattr(measure, "PRODUCT_SECONDS", 1e-4)
    monkeypatch.setattr(measure, "MAX_COPY", 2**20)
    alone = ask("--measure")
    assert "float32 matrix products" in alone.stdout
    assert "memory bandwidth" in alone.stdout
    assert told("gpt2", "--measure", "--depth", 0)["roofline"]["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a model: glassformer account gpt2-xl"),
        (("--measure", "--explain", "flops"), "name a model"),
        (("gpt2-xll",), "'gpt2-xl'"),
        (("distilgpt2", "--explain", "blocks.0.fnn"), "Did you mean decoder.blocks.0.ffn"),
        (("distilgpt2", "--hardware", "H1000"), "Did you mean 'H100 SXM'"),
        (("distilgpt2", "--hardware", "A100"), "'A100 SXM 40GB' or 'A100 SXM 80GB'"),
        (("distilgpt2", "--hardware", "H1000"), "set --flops (FLOP/s) and --bandwidth"),
        (("gpt2", "--plot", "shares"), "Use shares.svg"),
        (("gpt2", "--plot", "shares.pdf"), ".svg or .png"),
        (("gpt2", "--sweep", "context"), "context=1024..65536"),
        (("gpt2", "--sweep", "contxt=1..2"), "Did you mean 'context'"),
        (("distilgpt2", "--sweep", "source=1..2"), "vary the context"),
        (("gpt2", "--sweep", "context=1..2", "--context", "3"), "leave out the first"),
        (("gpt2", "gpt2-xl", "--sweep", "context=1..2"), "--sweep takes one model"),
        (("gpt2", "--explain", "flops", "--csv"), "leave out --csv"),
        (("gpt2", "--explain", "flops", "--sweep", "batch=1,2"), "choose one"),
        (("gpt2", "--json", "--csv"), "choose one"),
        (("gpt2", "--train", "--decode"), "choose one"),
        (("gpt2", "--source", "4"), "use --context"),
        (("bert-tiny", "--decode"), "bert-tiny is an encoder"),
        (("gpt2", "--optimizer", "adamw"), "add --train"),
        (("gpt2", "--train", "--optimizer", "adam"), "Did you mean 'adamw'"),
        (("gpt2", "--dtype", "float31"), "--dtype must be one of"),
        (("gpt2", "--dtype", "float64", "--hardware", "T4"), "use --dtype float32"),
        (("gpt2", "--attention", "flash"), "--attention must be one of eager, sdpa"),
        (("gpt2", "--causal", "half"), "--causal must be one of dense, exact"),
        (("gpt2", "--flops", "1e12"), "needs both --flops and --bandwidth"),
        (("gpt2", "--flops", "-1", "--bandwidth", "1"), "--flops must be a finite number above 0"),
        (("gpt2", "--hardware", "T4", "--measure"), "choose one"),
        (("distilgpt2", "--hardware", "TPU v4"), "has no peak for float32"),
        (("gpt2", "--devices", "4"), "--devices needs a device"),
        (("gpt2", "--tokens", "1e9"), "set the number of devices: --devices"),
        (("gpt2", "--devices", "4", "--hardware", "T4", "--mfu", "2"), "at most 1"),
        (("gpt2", "--devices", "4", "--hardware", "T4", "--parallel", "pipeline"), "--parallel must be one of"),
    ],
)
def test_nonsense_is_one_paragraph_and_code_2(arguments: tuple[str, ...], message: str) -> None:
    refused = ask(*arguments)
    assert refused.exit_code == 2
    assert refused.stdout == ""
    [*notes, output] = refused.stderr.strip().splitlines()
    assert output.startswith("error: ")
    assert message in output
    assert all(line.startswith("note: ") for line in notes)


@pytest.mark.parametrize("name", ["--batch", "--context", "--source", "--devices"])
@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_sizes_are_whole_numbers_from_1(name: str, value: str) -> None:
    refused = ask("t5-small", name, value)
    assert refused.exit_code == 2
    assert f"Invalid value for '{name}'" in refused.stderr


def test_heads_that_do_not_divide(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 768, "n_head": 7}))
    refused = ask(tmp_path)
    assert refused.exit_code == 2
    assert "n_head=7 does not divide n_embd=768; values near it that do: 4, 6, 8" in refused.stderr


def test_matplotlib_is_asked_for_by_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused = ask("gpt2", "--plot", tmp_path / "a.svg")
    assert refused.exit_code == 2
    assert "pip install 'glassformer[plot]'" in refused.stderr
    assert refused.stdout == ""


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([["bert-tiny", "--train", "--hardware", "H100 SXM", "--devices", "2"]], id="a plan"),
        pytest.param(
            [
                ["bert-tiny"],
                ["bert-tiny", "--json"],
                ["bert-tiny", "--explain", "blocks.0.ffn"],
                ["bert-tiny", "bert-mini", "--csv"],
                ["bert-tiny", "--sweep", "context=64..256"],
            ],
            id="others",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_nothing_heavy_is_imported(lines: list[list[str]]) -> None:
    code = (
        "import sys\nfrom glassformer.cli.main import app\n"
        f"for line in {lines!r}:\n"
        "    try:\n        app(['account', *line])\n    except SystemExit as end:\n        assert not end.code\n"
        "heavy = ('matplotlib', 'transformers')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert done.stdout


@pytest.mark.slow
def test_in_a_process_of_its_own() -> None:
    shown = run_alone("account", "bert-tiny", "--depth", "1")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "4,416,698" in shown.stdout
    assert "\x1b" not in shown.stdout


@pytest.mark.slow
def test_the_documentation_shows_what_is_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.inspect.accounting_page", str(tmp_path)]
    subprocess.run(command, check=True, cwd=REPOSITORY, capture_output=True)
    docs, again = REPOSITORY / "docs", tmp_path / "accounting.md"
    page = (docs / again.name).read_text(encoding="utf-8")
    assert again.read_text(encoding="utf-8") == page, "run python -m tests.inspect.accounting_page"
    drawn = sorted(tmp_path.glob("*.svg"))
    assert len(drawn) == 2
    for path in drawn:
        assert words(path) == words(docs / "images" / path.name)


@pytest.mark.parametrize(
    "mode", [("--train",), *(pytest.param(m, marks=pytest.mark.slow) for m in ((), ("--decode",)))]
)
def test_a_run_on_this_machine_stands_beside_the_estimate(tmp_path: Path, mode: tuple[str, ...]) -> None:
    hub.save(Transformer(CONFIGS["gpt2"]), tmp_path)
    found = told(tmp_path, "--context", 8, "--batch", 2, "--run", "--flops", 1e15, "--bandwidth", 1e12, *mode)
    assert isinstance(found, dict)
    run_here = found["run"]
    assert run_here["seconds"] > 0
    assert run_here["tokens_per_second"] == pytest.approx(found["tokens"] / run_here["seconds"])
    assert run_here["flops_per_second"] == pytest.approx(found["flops"] / run_here["seconds"])
    assert run_here["share_of_peak"] == pytest.approx(run_here["flops_per_second"] / 1e15)
    assert "Measured on this machine" in ask(tmp_path, "--context", 8, "--run", *mode).stdout


def test_a_run_of_a_plan_and_of_several(tmp_path: Path) -> None:
    hub.save(Transformer(CONFIGS["gpt2"]), tmp_path)
    own = ("--flops", 1e15, "--bandwidth", 1e12)
    assert "Measured on this machine" in ask(tmp_path, "--context", 8, "--run", "--devices", 2, *own).stdout
    assert "time, measured" in ask(tmp_path, tmp_path, "--context", 8, "--run").stdout


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    sizes = {"n_embd": 2**18, "n_layer": 1, "n_head": 2**12, "vocab_size": 64}
    transformers.GPT2Config(**sizes, architectures=["GPT2LMHeadModel"]).save_pretrained(tmp_path)
    large = ask(tmp_path, "--context", 8, "--run")
    assert (large.exit_code, large.stdout) == (2, "")
    assert re.search(r"needs 3\d\d\d\.\d GB to run, and cpu has", squeezed(large.stderr))
    swept = ask("distilgpt2", "--run", "--sweep", "context=8,16")
    assert swept.exit_code == 2
    assert "leave out --sweep" in squeezed(swept.stderr)


def test_a_folder_may_have_the_name_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hub.save(Transformer(CONFIGS["gpt2"]), "blocks")
    shown = squeezed(ask("blocks").stdout)
    assert "embed" in shown
    assert "blocks × 2" in shown


def test_a_path_that_is_not_there_is_called_a_path() -> None:
    assert "there is no folder or file" in squeezed(ask("no/such/folder").stderr)


def test_of_several_parts_of_a_name_the_others_are_told() -> None:
    found = ask("t5-small", "--explain", "blocks.0.ffn")
    assert "there are also decoder.blocks.0.ffn" in squeezed(found.stderr)


def test_csv_has_no_times() -> None:
    found = ask("gpt2", "--csv", "--hardware", "H100")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "no column for times" in squeezed(found.stderr)


def test_the_plan_of_a_group_and_checkpointing() -> None:
    shown = ask("distilgpt2", "--devices", 4, "--hardware", "H100", "--parallel", "tensor", "--recompute").stdout
    assert "across all devices" in squeezed(shown)
    assert ask("gpt2", "--recompute").exit_code == 2
