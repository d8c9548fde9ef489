"""Reads what a run held at one moment, also while it is being recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from lanescope.collector.compaction import parquet_footer
from lanescope.collector.format import schema
from lanescope.webapp.runs.catalogue import Catalogue, ListedFile, read_catalogue
from lanescope.webapp.runs.files import Files
from lanescope.webapp.runs.journal_recovery import RecoveredJournals, leftovers, segments
from lanescope.webapp.runs.manifest import file_parts, read_manifest
from lanescope.webapp.runs.parquet_parts import DAMAGE_ERRORS, Part, Stretch

_MAGIC = b"PAR1"

_LOST = "dropped with damaged files"
"""Counts rows of threads that are left out, among what was not recorded of a process."""

_READINGS = 4
"""Most times that a run is read until nothing moves meanwhile; then the last reading is taken."""


def read_moment(files: Files) -> tuple[schema.Manifest, bytes, PartScan, RecoveredJournals]:
    """Reads the manifest, parsed and as bytes, and what files and journals of that moment hold.

    While a run is recorded, rows move out of journals into files. Where that happened meanwhile,
    some would be missing in both, so all is read again.
    """
    for _ in range(_READINGS):
        before = segments(files)
        manifest, raw = read_manifest(files)
        found = survey(files, manifest, read_catalogue(files, len(manifest["files"])))
        left = leftovers(files, manifest, found.parts)
        if not before or (before <= segments(files) and raw == read_manifest(files)[1]):
            break
    return _with_losses(_with_journals(manifest, left), found), raw, found, left


def _with_journals(manifest: schema.Manifest, left: RecoveredJournals) -> schema.Manifest:
    """The manifest with the processes whose journals were read, in the place of older entries."""
    return {
        **manifest,
        "processes": left.processes,
        "groups": {**left.groups, **manifest["groups"]},
        "world_size": max(manifest["world_size"], left.world_size),
    }


def _with_losses(manifest: schema.Manifest, found: PartScan) -> schema.Manifest:
    """The manifest with the rows of lost threads among what was dropped of their processes."""
    if not found.lost:
        return manifest
    rows: Counter[tuple[int, int]] = Counter()
    for one in found.lost:
        rows[one.rank, one.pid] += one.rows
    processes = [process.copy() for process in manifest["processes"]]
    for process in processes:
        if count := rows[process["rank"], process["pid"]]:
            process["coverage"] = process["coverage"] | {_LOST: count}
    return {**manifest, "processes": processes}


@dataclass(frozen=True)
class LostThreads:
    """Short threads whose rows are left out, as a file that they share is damaged."""

    rank: int
    pid: int
    threads: frozenset[str]
    damage: str
    rows: int = 0  # that are left out


@dataclass
class PartScan:
    """What was found of a run's files."""

    parts: list[Part] = field(default_factory=list)
    damage: dict[int, str] = field(default_factory=dict)  # rank -> what is wrong, first found
    lost: list[LostThreads] = field(default_factory=list)
    bytes: int = 0
    ignored: int = 0  # files of no kind this version knows


def survey(files: Files, manifest: schema.Manifest, catalogue: Catalogue | None = None) -> PartScan:
    """Looks at every file of the run without reading rows.

    One that the catalogue lists, and that has not changed since, is taken as it is listed.

    A file is whole where its size is the manifest's, its Parquet footer parses, and the footer has
    the manifest's row count and the schema's columns. Anything else damages its rank as a whole:
    half a rank would make every figure about it wrong without saying so. Where it is a file of
    short threads, they are left out, and counted as dropped.
    """
    found = PartScan()
    inflated = 0
    for path, expected in sorted(manifest["files"].items()):
        kind = file_parts(path)
        if kind is None:
            found.ignored += 1
            continue
        rank, thread, table = kind
        try:
            listed = _listed(files, path, expected, catalogue)
            size = _size(files, path) if listed is None else expected["bytes"]
            if size < expected["bytes"] or (size > expected["bytes"] and manifest["complete"]):
                word = "truncated" if size < expected["bytes"] else "changed"
                raise _Damage(f"{path} is {word}: {size} bytes, expected {expected['bytes']}")
            rows, decoded = (
                _checked(files, table, path, size)
                if listed is None
                else (expected["rows"], listed.decoded)
            )
            # A recorder that died, or is at work, may have replaced a table by a longer one before
            # the manifest says so.
            grown = not manifest["complete"] and size > expected["bytes"]
            if rows != expected["rows"] and not grown:
                raise _Damage(f"{path} holds {rows} rows, expected {expected['rows']}")
            inflated += decoded if decoded > size * parquet_footer.MAX_FACTOR else 0
            if inflated > parquet_footer.MAX_DECODED_BYTES:
                raise _Damage(
                    f"{path} says that its {size} bytes hold {decoded >> 20} MiB, more than "
                    f"{parquet_footer.MAX_FACTOR} times as many"
                )
        except _Damage as damage:
            if thread is not None and schema.is_shared(thread):
                pid, threads = int(thread.partition("-")[0]), expected.get("threads", {})
                lost = LostThreads(rank, pid, frozenset(threads), str(damage), expected["rows"])
                found.lost.append(lost)
            else:
                found.damage.setdefault(rank, str(damage))
            continue
        found.bytes += size
        part = Part(table, rank, thread, rows, size, files, path, None, listed)
        if thread is not None and schema.is_shared(thread):
            found.parts += _stretches(part, expected)
        else:
            found.parts.append(part)
    return _without_lost(found) if found.lost else found


