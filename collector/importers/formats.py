"""Lists the formats that can be imported, and finds that of a file."""

from __future__ import annotations

import re
from pathlib import Path

from .base import Importer
from .chrome_trace.importer import ChromeTrace
from .decompress import Blocks
from .flight_recorder import FlightRecorderDump
from .import_limits import ImportRejected
from .spill import Trace

IMPORTERS: tuple[Importer, ...] = (FlightRecorderDump(), ChromeTrace())
"""Asked in this order."""


_HEAD_BYTES = 4096
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f]")
"""Bytes that JSON cannot hold."""

_PLANE = re.compile(rb"/host:CPU|/device:[A-Z]+:[0-9]|/host:metadata|Task Environment")
_PERFETTO = (
    "a trace of Perfetto in protobuf, expected JSON; convert it with "
    "https://get.perfetto.dev/traceconv, as in: traceconv json FILE trace.json"
)
_XPLANE = (
    "an XPlane of TensorFlow or JAX in protobuf, expected JSON; convert it with xprof (pip install "
    'xprof), as in: python -c "from xprof.convert.raw_to_tool_data import xspace_to_tool_data as '
    "convert; print(convert(['FILE'], 'trace_viewer', {})[0])\" > trace.json"
)

_ARCHIVE = (
    "a zip archive, expected JSON; open a bundle (.lanes) with lanescope view, unpack another one"
)


def read_file(path: Path, folder: Path) -> Trace:
    """Reads a trace or dump; rows go to files in `folder`. Raises ImportRejected, OSError."""
    first_block = next(iter(Blocks(path)), b"")
    if (refusal := _other_format(first_block)) is not None:
        raise ImportRejected(f"{path}: is {refusal}")
    for importer in IMPORTERS:
        trace = importer.read(path, folder) if importer.sniff(first_block) else None
        if trace is not None:
            return trace
    raise ImportRejected(
        f"{path}: holds no traceEvents and no entries, expected a trace of torch.profiler, "
        "VizTracer or Perfetto (JSON), or a flight-recorder dump"
    )


def _other_format(first_block: bytes) -> str | None:
    """Returns the name of a binary format and how to convert it; None for another file.

    A trace of Perfetto and an XPlane both begin with field 1, a message. Only an XPlane has planes
    of such names.
    """
    if first_block.startswith(b"PK\x03\x04"):
        return _ARCHIVE
    if not first_block.startswith(b"\n") or not _BINARY.search(first_block, 0, _HEAD_BYTES):
        return None
    if _PLANE.search(first_block):
        return _XPLANE
    return _PERFETTO
