"""`lanescope check`: the run against the limits, for people, scripts and continuous integration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
from rich.console import Console
from rich.text import Text

from lanescope.collector.recorder.progress import working
from lanescope.collector.recorder.workers import cluster_option, connected
from lanescope.webapp.analysis.check_limits import load_settings
from lanescope.webapp.analysis.checks import Check, Report, counts, metric_text
from lanescope.webapp.analysis.checks import check as check_run
from lanescope.webapp.analysis.cluster import ask_ahead, is_large
from lanescope.webapp.analysis.findings import Finding, Severity
from lanescope.webapp.analysis.source_lines import named_line
from lanescope.webapp.commands.baselines import NOISE_HELP, baselines
from lanescope.webapp.commands.run_argument import run_argument, run_option, settings_option
from lanescope.webapp.commands.text_output import output_console
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import open_run


@click.command()
@run_argument()
@run_option("--baseline", metavar="RUN0", help="A run that this one must not diverge from.")
@run_option("--noise", metavar="RUN0B", help=NOISE_HELP)
@click.option(
    "--new",
    is_flag=True,
    help="With --baseline: findings that RUN0 has too are information, and do not fail.",
)
@settings_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write a JUnit report.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "never"]),
    default="error",
    show_default=True,
    help="Lowest severity that makes the exit status 1. A failed check counts as an error; so does "
    "a check that LaneScope could not make.",
)
@cluster_option
@click.pass_context
def check(
    ctx: click.Context,
    run: str,
    baseline: str | None,
    noise: str | None,
    new: bool,
    settings: Path | None,
    as_json: bool,
    junit: Path | None,
    fail_on: str,
    cluster: str | None,
) -> None:
    """Check RUN against the limits and list what is wrong with it.

    \b
    Examples:
      lanescope check runs/a
      lanescope check runs/a --baseline runs/base --junit check.xml --fail-on warning
    """
    if new and baseline is None:
        raise click.UsageError("--new needs a baseline to compare with: add --baseline RUN0")
    with working("Checking the run"):
        opened = open_run(run)
        base, again = baselines(opened, baseline, noise)
        with connected(cluster, local=is_large(opened)) as workers:
            ask_ahead(opened, workers)
            if base is not None and new:
                ask_ahead(base, workers)
        report = check_run(opened, base, load_settings(opened.path, settings), again, new=new)
    least: Severity = "warning" if fail_on == "warning" else "error"
    if junit is not None:
        _write(junit, junit_of(report, least))
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        _show(report, output_console())
    failed = fail_on != "never" and report.failed(least)
    ctx.exit(1 if failed else 0)


_MAX_NAMED = 4
"""Questions not checked for one reason, or reasons, that are named one by one."""


def _show(report: Report, console: Console) -> None:
    """Prints checks, what was not checked, and last, where the eye rests, the findings."""
    for one in report.checks:
        mark, style = ("passed", "green") if one.passed else ("failed", "bold red")
        console.print(Text.assemble((f"{mark}  ", style), f"{one.name}: {value_and_limit(one)}"))
    for name, words in report.faults.items():
        text = units.printable(f"{name}: not checked: {words}")
        console.print(Text.assemble(("error  ", "bold red"), text))
    done = {one.name for one in report.checks} | set(report.unmeasured)
    for name, value in report.metrics.items():
        if name not in done:
            console.print(Text(f"   -    {name}: {_measured(value)}", style="dim"))
    for reason, questions in report.unanswered(recordable=True).items():
        words = f"   -    not checked ({reason}): {_some(questions)}"
        console.print(Text(units.printable(words), style="dim"))
    if absent := report.unanswered(recordable=False):
        most = sorted(absent.items(), key=lambda item: -len(item[1]))
        reasons = [f"{why} ({len(of)})" if len(of) > 1 else why for why, of in most]
        words = f"   -    {_apart(sum(map(len, absent.values())))}: {_some(reasons)}"
        console.print(Text(units.printable(words), style="dim"))
    for finding in report.findings:
        style = {"error": "bold red", "warning": "yellow"}.get(finding.severity, "")
        text = units.printable(finding.title)
        judged = f"{finding.severity} (likely)  " if finding.confidence == "likely" else ""
        console.print(Text.assemble((judged or f"{finding.severity}  ", style), text))
        if finding.where or finding.time_ns is not None:
            console.print(Text(f"       {units.printable(_place(finding))}", style="dim"))
        for excerpt in finding.source:
            console.print(Text(f"       {units.printable(named_line(excerpt))}"))
    omitted = sum(examined.omitted for examined in report.examined)
    if omitted:
        console.print(Text(f"and {units.count(omitted)} more findings of the same kinds"))
    for warning in report.warnings:
        console.print(Text(f"     !  {units.printable(warning)}", style="yellow"))
    _conclude(report, console)


def _apart(count: int) -> str:
    return f"{units.count(count)} {'do' if count > 1 else 'does'} not apply"


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MAX_NAMED
    shown = [*texts[:_MAX_NAMED], f"and {more} more (--json lists all)"] if more > 1 else texts
    return "; ".join(shown)


def value_and_limit(one: Check) -> str:
    """Returns the value and its limit."""
    return f"{metric_text(one.name, one.value)}, limit {metric_text(one.name, one.limit)}{one.note}"


def _conclude(report: Report, console: Console) -> None:
    """Prints how many checks passed, failed, have findings and were not made."""
    answered = [one for one in report.examined if one.answered]
    found = sum(bool(one.findings) for one in answered)
    failed = sum(not one.passed for one in report.checks)
    passed = len(report.checks) - failed + len(answered) - found
    apart = sum(not one.applies for one in report.examined)
    words = f"{units.counted(passed, 'check')} passed"
    rest = (failed, "failed"), (found, "with findings"), (report.unchecked, "not checked")
    for count, what in rest:
        words += f", {units.count(count)} {what}" if count else ""
    words += f", {_apart(apart)}" if apart else ""
    console.print(Text(words, "green" if passed and not failed and not found else ""))


def _measured(value: Any) -> str:
    if not isinstance(value, dict):
        return "not measured" if value is None else units.share(value)
    known = {key: one for key, one in value.items() if one is not None}
    if not known:
        return "not measured"
    lowest, highest = units.share(min(known.values())), units.share(max(known.values()))
    if lowest == highest:
        return lowest
    return f"{lowest} to {highest} over {len(known)} ranks"


def _place(finding: Finding) -> str:
    pieces = [f"since {units.duration(finding.time_ns)}"] if finding.time_ns is not None else []
    pieces += [f"step {finding.step}"] if finding.step is not None else []
    pieces += [f"at {finding.where}"] if finding.where else []
    return ", ".join([*pieces, finding.link])


COUNTED = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
"""Attribute of a JUnit suite -> the element that it counts."""


def junit_of(report: Report, least: Severity = "error") -> bytes:
    """Returns the report as JUnit XML: a test case per check, per finding and per question without
    one.

    A limit that is not kept and the findings that explain it count once: as the findings. What is
    `least` severe or worse is a failure; a question that the run cannot answer is skipped, and what
    LaneScope failed to check is an error.
    """
    suite = ElementTree.Element("testsuite", name=f"lanescope {units.printable(report.run)}")
    explained = [one for one in report.checks if not one.passed and one not in report.unexplained]
    for one in report.checks:
        if one in explained:
            continue
        case = _case(suite, one.name)
        if not one.passed:
            value, limit = units.number(one.value, 6), units.number(one.limit, 6)
            message = f"{value} is not {one.bound} the limit {limit}"
            ElementTree.SubElement(case, "failure", message=message)
    for finding in report.findings:
        case, title = _case(suite, finding.kind), units.printable(finding.title)
        if counts(finding, least):
            ElementTree.SubElement(case, "failure", message=title, type=finding.severity)
        else:
            ElementTree.SubElement(case, "system-out").text = title
    for examined in report.examined:
        if not examined.findings:
            case = _case(suite, examined.question)
            if examined.unanswered or examined.failed:
                tag = "error" if examined.failed else "skipped"
                message = units.printable(examined.failed or examined.unanswered)
                ElementTree.SubElement(case, tag, message=message)
    for name, error in report.unmeasured.items():
        message = units.printable(error)
        ElementTree.SubElement(_case(suite, name), "error", message=message)
    for word, tag in COUNTED.items():
        suite.set(word, str(len(list(suite.iter(tag)))))
    data: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return data


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname="lanescope", name=name)


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be written ({error.strerror})") from None
