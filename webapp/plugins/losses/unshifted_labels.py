"""Finds language models whose targets are the tokens that they read: labels that are not shifted.

Proven by the bytes that operators read: the lookup of the model's table and the loss get the same
tokens, an unchanged copy of them, or what was put together of the same slices. Where each output
could not just copy its token (a bottleneck, noise, tokens that are masked) such targets are meant.
So the first backward must show a way from the loss to the table that keeps positions apart, or the
tokens pass a single recurrence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

import pandas as pd

from lanescope.webapp.analysis.arrow_columns import ops_named, stack_of, texts_of, to_frame
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_accesses
from lanescope.webapp.analysis.op_inputs import tensor_shapes
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.losses.loss_graph import SAME_NUMBERS, LossGraph, LossNode, loss_graph
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_LOOKUP, _LOSSES = "aten::embedding", ("aten::nll_loss_forward", "aten::nll_loss2d_forward")
_RECURRENCE = re.compile(r"aten::(gru|lstm|rnn_tanh|rnn_relu)")
_NOISE = re.compile(r"aten::(normal|normal_|randn|randn_like|rand_like|uniform_|multinomial)")
_READ = re.compile(rf"{_LOOKUP}|{'|'.join(_LOSSES)}|{_RECURRENCE.pattern}|{_NOISE.pattern}")

_BY_POSITION = re.compile(
    r"(Add|Addmm|Mm|Mul|NativeLayerNorm|NativeDropout|Relu|Gelu|Silu|Linear|FusedRmsNorm)"
)
"""Nodes that compute each position by itself, where they get a position per row."""

_COUNTED = 12
"""Losses that are looked at, at most; at least `_MIN_LOSSES`."""
_MIN_LOSSES = 4
_TABLES = 3
"""Lookups before a loss that are looked at: those of an encoder and a decoder."""

_AT = ["start_ns", "depth"]
_BYTES = ["storage", "offset", "bytes", "run"]


_COPIES = frozenset(
    f"aten::{name}" for name in ("copy_", "index_put_", "_index_put_impl_", "masked_fill_")
)
"""They copy tokens and take some out. Others map them: index looks them up in a table."""

_PUTS_TOGETHER = frozenset(
    f"aten::{name}" for name in ("cat", "gather", "index", "index_select", "stack")
)


@dataclass(frozen=True)
class _Made:
    """When a tensor was put together, and its bytes."""

    time_ns: int
    parts: list[tuple[int, ...]]  # storage, offset, bytes, run


@dataclass(frozen=True)
class _Loss:
    """A loss, and the lookup before it of a table with a row per class whose tokens it gets."""

    step: int
    time_ns: int
    stack: int | None
    lookup: int | None  # its stack
    lookup_ns: int
    recurrences: int
    copies: bool
    single: bool  # no other table is looked up


def _need_losses(run: Run) -> None:
    need_accesses(run)
    if not texts_of(run, "op", "name").intersection(_LOSSES):
        raise NotApplicable("the program computes no cross-entropy")


@found_per_rank(_need_losses)
def copied_tokens(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    names = texts_of(run, "op", "name", rank)
    if _LOOKUP not in names or not names.intersection(_LOSSES):
        return None
    for thread in run.threads_of(rank):
        losses = _that_copy(_losses(run, rank, thread.thread))
        if len(losses) < _MIN_LOSSES:
            continue
        single = all(one.single and one.recurrences == 1 for one in losses)
        graph = loss_graph(run, rank)
        if graph is None or _weighs(graph):
            continue
        if single or _keeps_positions(graph, [one for one in losses if not one.single]):
            return _finding(run, rank, thread.thread, losses)
    return None


def _that_copy(losses: Iterable[_Loss]) -> list[_Loss]:
    """The losses, none where one does not copy: the first such one ends the reading."""
    found = []
    for one in losses:
        if not one.copies:
            return []
        found.append(one)
    return found


def _losses(run: Run, rank: int, thread: str) -> Iterator[_Loss]:
    columns = [*_AT, "name", "shapes", "step", "stack", "sequence"]
    ops = ops_named(run, rank, thread, columns, _READ.fullmatch)
    ops = ops.assign(shapes=ops["shapes"].astype("str"))
    trained = ops[ops["name"].isin(_LOSSES) & ops["sequence"].notna()].head(_COUNTED)
    if len(trained) < _MIN_LOSSES:
        return
    before = -1
    for _, loss in trained.iterrows():
        since, before = before, int(loss["start_ns"])
        between = ops[(ops["start_ns"] > since) & (ops["start_ns"] < before)]
        names = between["name"]
        lookups = between[names == _LOOKUP]
        lookups = lookups[lookups["shapes"].map(_rows) == _classes(loss["shapes"])]
        noise = between.loc[names.str.fullmatch(_NOISE.pattern), "start_ns"]
        plain = not (noise > lookups["start_ns"].max()).any()
        window = since + 1, before + 1
        copied = [
            lookup
            for _, lookup in lookups.head(_TABLES).iterrows()
            if plain and _same_tokens(run, rank, thread, lookup, loss, window)
        ]
        lookup = copied[-1] if copied else None
        yield _Loss(
            int(loss["step"]),
            before,
            stack_of(loss),
            None if lookup is None else stack_of(lookup),
            -1 if lookup is None else int(lookup["start_ns"]),
            int(names.str.fullmatch(_RECURRENCE.pattern).sum()),
            bool(copied),
            len(lookups) == 1,
        )


def _shape(shapes: str, at: int) -> list[int]:
    """The shape of an input; empty where it has none."""
    found = tensor_shapes(shapes)
    return found[at] if len(found) > at else []


def _rows(lookup: str) -> int:
    """Rows of the table that a lookup of sequences reads; 0: of other inputs."""
    table, tokens = _shape(lookup, 0), _shape(lookup, 1)
    return table[0] if len(table) == 2 and len(tokens) == 2 and tokens[1] > 1 else 0


def _classes(loss: str) -> int:
    scores = _shape(loss, 0)
    return scores[1] if len(scores) in (2, 4) else -1


def _same_tokens(
    run: Run, rank: int, thread: str, lookup: pd.Series, loss: pd.Series, window: tuple[int, int]
) -> bool:
    """Whether a loss reads the bytes that a lookup read, or a copy that was made of them."""
    count = prod(_shape(lookup["shapes"], 1))
    if count != prod(_shape(loss["shapes"], 1)):
        return False
    rows = to_frame(run.events("access", rank, thread, [*_AT, *_BYTES, "write", "birth"], window))
    rows = rows[rows["start_ns"] >= window[0]]
    in_one, sizes = rows["run"] == rows["bytes"], (4 * count, 8 * count)
    sliced = ~in_one & rows["bytes"].between(sizes[0], 2 * sizes[1])  # from the first to the last
    whole = sliced | (in_one & rows["bytes"].isin(sizes))
    read, compared = (
        rows[(rows["start_ns"] == op["start_ns"]) & (rows["depth"] == op["depth"])]
        .loc[whole & ~rows["write"], _BYTES]
        .drop_duplicates()
        for op in (lookup, loss)
    )
    changed = rows[rows["write"] | rows["birth"]]
    for tokens in read.itertuples(index=False, name=None):
        source = changed[changed["storage"] == tokens[0]]["start_ns"]
        for targets in compared.itertuples(index=False, name=None):
            since = lookup["start_ns"]
            if targets != tokens:
                own = changed[changed["storage"] == targets[0]]
                since = own.loc[own["birth"], "start_ns"].max()
                of_it = rows[(rows["start_ns"] == since) & ~rows["write"] & whole]
                copied = tokens in of_it[_BYTES].itertuples(index=False, name=None)
                own = own[own["start_ns"] >= since]
                if not copied or not _operators_at(run, rank, thread, own) <= _COPIES:
                    continue
            if not source.between(*sorted((since, lookup["start_ns"])), inclusive="neither").any():
                return targets != tokens or not (source > since).any()
    sides = [
        [_made_of(run, rank, thread, rows, one[0], int(op["start_ns"])) for one in found]
        for op, found in ((lookup, read.to_numpy()), (loss, compared.to_numpy()))
    ]
    return any(
        one is not None and other is not None and _alike(changed, one, other)
        for one in sides[0]
        for other in sides[1]
    )


def _made_of(
    run: Run, rank: int, thread: str, rows: pd.DataFrame, storage: int, before: int
) -> _Made | None:
    """What a storage was put together of, where nothing has changed it since; None: not known."""
    own = rows[(rows["storage"] == storage) & (rows["start_ns"] < before)]
    born = own.loc[own["birth"], "start_ns"].max()
    if pd.isna(born) or (own["write"] & (own["start_ns"] > born)).any():
        return None
    parts = rows[(rows["start_ns"] == born) & ~rows["write"] & ~rows["birth"]]
    if parts.empty:
        return None
    names = _operators_at(run, rank, thread, parts)
    if not names or not names <= _PUTS_TOGETHER:
        return None
    return _Made(int(born), list(parts[_BYTES].itertuples(index=False, name=None)))


def _operators_at(run: Run, rank: int, thread: str, rows: pd.DataFrame) -> set[str]:
    """Names of the operators that began as `rows` did."""
    window = int(rows["start_ns"].min()), int(rows["start_ns"].max()) + 1
    ops = run.events("op", rank, thread, ["start_ns", "name"], window).to_pandas()
    return set(ops.loc[ops["start_ns"].isin(rows["start_ns"]), "name"].astype("str"))


def _alike(changed: pd.DataFrame, one: _Made, other: _Made) -> bool:
    """Whether two tensors were put together of the same bytes, which did not change in between."""
    if one.parts != other.parts or one.time_ns == other.time_ns:
        return False
    between = changed["start_ns"].between(
        *sorted((one.time_ns, other.time_ns)), inclusive="neither"
    )
    sources = {part[0] for part in one.parts}
    return not changed.loc[between, "storage"].isin(sources).any()


def _weighs(graph: LossGraph) -> bool:
    """Whether losses of single tokens go on, so that some of them may not count."""
    losses = {one.number for one in graph.nodes.values() if one.name.startswith("NllLoss")}
    counts = {prod(_shape(graph.nodes[one].shapes, 1)) for one in losses}
    above = [one for one in graph.nodes.values() if losses.intersection(one.next)]
    return any(_has_positions(one.shapes, count) for one in above for count in counts)


def _keeps_positions(graph: LossGraph, several: list[_Loss]) -> bool:
    """Whether a way leads from a loss to a table through nodes that keep positions apart: of
    `several` tables to the one whose tokens are copied."""
    wanted = {one.lookup_ns for one in several}
    todo = [node for node in graph.nodes.values() if node.name.startswith("NllLoss")]
    for loss in todo:
        scores = graph.source(loss)
        if scores is None or scores.name != "LogSoftmax":
            return False
        count = prod(_shape(loss.shapes, 1))
        for node in graph.below(*scores.next, passes=partial(_keeps_rows, count=count)):
            if node.name == "Embedding" and (not wanted or node.start_ns in wanted):
                return True
    return False


def _keeps_rows(node: LossNode, count: int) -> bool:
    by_row = _BY_POSITION.fullmatch(node.name) and _has_positions(node.shapes, count)
    return bool(by_row or SAME_NUMBERS.fullmatch(node.name))


def _has_positions(shapes: str, count: int) -> bool:
    """Whether an input of an operator has `count` rows, in one dimension or two."""
    found = filter(None, tensor_shapes(shapes))
    return any(count in (prod(one[:1]), prod(one[:2])) for one in found)


def _finding(run: Run, rank: int, thread: str, losses: list[_Loss]) -> Finding:
    first = losses[0]
    where, table = own_place(run, rank, first.stack), own_place(run, rank, first.lookup)
    at, read = at_place(where), at_place(table)
    return finding_at(
        run,
        rank,
        {"thread": thread, "step": first.step, "time_ns": first.time_ns},
        kind="wrong_loss",
        confidence="likely",
        title=f"The targets of the loss{at} are the very tokens that the model reads{read}, in all "
        f"{units.count(len(losses))} losses that were looked at: it learns to copy each token. "
        "Predict the next one: compare scores[:, :-1] with tokens[:, 1:].",
        where=where,
        evidence={"cause": "copied", "losses": len(losses), "read_at": table},
    )
