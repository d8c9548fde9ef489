"""Arrows from a slice to what it belongs to, as `assets/timeline/model/flows.js` draws them.

A flow is {kind, from, to, tone}; an end names a slice by lane, row and ref, and an instant `t` in
ns. The tone chooses the colour: "ties", "threads" or "races".
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

Json = dict[str, Any]


def end(place: Json, t: int) -> Json:
    """One end of a flow: an instant on the slice that `place` names."""
    return {"lane": place["lane"], "row": place["row"], "ref": place["ref"], "t": t}


def flow(kind: str, tone: str, here: Json, there: Json, *, outgoing: bool) -> Json:
    """A flow from here to there, or the other way."""
    first, last = (here, there) if outgoing else (there, here)
    return {"kind": kind, "from": first, "to": last, "tone": tone}


def flows_of(span: Json) -> list[Json]:
    """The flows of a slice, as `span_details` describes it.

    To its forward or backward partner, the same collective on the other ranks, threads that it
    starts or waits for, and kernels that it launches.
    """
    start, until = span["drawn"]
    flows = []
    if partner := span.get("partner"):
        later = partner["start_ns"] >= start
        there = end(partner, partner["start_ns"] if later else partner["end_ns"])
        here = end(span, until if later else start)
        flows.append(flow("autograd", "ties", here, there, outgoing=later))
    if peers := span.get("peers"):
        # One line through all ranks, in their order: where it leans is who came late.
        own = {**span, "start_ns": start}
        calls = sorted([*peers, own], key=lambda call: call["rank"])
        ends = [end(call, call["start_ns"]) for call in calls]
        flows += [flow("collective", "ties", a, b, outgoing=True) for a, b in pairwise(ends)]
    for one in span.get("threads", ()):
        sent, came = one["sent_ns"], one["came_ns"]
        mine, theirs = (sent, came) if one["outgoing"] else (came, sent)
        ends = [end(span, mine), end(one, theirs)]
        flows.append(flow(one["kind"], "threads", *ends, outgoing=one["outgoing"]))
    for one in span.get("launches", ()):
        mine, theirs = (one["launch_ns"], one["start_ns"])
        if not one["outgoing"]:
            mine, theirs = start, one["launch_ns"]
        ends = [end(span, mine), end(one, theirs)]
        flows.append(flow("launch", "ties", *ends, outgoing=one["outgoing"]))
    return flows
