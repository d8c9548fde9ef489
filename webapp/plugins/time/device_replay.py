"""A step whose ranks compute on devices, ready to be replayed: per rank its host and its streams.

The host is the training thread and, while that waits in backward, the autograd threads. Each launch
keeps its distance to the work around it. A kernel begins once it has been launched, the kernel
before it on its stream has ended, and the kernel of another stream that it waits for has; what was
recorded between the last of these and its begin is kept. A kernel of a collective ends when the
last rank's has begun and the recorded transfer is over. The host waits for kernels as recorded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lanescope.webapp.analysis.links import step_bounds
from lanescope.webapp.plugins.collectives.communication import operators
from lanescope.webapp.plugins.time.breakdown import (
    autograd_threads,
    phases_of,
    training_thread,
)
from lanescope.webapp.plugins.time.critical_path import RankThread
from lanescope.webapp.plugins.time.job_steps import JobStep
from lanescope.webapp.plugins.time.lane_work import LaneWork
from lanescope.webapp.plugins.time.replay import (
    Actor,
    Replay,
    StretchEnd,
    arriving_ranks,
)
from lanescope.webapp.plugins.time.stream_work import launching
from lanescope.webapp.plugins.time.streams import (
    Stream,
    dependency,
    host_waits,
    last_kernels,
    rank_streams,
)
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Window

_NOTHING = Intervals.of([], [])


def device_replay(run: Run, window: JobStep) -> Replay:
    """Returns the hosts and streams of all ranks in a step of the job."""
    actors: list[Actor] = []
    for rank in run.ranks:
        step = step_bounds(run, rank, window.step)
        if step is not None:
            actors.append(_host(run, rank, step))
            lanes = enumerate(rank_streams(run, rank).values())
            actors += [_stream(run, stream, f"stream {k}", step) for k, stream in lanes]
    last = last_kernels(run)
    outside = {
        key: float(last[key][2])
        for key, ranks in arriving_ranks(actors).items()
        if last[key][0] not in ranks
    }
    return Replay(window, tuple(actors), outside)


def _inside(stream: Stream, step: Window) -> range:
    """The kernels that run within a step."""
    low = int(np.searchsorted(stream.end, step[0], side="right"))
    return range(low, int(np.searchsorted(stream.start, step[1])))


def _ended(stream: Stream, i: int) -> tuple[str, int]:
    return f"end {stream.rank} {stream.thread}", i


def _launched(stream: Stream, i: int) -> tuple[str, int]:
    return f"launch {stream.rank} {stream.thread}", i


def _host(run: Run, rank: int, step: Window) -> Actor:
    """The threads of a rank that launch its kernels, as one actor."""
    own = rank_streams(run, rank)
    shares = _shares(run, rank, step)
    # At one instant a launch comes before the wait that begins with it.
    events: list[tuple[int, int, StretchEnd]] = []
    for stream in own.values():
        for i in _inside(stream, step):
            if step[0] <= stream.launched[i] < step[1]:
                events.append(
                    (int(stream.launched[i]), 0, StretchEnd("post", _launched(stream, i)))
                )
    waits = _NOTHING
    for lane, mine in shares.items():
        for wait in host_waits(run, *lane, step):
            until = max(int(own[thread].end[j]) for thread, j in wait.kernels.items())
            span = Intervals.of([max(wait.start_ns, step[0])], [min(until, step[1])])
            span = span.intersection(mine)
            if len(span):
                waits = waits.union(span)
                events += [
                    (int(span.end[-1]), 1, StretchEnd("await", _ended(own[thread], j)))
                    for thread, j in wait.kernels.items()
                    if j in _inside(own[thread], step)
                ]
    events.sort(key=lambda one: one[:2])
    instants = np.array([one[0] for one in events], np.int64)
    pieces = []
    for lane, mine in shares.items():
        work = LaneWork(run, lane, step)
        busy = mine.subtraction(waits)
        for low, high in zip(busy.start.tolist(), busy.end.tolist(), strict=True):
            pieces += work.pieces(low, high, instants)
    return Actor(
        rank,
        step[0],
        tuple(event for _, _, event in events),
        np.array([length for _, length, _ in pieces], float),
        np.searchsorted(instants, [begin for begin, _, _ in pieces], side="right"),
        tuple(about for _, _, about in pieces),
    )


def _shares(run: Run, rank: int, step: Window) -> dict[RankThread, Intervals]:
    """Which of the threads of a rank works for its step at each instant: an autograd thread where
    it has an operator in backward and the training thread has none, else the training thread.
    Where none has one in backward, the autograd thread that worked most is between two."""
    training = training_thread(run, rank)
    rest = Intervals.of([step[0]], [step[1]])
    backward = phases_of(run, training).get("backward", rest)
    idle = rest.intersection(backward).subtraction(operators(run, rank, training.thread)[0])
    found = {}
    for helper in autograd_threads(run, training):
        mine = idle.intersection(operators(run, rank, helper.thread)[0])
        found[RankThread(rank, helper.thread)] = mine
        idle, rest = idle.subtraction(mine), rest.subtraction(mine)
    busiest = max(found, key=lambda lane: found[lane].total, default=None)
    if busiest is not None and found[busiest].total:
        own = [found[busiest].clip(*one) for one in zip(backward.start, backward.end, strict=True)]
        from_to = [(one.start[0], one.end[-1]) for one in own if len(one)]
        gaps = idle.intersection(Intervals.of(*zip(*from_to, strict=True)))
        found[busiest] = found[busiest].union(gaps)
        rest = rest.subtraction(gaps)
    return {RankThread(rank, training.thread): rest, **found}


def _stream(run: Run, stream: Stream, lane: str, step: Window) -> Actor:
    """The kernels of a stream within a step."""
    events: list[StretchEnd] = []
    length: list[float] = []
    stretch: list[int] = []
    about: list[tuple[str, tuple[str, ...], str]] = []
    last = last_kernels(run)
    ready = step[0]
    for i in _inside(stream, step):
        begin, end = max(int(stream.start[i]), step[0]), min(int(stream.end[i]), step[1])
        for event, instant in _conditions(run, stream, i, step):
            events.append(event)
            ready = max(ready, instant)
        names, module, _ = launching(run, stream, i)
        length.append(max(begin - ready, 0))
        stretch.append(len(events))
        about.append(("launch", (), ""))
        key = stream.calls[i]
        if key is not None and key in last:
            came = max(begin, last[key][2])
            events += [StretchEnd("arrive", key), StretchEnd("wait", key, max(end - came, 0))]
        else:
            length.append(end - begin)
            stretch.append(len(events))
            about.append((stream.categories[i], (*names, stream.names[i]), module))
        events.append(StretchEnd("post", _ended(stream, i)))
        ready = end
    return Actor(
        stream.rank,
        step[0],
        tuple(events),
        np.array(length, float),
        np.array(stretch, np.int64),
        tuple(about),
        lane=lane,
        ends_step=False,
    )


def _conditions(run: Run, stream: Stream, i: int, step: Window) -> Iterator[tuple[StretchEnd, int]]:
    """What a kernel waits for besides the kernel before it, and when that was done, ns."""
    if step[0] <= stream.launched[i] < step[1]:
        yield StretchEnd("await", _launched(stream, i)), int(stream.launched[i])
    found = dependency(run, stream, i)
    if found is not None:
        other = rank_streams(run, stream.rank)[found[0]]
        if found[1] in _inside(other, step):
            yield StretchEnd("await", _ended(other, found[1])), int(other.end[found[1]])
