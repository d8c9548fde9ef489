"""A recorded run: opens its directory or bundle, checks it, puts all ranks on one time axis.

`Run` is immutable. It reads rows when asked for them; opening looks at the manifest and the
catalogue only, or, without a catalogue, at the footers and the thread tables.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.steps import PHASE_COLUMNS, Steps, steps_of, training_start
from lanescope.webapp.runs import units
from lanescope.webapp.runs.clock_axis import Axis
from lanescope.webapp.runs.consistent_read import PartScan, read_moment
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.files import Files, files_of
from lanescope.webapp.runs.growing import is_live
from lanescope.webapp.runs.html_summary import EVENT_TABLES, run_html
from lanescope.webapp.runs.impossible_times import impossible_times
from lanescope.webapp.runs.parquet_parts import Part
from lanescope.webapp.runs.run_warnings import nothing_to_read, ranks_text, warnings_of
from lanescope.webapp.runs.table_reader import Rows
from lanescope.webapp.runs.threads import Thread, threads_of

__all__ = ["Run", "RunError", "Steps", "Thread", "open_run"]


_KEPT_TABLES = ("phase", "value", "sync", "gradient")
_KEPT_ROWS = 200_000
"""Rows up to which a run holds one of these tables in memory: some 15 MB."""


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One run, as every analysis and page sees it. Made by `open_run`."""

    files: Files
    title: str  # the path as it was given
    etag: str  # changes whenever the content of the run changes
    manifest: schema.Manifest
    ranks: tuple[int, ...]  # present and whole
    threads: tuple[Thread, ...]  # by rank, then process (the rank's own first), then ordinal
    notices: tuple[str, ...]  # sentences for the user, known without reading rows
    origin_ns: int  # instant of the first event on the axis
    duration_ns: int  # from the first event to the last
    counts: Mapping[str, int]  # rows per table
    size_bytes: int  # of the Parquet files read
    rows: Rows  # as the files hold them; `events` is what to ask
    # (rank, pid) -> ns: while it is recorded, each thread is read at another instant after this one
    read_at_ns: Mapping[tuple[int, int], int]

    def __repr__(self) -> str:
        return f"<run {self._facts}>"

    def _repr_html_(self) -> str:
        ranks = []
        for rank in self.ranks:
            counts = self.counts_of(rank)
            known = len(self.threads_of(rank)), len(self.steps(rank))
            ranks.append((rank, (*known, *(counts[name] for name in EVENT_TABLES))))
        return run_html(self._facts, ranks, self.warnings)

    @property
    def _facts(self) -> str:
        """`runs/a: 4 ranks, 12 steps, 1.24 s`; of an incomplete run says so."""
        steps = max((len(self.steps(rank)) for rank in self.ranks), default=0)
        facts = [
            units.counted(len(self.ranks), "rank"),
            units.counted(steps, "step"),
            units.duration(self.duration_ns),
            *([] if self.complete else ["not complete"]),
        ]
        return f"{self.title}: {', '.join(facts)}"

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user: what is missing, damaged or uncertain."""
        return (*self.notices, *impossible_times(self.rows))

    @property
    def path(self) -> Path:
        """The run's directory or bundle."""
        return self.files.folder or Path(self.files.place)

    @property
    def world_size(self) -> int:
        """Number of ranks the job had, recorded or not."""
        return self.manifest["world_size"]

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job that the run does not hold."""
        return tuple(sorted(set(range(self.world_size)) - set(self.ranks)))

    @property
    def complete(self) -> bool:
        """Every rank of the job is there, whole, and its processes were closed."""
        return self.manifest["complete"] and not self.missing_ranks

    @property
    def imported(self) -> bool:
        """It was made of files of another tool, which hold less than a recording does."""
        return bool(self.manifest["options"].get("imported"))

    @property
    def coverage(self) -> dict[str, int]:
        """What was dropped, filtered or not seen: reason -> count, summed over processes."""
        total: Counter[str] = Counter()
        for process in self.manifest["processes"]:
            total.update(process["coverage"])
        return dict(total)

    @property
    def dropped(self) -> int:
        """Events that were seen and could not be kept, of all ranks."""
        return sum(_dropped(process) for process in self.manifest["processes"])

    def dropped_of(self, rank: int) -> int:
        """Returns events of one rank that were seen and could not be kept."""
        return self._dropped_by_rank[rank]

    @cached_property
    def _dropped_by_rank(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for process in self.manifest["processes"]:
            found[process["rank"]] += _dropped(process)
        return found

    @property
    def clock_calibrated(self) -> bool:
        """All processes are on the axis by measurement: on one host, or by calibration."""
        processes = self.manifest["processes"]
        hosts = {process["clock"]["host"] for process in processes}
        return len(hosts) <= 1 or all(process["clock"]["calibrated"] for process in processes)

    @property
    def clock_uncertainty_ns(self) -> int:
        """Largest remaining error of any process's place on the axis, half-width."""
        return max((p["clock"]["uncertainty_ns"] for p in self.manifest["processes"]), default=0)

    def counts_of(self, rank: int) -> dict[str, int]:
        """Returns rows per table of one rank."""
        self._present(rank)
        parts = self.rows.parts
        return {name: sum(p.rows for p in parts.get((name, rank), ())) for name in schema.TABLES}

    def process(self, rank: int, pid: int) -> schema.Process | None:
        """Returns the manifest's entry of a process; None where it died before it was listed."""
        return self._processes.get((rank, pid))

    @cached_property
    def hosts(self) -> Mapping[int, str]:
        """Host names of the ranks: where each rank's own process ran."""
        found: dict[int, str] = {}
        for process in self.manifest["processes"]:
            if process["role"] == "rank" or process["rank"] not in found:
                found[process["rank"]] = process["host"]
        return {rank: found.get(rank, "unknown host") for rank in self.ranks}

    @cached_property
    def ranks_by_host(self) -> Mapping[str, Sequence[int]]:
        """Ranks on each host, in order."""
        found: dict[str, list[int]] = {}
        for rank, host in self.hosts.items():
            found.setdefault(host, []).append(rank)
        return found

    @cached_property
    def _processes(self) -> Mapping[tuple[int, int], schema.Process]:
        return {(one["rank"], one["pid"]): one for one in self.manifest["processes"]}

    def events(
        self,
        table: str,
        rank: int | None = None,
        thread: str | None = None,
        columns: Sequence[str] | None = None,
        window: tuple[int, int] | None = None,
        equal: tuple[str, int] | None = None,
    ) -> pa.Table:
        """Returns rows of a table of `schema`, of all ranks and threads or of the ones named.

        `window` [t0, t1) leaves only rows that have an instant in it, and reads no more of the
        files than the row groups they may be in; for tables whose rows have a duration. `equal`
        (column, value) does so by the value of a column of integers, for tables kept per thread.

        Columns are the schema's plus `rank` (int32) and, for tables kept per thread, `thread`
        (dictionary of text, "<pid>-<ordinal>"); `columns` chooses some of them and their order.
        `start_ns`, `time_ns`, `complete_ns` and `end_ns` are int64 nanoseconds on the run's axis
        relative to `origin_ns`, so 0 is the start of the run. Rows are sorted by rank, thread (in
        the order of `Run.threads`) and start, parents before children. A table the run does not
        hold is empty, with the right schema.

        Raises RunError for a table, column, rank or thread that does not exist, and for a file
        found damaged while it is read.
        """
        ranks = self._chosen(rank, thread)
        few = table in _KEPT_TABLES and self.counts[table] <= _KEPT_ROWS
        if few and thread is None and window is None and equal is None:
            found = self._kept(table, ranks)
            if set(columns or ()) <= {*found.column_names}:
                return found if columns is None else found.select(list(columns))
        return self.rows.read(table, ranks, thread, columns, window, equal)

    def pieces(
        self,
        table: str,
        rank: int | None = None,
        thread: str | None = None,
        columns: Sequence[str] = (),
        about: int | None = None,
    ) -> Iterator[pa.Table]:
        """Yields the rows that `events` gives, of a table kept per thread, a million or so at a
        time, or `about` so many.

        For analyses that need all rows of a run, which may be larger than memory. Each piece is of
        one thread, threads are in the order of `Run.threads`; rows of a thread are in the order of
        its files, which is only roughly that of time. Raises RunError as `events` does.
        """
        return self.rows.pieces(table, self._chosen(rank, thread), thread, columns, about)

    def rows_about(self, table: str, window: tuple[int, int]) -> int:
        """Returns about how many rows have an instant in a window, without reading any."""
        return self.rows.within(table, self.ranks, window)

    def threads_of(self, rank: int) -> tuple[Thread, ...]:
        """Returns threads of a rank, in the order of `threads`; none of an absent rank."""
        return self._by_rank.get(rank, ())

    def steps(self, rank: int) -> Steps:
        """Returns step boundaries of a rank.

        Step k ends where the last optimizer phase that carries step k ends, and starts where step
        k-1 ended. The first one, and one after a gap in the recording, starts with the first phase
        that carries its number. A step whose optimizer never finished does not count yet. A rank
        without optimizer phases takes the end of the last finished phase of each number instead,
        and of marks only where there is nothing else.

        Worked out once: that reads the phases of all threads, and many questions begin with it.
        """
        self._present(rank)
        if rank not in self._known_steps:
            self._known_steps[rank] = self._steps(rank)
        return self._known_steps[rank]

    @cached_property
    def training_start(self) -> int | None:
        """Start of the first phase of training of all ranks, ns; None without any."""
        listed = [self.rows.listed_training(rank) for rank in self.ranks]
        known = [of for of in listed if of is not None]
        if len(known) < len(listed):
            return training_start(self.events("phase", columns=["start_ns", "kind"]))
        return min((one for of in known for one in of), default=None)

    def know_steps(self, rank: int, steps: Steps) -> None:
        """Takes the steps of a rank that a worker worked out from the same files."""
        self._known_steps[rank] = steps

    def _steps(self, rank: int) -> Steps:
        listed = self.rows.listed_steps(rank)
        if listed is not None:
            return listed
        phases = self.events("phase", rank=rank, columns=[*PHASE_COLUMNS, "thread"])
        children = [t.thread for t in self.threads_of(rank) if t.role != "rank"]
        if children:
            theirs = pc.is_in(phases["thread"].cast(pa.string()), pa.array(children))
            phases = phases.filter(pc.invert(theirs))
        return steps_of(phases)

    def _kept(self, table: str, ranks: Sequence[int]) -> pa.Table:
        """Phases, values, sync events or gradients of ranks, read once: a dozen questions and each
        selected slice begin with them, and where threads are many, opening the file of each takes
        longer than all that is asked.
        """
        key = table, tuple(ranks)
        if key not in self._known_rows:
            several = [self._kept(table, (rank,)) for rank in ranks if len(ranks) > 1]
            found = pa.concat_tables(several or [self.rows.read(table, ranks)])
            self._known_rows[key] = found.unify_dictionaries().combine_chunks()
        return self._known_rows[key]

    def _chosen(self, rank: int | None, thread: str | None) -> Sequence[int]:
        """The ranks to read, once a rank and a thread that are named are found to exist."""
        ranks = self.ranks if rank is None else (self._present(rank),)
        if thread is not None and not any((one, thread) in self._known for one in ranks):
            known = [one.thread for one in self.threads if one.rank in ranks]
            raise RunError(f"no thread {thread!r}, expected one of {', '.join(known)}")
        return ranks

    @cached_property
    def _by_rank(self) -> Mapping[int, tuple[Thread, ...]]:
        found: dict[int, list[Thread]] = {}
        for thread in self.threads:
            found.setdefault(thread.rank, []).append(thread)
        return {rank: tuple(threads) for rank, threads in found.items()}

    @cached_property
    def _known_steps(self) -> dict[int, Steps]:
        return {}

    @cached_property
    def _known_rows(self) -> dict[tuple[str, tuple[int, ...]], pa.Table]:
        return {}

    @cached_property
    def _there(self) -> frozenset[int]:
        return frozenset(self.ranks)

    @cached_property
    def _known(self) -> frozenset[tuple[int, str]]:
        return frozenset((one.rank, one.thread) for one in self.threads)

    def _present(self, rank: int) -> int:
        if rank not in self._there:
            raise RunError(
                f"rank {rank}: no such rank; this run has {ranks_text(self.ranks)} of "
                f"{self.world_size}"
            )
        return rank


