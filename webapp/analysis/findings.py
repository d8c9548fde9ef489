"""What is wrong with a run, in words: one shape for the findings of every analysis.

Every place that shows findings (`check`, its JSON and JUnit, the Overview page, the header) takes
them from `run_questions`, so all of them show the same ones.
"""

from __future__ import annotations

import json
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from lanescope.collector.format.names import UNSEEN_BY
from lanescope.webapp.analysis.check_limits import Settings
from lanescope.webapp.analysis.links import step_link
from lanescope.webapp.analysis.plugin import Kind, Question, kinds, load, metrics, questions
from lanescope.webapp.analysis.source_lines import Excerpt, excerpts_of, layer_line, named_line
from lanescope.webapp.analysis.stack_frames import line_and_function, short_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.html_summary import escaped_html
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.typed_json import conform, plain_json

if TYPE_CHECKING:
    import pandas as pd  # which `doctor` does without

Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Most severe first."""

Confidence = Literal["certain", "likely"]

CONFIDENCES: tuple[Confidence, ...] = ("certain", "likely")
"""certain: what was recorded proves it; likely: it is judged by a limit or by comparison, and may
be meant to be so."""

COLOURS = {"error": "#c5221f", "warning": "#b06000", "info": "#1a73e8"}
"""Of a severity; each has a contrast of 4.5 on white, and the word is always beside it."""

_MAX_FINDINGS = 100
"""Findings of one analysis that are kept, the most severe first; more add nothing new."""

MAX_REASON = 200
"""Characters of an exception's message that a report quotes."""


@dataclass(frozen=True, repr=False)
class Finding:
    """One thing that is wrong: what, since when, where, with its evidence.

    `time_ns` counts from the start of the run. `evidence` is plain JSON of the shape that the
    plugin of its kind promises. `link` leads to the place in the page.
    """

    kind: str
    severity: Severity
    title: str
    rank: int | None = None
    ranks: tuple[int, ...] = ()  # without, `rank` alone
    thread: str | None = None
    step: int | None = None
    time_ns: int | None = None
    where: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    link: str = "/timeline"
    source: tuple[Excerpt, ...] = ()  # lines of the program at `where` and places of the evidence
    confidence: Confidence = "certain"  # only findings that are certain fail a check

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"no finding of severity {self.severity!r}")
        if self.confidence not in CONFIDENCES:
            raise ValueError(f"no finding of confidence {self.confidence!r}")
        if self.rank is not None and not self.ranks:
            object.__setattr__(self, "ranks", (self.rank,))
        object.__setattr__(self, "evidence", plain_json(self.evidence))

    def __repr__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"<{self.severity} {self.kind}: {units.printable(self.title)}{where}>"

    def _repr_html_(self) -> str:
        return _html_of(self)

    def to_json(self) -> dict[str, Any]:
        """Returns the finding as `check --json` prints it; its `source` is beside the list of
        findings."""
        found = {**asdict(self), "ranks": list(self.ranks), "evidence": dict(self.evidence)}
        del found["source"]
        return found


def finding_at(
    run: Run,
    rank: int,
    at: int | pd.Series | Mapping[str, Any],
    *,
    kind: str,
    severity: Severity = "warning",
    title: str,
    evidence: Mapping[str, Any],
    ranks: tuple[int, ...] = (),
    where: str | None = None,
    link: str = "",
    confidence: Confidence = "certain",
) -> Finding:
    """Returns a finding whose link leads to a step of a rank, if no other is given.

    `at` is the step, or a row that holds it, with `thread` and with `time_ns` or `start_ns`.
    """
    thread, time_ns = None, None
    if not isinstance(at, int):
        thread, time_ns = str(at["thread"]), int(at["time_ns" if "time_ns" in at else "start_ns"])
        at = int(at["step"])
    return Finding(
        kind=kind,
        severity=severity,
        title=title,
        rank=rank,
        ranks=ranks,
        thread=thread,
        step=at,
        time_ns=time_ns,
        where=where or None,
        evidence=evidence,
        link=link or step_link(run, rank, at),
        confidence=confidence,
    )


class Findings(list[Finding]):
    """A list of findings that a notebook shows as text."""

    def _repr_html_(self) -> str:
        return _html_of_all(self)


