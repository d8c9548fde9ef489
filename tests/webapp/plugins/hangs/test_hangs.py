"""Planted faults on real gloo ranks under torchrun, and their clean twins."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.compaction.compact import compact
from lanescope.webapp.analysis.findings import Finding, findings, run_questions
from lanescope.webapp.analysis.process_exits import endings
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline.search.lookup import selecting
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.recording import record_into, record_script

pytestmark = pytest.mark.torchrun

PROGRAMS = Path(__file__).with_name("programs.py")

# name -> kind, group, sequence, waiting ranks, missing ranks
FAULTS: dict[str, tuple[str, str, int, list[int], list[int]]] = {
    "missing_rank": ("hang", "0", 3, [0], [1]),
    "missing_rank_killed": ("hang", "0", 3, [0], [1]),
    "raised": ("hang", "0", 3, [0], [1]),
    "died": ("hang", "0", 3, [0], [1]),
    "died_at_work": ("hang", "0", 3, [], [1]),
    "subgroup": ("hang", "2", 2, [2], [3]),
    "different_op": ("collective_mismatch", "0", 2, [], [1]),
    "different_shape": ("collective_mismatch", "0", 2, [], [1]),
    "different_dtype": ("collective_mismatch", "0", 2, [], [1]),
    "different_root": ("collective_mismatch", "0", 2, [], [1]),
    "different_reduction": ("collective_mismatch", "0", 2, [], [1]),
    "different_message": ("collective_mismatch", "0", 0, [], [1]),
    "barrier_on_some": ("collective_mismatch", "0", 2, [], [0]),
    "different_group": ("collective_mismatch", "0", 2, [0], [1]),
    "opposite_order": ("collective_mismatch", "1", 1, [0], [1]),
    "skipped_step": ("collective_mismatch", "0", 4, [0], [1]),
    "unmatched_recv": ("collective_mismatch", "0", 1, [0], [1]),
}
DIFFERENCES = {
    "different_op": "operation",
    "different_shape": "shape",
    "different_dtype": "data type",
    "different_reduction": "reduction",
    "different_message": "data type",
}
SLOW = (
    "opposite_order",
    "barrier_on_some",
    "unmatched_recv",
    "clean_local_sgd",
    "clean_no_sync",
    "clean_join",
    "clean_tensor_parallel",
    "clean_different_models",
    "clean_mixed",
    "parts_adapter_left_out",
    "parts_unsynchronised_parameter",
    "different_shape",
    "different_dtype",
    "different_root",
    "different_group",
    "subgroup",
    "different_message",
    "different_reduction",
    "died",
    "died_at_work",
    "interrupted",
    "skipped_step",
    "unused_parameter",
)
"""Seen in the same way as the others."""
CLEAN = (
    "slow",
    "clean_ddp",
    "clean_no_sync",
    "clean_local_sgd",
    "clean_join",
    "clean_fsdp",
    "clean_tensor_parallel",
    "clean_different_models",
    "clean_pipeline",
    "clean_mixed",
)
STEPS = 8
EXCHANGED = {
    # A shard of each layer is half of 8 x 16 + 16 and of 16 x 8 + 8 float32.
    "clean_fsdp": {
        ("all_gather_into_tensor", 288): 2 * STEPS,
        ("all_gather_into_tensor", 272): 2 * STEPS,
        ("reduce_scatter_tensor", 576): STEPS,
        ("reduce_scatter_tensor", 544): STEPS,
    },
    # The second layer's output of 4 x 8 is summed; weights and a bias are handed out, one is sent.
    "clean_tensor_parallel": {
        ("all_reduce", 128): STEPS,
        ("scatter", 256): 2,
        ("scatter", 32): 1,
        ("broadcast", 32): 1,
    },
    # The rank that is done goes on with the ten gradients of 280 float32.
    "clean_join": {("all_reduce", 1120): 10},
}
"""Calls of a rank by name and bytes, as torch is known to make them."""

PARTING = {
    "parts_around_the_wrapper": (3, "0.weight", 4),
    "parts_adapter_left_out": (0, "1.weight", 2),
    "parts_unsynchronised_parameter": (0, "2.bias", 1),
}  # step, first parameter, how many
ENDED = ("stopped", "interrupted", "died_at_work")
"""Programs whose launcher ends the remaining ranks: with torchrun itself."""
TOGETHER = {
    "access": ("straggler", "different_reduction", "different_message", *CLEAN),
    "numerics": tuple(PARTING),
}
"""Programs that end, by the level at which they are recorded: one launch for all of each."""


def _some_slow(names: Iterable[str]) -> list[Any]:
    return [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in names]


class Runs:
    """Records programs side by side: most of their time they wait."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(6)
        self._made: dict[str, Future[None]] = {}
        self._opened: dict[str, Run] = {}
        self._found: dict[str, list[Finding]] = {}

    def start(self, *names: str) -> None:
        """Queue programs."""
        for name in names:
            if name in self._made:
                continue
            if level := self._level(name):
                made = self._pool.submit(self._record_together, level)
                self._made.update(dict.fromkeys(TOGETHER[level], made))
            else:
                self._made[name] = self._pool.submit(self._record, name)

    def _level(self, name: str) -> str:
        """The one of TOGETHER at which a program is recorded with others."""
        return next((level for level, group in TOGETHER.items() if name in group), "")

    def of(self, name: str) -> Run:
        """The run of a program, once it is there."""
        self.start(name)
        self._made[name].result()
        if name not in self._opened:
            self._opened[name] = open_run(self._folder / self._level(name) / name)
        return self._opened[name]

    def found(self, name: str) -> list[Finding]:
        """What all questions find in it."""
        if name not in self._found:
            self._found[name] = findings(self.of(name))
        return self._found[name]

    def close(self) -> None:
        """Start nothing more, and wait for what runs."""
        self._pool.shutdown(cancel_futures=True)

    def _record(self, name: str) -> None:
        ranks = 4 if name == "subgroup" else 2
        record_script(self._folder / name, PROGRAMS, name, ranks=ranks, real=name in ENDED)

    def _record_together(self, level: str) -> None:
        runs = self._folder / level
        done = record_into(runs, PROGRAMS, level, *TOGETHER[level], ranks=2)
        assert done.returncode == 0, done.stderr
        for name in TOGETHER[level]:
            compact(runs / name)


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Runs]:
    made = Runs(tmp_path_factory.mktemp("faults"))
    wanted = [
        item.callspec.params.get("name")
        for item in request.session.items
        if hasattr(item, "callspec") and item.path == request.path
    ]
    made.start(*(name for name in wanted if name))
    yield made
    made.close()


