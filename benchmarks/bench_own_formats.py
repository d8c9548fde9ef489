"""What reads bundles, footers and tiles here, beside the library that could: time, bytes, safety.

    python benchmarks/bench_own_formats.py [MEMBERS]     (20,000 by default)

Processor time, both sides in turn in one process. The damage is one changed byte of the list or
footer; each side gets the same damaged files, in a child. A reader "ends the process" where a
signal ends that child.
"""

from __future__ import annotations

import os
import random
import re
import resource
import struct
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lanescope.collector.compaction import parquet_footer
from lanescope.webapp.runs.bundle import _KINDS, _LINK, _UTF8, _name, _placed, bundle_members
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.runs.storage import Bytes, LocalBytes
from lanescope.webapp.timeline.index import open_index
from lanescope.webapp.timeline.lod import TILE_BITS
from lanescope.webapp.timeline.tile_format import compressed
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import write_run
from tests.support.tile_payload import decode

TURNS = 7
DAMAGED = 1000
FORGED = 1_000_000
"""Entries of a list that a stranger forged."""
INTEGERS = {"start_ns", "duration_ns", "step", "seq"}
"""Columns whose bounds opening a run asks for."""


def in_turn(calls: dict[str, Callable[[], object]]) -> None:
    """Prints the least processor time of each call, after one to warm up, and the ratios."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(TURNS + 1):
        for name, call in calls.items():
            began = time.process_time()
            call()
            if turn:
                spent[name].append(time.process_time() - began)
    least = {name: min(found) for name, found in spent.items()}
    ours = next(iter(least.values()))
    for name, seconds in least.items():
        print(f"  {name:22} {seconds * 1e3:9.2f} ms   x {seconds / ours:5.2f}")


def in_child(call: Callable[[], int]) -> tuple[str, int]:
    """What becomes of a call in a child that answers with a small number, and its peak in MiB."""
    child = os.fork()
    if not child:
        code = 255
        try:
            code = call()
        finally:
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    said = "ends the process" if os.WIFSIGNALED(status) else _SAID[os.WEXITSTATUS(status)]
    return said, used.ru_maxrss >> 10


def _counted(found: Counter[str]) -> str:
    return ", ".join(f"{word} {count}" for word, count in sorted(found.items()))


_SAID = {0: "answers", 1: "answers otherwise", 255: "refuses"}


def compare_damage(data: bytes, first: int, readers: dict[str, Callable[[bytes], object]]) -> None:
    """Prints what each reader does with the same files, each with one changed byte."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in readers}
    whole = {name: read(data) for name, read in readers.items()}
    dice = random.Random(1)
    for _ in range(DAMAGED):
        made = bytearray(data)
        made[dice.randrange(first, len(made))] ^= dice.randrange(1, 256)
        for name, read in readers.items():

            def changed(read: Any = read, name: str = name, made: bytes = bytes(made)) -> int:
                return int(read(made) != whole[name])

            counts[name][in_child(changed)[0]] += 1
    for name, found in counts.items():
        print(f"  {name:22} {_counted(found)}")


