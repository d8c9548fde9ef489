"""A question asked of each rank by itself, side by side: in threads, processes or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run, open_run

T = TypeVar("T")


class Executor(Protocol):
    """What takes work: `concurrent.futures.Executor`, or `distributed.Client` of Dask."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """A future of fn(*args)."""


def each_rank(
    run: Run, ask: Callable[[Run, int], T], executor: Executor | None = None
) -> dict[int, T]:
    """{rank: ask(run, rank)} for every rank of the run, asked side by side; threads by default.

    Workers open the run by its own path or address, so they have to see the same file system or
    object store. What they are sent is that and `ask`, which has to be known there (a function of
    a module, or of a notebook where Dask sends it along). Raises what `ask` raises; RunError where
    a worker finds another run at the address.
    """
    if executor is None:
        with ThreadPoolExecutor() as threads:
            return dict(
                zip(run.ranks, threads.map(lambda rank: ask(run, rank), run.ranks), strict=True)
            )
    place = run.files.place
    futures = {rank: executor.submit(_asked, place, run.etag, ask, rank) for rank in run.ranks}
    return {rank: future.result() for rank, future in futures.items()}


def _asked(place: str, etag: str, ask: Callable[[Run, int], T], rank: int) -> T:
    return ask(_opened(place, etag), rank)


@lru_cache(maxsize=2)
def _opened(place: str, etag: str) -> Run:
    found = open_run(place)
    if found.etag != etag:
        raise RunError(
            f"{place}: a worker finds another run there ({found.etag}, expected {etag}); all of "
            "them have to see the same files"
        )
    return found