def _line_of(name: str) -> int:
    """Position of a program's first line in its file."""
    return PROGRAMS.read_text().splitlines().index(f"def {name}() -> None:")


def main_finding(runs: Runs, name: str) -> Finding:
    found = runs.found(name)
    assert found, [one.unanswered for one in run_questions(runs.of(name))]
    return found[0]


@pytest.mark.parametrize("name", _some_slow(FAULTS))
def test_a_planted_fault_is_named(runs: Runs, name: str) -> None:
    kind, group, sequence, waiting, missing = FAULTS[name]
    found = main_finding(runs, name)
    evidence: dict[str, Any] = dict(found.evidence)
    shown = [one.title for one in runs.found(name)]
    assert found.kind == kind, shown
    if name in ("different_group", "unmatched_recv", "opposite_order"):
        # Two calls wait for each other; which one began first is chance.
        evidence = next(one for one in evidence["cycle"] if one["waiting"] == waiting)
    assert (evidence["group"], evidence["sequence"]) == (group, sequence), shown
    assert evidence["waiting"] == waiting, shown
    assert [one["rank"] for one in evidence["missing"]] == missing, shown
    lines = evidence["called_at"]
    assert set(map(int, lines)) >= set(waiting), shown
    assert all(str(place).startswith("programs.py:") for place in lines.values()), lines
    assert [one.kind for one in runs.found(name) if one.severity == "error"].count(kind) <= 1


@pytest.mark.parametrize("name", _some_slow(DIFFERENCES))
def test_a_mismatch_says_what_differs_and_where(runs: Runs, name: str) -> None:
    found = main_finding(runs, name)
    assert found.evidence["differs"] == DIFFERENCES[name]
    where = found.where or ""
    assert where.startswith("programs.py:")
    assert _line_of(name) < int(where.partition(":")[2]) <= _line_of(name) + 6


@pytest.mark.parametrize("name", ["came_too_late"])
@pytest.mark.slow
def test_a_rank_that_came_when_the_call_was_given_up_is_named(runs: Runs, name: str) -> None:
    found = main_finding(runs, name)
    assert (found.kind, found.severity, found.ranks) == ("straggler", "error", (1,))
    assert found.title.startswith("Rank 0 gave up barrier #2 of group 0")
    assert "before rank 1 came to it" in found.title
    assert "went on recording" not in found.title  # it slept


@pytest.mark.parametrize("name", ["missing_rank_killed"])
def test_a_killed_rank_is_known_to_have_been_stuck_and_where(runs: Runs, name: str) -> None:
    found = main_finding(runs, name)
    line = 1 + next(
        i
        for i, text in enumerate(PROGRAMS.read_text().splitlines())
        if "queue.Queue[int]().get" in text and i > _line_of(name)
    )
    assert (found.severity, found.where) == ("error", f"programs.py:{line}")
    (missing,) = found.evidence["missing"]
    assert missing == {
        "rank": 1,
        "doing": "main waits for an item of a queue",
        "where": f"programs.py:{line}",
    }
    assert found.evidence["waited_ns"] > 1_500_000_000
    assert "quiet" in {row["reason"] for row in runs.of(name).events("stall", 1).to_pylist()}


