"""Journal -> tables: each table's columns come back as they were recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lanescope.collector.compaction.arrow_columns import self_times
from lanescope.collector.compaction.decode import Decoder
from lanescope.collector.compaction.reader import RECORD_DTYPE, read_process
from lanescope.collector.format.options import Options
from lanescope.collector.format.record_kinds import PhaseKind
from lanescope.collector.format.schema import TABLES, THREAD_TABLES
from lanescope.collector.journal.journal import (
    ACCESS_RECORD,
    NO_SEQUENCE,
    RECORD,
    RecordKind,
    float_bits,
)
from lanescope.collector.recorder.recorder import Recorder
from tests.collector.compaction.record_writers import WRITERS, write_op


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    recorder = Recorder(tmp_path, Options())
    recorder.describe(pid=7, rank=0, start_ns=0)
    return recorder


def decoded(recorder: Recorder) -> dict[str, list[dict[str, Any]]]:
    """All tables of what was recorded, as rows."""
    recorder.close()
    assert recorder.folder is not None
    decoder = Decoder(read_process(recorder.folder))
    tables: dict[str, pa.Table] = {t: rows for _, t, _, rows in decoder.thread_tables()}
    tables |= decoder.rank_tables()
    for name, rows in tables.items():
        wanted = TABLES[name].arrow()
        if "args" in wanted.names:  # of imported runs
            wanted = wanted.remove(wanted.get_field_index("args"))
        assert rows.schema.equals(wanted, check_metadata=True), name
    return {name: rows.to_pylist() for name, rows in tables.items()}


def test_there_is_a_round_trip_for_every_table() -> None:
    assert set(WRITERS) == {t.name for t in THREAD_TABLES}


@pytest.mark.parametrize("table", WRITERS)
def test_round_trip(recorder: Recorder, table: str) -> None:
    recorder.step = 4
    state = recorder.thread()
    state.phase, state.module = recorder.intern("warm-up"), recorder.intern("blocks.0")
    expected = WRITERS[table](recorder)
    assert decoded(recorder)[table][:1] == [expected]


def test_rank_tables(recorder: Recorder) -> None:
    write_op(recorder)
    recorder.put(
        recorder.thread(),
        RecordKind.MODULE,
        name=recorder.intern("blocks.0"),
        aux=recorder.intern("gpt.Block"),
        extra=12,
    )
    tables = decoded(recorder)
    assert tables["module"] == [{"path": "blocks.0", "class": "gpt.Block", "parameters": 12}]
    frames = [
        {"file": "a.py", "line": 12, "function": "f"},
        {"file": "b.py", "line": 3, "function": "<module>"},
    ]
    assert tables["stack"] == [{"stack": 0, "frames": frames}]
    (thread,) = tables["thread"]
    assert (thread["thread"], thread["kind"], thread["start_ns"], thread["end_ns"]) == (
        "7-0",
        "main",
        100,
        150,
    )


def test_accesses_belong_to_the_op_whose_record_follows(recorder: Recorder) -> None:
    def access(storage: int) -> None:
        packed = ACCESS_RECORD.pack(0, 1, 0, 0, storage, 0, 4, 0, 0, 0, 0, 0)
        recorder.thread().journal.append(RecordKind.ACCESS, *RECORD.unpack(packed)[1:])

    def op(start: int, depth: int) -> None:
        recorder.put(recorder.thread(), RecordKind.OP, start=start, end=start + 5, depth=depth)

    access(1), op(110, 1)
    access(2), access(3), op(100, 0)
    access(4)  # of an operator that never ended
    state = recorder.thread()
    state.journal.push_open(0, RecordKind.OP, 0, 1, 120, 0, 0)
    rows = decoded(recorder)["access"]
    assert [(r["start_ns"], r["depth"], r["storage"]) for r in rows] == [
        (100, 0, 2),
        (100, 0, 3),
        (110, 1, 1),
    ]


def test_nulls(recorder: Recorder) -> None:
    state = recorder.thread()
    recorder.put(state, RecordKind.OP, name=1, start=1, end=2, sequence=NO_SEQUENCE)
    recorder.put(state, RecordKind.GRADIENT, name=1, scope=1)
    recorder.put(state, RecordKind.GRADIENT, name=1, sequence=float_bits(float("nan")))
    tables = decoded(recorder)
    assert (tables["op"][0]["sequence"], tables["op"][0]["stack"]) == (None, None)
    missing, not_a_number = tables["gradient"]
    assert missing["norm"] is None
    assert np.isnan(not_a_number["norm"])  # a NaN gradient is a value, not a missing one


def test_what_had_not_ended_has_no_duration(recorder: Recorder) -> None:
    depth = recorder.begin_phase("outer", PhaseKind.user)
    recorder.begin_phase("inner", PhaseKind.backward)
    recorder.begin_phase("innermost", PhaseKind.user)
    recorder.end_phase(depth + 2)
    rows = {row["name"]: row for row in decoded(recorder)["phase"]}
    assert rows["outer"]["duration_ns"] is None
    assert (rows["inner"]["duration_ns"], rows["inner"]["kind"]) == (None, "backward")
    assert rows["innermost"]["duration_ns"] is not None


def test_an_exception_through_phases_closes_the_inner_ones(recorder: Recorder) -> None:
    outer = recorder.begin_phase("outer", PhaseKind.user)
    recorder.begin_phase("left open", PhaseKind.optimizer)
    recorder.end_phase(outer)
    rows = decoded(recorder)["phase"]
    assert [(row["name"], row["depth"]) for row in rows] == [("outer", 0), ("left open", 1)]
    assert all(row["duration_ns"] is not None for row in rows)


def test_self_time_takes_off_direct_children_only() -> None:
    #   0    a [0, 100)          own 100 - 60 - 10 = 30
    #   1      b [10, 70)        own 60 - 20 = 40
    #   2        c [20, 40)      own 20
    #   1      d [80, 90)        own 10
    #   1    e [200, 210)        its parent was filtered out
    rows = np.zeros(5, RECORD_DTYPE)
    rows["start"] = [0, 10, 20, 80, 200]
    rows["depth"] = [0, 1, 2, 1, 1]
    duration = np.array([100, 60, 20, 10, 10])
    assert self_times(rows, duration).tolist() == [30, 40, 20, 10, 10]
