"""Layout of the journal: append-only, crash-safe record files, one per thread, of both engines.

A process writes into `RUN/journal/<pid>-<start>/`:

    process.json              description of the process, rewritten atomically
    strings.bin               interned texts: u32 length, UTF-8 bytes; id: position, from 1; the
                              length includes the zeros that align the next one, 0 ends the file
    t00003-00001.lsj          thread of ordinal 3, second segment

A segment is a header of 4096 bytes followed by records of 64 bytes, memory-mapped shared. The page
cache survives the death of the process, so a stored record is safe. Its first byte, the kind, is
stored last: a record of kind 0 is incomplete and is skipped. The header also holds the stack of
open events, so that a reader knows what a dead process was doing. Blocks are reserved before a
segment is mapped: writing into a hole on a full disk would raise SIGBUS in the observed program.

All record kinds share one layout (`RECORD`), with the meaning of each field given in `RecordKind`;
only ACCESS, TENSOR and TENSOR_MORE have ones of their own (`ACCESS_FIELDS` and so on).
"""

from __future__ import annotations

import enum
import json
import os
import struct
import threading
from pathlib import Path
from typing import Any

from . import own_files

MAGIC = b"LSJRNL01"
HEADER_BYTES = 4096
RECORD_BYTES = 64
FIRST_SEGMENT_BYTES = 64 * 1024
LAST_SEGMENT_BYTES = 4 * 1024 * 1024
OPEN_OFFSET = 256
OPEN_CAPACITY = (HEADER_BYTES - OPEN_OFFSET) // RECORD_BYTES

PROCESS_FILE = "process.json"
STRINGS_FILE = "strings.bin"
STALLS_FILE = "stalls.jsonl"  # dumps of the watchdog, one per line
# Stacks in faulthandler's format. The portable engine writes them on SIGTERM alone, so that their
# presence means SIGTERM.
STALL_STACKS_FILE = "stalls.txt"
QUIET_FILE = "quiet.json"  # dump of a pause; removed when recording continues
ALIVE_FILE = "alive"  # when the watchdog last looked, i64 ns
ENDED_FILE = "ended"  # the signal that ended the process
CALIBRATION_FILE = "clock.json"  # this clock measured against that of rank 0
SOURCES_FILE = "sources.json"  # lines of code that is in no file, by its name
SEGMENT_SUFFIX = ".lsj"

# magic, record bytes, header bytes, capacity, ordinal, segment, thread kind, pid, native id,
# created ns, dropped records, open depth
HEADER = struct.Struct("<8sIIIIIIqqqQI")
DROPPED_OFFSET = struct.calcsize("<8sIIIIIIqqq")
OPEN_DEPTH_OFFSET = struct.calcsize("<8sIIIIIIqqqQ")
# In a segment left by compaction: number of part files with the records before it.
PARTS_OFFSET = 128
# Records of the process that were overwritten (`--keep-last`) before the segment was created.
OVERWRITTEN_OFFSET = 136

RECORD = struct.Struct("<BBHIqqqiIIIIIq")
assert RECORD.size == RECORD_BYTES
FIELDS = (
    ("kind", "u1"),
    ("scope", "u1"),
    ("depth", "<u2"),
    ("name", "<u4"),
    ("start", "<i8"),
    ("end", "<i8"),
    ("sequence", "<i8"),
    ("step", "<i4"),
    ("module", "<u4"),
    ("signature", "<u4"),
    ("stack", "<u4"),
    ("phase", "<u4"),
    ("aux", "<u4"),
    ("extra", "<i8"),
)

ACCESS_FIELDS = (
    ("kind", "u1"),
    ("count", "u1"),  # accesses in this record: 1 or 2
    ("flags", "<u2"),  # AccessFlag of the first, and of the second moved left by 8 bits
    ("version0", "<u4"),
    ("storage0", "<u8"),
    ("offset0", "<i8"),
    ("bytes0", "<i8"),
    ("version1", "<u4"),
    ("stream", "<u4"),  # of both: ordinal of the device's stream, in the process; 0: the host
    ("storage1", "<u8"),
    ("offset1", "<i8"),
    ("bytes1", "<i8"),
)

ACCESS_RECORD = struct.Struct("<BBHIQqqIIQqq")
assert ACCESS_RECORD.size == RECORD_BYTES

TENSOR_FIELDS = (
    ("kind", "u1"),
    ("depth", "u1"),  # of the operator; 255: that or more
    ("position", "<u2"),  # ordinal among the tensors, and TensorFlag
    ("signature", "<u4"),  # text "shape TAB dtype TAB device"
    ("start", "<i8"),  # of the operator
    ("hash", "<i8"),
    ("zeros", "<i8"),
    ("mean", "<f8"),
    ("l2", "<f8"),
    ("low", "<f8"),
    ("high", "<f8"),
)
TENSOR_MORE_FIELDS = (
    ("kind", "u1"),
    ("expects", "u1"),  # 1: `expected` counts
    ("unset", "<u2"),  # 1: made of uninitialised memory
    ("spare2", "<u4"),
    ("nan", "<i8"),
    ("inf", "<i8"),
    ("expected", "<i8"),
    ("spare3", "<i8"),
    ("spare4", "<i8"),
    ("spare5", "<i8"),
    ("spare6", "<i8"),
)

