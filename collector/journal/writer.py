"""Writes a thread's journal from Python; the native engine uses `observer/journal/journal.cpp`."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

from .background_compactor import is_due
from .journal import (
    DROPPED_OFFSET,
    FIRST_SEGMENT_BYTES,
    HEADER,
    HEADER_BYTES,
    LAST_SEGMENT_BYTES,
    MAGIC,
    NO_SEQUENCE,
    OPEN_CAPACITY,
    OPEN_DEPTH_OFFSET,
    OPEN_OFFSET,
    OVERWRITTEN_OFFSET,
    RECORD,
    RECORD_BYTES,
    RecordKind,
    segment_file,
)
from .own_files import Mapping, may_pass
from .segment_ring import Ring

_RECORD_BYTES = struct.Struct(f"{RECORD_BYTES}s")
_OPEN_BYTES = struct.Struct(f"{HEADER_BYTES - OPEN_DEPTH_OFFSET}s")
_THREAD = int(RecordKind.THREAD)
_RETRY_RECORDS = 256  # dropped records until the next attempt to get a segment


class ThreadJournal:
    """Writes one thread's records. Only that thread calls it, so it takes no lock.

    If a segment cannot be created (disk full, folder gone), records are counted in `dropped`;
    nothing raises, and the observed program continues. With a `ring`, segments are taken from it;
    those of a `kept` journal are never overwritten. `grown` is called when the journal is long.
    """

    __slots__ = (
        "_capacity",
        "_closed",
        "_file_bytes",
        "_folder",
        "_grown",
        "_kept",
        "_map",
        "_mapping",
        "_name",
        "_offset",
        "_ring",
        "_segment",
        "created_ns",
        "dropped",
        "failure",
        "kind",
        "native_id",
        "ordinal",
        "pid",
    )

    def __init__(
        self,
        folder: Path,
        *,
        pid: int,
        ordinal: int,
        native_id: int,
        kind: int,
        created_ns: int,
        ring: Ring | None = None,
        kept: bool = False,
        grown: Callable[[], None] | None = None,
    ) -> None:
        self._folder = folder
        self._ring = ring
        self._kept = kept
        self._grown = grown
        self._name: bytes = b""  # the last THREAD record
        self._mapping: Mapping | None = None
        self._map: memoryview | None = None  # its view
        self._segment = 0
        self._offset = 0
        self._capacity = 0
        self._closed = False
        self._file_bytes = FIRST_SEGMENT_BYTES
        self.pid = pid
        self.ordinal = ordinal
        self.native_id = native_id
        self.kind = kind
        self.created_ns = created_ns
        self.dropped = 0
        self.failure: OSError | None = None
        self._next_segment()

    def append(
        self,
        kind: int,
        scope: int,
        depth: int,
        name: int,
        start: int,
        end: int,
        sequence: int,
        step: int,
        module: int,
        signature: int,
        stack: int,
        phase: int,
        aux: int,
        extra: int,
    ) -> None:
        """Stores one record. The kind byte is stored last: until then a reader skips the record."""
        if self._closed:
            return
        if self._offset >= self._capacity and not self._next_segment():
            self.dropped += not self._closed
            return
        offset, buffer = self._offset, self._map
        if buffer is None:
            return  # closed meanwhile by the thread that ends the recording
        try:
            RECORD.pack_into(
                buffer,
                offset,
                0,
                scope,
                depth,
                name,
                start,
                end,
                sequence,
                step,
                module,
                signature,
                stack,
                phase,
                aux,
                extra,
            )
            if self._offset == offset and self._map is buffer:
                buffer[offset] = kind
                self._offset = offset + RECORD_BYTES  # nothing is called since the comparison
                if kind == _THREAD:
                    (self._name,) = _RECORD_BYTES.unpack_from(buffer, offset)
                return
        except (TypeError, ValueError):
            if self._map is buffer:
                raise
        # A signal handler of the program has stored records meanwhile, or the thread that ends the
        # recording has closed the journal.
        fields = kind, scope, depth, name, start, end, sequence, step, module, signature
        self.append(*fields, stack, phase, aux, extra)

    def append_all(self, records: bytes) -> None:
        """Stores several records, packed as `RECORD`."""
        for fields in RECORD.iter_unpack(records):
            self.append(*fields)

    @property
    def position(self) -> int:
        """A number that changes with every record."""
        return self._segment * LAST_SEGMENT_BYTES + self._offset

    def push_open(
        self,
        level: int,
        kind: int,
        scope: int,
        name: int,
        start: int,
        step: int,
        phase: int,
        stack: int = 0,
        extra: int = 0,
    ) -> None:
        """Stores that an event began, at nesting `level`, in case it never ends."""
        self.push_open_record(
            level,
            kind,
            scope,
            level,
            name,
            start,
            0,
            NO_SEQUENCE,
            step,
            0,
            0,
            stack,
            phase,
            0,
            extra,
        )

    def push_open_record(self, level: int, *fields: int) -> None:
        """Stores that an event began; `fields` in the order of `RECORD`."""
        buffer = self._map
        if level >= OPEN_CAPACITY or buffer is None:
            return
        with contextlib.suppress(TypeError, ValueError):  # closed meanwhile
            RECORD.pack_into(buffer, OPEN_OFFSET + level * RECORD_BYTES, *fields)
            struct.pack_into("<I", buffer, OPEN_DEPTH_OFFSET, level + 1)

    def pop_open(self, level: int) -> None:
        """Stores that the event at nesting `level` ended."""
        buffer = self._map
        if level < OPEN_CAPACITY and buffer is not None:
            with contextlib.suppress(TypeError, ValueError):
                struct.pack_into("<I", buffer, OPEN_DEPTH_OFFSET, level)

    def leave(self) -> None:
        """Unmaps the segment, which is the parent's, in a forked child."""
        mapping = self._end()
        if mapping is not None:
            mapping.close()

    def _end(self) -> Mapping | None:
        """Ends the writing; returns the mapping that is to be closed."""
        self._closed = True
        mapping, self._mapping, self._map = self._mapping, None, None
        return mapping

    def close(self) -> None:
        """Unmaps the segment and truncates it behind the last record.

        Another thread may be about to append; it finds the journal closed. The order matters:
        writing to a mapping past the end of its file would raise SIGBUS.
        """
        used, path = self._offset, self._path(self._segment)
        mapping = self._end()
        if mapping is None:
            return
        if self.dropped:
            struct.pack_into("<Q", mapping.view, DROPPED_OFFSET, self.dropped)
        mapping.close()
        self._capacity = 0
        try:
            os.truncate(path, used)
        except OSError as error:  # the folder may be gone
            self.failure = error
        self._seal(self._segment, used, self._file_bytes)

    def _path(self, segment: int) -> Path:
        return self._folder / segment_file(self.ordinal, segment)

    def _seal(self, segment: int, used: int, size: int) -> None:
        if self._ring is not None and not self._kept:
            records = (used - HEADER_BYTES) // RECORD_BYTES
            copied = segment > 0 and bool(self._name)
            self._ring.seal(self._path(segment), size, used, records - copied)

    def _next_segment(self) -> bool:
        before, ring = self._mapping, self._ring
        if self._closed or (self.failure is not None and not may_pass(self.failure)):
            return False
        # Without room or descriptors, try again only after some dropped records.
        if (ring is not None or self.failure is not None) and self.dropped % _RETRY_RECORDS:
            return False
        wanted = FIRST_SEGMENT_BYTES
        if before is not None:
            wanted = min(self._file_bytes * 4, LAST_SEGMENT_BYTES)
        size = wanted if ring is None else ring.take(wanted, kept=self._kept)
        if not size:
            return False
        segment = self._segment + (before is not None)
        path = self._path(segment)
        try:
            mapping = map_segment(path, size)
        except OSError as error:
            if ring is not None:
                ring.seal(path, size, 0, 0)
            if self._mapping is not before:  # a signal handler of the program got it meanwhile
                return not self._closed
            self.failure = error
            return False
        buffer = mapping.view
        self._write_header(buffer, segment, size)
        offset = HEADER_BYTES
        if before is not None:
            # Open events are copied to the new segment, because a reader uses the last one only.
            with contextlib.suppress(ValueError):  # closed meanwhile: see below
                events = _OPEN_BYTES.unpack_from(before.view, OPEN_DEPTH_OFFSET)
                _OPEN_BYTES.pack_into(buffer, OPEN_DEPTH_OFFSET, *events)
        if ring is not None:
            struct.pack_into("<Q", buffer, OVERWRITTEN_OFFSET, ring.overwritten)
            if before is not None and self._name:  # earlier segments may be overwritten
                _RECORD_BYTES.pack_into(buffer, offset, self._name)
                offset += RECORD_BYTES
        if self._mapping is not before:
            # A signal handler of the program has got the segment meanwhile, or the thread that ends
            # the recording has closed the journal.
            mapping.close()
            if ring is not None:
                ring.seal(path, size, 0, 0)
            if self._segment != segment:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            return not self._closed
        last, full = self._segment, self._file_bytes
        self._mapping, self._map, self.failure = mapping, buffer, None
        self._segment, self._file_bytes = segment, size
        self._offset, self._capacity = offset, size
        if before is not None:
            before.close()
            self._seal(last, full, full)
        if self._grown is not None and is_due(segment):
            self._grown()
        return True

    def _write_header(self, buffer: memoryview, segment: int, size: int) -> None:
        HEADER.pack_into(
            buffer,
            0,
            MAGIC,
            RECORD_BYTES,
            HEADER_BYTES,
            (size - HEADER_BYTES) // RECORD_BYTES,
            self.ordinal,
            segment,
            self.kind,
            self.pid,
            self.native_id,
            self.created_ns,
            self.dropped,
            0,
        )


def map_segment(path: Path, size: int) -> Mapping:
    """Creates and maps a file of `size` bytes. Raises OSError.

    The file may exist: what a signal handler of the program raised may have ended an attempt.
    """
    try:
        return Mapping(path, size, os.O_CREAT)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
