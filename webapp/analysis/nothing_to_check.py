"""Reasons why a check has nothing to look at: it has not passed then."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import EVALUATION_MODE, LOADER_BEGUN, TRAINING_MODE
from lanescope.collector.format.options import LEVELS
from lanescope.webapp.analysis.arrow_columns import texts_of
from lanescope.webapp.analysis.findings import NotApplicable, NotRecorded
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged, wrapped
from lanescope.webapp.runs.run import Run

_T = TypeVar("_T")
_Other = TypeVar("_Other")

_BACKWARD = schema.PhaseKind.backward.name


def if_applicable(ask: Callable[..., _T], *given: Any, otherwise: _Other) -> _T | _Other:
    """Returns what `ask` returns; `otherwise` where it raises NotApplicable."""
    try:
        return ask(*given)
    except NotApplicable:
        return otherwise


def need_rows(rows: pd.DataFrame, reason: str) -> pd.DataFrame:
    """Returns the rows; raises NotApplicable where there are none."""
    if rows.empty:
        raise NotApplicable(reason)
    return rows


def need_recorded(rows: pd.DataFrame, what_to_do: str) -> pd.DataFrame:
    """Returns the rows; raises NotRecorded, which says what to record, where there are none."""
    if rows.empty:
        raise NotRecorded(what_to_do)
    return rows


def need_at_access(run: Run, rows: pd.DataFrame, lacking: str) -> pd.DataFrame:
    """Returns rows that level access records; raises NotApplicable where there are none.

    A run of a lower level has to be recorded again; of others `lacking` says what they do not do.
    """
    if rows.empty and run.manifest["level"] == LEVELS[0]:
        raise NotRecorded("record with --level access")
    return need_rows(rows, lacking)


def need_steps(run: Run) -> pd.DataFrame:
    """Returns the rows of `gradient_rows`; raises NotApplicable where no optimizer stepped."""
    return need_recorded(gradient_rows(run), "record an optimizer step: the run has no steps")


def need_accesses(run: Run) -> None:
    """Raises NotApplicable where no access of memory was recorded."""
    if not run.counts["access"]:
        raise NotRecorded("record with --level access and the native engine")


def need_backward(run: Run) -> None:
    """Raises NotApplicable where no thread was in backward."""
    if _BACKWARD not in texts_of(run, "phase", "kind"):
        raise NotRecorded("record a backward pass")


def need_evaluations(run: Run) -> pd.DataFrame:
    """Returns the modes of models that are evaluated; raises NotApplicable where none is."""
    rows = logged(run, None, prefix=EVALUATION_MODE)
    return need_at_access(run, rows, "no model is called without gradients")


def need_models(run: Run) -> pd.DataFrame:
    """Returns the modes of models that are trained; raises NotApplicable where none is."""
    rows = logged(run, None, prefix=TRAINING_MODE)
    return need_at_access(run, rows, "no model is called with gradients")


def of_operators(
    names: re.Pattern[str] | str, words: str
) -> Callable[[Callable[[Run], list[_T]]], Callable[[Run], list[_T]]]:
    """Makes a question inapplicable to runs without an operator of these names. A compiled function
    may hide some."""
    sought = re.compile(names)

    def of_question(ask: Callable[[Run], list[_T]]) -> Callable[[Run], list[_T]]:
        @wraps(ask)
        def asked(run: Run) -> list[_T]:
            compiled = schema.OpScope.compiled.name in texts_of(run, "op", "scope")
            if not compiled and not any(map(sought.fullmatch, texts_of(run, "op", "name"))):
                raise NotApplicable(f"the program {words}")
            return ask(run)

        return asked

    return of_question


def need_loader(run: Run) -> None:
    """Raises NotApplicable where no DataLoader was iterated."""
    need_at_access(run, logged(run, None, LOADER_BEGUN), "no DataLoader is iterated")


def need_ranks(run: Run) -> None:
    """Raises NotApplicable where the job has no two ranks."""
    if run.world_size < 2:
        raise NotApplicable("the job has a single rank")


def need_collectives(run: Run) -> None:
    """Raises NotApplicable where no collective was called."""
    if not run.counts["collective"]:
        raise NotApplicable("the program makes no collective call")


def need_wrapped(run: Run) -> dict[int, int]:
    """Returns the ranks of `wrapped` whose gradients are averaged; raises NotApplicable where none
    are."""
    need_ranks(run)
    averaged = {rank: ranks for rank, ranks in wrapped(run).items() if ranks > 1}
    if not averaged:
        raise NotApplicable("no model is within DistributedDataParallel")
    return averaged


def need_threads(run: Run) -> None:
    """Raises NotApplicable where no rank has two threads, processes or streams."""
    if all(len(run.threads_of(rank)) < 2 for rank in run.ranks):
        raise NotApplicable("no rank has two threads")