def open_run(path: str | os.PathLike[str]) -> Run:
    """Opens the run at `path`: a directory, a bundle, or the address of a bundle in a store.

    Raises RunError, with one sentence, where there is no run, where it is of a future format,
    where its manifest cannot be believed, and where nothing of it can be read. A rank with a
    damaged file is left out; `Run.warnings` says so.
    """
    return run_of(files_of(path), os.fspath(path))


def run_of(files: Files, title: str) -> Run:
    """Returns the run of these files, as `open_run` promises it."""
    live = is_live(files)
    manifest, raw, found, left = read_moment(files)
    axes = {(p["rank"], p["pid"]): Axis.of(p) for p in manifest["processes"]}
    read_at = {(p["rank"], p["pid"]): p["end_ns"] for p in manifest["processes"] if live}
    parts: dict[int, list[Part]] = {}
    # Recovered thread tables first: they know of the thread's end, the files of a part of it.
    for part in [*left.parts, *found.parts]:
        parts.setdefault(part.rank, []).append(part)
    processes: dict[int, dict[int, schema.Process]] = {}
    for process in manifest["processes"]:
        processes.setdefault(process["rank"], {})[process["pid"]] = process
    threads: list[Thread] = []
    for rank in sorted(set(parts) - set(found.damage)):
        try:
            threads += threads_of(rank, parts[rank], processes.get(rank, {}), axes)
        except RunError as error:
            found.damage[rank] = str(error)
    ranks = tuple(sorted(set(parts) - set(found.damage)))
    used = [part for rank in ranks for part in parts[rank]]
    if not any(part.rows for part in used):
        raise RunError(nothing_to_read(files.where, manifest, found, left.lost))

    origin = min((t.start_ns for t in threads), default=0)
    end = max((t.end_ns for t in threads), default=origin)
    counts = dict.fromkeys(schema.TABLES, 0)
    tables: dict[tuple[str, int], list[Part]] = {}
    for part in used:
        counts[part.table] += part.rows
        tables.setdefault((part.table, part.rank), []).append(part)
    placed = tuple(thread.relative_to(origin) for thread in threads)
    return Run(
        files=files,
        title=title,
        etag=_etag(raw, found, used),
        manifest=manifest,
        ranks=ranks,
        threads=placed,
        notices=(*warnings_of(manifest, found, ranks, end - origin), *left.lost),
        origin_ns=origin,
        duration_ns=end - origin,
        counts=MappingProxyType(counts),
        size_bytes=sum(part.bytes for part in used),
        rows=Rows(MappingProxyType(tables), MappingProxyType(axes), placed, origin),
        read_at_ns={at: axes[at].instant(instant) - origin for at, instant in read_at.items()},
    )


def _dropped(process: schema.Process) -> int:
    return sum(n for reason, n in process["coverage"].items() if reason.startswith("dropped"))


def _etag(raw: bytes, found: PartScan, used: list[Part]) -> str:
    """Hash of everything that decides the content: manifest, parts in use, damaged parts."""
    lines = [f"{part.table} {part.rank} {part.thread} {part.rows} {part.bytes}\n" for part in used]
    lines += [f"{rank} {damage}\n" for rank, damage in sorted(found.damage.items())]
    return hashlib.sha256(raw + "".join(lines).encode()).hexdigest()[:16]
