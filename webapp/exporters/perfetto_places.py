"""Process and thread ids of a run in a Chrome trace, and its times."""

from __future__ import annotations

from typing import Any

from lanescope.webapp.runs.run import Run, Thread

FIRST_LANE = 1_000_000_000
"""Thread ids that no thread has: of lanes that are added."""


class Places:
    """Process and thread ids of the trace: the run's own, but where two ranks have the same."""

    def __init__(self, run: Run) -> None:
        self._pids: dict[tuple[int, int], int] = {}
        for rank, pid in dict.fromkeys((t.rank, t.pid) for t in run.threads):
            taken = not pid or pid in self._pids.values()
            self._pids[rank, pid] = (rank + 1) * 10_000_000 + pid if taken else pid
        self._tids: dict[str, int] = {}
        used: set[tuple[int, int]] = set()
        for t in run.threads:
            place = self._pids[t.rank, t.pid], t.native_id
            own = bool(t.native_id) and place not in used
            used.add(place)
            self._tids[t.key] = t.native_id if own else FIRST_LANE + 1000 * t.ordinal

    def pid(self, rank: int, pid: int) -> int:
        """Returns the trace's number of a process."""
        return self._pids[rank, pid]

    def tid(self, thread: Thread) -> int:
        """Returns the trace's number of a thread."""
        return self._tids[thread.key]

    def of(self, run: Run, rank: int, thread: str) -> tuple[int, int] | None:
        """Returns the trace's numbers of process and thread; None: no such thread."""
        found = next((t for t in run.threads if (t.rank, t.thread) == (rank, thread)), None)
        return None if found is None else (self.pid(rank, found.pid), self.tid(found))

    def main(self, rank: int) -> int:
        """Returns the trace's number of a rank's own process."""
        return next(pid for (other, _), pid in self._pids.items() if other == rank)


def rows(run: Run, table: str, thread: Thread, columns: list[str]) -> list[dict[str, Any]]:
    """Returns the rows of a thread, as `Run.events` does, as dicts."""
    found: list[dict[str, Any]] = run.events(table, thread.rank, thread.thread, columns).to_pylist()
    return found


def us(ns: int) -> str:
    """Nanoseconds as a decimal number of microseconds."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"
