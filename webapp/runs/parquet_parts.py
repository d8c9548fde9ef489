"""The pieces of a run: files, stretches of files, rows in memory; and how they are read."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lanescope.collector.compaction import parquet_footer
from lanescope.collector.format import schema
from lanescope.webapp.runs.catalogue import ListedFile
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.files import Files

DAMAGE_ERRORS = (OSError, pa.ArrowException, UnicodeDecodeError)
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
class Stretch:
    """Where the rows of a thread are in a file that short threads share."""

    first: int  # number of the first of them
    file_rows: int
    file_bytes: int


@dataclass(eq=False, slots=True)  # not frozen: a run has thousands, which take long to make so
class Part:
    """Rows of one table of one rank (and thread): a Parquet file, a stretch of one, or rows
    recovered in memory."""

    table: str
    rank: int
    thread: str | None
    rows: int
    bytes: int = 0
    files: Files | None = None  # None: its rows are in memory
    name: str = ""  # of the file, below the run
    memory: pa.Table | None = None
    listed: ListedFile | None = None  # what the run's catalogue says of the file
    stretch: Stretch | None = None  # None: all of the file

    def groups(self, low: int, high: int, possible: tuple[int, int]) -> list[RowGroup]:
        """Returns the pieces of the file that may hold rows which touch [low, high) of its own
        clock.

        By the statistics of the file: rows recovered in memory, a stretch of a file, and a file
        without statistics, are one piece. A piece that has instants which are not `possible` may
        hold any.
        """
        if self.files is None:
            return [RowGroup(0, self.rows, None, None)]
        if self.stretch is not None:
            known: tuple[RowGroup, ...] = (RowGroup(0, self.rows, *self._extent()),)
        elif self.listed is not None:
            known = tuple(RowGroup(at, *group) for at, group in enumerate(self.listed.groups))
        else:
            known = _row_groups(self.files, self.name, self.table, self.bytes)
        return [group for group in known if group.may_touch(low, high) or group.strays(possible)]

    def extremes(self, column: str) -> tuple[int, int] | None:
        """Returns least and greatest value of a column, by the footer; None where it has no
        statistics."""
        if self.files is None or self.stretch is not None:
            ends = pc.min_max(self.read([column])[column]).as_py()
            return None if ends["min"] is None else (ends["min"], ends["max"])
        groups = _stated_ranges(self.files, self.name, self.table, self.bytes)
        return parquet_footer.extremes(groups, column)

    def holding(self, groups: Sequence[RowGroup], column: str, value: int) -> list[RowGroup]:
        """Returns those of the groups that may hold a row with this value in a column of
        integers."""
        if self.files is None or self.stretch is not None:
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
            if self.stretch is not None:
                return self._own_rows(columns)
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
        except DAMAGE_ERRORS as error:
            raise self._damaged(error) from None

    def portions(self, columns: Sequence[str], about: int) -> Iterator[pa.Table]:
        """Yields what `read` gives, in tables of `about` rows or a row group more.

        Raises RunError as `read` does.
        """
        try:
            if self.files is None or self.stretch is not None:
                yield self.read(columns)
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
        except DAMAGE_ERRORS as error:
            raise self._damaged(error) from None

    def _check(self, footer: pq.FileMetaData) -> None:
        if self.listed is not None:
            assert self.files is not None
            _check_listed(self.files, self.name, footer, (self.rows, self.listed.decoded))

    def _own_rows(self, columns: Sequence[str]) -> pa.Table:
        """The thread's stretch of a shared file. Raises RunError, or what reading raises."""
        assert self.files is not None
        assert self.stretch is not None
        size, rows = self.stretch.file_bytes, self.stretch.file_rows
        listed = None if self.listed is None else (rows, self.listed.decoded)
        whole = _shared_rows(self.files, self.name, self.table, size, listed, tuple(columns))
        found = whole.slice(self.stretch.first, self.rows)
        owners = pc.unique(found[schema.SHORT_THREAD]).to_pylist()
        if found.num_rows != self.rows or owners not in ([], [self.thread]):
            raise pa.ArrowInvalid(f"{schema.MANIFEST} names other threads for its rows")
        return found.select(list(columns))

    def _extent(self) -> tuple[int | None, int | None]:
        """Least start of a stretch, and an instant that none of its rows lasts beyond."""
        names = {column.name for column in schema.TABLES[self.table].columns}
        if not self.rows or not {"start_ns", "duration_ns"} <= names:
            return None, None
        rows = self.read(["start_ns", "duration_ns"])
        starts, durations = (pc.min_max(column).as_py() for column in rows.columns)
        if rows["duration_ns"].null_count:
            return starts["min"], None
        return starts["min"], starts["max"] + durations["max"]

    def _recovered(self, columns: Sequence[str]) -> pa.Table:
        assert self.memory is not None
        return _conformed(self.memory, schema.TABLES[self.table], columns)

    def _whole(self, found: pa.Table, columns: Sequence[str]) -> pa.Table:
        # Text that is not UTF-8 would raise only where someone looks at it.
        found.validate(full=True)
        return _conformed(found, schema.TABLES[self.table], columns)

    def _damaged(self, error: Exception) -> RunError:
        name = self.files.named(self.name) if self.files else self.table
        if isinstance(error, FileNotFoundError):
            return RunError(_gone(name))
        return RunError(
            f"{name}: cannot be read ({_reason(error)}); the file is damaged, restore it from a "
            "copy or record again"
        )


