"""Errors as a user of the program meets them: one paragraph, exit code 2, no traceback; 130 after Ctrl-C.

The library names arguments (``beam_size=5``) and counts texts from 0; the program has options (``--beam-size 5``) and
recipe keys (``data.quoted=true``) and counts from 1. A ``SettingError`` keeps settings and texts as data, which are
written the program's way here. Other errors are shown as they are.
"""

import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import typer

from glassformer.config.checks import Item, Setting, SettingError

# The options of the command that runs, by the names of their parameters.
_FLAGS: ContextVar[Mapping[str, str]] = ContextVar("flags", default={})  # noqa: B039  # never changed
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_GPU = re.compile(r"no NVIDIA driver|No CUDA GPUs|not compiled with CUDA|invalid device ordinal")


class InputError(ValueError):
    """An error whose message is already written for the command line."""


@contextmanager
def plain_errors(flags: Mapping[str, str] | None = None) -> Iterator[None]:
    """Print errors in the user's input as a paragraph on standard error; bugs stay tracebacks.

    ``flags``: the options of the command, by the names of their parameters.
    """
    token = _FLAGS.set(flags or {})
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()  # at exit, an error would not be reported
    except BrokenPipeError:  # whoever reads our output has closed the pipe
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (ValueError, TypeError, IndexError, OSError, ImportError, MemoryError, FloatingPointError) as error:
        _exit(message(error), error)
    except (RuntimeError, AssertionError) as error:
        text = _environment_message(error)
        if text is None:
            raise
        _exit(text, error)
    finally:
        _FLAGS.reset(token)


def _environment_message(error: BaseException) -> str | None:
    """Return the message where memory, a device or another process failed, or None for a bug.

    Types are compared by name, so that nothing is imported for it.
    """
    kind, first_line = type(error).__name__, str(error).partition("\n")[0]
    if kind == "OutOfMemoryError" or "can't allocate memory" in str(error):
        return (
            "there is not enough memory; use a smaller --batch-size, a shorter text or --dtype bfloat16; for a recipe, "
            "lower batch.examples or batch.tokens."
        )
    if kind in ("LostProcessError", "FailedElsewhereError", "CaptureError"):
        return message(error)
    if _NO_GPU.search(first_line):
        return f"{first_line.rstrip('.')}; use the CPU: --device cpu, or run.device=cpu for a recipe."
    return None


def message(error: BaseException, offset: int = 0) -> str:
    """Return the message of an error with the options of the running command.

    ``offset`` is added to the numbers of texts.
    """
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        name = error.filename
        return f"{name.decode(errors='replace') if isinstance(name, bytes) else name}: {_reason(error)}."
    if isinstance(error, OSError) and error.errno in NO_ROOM:  # errors in files name them
        return f"standard output: {_reason(error)}."
    if isinstance(error, SettingError):
        return error.message(lambda value: _as_option(value, offset))
    return str(error) or type(error).__name__


@contextmanager
def numbering_texts(offset: int) -> Iterator[None]:
    """Number the texts in errors as in the whole input, where the library gets a part that begins at ``offset``."""
    try:
        yield
    except SettingError as error:
        raise InputError(message(error, offset)) from error


def _as_option(value: Setting | Item, offset: int) -> str:
    """Return a setting as an option of the command or as a key of a recipe, and a text by its number."""
    if isinstance(value, Item):
        return f"{value.kind} {value.number + offset + 1}"
    # An option of the command, or else a key of a recipe, or else as Python writes it.
    flags = _FLAGS.get()
    name = next((name for name in (value.name, value.external_name) if name in flags), None)
    if name is not None:
        words = {True: "yes", False: "no"} if name == "early_stopping" else {True: ""}
        if value.value is ... or value.value is None:
            return flags[name]
        parts = value.value if isinstance(value.value, tuple | list) else [value.value]
        texts = [words.get(part, str(part)) if isinstance(part, bool) else str(part) for part in parts]
        text = " ".join(repr(text) if any(map(str.isspace, text)) else text for text in texts)
        return f"{flags[name]} {text}".rstrip()
    if value.external_name is not None and "." in value.external_name:
        yaml = {True: "true", False: "false", None: "null"}
        if value.value is ...:
            return value.external_name
        known = value.value is None or isinstance(value.value, bool)
        text = yaml[value.value] if known else str(value.value)
        # As a shell takes it, and with characters that cannot be seen as YAML writes them.
        return f"{value.external_name}={shlex.quote(text if text.isprintable() else json.dumps(text))}"
    return str(value)


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "this is a folder, not a file"
    if isinstance(error, PermissionError):
        return "permission is denied"
    return str(error.strerror or type(error).__name__).lower()


def _exit(text: str, error: BaseException) -> None:
    typer.echo(f"error: {text}", err=True)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # discard what is left, which could not be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(2) from error
