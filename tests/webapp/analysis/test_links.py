"""Addresses of places on the timeline."""

from __future__ import annotations

from lanescope.webapp.analysis.links import timeline_address


def test_an_instant_is_shown_with_its_surroundings() -> None:
    assert timeline_address(10_000, 10_020, 10**9) == "/timeline?t=9950-10070"
    assert timeline_address(10_000, 20_000, 10**9) == "/timeline?t=5000-25000"
    assert timeline_address(300_000, 300_000, 10**9) == "/timeline?t=200000-400000"
    assert timeline_address(50, 50, 10**9, ("0/1-0", 50)) == "/timeline?t=0-100050&at=0%2F1-0@50"
