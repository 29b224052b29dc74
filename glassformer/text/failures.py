"""Failures of the ``tokenizers`` library, and of the data it is given, as errors of our own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.text.pieces import TokenizerError


@contextmanager
def reading_errors(where: Path | str) -> Iterator[None]:
    """Let whatever a damaged vocabulary leads to be a ``TokenizerError`` that names where it lies.

    Its files hold data of many shapes, written by others: what is not where it should be shows as errors of Python's
    own, and what the library cannot read as its bare ``Exception`` or, where it panics, not even that.
    """
    try:
        yield
    except TokenizerError as error:
        raise error if str(where) in str(error) else error.prefixed(f"{where}: ") from error
    except (OSError, MemoryError, ImportError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        told = f"{type(error).__name__}: {error}"
        raise TokenizerError(f"{where}: the vocabulary is damaged ({told:.300}). Fetch or save it again.") from error


@contextmanager
def library_errors() -> Iterator[None]:
    """Let a failure of the library itself be a ``TokenizerError``: a vocabulary that was read may still not work."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and not _is_panic(error):
            raise
        raise TokenizerError(f"the tokenizer's files do not fit together: {error}. Fetch them again.") from error


def _is_panic(error: BaseException) -> bool:
    """Whether the library gave up on what it took to be impossible; its class cannot be imported."""
    return type(error).__name__ == "PanicException"
