"""What rows of other tables refer to, per rank."""

from __future__ import annotations

import pyarrow as pa

from .columns import FRAME, INT32, INT64, TEXT, Column, Table

STACK = Table(
    "stack",
    False,
    "Python stacks, innermost frame first.",
    (
        Column("stack", INT32, "", "id within the rank"),
        Column("frames", pa.list_(FRAME), "", "file, line, function"),
    ),
)

STORAGE = Table(
    "storage",
    False,
    "Where named tensors lie in memory; from level access on.",
    (
        Column("pid", INT64, "", "process"),
        Column("storage", INT64, "address", "first byte of the storage, as in the access table"),
        Column("name", pa.string(), "", "parameter or buffer in it, as in the gradient table"),
    ),
)

THREAD = Table(
    "thread",
    False,
    "Threads of all processes of the rank, and streams of devices that they used.",
    (
        Column("thread", pa.string(), "", "id: <pid>-<ordinal>, as in the folder's name"),
        Column("pid", INT64, "", "process"),
        Column("native_id", INT64, "", "the operating system's thread id; 0: a stream"),
        Column("name", pa.string(), "", "name in Python, or the operating system's"),
        Column("kind", TEXT, "", "one of ThreadKind"),
        Column("start_ns", INT64, "ns", "first event"),
        Column("end_ns", INT64, "ns", "last event"),
    ),
)

MODULE = Table(
    "module",
    False,
    "Modules that were called, with their class and parameters.",
    (
        Column("path", pa.string(), "", "path within the outermost module, wrappers removed"),
        Column("class", pa.string(), "", "qualified class name"),
        Column("parameters", INT64, "elements", "elements of its own parameters, without children"),
    ),
)
