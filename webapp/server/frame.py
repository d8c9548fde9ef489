"""The frame around all pages: header, rail, the timeline that stays, the page that changes."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, cast

from dash import (
    ClientsideFunction,
    Dash,
    Input,
    Output,
    State,
    ctx,
    dcc,
    html,
    no_update,
    set_props,
)
from dash.development.base_component import Component

from lanescope.webapp.analysis.checks import Report
from lanescope.webapp.analysis.plugin import Page, load
from lanescope.webapp.runs import units
from lanescope.webapp.runs.growing import is_live
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import findings, ids, states, widgets
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.page_selection import PageSelection, fill, selection_in

EXAMINING = "examining …"


def layout(context: Context, pages: Sequence[Page]) -> Component:
    """Returns the whole document. Pages that stay are always in it; the others come into PAGE."""
    return html.Div(
        [
            dcc.Location(id=ids.LOCATION, refresh="callback-nav"),
            dcc.Store(id=ids.THEME),
            dcc.Store(id=ids.LIVE_STATE),
            dcc.Store(id=ids.PAGE_STATE),
            dcc.Store(id=ids.EXAMINED),
            dcc.Interval(id=ids.EXAMINING, interval=500, disabled=True),
            html.A(
                "Skip to the page",
                href=f"#{ids.PAGE}",
                className="skip",
                **widgets.attributes(data_action="skip"),
            ),
            _header(context),
            _rail(pages),
            html.Main(
                [
                    *(load(page.layout)(context) for page in pages if page.stays),
                    html.Div(id=ids.PAGE, className="page", hidden=True, tabIndex=-1),
                    html.Div(id=ids.NOTICE, role="alert", className="notice", hidden=True),
                ],
                className="stage",
            ),
        ],
        id=ids.FRAME,
    )


def _register_choices(app: Dash, pages: Sequence[Page]) -> None:
    """Has the address follow the fields by which pages choose rank, thread, step or window."""
    connect: Any = app.clientside_callback  # Dash leaves it untyped
    for page in pages:
        for field, part in page.selects.items():
            # With an output on the field itself, the first value of a new field calls nothing.
            connect(
                ClientsideFunction("lanescope", f"choose_{part}"),
                Output(field, "className"),
                Input(field, "value"),
                prevent_initial_call=True,
            )


def register(app: Dash, context: Context, pages: Sequence[Page]) -> None:
    """Turns addresses into pages. The timeline is shown and hidden in the browser alone."""
    by_path = {path: page for page in pages if not page.stays for path in (page.path, *page.former)}
    by_path["/"] = pages[0]
    staying = {page.path for page in pages if page.stays}
    connect: Any = app.clientside_callback  # Dash leaves it untyped
    connect(
        ClientsideFunction("lanescope", "shown"),
        [
            Output(ids.TIMELINE, "className"),
            *[Output(ids.rail(page.name), "className") for page in pages if not page.within],
        ],
        Input(ids.LOCATION, "href"),
    )

    @app.callback(
        Output(ids.PAGE, "children"),
        Output(ids.PAGE, "hidden"),
        Input(ids.LOCATION, "pathname"),
        Input(ids.PAGE_STATE, "data"),
        State(ids.LOCATION, "search"),
    )
    def show(path: str | None, _: str | None, search: str | None) -> tuple[Any, bool]:
        set_props(ids.NOTICE, {"hidden": True})
        if path in staying:
            return [], True
        page = by_path.get(path or "/")
        if page is None:
            links = [html.Li(dcc.Link(one.title, href=one.path)) for one in pages]
            found = states.empty("There is no such page.", html.Ul(links))
            return widgets.bare_page("Not found", found), False
        # A page that is renewed while its run is recorded does not shrink to its head meanwhile.
        whole = ctx.triggered_id == ids.PAGE_STATE
        return [*_tabs(page, pages), made(page, context, selection_in(search), whole=whole)], False

    _register_health(app, context)

    _register_choices(app, pages)

    _register_later(app, context, by_path)


def _register_health(app: Dash, context: Context) -> None:
    """Fills the header once the report is there; parts that did not wait for it then ask again."""

    @app.callback(
        Output(ids.HEALTH, "children"),
        Output(ids.HEALTH, "className"),
        Output(ids.ABOUT, "children"),
        Output(ids.EXAMINED, "data"),
        Input(ids.PAGE, "hidden"),
        Input(ids.LIVE_STATE, "data"),
        Input(ids.EXAMINING, "n_intervals"),
        State(ids.HEALTH, "children"),
    )
    def health(
        _: bool, __: int | str | None, number: int | None, shown: Any
    ) -> tuple[Any, Any, Any, Any]:
        # Once the first page is there: examining the run would hold it up.
        if ctx.triggered_id == ids.PAGE and shown != EXAMINING:
            return no_update, no_update, no_update, no_update
        awaited = ctx.triggered_id == ids.EXAMINING
        report = states.report_of(context, 0 if awaited else states.PATIENCE_S)
        if report is None:
            return no_update, no_update, no_update, no_update
        if awaited:
            set_props(ids.EXAMINING, {"disabled": True})
        return (*_health(context, report), _about(context.run), number if awaited else no_update)


def _register_later(app: Dash, context: Context, by_path: Mapping[str, Page]) -> None:
    """Fills what comes after the head of a page."""

    @app.callback(
        Output(ids.PAGE_BODY, "children"),
        Input(ids.PAGE_BODY, "id"),
        State(ids.LOCATION, "pathname"),
        State(ids.LOCATION, "search"),
    )
    def show_body(_: str, path: str | None, search: str | None) -> Any:
        page = by_path.get(path or "/")
        if page is None or not page.body:
            return no_update
        return _body(page, context, selection_in(search))

    @app.callback(
        Output(ids.PAGE_FINDINGS, "children"),
        Input(ids.PAGE_FINDINGS, "id"),
        Input(ids.EXAMINED, "data"),
        State(ids.LOCATION, "pathname"),
    )
    def show_findings(_: str, __: int | None, path: str | None) -> list[Component]:
        page = by_path.get(path or "/")
        report = None if page is None or not page.kinds else states.report_of(context)
        if page is None or report is None:
            return []
        found = [one for one in report.findings if one.kind in page.kinds]
        return [findings.cards(context, found, page.name)] if found else []


def _tabs(page: Page, pages: Sequence[Page]) -> list[Component]:
    """Links to the pages that share an entry of the rail; none where it is alone there."""
    group = page.within or page.name
    shared = [one for one in pages if group in (one.name, one.within)]
    if len(shared) < 2:
        return []
    links = [
        dcc.Link(
            one.tab or one.title,
            href=one.path,
            className="page-tab here" if one is page else "page-tab",
        )
        for one in shared
    ]
    return [html.Nav(links, className="page-tabs", **widgets.attributes(aria_label="Parts"))]


def made(
    page: Page, context: Context, selection: PageSelection | None = None, *, whole: bool = False
) -> Component:
    """Returns the page with its fields at the selection, or the reason why it could not be made;
    other pages are unaffected. `whole`: with its body, which else comes by a callback."""
    chosen = selection or PageSelection()
    try:
        layout: Component = load(page.layout)(context)
        fill(layout, page.selects, chosen)
        for place in (
            [
                one
                for one in cast(Any, layout)._traverse()
                if getattr(one, "id", "") == ids.PAGE_BODY
            ]
            if whole
            else []
        ):
            place.children = _body(page, context, chosen)
            del place.id
    except Exception as error:
        return widgets.bare_page(page.title, states.failed(error, page.name))
    return layout


def _body(page: Page, context: Context, selection: PageSelection) -> list[Component]:
    """Returns what comes into the page after its head, with its fields at the selection."""
    parts: list[Component] = load(page.body)(context)
    fill(html.Div(parts), page.selects, selection)
    return parts


def _fill_body(layout: Component, parts: list[Component]) -> None:
    """Puts them into the place of the body, which then is filled by no callback."""
    for one in cast(Any, layout)._traverse():
        if getattr(one, "id", None) == ids.PAGE_BODY:
            one.children = parts
            del one.id


def _header(context: Context) -> Component:
    run = context.run
    base = context.baseline
    return html.Header(
        [
            dcc.Link(
                [html.I(), html.I(), html.I(), html.Span("LaneScope")],
                href="/overview",
                className="brand",
            ),
            html.Span(
                _about(run),
                id=ids.ABOUT,
                className="pill run",
                title=run.files.place,
            ),
            dcc.Link(
                ["baseline ", html.B(_short(base.title) if base else "none")],
                href="/compare",
                className="pill baseline",
                title=f"Compare with {base.files.place}" if base else "Compare",
            ),
            html.Div(className="spring"),
            html.Div(id=ids.SEARCH, className="search-host"),
            html.Div(className="spring"),
            html.Div(id=ids.LIVE, hidden=True),
            # Filled once the page is there: examining a long run takes a while.
            dcc.Link(
                EXAMINING,
                id=ids.HEALTH,
                href="/overview",
                className="pill",
                title="What was recorded, and what is wrong with it",
            ),
            _clock(context),
            html.Button(
                html.I(className="icon icon-theme"),
                className="icon-button",
                title="Light or dark (T)",
                **widgets.attributes(data_action="theme", aria_label="Light or dark"),
            ),
            html.Button(
                html.Kbd("?"),
                className="icon-button",
                title="Keys (?)",
                **widgets.attributes(data_action="help", aria_label="Keys and gestures"),
            ),
        ],
        className="header",
    )


def _about(run: Run) -> list[Any]:
    """The run's name and sizes."""
    steps = max((len(run.steps(rank)) for rank in run.ranks), default=0)
    sizes = {"rank": len(run.ranks), "thread": len(run.threads)}
    if not is_live(run.files):  # else the header counts steps as they come
        sizes["step"] = steps
    about = "".join(f" · {units.counted(number, word)}" for word, number in sizes.items())
    return [html.B(_short(run.title)), about]


