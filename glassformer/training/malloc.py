"""Settings of the C library's memory allocator."""

import ctypes

MMAP_MAX, TOP_PAD, TRIM_THRESHOLD = -4, -2, -1  # as glibc's malloc.h numbers them
MALLOC_AHEAD = 64 * 2**20  # bytes allocated beyond what is requested


def keep_freed_memory() -> bool:
    """Let this process keep all memory that it frees; return whether its C library can do that.

    glibc returns large blocks to the system as soon as they are freed. A training step allocates the same blocks again,
    logits above all, and the system clears every page: up to a fifth of the time of a step. Kept blocks do not always
    fit the next allocation, so the process needs more memory, by 10 to 40 percent where it was measured.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    options = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: MALLOC_AHEAD}  # no mmap per block, no trimming of the heap
    accepted = [mallopt(name, value) for name, value in options.items()]  # set all of them, even if one fails
    return all(accepted)
