"""One access of a thread to a tensor, as findings describe it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.stack_frames import innermost_place
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array


@dataclass(frozen=True)
class MemoryAccess:
    """An operator that read or wrote a tensor. Times are ns from the start of the run."""

    thread: str
    op: str
    module: str
    phase: str
    start_ns: int
    end_ns: int
    write: bool
    step: int
    stack: tuple[str, ...]  # "file:line function", innermost first; empty: not captured
    stream: str = ""  # of the device, where streams identify it

    @property
    def where(self) -> str | None:
        """The program's line, "file.py:12"; None where no stack was captured."""
        return innermost_place(self.stack)

    @property
    def place(self) -> str:
        """The same for a sentence: the module, where the line is not known."""
        return self.where or (f"module {self.module}" if self.module else "an unknown place")

    def to_json(self) -> dict[str, Any]:
        """Returns the access as evidence of a finding."""
        return {
            "op": self.op,
            "thread": self.thread,
            "where": self.where,
            "time_ns": self.start_ns,
            "access": "write" if self.write else "read",
            "module": self.module,
            "phase": self.phase,
            "stack": list(self.stack),
            **({"stream": self.stream} if self.stream else {}),
        }


def draws_of_generators(run: Run, rank: int, thread: str | None = None) -> Int64Array:
    """Returns when operators of a rank, or of one thread, began that draw from a random generator
    which they got: all others draw from the default one. int64, ascending."""
    taken = run.events("access", rank, thread, ["start_ns", "storage"])
    of_generators = taken["storage"].to_numpy() % 2 == 1
    return np.unique(taken["start_ns"].to_numpy()[of_generators])


_NO_STACK = -1
_DEPTHS = 256  # of operators within each other; start and depth together name an operator


@dataclass(frozen=True)
class CallSite:
    """An operator at a place. `stack` is the id of its stack in the rank; None: not captured."""

    op: str
    module: str
    phase: str
    stack: int | None