def _html_of(finding: Finding) -> str:
    """One finding: severity, title, place, lines of the program, and its evidence to unfold."""
    since = [] if finding.time_ns is None else [f"since {units.duration(finding.time_ns)}"]
    step = [] if finding.step is None else [f"step {finding.step}"]
    place = ", ".join([*since, *step, *([f"at {finding.where}"] if finding.where else [])])
    place = f"<small>{escaped_html(place)}</small><br>" if place else ""
    lines = "".join(f"<code>{escaped_html(named_line(one))}</code><br>" for one in finding.source)
    evidence = json.dumps(dict(finding.evidence), indent=1).splitlines()
    shown = "\n".join(map(escaped_html, evidence))
    colour = COLOURS[finding.severity]
    return (
        f'<div><b style="color:{colour}">{finding.severity}</b> {escaped_html(finding.kind)}: '
        f"{escaped_html(finding.title)}<br>{place}{lines}"
        f"<details><summary>evidence</summary><pre>{shown}</pre></details></div>"
    )


def _html_of_all(findings: Sequence[Finding]) -> str:
    """A list of findings; says so where it is empty."""
    if not findings:
        return "<div>no findings</div>"
    return "".join(_html_of(one) for one in findings)


class NotApplicable(RunError):
    """Raised by an analysis that cannot say anything about a run; the message says why."""


class NotRecorded(NotApplicable):
    """Another recording would answer: the message says what to record."""


@dataclass(frozen=True)
class AnalysisResult:
    """What came of one question."""

    question: str
    findings: tuple[Finding, ...] = ()
    omitted: int = 0  # findings beyond MAX_FINDINGS
    unanswered: str = ""  # why the run cannot be asked; empty: it can
    recordable: bool = False  # `unanswered` says what to record
    failed: str = ""  # the fault of LaneScope that kept it from an answer; empty: there was none

    @property
    def answered(self) -> bool:
        """True where the run was found to be free of it, or not."""
        return not self.unanswered and not self.failed

    @property
    def applies(self) -> bool:
        """False where the program does nothing that the question is about."""
        return self.answered or self.recordable or bool(self.failed)

    def to_json(self) -> dict[str, Any]:
        """Returns one entry of `examined` of `check --json`."""
        return {
            "question": self.question,
            "findings": len(self.findings) + self.omitted,
            "unanswered": self.unanswered or None,
            "error": self.failed or None,
        }


def run_questions(run: Run) -> tuple[AnalysisResult, ...]:
    """Asks all questions of a run, once: who asks meanwhile waits for the same answer."""
    with _EXAMINING:
        return _examined(run)


_EXAMINING = Lock()


@lru_cache(maxsize=4)  # header, pages and callbacks ask again and again; a Run never changes
def _examined(run: Run) -> tuple[AnalysisResult, ...]:
    return tuple(run_question(question, run) for question in questions())


def findings(run: Run) -> list[Finding]:
    """Returns what all analyses find, most severe first, then by time. Empty: nothing was found."""
    return Findings(ranked([finding for one in run_questions(run) for finding in one.findings]))


def acknowledged(examined: AnalysisResult, settings: Settings) -> AnalysisResult:
    """Returns the same with findings that are meant to be as information, with who allows them and
    why, and without those that a higher limit lets pass."""
    held = {one.kind: (one.evidence, settings.limit(one.name)) for one in metrics() if one.evidence}
    kept = []
    for finding in examined.findings:
        name, limit = held.get(finding.kind, ("", 0.0))
        if not name or finding.evidence[name] >= limit:
            kept.append(_weighed(finding, settings))
    return replace(examined, findings=tuple(kept))


def known_before(examined: AnalysisResult, before: Sequence[Finding]) -> AnalysisResult:
    """Returns the same with findings that another run has too as information.

    They are the same if kind, tensors, operators and files are: lines move between versions. Which
    tensors two threads race for differs from run to run, so there the functions decide.
    """
    known = {_identity(one) for one in before}
    findings = tuple(
        _allowed(one, "the baseline", "it has the same finding") if _identity(one) in known else one
        for one in examined.findings
    )
    return replace(examined, findings=findings)


def _allowed(finding: Finding, by: str, reason: str) -> Finding:
    allowed = {"by": by, "reason": reason}
    return replace(finding, severity="info", evidence={**finding.evidence, "allowed": allowed})


