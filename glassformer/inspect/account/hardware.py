"""What devices can do at best, as their makers publish it: arithmetic, memory traffic, memory. Standard library only.

Every arithmetic peak is *dense*. Makers like to print the figure for matrices of which half the numbers are zero
(2:4 sparsity), which is twice as high and which no ordinary matrix product reaches; where only that one is printed,
half of it is taken here and the source says so. Consumer cards are listed with float32 accumulation, as training needs.
``float32`` means plain float32 arithmetic; ``tf32`` is the mode that rounds its inputs to 10 bits of mantissa.

Gigabytes and gigabytes per second are read as 10⁹ bytes, unless the maker writes GiB. Most devices have a few per cent
more memory than that; about as much is taken by the driver and the libraries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from glassformer.config.checks import check_choice, check_number

DTYPES = ("float32", "tf32", "float16", "bfloat16", "float8")


@dataclass(frozen=True)
class Hardware:
    """One device: its peaks, and who says so."""

    name: str
    flops: Mapping[str, float]  # dtype → dense peak of matrix products, FLOP/s
    bandwidth: float  # bytes/s between the device's memory and its cores
    memory: float | None  # bytes; None: not known
    source: str  # where the figures come from

    def __post_init__(self) -> None:
        if not self.flops:
            raise ValueError(f"{self.name} needs a peak for at least one dtype of {', '.join(DTYPES)}.")
        for dtype, peak in self.flops.items():
            check_choice("dtype", dtype, DTYPES)
            check_number(**{f"flops of {dtype}": peak})
        check_number(bandwidth=self.bandwidth)
        if self.memory is not None:
            check_number(memory=self.memory)

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s of matrix products in ``dtype``."""
        check_choice("dtype", dtype, DTYPES)
        if dtype not in self.flops:
            raise ValueError(
                f"{self.name} has no peak for {dtype}: its source gives {', '.join(self.flops)}. "
                "Choose one of these, or give your own figures."
            )
        return self.flops[dtype]


def hardware(name: str) -> Hardware:
    """A device of the table, whatever the case, spaces and hyphens of its name: ``hardware("a100-sxm-80gb")``.

    Half a name is not enough: an H100 for PCIe is another device than an H100 SXM.
    """
    found = _SHORT.get(_short(name))
    if found is not None:
        return found
    near = beginning_with(name) or [_SHORT[one] for one in get_close_matches(_short(name), _SHORT, n=1)]
    hint = f" Did you mean {' or '.join(repr(one.name) for one in near)}?" if near else ""
    raise ValueError(
        f"no figures are known for the device {name!r}.{hint} Known: {', '.join(HARDWARE)}. For another device, give "
        "your own figures (FLOP/s and bytes/s)."
    )


def beginning_with(name: str) -> list[Hardware]:
    """The devices of the table whose names begin so, whatever the case, spaces and hyphens."""
    short = _short(name)
    return [one for known, one in _SHORT.items() if short and known.startswith(short)]


def own(*, flops: float | Mapping[str, float], bandwidth: float, memory: float | None = None) -> Hardware:
    """A device of your own figures: FLOP/s, bytes/s, bytes. A single number of FLOP/s stands for every dtype."""
    if not isinstance(flops, Mapping):
        check_number(flops=flops)
        flops = dict.fromkeys(DTYPES, flops)
    return Hardware("your device", flops, bandwidth, memory, "your own figures")


