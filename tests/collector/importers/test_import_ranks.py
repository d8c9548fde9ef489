"""Traces and dumps of real ranks: the files of a job become one run."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lanescope.collector.importers.clock_offsets import Source, comparable_groups, rank_offsets
from lanescope.collector.importers.import_limits import ImportRejected
from lanescope.collector.importers.run_writer import import_files
from lanescope.collector.importers.spill import CollectiveCall
from lanescope.webapp.analysis.checks import check
from lanescope.webapp.analysis.findings import findings, run_questions
from lanescope.webapp.cli import main
from lanescope.webapp.plugins.collectives.collectives import collectives
from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.runs.run import Run, open_run
from tests.support import ROOT
from tests.support.processes import fork_program
from tests.support.profiled import PARAMETERS
from tests.support.trace_files import DATA, accounted, imported, kernel, rows, slice_, write_trace


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the two ranks of `profiled.py` left."""
    folder = tmp_path_factory.mktemp("job")
    program = ROOT / "tests/support/profiled.py"
    environment = {"TORCH_FR_BUFFER_SIZE": "1000", "PYTHONPATH": str(ROOT)}
    done = fork_program(program, str(folder), ranks=2, environment=environment)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def traces(job: Path) -> Run:
    """The run made of torch.profiler's files."""
    return imported(job / "traces", *sorted(job.glob("rank-*.json")))


@pytest.mark.torchrun
def test_traces_of_a_job_become_one_run(traces: Run) -> None:
    accounted(traces)
    assert (traces.ranks, traces.world_size, traces.dropped) == ((0, 1), 2, 0)
    assert traces.complete
    assert traces.clock_calibrated
    assert not traces.warnings
    assert [traces.steps(rank).index.tolist() for rank in (0, 1)] == [[2, 3, 4]] * 2
    assert {p["engine"] for p in traces.manifest["processes"]} == {"kineto"}
    # Names that are the same in another run of the program: no ids of threads.
    names = [thread.name for thread in traces.threads if thread.rank == 0]
    assert names[0] == "MainThread"
    assert not any(str(t.native_id) in t.name for t in traces.threads if t.native_id)


@pytest.mark.torchrun
def test_operators_and_works_become_one_collective(traces: Run) -> None:
    columns = ("name", "group", "group_size", "sequence", "peer", "shapes", "bytes", "step")
    of_step = [
        ("all_reduce", "0", 2, 0, None, f"[{PARAMETERS}]", 4 * PARAMETERS, 2),
        ("all_reduce", "0", 2, 1, None, "[]", 4, 3),  # after the optimizer
        ("barrier", "0", 2, 2, None, "[1]", 0, 3),
    ]
    for rank, pair in ((0, ("send", 1)), (1, ("recv", 0))):
        found = rows(traces, "collective", *columns, rank=rank)
        assert found[:4] == [*of_step, (pair[0], "0", 2, 0, pair[1], "[3]", 12, 3)]
        assert len(found) == 12
        ends = rows(traces, "collective", "start_ns", "duration_ns", "complete_ns", rank=rank)
        assert all(end is not None and end >= start + length for start, length, end in ends)


@pytest.mark.torchrun
def test_nothing_is_found_where_nothing_is_wrong(traces: Run) -> None:
    assert findings(traces) == []
    answered = {one.question: one.unanswered for one in run_questions(traces)}
    assert "not whole" in answered["Hangs"]
    assert check(traces).failed("warning") is False
    assert len(collectives(traces))


@pytest.mark.torchrun
def test_two_imported_traces_compare(traces: Run, job: Path, tmp_path: Path) -> None:
    again = imported(tmp_path / "again", *sorted(job.glob("rank-*.json"), reverse=True))
    assert compare(traces, again, "bitwise").verdict == "identical"


@pytest.mark.torchrun
@pytest.mark.parametrize("files", ["dump_rank*.json", "dump_rank[01]"])
def test_check_names_the_hang_of_a_dump(files: str, job: Path, tmp_path: Path) -> None:
    run = imported(tmp_path / "run", *sorted(job.glob(files)))
    accounted(run)
    dumped = "ranks 0-1: dumped while running; what had not ended then has no end here"
    assert dumped in run.warnings
    assert not any("did not close" in warning for warning in run.warnings)
    (finding,) = findings(run)
    assert (finding.kind, finding.severity, finding.ranks) == ("hang", "warning", (1,))
    assert finding.title.startswith("Rank 1 never entered all_reduce #")
    evidence = finding.evidence
    assert (evidence["group"], evidence["waiting"], evidence["op"]) == (
        "0",
        [0],
        {"0": "all_reduce"},
    )
    made = rows(run, "collective", "name", "sequence", rank=0)
    assert ("all_reduce", evidence["sequence"]) == made[-1]
    if not files.endswith("json"):  # those have no stacks
        assert evidence["called_at"]["0"].startswith("profiled.py:")
    result = CliRunner().invoke(main, ["check", "--fail-on", "warning", str(tmp_path / "run")])
    assert result.exit_code == 1
    assert "Rank 1 never entered all_reduce" in result.output


