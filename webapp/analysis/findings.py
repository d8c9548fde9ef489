"""What is wrong with a run, in words: one shape for the findings of every analysis.

Every place that shows findings (`check`, its JSON and JUnit, the Overview page, the header) takes
them from `examine`, so all of them show the same ones.
"""

from __future__ import annotations

import importlib
import textwrap
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from lanescope.webapp.analysis.evidence import checked
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.settings import Settings

Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Most severe first."""

KINDS = (
    "race", "concurrent_backward", "inplace_modification", "deadlock", "hang",
    "collective_mismatch", "straggler", "rank_divergence", "nan", "divergence", "nondeterminism",
    "unrecorded_write", "vanishing_gradient", "exploding_gradient", "dead_parameter",
    "lora_inactive", "scaler_skips", "cuda_context", "lost_context", "untraceable_graph",
    "overlap", "validator", "environment",
)  # fmt: skip

MOST = 100
"""Findings of one analysis that are kept, the most severe first; more tell nothing new."""

LONGEST_REASON = 200
"""Characters of an exception's message that a report quotes."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what, since when, where, with its evidence.

    `time_ns` counts from the start of the run. `evidence` is plain JSON of the shape that
    `evidence.SHAPES` gives its kind. `link` leads to the place in the page.
    """

    kind: str
    severity: Severity
    title: str
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    thread: str | None = None
    step: int | None = None
    time_ns: int | None = None
    where: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    link: str = "/timeline"

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.severity not in SEVERITIES:
            raise ValueError(f"no finding of kind {self.kind!r} and severity {self.severity!r}")
        object.__setattr__(self, "evidence", checked(self.kind, self.evidence))

    def to_json(self) -> dict[str, Any]:
        """The finding as `check --json` prints it."""
        return {**asdict(self), "ranks": list(self.ranks), "evidence": dict(self.evidence)}


class Unanswered(Exception):
    """Raised by an analysis that cannot say anything about a run; the message says why."""


@dataclass(frozen=True)
class Analysis:
    """One question that is asked of every run. `entry` is imported when it is asked."""

    question: str
    entry: str  # module of webapp : function from a run to its findings
    recorded: bool = False  # needs what a recording alone holds

    def ask(self, run: Run) -> list[Finding]:
        """What it finds. Raises Unanswered where the run does not hold what it needs."""
        if self.recorded and run.imported:
            raise Unanswered("files of other tools do not tell")
        module, _, name = self.entry.partition(":")
        found: Callable[[Run], list[Finding]] = getattr(
            importlib.import_module(f"lanescope.webapp.{module}"), name
        )
        return found(run)


ANALYSES: tuple[Analysis, ...] = (
    Analysis("Does a rank wait for one that does not come?", "plugins.hangs.hangs:hangs"),
    Analysis(
        "Do all ranks make the same collective calls?", "plugins.collectives.mismatches:mismatches"
    ),
    Analysis("Does one rank keep the others waiting?", "plugins.collectives.stragglers:stragglers"),
    Analysis("Do data-parallel replicas stay equal?", "plugins.gradients.consistency:divergence"),
    Analysis(
        "Do threads touch the same tensor in no fixed order?",
        "plugins.races.race_findings:race_findings",
    ),
    Analysis(
        "Do threads run backward into the same gradients?",
        "plugins.threads.concurrent_backward:concurrent_backwards",
    ),
    Analysis(
        "Do threads run backward at the same time?",
        "plugins.threads.overlap_findings:overlapping_backwards",
    ),
    Analysis(
        "Was a tensor changed that backward needed?",
        "plugins.races.inplace:inplace_modifications",
        True,
    ),
    Analysis(
        "Is each autograd node tied to its operator?",
        "plugins.autograd_graph.traceability:untraceable_graphs",
    ),
    Analysis(
        "Do threads wait for each other for ever?", "plugins.threads.deadlocks:deadlocks", True
    ),
    Analysis(
        "Do threads miss context variables of their starters?",
        "plugins.threads.contexts:lost_contexts",
        True,
    ),
    Analysis(
        "Does each thread keep to its CUDA device?",
        "plugins.threads.cuda_contexts:cuda_contexts",
        True,
    ),
    Analysis("Do gradients vanish on their way?", "plugins.gradients.vanishing:vanishing"),
    Analysis("Do gradients explode?", "plugins.gradients.exploding:exploding"),
    Analysis("Does every parameter learn?", "plugins.gradients.dead_parameters:dead_parameters"),
    Analysis(
        "Are gradients zeroed between steps?",
        "plugins.gradients.kept_gradients:kept_gradients",
        True,
    ),
    Analysis("Do low-rank adapters learn?", "plugins.gradients.lora:lora"),
    Analysis("Does the loss scale hold?", "plugins.gradients.scaling:scaler_skips"),
    Analysis(
        "Are gradients unscaled before they are clipped?",
        "plugins.gradients.scaling:clipped_while_scaled",
    ),
    Analysis(
        "Did an operator make NaN out of finite numbers?", "plugins.numerics.values:not_finite"
    ),
    Analysis(
        "Did all that was read come from recorded operators?",
        "plugins.numerics.values:unrecorded_writes",
    ),
    Analysis("Does the command compute the same each time?", "plugins.diff.repeats:nondeterminism"),
    Analysis("Do the validators of the program agree?", "plugins.gradients.validators:validators"),
    Analysis("Was the run set up well?", "plugins.checks.environment:environment"),
)
"""Every analysis that can find something wrong, in the order in which they are listed."""


@dataclass(frozen=True)
class Examined:
    """What came of one question."""

    question: str
    findings: tuple[Finding, ...] = ()
    omitted: int = 0  # findings beyond MOST
    unanswered: str = ""  # why the run cannot tell; empty: it can
    failed: str = ""  # the fault of LaneScope that kept it from an answer; empty: there was none

    @property
    def answered(self) -> bool:
        """True where the run was found to be free of it, or not."""
        return not self.unanswered and not self.failed

    def to_json(self) -> dict[str, Any]:
        """One entry of `examined` of `check --json`."""
        return {
            "question": self.question,
            "findings": len(self.findings) + self.omitted,
            "unanswered": self.unanswered or None,
            "error": self.failed or None,
        }


def examine(run: Run) -> tuple[Examined, ...]:
    """Asks all questions of a run, once: who asks meanwhile waits for the same answer."""
    with _EXAMINING:
        return _examined(run)


_EXAMINING = Lock()


@lru_cache(maxsize=4)  # header, pages and callbacks ask again and again; a Run never changes
def _examined(run: Run) -> tuple[Examined, ...]:
    return tuple(ask(analysis, run) for analysis in ANALYSES)


def findings(run: Run) -> list[Finding]:
    """What all analyses find, most severe first, then by time. Empty: nothing was found."""
    return ranked([finding for one in examine(run) for finding in one.findings])


def acknowledged(examined: Examined, settings: Settings) -> Examined:
    """The same with findings that are meant to be as information, with who allows them and why,
    and without those that a higher limit lets pass."""
    limit = settings.limits.thread_overlap_rate
    kept = [f for f in examined.findings if f.kind != "overlap" or f.evidence["rate"] >= limit]
    return replace(examined, findings=tuple(_weighed(f, settings) for f in kept))


def _weighed(finding: Finding, settings: Settings) -> Finding:
    named = _named(finding)
    for allowed in settings.allowed:
        if allowed.covers(finding.kind, named):
            reason = {"by": settings.source, "reason": allowed.reason}
            return replace(
                finding, severity="info", evidence={**finding.evidence, "allowed": reason}
            )
    return finding


_SIDES = ("first", "second", "modified_by", "saved_by")
_TENSORS = ("tensor", "tensors", "gradients", "parameter")


def _named(finding: Finding) -> dict[str, set[str]]:
    """Tensors, operators and places that a finding is about."""
    evidence = finding.evidence
    tensors: set[str] = set()
    for name in _TENSORS:
        value = evidence.get(name) or ()
        tensors.update([value] if isinstance(value, str) else value)
    sides = [evidence[side] for side in _SIDES if evidence.get(side)]
    places = {finding.where, *(side.get("where") for side in sides)}
    told = evidence.get("op")  # of a collective: what each rank called
    ops = [*(told.values() if isinstance(told, Mapping) else [told])]
    ops += [side.get("op") for side in sides]
    return {
        "tensor": tensors,
        "op": {op for op in ops if isinstance(op, str)},
        "where": {place for place in places if place},
    }


def ranked(found: list[Finding]) -> list[Finding]:
    """Most severe first, then by time; what has no time is about the whole run and comes first."""
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), f.time_ns or 0))


def ask(analysis: Analysis, run: Run) -> Examined:
    """What comes of one question."""
    return answer(analysis.question, analysis.entry.partition(":")[2], lambda: analysis.ask(run))


def answer(question: str, name: str, look: Callable[[], list[Finding]]) -> Examined:
    """Returns what comes of a question that `look` answers; `name` is what it is called in code.

    Raises RunError and OSError: the other questions would meet them too.
    """
    try:
        found = ranked(look())
    except Unanswered as reason:
        return Examined(question, unanswered=str(reason))
    except (RunError, OSError):
        raise
    except Exception as error:
        # A fault of this project in one question must not take the answers to all others.
        return Examined(question, failed=fault(name, error))
    return Examined(question, tuple(found[:MOST]), max(0, len(found) - MOST))


def fault(name: str, error: Exception) -> str:
    """Returns a sentence about an exception that no input should cause, with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    reason = textwrap.shorten(words, LONGEST_REASON, placeholder=" ...")
    return f"internal error in {name} ({reason}, at {where}); please report it"
