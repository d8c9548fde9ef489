"""Records datasets that the program changes while persistent workers have an older copy."""

from __future__ import annotations

import weakref
from typing import Any

from ...format.names import STALE_DATASET
from ...recorder.recorder import Recorder

_PLAIN = (int, float, str, bool)


class WorkerCopies:
    """Writes a value named STALE_DATASET as an iteration begins."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._copied: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._counts: dict[str, int] = {}

    def begins(self, iterator: Any) -> None:
        """Compares the dataset of an iterator with what it was as its workers started."""
        if not getattr(iterator, "_persistent_workers", False):
            return
        dataset = getattr(iterator, "_dataset", None)
        now = {name: one for name, one in _attributes(dataset) if type(one) in _PLAIN}
        copied = self._copied.setdefault(iterator, now)
        for name, one in now.items():
            if name in copied and copied[name] != one:
                said = f"{STALE_DATASET}{type(dataset).__name__}/{name}"
                self._counts[said] = self._counts.get(said, 0) + 1
                self._recorder.value(said, float(self._counts[said]))


def _attributes(dataset: Any) -> list[tuple[str, Any]]:
    return list(getattr(dataset, "__dict__", {}).items())