def dump(*sequences: int, **fields: Any) -> dict[str, Any]:
    entries = [
        {
            "record_id": sequence - 1,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": sequence,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 10**18 + sequence * 10**6,
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "state": "completed",
            "retired": True,
            "time_discovered_completed_ns": 10**18 + sequence * 10**6 + 500,
        }
        for sequence in sequences
    ]
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.4", "pg_config": groups, "entries": entries, **fields}


def test_a_trace_with_a_member_called_entries_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    event = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    # Its events begin behind the first block, so a dump is tried first.
    path.write_text(json.dumps({"entries": [], "pad": " " * (2 << 20), "traceEvents": [event]}))
    assert imported(tmp_path / "run", path).coverage["imported_slices"] == 1
    path.write_text(json.dumps({"pad": " " * (2 << 20), **dump(1, 2)}))
    assert imported(tmp_path / "other", path).coverage["imported_calls"] == 2


def test_a_buffer_that_lost_early_calls_does_not_look_like_a_hang(tmp_path: Path) -> None:
    for rank, sequences in ((0, range(3, 9)), (1, range(5, 9))):
        (tmp_path / f"rank{rank}").write_bytes(pickle.dumps(dump(*sequences)))
    run = imported(tmp_path / "run", tmp_path / "rank0", tmp_path / "rank1")
    assert rows(run, "collective", "sequence", "complete_ns", rank=1)[0] == (4, 2_000_500)
    assert findings(run) == []


def test_a_dump_without_creation_times_is_shown_in_its_order(tmp_path: Path) -> None:
    for rank, last in ((0, 5), (1, 4)):
        content = dump(*range(1, last))
        for entry in content["entries"]:
            del entry["time_created_ns"], entry["time_discovered_completed_ns"]
        content["entries"][-1] |= {"state": "scheduled", "retired": False}
        (tmp_path / f"rank{rank}").write_bytes(pickle.dumps(content))
    run = imported(tmp_path / "run", tmp_path / "rank0", tmp_path / "rank1")
    found = rows(run, "collective", "sequence", "start_ns", "complete_ns", rank=0)
    assert found == [(k, 1_000 * k, None) for k in range(4)]
    assert not run.clock_calibrated
    assert sum("holds no creation times" in warning for warning in run.warnings) == 2
    (finding,) = findings(run)
    assert finding.title.startswith("Rank 1 never entered all_reduce #3")


def test_binary_traces_are_refused_with_their_conversion(tmp_path: Path) -> None:
    path = tmp_path / "trace.pb"
    packet, plane = b"\x40\x05\x50\x01", b"\x08\x01\x12\x09/host:CPU"
    for message, words in ((packet, "traceconv json"), (plane, "xprof")):
        path.write_bytes(b"\x0a" + bytes([len(message)]) + message)
        with pytest.raises(ImportRejected, match=words):
            imported(tmp_path / "run", path)
    path.write_bytes(b"PK\x03\x04\x14\x00")
    with pytest.raises(ImportRejected, match="open a bundle"):
        imported(tmp_path / "run", path)
    path.write_text('\n{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2}]}')
    assert imported(tmp_path / "run", path).counts["op"] == 1


def call(
    sequence: int, complete: int, group: str = "0", name: str = "all_reduce"
) -> CollectiveCall:
    start = complete - 10
    return CollectiveCall(
        name, 0, start, complete, complete, group, 2, "[1]", "float32", 4, None, sequence
    )


