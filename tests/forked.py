"""Processes forked from a server that has imported torch and the package, so that they start at once.

A new interpreter takes seconds to import torch. Tests of kills, signals and pipes need a process of their own, but not
a new interpreter; that is for tests of a program's first moments, such as its imports and the encoding of its terminal.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerContext
from typing import Any, Self

import torch

PRELOADED = [
    "tests.forked", "tests.training.several", "tests.training.parallel_runs", "tests.training.a_run",
    "torch.distributed.fsdp", "torch._dynamo", "glassformer.cli.main", "glassformer.cli.generate",
    "glassformer.cli.train", "glassformer.generation.text", "glassformer.training.session",
]  # fmt: skip


def server() -> ForkServerContext:
    """The context of processes that the server forks; there is one server per process of the tests."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


class Forked:
    """A function in a process with one thread and with pipes as its standard streams, used as ``subprocess.Popen``.

    ``work`` and ``inputs`` are pickled: functions are those of modules. ``environment`` is added to that of the tests.
    """

    def __init__(self, work: Callable[..., object], *inputs: Any, environment: Mapping[str, str] | None = None) -> None:
        context = server()
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = (context.Pipe(False) for _ in range(3))
        theirs = (theirs_in, theirs_out, theirs_err)
        given = (theirs, os.getcwd(), {**os.environ, **(environment or {})}, work, inputs)
        self._process = context.Process(target=_child, args=given, daemon=True)
        self._process.start()
        for end in theirs:
            end.close()
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(os.dup(end.fileno()), mode) for end, mode in ((ours_in, "wb"), (ours_out, "rb"), (ours_err, "rb"))
        )
        for end in (ours_in, ours_out, ours_err):
            end.close()

    @property
    def returncode(self) -> int | None:
        """The exit status; negative after a signal, None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for its end."""
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        self.wait()


def run(work: Callable[..., object], *inputs: Any, environment: Mapping[str, str] | None = None) -> Any:
    """Like ``subprocess.run`` with the output captured as text: a ``CompletedProcess``."""
    with Forked(work, *inputs, environment=environment) as process, ThreadPoolExecutor(2) as pool:
        process.stdin.close()
        out, err = pool.map(lambda stream: stream.read().decode(), (process.stdout, process.stderr))
        return subprocess.CompletedProcess(inputs, process.wait(), out, err)


def program(*arguments: str) -> None:
    """The program ``glassformer``."""
    from glassformer.cli.main import app

    sys.argv = ["glassformer", *arguments]
    app(list(arguments), prog_name="glassformer")


def _child(
    ends: tuple[Any, ...], folder: str, environment: dict[str, str], work: Callable[..., object], inputs: Any
) -> None:
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, 1, "utf-8") for number, mode in enumerate("rww"))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have had it ignored
    torch.set_num_threads(1)
    work(*inputs)
