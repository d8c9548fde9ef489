"""A run with damaged files: their rank is left out and named, or the run is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanescope.collector.format import schema
from lanescope.webapp.cli import main
from lanescope.webapp.runs.run import RunError, open_run
from tests.support.spoiled import OP_FILE, change, refusal, setter
from tests.support.synthetic import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ranks=2, threads=2, steps=2, ops=8)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def cut_and_pad(file: Path) -> None:
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[: size // 2].ljust(size, b"\0"))


def spoil_footer(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-40:-8] = b"\xff" * 32
    file.write_bytes(data)


def other_columns(file: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), file)


def other_types(file: Path) -> None:
    table = pq.ParquetFile(file).read()
    names = pa.array(["x"] * table.num_rows)
    pq.write_table(table.set_column(0, "start_ns", names), file)


def other_rows(file: Path) -> None:
    pq.write_table(pq.ParquetFile(file).read().slice(1), file)


def directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (Path.unlink, "is missing"),
    (cut, "is truncated: "),
    (lambda file: file.write_bytes(b""), "is truncated: 0 bytes, expected "),
    (cut_and_pad, "does not end as a Parquet file does (truncated)"),
    (spoil_footer, "is damaged: its footer is garbled"),
    (other_columns, "has no column 'start_ns'"),
    (other_types, "'start_ns' is string, expected int64"),
    (other_rows, " rows, expected 16"),
    (directory, OP_FILE),
    (pipe, OP_FILE),
]


@pytest.mark.parametrize(("spoil", "reason"), DAMAGE)
def test_one_damaged_rank_is_left_out_and_named(
    run: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(run / OP_FILE)
    resize(run)
    opened = open_run(run)
    assert opened.ranks == (0,)
    assert opened.missing_ranks == (1,)
    assert not opened.complete
    assert opened.counts["op"] == 2 * 2 * 8
    assert {thread.rank for thread in opened.threads} == {0}
    (warning,) = opened.warnings
    assert warning.startswith(f"rank 1 is left out: {OP_FILE}")
    assert reason in warning
    shown = CliRunner().invoke(main, ["info", str(run)])
    assert shown.exit_code == 0
    assert "rank 1 is left out" in shown.stdout


def resize(run: Path) -> None:
    """States sizes as found where a test is about what only the content shows."""
    file = run / OP_FILE
    if file.is_file() and file.read_bytes()[-4:] == b"PAR1":
        change(run, setter("files", OP_FILE, "bytes", file.stat().st_size))


def test_a_run_with_all_ranks_damaged_is_refused(run: Path) -> None:
    for file in run.rglob("op-*.parquet"):
        cut(file)
    found = refusal(run)
    assert "no rank can be read: of rank 0, rank=00000/thread=1000-0/op-00000.parquet is" in found
    assert found.endswith("restore the file from a copy or record again")


def test_a_damaged_thread_table_damages_its_rank(run: Path) -> None:
    spoil_data(run / "rank=00001/thread.parquet")
    opened = open_run(run)
    assert opened.ranks == (0,)
    assert "rank 1 is left out" in opened.warnings[0]


def spoil_data(file: Path) -> None:
    """Damage within the rows, which the footer does not show."""
    footer = int.from_bytes(file.read_bytes()[-8:-4], "little")
    data = bytearray(file.read_bytes())
    data[4 : len(data) - footer - 8] = b"\xff" * (len(data) - footer - 12)
    file.write_bytes(data)


def test_rows_found_damaged_while_reading_are_a_sentence(run: Path) -> None:
    spoil_data(run / OP_FILE)
    opened = open_run(run)
    with pytest.raises(RunError, match=r"op-00000.parquet: cannot be read .*; the file is damaged"):
        opened.events("op")
    result = CliRunner().invoke(main, ["diff", str(run), str(run)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_a_rank_that_cannot_be_read_is_left_out(run: Path) -> None:
    # A loop of links cannot be read by anyone, the superuser included.
    file = run / OP_FILE
    file.unlink()
    file.symlink_to(file)
    assert open_run(run).ranks == (0,)


MUTATIONS = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def sentence_of(run: Path, file: Path, spoiled: bytes) -> str:
    """How a run with one file spoiled is refused; empty where it opens and its tables read."""
    original = file.read_bytes()
    file.write_bytes(spoiled)
    try:
        opened = open_run(run)
        for table in ("op", "thread", "phase"):
            opened.events(table)
        opened.steps(opened.ranks[0])
    except RunError as error:
        return str(error)
    finally:
        file.write_bytes(original)
    return ""


@given(st.data())
@MUTATIONS
def test_a_mutated_manifest_opens_or_is_refused(run: Path, data: st.DataObject) -> None:
    file = run / schema.MANIFEST
    spoiled = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    assert "\n" not in sentence_of(run, file, bytes(spoiled))


@given(st.data())
@MUTATIONS
@pytest.mark.slow
def test_a_mutated_table_opens_or_is_refused(run: Path, data: st.DataObject) -> None:
    file = run / data.draw(st.sampled_from([OP_FILE, "rank=00001/thread.parquet"]))
    spoiled = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # The footer is where damage is interesting; the size stays, or it would show at once.
        at = len(spoiled) - data.draw(st.integers(1, len(spoiled)))
        spoiled[at] = data.draw(st.integers(0, 255))
    assert "\n" not in sentence_of(run, file, bytes(spoiled))
