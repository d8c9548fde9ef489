"""The journal's layout in C++, generated from the one in Python."""

from __future__ import annotations

import mmap
from typing import Any

from ..format.loop_names import BLEND_FACTOR, WRAPPED_BYTES
from ..format.names import EMPTY_MEAN
from ..format.record_kinds import GradientScope, OpScope, ThreadKind
from ..journal import background_compactor, journal, segment_ring, string_table
from ..journal.process_journals import KEPT_ORDINAL, MAIN_ORDINAL

_SERIES = {"EMPTY_MEAN": EMPTY_MEAN, "BLEND_FACTOR": BLEND_FACTOR, "WRAPPED_BYTES": WRAPPED_BYTES}
"""Names of series that the engine writes."""


def layout_header() -> str:
    """Returns layout.h, the journal's layout in C++, generated from journal.py."""
    numbers = {
        "MAIN_ORDINAL": MAIN_ORDINAL,
        "KEPT_ORDINAL": KEPT_ORDINAL,
        "HEADER_BYTES": journal.HEADER_BYTES,
        "RECORD_BYTES": journal.RECORD_BYTES,
        "FIRST_SEGMENT_BYTES": journal.FIRST_SEGMENT_BYTES,
        "LAST_SEGMENT_BYTES": journal.LAST_SEGMENT_BYTES,
        "OPEN_OFFSET": journal.OPEN_OFFSET,
        "OPEN_CAPACITY": journal.OPEN_CAPACITY,
        "DROPPED_OFFSET": journal.DROPPED_OFFSET,
        "OPEN_DEPTH_OFFSET": journal.OPEN_DEPTH_OFFSET,
        "OVERWRITTEN_OFFSET": journal.OVERWRITTEN_OFFSET,
        "PAGE_BYTES": mmap.PAGESIZE,
        "RUNNABLE_UNIT_NS": journal.RUNNABLE_UNIT_NS,
        "RUNNABLE_INTERVAL_NS": journal.RUNNABLE_INTERVAL_NS,
        "SMALLEST_SEGMENT_BYTES": segment_ring.MIN_SEGMENT_BYTES,
        "FOLLOWER_FIRST_SEGMENT": background_compactor.FIRST_SEGMENT,
        "FOLLOWER_AGAIN": background_compactor.REPEAT_SEGMENTS,
        "RING_SHARE": segment_ring.BUFFER_PARTS,
        "RING_KEPT_SHARE": segment_ring.KEPT_SHARE,
        "MAXIMUM_SIGNATURES": string_table.MAX_SIGNATURES,
        "MAXIMUM_TEXT_BYTES": string_table.MAX_TEXT_BYTES,
        **_members("KIND", journal.RecordKind),
        **_members("ACCESS", journal.AccessFlag),
        **_members("TENSOR", journal.TensorFlag),
        "TENSOR_ORDINAL": journal.TENSOR_ORDINAL,
        **_members("SCOPE", OpScope),
        **_members("GRADIENT", GradientScope),
        **_members("THREAD", ThreadKind),
    }
    strings = {
        "MAGIC": journal.MAGIC.decode(),
        "LEFT_OUT": string_table.CUT_OFF,
        "PROCESS_FILE": journal.PROCESS_FILE,
        "STRINGS_FILE": journal.STRINGS_FILE,
        "STALLS_FILE": journal.STALLS_FILE,
        "STALL_STACKS_FILE": journal.STALL_STACKS_FILE,
        "ENDED_FILE": journal.ENDED_FILE,
        "SEGMENT_SUFFIX": journal.SEGMENT_SUFFIX,
        **_SERIES,
    }
    return "\n".join(
        (
            "// Made by build.py from journal.py.",
            "#pragma once",
            "#include <cstddef>",
            "#include <cstdint>",
            "namespace lanescope::layout {",
            *(f"constexpr uint32_t {name} = {value};" for name, value in numbers.items()),
            *(f'constexpr char {name}[] = "{value}";' for name, value in strings.items()),
            _structure("Record", journal.FIELDS),
            _structure("AccessRecord", journal.ACCESS_FIELDS),
            _structure("TensorRecord", journal.TENSOR_FIELDS),
            _structure("TensorMoreRecord", journal.TENSOR_MORE_FIELDS),
            "}",
            "",
        )
    )


_TYPES = {
    "u1": "uint8_t",
    "<u2": "uint16_t",
    "<u4": "uint32_t",
    "<u8": "uint64_t",
    "<i4": "int32_t",
    "<i8": "int64_t",
    "<f8": "double",
}


def _structure(name: str, fields: tuple[tuple[str, str], ...]) -> str:
    members = "".join(f"  {_TYPES[kind]} {field};\n" for field, kind in fields)
    return (
        f"struct {name} {{\n{members}}};\n"
        f'static_assert(sizeof({name}) == RECORD_BYTES, "the compiler pads a record");'
    )


def _members(prefix: str, kind: Any) -> dict[str, int]:
    return {f"{prefix}_{member.name.upper()}": member.value for member in kind}
