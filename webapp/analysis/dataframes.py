"""From Arrow to pandas and JSON, the same way for every analysis."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa

from lanescope.webapp.runs.typed_json import json_number


def to_frame(table: pa.Table) -> pd.DataFrame:
    """A data frame with plain texts instead of categories, whose codes differ between runs."""
    for position, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            plain = table.column(position).cast(field.type.value_type)
            table = table.set_column(position, field.name, plain)
    return table.to_pandas()


def ends_ns(slices: pd.DataFrame, until_ns: int) -> pd.Series:
    """Ends of rows with start_ns and duration_ns; of what had not ended, `until_ns`. int64, ns."""
    length = slices["duration_ns"].fillna(until_ns - slices["start_ns"])
    return slices["start_ns"] + length.astype("int64")


def json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as JSON objects."""
    rows: list[dict[str, Any]] = frame.astype("object").to_dict("records")
    return [
        {str(k): json_number(v) if isinstance(v, float) else v for k, v in row.items()}
        for row in rows
    ]