def zip_of(path: Path, members: int) -> None:
    """A zip file with as many members as a run of many ranks has."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(members):
            name = f"rank={number // 20:05}/thread={number % 20:04}-0/op-00000.parquet"
            archive.writestr(name, bytes(64))


def by_zipfile(data: Bytes) -> dict[str, tuple[int, int]]:
    """The members by zipfile, with what our reader checks of each."""
    found: dict[str, tuple[int, int]] = {}
    for info in zipfile.ZipFile(data.file(0, data.size)).infolist():
        name = _name(info.orig_filename.encode())
        unusual = info.flag_bits & ~_UTF8 or info.volume or info.compress_type
        if unusual or info.file_size != info.compress_size or name in found:
            raise ValueError(name)
        if info.external_attr >> 16 & _KINDS == _LINK:
            raise ValueError(name)
        found[name] = info.header_offset, info.file_size
    _placed([(name, *place) for name, place in found.items()], data.size)
    return found


def bundles(folder: Path, members: int) -> None:
    """The list of members, by our reader and by zipfile."""
    print(f"list of {members:,} members of a bundle")
    path = folder / "large.zip"
    zip_of(path, members)
    in_turn(
        {
            "ours": lambda: bundle_members(LocalBytes(path)),
            "zipfile and checks": lambda: by_zipfile(LocalBytes(path)),
            "zipfile": lambda: zipfile.ZipFile(path).infolist(),
        }
    )
    small = folder / "small.zip"
    zip_of(small, 20)
    data = small.read_bytes()
    place = folder / "damaged.zip"

    def stored(made: bytes) -> LocalBytes:
        place.write_bytes(made)
        return LocalBytes(place)

    def ours(made: bytes) -> object:
        found = bundle_members(stored(made)).values()
        return {one.name: (one.header, one.size) for one in found}

    first = data.index(b"PK\1\2")
    print(f"{DAMAGED:,} lists of members with one changed byte")
    readers = {"ours": ours, "zipfile and checks": lambda made: by_zipfile(stored(made))}
    compare_damage(data, first, readers)
    entry = data[first : data.index(b"PK\1\2", first + 4)]
    listing = entry * FORGED
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1000, 1000, len(listing), 0, 0)
    forged = stored(listing + end)
    print(f"{len(listing) >> 20} MiB of a forged list, which says that it has 1,000 members")
    for name, read in {"ours": bundle_members, "zipfile and checks": by_zipfile}.items():
        said, peak = in_child(lambda read=read: bool(read(forged)))
        print(f"  {name:22} {said}, peak {peak} MiB")


def by_pyarrow(data: pa.Buffer) -> list[dict[str, tuple[Any, Any, Any]]]:
    """The bounds of INTEGERS in each row group."""
    footer = pq.ParquetFile(pa.BufferReader(data)).metadata
    found = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = (group.column(place) for place in range(group.num_columns))
        found.append(
            {
                column.path_in_schema: (known.min, known.max, known.null_count)
                for column in columns
                if column.path_in_schema in INTEGERS and (known := column.statistics) is not None
            }
        )
    return found


def by_duckdb(path: Path) -> object:
    """The same by DuckDB, as text."""
    wanted = ", ".join(f"'{name}'" for name in sorted(INTEGERS))
    asked = (
        "select row_group_id, path_in_schema, stats_min_value, stats_max_value, stats_null_count "
        f"from parquet_metadata('{path}') where path_in_schema in ({wanted})"
    )
    return duckdb.execute(asked).fetchall()


def ours_after_pyarrow(data: pa.Buffer) -> object:
    """What a run is opened with: pyarrow for the schema and rows, our reader for the bounds."""
    source = pa.BufferReader(data)
    footer = pq.ParquetFile(source).metadata
    return parquet_footer.row_group_statistics(source, footer, INTEGERS)


PHYSICAL_TYPES = range(8)
"""Those of parquet.thrift."""

_TYPE = re.compile(rb"\x1c\x15([\x00-\x0c])\x19")
"""Where the metadata of a column in a row group begins: its type, then a list of encodings."""


def with_types(data: bytes, first: int, kind: int) -> bytes:
    """The file with one type for all columns of its row groups; its footer begins at `first`."""
    made = bytearray(data)
    for found in _TYPE.finditer(data, first):
        made[found.start(1)] = kind << 1
    return bytes(made)


def footers(run: Path, folder: Path) -> None:
    """Bounds of row groups, by our reader, by pyarrow and by DuckDB."""
    path = max(run.rglob("op-*.parquet"), key=lambda one: one.stat().st_size)
    data = path.read_bytes()
    groups = pq.read_metadata(path).num_row_groups
    print(f"bounds of {len(INTEGERS)} columns in a file of {groups} row group(s)")
    place = folder / "damaged.parquet"

    def stored(made: bytes) -> Path:
        place.write_bytes(made)
        return place

    buffer = pa.py_buffer(data)
    in_turn(
        {
            "ours after pyarrow": lambda: ours_after_pyarrow(buffer),
            "pyarrow": lambda: by_pyarrow(buffer),
            "duckdb": lambda: by_duckdb(path),
        }
    )
    duckdb.default_connection().close()  # its threads would not be in the children
    print(f"{DAMAGED:,} footers with one changed byte")
    readers = {
        "ours after pyarrow": lambda made: ours_after_pyarrow(pa.py_buffer(made)),
        "pyarrow": lambda made: by_pyarrow(pa.py_buffer(made)),
    }
    first = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    compare_damage(data, first, readers)
    forged = [with_types(data, first, kind) for kind in PHYSICAL_TYPES]
    print(f"{len(forged)} forged footers, whose columns have another type than the schema's")
    for name, read in readers.items():
        found = Counter(in_child(lambda read=read, one=one: read(one) is None)[0] for one in forged)
        print(f"  {name:22} {_counted(found)}")


SCHEMAS = {
    "slices": {"lane": "u2", "row": "u1", "start": "i4", "end": "i4", "paint": "u2"},
    "dense": {"lane": "u2", "row": "u1", "bucket": "u2", "covered": "u1", "paint": "u2"},
}
"""Columns of slices, and of buckets of short ones, as narrow as they can be."""


def arrow_of(tile: dict[str, Any]) -> bytes:
    """What a tile holds as two streams of Arrow's IPC format, compressed as one zstd frame."""
    sink = pa.BufferOutputStream()
    for kind, columns in SCHEMAS.items():
        values: dict[str, list[int]] = {name: [] for name in columns}
        for block in tile["blocks"]:
            found = block.get(kind, {"paint": []})
            count = len(found["paint"])
            for name in columns:
                values[name] += [block[name]] * count if name in block else found.get(name, [])
        for name in ("start", "end"):
            values[name] = [one >> tile["unit_shift"] for one in values.get(name, ())]
        table = pa.table({name: np.array(values[name], code) for name, code in columns.items()})
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    packed: bytes = pa.compress(sink.getvalue(), "zstd", asbytes=True)
    return packed


def tiles(run: Path, folder: Path) -> None:
    """Bytes of tiles as they travel, in our format and in Arrow's."""
    opened = open_run(run)
    timeline = Timeline(opened, open_index(opened, folder / "cache"))
    lanes = [lane.id for lane in timeline.index.lanes if lane.thread]
    top = max(0, opened.duration_ns.bit_length() - TILE_BITS)
    dice = random.Random(1)
    print(f"tiles of {len(lanes)} lanes, compressed")
    ours = arrow = 0
    for level in range(0, top + 1, 4):
        sums = [0, 0]
        for _ in range(5):
            index = dice.randrange(opened.duration_ns) >> (level + TILE_BITS)
            payload = timeline.tile(level, index, lanes)
            sums[0] += len(compressed(payload))
            sums[1] += len(arrow_of(decode(payload)))
        ours, arrow = ours + sums[0], arrow + sums[1]
        print(f"  level {level:2}   ours {sums[0] / 5:9.0f} B   arrow {sums[1] / 5:9.0f} B")
    print(f"  all        ours {ours:9} B   arrow {arrow:9} B   x {arrow / ours:.2f}")


def main() -> None:
    """Prints the tables."""
    members = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run = write_run(folder / "run", ranks=4, threads=4, steps=20, ops=2000, step_ns=40_000_000)
        bundles(folder, members)
        footers(run, folder)
        tiles(run, folder)


if __name__ == "__main__":
    main()
