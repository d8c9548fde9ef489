"""Elements that no callback knows are sent as they are; all else stays a component."""

from __future__ import annotations

from dash import dcc, html

from lanescope.webapp.ui.elements import Fixed, fixed


def test_elements_without_an_id_become_one_component() -> None:
    table = html.Table(html.Tr([html.Td("a", className="n"), html.Td(["b", dcc.Link("c", "/c")])]))
    (row,) = fixed([html.P("first"), "between", table])[0].tree[2:]
    cells = [
        ["td", {"className": "n"}, "a"],
        ["td", {}, "b", ["a", {"href": "/c"}, "c"]],
    ]
    assert row == ["table", {}, ["tr", {}, *cells]]


def test_what_a_callback_may_know_stays_what_it_is() -> None:
    field = dcc.Input(id="field")
    answer = html.Div([html.B("one"), html.I("two"), field, html.Div("three", id="place")])
    made = fixed(answer)
    before, kept, place = made.children
    assert isinstance(before, Fixed)
    assert [one[0] for one in before.tree] == ["b", "i"]
    assert (kept, place.id, place.children) == (field, "place", "three")
    assert len(answer.children) == 4  # a page is made once and may be asked for again
    assert fixed(made).to_plotly_json() == made.to_plotly_json()


def test_other_answers_are_not_touched() -> None:
    rows = [{"op": "aten::mm"}]
    assert fixed(rows) is rows
    assert fixed("words") == "words"
    assert fixed(None) is None