def _short(title: str) -> str:
    """Returns the end of a path, which distinguishes runs: there is room for little more."""
    parts = title.rstrip("/").split("/")
    return title if len(parts) <= 2 else "/".join(["\N{HORIZONTAL ELLIPSIS}", *parts[-2:]])


def _health(context: Context, report: Report) -> tuple[list[Any], str]:
    """The worst that is known of the run, in words, and the classes that colour them."""
    errors = report.errors
    warnings = len(context.run.warnings)
    warnings += sum(finding.severity == "warning" for finding in report.findings)
    words: list[Any] = []
    if errors:
        words.append(html.B(units.counted(errors, "error")))
    if warnings:
        text = units.counted(warnings, "warning")
        words += [" · ", text] if words else [html.B(text)]
    tone = "bad" if errors else "warn" if warnings else ""
    if not words and report.findings:
        words = [units.counted(len(report.findings), "note")]
    if not words:
        checked = any(one.answered for one in report.examined)
        words = ["nothing found" if checked else "nothing checked"]
    return words, f"pill {tone}".strip()


def _clock(context: Context) -> Component:
    run = context.run
    if not run.clock_calibrated:
        words: list[Any] = [html.B("clocks not aligned")]
        title = "The hosts' clocks were not compared: times of different ranks may be off by more."
        return html.Span(words, className="pill warn", title=title)
    if run.clock_uncertainty_ns == 0:
        return html.Span(
            "clocks in sync", className="pill clock", title="All ranks read the same clock."
        )
    return html.Span(
        f"clock ± {widgets.duration_text(run.clock_uncertainty_ns)}",
        className="pill",
        title="Largest error of the shown distance between instants of different ranks.",
    )


def _rail(pages: Sequence[Page]) -> Component:
    groups = {page.name: page.within for page in pages if page.within}
    titles = {page.name: page.title for page in pages}
    return html.Nav(
        [
            dcc.Link([_icon(page), page.title], href=page.path, id=ids.rail(page.name))
            for page in pages
            if not page.within
        ],
        className="rail",
        **widgets.attributes(
            aria_label="Pages", data_groups=json.dumps(groups), data_titles=json.dumps(titles)
        ),
    )


def _icon(page: Page) -> Component:
    """The page's icon as part of the document: it comes from its plugin's folder."""
    shape = files(page.plugin).joinpath(f"icon-{page.name}.svg").read_bytes()
    address = f"data:image/svg+xml;base64,{b64encode(shape).decode()}"
    return html.I(className="icon", style={"--shape": f'url("{address}")'})
