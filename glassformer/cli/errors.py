"""Errors as a user of the program meets them: one paragraph, exit code 2, no traceback; 130 where the user ends it."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what is wrong with the user's input into a paragraph on standard error; real faults stay tracebacks."""
    try:
        yield
    except BrokenPipeError:  # the reader of our output went away: not an input's fault
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