def _short(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


_HALVED = "tensor-core figures halved, being printed with sparsity"

HARDWARE: dict[str, Hardware] = {
    one.name: one
    for one in (
        Hardware(
            "V100 SXM2 32GB",
            {"float32": 15.7e12, "float16": 125e12},
            bandwidth=900e9,
            memory=32e9,
            source="NVIDIA V100 Tensor Core GPU datasheet, January 2020",
        ),
        Hardware(
            "T4",
            {"float32": 8.1e12, "float16": 65e12},
            bandwidth=320e9,
            memory=16e9,
            source="NVIDIA T4 datasheet, March 2019; bandwidth from the T4 product brief (256 bits at 10 Gbit/s)",
        ),
        Hardware(
            "A100 SXM 40GB",
            {"float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12},
            bandwidth=1555e9,
            memory=40e9,
            source="NVIDIA A100 Tensor Core GPU Architecture, whitepaper, 2020",
        ),
        Hardware(
            "A100 SXM 80GB",
            {"float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12},
            bandwidth=2039e9,
            memory=80e9,
            source="NVIDIA A100 Tensor Core GPU datasheet, June 2021",
        ),
        Hardware(
            "H100 SXM",
            {"float32": 66.9e12, "tf32": 494.7e12, "float16": 989.4e12, "bfloat16": 989.4e12, "float8": 1978.9e12},
            bandwidth=3.35e12,
            memory=80e9,
            source="NVIDIA H100 Tensor Core GPU Architecture, whitepaper, 2022; bandwidth from the H100 datasheet",
        ),
        Hardware(
            "H200 SXM",
            {"float32": 67e12, "tf32": 494.5e12, "float16": 989.5e12, "bfloat16": 989.5e12, "float8": 1979e12},
            bandwidth=4.8e12,
            memory=141e9,
            source=f"NVIDIA H200 Tensor Core GPU datasheet, 2024; {_HALVED}",
        ),
        Hardware(
            "B200",
            {"float32": 75e12, "tf32": 1100e12, "float16": 2250e12, "bfloat16": 2250e12, "float8": 4500e12},
            bandwidth=7.7e12,
            memory=180e9,
            source=f"NVIDIA Blackwell datasheet, one GPU of an HGX B200, 2025; {_HALVED}",
        ),
        Hardware(
            "L4",
            {"float32": 30.3e12, "tf32": 60e12, "float16": 121e12, "bfloat16": 121e12, "float8": 242.5e12},
            bandwidth=300e9,
            memory=24e9,
            source=f"NVIDIA L4 Tensor Core GPU datasheet, 2023; {_HALVED}",
        ),
        Hardware(
            "L40S",
            {"float32": 91.6e12, "tf32": 183e12, "float16": 362.05e12, "bfloat16": 362.05e12, "float8": 733e12},
            bandwidth=864e9,
            memory=48e9,
            source="NVIDIA L40S datasheet, 2023",
        ),
        Hardware(
            "RTX 3090",
            {"float32": 35.6e12, "tf32": 35.6e12, "float16": 71e12, "bfloat16": 71e12},
            bandwidth=936e9,
            memory=24e9,
            source="NVIDIA Ampere GA102 GPU Architecture, whitepaper v2.0, 2021; float32 accumulation",
        ),
        Hardware(
            "RTX 4090",
            {"float32": 82.6e12, "tf32": 82.6e12, "float16": 165.2e12, "bfloat16": 165.2e12, "float8": 330.3e12},
            bandwidth=1008e9,
            memory=24e9,
            source="NVIDIA Ada GPU Architecture, whitepaper, 2022; float32 accumulation",
        ),
        Hardware(
            "MI300X",
            {"float32": 163.4e12, "tf32": 653.7e12, "float16": 1307.4e12, "bfloat16": 1307.4e12, "float8": 2614.9e12},
            bandwidth=5.3e12,
            memory=192e9,
            source="AMD Instinct MI300X Accelerator data sheet, December 2023",
        ),
        Hardware(
            "Apple M1 Max",
            {"float32": 10.4e12},
            bandwidth=400e9,
            memory=64e9,
            source="Apple, presentation and press release of 18 October 2021: 32-core GPU, largest memory, unified",
        ),
        Hardware(
            "Apple M2",
            {"float32": 3.6e12},
            bandwidth=100e9,
            memory=24e9,
            source="Apple, presentation and press release of 6 June 2022: 10-core GPU, largest memory, unified",
        ),
        Hardware(
            "TPU v4",
            {"bfloat16": 275e12},
            bandwidth=1200e9,
            memory=32 * 2**30,
            source="Google Cloud documentation, one chip: https://cloud.google.com/tpu/docs/v4",
        ),
        Hardware(
            "TPU v5e",
            {"bfloat16": 197e12},
            bandwidth=819e9,
            memory=16e9,
            source="Google Cloud documentation, one chip: https://cloud.google.com/tpu/docs/v5e",
        ),
        Hardware(
            "TPU v5p",
            {"bfloat16": 459e12},
            bandwidth=2765e9,
            memory=95e9,
            source="Google Cloud documentation, one chip: https://cloud.google.com/tpu/docs/v5p",
        ),
    )
}
_SHORT = {_short(name): one for name, one in HARDWARE.items()}
