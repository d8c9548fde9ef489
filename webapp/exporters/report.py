"""A run in words and pictures, as Markdown: what was recorded, what was measured, what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from lanescope.webapp.analysis.checks import Report, check
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.parameter_history import gradient_norms
from lanescope.webapp.analysis.source_lines import named_line
from lanescope.webapp.exporters.base import ExportRequest
from lanescope.webapp.exporters.pictures import MAX_LANES, lanes_picture, lines_picture
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.lanes import COUNTER, Lane
from lanescope.webapp.timeline.timeline import Timeline

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>:@])")
_MAX_EVIDENCE = 2000
MAX_PICTURES = 8
"""Of findings: the most severe ones have a picture."""
_WINDOW = re.compile(r"([0-9]{1,16})-([0-9]{1,16})", re.ASCII)
RUN_PICTURE, NORM_PICTURE = "run.svg", "gradient-norm.svg"


def escaped_markdown(text: object) -> str:
    """Returns untrusted text as plain text of one line: no markup, no HTML, no link, no mention."""
    plain = units.printable(str(text)).replace("&", "&amp;").replace("<", "&lt;")
    return _SPECIAL.sub(r"\\\1", plain)


def report_markdown(
    run: Run,
    report: Report | None = None,
    pictures: Mapping[str, str] | None = None,
    folder: str = "",
) -> str:
    """Returns the report of a run; `report` where it was checked already.

    `pictures` are those of `pictures_of`, which are in `folder` beside the report.
    """
    known = check(run) if report is None else report
    return "\n".join(_lines(run, known, _Shown(pictures or {}, folder))) + "\n"


def pictures_of(run: Run, report: Report) -> dict[str, str]:
    """Returns SVG by file name: the whole run, its gradients, and where the worst findings are."""
    timeline = Timeline.open(run)
    lanes = [lane for lane in timeline.index.lanes if lane.kind != COUNTER]
    made = {RUN_PICTURE: lanes_picture(timeline, (0, max(run.duration_ns, 1)), _fairly(lanes))}
    try:
        norms = gradient_norms(run)
    except RunError:  # a damaged file is reported elsewhere
        norms = None
    if norms is not None and len(norms):
        by_rank = norms.groupby("rank", sort=True)
        lines = {f"rank {rank}": (list(g["step"]), list(g["norm"])) for rank, g in by_rank}
        made[NORM_PICTURE] = lines_picture("gradient norm (L2)", lines)
    for position, finding in enumerate(report.findings):
        asked = dict(parse_qsl(urlsplit(finding.link).query))
        window = _WINDOW.fullmatch(asked.get("t", ""))
        if window is None or int(window[1]) >= int(window[2]):
            continue
        if len(made) < MAX_PICTURES + 2:
            key = asked.get("at", "").rpartition("@")[0]
            named = {lane.rank for lane in lanes if lane.key == key}
            ranks = {finding.rank, *finding.ranks, *named} - {None} or set(run.ranks)
            some = [lane for lane in lanes if lane.rank in ranks]
            some.sort(key=lambda lane: (lane.key != key, lane.thread != finding.thread))
            made[_picture_of(position)] = lanes_picture(
                timeline, (int(window[1]), int(window[2])), some, finding.time_ns
            )
    return made


def _fairly(lanes: Sequence[Lane]) -> list[Lane]:
    """The first lane of each rank before the second of any, and each rank's together again."""
    seen: dict[int, int] = {}
    turn = {}
    for lane in lanes:
        turn[lane.id] = seen[lane.rank] = seen.get(lane.rank, -1) + 1
    chosen = sorted(lanes, key=lambda lane: (turn[lane.id], lane.id))
    first = chosen[:MAX_LANES]
    return sorted(first, key=lambda lane: lane.id) + chosen[MAX_LANES:]


def _picture_of(position: int) -> str:
    return f"finding-{position + 1}.svg"


class _Shown:
    """The pictures that there are, as lines of Markdown."""

    def __init__(self, pictures: Mapping[str, str], folder: str) -> None:
        self._pictures = pictures
        self._folder = f"{quote(folder)}/" if folder else ""

    def of(self, name: str, words: str) -> Iterator[str]:
        if name in self._pictures:
            yield f"![{escaped_markdown(words)}]({self._folder}{name})"
            yield ""


