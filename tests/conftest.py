"""Shared set-up: shape types are checked at run time while testing, and randomness is fixed."""

import os

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

# Every jaxtyping signature of the package is enforced in tests; users do not pay for it. Packages without one are left
# to mypy: checks at every call make tests that call small functions very often several times slower.
TENSORS = ("nn", "models", "data", "generate", "tasks", "train", "weights.foreign")
install_import_hook([f"glassformer.{part}" for part in TENSORS], "tests.typechecker.check")

import torch
from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device of this machine: the same tests serve the CPU and a GPU."""
    return torch.device(request.param)
