"""What-if: the length of a step if some of its work took less, by replaying it (`replay.py`).

On each rank the training thread's step is a row of stretches of work between collectives. Waits for
other threads keep their length. The unchanged replay has to give the recorded step within
MAX_ERROR; else nothing is predicted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.collectives.devices import talks_on_device
from lanescope.webapp.plugins.time.computed_once import computed_once
from lanescope.webapp.plugins.time.device_replay import device_replay
from lanescope.webapp.plugins.time.host_replay import host_replay
from lanescope.webapp.plugins.time.job_steps import job_step
from lanescope.webapp.plugins.time.replay import Replay
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

MAX_ERROR = 0.01
"""Share of the step by which the unchanged replay may differ from it."""

MIN_GAIN = 0.02
"""What gains less is not worth a line."""

READY_MADE = (
    "straggler=none",
    "phase=forward:x0.5",
    "phase=backward:x0.5",
    "phase=optimizer:x0.5",
    "transfer=0",
    "data=0",
    "python:x0.5",
    "bucket=5",
)
"""Specifications that make sense for every run."""


_Change = Callable[[Replay], float]
_Chosen = Callable[[str, Sequence[str], str], bool]
"""Whether a piece of work of a category, with these names, of this module is meant."""


@dataclass(frozen=True)
class Prediction:
    """What a change would bring."""

    spec: str
    words: str
    step_ns: int
    speedup: float  # recorded step over predicted step


def what_if(run: Run, specs: Sequence[str], step: int | None = None) -> list[Prediction]:
    """Predicts the length of a step of the job for each specification.

    `rank=2:delay=0`      rank 2 takes the median of the others for each stretch
    `straggler=none`      every rank does
    `op=aten::mm*:x0.5`   operators whose name matches take half as long
    `module=blocks.3:x0.8`, `phase=backward:x0.5`, `python:x0.5`   likewise
    `data=0`, `transfer=0`   data loading, or transfers, are free
    `communication=0`     so are the waits for collectives
    `bucket=5`            DistributedDataParallel reduces gradients in buckets of 5 MiB

    Raises ValueError for a specification that cannot be read, NotApplicable where the run cannot be
    replayed, or the step has no such rank or name.
    """
    changes = [(spec, *_parsed(spec)) for spec in specs]
    replay = _replay_of(run, job_step(run, step).step)
    return [_predicted(replay, *each) for each in changes]


def _predicted(replay: Replay, spec: str, words: str, change: _Change) -> Prediction:
    length = max(change(replay), 1.0)
    return Prediction(spec, words, round(length), replay.recorded_ns / length)


def _tried(replay: Replay, spec: str) -> Prediction | None:
    """The prediction of a specification; None where the step has nothing to change by it."""
    try:
        return _predicted(replay, spec, *_parsed(spec))
    except NotApplicable:
        return None


def ready_made(run: Run, step: int | None = None) -> list[Prediction]:
    """Returns predictions of READY_MADE that gain MIN_GAIN or more, the best first; with more than
    one rank also for the rank whose delay costs most."""
    return list(_ready_made(run, job_step(run, step).step))


@computed_once(maxsize=8)
def _ready_made(run: Run, step: int) -> list[Prediction]:
    specs = [*READY_MADE]
    if len(run.ranks) > 1:
        specs += [f"rank={rank}:delay=0" for rank in run.ranks]
    replay = _replay_of(run, step)
    found = [one for spec in specs if (one := _tried(replay, spec)) is not None]
    ranks = [one for one in found if one.spec.startswith("rank=")]
    others = [one for one in found if one not in ranks]
    best = max(ranks, key=lambda one: one.speedup, default=None)
    if best is not None:
        others = [one for one in others if one.spec != "straggler=none"] + [
            best if best.speedup >= others[0].speedup * 0.98 else others[0]
        ]
    gains = [one for one in others if one.speedup >= 1 + MIN_GAIN]
    return sorted(gains, key=lambda one: -one.speedup)


@computed_once(maxsize=8)
def _replay_of(run: Run, step: int) -> Replay:
    return checked_replay(run, step)


def checked_replay(run: Run, step: int | None, *, gradients: bool = True) -> Replay:
    """Returns the replay of a step; `gradients`: able to reduce them in other buckets.

    Raises NotApplicable where it does not give what was recorded, within MAX_ERROR.
    """
    window = job_step(run, step)
    on_device = any(talks_on_device(run, rank) for rank in run.ranks)
    replay = device_replay(run, window) if on_device else host_replay(run, window, gradients)
    again, recorded = replay.run(), replay.recorded_ns
    if abs(again - recorded) > MAX_ERROR * recorded:
        raise NotApplicable(
            f"replayed unchanged, step {window.step} takes {units.duration(again)} instead of "
            f"{units.duration(recorded)}: what else it waited for was not recorded"
        )
    return replay


_NUMBER = r"(\d+\.?\d*|\.\d+)"
_SCALED = re.compile(rf"(op|module|phase)=(.+):x{_NUMBER}|(python|transfer):x{_NUMBER}")


def _parsed(spec: str) -> tuple[str, _Change]:
    """Words for a specification, and what it does."""
    if found := re.fullmatch(r"rank=(\d+):delay=0", spec):
        rank = int(found[1])
        return f"rank {rank} as fast as the others", lambda replay: _without_delay(replay, rank)
    if spec == "straggler=none":
        every = "every rank as fast as the median"
        return every, lambda replay: replay.without_stragglers(replay.ranks)
    if spec == "data=0":
        return "data loading free", lambda replay: replay.scaled(
            lambda category, *_: category == "data_loading", 0.0
        )
    if spec == "transfer=0":
        return "transfers free", lambda replay: replay.run(transfer=0.0)
    if spec == "communication=0":
        return "no communication", lambda replay: replay.run(wait=False)
    if found := re.fullmatch(f"bucket={_NUMBER}", spec):
        mib = float(found[1])
        return f"gradients in buckets of {mib:g} MiB", lambda replay: replay.with_buckets(mib)
    found = _SCALED.fullmatch(spec)
    if found is None:
        raise ValueError(
            f"{spec!r} is not a what-if; expected for example rank=2:delay=0, straggler=none, "
            "op=aten::mm*:x0.5, module=blocks.3:x0.8, phase=backward:x0.5, data=0, transfer=0, "
            "bucket=5"
        )
    what, pattern = (found[1] or found[4]), found[2] or ""
    factor = float(found[3] or found[5])
    times = _times(factor)
    if what == "transfer":
        return f"transfers {times}", lambda replay: replay.run(transfer=factor)
    chosen: dict[str, _Chosen] = {
        "op": lambda _, names, __: any(fnmatchcase(name, pattern) for name in names),
        "module": lambda _, __, module: module == pattern or module.startswith(f"{pattern}."),
        "phase": lambda category, *_: category == pattern,
        "python": lambda category, *_: category == "python",
    }
    if what == "python":
        words = f"Python between operators {times}"
        return words, lambda replay: replay.scaled(chosen[what], factor)
    return f"{pattern} {times}", lambda replay: _scaled(replay, spec, chosen[what], factor)


def _without_delay(replay: Replay, rank: int) -> float:
    if rank not in replay.ranks:
        ranks = ", ".join(map(str, replay.ranks))
        raise NotApplicable(f"rank {rank}: no such rank; the step has {ranks}")
    return replay.without_stragglers([rank])


def _scaled(replay: Replay, spec: str, chosen: _Chosen, factor: float) -> float:
    """Refuses a name that nothing in the step has: "x1.00" would read as "it would not help"."""
    if not any(chosen(*each) for one in replay.actors for each in one.about):
        raise NotApplicable(f"{spec}: nothing in the step has this name")
    return replay.scaled(chosen, factor)


def _times(factor: float) -> str:
    """Words for a factor of a length."""
    if not factor:
        return "free"
    if factor > 1:
        return "half as fast" if factor == 2 else f"{factor:.3g} times as long"
    return "twice as fast" if factor == 0.5 else f"{1 / factor:.3g} times as fast"