def _stretches(part: Part, expected: schema.File) -> Iterator[Part]:
    """The parts of a file that short threads share, in the order of the file."""
    first = 0
    for thread, rows in expected.get("threads", {}).items():
        stretch = Stretch(first, expected["rows"], part.bytes)
        size = 0 if first else part.bytes
        yield replace(part, thread=thread, rows=rows, bytes=size, stretch=stretch)
        first += rows


def _without_lost(found: PartScan) -> PartScan:
    """What was found without the threads that lost rows, and without the accesses of their ranks:
    where what orders them is lost, they would look like races."""
    owners = {
        (one.rank, thread): number
        for number, one in enumerate(found.lost)
        for thread in one.threads
    }
    first = {one.rank: number for number, one in reversed([*enumerate(found.lost)])}
    kept, rows = [], [one.rows for one in found.lost]
    for part in found.parts:
        number = owners.get((part.rank, part.thread or ""))
        if number is None and part.table == "access":
            number = first.get(part.rank)
        if number is None:
            kept.append(part)
        else:
            rows[number] += part.rows
    lost = [replace(one, rows=count) for one, count in zip(found.lost, rows, strict=True)]
    return replace(found, parts=kept, lost=lost)


class _Damage(Exception):
    """What is wrong with one file, as the end of a sentence."""


def _listed(
    files: Files, path: str, expected: schema.File, catalogue: Catalogue | None
) -> ListedFile | None:
    if catalogue is None:
        return None
    try:
        return catalogue.find(files, path, expected)
    except OSError:
        return None  # reading the file says what is wrong


def _size(files: Files, path: str) -> int:
    try:
        return files.size(path)
    except FileNotFoundError:
        raise _Damage(f"{path} is missing") from None
    except OSError as error:
        raise _Damage(f"{path} cannot be read ({error.strerror})") from None


def _checked(files: Files, table: str, path: str, size: int) -> tuple[int, int]:
    """Number of rows by the footer, and bytes they take in memory; the columns are the schema's."""
    try:
        with files.open(path) as source:
            # The magic first: garbage of the right size is recognised before Arrow guesses at it.
            source.seek(max(size - 4, 0))
            if source.read(4) != _MAGIC:
                raise _Damage(f"{path} does not end as a Parquet file does (truncated)")
            source.seek(0)
            with pq.ParquetFile(source) as parquet:
                footer, columns = parquet.metadata, parquet.schema_arrow
                rows, decoded = int(footer.num_rows), parquet_footer.decoded_bytes(footer)
    except DAMAGE_ERRORS as error:
        if isinstance(error, OSError) and error.strerror:  # the system's, and not Arrow's
            raise _Damage(f"{path} cannot be read ({error.strerror})") from None
        raise _Damage(f"{path} is damaged: its footer is garbled") from None
    for column in schema.TABLES[table].columns:
        position = columns.get_field_index(column.name)
        if position < 0:
            if column.since > 1:
                continue
            raise _Damage(f"{path} has no column {column.name!r}")
        if not _compatible(columns.field(position).type, column.type):
            type_ = columns.field(position).type
            raise _Damage(f"{path}: {column.name!r} is {type_}, expected {column.type}")
    return rows, decoded


def _plain(type_: pa.DataType) -> pa.DataType:
    """A type without its encoding: dictionaries and large strings are strings."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return pa.string() if pa.types.is_large_string(type_) else type_


def _compatible(found: pa.DataType, wanted: pa.DataType) -> bool:
    found, wanted = _plain(found), _plain(wanted)
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(found))
    if pa.types.is_nested(wanted):
        # Arrow compares the names of a list's items; writers differ in them.
        return bool(pa.types.is_nested(found))
    return bool(found.equals(wanted))
