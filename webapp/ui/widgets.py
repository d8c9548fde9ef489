"""Parts that pages share: charts, tables, notes, links to the timeline."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import plotly.graph_objects as go
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from lanescope.webapp.analysis.links import calls_address
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import ids
from lanescope.webapp.ui.charts import empty_figure
from lanescope.webapp.ui.elements import InSight
from lanescope.webapp.ui.theme import GRAPH_CONFIG

Child = Component | str

SEARCHED = 12
"""Options of a drop-down; more than these can be searched."""

LIST_PX = 320
"""Height that the list of a drop-down may take; a longer list scrolls."""


def duration_text(ns: float) -> str:
    """Returns a duration for the page, which has a micro sign where terminals may not."""
    return with_micro(units.duration(ns))


def with_micro(text: str) -> str:
    """Returns a unit, or a text with durations in it, with the micro sign."""
    return _MICROSECONDS.sub("\N{MICRO SIGN}s", text)


_MICROSECONDS = re.compile(r"^us$|(?<=\d )us\b")


def breakable(content: Any) -> Any:
    """Returns what a cell holds; long names of a text may go on in the next line behind `_`, `.`,
    `:` and `/`, and not in mid-word."""
    if not isinstance(content, str):
        return content
    first, *more = re.split(r"(?<=[_.:/])(?=[^\W\d_])", content)
    return [first, *(piece for one in more for piece in (html.Wbr(), one))] if more else content


def attributes(**names: str) -> dict[str, Any]:
    """Attributes whose names have dashes: `aria_label="..."`."""
    return {name.replace("_", "-"): value for name, value in names.items()}


def graph(id: str, figure: go.Figure | None = None, height: int = 420, *, what: str) -> Component:
    """Returns a Plotly chart: the only place that makes one, so that all have the same settings.

    It is drawn once it comes into sight. Until there is a figure its place says that `what` is
    being computed.
    """
    picture = GRAPH_CONFIG["toImageButtonOptions"] | {"filename": f"lanescope-{id}"}
    chart = dcc.Graph(
        id=id,
        figure=figure if figure is not None else empty_figure(f"Computing {what} …"),
        config=cast(Any, GRAPH_CONFIG | {"toImageButtonOptions": picture}),
        style={"height": f"{height}px"},
    )
    return InSight(chart, id=f"{id}-place", height=f"{height}px")


def open_on_click(
    app: Dash,
    chart: str,
    address: Callable[[dict[str, Any], Any], str | None],
    state: State | None = None,
) -> None:
    """Has a click on a point of a chart open `address(point, value of state)`; None: none."""

    @app.callback(
        Output(ids.LOCATION, "href", allow_duplicate=True),
        Input(chart, "clickData"),
        state or State(chart, "id"),
        prevent_initial_call=True,
    )
    def follow(click: dict[str, Any] | None, value: Any) -> Any:
        point = (click or {}).get("points", [{}])[0]
        return (address(point, value) if point else None) or no_update


def controls(*children: Child, hidden: bool = False) -> Component:
    """Returns a row of controls, each after its label."""
    return html.Div(list(children), className="controls", hidden=hidden)


def chart_section(
    title: str, choices: Sequence[Component], chart: str, note: str, *, height: int = 320
) -> list[Component]:
    """Returns a heading, what can be chosen, a chart (its id) and a line about it (its id)."""
    return [
        html.H2(title),
        controls(*choices),
        graph(chart, height=height, what=title[0].lower() + title[1:]),
        html.P(id=note, className="muted"),
    ]


def choice(
    label: str,
    id: str,
    options: Sequence[str] | Sequence[dict[str, Any]],
    value: Any = None,
    *,
    wide: bool = False,
) -> Component:
    """Returns a label and its drop-down, which stay side by side. One of its options is always
    chosen: at first `value`, or else the first. Many can be searched."""
    first = options[0] if options else None
    known = first["value"] if isinstance(first, dict) else first
    down = dcc.Dropdown(
        list(options),
        known if value is None else value,
        id=id,
        clearable=False,
        searchable=len(options) > SEARCHED,
        maxHeight=LIST_PX,
        className="wide" if wide else "",
    )
    return html.Div([html.Label(label, htmlFor=id), down], className="choice")


def find_box(id: str, placeholder: str, label: str = "find", value: str = "") -> Component:
    """Returns a label and a field for words; its value changes when typing pauses."""
    box = dcc.Input(id=id, type="search", value=value, debounce=0.3, placeholder=placeholder)
    named = html.Label(label, htmlFor=id)
    return html.Div([named, html.Div(box, className="find-box")], className="choice")


def rank_options(ranks: Iterable[int], kind: type[int] | type[str] = int) -> list[dict[str, Any]]:
    """Returns options of a drop-down of ranks; their values are numbers, or the same as text."""
    return [{"label": f"rank {rank}", "value": kind(rank)} for rank in ranks]


def downloads(*names: str) -> Component:
    """Returns links to tables of the run (of `exporters.tables`) as files."""
    words: list[Child] = []
    for name in names:
        words.append(f"{' · ' if words else ''}{name.replace('_', ' ')} as ")
        for kind, title in (("csv", "CSV"), ("parquet", "Parquet")):
            words += [", "] if kind == "parquet" else []
            words.append(html.A(title, href=f"/table/{name}.{kind}", download=f"{name}.{kind}"))
    return html.P(["Download ", *words], className="muted")


def plain_table(
    heads: Sequence[str], rows: Iterable[Sequence[Child]], numbers: Sequence[int] = ()
) -> Component:
    """Returns a small table; `numbers` are the columns to align right. The last cell of a row that
    is shorter than the heads takes the rest of its width."""

    def kind(position: int) -> str:
        return "n" if position in numbers else ""

    def cells(row: Sequence[Child]) -> list[Component]:
        rest = max(1, len(heads) - len(row) + 1)
        return [
            html.Td(breakable(cell), className=kind(i), colSpan=rest if i == len(row) - 1 else 1)
            for i, cell in enumerate(row)
        ]

    return html.Table(
        [
            html.Thead(
                html.Tr(
                    [
                        html.Th(h, className=kind(i), scope="col") if h else html.Td()
                        for i, h in enumerate(heads)
                    ]
                )
            ),
            html.Tbody([html.Tr(cells(row)) for row in rows]),
        ],
        className="plain",
    )


def head_of_table(
    heads: Sequence[str], rows: Sequence[Sequence[Child]], numbers: Sequence[int], count: int
) -> Component:
    """Returns `plain_table` with the first of `count` rows; a line below says that the file of the
    table, whose link follows it, has the rest."""
    rest = count - len(rows)
    words = f"{units.counted(rest, 'more row')} in the file below." if rest > 0 else ""
    return html.Div([plain_table(heads, rows, numbers), html.P(words, className="muted")])


def note(children: Any, tone: str = "") -> Component:
    """Returns a remark set apart; tone good, warn or bad."""
    return html.Div(children, className=f"note {tone}".strip())


def page(title: str, lead: Any, *children: Any) -> Component:
    """Returns the body of a page. The frame puts the findings of its kinds below the lead."""
    found = html.Div(id=ids.PAGE_FINDINGS)
    return html.Div(
        [html.H1(title), html.P(lead, className="lead"), found, *children], className="page-inner"
    )


def bare_page(title: str, *children: Any) -> Component:
    """Returns the body of a page that shows `children` alone."""
    return html.Div([html.H1(title), *children], className="page-inner")


def panel(title: str, about: str, *children: Any) -> Component:
    """Returns a part of a page under a heading, `about` in small letters beside it."""
    head: list[Any] = [f"{title} ", html.Small(about)] if about else [title]
    return html.Section([html.H2(head), *children], className="panel")


def swatch(token: str) -> Component:
    """Returns the colour of a token of the style sheet, beside the name of what has it."""
    return html.I(className=f"swatch {token}", **attributes(aria_hidden="true"))


def timeline_link(text: Child, start_ns: int, end_ns: int, duration_ns: int, **query: str) -> Any:
    """Returns a link to the place in the timeline, with some of its surroundings."""
    margin = max((end_ns - start_ns) // 2, 50)
    low, high = max(0, start_ns - margin), min(duration_ns, end_ns + margin)
    more = "".join(f"&{key}={value}" for key, value in query.items())
    return dcc.Link(text, href=f"/timeline?t={low}-{high}{more}")


def calls_link(name: str, rank: int, shown: str = "") -> Component:
    """Returns the name of an operator or kernel (or `shown`), which leads to its calls on a
    rank."""
    text = breakable(shown or name)
    return dcc.Link(text, href=calls_address(name, rank), title=f"{name}: show its calls")


def thread_names(run: Run) -> dict[tuple[int, str], str]:
    """Returns what to call each thread of a rank. Children of the rank's process are distinguished
    by their pid, threads of one name within a process by their number."""
    own: dict[int, int] = {}
    for t in run.threads:
        own.setdefault(t.rank, t.pid)  # threads are ordered by process, the rank's own first
    same = Counter((t.rank, t.pid, t.name) for t in run.threads)
    names = {}
    for t in run.threads:
        number = f" {t.thread.rpartition('-')[2]}" if same[t.rank, t.pid, t.name] > 1 else ""
        process = "" if t.pid == own[t.rank] else f" (pid {t.pid})"
        names[t.rank, t.thread] = f"{t.name}{number}{process}"
    return names
