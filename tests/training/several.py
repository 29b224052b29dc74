"""Processes that train together, for tests: forked from a server that has imported everything, so that they start at
once. What they do are functions of this module or of others that can be imported by name."""

import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from glassformer.training import parallel
from tests.forked import server

SECONDS = 400  # for all that is done together; only a process that hangs takes so long


def free_port() -> int:
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        port: int = item.getsockname()[1]
    return port


def together(count: int, work: Callable[..., Any], *inputs: Any) -> list[Any]:
    """What ``work(process, *given)`` returns in each of several processes; a text where it raised, None where it was
    killed. Nobody outlives the time."""
    context = server()
    port, pipes, started = free_port(), [], []
    for rank in range(count):
        here, there = context.Pipe(duplex=False)
        item = context.Process(target=_child, args=(there, rank, count, port, work, inputs), daemon=True)
        item.start()
        there.close()
        pipes.append(here)
        started.append(item)
    deadline = time.monotonic() + SECONDS
    actual = [_received(pipe, deadline) for pipe in pipes]
    for item in started:
        item.join(max(0.1, deadline - time.monotonic()))
        if item.is_alive():
            item.kill()
            item.join()
    return actual


def _received(pipe: Connection, deadline: float) -> Any:
    try:
        if not pipe.poll(max(0.1, deadline - time.monotonic())):
            return "it did not end in time"
        return pickle.loads(pipe.recv_bytes())
    except EOFError:
        return None


def _child(
    pipe: Connection, rank: int, count: int, port: int, work: Callable[..., Any], inputs: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    try:
        with parallel.start("cpu", timeout=600) as process:  # longer than tests wait: the lost are noticed before
            result = work(process, *inputs)
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    pipe.send_bytes(pickle.dumps(result))
