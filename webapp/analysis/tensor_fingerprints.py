"""The operators of a thread and what was in their tensors, as numbers that compare at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import having
from lanescope.webapp.analysis.sequence_alignment import Codes, align, by_occurrence, mixed
from lanescope.webapp.runs.intervals import enclosing
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array

_DEPTHS = 256  # start and depth together name an operator
_TEXTS = ("name", "phase", "module", "shapes", "dtypes")
NOT_LOOKED_AT = (
    "aten::set_",
    "aten::resize_",
    "c10d::recv_",
    "c10d::recv_any_source_",
    "c10d::broadcast_",
)
"""Operators that give a tensor other memory, or fill it with another rank's data: the content
before may never have been written. What came is read where it is used.
"""
ARRIVES = "aten::set_"
"""Gives a tensor the memory that a worker of a DataLoader handed over. They hand over when they are
done: which step has taken in one batch more, and which one less, is chance."""

_LOOSE = ("name", "phase", "module", "shapes")
_UNPLACED = ("name", "phase", "shapes", "dtypes")


@dataclass
class Words:
    """Texts of both runs as numbers, one numbering per column."""

    known: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _numbers: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def code(self, name: str, text: str) -> int:
        """The number of a text of a column."""
        known = self.known[name]
        number = self._numbers[name].setdefault(text, len(known))
        if number == len(known):
            known.append(text)
        return number

    def codes(self, name: str, column: pa.ChunkedArray) -> Int64Array:
        """Returns a dictionary column as numbers of its texts."""
        array = column.combine_chunks()
        if not len(array):
            return np.empty(0, np.int64)
        translated = [self.code(name, text) for text in array.dictionary.to_pylist()]
        indices: Int64Array = array.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if translated == list(range(len(translated))):
            return indices
        codes: Int64Array = np.array(translated, np.int64)[indices]
        return codes


@dataclass(frozen=True)
class Ops:
    """The operators of a thread by start, and their tensors."""

    run: Run
    rank: int
    thread: str
    start: Int64Array
    depth: Int64Array
    step: Int64Array
    texts: dict[str, Int64Array]  # by column of the op table: numbers in `Words`
    regions: BoolArray  # is a region of torch.compile
    owner: Int64Array  # per tensor: position of its operator
    arrives: BoolArray  # is ARRIVES
    tensors: dict[str, NDArray[Any]]  # position, shape, dtype (numbers), mean, l2, nan, inf, ...
    changed: dict[int, int]  # of tensors that somebody else wrote to: row -> hash as it was written
    unset: Int64Array
    """Operator of each tensor that was made of memory that was never set, and so is not here."""

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def duration(self) -> Int64Array:
        """ns; -1: had not ended. Read where it is needed: it is the longest of the columns."""
        rows = self.run.events("op", self.rank, self.thread, columns=["duration_ns"])
        numbers: Int64Array = rows["duration_ns"].fill_null(-1).to_numpy()
        return numbers

    @cached_property
    def compiled(self) -> BoolArray:
        """Which operators are inside a region of torch.compile."""
        if not self.regions.any():
            return self.regions
        return _in_regions(np.flatnonzero(self.regions), self.start, self.duration)

    def alike(self, other: Ops) -> bool:
        """Returns True where both have equal signatures in the same steps, one by one.

        Signatures are not worked out for that, since most runs that are compared are alike.
        """
        return np.array_equal(self.step, other.step) and all(
            np.array_equal(self.texts[name], other.texts[name]) for name in _TEXTS
        )

    @cached_property
    def signature(self) -> Codes:
        """Numbers that are alike for like texts."""
        return _signature(self.texts, _TEXTS)

    @cached_property
    def bits(self) -> Codes:
        """Hashes of all its tensors; 0: has none, or nothing but zeros."""
        return self.bits_of(np.arange(len(self)))

    def bits_of(self, operators: Int64Array) -> Codes:
        """Returns the `bits` of some operators."""
        wanted = np.zeros(len(self), np.bool_)
        wanted[operators] = True
        rows = np.flatnonzero(wanted[self.owner] & (self.tensors["hash"] != 0))
        hashes, positions = (self.tensors[name][rows] for name in ("hash", "position"))
        bits = np.zeros(len(self), np.uint64)
        np.add.at(bits, self.owner[rows], mixed(hashes.view(np.uint64), positions))
        return bits[operators]

    @cached_property
    def content(self) -> Codes:
        """Signature and bits; 0 where these are."""
        return _with_bits(self.signature, self.bits)

    @cached_property
    def loose(self) -> Codes:
        """Signatures without dtypes: needed only where some have no like on the other side."""
        return _signature(self.texts, _LOOSE)

    @cached_property
    def unplaced(self) -> Codes:
        """Signatures without modules, as `loose`."""
        return _signature(self.texts, _UNPLACED)


def read_ops(run: Run, rank: int, thread: str, words: Words) -> Ops:
    """Returns what `run` holds of one thread."""
    columns = ["start_ns", "depth", "step", "scope", *_TEXTS]
    ops = run.events("op", rank, thread, columns=columns)
    start, depth = ops["start_ns"].to_numpy(), ops["depth"].to_numpy().astype(np.int64)
    texts = {name: words.codes(name, ops[name]) for name in _TEXTS}
    tensors, owner = _tensors(run, rank, thread, words, start * _DEPTHS + depth.clip(max=255))
    known, expected = tensors.pop("known"), tensors.pop("expected")
    unset = tensors.pop("unset").astype(bool)
    blind = np.array([name in NOT_LOOKED_AT for name in words.known["name"]], np.bool_)
    kept = ~(blind[texts["name"]][owner] | unset)
    arrives = np.array([name == ARRIVES for name in words.known["name"]], np.bool_)[texts["name"]]
    unset = owner[unset]
    tensors = {name: _kept(column, kept) for name, column in tensors.items()}
    owner, known, expected = (_kept(column, kept) for column in (owner, known, expected))
    rows = np.flatnonzero(known)
    changed = dict(zip(rows.tolist(), expected[rows].tolist(), strict=True))
    return Ops(
        run,
        rank,
        thread,
        start,
        depth,
        ops["step"].to_numpy().astype(np.int64),
        texts,
        having(ops["scope"], lambda scope: scope == schema.OpScope.compiled.name),
        owner,
        arrives,
        tensors,
        changed,
        unset,
    )


def _kept(column: NDArray[Any], kept: BoolArray) -> NDArray[Any]:
    """The rows of a column that are kept, mostly all."""
    return column if kept.all() else column[kept]


def _with_bits(codes: Codes, bits: Codes) -> Codes:
    return np.where(bits != 0, mixed(codes, bits.view(np.int64)), bits)


def _in_regions(regions: Int64Array, start: Int64Array, duration: Int64Array) -> BoolArray:
    """Of each operator whether it began inside a region of torch.compile."""
    end = start + np.where(duration < 0, np.iinfo(np.int64).max - start, duration)
    # One inside another ends before it: of those that overlap the first is the outermost.
    last = np.maximum.accumulate(end[regions])
    outer = regions[np.concatenate([[True], start[regions][1:] >= last[:-1]])]
    inside: BoolArray = enclosing(start[outer], end[outer], start) >= 0
    inside[regions] = False
    return inside


def _signature(texts: dict[str, Int64Array], names: Sequence[str]) -> Codes:
    """The texts of each operator in one number of 64 bits, alike for like texts.

    A sum of one random number per column and text (tabulation hashing): texts are few, so these are
    looked up instead of computed for each operator.
    """
    total = np.zeros(len(texts[names[0]]), np.uint64)
    for number, name in enumerate(names, 1):
        every = np.arange(texts[name].max(initial=-1) + 1)
        total += mixed(np.full(len(every), number, np.uint64), every)[texts[name]]
    return total


def _tensors(
    run: Run, rank: int, thread: str, words: Words, ops: Int64Array
) -> tuple[dict[str, NDArray[Any]], Int64Array]:
    """Columns of the thread's tensors, and the position of the operator of each."""
    texts, numbers = ("position", "shape", "dtype"), ("mean", "l2", "nan", "inf", "hash", "numel")
    columns = ["start_ns", "depth", *texts, *numbers, "expected", "unset"]
    rows = run.events("tensor", rank, thread, columns=columns)
    key = rows["start_ns"].to_numpy() * _DEPTHS + rows["depth"].to_numpy().astype(np.int64)
    if np.all(ops[1:] >= ops[:-1]):
        owner = np.searchsorted(ops, key).clip(max=max(len(ops) - 1, 0))
    else:
        order = np.argsort(ops, kind="stable")
        owner = order[np.searchsorted(ops[order], key).clip(max=max(len(ops) - 1, 0))]
    known = ops[owner] == key if len(ops) else np.zeros(len(key), bool)
    made = {name: words.codes(name, rows[name]) for name in texts}
    made |= {name: rows[name].to_numpy() for name in numbers}
    made["unset"] = rows["unset"].fill_null(False).to_numpy()
    made["known"] = rows["expected"].is_valid().to_numpy()
    made["expected"] = rows["expected"].fill_null(0).to_numpy()
    return {name: _kept(column, known) for name, column in made.items()}, _kept(owner, known)