@pytest.mark.parametrize("name", ["killed_at_work"])
@pytest.mark.slow
def test_what_was_killed_at_work_did_not_hang(runs: Runs, name: str) -> None:
    run = runs.of(name)
    assert not run.complete
    assert "all_reduce" in run.events("collective", 1)["name"].to_pylist()
    assert [one.title for one in runs.found(name)] == []


@pytest.mark.parametrize(
    ("closed", "how"), [(False, ["killed", "killed"]), (True, ["died", "gave up"])]
)
@pytest.mark.slow
def test_a_rank_that_noticed_the_end_of_another_may_be_killed_as_well(
    runs: Runs, tmp_path: Path, closed: bool, how: list[str]
) -> None:
    """It raised before its turn came; where it ended in order, it was not killed."""
    copy = Path(shutil.copytree(runs.of("killed_at_work").path, tmp_path / "run"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["exit_status"] = 128 + signal.SIGKILL
    lost = {"ended": "exception", "exception": "RuntimeError: Connection closed by peer"}
    for process in manifest["processes"]:
        if process["rank"] == 1:
            process.update(lost, closed=closed)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert [one.how for _, one in sorted(endings(open_run(copy)).items())] == how


@pytest.mark.parametrize("name", _some_slow(["stopped", "interrupted"]))
def test_a_job_that_was_stopped_from_outside_did_not_hang(runs: Runs, name: str) -> None:
    run = runs.of(name)
    assert run.manifest["exit_status"] != 0
    assert [one.title for one in runs.found(name)] == []
    assert {one.how for one in endings(run).values()} <= {"stopped", "gave up"}


@pytest.mark.parametrize("name", ["missing_rank"])
def test_the_link_selects_the_call_that_is_waited_in(runs: Runs, name: str) -> None:
    run = runs.of(name)
    timeline = Timeline.open(run)
    address = selecting(timeline, main_finding(runs, name).link)
    lane, row, number = map(int, address.rpartition("sel=")[2].split("."))
    index = timeline.index
    assert index.lanes[lane].process_group == "0"
    flat = index.row_begin[index.lane_rows[lane][row]] + number
    assert int(index.slices.start[flat]) == main_finding(runs, name).time_ns
    assert "at=" not in address


@pytest.mark.parametrize("name", _some_slow(PARTING))
def test_replicas_that_part_are_named(runs: Runs, name: str) -> None:
    step, parameter, differing = PARTING[name]
    (found,) = (one for one in runs.found(name) if one.kind == "rank_divergence")
    evidence = found.evidence
    assert (found.step, evidence["parameter"], evidence["what"]) == (step, parameter, "gradient")
    assert evidence["differing"] == differing
    assert len(set(evidence["hash"].values())) == 2


@pytest.mark.parametrize("name", _some_slow(["unused_parameter"]))
def test_what_ddp_could_not_reduce_is_named_as_a_parameter_without_gradient(
    runs: Runs, name: str
) -> None:
    (found,) = runs.found(name)
    assert (found.kind, found.severity) == ("dead_parameter", "error")
    assert found.evidence["dead"] == 4
    assert "that is what ended this run" in found.title


@pytest.mark.parametrize("name", ["straggler"])
def test_a_rank_that_is_slow_in_every_step_is_a_straggler(runs: Runs, name: str) -> None:
    (found,) = runs.found(name)
    assert (found.kind, found.rank) == ("straggler", 1)
    assert 0.2e9 < found.evidence["delay_ns"] < 4e9
    lines = PROGRAMS.read_text().splitlines()
    (sleep,) = (n for n, line in enumerate(lines, 1) if "time.sleep(0.4)" in line)
    assert found.where == f"programs.py:{sleep}"
    assert found.evidence["slower"]["doing"] == f"at {found.where}, where no operator runs"
    assert f"is slower at {found.where}, where no operator runs" in found.title


@pytest.mark.parametrize("name", _some_slow(EXCHANGED))
def test_every_call_is_there_with_group_number_and_bytes(runs: Runs, name: str) -> None:
    run = runs.of(name)
    columns = ["group", "group_size", "sequence", "name", "bytes", "complete_ns"]
    made = []
    for rank in (0, 1):
        rows = run.events("collective", rank, columns=columns).to_pylist()
        assert all(row.pop("complete_ns") is not None for row in rows)
        made.append(sorted(rows, key=lambda row: row["sequence"]))
    assert made[0] == made[1]
    assert {(row["group"], row["group_size"]) for row in made[0]} == {("0", 2)}
    assert [row["sequence"] for row in made[0]] == list(range(len(made[0])))
    counted = Counter((row["name"], row["bytes"]) for row in made[0])
    assert {call: counted[call] for call in EXCHANGED[name]} == EXCHANGED[name]


@pytest.mark.parametrize("name", _some_slow(CLEAN))
def test_clean_programs_have_no_finding(runs: Runs, name: str) -> None:
    run = runs.of(name)
    assert run.complete
    assert [one.title for one in runs.found(name)] == []
    assert any(not one.unanswered for one in run_questions(run))
