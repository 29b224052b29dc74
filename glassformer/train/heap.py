"""Memory of the CPU that is freed and taken again at every step, kept by the process in between.

glibc gives large blocks back to the system as soon as they are freed. A step of training takes the same blocks again,
logits above all, and the system clears every page anew: up to a fifth of the time of a step.
"""

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # names of glibc's malloc.h
LARGEST = 2**31 - 1  # what a C int can say: blocks up to 2 GB are kept
AHEAD = 64 * 2**20


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, up to its highest level; whether its C library can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    said = {MMAP_THRESHOLD: LARGEST, TRIM_THRESHOLD: LARGEST, TOP_PAD: AHEAD}
    return all(mallopt(name, value) == 1 for name, value in said.items())
