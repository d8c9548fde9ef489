"""The first sentence of a finding, which says what is wrong, stands out."""

from __future__ import annotations

import pytest

from lanescope.webapp.ui import findings


@pytest.mark.parametrize(
    ("what", "rest"),
    [
        ("Rank 2 is late by 247 ms (64.8 %).", "It came last in 30 of 30 steps."),
        ("The epoch of the sampler stays 0.", "Call sampler.set_epoch(). Do so before each epoch."),
        ("Inputs are scaled, e.g. Net.head gets bytes.", ""),
    ],
)
def test_the_first_sentence_stands_out(what: str, rest: str) -> None:
    first, *others = findings._words(f"{what} {rest}".strip()).children
    assert first.children == what
    assert "".join(others).strip() == rest
