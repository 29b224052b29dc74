"""Windows over a sequence that is longer than the model."""

from collections.abc import Sequence
from typing import NamedTuple

from glassformer.config.checks import check_positive


class Window(NamedTuple):
    """Tokens [start, end) of a sequence, those from ``new`` on not in any window before it."""

    start: int
    new: int
    end: int


def sliding(length: int, window: int, stride: int) -> list[Window]:
    """Windows that reach ``stride`` further each, the last only to the end; each as full as it can be."""
    found = [Window(0, 0, min(window, length))]
    while (reached := found[-1].end) < length:
        end = min(reached + stride, length)
        found.append(Window(end - window, reached, end))
    return found


def check_windows(window: int | None, stride: int | None, longest: int | None, length: int) -> tuple[int, int]:
    """Window and stride as given, or the most that the model takes and half of it; raise if they do not fit it.

    A model without a limit gets one window over the whole ``length`` unless told otherwise.
    """
    check_positive(window=1 if window is None else window, stride=1 if stride is None else stride)
    if window is not None and longest is not None and window > longest:
        raise ValueError(f"window={window} tokens are more than this model takes: {longest}.")
    size = max(2, length) if longest is None else longest
    size = size if window is None else window
    step = max(1, size // 2) if stride is None else stride
    if size < 2 or step >= size:
        raise ValueError(
            f"stride={step} must be less than window={size}, so that something stands before each predicted token."
        )
    return size, step


def overlapping(sizes: Sequence[int], room: int, overlap: int) -> list[tuple[int, int]]:
    """Ranges [first, last) of words that fit into ``room`` tokens each and share about ``overlap`` tokens.

    ``sizes`` says how many tokens each word has; none may have more than ``room``.
    """
    ranges, first = [], 0
    while True:
        last, used = first, 0
        while last < len(sizes) and used + sizes[last] <= room:
            used += sizes[last]
            last += 1
        ranges.append((first, last))
        if last == len(sizes):
            return ranges
        again, shared = last, 0
        while again - 1 > first and shared + sizes[again - 1] <= min(overlap, room - sizes[last]):
            again -= 1
            shared += sizes[again]
        first = again
