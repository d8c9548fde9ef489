"""What slices are coloured by: phases by their kind, ops by the phase they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.collector.format.names import COMMUNICATION_KERNEL
from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.types import Int64Array, UInt8Array
from lanescope.webapp.timeline.span_nesting import Piece, styled

BESIDE = (
    "identical",
    "within tolerance",
    "different",
    "added",
    "removed",
    "slower",
    "faster",
)
"""Styles of ops that are shown beside a baseline."""

STYLES = (
    "other",
    "forward",
    "backward",
    "optimizer",
    "collective",
    "data",
    "evaluation",
    "user",
    "mark",
    *BESIDE,
)
"""What a slice is coloured by; its style is the position here."""

STYLE = {name: position for position, name in enumerate(STYLES)}
COPIES = ("Memcpy", "Memset")
"""How names of copies begin."""

_COMMUNICATION = ("c10d::", "symm_mem::", "gloo:", "nccl:", "record_param_comms")

_Codes = npt.NDArray[np.int32]


def coded(column: pa.ChunkedArray) -> tuple[_Codes, list[str]]:
    """Codes and texts of a dictionary column; null is the empty text."""
    if column.num_chunks == 1:
        array = column.chunk(0)
    else:
        array = column.unify_dictionaries().combine_chunks()
    texts = ["" if text is None else str(text) for text in array.dictionary.to_pylist()]
    codes = array.indices
    if codes.null_count:
        texts.append("")
        codes = codes.fill_null(len(texts) - 1)
    return codes.to_numpy(zero_copy_only=False), texts


@lru_cache(maxsize=4096)  # asked of the same few names for each of thousands of threads
def communicates(name: str) -> bool:
    """Returns whether an operator or kernel of that name moves data between ranks."""
    return name.startswith(_COMMUNICATION) or COMMUNICATION_KERNEL.search(name) is not None


ByName = Callable[[], Mapping[str, int]]
"""Style of each phase name, worked out where it is asked for: few threads need it."""


def phase_styles(run: Run, rank: int) -> dict[str, int]:
    """Returns the style of each phase name of a rank, for ops that know their phase by name alone.

    Autograd's own threads have no phases; their ops carry the name of the one they work for. A
    name used with several kinds counts as the first kind that is not `user`.
    """
    phases = run.events("phase", rank, columns=["name", "kind"]).group_by(["name", "kind"])
    pairs = phases.aggregate([]).cast(pa.schema([("name", pa.string()), ("kind", pa.string())]))
    found: dict[str, int] = {}
    for row in pairs.to_pylist():
        style = STYLE.get(row["kind"], 0)
        if found.get(row["name"], STYLE["user"]) == STYLE["user"]:
            found[row["name"]] = style
    return found


def matching(column: pa.ChunkedArray, chosen: Mapping[str, int]) -> UInt8Array:
    """Returns the chosen number of each text, 0 for texts without one."""
    codes, texts = coded(column)
    return np.array([chosen.get(text, 0) for text in texts] or [0], np.uint8).take(codes)


class OpStyles:
    """Styles of a thread's ops: communication and autograd nodes by what they are, others by their
    phase.
    """

    def __init__(self, run: Run, thread: Thread, phases: Piece, by_name: ByName) -> None:
        self._run, self._thread, self._by_name = run, thread, by_name
        self._phases = list(phases.rows())

    def of(
        self, rows: pa.Table, start: Int64Array, codes: _Codes, texts: list[str], at: int
    ) -> UInt8Array:
        """Returns the style of ops in order of time, beginning with the one at `at` of all; 0 where
        it is not known. `codes` and `texts` are those of the names."""
        style = self._painted(start)
        if "phase" in rows.column_names:
            style = matching(rows["phase"], self._by_name())
        elif not style.all():
            style = np.where(style == 0, self._named[at : at + len(start)], style)
        scopes, scope_texts = coded(rows["scope"])
        for code, text in enumerate(scope_texts):
            if text == schema.OpScope.backward.name:
                style[scopes == code] = STYLE["backward"]
            elif text == schema.OpScope.user.name:
                style[(scopes == code) & (style == 0)] = STYLE["user"]
        talks = np.array([communicates(text) for text in texts] or [False])
        if talks.any():
            style[talks.take(codes)] = STYLE["collective"]
        return style

    @cached_property
    def _named(self) -> UInt8Array:
        """Style of each op's phase by name alone, of all ops of the thread."""
        where = ("op", self._thread.rank, self._thread.thread)
        return matching(self._run.events(*where, ["phase"])["phase"], self._by_name())

    def _painted(self, instants: Int64Array) -> UInt8Array:
        """Style of the phase around each instant (ascending): of the innermost one not `user`."""
        style = np.zeros(len(instants), np.uint8)
        for row in self._phases:
            # The phases of a row do not overlap: their instants are consecutive stretches.
            low = int(row.end.searchsorted(instants[0], side="right"))
            high = int(row.start.searchsorted(instants[-1], side="right"))
            if low >= high:
                continue
            first = instants.searchsorted(row.start[low:high])
            stop = instants.searchsorted(row.end[low:high])
            sizes = np.diff(np.stack([first, stop], 1).ravel(), prepend=0, append=len(instants))
            kinds = np.zeros(len(sizes), np.uint8)
            kinds[1::2] = styled(row.style[low:high])
            paint = np.repeat(kinds, sizes)
            keep = (paint == 0) | ((paint == STYLE["user"]) & (style != 0))
            style = np.where(keep, style, paint)
        return style
