"""The one error an import ends with."""

from __future__ import annotations


class Refused(ValueError):
    """A file that cannot be imported: what was found, what was expected, what to do."""