@dataclass
class CallSites:
    """All sites seen so far, each with a number."""

    known: list[CallSite] = field(default_factory=list)
    _numbers: dict[CallSite, int] = field(default_factory=dict)

    def of(
        self,
        run: Run,
        rank: int,
        thread: str,
        start: Int64Array,
        depth: NDArray[Any],
        window: tuple[int, int] | None = None,
    ) -> tuple[Int64Array, Int64Array]:
        """Returns Site's number and training step of each access of a thread, by its operator's
        start and depth; `window`: that holds all of them.

        An operator without a captured stack takes that of its like (same operator, module
        and phase on the same thread) where all captured ones were at one place.
        """
        columns = ["start_ns", "depth", "name", "module", "phase", "stack", "step"]
        ops = run.events("op", rank, thread, columns, window)
        key = ops["start_ns"].to_numpy() * _DEPTHS + ops["depth"].to_numpy()
        wanted = start * _DEPTHS + depth.astype(np.int64)
        order = np.argsort(key, kind="stable")
        position = np.searchsorted(key[order], wanted)
        safe = order[np.minimum(position, max(len(order) - 1, 0))] if len(order) else position
        numbers = np.full(len(wanted), self._number(CallSite("", "", "", None)), np.int64)
        steps = np.zeros(len(wanted), np.int64)
        if not len(order):
            return numbers, steps
        found = key[safe] == wanted
        used = np.zeros(len(order), bool)
        used[safe[found]] = True
        rows = np.flatnonzero(used)
        numbers[found] = self._sites(ops, rows)[np.cumsum(used)[safe[found]] - 1]
        steps[found] = ops["step"].to_numpy()[safe[found]]
        return numbers, steps

    def _sites(self, ops: pa.Table, rows: Int64Array) -> Int64Array:
        """Numbers of the sites of some rows of the op table."""
        like = np.zeros(len(rows), np.int64)  # one number for operator, module and phase
        words: list[list[str]] = []
        for column in ("name", "module", "phase"):
            codes = ops[column].unify_dictionaries().combine_chunks()
            words.append(codes.dictionary.to_pylist())
            like = like * len(words[-1]) + codes.indices.to_numpy()[rows]
        stack = ops["stack"].to_pandas().fillna(_NO_STACK).to_numpy().astype(np.int64)[rows]
        above = int(stack.max(initial=0)) + 2
        known = np.unique(like[stack >= 0] * above + stack[stack >= 0])
        likes, first, counts = np.unique(known // above, return_index=True, return_counts=True)
        likes, stacks = likes[counts == 1], known[first[counts == 1]] % above
        at = np.minimum(np.searchsorted(likes, like), max(len(likes) - 1, 0))
        if len(likes):
            stack = np.where((stack < 0) & (likes[at] == like), stacks[at], stack)
        keys, first, inverse = np.unique(
            like * above + stack + 1, return_index=True, return_inverse=True
        )
        numbers = np.empty(len(keys), np.int64)
        for i in np.argsort(first).tolist():
            rest, texts = int(keys[i]) // above, []
            for of_column in reversed(words):
                rest, code = divmod(rest, len(of_column))
                texts.append(of_column[code])
            phase, module, name = texts
            captured = int(keys[i]) % above - 1
            numbers[i] = self._number(
                CallSite(name, module, phase, None if captured < 0 else captured)
            )
        return numbers[inverse]

    def _number(self, site: CallSite) -> int:
        number = self._numbers.setdefault(site, len(self.known))
        if number == len(self.known):
            self.known.append(site)
        return number


def accesses_among(
    run: Run,
    rank: int,
    column: str,
    wanted: ArrayLike,
    columns: list[str],
    thread: str | None = None,
) -> pd.DataFrame:
    """Returns `columns`, one of them start_ns, of the accesses whose integer `column` is among
    `wanted`, by start.

    Reads table by table and keeps these rows, so a run of any size fits in memory.
    """
    values = pa.array(np.unique(np.asarray(wanted, np.int64)))
    parts = [
        piece.filter(pc.is_in(piece[column], values))
        for piece in run.pieces("access", rank, thread, columns)
    ]
    found = to_frame(pa.concat_tables(parts)) if parts else pd.DataFrame(columns=columns)
    return found.sort_values("start_ns", ignore_index=True)


def phase_names(run: Run, rank: int) -> dict[str, set[str]]:
    """Maps each kind of phase to the names that its phases have on a rank."""
    rows = run.events("phase", rank, columns=["name", "kind"])
    rows = pa.table({name: rows[name].cast(pa.string()) for name in rows.column_names})
    names: dict[str, set[str]] = {}
    for pair in rows.group_by(["name", "kind"]).aggregate([]).to_pylist():
        names.setdefault(pair["kind"], set()).add(pair["name"])
    return names


def storage_names(run: Run, rank: int) -> dict[int, str]:
    """Maps the address of a storage to the name of the parameter or buffer in it."""
    table = run.events("storage", rank=rank, columns=["storage", "name"])
    names: dict[int, list[str]] = {}
    for storage, name in zip(*(table[c].to_pylist() for c in table.column_names), strict=True):
        names.setdefault(storage, []).append(name)
    return {storage: ", ".join(sorted(set(found))) for storage, found in names.items()}


def reading(run: Run, rank: int, since_ns: int, ops: pd.DataFrame, until_ns: int) -> pd.DataFrame:
    """Returns those of some operators that read what one before them, which begins at `since_ns`,
    wrote; all of them where none does."""
    columns = ["start_ns", "storage", "write"]
    rows = to_frame(run.events("access", rank, columns=columns, window=(since_ns, until_ns)))
    before = rows["start_ns"].between(since_ns, ops["start_ns"].min(), inclusive="left")
    written = rows.loc[rows["write"] & before, "storage"]
    read = rows.loc[~rows["write"] & rows["storage"].isin(written), "start_ns"]
    found = ops["start_ns"].isin(read)
    return ops[found] if found.any() else ops
