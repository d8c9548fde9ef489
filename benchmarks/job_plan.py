"""When the ranks of a made-up job work and wait for each other, with faults that can be planted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lanescope.webapp.runs.types import Int64Array
from tests.support.run_builder import START_NS

LAYERS = 3
WORK_NS = {"data": 400_000, "forward": 2_000_000, "backward": 4_000_000, "optimizer": 1_500_000}
"""Of one piece of work; forward and backward have one for each layer."""

TRANSFER_NS = 150_000
KINDS = tuple(WORK_NS)
SLOWER = 6


@dataclass(frozen=True)
class Plan:
    """How many ranks there are along each dimension; the tensor dimension varies fastest."""

    tensor: int
    data: int
    pipeline: int
    expert: int  # of the data-parallel ranks, so many neighbours share experts

    @classmethod
    def of(cls, ranks: int) -> Plan:
        """The dimensions of a power of two of ranks."""
        third = 1 << (ranks.bit_length() - 1) // 3
        tensor, pipeline = min(8, third), min(4, third)
        data = ranks // tensor // pipeline
        return cls(tensor, data, pipeline, min(4, data))

    @property
    def ranks(self) -> int:
        """Number of ranks of the job."""
        return self.tensor * self.data * self.pipeline

    def groups(self) -> dict[str, Int64Array]:
        """Ranks by dimension: a row for each process group."""
        at = np.arange(self.ranks).reshape(self.pipeline, self.data, self.tensor)
        expert = at.reshape(self.pipeline, self.data // self.expert, self.expert, self.tensor)
        return {
            "tp": at.reshape(-1, self.tensor),
            "dp": at.swapaxes(1, 2).reshape(-1, self.data),
            "pp": at.transpose(1, 2, 0).reshape(-1, self.pipeline),
            "ep": expert.swapaxes(2, 3).reshape(-1, self.expert),
        }


@dataclass
class Faults:
    """Ranks with a planted fault; None: without it."""

    straggler: int | None = None
    missing: int | None = None
    mismatched: int | None = None

    @classmethod
    def of(cls, ranks: int) -> Faults:
        """One of each, far from each other."""
        return cls(ranks * 5 // 8, ranks * 3 // 4 + 1, ranks // 4 + 2) if ranks >= 8 else cls()


@dataclass(eq=False)
class Job:
    """What all ranks do, in order of time: `now` is the instant of each rank, on the axis."""

    plan: Plan
    faults: Faults
    random: np.random.Generator
    now: Int64Array
    work: list[tuple[str, int, Int64Array, Int64Array]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def compute(self, kind: str, step: int) -> None:
        """All ranks work; the straggler takes longer in the forward pass."""
        lengths = WORK_NS[kind] * self.random.lognormal(0, 0.02, self.plan.ranks)
        if kind == "forward" and self.faults.straggler is not None:
            lengths[self.faults.straggler] *= SLOWER
        begin = self.now.copy()
        self.now += lengths.astype(np.int64)
        self.work.append((kind, step, begin, self.now.copy()))

    def collective(self, name: str, dimension: str, kind: str, step: int) -> None:
        """All ranks of each group of a dimension call, and leave when the last one has come."""
        groups = self.plan.groups()[dimension]
        if groups.shape[1] < 2:
            return
        begin = self.now.copy()
        last = begin[groups].max(axis=1) + TRANSFER_NS
        self.now[groups] = last[:, None] + self.random.integers(0, 3_000, groups.shape)
        everyone = np.ones(self.plan.ranks, np.bool_)
        self._call(name, dimension, kind, step, begin, everyone, None)

    def pass_on(self, kind: str, step: int, *, forward: bool) -> Iterator[npt.NDArray[np.bool_]]:
        """Stage after stage of the pipeline may work: each receives, and sends to the next."""
        stages = range(self.plan.pipeline)
        at = np.arange(self.plan.ranks) // (self.plan.tensor * self.plan.data)
        ordered = stages if forward else stages[::-1]
        step_to = 1 if forward else -1
        sent: Int64Array | None = None
        for position, stage in enumerate(ordered):
            mine = at == stage
            if sent is not None:
                begin = self.now.copy()
                self.now[mine] = np.maximum(begin[mine], sent) + TRANSFER_NS
                self._call("recv", "pp", kind, step, begin, mine, stage - step_to)
            yield mine
            if position < len(stages) - 1:
                begin = self.now.copy()
                self.now[mine] += 5_000
                sent = begin[mine]
                self._call("send", "pp", kind, step, begin, mine, stage + step_to)

    def _call(
        self,
        name: str,
        dimension: str,
        kind: str,
        step: int,
        begin: Int64Array,
        who: npt.NDArray[np.bool_],
        peer: int | None,
    ) -> None:
        self.calls.append(
            {
                "name": name,
                "dimension": dimension,
                "kind": kind,
                "step": step,
                "begin": begin,
                "end": self.now.copy(),
                "who": who,
                "peer": peer,
            }
        )


def plan_job(plan: Plan, faults: Faults, steps: int) -> Job:
    """When each rank of a job works and calls."""
    random = np.random.default_rng(plan.ranks)
    now = START_NS + random.integers(0, 2_000_000, plan.ranks)
    job = Job(plan, faults, random, now)
    for step in range(steps):
        job.compute("data", step)
        for kind, forward in (("forward", True), ("backward", False)):
            for mine in job.pass_on(kind, step, forward=forward):
                _pass(job, kind, step, mine)
        job.collective("all_reduce", "dp", "backward", step)
        job.compute("optimizer", step)
    return job


def _pass(job: Job, kind: str, step: int, mine: npt.NDArray[np.bool_]) -> None:
    """One stage's layers; the other stages are left as they are."""
    kept, calls, work = job.now.copy(), len(job.calls), len(job.work)
    for layer in range(LAYERS):
        job.compute(kind, step)
        job.collective("all_reduce", "tp", kind, step)
        if layer == LAYERS - 1:
            job.collective("all_to_all", "ep", kind, step)
    job.now = np.where(mine, job.now, kept)
    for call in job.calls[calls:]:
        call["who"] = mine
    for at in range(work, len(job.work)):
        kind, step, begin, end = job.work[at]
        job.work[at] = kind, step, np.where(mine, begin, -1), np.where(mine, end, -1)
