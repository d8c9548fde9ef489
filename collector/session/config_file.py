"""Reads the options of `lanescope record` from a file."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLE = "record"


def read_config(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Returns the options in a TOML file: those of its table [record], or of all of it.

    Keys have underscores; `names` are those that there are. Raises ValueError with one sentence.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is not TOML: {error}") from None
    found = table.get(_TABLE, table)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: {_TABLE} is {found!r}; it must be a table [{_TABLE}]")
    options = {name.replace("-", "_"): value for name, value in found.items()}
    for name, value in options.items():
        if name not in names:
            known = ", ".join(sorted(one.replace("_", "-") for one in names))
            raise ValueError(f"{path}: there is no option {name!r}; expected {known}")
        if isinstance(value, dict) or (
            isinstance(value, list) and not all(isinstance(one, str) for one in value)
        ):
            raise ValueError(
                f"{path}: {name} is {value!r}; it must be a text, a number, true, false or a list "
                "of texts"
            )
    return options
