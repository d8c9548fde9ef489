"""Does a run compute what its baseline does?"""

from __future__ import annotations

import re
from typing import Any

from lanescope.webapp.analysis.findings import Finding, NotRecorded
from lanescope.webapp.analysis.links import step_link
from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.plugins.diff.pairing.resumed import LOST
from lanescope.webapp.plugins.diff.verdict_words import difference_address, origin
from lanescope.webapp.runs.run import Run

_CAUSES = (
    LOST,
    "settings differ",
    "the precision",
    "files that both",
    "the learning rate",
    "the first update",
    "the mode differs",
    "only the ",
    "the run draws",
    "the baseline draws",
    "the first parameters differ",
    "batches have",
    "gradients differ by more than the number of passes",
    "the random numbers differ",
    "the data differs",
    "the model gets other inputs",
    "in step ",
    "an operator",
    "on a share",
    "all gradients that differ",
    "all modules return",
    "the logged value",
    "the first module",
    "the command",
)
"""How notes begin that may say why, the most likely one first."""

_LINES = "the programs differ"
"""How the note begins whose first place follows these."""

_SAID = 2
"""Such notes in the sentence."""

_PLACE = re.compile(r"\bat (\S+\.py:\d+)")
"""A line of the run: notes name it before that of the baseline."""


def divergence(baseline: Run, run: Run, noise: Run | None = None) -> list[Finding]:
    """Returns findings of kind `divergence`, at most one: where the run parts from its baseline.

    By more than a second run of the baseline (`noise`) does. Raises NotApplicable where they have
    no value in common.
    """
    result = compare(baseline, run, "tolerance", noise)
    if result.verdict != "diverged":
        if result.norms + result.tensors == 0:
            raise NotRecorded(
                "record both with --level numerics: they share no gradients or values"
            )
        return []
    first = result.first or {}
    norm = not first or "parameter" in first
    what = "gradients" if norm else "values"
    place = first.get("parameter") or first.get("op")
    line = f" at {first['where']}" if first.get("where") else ""
    known_origin = origin(first) if first else None
    source = f" ({known_origin})" if known_origin else ""
    title = (
        f"{what.capitalize()} differ from the baseline since step {first.get('step')}, first "
        f"{place}{line}{source}."
    )
    if not first and (words := next(filter(_is_difference, result.notes), None)):
        title = f"{words[0].upper()}{words[1:]}, in the run compared with the baseline."
    elif not first:
        title = (
            "Other operators ran than in the baseline, and the runs share no values. Record both "
            "with --level numerics."
        )
    known = [note for cause in _CAUSES for note in result.notes if note.startswith(cause)]
    lines = [one.partition("; at ")[0] for one in result.notes if one.startswith(_LINES)]
    said = "; ".join([*known[:_SAID], *lines])
    if said:
        title += f" Look at this first: {said}."
    named = _PLACE.search(said)
    return [
        Finding(
            kind="divergence",
            severity="error",
            title=title,
            rank=first.get("rank"),
            thread=first.get("thread"),
            step=first.get("step"),
            time_ns=None if norm else first["run"]["time_ns"],
            where=first.get("where") or (named and named[1]),
            evidence=result.to_json(),
            link=_address(run, first),
        )
    ]


def _is_difference(note: str) -> bool:
    """Whether a note of the verdict names a value that differs."""
    return note.startswith(("the logged value", "the first module"))


def _address(run: Run, first: dict[str, Any]) -> str:
    if not first:
        return "/timeline"
    if "parameter" in first:
        return step_link(run, first["rank"], first["step"])
    return difference_address(run, first)
