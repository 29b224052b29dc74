"""Where real trained models lie, if they do: in installed packages, or under the folder that GLASSFORMER_DATA names."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest


def data(*names: str) -> Path:
    """A folder or file of real weights; skips where there is none."""
    return data_set("weights", *names)


def data_set(*names: str) -> Path:
    """A folder or file of the data sets; skips where there is none."""
    root = os.environ.get("GLASSFORMER_DATA")
    if root is None:
        pytest.skip("GLASSFORMER_DATA does not name a folder with real data")
    place = Path(root, *names)
    if not place.exists():
        pytest.skip(f"{place} is not there")
    return place


def inside_package(package: str, pattern: str) -> Path:
    """The first file in an installed package that fits a pattern; skips where the package is not installed."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed; `make test-real` installs it")
    found = sorted(Path(spec.submodule_search_locations[0]).rglob(pattern))
    if not found:
        pytest.skip(f"the package {package} has no {pattern}")
    return found[0]
