"""A bundle that would become 10 GB is refused, or read as far as it is small, in little memory."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanescope.collector.compaction import parquet_footer
from lanescope.collector.format import schema
from lanescope.webapp.runs.bundle import BUNDLE
from lanescope.webapp.runs.run import open_run
from tests.support.bundled import lanescope
from tests.support.synthetic import write_run

HUGE = 10 << 30
GRADIENTS = "rank=00000/thread=1000-0/gradient-00000.parquet"
OPS = "rank=00000/thread=1000-0/op-00000.parquet"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ranks=1, threads=1, steps=2, ops=8)


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB


def packed_as_is(run: Path) -> Path:
    """A bundle of the files of a folder, whatever they are."""
    target = run.parent / "x.lanes"
    listed: dict[str, Any] = {}
    with zipfile.ZipFile(target, "w") as archive:
        for file in sorted(path for path in run.rglob("*") if path.is_file()):
            name, data = file.relative_to(run).as_posix(), file.read_bytes()
            listed[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            archive.writestr(name, data)
        archive.writestr(BUNDLE, json.dumps({"format": 1, "members": listed}))
    return target


def replaced(run: Path, name: str, data: bytes, rows: int) -> Path:
    """A bundle of the run with another file in the place of one, and a manifest that knows it."""
    (run / name).write_bytes(data)
    manifest = json.loads((run / schema.MANIFEST).read_text())
    digest = hashlib.sha256(data).hexdigest()
    manifest["files"][name] = {"bytes": len(data), "rows": rows, "sha256": digest}
    (run / schema.MANIFEST).write_text(json.dumps(manifest))
    return packed_as_is(run)


def said(path: Path) -> str:
    """The one sentence with which every command refuses a bundle."""
    sentences = set()
    for command in (["info"], ["check"], ["verify"], ["view", "--no-browser"]):
        result = lanescope(*command, path)
        assert result.exit_code == 2, result.output
        assert result.stderr.count("\n") == 1
        sentences.add(result.stderr)
    (sentence,) = sentences
    return sentence


def one_member(path: Path, name: str, method: int, packed: int, body: bytes) -> Path:
    """A zip file of one member of 10 GB: `body` is written, the rest is a hole."""
    raw = name.encode()
    sizes = struct.pack("<HHQQ", 1, 16, HUGE, packed)
    full = 0xFFFFFFFF
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, method, 0, 0x21, 0, full, full, len(raw), 20)
    entry = struct.pack(
        "<4s6H3I5H2I",
        b"PK\1\2",
        45,
        45,
        0,
        method,
        0,
        0x21,
        0,
        full,
        full,
        len(raw),
        20,
        0,
        0,
        0,
        0,
        0,
    )
    with path.open("wb") as file:
        file.write(local + raw + sizes + body)
        start = file.seek(30 + len(raw) + 20 + packed)
        listing = entry + raw + sizes
        end = start + len(listing)
        file.write(listing)
        file.write(
            struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(listing), start)
        )
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        file.write(struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, full, full, 0))
    return path


def test_a_member_that_unpacks_to_ten_gigabytes_is_refused(tmp_path: Path) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    body = block * (HUGE >> 20) + packer.flush()
    path = one_member(tmp_path / "x.lanes", OPS, zipfile.ZIP_DEFLATED, len(body), body)
    with zipfile.ZipFile(path) as archive:  # the archive is a real one, and would unpack
        assert archive.getinfo(OPS).file_size == HUGE
        with archive.open(OPS) as member:
            assert member.read(1000) == bytes(1000)
    assert path.stat().st_size < HUGE / 900
    assert f"is compressed ({len(body)} bytes for {HUGE})" in said(path)


@pytest.mark.parametrize("name", [BUNDLE, schema.MANIFEST, "notes.json", "index/index.json", OPS])
def test_members_of_ten_gigabytes_of_nothing_are_refused(tmp_path: Path, name: str) -> None:
    path = one_member(tmp_path / "x.lanes", name, zipfile.ZIP_STORED, HUGE, b"")
    expected = f"{BUNDLE} has {HUGE} bytes, expected at most" if name == BUNDLE else "without"
    assert expected in said(path)


def sharing(size: int) -> tuple[bytes, int]:
    """A small Parquet file of gradients whose row groups are all the same bytes; its rows.

    They take at least `size` bytes in memory.
    """
    shape, rows = schema.GRADIENT.arrow(), 1 << 17
    zeros = pa.array([0]).take(pa.array([0] * rows))
    columns = [
        zeros.cast(f.type) if pa.types.is_integer(f.type) else pa.nulls(rows, f.type) for f in shape
    ]
    whole = io.BytesIO()
    pq.write_table(pa.table(columns, schema=shape), whole, compression="zstd")
    data = whole.getvalue()
    footer = pq.read_metadata(io.BytesIO(data))
    while 4 * footer.num_rows * footer.num_columns < size:
        again = io.BytesIO()
        footer.write_metadata_file(again)
        footer.append_row_groups(pq.read_metadata(io.BytesIO(again.getvalue())))
    made = io.BytesIO()
    footer.write_metadata_file(made)
    end = int.from_bytes(data[-8:-4], "little") + 8
    return data[:-end] + made.getvalue()[4:], footer.num_rows


def test_row_groups_that_share_their_bytes_are_refused(run: Path) -> None:
    data, rows = sharing(HUGE)
    last = pq.ParquetFile(io.BytesIO(data)).read_row_group(100, ["step"])
    assert last["step"].to_pylist() == [0] * (1 << 17)  # it would be read
    assert f"says that its {len(data)} bytes hold" in said(replaced(run, GRADIENTS, data, rows))


def test_many_files_that_expand_are_counted_together(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ranks=3, threads=1, steps=1, ops=8)
    data, rows = sharing(parquet_footer.MAX_DECODED_BYTES // 2 + 1)
    for rank in range(3):
        name = f"rank=0000{rank}/thread=100{rank}-0/gradient-00000.parquet"
        path = replaced(run, name, data, rows)
    opened = open_run(path)
    assert opened.ranks == (0,)
    assert all("bytes hold" in warning for warning in opened.warnings[:2])


def test_a_long_text_that_many_rows_point_to_stands_once_in_memory(run: Path) -> None:
    """The file says that it is a plain text, which would be written out for every row."""
    path = run / OPS
    rows = pq.ParquetFile(path).read()
    many = pa.concat_tables([rows] * (100_000 // len(rows) + 1))
    long = pa.DictionaryArray.from_arrays(
        pa.array([0] * len(many), pa.int32()), pa.array(["x" * (HUGE // len(many))])
    )
    position = many.schema.get_field_index("name")
    made = io.BytesIO()
    pq.write_table(
        many.set_column(position, "name", long), made, compression="zstd", store_schema=False
    )
    opened = open_run(replaced(run, OPS, made.getvalue(), len(many)))
    names = opened.events("op", columns=["name"])["name"]
    assert len(names) == len(many)
    assert names.nbytes < 4 << 20
    assert sum(len(chunk.dictionary) for chunk in names.chunks) <= 2


def test_texts_that_have_to_be_written_out_are_bounded(run: Path) -> None:
    name = "rank=00000/stack.parquet"
    long, count = "x" * 1_000_000, HUGE // 1_000_000
    frames = pa.ListArray.from_arrays(
        pa.array([0, count], pa.int32()),
        pa.StructArray.from_arrays(
            [
                pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([long])),
                pa.array([1] * count, pa.int32()),
                pa.array(["f"] * count),
            ],
            names=["file", "line", "function"],
        ),
    )
    table = pa.table({"stack": pa.array([0], pa.int32()), "frames": frames})
    made = io.BytesIO()
    pq.write_table(table, made, compression="zstd", store_schema=False)
    path = replaced(run, name, made.getvalue(), 1)
    result = lanescope("verify", path)
    assert result.exit_code == 1
    assert "its texts would take 9536 MiB" in result.stdout or "10239 MiB" in result.stdout
