"""Limits of an import: enough for a trace of many gigabytes, within a gigabyte of memory.

A file that exceeds a limit is rejected where the run would be wrong without the rest. Where only
details would be missing (which call launched a kernel), they are left out and counted.
"""


class ImportRejected(ValueError):
    """A file that cannot be imported: what was found, what was expected, what to do."""


MAX_TABLE_ROWS = 50_000_000
"""Slices, counters or ends of arrows of a file: torch.profiler writes 10 million in 2 GB. Each
takes 12 bytes of memory."""

MAX_EVENT_BYTES = 16 << 20
"""Size of one event."""

MAX_ARGUMENT_BYTES = 64 << 10
"""Arguments of one event; longer ones are left out and counted."""

MAX_METADATA_VALUES = 4_000_000
"""JSON values of metadata, or of the entries of a dump. Each takes up to 60 bytes of memory."""

MAX_METADATA_BYTES = 64 << 20
"""Size of the same in the file."""

MAX_NAMES = 2_000_000
"""Distinct names, about 250 bytes each."""

MAX_ALL_NAME_CHARS = 256 << 20
"""Characters of all distinct names."""

MAX_NAMED_THREADS = 100_000
"""Processes or threads that a file names."""

MAX_COLLECTIVES = 300_000
"""Collectives: a gigabyte of a torch.profiler trace holds about ten thousand."""

MAX_INPUT_SIGNATURES = 1 << 18
"""Distinct shapes and dtypes of inputs; a training has thousands."""

MAX_SIGNATURE_CHARS = 64 << 20
"""Characters of all signatures."""

MAX_LAUNCHES = 1 << 23
"""Calls that launch activities, 40 bytes each."""

MAX_PHASES = 1 << 22
"""Phases of a thread that operators are assigned to, 60 bytes each."""

MAX_DUMP_ENTRIES = 100_000
"""Calls in a flight recorder's dump, whose buffer holds 2,000 by default."""

MAX_DUMP_VALUES = 4_000_000
"""Frames and tensor sizes of all entries of a dump, and ranks of all its groups. A pickle may hold
a list once and refer to it a million times."""

MAX_STEPS = 1 << 20
"""Ends of steps."""
