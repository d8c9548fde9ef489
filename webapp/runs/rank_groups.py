"""Groups of ranks: the ranks of a host, and those at one place along a parallel dimension.

Dimensions are found by the names that process groups have in torch's device meshes ("mesh_pp"), in
Megatron ("PIPELINE_MODEL_PARALLEL_GROUP") and by hand ("tp"): the place of a rank is its position
in its group. Findings name many ranks by what they have in common, and pages group them by it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.run_warnings import rank_spans, ranks_named

HOST, DATA = "host", "data"

_KINDS = {
    DATA: ("data", "dp", "ddp", "fsdp", "replicate", "shard"),
    "tensor": ("tensor", "tp"),
    "pipeline": ("pipeline", "pipe", "pp"),
    "expert": ("expert", "ep"),
    "context": ("context", "cp"),
}
"""Parallel dimensions, and the words in names of process groups that say so."""

_KIND = {word: kind for kind, words in _KINDS.items() for word in words}

MAX_SPANS = 4
"""Stretches of rank numbers that a sentence lists; of more ranks it says how many they are."""

MAX_WITHOUT = 2
"""Ranks up to which a group is named that lacks them."""


@dataclass(frozen=True)
class Dimension:
    """One way to group ranks."""

    kind: str  # "host", or one of KINDS
    name: str  # the same, or of several of a kind the name of the groups, "dp_shard"
    word: str  # what one group is called: "host", "pipeline stage"
    groups: Mapping[str, tuple[int, ...]]  # by host name or position, in the order of ranks

    def place_of(self, rank: int) -> str | None:
        """The group of a rank; None: it is in no group of the dimension."""
        return next((place for place, ranks in self.groups.items() if rank in ranks), None)


@lru_cache(maxsize=8)
def dimensions(run: Run) -> tuple[Dimension, ...]:
    """The ways to group the ranks of a run that make more than one group, host first.

    Groups of parallel dimensions also hold ranks that were not recorded.
    """
    hosts = Dimension(HOST, HOST, "host", {host: (*of,) for host, of in run.ranks_by_host.items()})
    return tuple(one for one in (hosts, *_parallel(run)) if len(one.groups) > 1)


def ranks_in(run: Run, ranks: Collection[int]) -> str:
    """`rank 640 (host gpu-080)`, `ranks 512-519 (host gpu-064)`, `256 ranks (pipeline stage 3)`.

    What the ranks have in common is said where the run has several hosts or parallel dimensions;
    the verb that follows is plural for more than one rank.
    """
    group = _in_common(run, frozenset(ranks))
    spans = rank_spans(ranks)
    if len(spans) <= MAX_SPANS:
        who = ranks_named((*ranks,))
    elif group:
        who = f"{len(ranks):,} ranks"
    else:
        shown = [rank for first, last in spans[: MAX_SPANS - 1] for rank in range(first, last + 1)]
        who = f"{ranks_named(shown)} and {len(ranks) - len(shown):,} more"
    return f"{who} ({group})" if group else who


def _in_common(run: Run, ranks: frozenset[int]) -> str:
    """The group that the ranks make up, or the one host they are on; empty without any."""
    known = dimensions(run)
    if known and known[0].name == HOST:
        there = {run.hosts.get(rank) for rank in ranks}
        if len(there) == 1 and None not in there:
            return f"host {there.pop()}"
    if len(ranks) < 2:
        return ""
    whole: frozenset[int] = frozenset()
    named: list[str] = []
    for one in known:
        for place, of in one.groups.items():
            narrower = whole & {*of} if whole else frozenset(of)
            if ranks <= narrower and narrower != whole:
                whole = narrower
                named.append(f"{one.word} {place}")
    without = (whole - ranks) & {*run.ranks}
    if not named or len(without) > min(MAX_WITHOUT, len(ranks) // 2):
        return ""
    return ", ".join(named) + (f" without {ranks_named(sorted(without))}" if without else "")


def _parallel(run: Run) -> tuple[Dimension, ...]:
    """The parallel dimensions of a run, in the order of `_KINDS`."""
    groups: defaultdict[tuple[str, str], list[list[int]]] = defaultdict(list)
    for name, group in run.manifest["groups"].items():
        called = group["description"] or name
        kinds = {_KIND[word] for word in re.findall("[a-z]+", called.lower()) if word in _KIND}
        if len(kinds) == 1 and group["ranks"]:  # "dp_cp" is two dimensions made flat
            groups[kinds.pop(), called.lower().removeprefix("mesh_")].append(group["ranks"])
    named = [kind for kind, _ in groups]
    found = []
    for kind, called in sorted(groups, key=lambda key: (*_KINDS,).index(key[0])):
        places: defaultdict[str, set[int]] = defaultdict(set)
        for ranks in groups[kind, called]:
            for place, rank in enumerate(ranks):
                places[str(place)].add(rank)
        of = {place: tuple(sorted(ranks)) for place, ranks in places.items()}
        if sum(map(len, of.values())) > len({rank for ranks in of.values() for rank in ranks}):
            continue  # a rank has two places: these are no groups of one mesh
        word = "pipeline stage" if kind == "pipeline" else f"{kind}-parallel rank"
        if named.count(kind) == 1:
            found.append(Dimension(kind, kind, word, of))
        else:
            found.append(Dimension(kind, called, f"{called} rank", of))
    return tuple(found)