def test_clocks_of_two_hosts_are_aligned_by_common_ends() -> None:
    late = [0, 3, -2, 1, 0, 2, 900]  # one was noticed late
    calls = {
        0: [call(i, 1_000 * i) for i in range(7)],
        1: [call(i, 1_000 * i + 70_000 + late[i]) for i in range(7)],
    }
    apart = rank_offsets({0: Source(0, "a"), 1: Source(0, "b")}, calls)
    assert (apart[1].offset_ns, apart[1].calibrated) == (-70_001, True)
    assert 2 <= apart[1].uncertainty_ns <= 4
    assert apart[0].clock != apart[1].clock
    few = rank_offsets({0: Source(5, ""), 1: Source(9, "")}, {0: calls[0][:2], 1: calls[1][:2]})
    assert (few[1].offset_ns, few[1].calibrated, few[1].uncertainty_ns) == (4, False, 10**9)
    # One name, and ends that agree with one clock: it is one.
    same = rank_offsets({0: Source(0, "a"), 1: Source(7, "a")}, {0: calls[0], 1: []})
    assert (same[1].offset_ns, same[1].uncertainty_ns, same[1].clock) == (7, 0, same[0].clock)
    # One name, and ends that do not: it is not.
    assert rank_offsets({0: Source(0, "a"), 1: Source(0, "a")}, calls)[1].offset_ns == -70_001


def test_only_calls_that_are_the_same_on_all_ranks_are_compared() -> None:
    calls = {
        0: [call(0, 10), call(0, 10, "other"), call(1, 20, "other", "barrier")],
        1: [call(0, 10), call(0, 10, "other")],
    }
    assert comparable_groups(calls) == {"0"}


def test_ranks_come_from_the_file_its_name_or_the_command(tmp_path: Path) -> None:
    events = [slice_("a", 1, 2)]
    of_three = {"rank": 2, "world_size": 3}
    stated = write_trace(tmp_path / "a.json", events, distributedInfo=of_three)
    named = write_trace(tmp_path / "trace_rank1.json", events)
    silent = write_trace(tmp_path / "b.json", events)
    assert imported(tmp_path / "1", stated, named).ranks == (1, 2)
    assert imported(tmp_path / "2", stated, named, silent, ranks=[0, 1, 7]).ranks == (0, 1, 7)
    run = imported(tmp_path / "3", silent, silent)
    assert run.ranks == (0, 1)
    assert any("numbered in the order given" in warning for warning in run.warnings)
    with pytest.raises(ImportRejected, match="does not name its rank"):
        imported(tmp_path / "4", stated, silent)
    with pytest.raises(ImportRejected, match="is of rank 2, and so is"):
        imported(tmp_path / "4", stated, stated)
    with pytest.raises(ImportRejected, match="exists already"):
        imported(tmp_path / "3", stated)


