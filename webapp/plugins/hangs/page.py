"""What is each rank doing at the end, since when, and who waits for whom?"""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, dcc, html, no_update
from dash.development.base_component import Component

from lanescope.webapp.analysis.collective_calls import call_title
from lanescope.webapp.analysis.incomplete_collectives import (
    IncompleteCollective,
    cut_short,
    incomplete_collectives,
)
from lanescope.webapp.analysis.links import group_lane, thread_lane, timeline_address
from lanescope.webapp.analysis.rank_state import RankState, dumps, rank_states
from lanescope.webapp.analysis.source_lines import excerpt
from lanescope.webapp.analysis.stack_frames import frames_of, place_of
from lanescope.webapp.plugins.hangs import ids
from lanescope.webapp.plugins.hangs.call_evidence import were
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.run_warnings import ranks_named
from lanescope.webapp.ui import findings as cards
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui import source, states, widgets
from lanescope.webapp.ui.context import Context

_KINDS = ("hang", "collective_mismatch", "deadlock")
FRAMES = 6
"""Frames of a stack that are shown, innermost first."""
RANKS = 40
"""Ranks of the table that are shown at once."""
DUMPED = 16
"""Ranks whose threads are shown."""

_LEAD = (
    "Where each rank stood when the recording ended: what its main thread did, in which collective "
    "it waits, and for whom. Works for processes that were killed, too."
)


def layout(_: Context) -> Component:
    """Returns the head of the page; `body` reads the last events of all ranks."""
    return widgets.page("Hangs", _LEAD, states.body_place("Comparing where the ranks stand"))


def body(context: Context) -> list[Component]:
    """Returns a place for the verdict, a row per rank, what the watchdog saw of all threads."""
    run = context.run
    count = len(run.ranks) + len(run.missing_ranks)
    parts = [
        {"label": f"{first + 1} to {min(first + RANKS, count)} of {count}", "value": first}
        for first in range(0, count, RANKS)
    ]
    which = "those that wait or are missing first" if len(parts) > 1 else ""
    return [
        html.Div(states.loading("Examining the run"), id=ids.HANG_VERDICT),
        html.H2("Ranks"),
        widgets.controls(
            widgets.choice("show", ids.HANG_PAGE, parts), which, hidden=len(parts) < 2
        ),
        html.Div(_ranks(context, 0), id=ids.HANG_RANKS, className="wide-table"),
        *_threads(run),
    ]


def hang_verdict(context: Context) -> Component:
    """Returns the findings about calls that did not come about, or why there are none."""
    run = context.run
    found = [one for one in context.report().findings if one.kind in _KINDS]
    if found:
        return cards.cards(context, found)
    if not run.counts["collective"]:
        return widgets.note("No collective was recorded: no rank can wait for another in one.")
    if cut_short(run):
        if run.imported:
            words = "Not checked: the trace is not whole, so a missing call proves nothing."
            return widgets.note(words)
        return widgets.note(
            "Not checked: the recording is not whole, so a missing call proves nothing. Record "
            "without --steps and --keep-last, and with a larger --max-disk where steps are missing."
        )
    if incomplete_collectives(run):
        return widgets.note("Ranks wait for others, but not for longer than is normal here.")
    if run.missing_ranks:
        who = f"{units.sentence(ranks_named(run.missing_ranks))} {were(run.missing_ranks)}"
        return widgets.note(f"No recorded rank waits for another. {who} not recorded.")
    return widgets.note("No rank waits for another: every call was made by all.", "good")


def _shown(run: Run, first: int) -> list[int]:
    """Returns RANKS ranks from `first` on: of many, those that wait or are missing come first."""
    ranks = [*rank_states(run), *run.missing_ranks]
    if len(ranks) > RANKS:
        waiting = incomplete_collectives(run)
        held = {rank for wait in waiting for rank in (*wait.ranks, *wait.missing)}
        missing = set(run.missing_ranks)
        held |= missing if len(missing) < RANKS else set()  # of nearly all nothing can be said
        ranks.sort(key=lambda rank: (rank not in held, rank in missing, rank))
    return ranks[first : first + RANKS]


def _ranks(context: Context, first: int) -> Component:
    run = context.run
    waiting = incomplete_collectives(run)
    rows: list[list[widgets.Child]] = []
    for rank in _shown(run, first):
        standing = rank_states(run).get(rank)
        if standing is None:
            rows.append([html.B(str(rank)), "not recorded", *[""] * 5])
            continue
        held = [wait for wait in waiting if rank in wait.ranks]
        awaited = sorted(
            {other for wait in waiting if rank in wait.missing for other in wait.ranks}
        )
        # Where a trace of another tool ends, the program may have gone on.
        over = standing.ending.how == "exit" and not held and not awaited
        cut = over and run.imported
        does: list[Any] = [] if over else [standing.activity, *_at(standing)]
        rows.append(
            [
                html.B(str(rank)),
                html.Span() if cut else _state(standing, bool(held), bool(awaited)),
                _call(run, held),
                _together(_awaits(held[0])) if held else "",
                _together(ranks_named(awaited)) if awaited else "",
                html.Span("its trace ends" if cut else does),
                _since(context, standing, held),
            ]
        )
    heads = ("rank", "state", "waits in", "for", "awaited by", "what it does", "since")
    used = [i for i in range(len(heads)) if i < 2 or any(_holds(row[i]) for row in rows)]
    return widgets.plain_table([heads[i] for i in used], [[row[i] for i in used] for row in rows])


