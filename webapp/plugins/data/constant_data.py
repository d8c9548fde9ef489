"""Finds outputs that do not depend on the input, and inputs that do not vary.

A model's output does not depend on its input where, at every sampled step, rows of the input differ
and all rows of all that it returned are the same, bit for bit, though not at all steps. An
input does not vary where its rows are the same at every sampled step: a warning if it comes from a
DataLoader, whether that varies or not, else information, as one sample may be repeated on purpose:
not where a step has more calls than were sampled, as an episode that begins in one state does.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import phases_of_kind
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.plugins.data.batches import BATCH_KEYS, batch_samples
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_ROWS = 4
_MIN_STEPS = 4
"""Sampled steps, with the step AFTER or a later one among them."""

_AFTER = 8
"""Weights that begin as zero have been changed by then."""

_SAME_ROWS = "gets the same values in every row of a batch"
_WORDS = {
    "output": (
        "returns the same for every row of a batch",
        ", and its input differs: the output does not depend on the input. Look for a factor of 0, "
        "dead or saturated activations, or a reduction over the batch.",
    ),
    "input": (
        _SAME_ROWS,
        ", and the batches of the DataLoader differ. Pass it the batch, unless one sample is "
        "repeated on purpose.",
    ),
    "row": (
        _SAME_ROWS,
        ", and the DataLoader's batches hold them so. Check that the dataset uses the index, and "
        "that its samples are no views of one buffer.",
    ),
    "sample": (_SAME_ROWS, ". Pass it the batch, unless one sample is repeated on purpose."),
}
"""What does not vary -> what the model gets or returns, and the rest of the sentence."""


def constant_data(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, one per model. Raises NotApplicable."""
    samples = batch_samples(run)
    samples = samples[samples["rows"] >= _MIN_ROWS]
    found: dict[tuple[str, str], list[tuple[int, pd.DataFrame]]] = {}
    for (rank, model), own in samples.groupby(["rank", "model"], sort=True):
        inputs = own[(own["what"] == "input") & (own["position"] == 0)]
        outputs = own[own["what"] == "output"]
        loaded = samples[(samples["rank"] == rank) & (samples["what"] == "loaded")]
        if outputs["alike"].any():
            both = inputs.merge(outputs, on=[*BATCH_KEYS, "rows"], suffixes=("", "_out"))
            collapses = both["alike_out"].all() and not both["alike"].any()
            collapses = collapses and both["hash_out"].nunique() > 1  # else a table, always so
            if _long(both) and len(both) == len(outputs) and collapses:
                found.setdefault(("output", str(model)), []).append((int(rank), both))
        if _long(inputs) and len(outputs) and inputs["alike"].all():
            varies = len(loaded) and not loaded["alike"].any()
            if len(loaded) or inputs["hash"].nunique() == 1:
                what = "input" if varies else "row" if len(loaded) else "sample"
                if what == "sample" and not _has_all_calls(run, int(rank), samples):
                    continue
                found.setdefault((what, str(model)), []).append((int(rank), inputs))
    return [_finding(run, *key, several) for key, several in found.items()]


def _long(samples: pd.DataFrame) -> bool:
    return bool(samples["step"].nunique() >= _MIN_STEPS and samples["step"].max() >= _AFTER)


def _has_all_calls(run: Run, rank: int, samples: pd.DataFrame) -> bool:
    """Whether each call of a model in the sampled steps was sampled."""
    own = samples[(samples["rank"] == rank) & (samples["what"] == "input")]
    sampled = own[own["position"] == 0].groupby("step").size()
    columns = ["start_ns", "step"]
    calls = phases_of_kind(run, schema.PhaseKind.forward, rank, columns=columns)
    counts = calls.groupby("step").size()
    return bool((counts.reindex(sampled.index, fill_value=0) <= sampled).all())


def _finding(run: Run, what: str, model: str, several: list[tuple[int, pd.DataFrame]]) -> Finding:
    rank, samples = several[0]
    first, steps = samples.iloc[0], int(samples["step"].nunique())
    where = phase_place(run, rank, schema.PhaseKind.forward.name, None)
    at = at_place(where)
    begin, end = _WORDS[what]
    title = f"{model} {begin} at all {units.count(steps)} sampled steps{at}{end}"
    return finding_at(
        run,
        rank,
        first,
        kind="repeated_data",
        severity="info" if what == "sample" else "warning",
        confidence="likely",
        title=title,
        ranks=tuple(one for one, *_ in several),
        where=where,
        evidence={
            "cause": "constant_output" if what == "output" else "constant_input",
            "steps": steps,
            "model": model,
        },
    )
