"""Shared set-up: shape types are checked at run time while testing, and randomness is fixed."""

import os
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from pathlib import Path

# Some virtual machines advertise AMX and then stop the process at its first instruction; bfloat16 products are tested
# without it, which costs nothing at these sizes. Read by torch's CPU library when it is first used.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Test workers and the programs they start share the cores: threads that wait for each other cost more than they give.
# Said in the workers alone: whoever starts them reads this file first, and they inherit its environment.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    _WORKERS = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _WORKERS)))

import pytest
from jaxtyping import install_import_hook

import tests.typechecker  # the hook finds it by name

# Every jaxtyping signature of these packages can be enforced in tests; users do not pay for it. Packages without one
# are left to mypy.
TENSORS = (
    "nn",
    "models",
    "data",
    "generation",
    "tasks",
    "recipes",
    "objectives",
    "training",
    "weights.single_file",
    "course",
)
install_import_hook([f"glassformer.{part}" for part in TENSORS], "tests.typechecker.check")

import torch
from filelock import FileLock
from hypothesis import settings

from tests.helpers import types_unchecked

# The tests that check signatures in every run, some for each of these packages. Checks at every call take up to four
# fifths of the time of a test that calls small functions very often, so the others check them with --types=all alone.
TYPED = (
    "tests/nn/",
    "tests/models/test_alibi.py",
    "tests/models/test_encoder.py",
    "tests/models/test_language_model.py",
    "tests/models/test_mask_decoder.py",
    "tests/course/test_assignment.py",
    "tests/data/",
    "tests/generation/test_filters.py",
    "tests/generation/test_sampling.py",
    "tests/tasks/test_fill.py",
    "tests/tasks/test_tag.py",
    "tests/objectives/",
    "tests/recipes/",
    "tests/training/test_loop.py",
    "tests/training/test_optim.py",
    "tests/weights/test_single_file.py",
)
CALL_MUCH = ("tests/nn/test_cache", "tests/nn/test_leading_axes.py")  # not these: they would cost as much as the others
DEADLINE = pytest.StashKey[float]()
TIME_IS_UP = "not run: the time is up"

# With all types checked, long tests are run as well: more examples than in every run.
settings.register_profile("some", deadline=None, derandomize=True, max_examples=12)
settings.register_profile("all", settings.get_profile("some"), max_examples=40)


def pytest_addoption(parser: pytest.Parser) -> None:
    choices = ("some", "all")
    parser.addoption("--types", choices=choices, default="some", help="tests that check shape types (default: some)")
    minutes = "long tests first, and none begins after so many minutes"
    parser.addoption("--minutes", type=float, default=float("inf"), help=minutes)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(config.getoption("types"))
    config.stash[DEADLINE] = time.monotonic() + 60 * config.getoption("minutes")


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(TYPED) and not item.nodeid.startswith(CALL_MUCH):
            item.add_marker("typed")
    if config.getoption("minutes") < float("inf"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures included: those of a module or a session are made for the first test that wants them."""
    typed = item.config.getoption("types") == "all" or item.get_closest_marker("typed")
    with nullcontext() if typed else types_unchecked():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[DEADLINE]:
        pytest.skip(TIME_IS_UP)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    left_out = sum(TIME_IS_UP in str(report.longrepr) for report in skipped)
    if left_out:
        terminalreporter.write_line(f"{left_out} tests were NOT RUN because the time was up: they count as skipped.")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Folders that tests only read: each is made by the first worker that wants it, and the others wait for it."""
    own = tmp_path_factory.getbasetemp()
    place = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "made-once"
    place.mkdir(exist_ok=True)

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        wanted, complete = place / name, place / f"{name}.complete"
        with FileLock(place / f"{name}.lock"):
            if not complete.exists():
                shutil.rmtree(wanted, ignore_errors=True)
                wanted.mkdir()
                make(wanted)
                complete.touch()
        return wanted

    return folder


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device of this machine: the same tests serve the CPU and a GPU."""
    return torch.device(request.param)