def _check_listed(
    files: Files, name: str, footer: pq.FileMetaData, listed: tuple[int, int]
) -> None:
    """Raises RunError where a file is not what the catalogue says, as a forged one may be.

    `listed` are its rows, and the bytes they take in memory.
    """
    found = int(footer.num_rows), parquet_footer.decoded_bytes(footer)
    if found != listed:
        raise RunError(
            f"{files.named(name)}: holds {found[0]} rows in {found[1]} bytes, "
            f"{schema.PART_CATALOGUE} says {listed[0]} in {listed[1]}; delete "
            f"{schema.PART_CATALOGUE} of the run, which is only there to open it faster"
        )


@functools.lru_cache(maxsize=16)
def _shared_rows(
    files: Files,
    name: str,
    table: str,
    _: int,  # the size of a file that grows is another key
    listed: tuple[int, int] | None,
    columns: tuple[str, ...],
) -> pa.Table:
    """All rows of a file that short threads share, and whose they are, read once for all."""
    with files.open(name) as source, parquet_footer.opened(source) as file:
        if listed is not None:
            _check_listed(files, name, file.metadata, listed)
        present = _present(file, [*columns, schema.SHORT_THREAD])
        found = file.read(columns=present, use_threads=False)
    if schema.SHORT_THREAD not in present:
        raise pa.ArrowInvalid(f"it has no column {schema.SHORT_THREAD!r}")
    found.validate(full=True)
    owners = found[schema.SHORT_THREAD].cast(pa.string()).dictionary_encode()
    whole = _conformed(found, schema.TABLES[table], columns)
    return whole.append_column(schema.SHORT_THREAD, owners)


@functools.lru_cache(maxsize=4096)  # the size of a file that grows is another key
def _stated_ranges(
    files: Files, name: str, table: str, _: int
) -> tuple[tuple[int, parquet_footer.Ranges], ...]:
    """Per row group of a file its rows, and the statistics of its integer columns."""
    columns = {column.name for column in schema.TABLES[table].columns}
    try:
        with files.open(name) as source:
            return parquet_footer.stated(source, pq.read_metadata(source), columns)
    except FileNotFoundError:
        raise RunError(_gone(files.named(name))) from None
    except DAMAGE_ERRORS as error:
        raise RunError(f"{files.named(name)}: cannot be read ({_reason(error)})") from None


@functools.lru_cache(maxsize=4096)
def _row_groups(files: Files, name: str, table: str, size: int) -> tuple[RowGroup, ...]:
    stated = _stated_ranges(files, name, table, size)
    return tuple(
        RowGroup(number, rows, *parquet_footer.extent(ranges))
        for number, (rows, ranges) in enumerate(stated)
    )


def _present(file: pq.ParquetFile, columns: Sequence[str]) -> list[str]:
    """Those of the columns that a file has."""
    if set(columns) <= set(file.schema.names):  # of flat columns, which most tables have alone
        return list(columns)
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
                array = parquet_footer.decoded_texts(array, wanted)
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


def _gone(name: str) -> str:
    return (
        f"{name}: this file is gone; the run was deleted or moved after it was opened. Put it "
        "back, or open the run where it is now"
    )


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]
