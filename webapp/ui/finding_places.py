"""Where a finding is on the timeline: its address, the lanes concerned, the marks of its cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import parse_qs, urlsplit

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.headlines import CauseMark
from lanescope.webapp.analysis.links import thread_lane
from lanescope.webapp.analysis.plugin import kinds, load
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui.context import Context

_MAX_LANES = 6
"""Lanes that are pinned for a finding: with more, none has room."""


def address_of(context: Context, finding: Finding, position: int) -> str:
    """Returns the address of a finding on the timeline, with its lanes pinned and its strip shown.

    `position` is that among all findings of the report, from 0.
    """
    address = context.address(finding.link)
    if not address.startswith("/timeline"):
        return address
    pins = ".".join(map(str, _lanes_of(context, finding)))
    more = [f"finding={position}", *([f"pin={pins}"] if pins and "pin=" not in address else [])]
    return f"{address}{'&' if '?' in address else '?'}{'&'.join(more)}"


def _lanes_of(context: Context, finding: Finding) -> list[int]:
    """Returns ids of the lanes that show a finding, in the order of the timeline."""
    if context.timeline is None:
        return []
    keys = dict.fromkeys(_keys(context.run, finding))
    ids = {lane.key: lane.id for lane in context.timeline.index.lanes}
    found = [ids[key] for key in keys if key in ids][:_MAX_LANES]
    return sorted(found) if len(found) > 1 else []


def marks_of(run: Run, finding: Finding) -> list[CauseMark]:
    """Returns what shows the cause of a finding on its lanes."""
    entry = kinds()[finding.kind].marks
    return list(load(entry)(run, finding)) if entry else []


def _keys(run: Run, finding: Finding) -> Iterator[str]:
    """Keys of lanes: marked ones, the one of the address and its twins, threads of the evidence."""
    for mark in marks_of(run, finding):
        yield mark.lane
    for named in parse_qs(urlsplit(finding.link).query).get("at", ()):
        key = named.rpartition("@")[0]
        yield key
        rank, _, rest = key.partition("/")
        if rest.startswith("collectives/"):
            yield from (f"{other}/{rest}" for other in run.ranks if str(other) != rank)
    if finding.rank is None:
        return
    evidence = finding.evidence
    sides = [evidence.get(side) for side in ("first", "second", "modified_by", "saved_by")]
    threads = [side.get("thread") for side in sides if isinstance(side, Mapping)]
    concerned, pairs = (evidence.get(name) for name in ("threads", "pairs"))  # of some a number
    if isinstance(concerned, list):
        threads += concerned
    elif isinstance(pairs, list) and pairs:
        threads += [pairs[0].get("a"), pairs[0].get("b")]
    known = {one.thread for one in run.threads_of(finding.rank)}
    for thread in (finding.thread, *threads):
        if thread in known:
            yield thread_lane(finding.rank, str(thread))
