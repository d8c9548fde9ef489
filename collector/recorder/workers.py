"""Connects to the machines that do the work of each rank: a Dask cluster, or local processes.

What they need is imported where they are used: every command imports this.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

CONNECT_S = 10
"""Longest wait for an answer of the scheduler, and for its first worker, seconds."""

MAX_LOCAL = 8
"""Local processes at most: each takes some 200 MB."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class ClusterError(Exception):
    """Says in one sentence why a cluster cannot do the work."""


def cluster_option(command: _Command) -> _Command:
    """Adds `--cluster` to a command."""
    return click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Do the work of each rank on the Dask cluster with its scheduler at ADDRESS, for "
        "example tcp://10.0.0.1:8786. Its workers must see the same files. [default: this machine]",
    )(command)


@contextmanager
def connected(address: str | None, *, local: bool = False) -> Iterator[Any]:
    """Yields what takes work: a client of the cluster at `address`, else local processes if
    `local`, else None.

    Raises ModuleNotFoundError without the extra `cluster`, ClusterError where no cluster of the
    same version answers, and where it or a local process is lost before the end.
    """
    processes = min(_processors(), MAX_LOCAL) if local else 1
    if address is not None:
        with _cluster(address) as client:
            yield client
    elif processes > 1:
        with _local(processes) as pool:
            yield pool
    else:
        yield None


@contextmanager
def _local(processes: int) -> Iterator[Any]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    try:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            yield pool
    except BrokenProcessPool:
        raise ClusterError(
            f"one of {processes} processes that did the work was ended, maybe because memory "
            "ran out; free some, or give the work to a cluster with --cluster"
        ) from None


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    import logging
    import socket

    import distributed  # first: the extra may be missing
    from distributed.comm.addressing import parse_host_port
    from distributed.comm.core import CommClosedError
    from tornado.util import TimeoutError as TornadoTimeoutError

    lost = (CommClosedError, distributed.KilledWorker, OSError, TimeoutError, TornadoTimeoutError)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what it says, is said below
    make: Callable[..., Any] = distributed.Client
    unreachable = ClusterError(
        f"no Dask scheduler answers at {address}; give the address that `dask scheduler` prints, "
        "as in tcp://10.0.0.1:8786"
    )
    try:
        # A client that fails to connect waits for long, and says more when it is thrown away.
        host, port = parse_host_port(address.partition("://")[2])
        socket.create_connection((host, port), CONNECT_S).close()
        client = make(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError):
        raise unreachable from None
    with client:
        _check_workers(client, address)
        try:
            yield client
        except lost as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of a file
            raise ClusterError(
                f"the cluster at {address} was lost while it worked ({type(error).__name__}); "
                "look at the output of its workers, or do without --cluster"
            ) from None


def _own_version() -> str:
    from importlib.metadata import version

    return version("lanescope")


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _check_workers(client: Any, address: str) -> None:
    """Raises ClusterError unless there are workers, all with this version of the package."""
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except TimeoutError:
        raise ClusterError(
            f"the scheduler at {address} has no workers; start some with: dask worker {address}"
        ) from None
    own = _own_version()
    for worker, found in client.run(_own_version, on_error="return").items():
        if isinstance(found, Exception):
            raise ClusterError(
                f"worker {worker} cannot import lanescope ({found}); install lanescope {own} "
                "where it runs"
            )
        if found != own:
            raise ClusterError(
                f"worker {worker} has lanescope {found}, expected {own} as here: answers could "
                "differ"
            )
