"""Pairs the ranks of two runs that have no rank in common, by their roles in the job.

The role of a rank is its position in the groups of tensor, pipeline, expert and context parallelism
that the run lists. Without such groups, the first rank of one run is paired with the first of the
other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lanescope.webapp.runs.rank_groups import DATA, HOST, dimensions
from lanescope.webapp.runs.run import Run

_SHOWN = 4

Role = tuple[tuple[str, int], ...]


def by_role(base: Run, run: Run) -> tuple[Run, list[str]]:
    """Returns the baseline with the run's numbers of ranks, and a note; unchanged if ranks match.

    A rank without a partner keeps its number.
    """
    if set(base.ranks) & set(run.ranks) or not (base.ranks and run.ranks):
        return base, []
    pairs, words = _pairs(base, run)
    said = [
        f"rank {old} of the baseline with rank {new} of the run{words.get(old, '')}"
        for old, new in list(pairs.items())[:_SHOWN]
    ]
    more = f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
    note = (
        f"the runs have no rank in common, so ranks are compared by role: {', '.join(said)}{more}"
    )
    return _renumbered(base, pairs), [note]


def _pairs(base: Run, run: Run) -> tuple[dict[int, int], dict[int, str]]:
    """Returns rank of the baseline -> rank of the run, and what both are in words."""
    sides: list[dict[Role, list[int]]] = []
    for one in (base, run):
        roles: defaultdict[Role, list[int]] = defaultdict(list)
        for rank in one.ranks:
            roles[_role(one, rank)].append(rank)
        sides.append(roles)
    shared = [role for role in sides[0] if role and role in sides[1]]
    if not shared:
        return dict(zip(base.ranks, run.ranks, strict=False)), {}
    pairs, words = {}, {}
    for role in shared:
        for old, new in zip(sides[0][role], sides[1][role], strict=False):
            pairs[old] = new
            words[old] = f" ({', '.join(f'{kind} {place}' for kind, place in role)})"
    return pairs, words


def _role(run: Run, rank: int) -> Role:
    places = {
        one.word: one.place_of(rank) for one in dimensions(run) if one.kind not in (HOST, DATA)
    }
    return tuple(sorted((word, int(place)) for word, place in places.items() if place is not None))


def _renumbered(run: Run, numbers: Mapping[int, int]) -> Run:
    def new(rank: int) -> int:
        return numbers.get(rank, rank)

    threads = tuple(thread._replace(rank=new(thread.rank)) for thread in run.threads)
    rows = replace(
        run.rows,
        parts={(table, new(rank)): parts for (table, rank), parts in run.rows.parts.items()},
        axes={(new(rank), pid): axis for (rank, pid), axis in run.rows.axes.items()},
        threads=threads,
    )
    manifest: Any = {
        **run.manifest,
        "processes": [{**one, "rank": new(one["rank"])} for one in run.manifest["processes"]],
        "groups": {
            name: {**group, "ranks": [new(rank) for rank in group["ranks"]]}
            for name, group in run.manifest["groups"].items()
        },
    }
    ranks = tuple(sorted(map(new, run.ranks)))
    return replace(run, ranks=ranks, threads=threads, rows=rows, manifest=manifest)
