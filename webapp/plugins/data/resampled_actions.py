"""Finds policies whose gradient is that of another action than the one that was taken.

`action = dist.sample()` and `dist.log_prob(dist.sample())` draw twice from one distribution. Found
where of two draws from the same tensors one is read by operators with gradients alone, as by those
of log_prob, and the other one by none of these, but by others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import ops_named, stack_of, texts_of, to_frame
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_backward, of_operators
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.losses.tensor_reads import (
    OPERATOR_KEY,
    READ_COLUMNS,
    Tensor,
    TensorReads,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_DRAW = re.compile(r"aten::(bernoulli|multinomial|normal)")
_LOG_PROB = {
    "aten::bernoulli": "aten::binary_cross_entropy_with_logits",
    "aten::multinomial": "aten::gather",
    "aten::normal": "aten::sub",
}
"""What a distribution computes the logarithm of a probability by, with gradients."""

_CHECKS = re.compile(r"aten::(eq|ge|gt|isnan|le|lt|ne|remainder|to|_to_copy|unsqueeze|expand)")
"""What it reads a value by before."""

_BACKWARD = schema.PhaseKind.backward.name

_MIN_PAIRS, _COUNTED = 4, 64
"""Pairs of draws, and draws of a thread that are looked at."""


@dataclass(frozen=True)
class _Draw:
    tensor: Tensor
    name: str
    step: int
    time_ns: int
    stack: int | None
    readers: frozenset[str]  # names of operators; with "+" those with a gradient

    @property
    def scored(self) -> bool:
        """Whether a probability of it has a gradient."""
        return f"{_LOG_PROB[self.name]}+" in self.readers

    @property
    def alone(self) -> bool:
        """Whether nothing else reads it but what checks it before."""
        others = self.readers - {f"{_LOG_PROB[self.name]}+"}
        return all(map(_CHECKS.fullmatch, others))


@of_operators("|".join(_LOG_PROB), "samples from no distribution")
@found_per_rank(need_accesses, need_backward)
def sampled_again(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    names = texts_of(run, "op", "name", rank)
    if not any(name in names and _LOG_PROB[name] in names for name in _LOG_PROB):
        return None
    for thread in run.threads_of(rank):
        pairs = _pairs(run, rank, thread.thread)
        apart = [_apart(*pair) for pair in pairs]
        if len(apart) >= _MIN_PAIRS and all(apart):
            taken, scored = pairs[0] if pairs[0][1].scored else pairs[0][::-1]
            return _finding(run, rank, thread.thread, taken, scored, len(pairs))
    return None


def _apart(first: _Draw, second: _Draw) -> bool:
    """Whether one of two draws alone is scored, and the other one is used."""
    taken, scored = (first, second) if second.scored else (second, first)
    return scored.scored and scored.alone and bool(taken.readers) and not taken.scored


def _pairs(run: Run, rank: int, thread: str) -> list[tuple[_Draw, _Draw]]:
    """Draws from the same tensors, where there are two."""
    columns = [*OPERATOR_KEY, "duration_ns", "name", "step", "stack", "sequence"]
    drawn = ops_named(run, rank, thread, columns, _DRAW.fullmatch)
    if len(drawn) < 2 * _MIN_PAIRS:
        return []
    drawn = drawn.sort_values("start_ns")
    counted, times = drawn.head(_COUNTED), drawn["start_ns"].tolist()
    first, last = times[0], times[len(counted) - 1]
    # What reads the last one begins before the next one does, or about as soon as after others.
    window = first, (times[_COUNTED:] or [2 * last - first])[0]
    table = run.events("access", rank, thread, READ_COLUMNS, window)
    memory, rows = TensorReads(table), to_frame(table)
    ops = to_frame(run.events("op", rank, thread, [*columns, "phase"], window))
    ops = ops[ops["phase"].astype("str") != _BACKWARD]
    names = ops["name"].astype("str") + ops["sequence"].notna().map({True: "+", False: ""})
    named = ops[[*OPERATOR_KEY, "duration_ns"]].assign(reader=names)
    reads = rows[~rows["write"] & ~rows["birth"]].merge(named, on=OPERATOR_KEY)
    found = defaultdict[tuple[str, frozenset[Tensor]], list[_Draw]](list)
    for _, op in counted.iterrows():
        began, end = int(op["start_ns"]), int(op["start_ns"] + op["duration_ns"])
        accesses = memory.at(began, int(op["depth"]))
        written = memory.storage[accesses[memory.write[accesses]]]
        if not len(written):
            continue
        tensor = memory.tensor(int(written[0]), end)
        own = reads[(reads["storage"] == tensor[0]) & (reads["start_ns"] > end)]
        own = own.loc[[memory.tensor(tensor[0], int(time)) == tensor for time in own["start_ns"]]]
        for score in own[own["reader"] == f"{_LOG_PROB[str(op['name'])]}+"].itertuples():
            after = score.start_ns + score.duration_ns
            own = own[(own["start_ns"] <= score.start_ns) | (own["start_ns"] >= after)]
        draw = _Draw(
            tensor,
            str(op["name"]),
            int(op["step"]),
            began,
            stack_of(op),
            frozenset(own["reader"]),
        )
        found[draw.name, frozenset(memory.read_by(accesses))].append(draw)
    return [(pair[0], pair[1]) for pair in found.values() if len(pair) == 2]


def _finding(run: Run, rank: int, thread: str, taken: _Draw, scored: _Draw, count: int) -> Finding:
    where, first = own_place(run, rank, scored.stack), own_place(run, rank, taken.stack)
    return finding_at(
        run,
        rank,
        {"thread": thread, "step": scored.step, "time_ns": scored.time_ns},
        kind="wrong_loss",
        confidence="likely",
        title=f"log_prob gets another sample than the one that is used: each distribution is "
        f"sampled twice, the action{at_place(first)} and a second time{at_place(where)}, in all "
        f"{units.count(count)} pairs that were looked at. The loss rewards actions that were not "
        "taken. Sample once, and give log_prob the same action.",
        where=where,
        evidence={"cause": "sampled_again", "taken_at": first, "pairs": count},
    )
