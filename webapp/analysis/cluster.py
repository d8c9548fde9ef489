"""A question asked of each rank by itself, side by side: in threads, processes or on a cluster.

`each_rank` asks one. `per_rank` marks the functions of analyses that read the large tables of one
rank and return a summary of them: `ask_ahead` has workers answer all of these for every rank. The
analyses find the answers known, and need not distinguish where they come from.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from lanescope.collector.format.steps import Steps
from lanescope.webapp.analysis.plugin import load, metrics, questions
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run, open_run

LARGE_ROWS = 5_000_000
"""Rows of all tables from which on local processes share the work of the ranks."""

T = TypeVar("T")
K = TypeVar("K")


class Executor(Protocol):
    """What takes work: `concurrent.futures.Executor`, or `distributed.Client` of Dask."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Returns a future of fn(*args)."""


def each_rank(
    run: Run, ask: Callable[[Run, int], T], executor: Executor | None = None
) -> dict[int, T]:
    """Returns {rank: ask(run, rank)} for every rank of the run, asked side by side; threads by
    default.

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
    return spread(executor, ask, (run,), run.ranks)


def spread(
    executor: Executor, ask: Callable[..., T], runs: tuple[Run, ...], keys: Iterable[K]
) -> dict[K, T]:
    """Returns {key: ask(*runs, key)} for every key, answered by workers that open the runs
    themselves."""
    places = tuple((run.files.place, run.etag) for run in runs)
    futures = {key: executor.submit(_asked, places, ask, key) for key in keys}
    return {key: future.result() for key, future in futures.items()}


def _asked(places: tuple[tuple[str, str], ...], ask: Callable[..., T], key: object) -> T:
    return ask(*(_opened(place, etag) for place, etag in places), key)


@functools.lru_cache(maxsize=2)
def _opened(place: str, etag: str) -> Run:
    found = open_run(place)
    if found.etag != etag:
        raise RunError(
            f"{place}: a worker finds another run there ({found.etag}, expected {etag}); all of "
            "them have to see the same files"
        )
    return found


def in_own_process(
    ask: Callable[..., T], runs: tuple[Run, ...], key: object, *, gives_way: bool = True
) -> T:
    """Returns ask(*runs, key), answered by a process of its own that opens the runs itself: this
    one goes on as if nothing was asked. `gives_way`: with a lower priority than others.

    Raises what `ask` raises. Where the process was ended, `ask` is called here.
    """
    spawning = get_context("spawn")
    answer, sender = spawning.Pipe(duplex=False)
    places = tuple((run.files.place, run.etag) for run in runs)
    asked = (sender, places, ask, key, gives_way)
    process = spawning.Process(target=_send, args=asked, daemon=True)
    process.start()
    sender.close()  # so that the end of the process is seen here
    with answer:
        try:
            found: T | Exception = answer.recv()
        except EOFError:  # memory ran out, or the like
            return ask(*runs, key)
    process.join()
    if isinstance(found, Exception):
        raise found
    return found


def _send(
    sender: Connection,
    places: tuple[tuple[str, str], ...],
    ask: Callable[..., object],
    key: object,
    gives_way: bool,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this
    if gives_way:
        os.nice(10)
    try:
        found = _asked(places, ask, key)
    except Exception as error:
        found = error
    with contextlib.suppress(BrokenPipeError):  # nothing waits any more
        sender.send(found)


_ANSWERS: WeakKeyDictionary[Run, dict[tuple[str, int], Any]] = WeakKeyDictionary()
_PER_RANK: dict[str, Callable[[Run, int], Any]] = {}


def per_rank(ask: Callable[[Run, int], T]) -> Callable[[Run, int], T]:
    """Marks a function of a run and a rank that workers may answer ahead; answers are kept.

    An answer is a summary: it has to be small, and to survive pickling unchanged.
    """
    name = f"{ask.__module__}:{ask.__qualname__}"

    @functools.wraps(ask)
    def answer(run: Run, rank: int) -> T:
        known = _ANSWERS.setdefault(run, {})
        if (name, rank) not in known:
            known[name, rank] = ask(run, rank)
        found: T = known[name, rank]
        return found

    _PER_RANK[name] = answer
    return answer


def found_in_parts(
    parts: Callable[[Run], Iterable[tuple[Any, ...]]],
) -> Callable[[Callable[..., T | None]], Callable[[Run], list[T]]]:
    """Turns a question about a run and a part of it into one about the run; `parts` raises where
    the run does not hold what it needs."""

    def of_question(ask: Callable[..., T | None]) -> Callable[[Run], list[T]]:
        @functools.wraps(ask)
        def of_run(run: Run) -> list[T]:
            return [one for part in parts(run) if (one := ask(run, *part)) is not None]

        return of_run

    return of_question


def found_per_rank(
    *needs: Callable[[Run], object], ahead: bool = True
) -> Callable[[Callable[[Run, int], T | None]], Callable[[Run], list[T]]]:
    """Turns a question about a rank into one about a run; `needs` raise where the run does not hold
    what it needs. `ahead`: workers may answer it, see `per_rank`."""

    def parts(run: Run) -> Iterable[tuple[int]]:
        for need in needs:
            need(run)
        return ((rank,) for rank in run.ranks)

    return lambda ask: found_in_parts(parts)(per_rank(ask) if ahead else ask)


def ask_ahead(run: Run, executor: Executor | None) -> None:
    """Has workers answer everything that `per_rank` marks, one task a rank; None: no worker does.

    What raises on a worker is asked again here by the analysis that needs it, which deals with it.
    """
    if executor is None:
        return
    known = _ANSWERS.setdefault(run, {})
    for rank, (steps, answers) in spread(executor, _answers, (run,), run.ranks).items():
        run.know_steps(rank, steps)
        known.update({(name, rank): answer for name, answer in answers.items()})


def steps_ahead(run: Run, executor: Executor | None) -> None:
    """Has workers find the steps of every rank; None: no worker does."""
    if executor is not None:
        for rank, steps in spread(executor, Run.steps, (run,), run.ranks).items():
            run.know_steps(rank, steps)


def is_large(run: Run) -> bool:
    """Returns whether its ranks are worth the start of local processes, about a second each."""
    return len(run.ranks) > 1 and sum(run.counts.values()) >= LARGE_ROWS


def _answers(run: Run, rank: int) -> tuple[Steps, dict[str, Any]]:
    """Steps of a rank, and all answers about it by name of the function; what raised has none."""
    for entry in (*(one.find for one in questions()), *(one.measure for one in metrics())):
        load(entry)  # the functions that it brings are known from now on
    found: dict[str, Any] = {}
    for name, ask in _PER_RANK.items():
        try:
            found[name] = ask(run, rank)
        except Exception:
            continue
    return run.steps(rank), found
