"""Which ops are recorded: the deny list of ops that compute nothing, and the user's patterns."""

from __future__ import annotations

from fnmatch import fnmatchcase

from .record_kinds import NOT_COMPUTING


class OpFilter:
    """Decides by name. Exclusion by the user wins, then inclusion, then the deny list."""

    def __init__(self, include: tuple[str, ...], exclude: tuple[str, ...]) -> None:
        self._include = include
        self._exclude = exclude

    def wanted(self, name: str) -> bool:
        """Whether ops of that name (aten::mm) are recorded. Patterns are those of fnmatch."""
        if any(fnmatchcase(name, p) for p in self._exclude):
            return False
        if any(fnmatchcase(name, p) for p in self._include):
            return True
        return not any(fnmatchcase(name, p) for p in NOT_COMPUTING)
