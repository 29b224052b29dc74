"""Memory of the CPU that is freed and taken again at every step, kept by the process in between.

glibc gives large blocks back to the system as soon as they are freed. A step of training takes the same blocks again,
logits above all, and the system clears every page anew: up to a fifth of the time of a step. What is kept does not
always fit what is asked for next, so that the process is larger than before, by a tenth to two fifths where it was
measured.
"""

import ctypes

MMAP_MAX, TOP_PAD, TRIM_THRESHOLD = -4, -2, -1  # as glibc's malloc.h numbers them
AHEAD = 64 * 2**20  # bytes taken beyond what is asked for


def keep_freed_memory() -> bool:
    """Let this process give nothing back that it frees; whether its C library can be told so."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    said = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: AHEAD}  # no blocks of their own, and no end that is given back
    taken = [mallopt(name, value) for name, value in said.items()]  # all of them, whatever one answers
    return all(taken)
