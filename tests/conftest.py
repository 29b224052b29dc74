"""Shared set-up: shape types are checked at run time while testing, and randomness is fixed."""

import os

import pytest
from jaxtyping import install_import_hook

# Every jaxtyping signature of the package is enforced in tests; users do not pay for it.
install_import_hook("glassformer", "beartype.beartype")

import torch  # noqa: E402  # after the hook is in place
from hypothesis import settings  # noqa: E402

settings.register_profile("steady", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("steady")

torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
