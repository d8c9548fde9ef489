"""Footers of Parquet files: what they say of row groups, and forged ones that must not do harm."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanescope.collector.compaction import parquet_footer
from lanescope.collector.compaction.parquet_footer import Range
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import open_run
from tests.support.spoiled import change, setter
from tests.support.synthetic import write_run

OPS = "rank=00000/thread=1000-0/op-00000.parquet"
TYPE = re.compile(rb"\x1c\x15([\x00-\x0c])\x19")
"""Where the metadata of a column in a row group begins: its type, then a list of encodings."""

ALWAYS = (-(1 << 62), 1 << 62)


def ranges(data: bytes, *columns: str) -> list[dict[str, Range]] | None:
    return parquet_footer.column_ranges(pa.BufferReader(data), {*columns})


def written(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ranks=1, threads=1, steps=2, ops=8)


def test_a_footer_is_read_as_pyarrow_reads_it(run: Path) -> None:
    for file in sorted(run.rglob("*.parquet")):
        footer = pq.read_metadata(file)
        names = {footer.schema.column(number).path for number in range(footer.num_columns)}
        found = ranges(file.read_bytes(), *names)
        assert found is not None
        assert len(found) == footer.num_row_groups
        for number, answer in enumerate(found):
            group = footer.row_group(number)
            columns = [group.column(position) for position in range(group.num_columns)]
            expected = {
                column.path_in_schema: (known.min, known.max, known.null_count)
                for column in columns
                if column.physical_type in {"INT32", "INT64"} and "." not in column.path_in_schema
                if (known := column.statistics) is not None
            }
            assert answer == expected


def test_ranges_of_several_row_groups() -> None:
    table = pa.table(
        {
            "a": pa.array([1, -5, None, 7, None, None], pa.int64()),
            "b": pa.array([1, 2, 3, 4, 5, 6], pa.int8()),
            "c": ["x"] * 6,
            "unsigned": pa.array([1, 1 << 63, 2, 3, 4, 5], pa.uint64()),
        }
    )
    assert ranges(written(table, row_group_size=2), "a", "b", "c", "unsigned") == [
        {"a": Range(-5, 1, 0), "b": Range(1, 2, 0)},
        {"a": Range(7, 7, 1), "b": Range(3, 4, 0), "unsigned": Range(2, 3, 0)},
        {"a": Range(None, None, 2), "b": Range(5, 6, 0), "unsigned": Range(4, 5, 0)},
    ]
    assert ranges(written(table, write_statistics=False), "a", "b") == [{}]
    assert ranges(written(table.slice(0, 0)), "a") == [{}]


def test_bytes_that_are_not_a_footer_give_nothing() -> None:
    whole = written(pa.table({"a": [1, 2]}))
    length = int.from_bytes(whole[-8:-4], "little")
    assert ranges(whole, "a") == [{"a": Range(1, 2, 0)}]
    for body in (b"", b"\x49\xfc" + b"\xff" * 9 + b"\x7f", b"\x1b" * 5000, b"\x4c" * 5000, b"\x45"):
        assert not ranges(body + len(body).to_bytes(4, "little") + b"PAR1", "a")
    assert ranges(b"", "a") is None
    assert ranges(whole[:-8] + (1 << 31).to_bytes(4, "little") + b"PAR1", "a") is None
    for cut in range(1, length):
        assert (
            ranges(
                whole[-8 - length : -8 - cut] + (length - cut).to_bytes(4, "little") + b"PAR1", "a"
            )
            is None
        )


def with_types(data: bytes, kind: int) -> bytes:
    """All columns of all row groups say that they are of another physical type."""
    found = list(TYPE.finditer(data, len(data) - int.from_bytes(data[-8:-4], "little")))
    assert len(found) >= 10
    made = bytearray(data)
    for one in found:
        made[one.start(1)] = kind
    return bytes(made)


def without_columns(data: bytes) -> bytes:
    """The schema's columns, and one row group of four rows that has none of them."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, pq.read_schema(pa.BufferReader(data))).close()
    whole = bytes(sink.getvalue())
    footer = whole[-8 - int.from_bytes(whole[-8:-4], "little") : -8]
    start, none, stop = footer.partition(b"\x16\x00\x19\x0c\x19")  # no rows, no row groups
    assert none
    made = start + b"\x16\x08\x19\x1c\x19\x0c\x16\x00\x16\x08\x00\x19" + stop
    return b"PAR1" + made + len(made).to_bytes(4, "little") + b"PAR1"


def opened(run: Path, data: bytes, rows: int) -> str:
    """All that reads footers and rows, with a file in the place of another; what was refused."""
    (run / OPS).write_bytes(data)
    change(
        run,
        setter(
            "files", OPS, {"bytes": len(data), "rows": rows, "sha256": sha256(data).hexdigest()}
        ),
    )
    answer = []
    try:
        found = open_run(run)
    except RunError as error:
        return str(error)
    for ask in (
        lambda: found.events("op"),
        lambda: found.rows_about("op", ALWAYS),
        lambda: found.events("op", window=(0, 100)),
        lambda: found.events("op", equal=("sequence", 1)),
        lambda: list(found.pieces("op", columns=["start_ns"])),
    ):
        try:
            ask()
        except RunError as error:
            answer.append(str(error))
    return "; ".join(answer)


@pytest.mark.parametrize("kind", range(0, 14, 2))
def test_columns_of_other_types_are_refused(run: Path, kind: int) -> None:
    rows = open_run(run).counts["op"]
    assert "cannot be read (" in opened(run, with_types((run / OPS).read_bytes(), kind), rows)


def test_a_row_group_without_columns_is_refused(run: Path) -> None:
    answer = opened(run, without_columns((run / OPS).read_bytes()), 4)
    assert "cannot be read (" in answer


def test_footers_with_a_changed_byte_do_no_harm(run: Path) -> None:
    whole = (run / OPS).read_bytes()
    rows = open_run(run).counts["op"]
    begin = TYPE.search(whole, len(whole) - int.from_bytes(whole[-8:-4], "little"))
    assert begin
    ends = set()
    for number, at in enumerate(range(begin.start(), whole.rindex(b"ARROW:schema"), 41)):
        data = bytearray(whole)
        data[at] = (data[at] ^ 1 << number % 8, 0xFF, 0)[number % 3]
        ends.add(bool(opened(run, bytes(data), rows)))
    assert ends == {True, False}
