"""Freed memory stays with the process, in one of its own: the settings are for all of it."""

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import torch
from glassformer.training.malloc import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def steps():
    for _ in range(6):
        torch.ones(12_000_000) * 2

steps()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
steps()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told")
@pytest.mark.slow
def test_pages_are_cleared_once_and_not_at_every_step():
    def cleared(how):
        done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, check=True, text=True)
        return int(done.stdout)

    assert 5 * cleared("keep") < cleared("leave")
