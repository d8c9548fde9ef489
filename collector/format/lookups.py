"""Tables of a rank that rows of other tables refer to."""

import pyarrow as pa

from .columns import FRAME, INT32, INT64, PID, TEXT, THREAD_NAME, Column, Table

STACK = Table(
    "stack",
    False,
    "Python stacks, innermost frame first.",
    (
        Column("stack", INT32, "", "id within the rank"),
        Column("frames", pa.list_(FRAME), "", "file, line, function"),
    ),
)

SOURCE = Table(
    "source",
    False,
    "Lines of the program that stacks and marks name, and three on each side of them; on rank 0 "
    "all lines of short files; as they were when the program started. The place behind the last "
    "line of a file has no text.",
    (
        Column("file", TEXT, "", "as in the stack table", since=4),
        Column("line", INT32, "1", "number of the line, from 1", since=4),
        Column(
            "text",
            pa.string(),
            "",
            "the line, at most 200 characters; null: the file ends, has changed since the program "
            "started, or programs of the rank had different lines here",
            since=4,
        ),
    ),
)

STORAGE = Table(
    "storage",
    False,
    "Memory of named tensors; from level access on.",
    (
        PID,
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
        PID,
        Column("native_id", INT64, "", "the operating system's thread id; 0: a stream"),
        THREAD_NAME,
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
