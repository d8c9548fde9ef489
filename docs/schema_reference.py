"""Writes the tables of run-format.md from the schema, and those of checks.md from the plugins.

    python docs/schema_reference.py

The text around the tables is written by hand; what stands between the markers is not. A test
fails when the two disagree.
"""

from __future__ import annotations

import enum
from pathlib import Path

import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.webapp.analysis.plugin import Kind, Question, plugins, questions

PAGE = Path(__file__).with_name("run-format.md")
BEGIN = "<!-- tables: made by docs/schema_reference.py -->"
CHECKS = Path(__file__).with_name("checks.md")
BEGIN_KINDS = "<!-- kinds: made by docs/schema_reference.py -->"
BEGIN_LIMITS = "<!-- limits: made by docs/schema_reference.py -->"
BEGIN_RECALL = "<!-- recall: made by python -m tests.faults --write -->"
END = "<!-- end of tables -->"


def type_name(kind: pa.DataType) -> str:
    """`int64`, `text` (dictionary-encoded string), `list of ...`: short enough for a column."""
    if pa.types.is_dictionary(kind):
        return "text"
    if pa.types.is_string(kind):
        return "string"
    if pa.types.is_list(kind):
        return f"list of ({type_name(kind.value_type)})"
    if pa.types.is_struct(kind):
        return ", ".join(f"{field.name} {type_name(field.type)}" for field in kind)
    return str(kind)


def cell(text: str) -> str:
    """Text as it may stand in a table's cell."""
    return text.replace("|", "\\|")


def table_section(table: schema.Table) -> str:
    """Heading, meaning, where its files are, and one row per column."""
    folder = "rank=R/thread=T/" if table.per_thread else "rank=R/"
    file = f"{table.name}-00000.parquet" if table.per_thread else f"{table.name}.parquet"
    rows = "\n".join(
        f"| `{c.name}` | {type_name(c.type)} | {c.unit} | {cell(c.doc)} | {c.since} |"
        for c in table.columns
    )
    return (
        f"### {table.name}\n\n{table.doc} Files: `{folder}{file}`.\n\n"
        f"| column | type | unit | meaning | since |\n|---|---|---|---|---|\n{rows}\n"
    )


def kinds_section(kinds: type[enum.IntEnum]) -> str:
    """The words an enumerated column may hold."""
    doc = (kinds.__doc__ or "").strip().partition("\n")[0]
    names = ", ".join(f"`{kind.name}`" for kind in kinds)
    return f"- **{kinds.__name__}.** {doc} Values: {names}.\n"


def reference() -> str:
    """Everything between the markers."""
    kinds = (schema.OpScope, schema.PhaseKind, schema.SyncKind, schema.ThreadKind)
    tables = "\n".join(table_section(table) for table in schema.TABLES.values())
    words = "".join(kinds_section(kind) for kind in kinds)
    return f"Format version {schema.FORMAT_VERSION}.\n\n{tables}\n### Fixed words\n\n{words}"


def findings_table() -> str:
    """Every kind of finding, and where it is explained."""
    rows = "".join(f"| `{kind.name}` | {_explained(kind)} |\n" for kind in _kinds())
    return f"| kind | explained in |\n|---|---|\n{rows}"


def limits_table() -> str:
    """Every check by kind of its findings: what a run has to hold for it, and which faults of its
    kind it cannot see."""
    order = [kind.name for kind in _kinds()]
    asked = sorted(_asked(), key=lambda one: min(map(order.index, one.kinds)))
    rows = "".join(
        f"| {one.text}{' (`--baseline`)' * one.baseline} "
        f"| {', '.join(f'`{kind}`' for kind in one.kinds)} "
        f"| {_needs(one)} | {one.misses or '-'} |\n"
        for one in asked
    )
    return f"| check | kind | needs | can miss |\n|---|---|---|---|\n{rows}"


def _asked() -> tuple[Question, ...]:
    return *questions(), *questions(baseline=True)


def _kinds() -> list[Kind]:
    """Kinds of findings in the order in which they are asked for."""
    order = list(dict.fromkeys(kind for one in _asked() for kind in one.kinds))
    known = [kind for plugin in plugins() for kind in plugin.kinds if kind.name in order]
    return sorted(known, key=lambda kind: order.index(kind.name))


def _needs(question: Question) -> str:
    return "; ".join(filter(None, (question.needs, question.native * "the native engine"))) or "-"


def _explained(kind: Kind) -> str:
    page, _, section = kind.docs.partition("#")
    if page == CHECKS.name:
        return f"[below](#{section})"
    return f"[{page.removesuffix('.md').capitalize()}]({kind.docs})"


def updated(page: str) -> str:
    """The page on the format with current tables."""
    return _between(page, BEGIN, reference())


def updated_checks(page: str) -> str:
    """The page on checks with its current tables of kinds and of checks."""
    return _between(_between(page, BEGIN_KINDS, findings_table()), BEGIN_LIMITS, limits_table())


def updated_recall(page: str, table: str) -> str:
    """The page on checks with a table of the findings in the project's own catalogue of faults."""
    return _between(page, BEGIN_RECALL, table)


def _between(page: str, mark: str, text: str) -> str:
    """Puts a text between the markers. Raises ValueError where they are missing."""
    before, begin, rest = page.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"needs the markers {mark!r} and {END!r}")
    return f"{before}{mark}\n\n{text}\n{END}{after}"


if __name__ == "__main__":
    for path, made in ((PAGE, updated), (CHECKS, updated_checks)):
        path.write_text(made(path.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.name}: {len(schema.TABLES)} tables, {CHECKS.name}: the kinds of findings")
