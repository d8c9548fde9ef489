"""SQL over a run: what it answers, and that a query reaches nothing but the run's tables."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from flask.testing import FlaskClient

from lanescope.webapp.analysis.links import step_link
from lanescope.webapp.plugins.sql.page import (
    EXACT,
    EXAMPLES,
    SHOWN,
    answered,
    places_of,
    rows_of,
)
from lanescope.webapp.plugins.sql.queries import MAX_CHARACTERS, Limits, Queries, QueryError
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui.context import Context

HOST = {"Host": "127.0.0.1:8050"}


@pytest.fixture(scope="module")
def queries(run: Run) -> Queries:
    return Queries(run, Limits(seconds=20, memory_mb=1024))


def test_answers_of_events_and_of_analyses(run: Run, queries: Queries) -> None:
    answer = queries.answer(
        """SELECT (SELECT count(*) FROM op) AS ops, (SELECT sum(duration_ns) FROM op) AS ns,
                  (SELECT max(rate) FROM overlap) AS rate,
                  (SELECT frames[1].line FROM stack LIMIT 1) AS line,
                  (SELECT count(*) FROM tensor) AS none""",
        10,
    )
    ops = run.events("op", columns=["duration_ns"])
    (row,) = rows_of(answer)
    total = sum(ops["duration_ns"].to_pylist())
    assert list(row.values()) == [ops.num_rows, total, pytest.approx(4 / 4.5), 12, 0]


def test_every_example_has_an_answer(queries: Queries) -> None:
    for query in EXAMPLES.values():
        assert queries.answer(query, 10).num_rows > 0, query


FORBIDDEN = {
    "SELECT * FROM read_csv('/etc/passwd')": "file system operations are disabled",
    "SELECT * FROM glob('/*')": "file system operations are disabled",
    "COPY op TO 'stolen.csv'": "only SELECT is answered here, this is COPY",
    "ATTACH '/tmp/other.db'": "only SELECT is answered here, this is ATTACH",
    "INSTALL httpfs": "only SELECT is answered here, this is LOAD",
    "PRAGMA enable_external_access=true": "only SELECT is answered here",
    "SELECT 1; COPY op TO 'stolen.csv'": "expected one statement, found 2",
    "SELECT * FROM queries": "queries does not exist",  # not a variable of Python's either
    "SELECT repeat('x', 3000000000)": "more memory than a query may have",
    "SELECT nothing FROM op": 'column "nothing" not found',
    "SELECT repeat('x', 3500000 + range) FROM range(20)": "more than 64 MB",
}


@pytest.mark.parametrize("query", FORBIDDEN)
def test_queries_that_are_refused_and_the_messages(queries: Queries, query: str) -> None:
    with pytest.raises(QueryError) as caught:
        queries.answer(query, 1000)
    assert FORBIDDEN[query] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_no_message_shows_where_the_server_has_its_files(queries: Queries) -> None:
    for query in ("SELECT * FROM duckdb_secrets()", "FROM duckdb_extensions()"):
        with pytest.raises(QueryError) as error:
            queries.answer(query, 10)
        assert str(Path.home()) not in str(error.value)
    answer = queries.answer("SELECT CAST(COLUMNS(*) AS VARCHAR) FROM duckdb_settings()", 1000)
    values = str(answer.to_pydict())
    assert str(Path.home()) not in values
    assert tempfile.gettempdir() not in values


def test_a_query_without_end_is_stopped(run: Run) -> None:
    endless = "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t) SELECT sum(i) FROM t"
    with pytest.raises(QueryError, match="stopped after 1 s"):
        Queries(run, Limits(seconds=1)).answer(endless, 10)


def test_refused_before_anything_is_started(run: Run, queries: Queries) -> None:
    with pytest.raises(QueryError, match="there is no query"):
        queries.answer("  ", 10)
    with pytest.raises(QueryError, match=r"more than 20.000 characters"):
        queries.answer("x" * (MAX_CHARACTERS + 1), 10)


def test_the_files_go_with_the_queries(run: Run) -> None:
    queries = Queries(run)
    queries.answer("SELECT 1", 1)
    folder = Path(queries._folder)
    assert list(folder.glob("*.arrow"))
    del queries
    assert not folder.exists()


def test_values_come_to_the_page_unchanged_or_as_text(run: Run) -> None:
    answer = pa.table(
        {
            "n": [EXACT, EXACT + 1, None],
            "x": [0.5, float("nan"), float("inf")],
            "list": [[1], [], None],
        }
    )
    assert rows_of(answer) == [
        {"c0": EXACT, "c1": 0.5, "c2": "[1]"},
        {"c0": str(EXACT + 1), "c1": "nan", "c2": "[]"},
        {"c0": None, "c1": "inf", "c2": None},
    ]
    many = pa.table({"n": range(SHOWN + 1)})
    assert len(rows_of(many)) == SHOWN
    assert (
        f"the first {units.count(SHOWN)} rows"
        in answered(many, "SELECT 1", Context(run))[0].children[0]
    )


def test_rows_lead_to_their_place(run: Run) -> None:
    context = Context(run)
    lead = {"rank": [1], "thread": ["7-0"], "start_ns": [1000], "duration_ns": [400]}
    assert places_of(pa.table(lead), context) == ["/timeline?t=800-1600&at=1%2F7-0@1000"]
    (step,) = places_of(pa.table({"rank": [0], "step": [2]}), context)
    assert step == step_link(run, 0, 2) != "/timeline"
    assert places_of(pa.table({"name": ["x"], "calls": [3]}), context) == [None]
    assert places_of(pa.table({"rank": [None], "step": [None]}), context) == [None]


KINDS = {
    "['\\xFF'::BLOB, NULL]": r"['\\xFF', NULL]",
    "'a\\xFF'::BLOB": r"a\xFF",
    "{'a': 1, 'b': '\\xFF'::BLOB}": r"{'a': 1, 'b': '\\xFF'}",
    "MAP {'k': 'v'}": '[["k", "v"]]',
    "MAP {1: ['\\xFF'::BLOB]}": r"{1=['\\xFF']}",
    "union_value(num := 2)": "2",
    "['10101'::BIT]": "[10101]",
    "INTERVAL 3 DAY + INTERVAL 2 MONTH": "2 months 3 days",
    "170141183460469231731687303715884105727::HUGEINT": str(2**127 - 1),
    "[170141183460469231731687303715884105727::HUGEINT]": f"[{2**127 - 1}]",
    "340282366920938463463374607431768211455::UHUGEINT": str(2**128 - 1),
    "'infinity'::TIMESTAMP": "infinity",
    "[DATE '99999-01-01']": "[99999-01-01]",
    "'-inf'::DOUBLE": "-inf",
    "['inf'::DOUBLE, 'nan'::DOUBLE]": '["Infinity", "NaN"]',
    "[1.5::DECIMAL(10, 2)]": "[1.50]",
    "[['<b>'], []]": '[["<b>"], []]',
    "TIMETZ '12:00:00+02'": "12:00:00+02",
    "NULL": None,
}
"""Values of DuckDB's types that are none of a table's, and what they are shown as."""


@pytest.mark.slow
def test_every_type_of_value_is_shown_and_downloaded(
    run: Run, queries: Queries, client: FlaskClient
) -> None:
    # A query may give two columns the same name.
    query = "SELECT " + ", ".join(f"{value} AS v" for value in KINDS)
    answer = queries.answer(query, 10)
    (row,) = rows_of(answer)
    assert dict(zip(KINDS, row.values(), strict=True)) == KINDS
    assert answered(answer, query, Context(run))
    for kind in ("csv", "parquet"):
        file = client.get(f"/query.{kind}", query_string={"sql": query}, headers=HOST)
        assert file.status_code == 200, file.get_data(as_text=True)
        assert file.content_length


def test_downloads(client: FlaskClient) -> None:
    query = {"sql": "SELECT '=1+1' AS formula, 7 AS n"}
    csv = client.get("/query.csv", query_string=query, headers=HOST)
    assert "attachment" in csv.headers["Content-Disposition"]
    found = pyarrow.csv.read_csv(io.BytesIO(csv.data)).to_pylist()
    assert found == [{"formula": "'=1+1", "n": 7}]
    parquet = client.get("/query.parquet", query_string=query, headers=HOST)
    assert pq.read_table(io.BytesIO(parquet.data)).to_pylist() == [{"formula": "=1+1", "n": 7}]
    wrong = client.get("/query.csv", query_string={"sql": "SELEC"}, headers=HOST)
    assert wrong.status_code == 400
    assert "syntax error" in wrong.get_json()["error"]
    assert client.get("/query.exe", query_string=query, headers=HOST).status_code == 404