def _lines(run: Run, report: Report, shown: _Shown) -> Iterator[str]:
    yield f"# {escaped_markdown(run.title)}"
    yield ""
    steps = max(len(run.steps(rank)) for rank in run.ranks)
    processes = run.manifest["processes"]
    facts = {
        "command": " ".join(run.manifest["command"]) or "not known",
        "recorded": run.manifest["created"],
        "length": f"{units.duration(run.duration_ns)}, {units.counted(steps, 'step')}",
        "ranks": f"{len(run.ranks)} of {run.world_size}",
        "torch": ", ".join(sorted({process["torch"] for process in processes})) or "not known",
        "engine": ", ".join(sorted({process["engine"] for process in processes})) or "not known",
        "level": run.manifest["level"],
        "dropped events": units.count(run.dropped),
    }
    yield from _table(("", ""), [(name, escaped_markdown(value)) for name, value in facts.items()])
    for warning in run.warnings:
        yield f"> {escaped_markdown(warning)}"
        yield ""
    yield from shown.of(RUN_PICTURE, "Lanes of the whole run")
    yield "## Findings"
    yield ""
    if not report.findings:
        yield "No findings."
        yield ""
    for position, finding in enumerate(report.findings):
        yield from _finding(finding)
        yield from shown.of(_picture_of(position), "Lanes around it; a line marks the instant")
    yield "## Measured"
    yield ""
    done = {one.name: one for one in report.checks}
    rows = []
    for name, value in report.metrics.items():
        limit = ""
        if name in done:
            held = done[name]
            verdict = "passed" if held.passed else "failed"
            limit = f"{verdict}, {held.bound} {units.number(held.limit)}"
        rows.append(
            (escaped_markdown(name), escaped_markdown(_measured(value)), escaped_markdown(limit))
        )
    yield from _table(("metric", "value", "limit"), rows)
    faults = {name: [fault] for name, fault in report.faults.items()}
    yield from _listed("Not checked", {**faults, **report.unanswered(recordable=True)})
    yield from _listed("Checks that do not apply", report.unanswered(recordable=False))
    yield from shown.of(NORM_PICTURE, "Norm of the gradient by step")
    yield "## Ranks"
    yield ""
    yield from _table(("rank", "threads", "steps", "operators", "collectives"), _ranks(run))


def _listed(title: str, of: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A section with a line for each reason, and the checks of it; nothing without any."""
    if of:
        yield f"## {title}"
        yield ""
        for reason, names in of.items():
            yield f"- {escaped_markdown(reason)}: {escaped_markdown('; '.join(names))}"
        yield ""


def _finding(finding: Finding) -> Iterator[str]:
    yield f"### {finding.severity}: {escaped_markdown(finding.title)}"
    yield ""
    place = {
        "kind": finding.kind,
        "confidence": finding.confidence,
        "rank": finding.rank,
        "thread": finding.thread,
        "step": finding.step,
        "at": None if finding.time_ns is None else units.duration(finding.time_ns),
        "where": finding.where,
        "in the page": finding.link,
    }
    for name, value in place.items():
        if value is not None:
            yield f"- {name}: {escaped_markdown(value)}"
    for one in finding.source:
        yield f"- source: {escaped_markdown(named_line(one))}"
    evidence = json.dumps(finding.evidence)
    if finding.evidence:
        yield f"- evidence: {escaped_markdown(evidence[:_MAX_EVIDENCE])}"
    yield ""


def _ranks(run: Run) -> list[tuple[str, ...]]:
    rows = []
    for rank in run.ranks:
        counts = run.counts_of(rank)
        threads = sum(thread.rank == rank for thread in run.threads)
        numbers = (rank, threads, len(run.steps(rank)), counts["op"], counts["collective"])
        rows.append(tuple(units.count(number) for number in numbers))
    return rows


def _measured(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"rank {key}: {_measured(one)}" for key, one in value.items()) or "-"
    return "not measured" if value is None else units.number(value, 4)


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def export(run: Run, path: Path, wanted: ExportRequest) -> None:
    """Writes the words, and the pictures to a folder beside the target, named after it."""
    report = check(run)
    pictures = pictures_of(run, report)
    folder = wanted.target.with_name(f"{wanted.target.stem}-pictures")
    folder.mkdir(exist_ok=True)
    for name, text in pictures.items():
        made = path.with_name(name)
        made.write_text(text, encoding="utf-8")
        made.replace(folder / name)
    path.write_text(report_markdown(run, report, pictures, folder.name), encoding="utf-8")
