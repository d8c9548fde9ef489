"""The pieces of a run: which files hold which table, whether they are whole, their rows."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lanescope.collector.compaction import parquet_footer
from lanescope.collector.format import schema
from lanescope.webapp.runs.catalogue import Catalogue, ListedFile
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.files import Files
from lanescope.webapp.runs.manifest import file_parts

_MAGIC = b"PAR1"

_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)
"""What reading a damaged file raises."""

_NEVER_NULL = {"start_ns", "time_ns", "step", "depth", "thread", "pid"}
"""Columns without which a row has no place; what else may be null, the schema says."""


@dataclass(frozen=True)
class RowGroup:
    """A piece of a Parquet file that can be read alone."""

    number: int
    rows: int
    first: int | None  # least start, on the clock of the file; None: not known
    last: int | None  # no row lasts longer; None: not known

    def may_touch(self, low: int, high: int) -> bool:
        """Returns False where no row is in [low, high)."""
        begins = self.first is None or self.first < high
        return begins and (self.last is None or self.last >= low)

    def strays(self, possible: tuple[int, int]) -> bool:
        """Returns True where a row is outside of the possible times."""
        if self.first is not None and self.first < possible[0]:
            return True
        return self.last is not None and self.last > possible[1]

    def about(self, low: int, high: int) -> float:
        """Returns about how many of its rows are in [low, high), assuming they are spread
        evenly."""
        if self.first is None or self.last is None:
            return self.rows
        share = (min(high, self.last) - max(low, self.first)) / max(self.last - self.first, 1)
        return self.rows * min(max(share, 0), 1)


@dataclass(frozen=True)
class Part:
    """Rows of one table of one rank (and thread): a Parquet file, or rows recovered in memory."""

    table: str
    rank: int
    thread: str | None
    rows: int
    bytes: int = 0
    files: Files | None = None  # None: its rows are in memory
    name: str = ""  # of the file, below the run
    memory: pa.Table | None = None
    listed: ListedFile | None = None  # what the run's catalogue says of the file

    def groups(self, low: int, high: int, possible: tuple[int, int]) -> list[RowGroup]:
        """Returns the pieces of the file that may hold rows which touch [low, high) of its own
        clock.

        By the statistics of the file: rows recovered in memory, and a file without statistics, are
        one piece. A piece that has instants which are not `possible` may hold any.
        """
        if self.files is None:
            return [RowGroup(0, self.rows, None, None)]
        if self.listed is not None:
            known = tuple(RowGroup(at, *group) for at, group in enumerate(self.listed.groups))
        else:
            known = _row_groups(self.files, self.name, self.table, self.bytes)
        return [group for group in known if group.may_touch(low, high) or group.strays(possible)]

    def extremes(self, column: str) -> tuple[int, int] | None:
        """Returns least and greatest value of a column, by the footer; None where it has no
        statistics."""
        if self.files is None:
            assert self.memory is not None
            ends = pc.min_max(self.memory[column]).as_py()
            return None if ends["min"] is None else (ends["min"], ends["max"])
        groups = _stated_ranges(self.files, self.name, self.table, self.bytes)
        return parquet_footer.extremes(groups, column)

    def holding(self, groups: Sequence[RowGroup], column: str, value: int) -> list[RowGroup]:
        """Returns those of the groups that may hold a row with this value in a column of
        integers."""
        if self.files is None:
            return list(groups)
        stated = _stated_ranges(self.files, self.name, self.table, self.bytes)
        return [
            group
            for group in groups
            if (held := parquet_footer.value_range(*stated[group.number], column)) is None
            or held[0] <= value <= held[1]
        ]

    def read(self, columns: Sequence[str], groups: Sequence[RowGroup] | None = None) -> pa.Table:
        """Returns the columns with the schema's types; a column the file is too old for is null.

        `groups` are the pieces to read, as `groups` found them; None: all.

        Raises RunError where the file is damaged in a way its footer did not show.
        """
        try:
            if self.files is None:
                return self._recovered(columns)
            # Not pq.read_table: that would take `rank=` and `thread=` of the path for columns.
            with self.files.open(self.name) as source, parquet_footer.opened(source) as file:
                self._check(file.metadata)
                present = _present(file, columns)
                if groups is None:
                    found = file.read(columns=present, use_threads=False)
                else:
                    chosen = [group.number for group in groups]
                    found = file.read_row_groups(chosen, present, use_threads=False)
            return self._whole(found, columns)
        except _UNREADABLE as error:
            raise self._damaged(error) from None

    def portions(self, columns: Sequence[str], about: int) -> Iterator[pa.Table]:
        """Yields what `read` gives, in tables of `about` rows or a row group more.

        Raises RunError as `read` does.
        """
        try:
            if self.files is None:
                yield self._recovered(columns)
                return
            with self.files.open(self.name) as source, parquet_footer.opened(source) as file:
                present, footer = _present(file, columns), file.metadata
                self._check(footer)
                chosen, rows = [], 0
                for number in range(footer.num_row_groups):
                    chosen.append(number)
                    rows += int(footer.row_group(number).num_rows)
                    if rows >= about or number == footer.num_row_groups - 1:
                        found = file.read_row_groups(chosen, present, use_threads=False)
                        yield self._whole(found, columns)
                        chosen, rows = [], 0
        except _UNREADABLE as error:
            raise self._damaged(error) from None

    def _check(self, footer: pq.FileMetaData) -> None:
        """Raises RunError where a file is not what the catalogue says, as a forged one may be."""
        if self.listed is None:
            return
        found = int(footer.num_rows), parquet_footer.decoded_bytes(footer)
        if found != (self.rows, self.listed.decoded):
            assert self.files is not None
            raise RunError(
                f"{self.files.named(self.name)}: holds {found[0]} rows in {found[1]} bytes, "
                f"{schema.PART_CATALOGUE} says {self.rows} in {self.listed.decoded}; delete "
                f"{schema.PART_CATALOGUE} of the run, which is only there to open it faster"
            )

    def _recovered(self, columns: Sequence[str]) -> pa.Table:
        assert self.memory is not None
        return _conformed(self.memory, schema.TABLES[self.table], columns)

    def _whole(self, found: pa.Table, columns: Sequence[str]) -> pa.Table:
        # Text that is not UTF-8 would raise only where someone looks at it.
        found.validate(full=True)
        return _conformed(found, schema.TABLES[self.table], columns)

    def _damaged(self, error: Exception) -> RunError:
        return RunError(
            f"{self.files.named(self.name) if self.files else self.table}: cannot be read "
            f"({_reason(error)}); the file is damaged, restore it from a copy or record again"
        )


@dataclass
class PartScan:
    """What was found of a run's files."""

    parts: list[Part] = field(default_factory=list)
    damage: dict[int, str] = field(default_factory=dict)  # rank -> what is wrong, first found
    bytes: int = 0
    ignored: int = 0  # files of no kind this version knows


