"""Flight-recorder dumps as NCCL writes them: batches of calls, idle ranks, names of files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.analysis.findings import findings
from lanescope.webapp.runs.run import Run
from tests.support.trace_files import accounted, imported, rows

Entry = dict[str, Any]


class Dump:
    """Entries of one rank, numbered as ProcessGroupNCCL does."""

    def __init__(self, *, ranks: int = 2, group: str = "0") -> None:
        self.entries: list[Entry] = []
        self.collectives = self.exchanges = 0
        self._ranks, self._group = ranks, group

    def call(self, name: str = "all_reduce", state: str = "completed", **fields: Any) -> Entry:
        """Adds a collective."""
        self.collectives += 1
        return self._add(f"nccl:{name}", state, **fields)

    def batch(self, *sizes: int, state: str = "completed") -> None:
        """Adds an all_reduce of several tensors in one call of NCCL."""
        self.collectives += 1
        for size in sizes:
            self._add("nccl:all_reduce", "scheduled", input_sizes=[[size]])
        self._add("nccl:allreduce_coalesced", state, input_sizes=[], input_dtypes=[])

    def exchange(self, *labels: str, state: str = "completed") -> None:
        """Adds sends and receives in one call of NCCL."""
        self.exchanges += 1
        for label in labels:
            self._add(f"nccl:{label}", "scheduled", is_p2p=True)
        end = {"input_sizes": [], "input_dtypes": [], "is_p2p": True}
        self._add("nccl:coalesced", state, **end)

    def write(self, path: Path, **fields: Any) -> Path:
        """Writes a pickle."""
        listed = {"name": self._group, "desc": "default_pg", "ranks": str([*range(self._ranks)])}
        dump = {"version": "2.10", "pg_config": {self._group: listed}, "entries": self.entries}
        path.write_bytes(pickle.dumps(dump | fields))
        return path

    def _add(self, label: str, state: str, **fields: Any) -> Entry:
        number = len(self.entries)
        created = 10**18 + number * 10**6
        done = state == "completed"
        entry = {
            "record_id": number,
            "pg_id": 0,
            "process_group": (self._group, "default_pg"),
            "collective_seq_id": self.collectives,
            "p2p_seq_id": self.exchanges,
            "is_p2p": False,
            "profiling_name": label,
            "time_created_ns": created,
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "state": state,
            "retired": done,
            "time_discovered_completed_ns": created + 500 if done else None,
            **fields,
        }
        self.entries.append(entry)
        return entry


def run_of(folder: Path, *dumps: Dump) -> Run:
    """The run made of the dumps of ranks 0, 1, ..."""
    files = [one.write(folder / f"nccl_trace_rank_{rank}") for rank, one in enumerate(dumps)]
    run = imported(folder / "run", *files)
    accounted(run)
    return run


def pipeline(ranks: int = 3, last: str = "completed") -> list[Dump]:
    """Ranks 0 and 1 exchange tensors between collectives of all."""
    made = [Dump(ranks=ranks) for _ in range(ranks)]
    for one in made:
        one.call()
    made[0].exchange("send 0->1", "recv 0<-1")
    made[1].exchange("recv 1<-0", "send 1->0", state=last)
    for one in made:
        one.call()
    return made


def test_sends_and_receives_of_a_batch_end_with_it(tmp_path: Path) -> None:
    run = run_of(tmp_path, *pipeline())
    found = rows(run, "collective", "name", "sequence", "peer", "complete_ns", rank=0)
    assert [row[:3] for row in found] == [
        ("all_reduce", 0, None),
        ("send", 0, 1),
        ("recv", 0, 1),
        ("all_reduce", 1, None),
    ]
    assert all(row[3] is not None for row in found)
    assert findings(run) == []


def test_a_batch_without_its_partner_is_a_hang(tmp_path: Path) -> None:
    waiting, elsewhere = Dump(), Dump()
    for one in (waiting, elsewhere):
        one.call()
    waiting.exchange("recv 0<-1", state="started")
    run = run_of(tmp_path, waiting, elsewhere)
    (finding,) = findings(run)
    assert (finding.kind, finding.ranks) == ("hang", (1,))
    assert "recv" in finding.title


@pytest.mark.parametrize("slow", [(4, 8), (4, 9)])
def test_a_batch_of_collectives_is_one_call(tmp_path: Path, slow: tuple[int, ...]) -> None:
    made = [Dump(), Dump()]
    for one, sizes in zip(made, ((4, 8), slow), strict=True):
        one.batch(*sizes)
        one.call()
    run = run_of(tmp_path, *made)
    found = rows(run, "collective", "name", "sequence", "shapes", "bytes", rank=0)
    assert found == [("all_reduce", 0, "[4] [8]", 48), ("all_reduce", 1, "[4]", 16)]
    assert [one.kind for one in findings(run)] == ["collective_mismatch"] * (slow != (4, 8))


def test_a_batch_of_collectives_that_lacks_a_rank_is_a_hang(tmp_path: Path) -> None:
    waiting, elsewhere = Dump(), Dump()
    for one in (waiting, elsewhere):
        one.call()
    waiting.batch(4, 8, state="started")
    (finding,) = findings(run_of(tmp_path, waiting, elsewhere))
    assert finding.title.startswith("Rank 1 never entered all_reduce #1")


def test_a_batch_whose_begin_was_overwritten_is_left_out(tmp_path: Path) -> None:
    whole, cut = Dump(), Dump()
    for one in (whole, cut):
        one.batch(4, 8, 16)
        one.call()
    del cut.entries[0]
    run = run_of(tmp_path, whole, cut)
    assert rows(run, "collective", "sequence", rank=1) == [(1,)]
    assert findings(run) == []


def test_a_rank_that_made_no_call_is_the_one_that_is_missing(tmp_path: Path) -> None:
    waiting = Dump()
    waiting.call(state="started")
    run = run_of(tmp_path, waiting, Dump())
    assert run.ranks == (0, 1)
    (finding,) = findings(run)
    assert finding.title.startswith("Rank 1 never entered all_reduce #0")


def test_a_call_that_timed_out_has_not_ended(tmp_path: Path) -> None:
    waiting, elsewhere = Dump(), Dump()
    for one in (waiting, elsewhere):
        one.call()
    waiting.call(state="started", retired=True)
    run = run_of(tmp_path, waiting, elsewhere)
    assert rows(run, "collective", "duration_ns", rank=0)[-1] == (None,)
    (finding,) = findings(run)
    assert finding.title.startswith("Rank 1 never entered all_reduce #1")


def test_ranks_are_the_numbers_at_the_end_of_names(tmp_path: Path) -> None:
    made = {}
    for rank in range(11):
        made[rank] = Dump(ranks=11)
        for _ in range(1 if rank == 10 else 2):
            made[rank].call()
    files = sorted(one.write(tmp_path / f"fr_trace_{rank}") for rank, one in made.items())
    run = imported(tmp_path / "run", *files)
    assert not any("numbered in the order" in warning for warning in run.warnings)
    assert len(rows(run, "collective", "name", rank=10)) == 1


def test_numbers_of_other_things_are_no_ranks(tmp_path: Path) -> None:
    made = Dump()
    made.call()
    files = [made.write(tmp_path / f"dump-{pid}.json") for pid in (4711, 4712)]
    run = imported(tmp_path / "run", *files)
    assert run.ranks == (0, 1)
    assert any("numbered in the order given" in warning for warning in run.warnings)


@pytest.mark.parametrize("backend", ["nccl", "ncclx", "rccl", "hccl", "gloo"])
def test_sends_of_any_backend_have_a_peer(tmp_path: Path, backend: str) -> None:
    made = Dump()
    made._add(f"{backend}:send 0->1", "completed", is_p2p=True)
    run = imported(tmp_path / "run", made.write(tmp_path / "nccl_trace_rank_0"))
    assert rows(run, "collective", "name", "peer") == [("send", 1)]


def test_numbers_of_torch_2_3_have_another_name(tmp_path: Path) -> None:
    made = [Dump(), Dump()]
    for one in made:
        for _ in range(3):
            entry = one.call()
            entry["seq_id"] = entry.pop("collective_seq_id")
    run = run_of(tmp_path, *made)
    assert [number for (number,) in rows(run, "collective", "sequence", rank=1)] == [0, 1, 2]
