"""How much of each kind an importer takes: enough for a trace of many gigabytes, and no more than
fits into a gigabyte of memory, whoever made the file.

What is more is refused where the run would be another without it. Where only an answer would be
missing (which call launched a kernel), it is left unanswered, and the run says so.
"""

from __future__ import annotations

MOST_ROWS = 50_000_000
"""Slices, counters or ends of arrows of a file: 2 GB are 10 million as torch.profiler writes them.
Of each 12 bytes are in memory."""

LONGEST_EVENT = 16 << 20
"""Bytes of one event."""

MOST_VALUES = 4_000_000
"""JSON values of all that is kept as it stands: metadata, or the entries of a dump. Of each up to
60 bytes are in memory, whatever it takes in the file."""

LONGEST_KEPT = 64 << 20
"""Bytes of the same."""

MOST_TEXTS = 2_000_000
"""Different names, some 250 bytes each."""

MOST_TEXT = 256 << 20
"""Letters of all different names."""

MOST_NAMED = 100_000
"""Processes or threads that a file names."""

MOST_CALLS = 300_000
"""Collectives: a gigabyte of a torch.profiler trace has some ten thousand."""

MOST_SIGNATURES = 1 << 18
"""Different shapes and dtypes of inputs; a training has thousands."""

MOST_SIGNATURE_TEXT = 64 << 20
"""Letters of all of them."""

MOST_LAUNCHES = 1 << 23
"""Calls that launch activities, 40 bytes each."""

MOST_LAUNCHING_ARROWS = 1 << 23
"""Arrows from such calls, 80 bytes each."""

MOST_PHASES = 1 << 22
"""Phases of a thread that operators are looked for in, 60 bytes each."""

MOST_ENTRIES = 100_000
"""Calls in a flight recorder's dump, whose buffer has room for 2,000 if nothing else is said."""

MOST_LOOKED_AT = 4_000_000
"""Frames and sizes of tensors of all entries of a dump, and ranks of all its groups. A pickle may
hold a list once and name it a million times."""

MOST_STEPS = 1 << 20
"""Ends of steps."""
