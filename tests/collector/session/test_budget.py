"""What recording costs, in counts and bytes: times are only read in the benchmarks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from lanescope.collector.compaction import manifest
from lanescope.collector.compaction.reader import read_process
from lanescope.collector.format.options import (
    OPTIONS_VARIABLE,
    RUN_VARIABLE,
    SUPERVISOR_VARIABLE,
    Options,
)
from lanescope.collector.journal.journal import RecordKind
from tests.support.processes import fork_program, output_of
from tests.support.recording import Recorded, record_program, write_program
from tests.support.trace_files import slice_, write_trace

# A model with layers, gradients and an optimizer: about 55,000 operators.
TRAINING = """
    import torch
    torch.manual_seed(0)
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for step in range(120):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
"""

SMALL = """
    import torch
    a = torch.ones(16)
    for _ in range(1000):
        torch.add(a, a)
"""

BYTES_PER_OP = {"timing": 10, "access": 25}


@pytest.fixture(scope="module", params=sorted(BYTES_PER_OP))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The training program, recorded at each level."""
    level = str(request.param)
    done = record_program(
        tmp_path_factory.mktemp(level), TRAINING, "--engine", "native", "--level", level
    )
    assert done.status == 0, done.stderr
    return done


def test_bytes_of_an_operator_on_disk(trained: Recorded) -> None:
    contents = manifest.load_manifest(trained.run)
    count = sum(f["rows"] for path, f in contents["files"].items() if "/op-" in path)
    assert count > 50_000
    size = sum(file.stat().st_size for file in trained.run.rglob("*") if file.is_file())
    assert size / count <= BYTES_PER_OP[contents["level"]]


def test_every_file_reads_without_this_project_and_its_pages_are_checked(
    trained: Recorded,
) -> None:
    files = sorted(trained.run.rglob("*.parquet"))
    assert files
    for file in files:
        rows = pq.read_table(file, partitioning=None, page_checksum_verification=True).num_rows
        assert duckdb.sql(f"SELECT count(*) FROM '{file}'").fetchall() == [(rows,)]


def test_a_flipped_bit_of_a_page_is_found(trained: Recorded, tmp_path: Path) -> None:
    file = max(trained.run.rglob("op-*.parquet"), key=lambda f: f.stat().st_size)
    column = pq.read_metadata(file).row_group(0).column(1)
    data = bytearray(file.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    damaged = tmp_path / "op.parquet"
    damaged.write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(damaged, partitioning=None, page_checksum_verification=True)


def journal_kinds(folder: Path, level: str) -> list[RecordKind]:
    """Kinds of the main thread's records of the small program, before any compaction."""
    run = folder / "run"
    options = Options(level=level, engine="native")
    manifest.create(run, options, [], world_size=1)
    variables = {
        RUN_VARIABLE: str(run),
        OPTIONS_VARIABLE: options.to_environment(),
        SUPERVISOR_VARIABLE: str(os.getpid()),
    }
    program = write_program(folder, SMALL)
    assert fork_program(program, environment=variables).returncode == 0
    (process,) = (run / "journal").iterdir()
    log = read_process(process)
    return [RecordKind(kind) for part in log.threads[0].records() for kind in part["kind"]]


@pytest.mark.parametrize(("level", "accesses"), [("timing", 0), ("access", 2)])
def test_records_of_an_operator(tmp_path: Path, level: str, accesses: int) -> None:
    kinds = journal_kinds(tmp_path, level)
    # Two inputs and a result make three accesses, two a record. `ones` fills what it made.
    assert 1000 <= kinds.count(RecordKind.OP) <= 1004
    assert accesses * 1000 <= kinds.count(RecordKind.ACCESS) <= accesses * 1000 + 4


def test_the_native_engine_runs_no_python_for_an_operator(tmp_path: Path) -> None:
    program = """
        import sys, torch
        a = torch.ones(16)
        torch.add(a, a)
        calls, blocks = [], sys.getallocatedblocks()
        sys.setprofile(lambda frame, event, argument: calls.append((event, argument)))
        for _ in range(1000):
            torch.add(a, a)
        sys.setprofile(None)
        print(len(calls), *sorted({event for event, _ in calls}))
        results = [None] * 5
        for turn in range(5):
            before = sys.getallocatedblocks()
            for _ in range(1000):
                torch.add(a, a)
            results[turn] = sys.getallocatedblocks() - before
        print(min(map(abs, results)))  # other threads may have kept something in one of them
    """
    done = record_program(tmp_path, program, "--engine", "native")
    assert done.status == 0, done.stderr
    calls, kept = done.stdout.splitlines()
    # A call and a return of torch.add itself each time, and the call that ends the profile.
    assert calls.split() == ["2001", "c_call", "c_return"]
    assert int(kept) < 10


def test_compaction_loads_no_pandas(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from lanescope.collector.compaction.compact import compact
        compact(Path(sys.argv[1]))
        assert "pyarrow" in sys.modules
        print("pandas" in sys.modules)
    """
    run = tmp_path / "again"
    options = Options()
    manifest.create(run, options, [], world_size=1)
    variables = {RUN_VARIABLE: str(run), SUPERVISOR_VARIABLE: str(os.getpid())}
    program = write_program(tmp_path, TRAINING.replace("120", "2"))
    assert fork_program(program, environment=variables).returncode == 0
    assert output_of(sys.executable, "-c", code, run).strip() == "False"
    assert list(run.rglob("op-*.parquet"))


def test_importing_loads_no_pandas(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from lanescope.collector.importers.run_writer import import_files
        import_files([Path(sys.argv[1])], Path(sys.argv[2]))
        assert "pyarrow" in sys.modules
        print("pandas" in sys.modules)
    """
    args = {"Input Dims": [[2]], "Input type": ["float"]}
    trace = write_trace(
        tmp_path / "trace.json",
        [
            slice_("aten::mm", 1, 2, cat="cpu_op", args=args),
            slice_("c10d::allreduce_", 4, 2, cat="cpu_op", args=args),
            {"ph": "C", "name": "queue", "ts": 5, "pid": 7, "tid": 7, "args": {"waiting": 1}},
            {"ph": "s", "name": "f", "id": 1, "ts": 5, "pid": 7, "tid": 7},
        ],
    )
    assert output_of(sys.executable, "-c", code, trace, tmp_path / "run").strip() == "False"
