"""Overlap rates of a rank's threads, pair by pair: which threads, and a table of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from dash import html
from dash.development.base_component import Component

from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui.widgets import thread_names

MAX_COMPARED = 32
"""Threads of a rank in a matrix, at most."""

MAX_RANKS = 8
"""Matrices, at most."""


@dataclass(frozen=True)
class Compared:
    """Threads of a rank, as on the timeline, and the rates of their pairs."""

    rank: int
    threads: tuple[str, ...]
    names: tuple[str, ...]  # of the threads
    of: int  # how many there are
    rates: dict[tuple[str, str], float]  # by threads, in one order of the two

    @property
    def caption(self) -> str:
        """Whose rates they are, and whether they are all."""
        few = len(self.threads) == self.of
        most = "" if few else f", the {len(self.threads)} of {self.of:,} threads that overlap most"
        return f"rank {self.rank}, percent{most}"

    def rate(self, a: str, b: str) -> float | None:
        """Returns the rate of two threads; None: never measured."""
        return self.rates.get((a, b), self.rates.get((b, a)))


def compared(run: Run, table: pd.DataFrame) -> Iterator[Compared]:
    """Yields one per rank of the rows of `analysis.overlap.overlap`.

    Of many threads those that overlap most: hundreds would make a page of a hundred thousand
    cells.
    """
    known = thread_names(run)
    position = {key: i for i, key in enumerate(known)}
    for rank, rows in table.groupby("rank", sort=True):
        threads = sorted({*rows["a"], *rows["b"]}, key=lambda one: position[rank, one])
        of = len(threads)
        if of > MAX_COMPARED:
            sides = [rows.groupby(side)["overlap_ns"].sum() for side in ("a", "b")]
            most = sides[0].add(sides[1], fill_value=0).nlargest(MAX_COMPARED)
            threads = [thread for thread in threads if thread in most]
            rows = rows[rows["a"].isin(threads) & rows["b"].isin(threads)]
        rates = {(row.a, row.b): float(row.rate) for row in rows.itertuples()}
        names = tuple(known[rank, thread] for thread in threads)
        yield Compared(int(rank), tuple(threads), names, of, rates)


def matrices(run: Run, table: pd.DataFrame) -> list[Component]:
    """Returns a table per rank, of many those that overlap most. Columns are numbered like rows:
    names are long, and there may be many."""
    by_rank = table.groupby("rank")["overlap_ns"].sum()
    shown = by_rank.nlargest(MAX_RANKS).index
    more = len(by_rank) - len(shown)
    words = f"and {units.counted(more, 'rank')} that overlap{'s' if more == 1 else ''} less"
    return [
        *(_matrix(one) for one in compared(run, table[table["rank"].isin(shown)])),
        *([html.P(words, className="muted")] if more else []),
    ]


def _matrix(of: Compared) -> Component:
    heads = [html.Th(str(i), scope="col", title=name) for i, name in enumerate(of.names, 1)]
    body = [
        html.Tr(
            [
                html.Th([html.Span(f"{i} "), name], scope="row", title=name),
                *_cells(of, thread, name),
            ]
        )
        for i, (thread, name) in enumerate(zip(of.threads, of.names, strict=True), 1)
    ]
    table = html.Table(
        [html.Caption(of.caption), html.Thead(html.Tr([html.Td(), *heads])), html.Tbody(body)],
        className="matrix",
    )
    return html.Div(table, className="wide-table")


def _cells(of: Compared, thread: str, name: str) -> Sequence[Component]:
    cells = []
    for other, its_name in zip(of.threads, of.names, strict=True):
        rate = None if other == thread else of.rate(thread, other)
        if rate is None:
            cells.append(html.Td("–" if other == thread else "", className="self"))
            continue
        text = "0" if rate == 0 else units.number(rate * 100)
        title = f"{name} and {its_name}: {text} %"
        cells.append(html.Td(text, style={"--heat": f"{rate:.3f}"}, title=title))
    return cells