def pair_ops(base: Ops, run: Ops) -> tuple[Int64Array, Int64Array]:
    """Returns positions of operators that belong together: within each step by signature, in order;
    the rest by signature in any order, then by the signature without dtypes, and where one of the
    two was compiled without the module; received tensors in any step."""
    if base.alike(run):
        every = np.arange(len(base))
        return every, every
    left, right = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    there = dict(_by_step(run))
    compiled = base.compiled.any() or run.compiled.any()
    for step, mine in _by_step(base):
        theirs = there.get(step)
        if theirs is None:
            continue
        one, two = align(
            base.signature[mine], run.signature[theirs], base.content[mine], run.content[theirs]
        )
        left.append(mine[one])
        right.append(theirs[two])
        for kind in ("signature", "loose"):
            if len(one) < len(mine) and len(two) < len(theirs):
                mine, theirs = np.delete(mine, one), np.delete(theirs, two)
                codes, others = (getattr(side, kind) for side in (base, run))
                one, two = by_occurrence(codes[mine], others[theirs])
                left.append(mine[one])
                right.append(theirs[two])
        if compiled:
            mine, theirs = np.delete(mine, one), np.delete(theirs, two)
            one, two = _compiled_on_one_side(base, run, mine, theirs)
            left.append(one)
            right.append(two)
    rest = []
    for ops, paired in ((base, left), (run, right)):
        alone = ops.arrives.copy()
        alone[np.concatenate(paired)] = False
        rest.append(np.flatnonzero(alone))
    both = min(map(len, rest))
    left.append(rest[0][:both])
    right.append(rest[1][:both])
    return np.concatenate(left), np.concatenate(right)


