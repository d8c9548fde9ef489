"""Arrows from a slice, as the details of the slice hold them."""

from __future__ import annotations

from typing import Any

from lanescope.webapp.timeline.flows import flows_of

SPAN = {"lane": 0, "row": 1, "ref": 7, "rank": 1, "drawn": [100, 200]}


def place(lane: int, row: int, **more: Any) -> dict[str, Any]:
    return {"lane": lane, "row": row, "ref": 7, **more}


def ends(**known: Any) -> list[tuple[str, str, tuple[int, int], tuple[int, int]]]:
    """(kind, tone, lane and instant from, lane and instant to) of each flow."""
    return [
        (one["kind"], one["tone"], *((one[at]["lane"], one[at]["t"]) for at in ("from", "to")))
        for one in flows_of({**SPAN, **known})
    ]


def test_arrows_lead_forward_in_time() -> None:
    before, after = place(0, 2, start_ns=20, end_ns=30), place(3, 0, start_ns=240, end_ns=250)
    assert ends(partner=before) == [("autograd", "ties", (0, 30), (0, 100))]
    assert ends(partner=after) == [("autograd", "ties", (0, 200), (3, 240))]
    assert ends(partner=None) == []
    start = place(3, 0, kind="start", outgoing=True, sent_ns=110, came_ns=130)
    assert ends(threads=[start]) == [("start", "threads", (0, 110), (3, 130))]
    lock = place(3, 0, kind="lock", outgoing=False, sent_ns=90, came_ns=130)
    assert ends(threads=[lock]) == [("lock", "threads", (3, 90), (0, 130))]
    kernel = place(4, 0, outgoing=True, start_ns=170, launch_ns=140)
    assert ends(launches=[kernel]) == [("launch", "ties", (0, 140), (4, 170))]
    operator = place(5, 2, outgoing=False, start_ns=40, launch_ns=60)
    assert ends(launches=[operator]) == [("launch", "ties", (5, 60), (0, 100))]


def test_a_collective_is_one_line_through_all_ranks() -> None:
    peers = [place(9, 0, rank=2, start_ns=120), place(5, 0, rank=0, start_ns=90)]
    assert [(one[2], one[3]) for one in ends(peers=peers)] == [
        ((5, 90), (0, 100)),
        ((0, 100), (9, 120)),
    ]