def _identity(finding: Finding) -> tuple[str, ...]:
    sides = [finding.evidence.get(side) for side in ("first", "second")]
    if all(isinstance(side, Mapping) for side in sides):
        return (finding.kind, *sorted(_function(side) for side in sides if side))
    named = _named(finding)
    files = {place.rpartition(":")[0] for place in named["where"]}
    texts = (sorted(one) for one in (named["tensor"], named["op"], files))
    return (finding.kind, *("|".join(one) for one in texts))


def _function(side: Mapping[str, Any]) -> str:
    """`train.py accumulate`: where an access was made; without a stack, by which operator."""
    if not side["stack"]:
        return f"{side['op']} {side['module']} {side['phase']}"
    at, function = line_and_function(side["stack"][0])
    return f"{short_place(at.rpartition(':')[0])} {function}"


def _weighed(finding: Finding, settings: Settings) -> Finding:
    named = _named(finding)
    for allowed in settings.allowed:
        if allowed.covers(finding.kind, named):
            return _allowed(finding, settings.source, allowed.reason)
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
    called = evidence.get("op")  # of a collective: what each rank called
    ops = [*(called.values() if isinstance(called, Mapping) else [called])]
    ops += [side.get("op") for side in sides]
    return {
        "tensor": tensors,
        "op": {op for op in ops if isinstance(op, str)},
        "where": {place for place in places if place},
    }


def ranked(found: list[Finding]) -> list[Finding]:
    """Returns most severe first, then by time; what has no time is about the whole run and comes
    first."""
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), f.time_ns or 0))


def run_question(
    question: Question, run: Run, baseline: Run | None = None, noise: Run | None = None
) -> AnalysisResult:
    """Returns what comes of one question.

    Raises RunError, OSError, and ModuleNotFoundError where an extra of the package is missing: the
    other questions would meet them too.
    """
    try:
        found = ranked(_found(question, run, baseline, noise))
        kept = tuple(_with_source(run, one) for one in found[:_MAX_FINDINGS])
    except NotApplicable as reason:
        recordable = isinstance(reason, NotRecorded)
        return AnalysisResult(question.text, unanswered=str(reason), recordable=recordable)
    except (RunError, OSError, ModuleNotFoundError):
        raise
    except Exception as error:
        # A fault of this project in one question must not take the answers to all others.
        return AnalysisResult(question.text, failed=fault(question.find.partition(":")[2], error))
    return AnalysisResult(question.text, kept, len(found) - len(kept))


def _with_source(run: Run, finding: Finding) -> Finding:
    """Returns the finding with its place, or that of its layer, and the lines that are recorded."""
    ranks = finding.ranks if finding.rank is None else (finding.rank, *finding.ranks)
    where = finding.where or layer_line(run, ranks, finding.evidence)
    source = excerpts_of(run, ranks, where, finding.evidence)
    return replace(finding, where=where, source=source)


def _found(question: Question, run: Run, baseline: Run | None, noise: Run | None) -> list[Finding]:
    """All findings of a question, of the kinds and with the evidence that its plugin declares."""
    if question.recorded and run.imported:
        raise NotApplicable("not in imported traces")
    if question.native and all(p["engine"] in UNSEEN_BY for p in run.manifest["processes"]):
        raise NotRecorded("record with the native engine")
    find = load(question.find)
    found: list[Finding] = find(baseline, run, noise) if question.baseline else find(run)
    known = kinds()
    for one in found:
        if one.kind not in question.kinds:
            raise ValueError(f"a finding of kind {one.kind!r}, declared: {question.kinds}")
        check_evidence(known[one.kind], one.evidence)
    return found


def fault(name: str, error: Exception) -> str:
    """Returns a sentence about an exception that no input should cause, with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    reason = textwrap.shorten(words, MAX_REASON, placeholder=" ...")
    return f"internal error in {name} ({reason}, at {where}); please report it"


class Side(TypedDict, total=False):
    """One of two accesses, or one of two runs."""

    op: str | None
    where: str | None


class Evidence(TypedDict, total=False):
    """Names that mean the same in findings of every kind: settings allow findings by them."""

    tensor: str
    tensors: list[str]
    gradients: list[str]
    parameter: str
    op: str | dict[str, str]  # of a collective: what each rank called
    first: Side | None
    second: Side | None
    modified_by: Side | None
    saved_by: Side | None


def check_evidence(kind: Kind, evidence: Mapping[str, Any]) -> None:
    """Raises Mismatch where evidence of a finding is not of the shape that its kind promises."""
    conform(evidence, Evidence, "evidence")
    if kind.evidence:
        conform(evidence, load(kind.evidence), "evidence")