def _compiled_on_one_side(
    base: Ops, run: Ops, mine: Int64Array, theirs: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Of operators that are left those inside a region of torch.compile with their like outside.

    A region has the module that was compiled, its operators outside that of a layer in it. Bits
    come first: a compiler may take operators in another order.
    """
    left, right = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for compiled in (False, True):
        one, two = mine[base.compiled[mine] == compiled], theirs[run.compiled[theirs] != compiled]
        here, there = one[base.bits[one] != 0], two[run.bits[two] != 0]
        first, second = by_occurrence(
            _with_bits(base.unplaced[here], base.bits[here]),
            _with_bits(run.unplaced[there], run.bits[there]),
        )
        left.append(here[first])
        right.append(there[second])
        one, two = np.setdiff1d(one, left[-1]), np.setdiff1d(two, right[-1])
        first, second = by_occurrence(base.unplaced[one], run.unplaced[two])
        left.append(one[first])
        right.append(two[second])
    return np.concatenate(left), np.concatenate(right)


def with_turns(
    base: Ops, run: Ops, left: Int64Array, right: Int64Array, free: BoolArray
) -> tuple[Int64Array, Int64Array]:
    """Returns the pairs with operators of `run` that are `free` to change places with their like in
    a step where another one has their values: an optimizer's, that takes parameters in another
    order."""
    apart = np.flatnonzero(free[right])
    here, there = base.bits_of(left[apart]), run.bits_of(right[apart])
    unequal = here != there
    for name in _TEXTS:
        unequal |= base.texts[name][left[apart]] != run.texts[name][right[apart]]
    apart = apart[unequal & (here != 0) & (there != 0)]
    if not len(apart):
        return left, right
    one, two = by_occurrence(
        mixed(base.content[left[apart]], base.step[left[apart]]),
        mixed(run.content[right[apart]], run.step[right[apart]]),
    )
    if not len(one):
        return left, right
    rest, others = np.delete(apart, one), np.delete(apart, two)
    three, four = by_occurrence(
        mixed(base.signature[left[rest]], base.step[left[rest]]),
        mixed(run.signature[right[others]], run.step[right[others]]),
    )
    paired = np.setdiff1d(np.arange(len(left)), apart)
    mine = [left[paired], left[apart[one]], left[rest[three]]]
    theirs = [right[paired], right[apart[two]], right[others[four]]]
    return np.concatenate(mine), np.concatenate(theirs)


def _by_step(ops: Ops) -> list[tuple[int, Int64Array]]:
    order = np.argsort(ops.step, kind="stable").astype(np.int64)
    steps, starts = np.unique(ops.step[order], return_index=True)
    return list(zip(steps.tolist(), np.split(order, starts[1:]), strict=False))


def pair_tensors(
    base: Ops, run: Ops, left: Int64Array, right: Int64Array, words: Words
) -> tuple[Int64Array, Int64Array]:
    """Returns rows of tensors at the same position of operators that belong together."""
    keys = []
    for ops, paired in ((base, left), (run, right)):
        pair = np.full(len(ops), -1, np.int64)
        pair[paired] = np.arange(len(paired))
        key = pair[ops.owner] * (len(words.known["position"]) + 1) + ops.tensors["position"]
        if np.all(key[1:] > key[:-1]):
            values, rows = key, np.arange(len(key))
        else:
            values, rows = np.unique(key, return_index=True)
        keys.append((values[values >= 0], rows[values >= 0]))
    if np.array_equal(keys[0][0], keys[1][0]):
        return keys[0][1], keys[1][1]
    _, one, two = np.intersect1d(keys[0][0], keys[1][0], assume_unique=True, return_indices=True)
    return keys[0][1][one].astype(np.int64), keys[1][1][two].astype(np.int64)


def with_overwritten(
    base: Ops, run: Ops, left: Int64Array, right: Int64Array, one: Int64Array, two: Int64Array
) -> tuple[Ops, Ops, Int64Array, Int64Array]:
    """Returns the sides with pairs for tensors that somebody else wrote to in one run alone.

    The other run has no row of such a tensor, since its operator found what had been written: a row
    with that hash is added. Its other numbers are taken from its partner, as only bits are known.
    """
    base, more, rows = _supplied(base, run, left, right, two)
    one, two = np.concatenate([one, more]), np.concatenate([two, rows])
    run, more, rows = _supplied(run, base, right, left, one)
    return base, run, np.concatenate([one, rows]), np.concatenate([two, more])


def _supplied(
    ops: Ops, other: Ops, mine: Int64Array, theirs: Int64Array, paired: Int64Array
) -> tuple[Ops, Int64Array, Int64Array]:
    """`ops` with a row for each tensor of `other` that was changed and has no partner."""
    if not other.changed:
        return ops, np.empty(0, np.int64), np.empty(0, np.int64)
    alone = np.zeros(len(other.owner), np.bool_)
    alone[np.fromiter(other.changed, np.int64, len(other.changed))] = True
    alone[paired] = False
    rows = np.flatnonzero(alone)
    partner = np.full(len(other), -1, np.int64)
    partner[theirs] = mine
    rows = rows[partner[other.owner[rows]] >= 0] if len(rows) else rows
    if not len(rows):
        return ops, rows, rows
    tensors = {
        name: np.concatenate([column, other.tensors[name][rows]])
        for name, column in ops.tensors.items()
    }
    added = np.arange(len(ops.owner), len(ops.owner) + len(rows))
    tensors["hash"][added] = [other.changed[row] for row in rows.tolist()]
    owner = np.concatenate([ops.owner, partner[other.owner[rows]]])
    return replace(ops, owner=owner, tensors=tensors), added, rows
