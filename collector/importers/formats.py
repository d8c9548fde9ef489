"""Lists the formats that can be imported, and finds that of a file."""

from __future__ import annotations

from pathlib import Path

from .base import Importer
from .chrome import ChromeTrace
from .decompress import Blocks
from .flight_recorder import FlightRecorderDump
from .limits import ImportRejected
from .spill import Trace

IMPORTERS: tuple[Importer, ...] = (FlightRecorderDump(), ChromeTrace())
"""Asked in this order."""


def read_file(path: Path, folder: Path) -> Trace:
    """Reads a trace or dump; rows go to files in `folder`. Raises ImportRejected, OSError."""
    first_block = next(iter(Blocks(path)), b"")
    for importer in IMPORTERS:
        trace = importer.read(path, folder) if importer.sniff(first_block) else None
        if trace is not None:
            return trace
    raise ImportRejected(
        f"{path}: holds no traceEvents and no entries, expected a trace of torch.profiler, "
        "VizTracer or Perfetto (JSON), or a flight-recorder dump"
    )
