"""What an account is of: a pass, a training step or a decoding step, and its sizes."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["forward", "train", "decode"]
Kernel = Literal["fused", "eager"]


@dataclass(frozen=True)
class Load:
    """The sizes that a model is run at, and how its attention is computed."""

    batch: int
    context: int  # tokens of the decoder, or of the encoder where there is no decoder
    source: int  # tokens of the encoder
    mode: Mode = "forward"
    attention: Kernel = "fused"
