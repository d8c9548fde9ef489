"""Settings of the reader: limits, and accepted findings.

Read from `--settings FILE`, or else from the first there is of `RUN/lanescope.toml`, and, in the
current folder, `lanescope.toml` and `[tool.lanescope]` of `pyproject.toml`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lanescope.webapp.analysis.plugin import metric, metrics
from lanescope.webapp.runs.errors import RunError, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FILE = "lanescope.toml"
PROJECT = "pyproject.toml"

_MAX_BYTES = 1 << 20
_MAX_IN_LINE = 1000
"""A run may bring its settings from a stranger, and a name of many parts takes the square of them
in memory."""


@dataclass(frozen=True)
class Allowed:
    """Accepted findings: all patterns that are given (as of file names) must match."""

    kind: str = ""
    tensor: str = ""
    op: str = ""
    where: str = ""  # train.py:12 or train.py:*
    reason: str = ""

    def covers(self, kind: str, named: dict[str, set[str]]) -> bool:
        """Returns whether a finding of that kind is meant; `named`: its tensors, ops and places."""
        if self.kind and not fnmatchcase(kind, self.kind):
            return False
        return all(
            any(fnmatchcase(name, pattern) for name in named[what])
            for what in ("tensor", "op", "where")
            if (pattern := getattr(self, what))
        )


@dataclass(frozen=True)
class Settings:
    """All of them; without a file, the defaults."""

    limits: Mapping[str, float] = field(default_factory=dict)
    """Metric -> limit, of those that have another one than the default. Shares are parts of 1."""
    allowed: tuple[Allowed, ...] = ()
    source: str = ""  # the file they are from; empty: defaults

    def limit(self, name: str) -> float:
        """Returns what a metric is held against."""
        return self.limits[name] if name in self.limits else metric(name).limit


def load_settings(run: Path, given: Path | None = None, folder: Path | None = None) -> Settings:
    """Returns the settings for the run at `run`; `folder` is the current one unless it is given.

    RunError for a file that cannot be read, and for unknown settings.
    """
    if given is not None:
        return _read(given, _table(given))
    here = _current() if folder is None else folder
    for path in (run / _FILE, *([] if here is None else [here / _FILE])):
        if path.is_file():
            return _read(path, _table(path))
    project = None if here is None else here / PROJECT
    if project is not None and project.is_file():
        tool = _table(project).get("tool", {})
        if isinstance(tool, dict) and "lanescope" in tool:
            return _read(project, tool["lanescope"])
    return Settings()


def _current() -> Path | None:
    """The current folder; None where it was removed, or may not be looked at."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _table(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        longest = 0 if path.name == PROJECT else max(map(len, data.split(b"\n")))
        if len(data) > _MAX_BYTES or longest > _MAX_IN_LINE:
            raise RunError(
                f"{path}: settings have more than {_MAX_BYTES} bytes, or {_MAX_IN_LINE} in a line"
            )
        return tomllib.loads(data.decode())
    except OSError as error:
        raise RunError(f"{path}: settings cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{path}: is not TOML: {error}") from None


def _read(path: Path, table: Any) -> Settings:
    known = _known(path, "a settings file", table, ("limits", "allow"))
    names = tuple(metric.name for metric in metrics() if metric.bound)
    limits = _known(path, "[limits]", known.get("limits", {}), names)
    entries = known.get("allow", [])
    if not isinstance(entries, list):
        raise RunError(f"{path}: allow is {shown(entries)}, expected entries [[allow]]")
    allowed = []
    for entry in entries:
        texts = _known(path, "[[allow]]", entry, tuple(one.name for one in fields(Allowed)))
        wrong = next((v for v in texts.values() if not isinstance(v, str)), None)
        if wrong is not None or not set(texts) - {"reason"}:
            raise RunError(
                f"{path}: [[allow]] has {shown(entry if wrong is None else wrong)}, expected texts "
                "for one or more of kind, tensor, op, where, and a reason"
            )
        allowed.append(Allowed(**texts))
    values = {name: _share(path, name, value) for name, value in limits.items()}
    return Settings(values, tuple(allowed), str(path))


def _known(path: Path, what: str, table: Any, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise RunError(f"{path}: {what} is {shown(table)}, expected a table")
    for name in table:
        if name not in names:
            raise RunError(f"{path}: {what} has no {name!r}, expected {', '.join(names)}")
    return table


def _share(path: Path, name: str, value: Any) -> float:
    """0.05, "0.05" or "5 %"."""
    number = value
    if isinstance(value, str):
        text = value.strip()
        try:
            number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            number = None
    whole = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not whole or not 0 <= number <= 1:
        raise RunError(f'{path}: {name} = {shown(value)}, expected 0 to 1, or "5 %"')
    return float(number)
