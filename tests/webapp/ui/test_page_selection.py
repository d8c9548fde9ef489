"""The parts of an address that pages share."""

from __future__ import annotations

from dash import dcc, html

from lanescope.webapp.ui.page_selection import PageSelection, fill, selection_in


def test_parts_that_are_not_valid_count_as_none() -> None:
    assert selection_in("?rank=1&thread=7-0&step=2&t=0-9") == PageSelection(1, "7-0", 2)
    assert selection_in("rank=x&step=-1&thread=") == PageSelection()
    assert selection_in(None) == PageSelection()


def test_fields_take_what_they_offer() -> None:
    lanes = dcc.Dropdown(["all", "1", "1/7-0"], "all", id="lanes")
    ranks = dcc.Dropdown([{"label": "rank 0", "value": 0}], 0, id="ranks")
    step = dcc.Input(id="step", value=5, min=0, max=9)
    layout = html.Div([lanes, html.Div([ranks, step])])
    fields = {"lanes": "lane", "ranks": "rank", "step": "step"}
    fill(layout, fields, PageSelection(1, "8-0", 2))
    assert (lanes.value, ranks.value, step.value) == ("1", 0, 2)
    fill(layout, fields, PageSelection(1, "7-0", 12))
    assert (lanes.value, ranks.value, step.value) == ("1/7-0", 0, 2)