TENSOR_RECORD = struct.Struct("<BBHIqqqdddd")
TENSOR_MORE_RECORD = struct.Struct("<BBHIqqqqqqq")
assert TENSOR_RECORD.size == TENSOR_MORE_RECORD.size == RECORD_BYTES

NO_SEQUENCE = -1
RUNNABLE_UNIT_NS = 100_000
RUNNABLE_INTERVAL_NS = 5_000_000
"""Shortest time between two readings of the time without a processor; a reading takes 8 us."""
FLOAT_BITS = struct.Struct("<d")
INT_BITS = struct.Struct("<q")


class RecordKind(enum.IntEnum):
    """Record kinds. Fields not named are as in OP or zero; `text` means an id in strings.bin."""

    NONE = 0
    # name: text; scope: OpScope; sequence: autograd sequence number or -1; module, phase: text;
    # signature: text "shapes TAB dtypes TAB device"; stack: text, a frame a line, fields by TAB.
    # Of scope kernel: extra: instant of the call that launched it, 0 not known; aux: ordinal of
    # the thread that made the call + 1, 0 not known
    OP = 1
    # name: text; scope: 1 asynchronous; sequence: per group; extra: bytes; depth: time that the
    # thread was ready to run without a processor since the last reading, in units of
    # RUNNABLE_UNIT_NS plus one, 0: not read;
    # aux: text "group TAB size TAB peer TAB root TAB reduce_op TAB splits"
    COLLECTIVE = 2
    # name, aux, sequence: of the call; end: instant of completion
    COLLECTIVE_END = 3
    # name: text; scope: PhaseKind; end == start for a mark
    PHASE = 4
    # name: text, parameter; start: instant; sequence: norm as float64 bits; extra: numel;
    # aux: optimizer; scope: GradientScope; signature: text "TAB dtype TAB device". One of scope
    # HASHES follows that of the same name, start and optimizer; sequence: hash of the gradient,
    # extra: of the parameter. Those of scope SAMPLE with the same name, start and aux (optimizer
    # + 1, 0 none) are one row of the parameter table, see SampleRecord; sequence, extra: its two
    # numbers. One of scope ACTIVATION: sequence: norm, extra: elements, aux: 1 while training. One
    # of scope NODE: aux: its number; sequence: as in OP; extra: text, the parameter; signature:
    # text, numbers of the nodes that receive its gradients. At depth FX_NODE: aux: its number;
    # name: text, target; extra: text, its name; sequence: text, path of the module; signature:
    # text "users TAB op TAB graph"; stack: as in OP
    GRADIENT = 5
    # scope: SyncKind; aux: ordinal of the other thread + 1, 0 none; extra: number of the object
    SYNC = 6
    # name: text; start: instant; sequence: value as float64 bits
    VALUE = 7
    # name: text, the thread's name
    THREAD = 8
    # name: text, path; aux: text, class; extra: elements of its own parameters
    MODULE = 9
    # Reads and writes of storages, in a layout of their own, directly before the OP record of their
    # operator (which is stored when it ends). An access with only a birth may belong to a filtered
    # operator inside. storage: address of the storage's first byte; offset, bytes: the range
    # within it; version: of the tensor, before.
    ACCESS = 10
    # Fingerprint of a tensor that an operator made, changed or read (`fingerprint.py`), in a
    # layout of its own.
    TENSOR = 11
    # Rare values of the TENSOR record directly before: NaN, Inf, and the expected hash.
    TENSOR_MORE = 12
    # name: text, a parameter or buffer; extra: address of the first byte of its storage
    STORAGE = 13


class AccessFlag(enum.IntFlag):
    """Flags of an access; without WRITE it is a read."""

    WRITE = 1
    # The storage is new: earlier records of its address mean another one.
    BIRTH = 2
    # The range has gaps. The access is alone in its record, whose fields of the second access hold:
    # offset, the length of a contiguous run; bytes, the distance from run to run, -1 if uneven.
    STRIDED = 4
    # By an outermost filtered operator, which has no OP record. The access is alone in its record,
    # whose field storage of the second access holds the instant of the allocation.
    APART = 8


class TensorFlag(enum.IntFlag):
    """Upper bits of a TENSOR record's position."""

    FINITE = 0x0800  # with KNOWN: all inputs of the operator were finite
    KNOWN = 0x1000  # the inputs of the operator are known
    MORE = 0x2000  # a TENSOR_MORE record follows
    RESULT = 0x4000  # made by the operator
    FOUND = 0x8000  # an input before the operator; neither: an input after it


TENSOR_ORDINAL = 0x07FF
"""Mask of the other bits: ordinal among the operator's tensors, from 0."""


def float_bits(value: float) -> int:
    """Returns the bits of a float64 as a signed integer, for an integer field."""
    return int(INT_BITS.unpack(FLOAT_BITS.pack(value))[0])


def segment_file(ordinal: int, segment: int) -> str:
    """Returns the file name of one segment: `t00003-00001.lsj`."""
    return f"t{ordinal:05d}-{segment:05d}{SEGMENT_SUFFIX}"


def json_bytes(value: Any, indent: int | None = None) -> bytes:
    """Returns JSON in UTF-8; `?` replaces lone surrogates, which file names may hold."""
    return json.dumps(value, indent=indent, ensure_ascii=False).encode("utf-8", "replace")


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically: a reader sees either the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    own_files.write(temporary, json_bytes(value, indent=1))
    os.replace(temporary, path)