def test_command(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.json", [slice_("a", 1, 2), {"ph": "N", "ts": 1}])
    run = str(tmp_path / "run")
    done = CliRunner().invoke(main, ["import", str(trace), "-o", run])
    assert (done.exit_code, done.output) == (0, f"{run}\n")
    shown = CliRunner().invoke(main, ["info", run])
    assert "2 read events, 1 imported slices, 1 dropped unsupported" in shown.output
    assert "1 (unsupported)" in shown.output
    as_json = json.loads(CliRunner().invoke(main, ["info", "--json", run]).output)
    assert as_json["imported"] == {
        "read_events": 2,
        "imported_slices": 1,
        "dropped_unsupported": 1,
    }
    for arguments, words in (
        ([str(trace), "-o", run], "exists already"),
        ([str(tmp_path / "none.json"), "-o", f"{run}2"], "No such file"),
        ([str(trace), "-o", f"{run}2", "--ranks", "0,1"], "expected one for each"),
        ([str(trace), "-o", f"{run}2", "--ranks", "x"], "expected numbers"),
    ):
        done = CliRunner().invoke(main, ["import", *arguments])
        assert done.exit_code == 2
        assert words in done.output
        assert "Traceback" not in done.output


@pytest.mark.parametrize("pair", [sorted(DATA.glob("kineto_sampled_*"))] if DATA.exists() else [])
def test_samples_of_two_ranks_are_not_taken_for_a_mismatch(
    pair: list[Path], tmp_path: Path
) -> None:
    run = imported(tmp_path / "run", *pair)
    assert run.world_size == 128
    assert findings(run) == []
    assert not run.clock_calibrated
    groups = {group for (group,) in rows(run, "collective", "group")}
    assert groups == {"unknown, of rank 0", "unknown, of rank 1"}
    assert open_run(tmp_path / "run").etag == run.etag


def of_2023(folder: Path, rank: int, clock_us: int, calls: int = 12, world: int = 8) -> Path:
    """A trace without process groups in whole microseconds, whose clock is ahead by `clock_us`.

    Each call begins on a rank up to 40 us after the first one, and ends 0 to 7 us after rank 0's.
    """
    events = []
    for number in range(calls):
        at = 1_000_000 + 1_000 * number + clock_us
        begin, end = at + (37 * rank + 11 * number) % 40, at + 300 + (5 * number + rank) % 8
        launch = {"correlation": number}
        name = ("all_to_all", "all_reduce")[number % 2]
        tensor = {"Input Dims": [[1000, 1000]], "Input type": ["float"]}
        events += [
            slice_(f"nccl:{name}", begin, 30, cat="user_annotation", args=tensor),
            slice_("cudaLaunchKernel", begin + 5, 8, cat="cuda_runtime", args=launch),
            kernel(f"ncclKernel_{name}", begin + 20, end - begin - 20, 9, number),
        ]
    about = {"backend": "nccl", "rank": rank, "world_size": world}
    return write_trace(folder / f"{rank}.json", events, distributedInfo=about)


@pytest.mark.parametrize("apart_us", [0, 5_000_000])
def test_ranks_without_process_groups_are_matched_by_order(apart_us: int, tmp_path: Path) -> None:
    clocks = {rank: apart_us * rank for rank in range(8)}
    run = imported(tmp_path / "run", *(of_2023(tmp_path, r, at) for r, at in clocks.items()))
    for rank in run.ranks:
        found = rows(run, "collective", "name", "group", "group_size", "sequence", rank=rank)
        names = ("all_to_all", "all_reduce")
        assert found == [(names[k % 2], "matched by order", 8, k) for k in range(12)]
    ends = np.array(
        [[e for (e,) in rows(run, "collective", "complete_ns", rank=r)] for r in run.ranks]
    )
    assert np.ptp(ends, axis=0).max() <= 14_000  # 7 us, and 7 us of the clocks
    assert run.clock_calibrated
    for process in run.manifest["processes"]:
        error = process["clock"]["offset_ns"] + 1000 * clocks[process["rank"]]
        assert abs(error) <= process["clock"]["uncertainty_ns"] <= 9_000
    assert any("matched by order" in warning and "to within" in warning for warning in run.warnings)
    assert findings(run) == []
    table = collectives(run).set_index("name")
    assert (table["algbw_gbs"] > 0).all()
    factor = table["busbw_gbs"] / table["algbw_gbs"]
    assert factor.to_dict() == pytest.approx({"all_reduce": 2 * 7 / 8, "all_to_all": 7 / 8})


def test_other_calls_are_not_matched_by_order(tmp_path: Path) -> None:
    first = of_2023(tmp_path, 0, 0)
    for name, changed in (("fewer", {"calls": 11}), ("smaller", {"world": 4})):
        run = imported(tmp_path / name, first, of_2023(tmp_path, 1, 0, **changed))
        groups = {group for (group,) in rows(run, "collective", "group")}
        assert groups == {"unknown, of rank 0", "unknown, of rank 1"}
        assert any("different collectives or world sizes" in warning for warning in run.warnings)


def test_files_read_in_processes_of_their_own_make_the_same_run(tmp_path: Path) -> None:
    place = {"pid": 7, "tid": 7}
    files = [
        write_trace(
            tmp_path / f"rank{rank}.json",
            [
                kernel("gemm", 20 + rank, 5, 7),
                slice_("work", 0, 9, args={"why": rank}),
                {"ph": "C", "name": "heap", "ts": 1, "args": {"used": 3}, **place},
                {"ph": "B", "name": "part", "ts": 10, "args": {"a": 1}, **place},
                {"ph": "E", "ts": 12, "args": {"b": 2}, **place},
                {"ph": "s", "id": 4, "ts": 1, "cat": "net", "name": "packet", **place},
                {"ph": "f", "id": 4, "ts": 11, "cat": "net", "name": "packet", **place},
            ],
        )
        for rank in range(2)
    ]
    alone = imported(tmp_path / "alone", *files)
    with ProcessPoolExecutor(2, get_context("spawn")) as workers:
        import_files(files, tmp_path / "run", workers=workers)
        run = open_run(tmp_path / "run")
        assert run.manifest["files"] == alone.manifest["files"]
        assert accounted(run) == accounted(alone)
        (tmp_path / "rank1.json").write_text("{oops")
        with pytest.raises(ImportRejected, match=r"rank1\.json: is not JSON: found b'oops'"):
            import_files(files, tmp_path / "broken", workers=workers)
