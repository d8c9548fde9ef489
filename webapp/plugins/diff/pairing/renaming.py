"""A run with the names that another one gives to the same modules and parameters.

A program that puts its model into a module of its own, or calls a layer otherwise, renames all that
is in it, and the same operators of two runs would have no name in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import pyarrow as pa

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.plugins.diff.pairing.module_trees import Matching, Module, forest
from lanescope.webapp.runs.run import Run

_MAX_NAMED = 3
"""Names that a sentence gives as examples."""


@dataclass(frozen=True, eq=False)
class Renamed:
    """`run` with the other's names. `modules`: those that changed, old to new, outermost first."""

    run: Run
    modules: dict[str, str]
    heads: tuple[tuple[str, str], ...] = ()  # of these the outermost

    def words(self) -> str | None:
        """Returns what was matched; None: all names are the same."""
        if not self.modules:
            return None
        named = ", ".join(f"{old} is {new}" for old, new in self.heads[:_MAX_NAMED])
        more = len(self.heads) - _MAX_NAMED
        return (
            f"{len(self.modules):,} modules of the baseline have other names in the run, matched "
            f"by class, size and content: {named}" + (f" and {more:,} more" if more > 0 else "")
        )


@lru_cache(maxsize=4)
def renamed(base: Run, run: Run) -> Renamed:
    """Returns `base` with the names of `run`."""
    if "module" not in {table for table, _ in base.rows.parts} & {t for t, _ in run.rows.parts}:
        return Renamed(base, {})
    mine, theirs = (forest(_module_rows(one)) for one in (base, run))
    if _paths(mine) == _paths(theirs):
        return Renamed(base, {})
    found = Matching(mine, theirs, *_norms(base, run)).found
    changed = {one: other for one, other in found.items() if one.path != other.path}
    if not changed:
        return Renamed(base, {})
    paths = {one.path: other.path for one, other in changed.items()}
    insides = {one.inside: other.inside for one, other in changed.items()}
    taken = {*paths.values()}, {*insides.values()}
    for model in mine:
        for one in (model, *model.below()):  # that lost its name to another one
            if one not in found and one.path in taken[0]:
                paths[one.path] = f"{one.path} (base)"
            if one not in found and one.inside in taken[1]:
                insides[one.inside] = f"{one.path} (base)."
    change: dict[str, Callable[[str], str]] = {
        "module": lambda text: paths.get(text, text),
        "parameter": lambda text: _parameter(text, insides),
    }
    rows = base.rows.changed_by(partial(with_other_texts, change))
    heads = [
        (one.path, other.path)
        for model in mine
        for one, other, above in _changes(model, found)
        if above is None or other.path != above.inside + one.path.rpartition(".")[2]
    ]
    modules = {one.path: other.path for one, other in changed.items()}
    return Renamed(replace(base, rows=rows), modules, tuple(heads))


def _changes(
    module: Module, found: dict[Module, Module], above: Module | None = None
) -> Iterator[tuple[Module, Module, Module | None]]:
    """Returns renamed modules, their partners, and the partners of their parents."""
    other = found.get(module)
    if other is not None and other.path != module.path:
        yield module, other, above
    for child in module.children.values():
        yield from _changes(child, found, other)


def _parameter(text: str, insides: dict[str, str]) -> str:
    owner, dot, name = text.rpartition(".")
    return insides.get(owner + dot, owner + dot) + name


def _module_rows(run: Run) -> Iterator[tuple[str, str, int]]:
    rows = run.events("module", columns=["path", "class", "parameters"]).to_pylist()
    return ((row["path"], row["class"], row["parameters"]) for row in rows)


def _paths(tree: list[Module]) -> list[tuple[str, str]]:
    return [(one.path, one.kind) for model in tree for one in (model, *model.below())]


def _norms(base: Run, run: Run) -> list[dict[str, float]]:
    """Norms of gradients in the first step that both runs have any of, of the first rank."""
    frames = [
        to_frame(one.events("gradient", columns=["rank", "step", "parameter", "norm"]))
        for one in (base, run)
    ]
    shared = set(frames[0]["step"]) & set(frames[1]["step"])
    if not shared:
        return [{}, {}]
    found = []
    for frame in frames:
        rows = frame[(frame["step"] == min(shared)) & (frame["rank"] == frame["rank"].min())]
        found.append(
            dict(zip(rows["parameter"].astype(str), rows["norm"].astype(float), strict=True))
        )
    return found


def with_other_texts(change: dict[str, Callable[[str], str]], _: str, rows: pa.Table) -> pa.Table:
    """Returns rows with other texts in the columns that `change` names."""
    for position, name in enumerate(rows.column_names):
        other, kind = change.get(name), rows.schema.field(position).type
        if other is not None and pa.types.is_dictionary(kind):
            column = rows.column(position)
            chunks = [
                pa.DictionaryArray.from_arrays(
                    chunk.indices,
                    pa.array(
                        [t if t is None else other(t) for t in chunk.dictionary.to_pylist()],
                        kind.value_type,
                    ),
                )
                for chunk in column.chunks
            ]
            rows = rows.set_column(position, name, pa.chunked_array(chunks, kind))
    return rows
