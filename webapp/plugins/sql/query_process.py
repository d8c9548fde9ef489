"""Answers one SQL question in a process of its own, which can reach nothing but the tables given.

    python -m lanescope.webapp.plugins.sql.query_process < QUESTION > ANSWER

The question is JSON: `{"query": str, "tables": {name: path of an Arrow file}, "rows": int,
"memory_mb": int, "seconds": int}`. The answer is an Arrow stream of at most `rows` rows (exit 0),
or one sentence of what is wrong with the question (exit 3). DuckDB is locked before it sees the
query; what it might still miss, the limits of the process catch: it can write no file, and neither
its memory nor its time grows past the question's.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

import duckdb
import pyarrow as pa

from lanescope.webapp.plugins.sql import REFUSED

BEYOND_POOL = 2
"""DuckDB counts the pages it pools; texts under way, threads and Python come on top."""

_MAX_BYTES = 64 << 20
"""Of an answer: the server takes it into its memory."""

LOCKS = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "threads": "2",
    "max_temp_directory_size": "'0KB'",
}
"""Set before the query; `lock_configuration` then keeps them."""


_NESTED = {"list", "array", "struct", "map"}
_EXACT = {"hugeint", "decimal"}  # JSON has no such number
_PORTABLE = {
    "boolean",
    "tinyint",
    "smallint",
    "integer",
    "bigint",
    "utinyint",
    "usmallint",
    "uinteger",
    "ubigint",
    "float",
    "double",
    "varchar",
    "enum",
    "null",
}
"""Types of DuckDB that JSON, CSV and Parquet hold; all others become texts."""


def main() -> int:
    """Reads the question, writes the answer."""
    asked = json.load(sys.stdin)
    memory = asked["memory_mb"] << 20
    resource.setrlimit(resource.RLIMIT_DATA, (BEYOND_POOL * memory, BEYOND_POOL * memory))
    resource.setrlimit(resource.RLIMIT_CPU, (4 * asked["seconds"], 4 * asked["seconds"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        table = _answered(asked)
    except (duckdb.Error, Refused, pa.ArrowException, MemoryError) as error:
        print(_sentence(error))
        return REFUSED
    with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
        stream.write_table(table)
    return 0


class Refused(Exception):
    """Raised for a query that may not run here."""


def _answered(asked: dict[str, Any]) -> pa.Table:
    # DuckDB names its folders in messages and settings: none of whose home this is, nor of ours.
    os.environ["HOME"] = "/"
    connection = duckdb.connect(":memory:", config={"temp_directory": ""})
    for name, path in asked["tables"].items():
        connection.register(name, pa.ipc.open_file(pa.memory_map(path)).read_all())
    connection.execute(f"SET memory_limit = '{int(asked['memory_mb'])}MB'")
    for name, value in LOCKS.items():
        connection.execute(f"SET {name} = {value}")
    connection.execute("SET lock_configuration = true")
    statements = connection.extract_statements(asked["query"])
    if len(statements) != 1:
        raise Refused(f"expected one statement, found {len(statements)}")
    kind = statements[0].type
    if kind != duckdb.StatementType.SELECT:
        raise Refused(f"only SELECT is answered here, this is {kind.name}")
    batches = []
    size = 0
    left = int(asked["rows"])
    reader = _portable(connection.sql(statements[0])).to_arrow_reader(min(left, 100_000))
    for batch in reader:
        batches.append(batch.slice(0, left))
        left -= len(batches[-1])
        size += batch.nbytes
        if size > _MAX_BYTES:
            raise Refused(f"the answer has more than {_MAX_BYTES >> 20} MB; choose fewer columns")
        if left <= 0:
            break
    return pa.Table.from_batches(batches, reader.schema)


def _portable(answer: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The answer with columns that other programs cannot hold as texts, as DuckDB writes them.

    Blobs within lists, intervals, infinite dates and the like have no counterpart in JSON, CSV or
    Parquet, or, as a UHUGEINT, a wrong one in Arrow.
    """
    if all(_is_portable(kind) for kind in answer.types):
        return answer
    chosen = []
    for number, (name, kind) in enumerate(zip(answer.columns, answer.types, strict=True), 1):
        value = f"#{number}" if _is_portable(kind) else f"CAST(#{number} AS VARCHAR)"
        quoted = name.replace('"', '""')
        chosen.append(f'{value} AS "{quoted}"')
    return answer.project(", ".join(chosen))


def _is_portable(kind: Any, *, nested: bool = False) -> bool:
    if kind.id in _NESTED:
        inner = [one for _, one in kind.children if hasattr(one, "id")]
        return all(_is_portable(one, nested=True) for one in inner)
    return kind.id in _PORTABLE or (kind.id in _EXACT and not nested)


def _sentence(error: BaseException) -> str:
    """What DuckDB says, without the picture of the query that follows."""
    if isinstance(error, (MemoryError, duckdb.OutOfMemoryException)):
        return "the query needs more memory than a query may have"
    return " ".join(str(error).split("\n\nLINE ")[0].split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