def _holds(cell: widgets.Child) -> bool:
    """Whether there is anything in a cell."""
    return bool(cell if isinstance(cell, str) else getattr(cell, "children", None))


def _awaits(wait: IncompleteCollective) -> str:
    return ranks_named(wait.missing) if wait.missing else "its end: all came"


def _state(standing: RankState, waits_here: bool, awaited: bool) -> Component:
    if waits_here:
        return html.Span("waits", className="tag warn")
    how = standing.ending.how
    if how in ("died", "raised"):
        return html.Span(how, className="tag bad")
    if awaited:
        return html.Span("missing", className="tag bad")
    known = {"exit": "ended", "stopped": "stopped"}.get(how)
    return html.Span(known, className="tag") if known else html.Span()


def _call(run: Run, held: list[IncompleteCollective]) -> widgets.Child:
    if not held:
        return ""
    wait = held[0]
    more = f" and {len(held) - 1} more" if len(held) > 1 else ""
    return call_title(run, wait.op, wait.group, wait.sequence) + more


def _at(standing: RankState) -> list[Any]:
    return [" ", html.Code(standing.where)] if standing.where else []


def _since(
    context: Context, standing: RankState, held: list[IncompleteCollective]
) -> widgets.Child:
    run, rank = context.run, standing.rank
    if held:
        wait = held[0]
        start = next(entry.start_ns for entry in wait.waiting if entry.rank == rank)
        at = group_lane(rank, wait.group), start
    else:
        start = standing.since_ns
        at = thread_lane(rank, standing.thread or ""), start
    end = max(start + 1, standing.end_ns)
    link = timeline_address(start, end, run.duration_ns, at)
    over = not held and standing.left
    lasted = (
        "" if over or end - start <= 1_000_000 else f", for {widgets.duration_text(end - start)}"
    )
    words = _together(f"{widgets.duration_text(start)}{lasted}")
    return dcc.Link(words, href=context.address(link))


def _together(words: str) -> str:
    """The words with each number beside what it counts: a line may end after a comma alone."""
    return words.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")


def _threads(run: Run) -> list[Component]:
    """Every thread as the watchdog saw it last, rank by rank."""
    made: list[Component] = []
    dumped = [rank for rank in run.ranks if dumps(run, rank)]
    for rank in dumped[:DUMPED]:
        names = {thread.thread: thread.name for thread in run.threads_of(rank)}
        rows = [
            row for row in dumps(run, rank) if row["time_ns"] >= rank_states(run)[rank].since_ns
        ]
        # As a signal ends it, a process cannot say who holds what its threads wait for.
        rows = [row for row in rows if row["reason"] != "signal"] or rows or dumps(run, rank)
        last = [row for row in rows if row["time_ns"] == rows[-1]["time_ns"]] if rows else []
        if not last:
            continue
        seen = [
            [
                row["name"],
                row["waiting"] or "–",
                names.get(row["owner"], row["owner"]) or "–",
                row["last_op"] or "–",
                units.share_cell(row["cpu"]),
                html.Div(
                    _frames(run, rank, row["stack"]),
                    className="stack",
                ),
            ]
            for row in last
        ]
        quiet = f"nothing recorded for {widgets.duration_text(last[0]['duration_ns'])}"
        when = "when SIGTERM came" if last[0]["reason"] == "signal" else quiet
        heads = ("thread", "waits for", "held by", "last op", "CPU", "stack, innermost first")
        made.append(html.H3(f"rank {rank}, {when}"))
        made.append(html.Div(widgets.plain_table(heads, seen), className="wide-table thread-dump"))
    if len(dumped) > DUMPED:
        words = f"Of {units.count(len(dumped))} ranks with stacks the first {DUMPED} are shown; "
        made.append(html.P([words, "the table ", html.Code("stall"), " has all, see SQL."]))
    return [html.H2("Threads, as the watchdog saw them"), *made] if made else []


def _frames(run: Run, rank: int, stack: int | None) -> list[Component]:
    """The innermost frames, with the lines of the program that the run holds."""
    made: list[Component] = []
    for frame in frames_of(run, rank, stack)[:FRAMES]:
        words = f"{place_of(frame)} {frame['function']}"
        found = excerpt(run, rank, frame["file"], frame["line"])
        made.append(html.Code(words) if found is None else source.opened_by(words, found))
    return made


def register(app: Dash, context: Context) -> None:
    """Fills the verdict once all questions are answered, and the table with the chosen ranks."""

    @app.callback(
        Output(ids.HANG_VERDICT, "children"),
        Input(ids.HANG_VERDICT, "id"),
        Input(frame_ids.EXAMINED, "data"),
    )
    def judge(_: str, __: int | None) -> Any:
        return no_update if states.report_of(context) is None else hang_verdict(context)

    @app.callback(
        Output(ids.HANG_RANKS, "children"),
        Input(ids.HANG_PAGE, "value"),
        prevent_initial_call=True,
    )
    def show(first: int) -> Component:
        return _ranks(context, first)
