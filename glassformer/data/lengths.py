"""How many tokens each example or document of a data set has: what plans for batches and rows are made from.

Shapes: ``N`` examples or documents.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Int64, Integer

Lengths: TypeAlias = Sequence[int] | Integer[np.ndarray, "N"]


def checked_lengths(lengths: Lengths, what: str, purpose: str) -> Int64[np.ndarray, "N"]:
    """The lengths as an array; raise if there are none, or one of them is no length of anything.

    Args:
        lengths: in tokens.
        what: they are lengths of, in the singular: "example", "document".
        purpose: what is done with them, as an error ends: "there are no documents *to pack*".
    """
    numbers = np.asarray(lengths)
    if not numbers.size:
        raise ValueError(f"there are no {what}s {purpose}.")
    if numbers.min() < 1:
        raise ValueError(f"{what} {int(numbers.argmin())} has no tokens; leave it out.")
    return numbers.astype(np.int64)
