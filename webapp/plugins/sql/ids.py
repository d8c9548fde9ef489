"""Ids of the page's components: callbacks, scripts and tests name the same ones."""

SQL_EXAMPLE = "sql-example"
SQL_QUERY = "sql-query"
SQL_RUN = "sql-run"
SQL_ANSWER = "sql-answer"
SQL_TABLE = "sql-table"
