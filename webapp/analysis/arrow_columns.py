"""Columns of the largest tables: when rows end, rows by their texts, which texts there are.

A column of texts holds codes into a few of them, so a question about a text is asked once for each
text, and its answer is looked up for a hundred million rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.runs.run import Run


def ends_ns(rows: pa.Table, run: Run) -> npt.NDArray[np.int64]:
    """Ends of rows with start_ns and duration_ns; of what had not ended, the run's. Nanoseconds."""
    ends = pc.add(rows["start_ns"], rows["duration_ns"]).fill_null(run.duration_ns)
    numbers: npt.NDArray[np.int64] = ends.to_numpy()
    return numbers


def having(column: pa.ChunkedArray, test: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """Whether the text of each row fulfils a test; null counts as the empty text."""
    parts = [np.empty(0, np.bool_)]
    for chunk in column.chunks:
        texts = [*chunk.dictionary.to_pylist(), None]
        fulfils = np.array([bool(test(text or "")) for text in texts])
        codes = chunk.indices.fill_null(len(texts) - 1)
        parts.append(fulfils[codes.to_numpy(zero_copy_only=False)])
    return np.concatenate(parts)


@lru_cache(maxsize=64)
def texts_of(run: Run, table: str, column: str, rank: int | None = None) -> frozenset[str]:
    """The texts that occur in a column of a table kept per thread, of one rank or of all."""
    found: set[str] = set()
    for piece in run.pieces(table, rank, columns=[column]):
        for chunk in piece[column].chunks:
            used = chunk.dictionary.take(pc.unique(chunk.indices).drop_null())
            found.update(text for text in used.to_pylist() if text is not None)
    return frozenset(found)
