"""``glassformer train`` and ``evaluate`` as programs: killed, starved of disk, asked for nonsense, run side by side."""

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import glassformer
from glassformer.cli.main import app
from glassformer.training.checkpoint_folders import Checkpoints, check
from glassformer.training.logging.progress import Monitor
from glassformer.training.logging.sinks import read_log
from glassformer.training.loop import StepReport
from glassformer.training.stopping import StopSignals
from tests.forked import Forked, program, run
from tests.helpers import file_size_limit, some_at_once
from tests.training.tiny_recipes import tiny

ROOT = Path(__file__).parents[2]
ALONE = {"OMP_NUM_THREADS": "1", "JAXTYPING_DISABLE": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
SOME = (
    "run.steps=24", "run.checkpoint_every=5", "evaluation.every=8", "evaluation.samples=1", "batch.micro_batches=2",
    "run.average=0.9",
)  # fmt: skip


def call(*arguments: str, most: int | None = None) -> Any:
    """In a process of its own, which may write files of at most so many bytes."""
    return run(limited, most, *arguments, environment=ALONE)


def limited(most: int | None, *arguments: str) -> None:
    """The program; as if on a full disk, nothing longer can be written, and writing it is an error, not a signal."""
    if most is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with nullcontext() if most is None else file_size_limit(most):
        program(*arguments)


def ask(*arguments: str, kept: list[bool] | None = None) -> Result:
    """The same without a process of its own, where neither its end nor the last bit of a number is at stake.

    ``kept`` gets an item for each time that it is told to keep freed memory.
    """
    kept = [] if kept is None else kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "glassformer.training.malloc.keep_freed_memory", lambda: kept.append(True)
        )  # else for all to come
        return CliRunner().invoke(app, list(arguments), color=False, env={"COLUMNS": "100"})


def language(folder: Path, *changes: str) -> list[str]:
    """A tiny language model with dropout, whose random numbers must go on as well."""
    folder.mkdir(exist_ok=True)
    return ["train", "lm-bytes", *tiny("lm-bytes", folder, "bytes"), *SOME, "model.sizes.resid_pdrop=0.1", *changes]


def to_its_end(folder: Path) -> None:
    begun, arguments = time.perf_counter(), language(folder)
    done = call(*arguments, "--out", str(folder / "out"))
    (folder / "arguments").write_text(json.dumps(arguments))
    (folder / "seconds").write_text(str(time.perf_counter() - begun))
    assert done.returncode == 0, done.stderr
    assert "Model:" in done.stdout


