"""What a plugin declares: questions, tables, metrics, pages and what it adds to the timeline.

Each folder of `plugins/` holds one record, `PLUGIN`. Whoever lists something reads all records, so
that has to be cheap: what a record names is text, `module:name` below the plugin's folder (or a
full name, `lanescope...:name`), and is imported when it is first used.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

PACKAGE = "lanescope.webapp.plugins"
"""Its folders are the plugins; those that begin with "_" are none."""


@dataclass(frozen=True)
class Kind:
    """A kind of finding."""

    name: str
    docs: str  # page and section below docs/ that explain it
    evidence: str = ""  # TypedDict: what its evidence has beside `findings.Evidence`
    marks: str = ""  # function (run, finding) -> sequence of headlines.CauseMark: its cause
    picture: str = ""  # function (run, finding) -> headlines.HeatPicture or None
    area: str = ""  # under which the first page lists its questions; without, that of the plugin


@dataclass(frozen=True)
class Question:
    """A question that is asked of every run.

    `find` is a function from a run to its findings; it raises NotApplicable where the run does not
    hold what it needs. With `baseline` it is asked of runs that have one, and gets (baseline, run,
    noise or None).
    """

    text: str
    find: str
    kinds: tuple[str, ...]  # of its findings
    order: int = 0  # in every list of questions; without, that of the plugin
    area: str = ""  # under which the first page lists it; without, that of its first kind
    recorded: bool = True  # needs what only a recording holds, no imported trace
    native: bool = False  # needs what the native engine records and the portable one does not
    baseline: bool = False
    needs: str = ""  # what a run has to hold for it; empty: nothing beyond recorded threads
    misses: str = ""  # faults of the kind that it cannot see


@dataclass(frozen=True)
class Metric:
    """A number that `check` measures of every run.

    `measure` is a function from a run to a number (share of 1), to one per rank, or to None where
    the run does not hold it.
    """

    name: str
    measure: str
    title: str
    order: int
    unmeasured: str  # why there may be no number
    link: str = "/timeline"
    bound: Literal["", "below", "at most", "at least"] = ""  # how the limit has to be kept
    limit: float = 0.0  # where there is a bound; lanescope.toml may set another
    kind: str = ""  # of the findings that explain it: errors where the limit is not kept
    evidence: str = ""  # number in the evidence of these that has to keep the same limit
    share: bool = True  # shown as percent
    area: str = ""  # under which the first page lists it; without, that of the plugin


@dataclass(frozen=True)
class Figure:
    """A figure on the first page.

    `measure` is a function from a run to a headlines.Headline; None where the run has none. With a
    `metric` it also gets the limit of that.
    """

    title: str
    measure: str
    order: int  # the first six that a run has are shown
    link: str  # the page that explains it
    colour: str = "accent"  # token of its course
    metric: str = ""  # name of the Metric that it is


@dataclass(frozen=True)
class Page:
    """A page beside the timeline, at /<name>.

    `layout` is a function from a ui.context.Context to a component, `register` adds callbacks to
    (app, context). `icon-<name>.svg` is in the plugin's folder.
    """

    name: str
    title: str
    order: int  # in the list of pages
    layout: str = "page:layout"
    register: str = "page:register"
    body: str = ""
    """Function of a ui.context.Context to a list of components, for parts that read the events of
    all ranks. They come into the page after its `layout`, which has a `states.body_place`."""
    shown: str = ""  # function of a run: true where the page is listed; without, it always is
    former: tuple[str, ...] = ()  # addresses that lead to it
    within: str = ""  # name of the page whose entry in the list it shares, as a tab
    tab: str = ""  # on its tab; without, the title
    kinds: tuple[str, ...] = ()  # of the findings that are shown on it
    stays: bool = False  # is in the document at all times, and only hidden
    selects: Mapping[str, str] = field(default_factory=dict)
    """Id of a field -> what it chooses of the selection that all pages share: "rank", "lane" (a
    thread or a rank) or "step"."""
    height: int = 0  # px of its picture in the docs; 0: none is taken
    plugin: str = ""  # package of the record, filled in by `plugins`

    @property
    def path(self) -> str:
        """Its address."""
        return f"/{self.name}"


@dataclass(frozen=True)
class Plugin:
    """All that one folder of `plugins/` brings."""

    name: str  # of the folder
    area: str = "Set-up"  # under which the first page lists its kinds and metrics
    order: int = 0  # of its questions in every list of questions
    depends: tuple[str, ...] = ()  # plugins that it may import from
    kinds: tuple[Kind, ...] = ()
    questions: tuple[Question, ...] = ()
    tables: Mapping[str, str] = field(default_factory=dict)
    """Functions from a run to a data frame: `lw.<name>`, in exports, in SQL, /table/<name>.csv."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """Functions from (baseline, run) to a data frame: `lw.<name>`, in exports with --baseline,
    /table/<name>.csv beside a baseline. They raise NotApplicable for runs that do not compare."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """Other names that `lanescope.webapp` offers."""
    metrics: tuple[Metric, ...] = ()
    figures: tuple[Figure, ...] = ()
    pages: tuple[Page, ...] = ()
    span_facts: str = ""
    """Function (timeline, lane, table, details) -> what the details of a slice get beside what they
    have; its "flows", see `timeline.flows`, are arrows."""
    lanes: str = ""
    """Function (run, baseline, noise, cache, progress) -> (index, places that differ): the lanes of
    a run beside a baseline. One plugin has it."""
    routes: Mapping[str, str] = field(default_factory=dict)
    """Name -> function (timeline, arguments) -> JSON that the timeline gets from /api/<name>."""


@cache
def plugins() -> tuple[Plugin, ...]:
    """Returns all records, by name, with full names in them."""
    package = importlib.import_module(PACKAGE)
    names = sorted(one.name for one in pkgutil.iter_modules(package.__path__))
    return tuple(
        _located(name, importlib.import_module(f"{PACKAGE}.{name}").PLUGIN)
        for name in names
        if not name.startswith("_")
    )


def _located(folder: str, record: Plugin) -> Plugin:
    package = f"{PACKAGE}.{folder}"
    if record.name != folder:
        raise ValueError(f"the plugin in {folder} is called {record.name!r}")

    def at(entry: str) -> str:
        return entry if not entry or entry.startswith("lanescope.") else f"{package}.{entry}"

    def all_at(entries: Mapping[str, str]) -> dict[str, str]:
        return {name: at(entry) for name, entry in entries.items()}

    return replace(
        record,
        kinds=tuple(
            replace(
                one,
                evidence=at(one.evidence),
                picture=at(one.picture),
                marks=at(one.marks),
                area=one.area or record.area,
            )
            for one in record.kinds
        ),
        questions=tuple(
            replace(one, find=at(one.find), order=one.order or record.order)
            for one in record.questions
        ),
        tables=all_at(record.tables),
        changes=all_at(record.changes),
        functions=all_at(record.functions),
        metrics=tuple(
            replace(one, measure=at(one.measure), area=one.area or record.area)
            for one in record.metrics
        ),
        figures=tuple(replace(one, measure=at(one.measure)) for one in record.figures),
        pages=tuple(
            replace(
                one,
                layout=at(one.layout),
                register=at(one.register),
                body=at(one.body),
                shown=at(one.shown),
                plugin=package,
            )
            for one in record.pages
        ),
        span_facts=at(record.span_facts),
        lanes=at(record.lanes),
        routes=all_at(record.routes),
    )


def load(entry: str) -> Any:
    """Returns what `module:name` names, imported now."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def questions(*, baseline: bool = False) -> tuple[Question, ...]:
    """Returns the questions asked of every run, or those about it and its baseline, in their
    order."""
    every = kinds()
    found = (
        replace(one, area=one.area or every[one.kinds[0]].area)
        for plugin in plugins()
        for one in plugin.questions
        if one.baseline == baseline
    )
    return tuple(sorted(found, key=lambda one: one.order))


