"""Defines catalogue.parquet: what opening a run needs to know of its files, a row for each.

The manifest says which files there are; the catalogue repeats what they say of themselves (their
footers, threads and steps), so that a run of thousands of files opens without opening them. It is
written when a run is closed, stands beside the manifest, and may be deleted at any time: without
it the files are read.
"""

import pyarrow as pa

from .columns import INT64
from .lookups import THREAD

CATALOGUE_VERSION = 1

WORTH_LISTING = 100
"""Files from which on a run gets a catalogue: fewer are read in a third of a second."""

_INT64S = pa.list_(INT64)

_THREADS = pa.list_(
    pa.struct(
        [
            (c.name, pa.string()) if pa.types.is_dictionary(c.type) else (c.name, c.type)
            for c in THREAD.columns
        ]
    )
)
_STEPS = pa.list_(pa.struct([("step", INT64), ("start_ns", INT64), ("end_ns", INT64)]))

WORDS_OF = {"op": "scope", "phase": "kind"}
"""Column by table."""

CATALOGUE = pa.schema(
    [
        ("path", pa.string()),  # below the run
        ("threads", pa.list_(pa.string())),  # whose rows it holds; empty: a table of the rank
        ("rows", INT64),
        ("bytes", INT64),
        ("sha256", pa.string()),  # as the manifest has it, the first 16 digits
        ("changed_ns", INT64),  # when the file was last modified, wall clock
        ("footer", INT64),  # CRC-32 of the Parquet footer
        ("decoded", INT64),  # bytes of its rows in memory
        # Of each row group: rows, least start, and the end of none is later; null: not known.
        ("group_rows", _INT64S),
        ("group_first_ns", _INT64S),
        ("group_last_ns", _INT64S),
        # Least and greatest of all instants and of all durations, 0 without any; null: not known.
        ("first_ns", INT64),
        ("last_ns", INT64),
        ("shortest_ns", INT64),
        ("longest_ns", INT64),
        # Texts of the column that says what rows are (WORDS_OF), and the least start of a phase of
        # training. Null: another table, or without any.
        ("words", pa.list_(pa.string())),
        ("training_ns", INT64),
        # Of a rank's thread table: its rows, and the steps of the rank's own process on its own
        # clock, as process `pid` reads it. Null: of another table, or to be found in the phases.
        ("known_threads", _THREADS),
        ("steps_pid", INT64),
        ("steps", _STEPS),
    ],
    metadata={"lanescope.catalogue": str(CATALOGUE_VERSION)},
)
"""Instants are readings of the recording process's monotonic clock, as in the files."""