def survey(files: Files, manifest: schema.Manifest, catalogue: Catalogue | None = None) -> PartScan:
    """Looks at every file of the run without reading rows.

    One that the catalogue lists, and that has not changed since, is taken as it is listed.

    A file is whole where its size is the manifest's, its Parquet footer parses, and the footer has
    the manifest's row count and the schema's columns. Anything else damages its rank as a whole:
    half a rank would make every figure about it wrong without saying so.
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
            found.damage.setdefault(rank, str(damage))
            continue
        found.bytes += size
        found.parts.append(Part(table, rank, thread, rows, size, files, path, None, listed))
    return found


@functools.lru_cache(maxsize=4096)  # the size of a file that grows is another key
def _stated_ranges(
    files: Files, name: str, table: str, _: int
) -> tuple[tuple[int, parquet_footer.Ranges], ...]:
    """Per row group of a file its rows, and the statistics of its integer columns."""
    columns = {column.name for column in schema.TABLES[table].columns}
    try:
        with files.open(name) as source:
            return parquet_footer.stated(source, pq.read_metadata(source), columns)
    except _UNREADABLE as error:
        raise RunError(f"{files.named(name)}: cannot be read ({_reason(error)})") from None


@functools.lru_cache(maxsize=4096)
def _row_groups(files: Files, name: str, table: str, size: int) -> tuple[RowGroup, ...]:
    stated = _stated_ranges(files, name, table, size)
    return tuple(
        RowGroup(number, rows, *parquet_footer.extent(ranges))
        for number, (rows, ranges) in enumerate(stated)
    )


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
    except _UNREADABLE as error:
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


def _present(file: pq.ParquetFile, columns: Sequence[str]) -> list[str]:
    """Those of the columns that a file has."""
    names = file.schema_arrow.names
    return [name for name in columns if name in names]


def _conformed(found: pa.Table, table: schema.Table, columns: Sequence[str]) -> pa.Table:
    types = {column.name: column.type for column in table.columns}
    arrays = []
    for name in columns:
        wanted = types[name]
        if name not in found.column_names:
            arrays.append(pa.chunked_array([pa.nulls(found.num_rows, wanted)]))
            continue
        array = found.column(name)
        if not array.type.equals(wanted):
            if pa.types.is_dictionary(wanted):
                array = array.cast(wanted)
            else:
                array = parquet_footer.plain(array, wanted)
        if array.null_count:
            if name in _NEVER_NULL:
                raise pa.ArrowInvalid(f"{array.null_count} rows have no {name}")
            if pa.types.is_dictionary(wanted):
                array = pa.chunked_array([_filled(chunk) for chunk in array.chunks], wanted)
        arrays.append(array)
    return pa.table(arrays, names=list(columns))


def _filled(texts: pa.DictionaryArray) -> pa.DictionaryArray:
    """The texts with empty ones for null: the schema knows no text that is null."""
    values = texts.dictionary
    empty = pc.index(values, "").as_py()
    if empty < 0:
        empty = len(values)
        values = pa.concat_arrays([values, pa.array([""], pa.string())])
    return pa.DictionaryArray.from_arrays(pc.fill_null(texts.indices, empty), values)


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]