def kinds() -> dict[str, Kind]:
    """Returns every kind of finding by name."""
    return {kind.name: kind for plugin in plugins() for kind in plugin.kinds}


def metrics() -> tuple[Metric, ...]:
    """Returns all metrics in their order."""
    found = (one for plugin in plugins() for one in plugin.metrics)
    return tuple(sorted(found, key=lambda one: one.order))


def metric(name: str) -> Metric:
    """Returns the metric of this name."""
    return next(one for one in metrics() if one.name == name)


def figures() -> tuple[Figure, ...]:
    """Returns all figures of the first page in their order."""
    found = (one for plugin in plugins() for one in plugin.figures)
    return tuple(sorted(found, key=lambda one: one.order))


def pages() -> tuple[Page, ...]:
    """Returns all pages in their order."""
    found = (one for plugin in plugins() for one in plugin.pages)
    return tuple(sorted(found, key=lambda one: one.order))


def tables() -> dict[str, str]:
    """Maps the name of each table that an analysis makes to its function."""
    return {name: entry for plugin in plugins() for name, entry in plugin.tables.items()}


def changes() -> dict[str, str]:
    """Name of each table that compares a baseline with a run -> its function."""
    return {name: entry for plugin in plugins() for name, entry in plugin.changes.items()}


def functions() -> dict[str, str]:
    """Returns name -> function of everything that plugins offer in code."""
    others = {name: entry for plugin in plugins() for name, entry in plugin.functions.items()}
    return tables() | changes() | others


def span_facts() -> tuple[str, ...]:
    """Functions that add to the details of a slice."""
    return tuple(plugin.span_facts for plugin in plugins() if plugin.span_facts)


def lanes() -> str:
    """Returns the function that lays out a run beside its baseline."""
    (found,) = (plugin.lanes for plugin in plugins() if plugin.lanes)
    return found


def routes() -> dict[str, str]:
    """Returns name -> function of what the timeline asks plugins for."""
    return {name: entry for plugin in plugins() for name, entry in plugin.routes.items()}
