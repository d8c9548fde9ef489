"""Names the extra of the package that an import misses."""

from __future__ import annotations

from importlib.util import find_spec

from lanescope.webapp.runs.errors import RunError

EXTRAS = {
    "view": ("pandas", "dash", "plotly", "dash_ag_grid", "duckdb", "flask", "werkzeug", "waitress"),
    "record": ("torch",),
    "cluster": ("dask", "distributed"),
}
"""Extra -> the modules that it brings, of those that the base package does without."""


def need_extra(extra: str, who: str) -> None:
    """Raises RunError where a module of an extra is not installed; imports none."""
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            error = missing_extra(ImportError(name=module), who)
            assert error is not None
            raise error


def missing_extra(error: ImportError, who: str) -> RunError | None:
    """Returns the sentence to print for an import that failed; None if no extra brings it.

    `who`: what needed it, as people call it.
    """
    module = (error.name or "").partition(".")[0]
    extra = next((name for name, modules in EXTRAS.items() if module in modules), None)
    if extra is None:
        return None
    return RunError(
        f"{who} needs {module}, which is not installed; install it with: "
        f"pip install 'lanescope[{extra}]'"
    )