@pytest.fixture(scope="module")
def unbroken(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    return made_once("unbroken-program", to_its_end)


def again(unbroken: Path, *changes: str) -> list[str]:
    """The same run, without its rows being written anew where others read them."""
    return [*json.loads((unbroken / "arguments").read_text()), *changes]


def log_of(out: Path) -> list[dict[str, object]]:
    return [{key: value for key, value in line.items() if key != "measured"} for line in read_log(out / "log.jsonl")]


def assert_same(one: Path, other: Path) -> None:
    assert log_of(one) == log_of(other)
    files = [check(Checkpoints(out / "checkpoints").latest())["files"] for out in (one, other)]  # type: ignore[arg-type]
    assert files[0] == files[1]
    for name in ("model/model.safetensors", "results.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def kill_at_random(arguments: list[str], out: Path, seed: int, kills: int, longest: float) -> None:
    """Kill −9 so many times at random moments, then let it end."""
    draw = random.Random(seed)
    for _ in range(kills):
        more = ["--resume"] if (out / "recipe.yaml").exists() else []
        with Forked(program, *arguments, "--out", str(out), *more, "--quiet", environment=ALONE) as it:
            time.sleep(draw.uniform(0.5, 1) * longest)
            it.send_signal(signal.SIGKILL)
    more = ["--resume"] if (out / "recipe.yaml").exists() else []
    done = call(*arguments, "--out", str(out), *more)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kills", some_at_once([1, 20], {1}.__contains__))
def test_a_run_that_is_killed_ends_as_if_it_had_not_been(unbroken: Path, tmp_path: Path, kills: int) -> None:
    longest = float((unbroken / "seconds").read_text())
    kill_at_random(again(unbroken), tmp_path / "out", seed=kills, kills=kills, longest=longest)
    assert_same(unbroken / "out", tmp_path / "out")


@pytest.mark.slow  # of the others, the run after a full disk shows it: it begins anew
def test_two_runs_of_the_same_thing_are_the_same(unbroken: Path, tmp_path: Path) -> None:
    done = call(*again(unbroken), "--out", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    assert_same(unbroken / "out", tmp_path / "again")


def test_an_unfinished_run_goes_on_without_its_recipe_being_said_again(unbroken: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(unbroken / "out", out)
    done = ask(*again(unbroken, "optimizer.lr=1e-3"), "--out", str(out), "--resume")
    assert done.exit_code == 2
    assert "  optimizer.lr: was 0.005, is 0.001" in done.stderr
    kept: list[bool] = []
    done = ask(*again(unbroken), "--out", str(out), "--resume", kept=kept)
    assert done.exit_code == 0, done.stderr
    assert len(kept) == 1
    done = ask("train", "run.keep_memory=false", "--out", str(out), "--resume", kept=kept)  # it may be another
    assert done.exit_code == 0, done.stderr
    assert len(kept) == 1
    assert_same(unbroken / "out", out)
    sized = ask("train", "run.size=small", "--out", str(out), "--resume")
    assert "a run that is resumed keeps the size it began with; leave out run.size." in sized.stderr
    process = call("train", "--out", str(tmp_path / "none"), "--resume")
    assert process.returncode == 2
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_are_heard(how: signal.Signals) -> None:
    before = signal.getsignal(how)
    with StopSignals() as signals:
        assert not signals.received
        signal.raise_signal(how)
        assert signals.received
    assert signal.getsignal(how) == before


def test_a_signal_is_answered_while_python_waits_for_a_long_computation() -> None:
    """Python's own handlers run when the call has returned; the call here returns by the answer alone."""
    read, written = os.pipe()
    late = threading.Timer(60, os.write, (written, b"-"))  # so that a failure is no endless wait
    found = ctypes.create_string_buffer(1)
    with StopSignals(lambda: os.write(written, b"+")):
        signal.siginterrupt(signal.SIGINT, False)  # let the system go on with the call
        late.start()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        ctypes.CDLL(None).read(read, found, 1)
    late.cancel()
    assert found.value == b"+"


def test_a_run_that_is_stopped_twice_says_what_its_checkpoints_are_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def stop_at(step: int) -> None:
        def told(_: Monitor, report: StepReport, *__: object) -> dict[str, object]:
            if report.step == step:
                raise KeyboardInterrupt
            return {}

        monkeypatch.setattr(Monitor, "step", told)

    stop_at(7)
    done = ask(*language(tmp_path), "--out", str(out))
    assert done.exit_code == 130
    last = out / "checkpoints" / "step-00000005"
    assert f"can be used as a model: {last}. Resume with: glassformer train --out {out} --resume" in done.stdout
    glassformer.load(last)
    stop_at(1)
    done = ask(*language(tmp_path), "--out", str(tmp_path / "none"))
    assert "Stopped before the first checkpoint. Resume with" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("how", some_at_once([signal.SIGINT, signal.SIGTERM], {signal.SIGINT}.__contains__))
def test_a_run_that_is_asked_to_stop_writes_a_checkpoint_first(
    unbroken: Path, tmp_path: Path, how: signal.Signals
) -> None:
    out = tmp_path / "out"
    with Forked(program, *again(unbroken), "--out", str(out), environment=ALONE) as it:
        lines = []
        for line in map(bytes.decode, it.stdout):
            lines.append(line)
            if line.startswith("step 1 "):
                it.send_signal(how)
        errors = it.stderr.read().decode()
    assert it.returncode == 130, "".join(lines) + errors
    assert f"--out {out} --resume" in lines[-1]
    assert "stopping after this step" in "".join(lines) + errors
    last = Checkpoints(out / "checkpoints").latest()
    assert last is not None
    best = Checkpoints(out / "checkpoints").best() or last
    assert f"of step {int(best.name.removeprefix('step-'))}: {out / 'model'}" in lines[-1]
    assert (out / "model" / "model.safetensors").read_bytes() == (best / "model.safetensors").read_bytes()
    glassformer.load(out / "model")
    assert read_log(out / "log.jsonl")[-1]["step"] == int(last.name.removeprefix("step-")) < 24
    done = call("train", "--out", str(out), "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(unbroken / "out", out)


@pytest.mark.slow
def test_a_full_disk_is_told_and_what_was_there_stays(unbroken: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    large = (*again(unbroken), "--out", str(out), "--quiet")
    done = call(*large, most=40_000)
    assert done.returncode == 2
    assert "could not be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert Checkpoints(out / "checkpoints").all() == []
    done = call(*large, "--resume")  # there is room again
    assert done.returncode == 0, done.stderr
    assert_same(unbroken / "out", out)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only folders")
def test_a_folder_that_may_not_be_written_to_is_told(unbroken: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = call(*again(unbroken), "--out", str(tmp_path / "out"))
    tmp_path.chmod(0o700)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("harm", ["cut", "changed", "missing"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_loads(unbroken: Path, tmp_path: Path, harm: str) -> None:
    out = tmp_path / "out"
    shutil.copytree(unbroken / "out", out)
    *_, before, last = Checkpoints(out / "checkpoints").all()
    file = last / "model.safetensors"
    content = file.read_bytes()
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(content[:-7] if harm == "cut" else content[:-7] + bytes([content[-7] ^ 1]) + content[-6:])
    done = ask("train", "--out", str(out), "--resume")
    assert done.exit_code == 2
    assert "model.safetensors" in done.stderr
    assert str(before.name) in done.stderr
    glassformer.load(before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "name a recipe"),
        (["train", "lm-byte"], "Did you mean 'lm-bytes'"),
        (["train", "translate"], "data.train.source=FILE data.train.target=FILE"),
        (["train", "classify", "data.train=nowhere.csv"], "nowhere.csv"),
        (["train", "finetune", "data.train=x.jsonl"], "model.start=FOLDER"),
        (["train", "lm-bytes", "model.sizes.n_layers=2", "data.limit=9"], "Did you mean 'n_layer'"),
        (["train", "lm-bytes", "batch.length=1000", "data.limit=9"], "positions of the model"),
        (["evaluate", "nowhere", "x.txt"], "nowhere"),
        (["evaluate", "nowhere", "x.txt", "run.device=cuda"], "run.device changes nothing here; use --device"),
        (["evaluate", "nowhere", "x.txt", "data.format=text", "--format", "jsonl"], "set it once: --format jsonl or"),
        (["evaluate", "nowhere", "x.txt", "data.train=y.txt"], "batch.examples, batch.length, batch.tokens, data."),
    ],
)
def test_nonsense_gets_one_clear_sentence(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ask(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_recipes_are_listed_and_printed_whole() -> None:
    listed = ask("train", "--list")
    assert listed.exit_code == 0
    assert "bigbird-4096" in listed.stdout
    assert "[en, de]" in listed.stdout  # no markup is made of it
    assert not any(line.endswith(" ") for line in listed.stdout.splitlines())
    printed = ask("train", "translate", "optimizer.lr=2e-3", "--print-config")
    assert "lr: 0.002" in printed.stdout
    assert "length_penalty: 1.0" in printed.stdout  # the job's own options, too


def test_a_recipe_may_lie_under_a_name_with_an_equals_sign(tmp_path: Path) -> None:
    path = tmp_path / "lang=en" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(ask("train", "lm-bytes", "optimizer.lr=2e-3", "--print-config").stdout)
    printed = ask("train", str(path), "optimizer.warmup=7", "--print-config")
    assert "lr: 0.002" in printed.stdout
    assert "warmup: 7" in printed.stdout


def test_the_groups_of_the_optimizer_are_listed(tmp_path: Path) -> None:
    done = ask(*language(tmp_path), "--print-groups")
    assert done.exit_code == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert len({row[0] for row in rows}) == len(rows)
    assert any("norm" in row[0] and row[-2] == "0" for row in rows)


def test_bad_rows_are_told_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    good = [json.dumps({"text": f"word {n} " * 3, "label": "ab"[n % 2]}) for n in range(12)]
    path.write_text("\n".join([*good[:3], "{broken", *good[3:]]) + "\n")
    arguments = ["train", "classify", *tiny("classify", tmp_path, "wordpiece"), f"data.train={path}", "run.steps=6"]
    stopped = ask(*arguments, "--out", str(tmp_path / "a"))
    assert stopped.exit_code == 2
    assert "mixed.jsonl:4" in stopped.stderr
    went = ask(*arguments, "--out", str(tmp_path / "b"), "--on-bad-row", "skip")
    assert went.exit_code == 0, went.stderr
    counted = "train: 12 rows; left out 1: 1 × invalid JSON"
    assert went.stdout.count(counted) == 2  # before the first step, and at the end
    assert json.loads((tmp_path / "b" / "results.json").read_text())["notes"] == [counted]


@pytest.mark.parametrize("change", ["run.threads=4", "run={threads: 4, steps: 9}"])
def test_the_number_of_threads_is_set_once(change: str) -> None:
    done = ask("train", "toy", "--threads", "1", change, "--print-config")
    assert done.exit_code == 2
    assert f"set it once: --threads 1 or {change}." in " ".join(done.stderr.split())
    assert "threads: 1" in ask("train", "toy", "--threads", "1", "--print-config").stdout


@pytest.mark.parametrize("stated", [["data.format=csv"], []])
def test_commas_are_read_by_a_recipe_whose_own_files_have_semicolons(stated: list[str], tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("sentence,emotion\n" + "".join(f'"word {n}, word",{"ab"[n % 2]}\n' for n in range(12)))
    own = [change for change in tiny("classify", tmp_path, "wordpiece") if not change.startswith("data.")]
    columns = ["data.columns={text: sentence, label: emotion}", f"data.train={path}"]
    done = ask("train", "classify", *own, *columns, *stated, "run.steps=6", "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.stderr
    assert ("note: the files are read as data.format=csv, by their ending" in done.stderr) == (not stated)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.sizes.n_layer=12"], "has its own sizes and facts"),
        (["model.lineage=gpt2"], "set either model.lineage"),
        (["model.start=another"], "choose one model to start from: --init-from"),
        (["model={start: another}"], "choose one model to start from: --init-from"),
    ],
)
def test_a_model_to_start_from_takes_nothing_back_that_is_said(
    unbroken: Path, tmp_path: Path, changes: list[str], message: str
) -> None:
    model = str(unbroken / "out" / "model")
    begun = ["train", "lm-bytes", "data.limit=9", "--init-from", model, "--out", str(tmp_path / "out")]
    done = ask(*begun, *changes)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()
    printed = ask(*begun, "--print-config")
    assert f"start: {model}" in printed.stdout.replace("\n    ", " ")
    assert "lineage: null" in printed.stdout


@pytest.mark.parametrize(("asked", "module"), [("--wandb=mine", "wandb"), ("--tensorboard", "torch.utils.tensorboard")])
def test_a_package_that_is_not_there_leaves_nothing_behind(
    asked: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    done = ask(*language(tmp_path), "--out", str(tmp_path / "out"), asked)
    assert done.exit_code == 2
    assert "pip install" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_model_is_measured_as_it_was_after_training(tmp_path: Path) -> None:
    new = tmp_path / "new.txt"
    arguments = language(tmp_path, f"data.test={new}", "data.documents=file", "run.steps=6")
    new.write_text((tmp_path / "text.txt").read_text()[:500])
    done = ask(*arguments, "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.stderr
    wanted = json.loads((tmp_path / "out" / "results.json").read_text())["test"]
    done = ask("evaluate", str(tmp_path / "out" / "model"), str(new), "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-5)  # JSON has 6 digits
    assert found["perplexity"] == pytest.approx(2.718281828459045 ** found["loss"], rel=1e-4)
    done = ask("evaluate", str(tmp_path / "out" / "model"), str(new), "data.documents=blank line", "--json")
    assert json.loads(done.stdout)["loss"] != pytest.approx(wanted["loss"], rel=1e-5)  # it can be said anew
    shutil.copy(new, tmp_path / "new.md")
    for message in (["data.format=text"], ["--format", "text"], []):
        done = ask("evaluate", str(tmp_path / "out" / "model"), str(tmp_path / "new.md"), "--json", *message)
        assert json.loads(done.stdout)["loss"] == found["loss"], message
    done = ask("evaluate", str(tmp_path / "out" / "model"), str(new), "data.format=jsonl")
    assert done.exit_code == 2
    (tmp_path / "lang=en").mkdir()
    shutil.copy(new, tmp_path / "lang=en" / "new.txt")
    done = ask("evaluate", str(tmp_path / "out" / "model"), str(tmp_path / "lang=en" / "new.txt"), "--json")
    assert json.loads(done.stdout)["loss"] == found["loss"]


def torchrun(processes: int, arguments: list[str]) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m",
            "glassformer", *arguments,
        ],
        env=os.environ | ALONE, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow  # that two processes are one is tested in tests/training/test_parallel.py
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_do_what_one_does(kind: str, tmp_path: Path) -> None:
    still = [f"model.sizes.{where}_pdrop=0.0" for where in ("resid", "embd", "attn")]  # processes draw for themselves
    arguments = language(tmp_path, *still, "run.device=cpu", f"run.parallel={kind}", "run.steps=8")
    done = ask(*arguments, "--out", str(tmp_path / "one"), "--quiet")
    assert done.exit_code == 0, done.stderr
    torchrun(2, [*arguments, "--out", str(tmp_path / "two"), "--quiet"])
    for one, two in zip(log_of(tmp_path / "one"), log_of(tmp_path / "two"), strict=True):
        assert one["kind"] == two["kind"]
        if "loss" in one:
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
