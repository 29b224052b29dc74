"""The table of devices: what it says, how it is asked, what it refuses."""

import subprocess
import sys
from math import inf, nan

import pytest

from glassformer.inspect.account.hardware import DTYPES, HARDWARE, Hardware, custom_hardware, hardware
from tests.helpers import types_unchecked


def test_published_peaks():
    a100 = hardware("A100 SXM 80GB")
    assert [a100.peak(dtype) for dtype in ("float32", "tf32", "float16", "bfloat16")] == [
        19_500_000_000_000,
        156_000_000_000_000,
        312_000_000_000_000,
        312_000_000_000_000,
    ]
    assert (a100.bandwidth, a100.memory) == (2_039_000_000_000, 80_000_000_000)
    assert hardware("TPU v4").memory == 34_359_738_368  # 32 GiB, as its maker writes it


@pytest.mark.parametrize("device", HARDWARE.values(), ids=lambda device: device.name)
def test_every_entry_is_sane(device):
    assert HARDWARE[device.name] is device is hardware(device.name)
    assert len(device.source) > 10
    assert list(device.flops) == [dtype for dtype in DTYPES if dtype in device.flops]  # in one order, for tables
    peaks = list(device.flops.values())
    assert min(peaks) > 1e12
    assert max(peaks) < 1e16
    assert 5e10 < device.bandwidth < 1e13
    assert device.memory is not None
    assert 8e9 < device.memory < 1e12


@pytest.mark.parametrize("device", HARDWARE.values(), ids=lambda device: device.name)
def test_peaks_are_dense_and_in_proportion(device):
    """Fewer bits are never slower, and 16 bits to 8 bits is a factor of two: a sparse figure among dense ones shows."""
    peaks = device.flops
    known = [peaks[dtype] for dtype in ("float32", "tf32", "float16", "float8") if dtype in peaks]
    assert known == sorted(known)
    if "float16" in peaks and "bfloat16" in peaks:
        assert peaks["bfloat16"] == peaks["float16"]
    if "float8" in peaks:
        assert peaks["float8"] / peaks["float16"] == pytest.approx(2, rel=0.02)
    if "tf32" in peaks:
        assert peaks["float16"] / peaks["tf32"] == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize("name", ["h100 sxm", "H100-SXM", "h100_sxm", " H100SXM "])
def test_names_ignore_case_spaces_and_hyphens(name):
    assert hardware(name).name == "H100 SXM"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("h100", "Did you mean 'H100 SXM'?"),
        ("a100", "Did you mean 'A100 SXM 40GB' or 'A100 SXM 80GB'?"),
        ("RTX 4900", "Did you mean 'RTX 4090'?"),
    ],
)
def test_the_error_of_an_unknown_name_suggests_the_closest(name, meant):
    with pytest.raises(ValueError, match="is not in the table") as caught:
        hardware(name)
    assert repr(name) in str(caught.value)
    assert meant in str(caught.value)
    assert all(known in str(caught.value) for known in HARDWARE)


@pytest.mark.parametrize("name", ["", "abacus"])
def test_no_suggestion_without_a_close_name(name):
    with pytest.raises(ValueError, match="Known: V100") as caught:
        hardware(name)
    assert "Did you mean" not in str(caught.value)


def test_a_dtype_without_a_peak_is_refused():
    with pytest.raises(ValueError, match="V100 SXM2 32GB has no peak for bfloat16: its source gives float32, float16"):
        hardware("v100 sxm2 32gb").peak("bfloat16")
    with pytest.raises(ValueError, match=r"dtype must be one of .*got 'bf16'"):
        hardware("h100 sxm").peak("bf16")


def test_custom_hardware():
    device = custom_hardware(flops=2e12, bandwidth=5e10)
    assert {device.peak(dtype) for dtype in DTYPES} == {2e12}
    assert (device.bandwidth, device.memory, device.source) == (5e10, None, "your own figures")
    some = custom_hardware(flops={"float32": 1e12}, bandwidth=1, memory=16e9)
    assert (some.peak("float32"), some.memory) == (1e12, 16e9)
    with pytest.raises(ValueError, match="has no peak for tf32"):
        some.peak("tf32")


@pytest.mark.parametrize("bad", [0, -1.0, inf, nan, True, "1e12"])
def test_custom_hardware_must_be_positive_numbers(bad):
    with types_unchecked():
        with pytest.raises(ValueError, match="flops must be a finite number above 0"):
            custom_hardware(flops=bad, bandwidth=1)
        with pytest.raises(ValueError, match="flops of float16 must be a finite number above 0"):
            custom_hardware(flops={"float16": bad}, bandwidth=1)
        with pytest.raises(ValueError, match="bandwidth must be a finite number above 0"):
            custom_hardware(flops=1, bandwidth=bad)
        with pytest.raises(ValueError, match="memory must be a finite number above 0"):
            custom_hardware(flops=1, bandwidth=1, memory=bad)


def test_a_device_needs_peaks_of_known_dtypes():
    with pytest.raises(ValueError, match="mine needs a peak for at least one dtype"):
        Hardware("mine", {}, 1, None, "a test")
    with pytest.raises(ValueError, match=r"dtype must be one of .*float32.*Did you mean 'float32'"):
        Hardware("mine", {"flaot32": 1}, 1, None, "a test")


def test_planning_needs_no_tensor_library():
    code = """
import sys
from glassformer.inspect.account import hardware, plan
print([name for name in ("torch", "numpy", "einops", "jaxtyping") if name in sys.modules])
"""
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert modules.strip() == "[]"
