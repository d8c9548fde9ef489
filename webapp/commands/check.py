"""`lanescope check`: the run against the limits, for people, scripts and continuous integration."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import click
from rich.console import Console
from rich.text import Text

from lanescope.webapp import units
from lanescope.webapp.analysis.checks import Report
from lanescope.webapp.analysis.checks import check as check_run
from lanescope.webapp.run import open_run


@click.command()
@click.argument("run")
@click.option("--baseline", metavar="RUN0", help="A run that this one must not diverge from.")
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
    help="What makes the exit status 1; a failed check counts as an error.",
)
@click.pass_context
def check(
    ctx: click.Context,
    run: str,
    baseline: str | None,
    as_json: bool,
    junit: Path | None,
    fail_on: str,
) -> None:
    """Check RUN against the limits and list what is wrong with it."""  # fmt: skip
    opened = open_run(run)
    report = check_run(opened, open_run(baseline) if baseline else None)
    if junit is not None:
        _write(junit, junit_of(report))
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        show(report, Console(highlight=False, soft_wrap=True))
    failed = fail_on != "never" and report.failed("warning" if fail_on == "warning" else "error")
    ctx.exit(1 if failed else 0)


def show(report: Report, console: Console) -> None:
    """Prints checks and findings, one line each."""
    for one in report.checks:
        mark, style = ("passed", "green") if one.passed else ("failed", "bold red")
        value = f"{units.share(one.value)}, limit {units.share(one.limit)}"
        console.print(Text.assemble((f"{mark}  ", style), f"{one.name}: {value}"))
    done = {one.name for one in report.checks}
    for name in report.metrics:
        if name not in done:
            console.print(Text(f"   -    {name}: not measured", style="dim"))
    for finding in report.findings:
        style = {"error": "bold red", "warning": "yellow"}.get(finding.severity, "")
        text = units.printable(finding.title)
        console.print(Text.assemble((f"{finding.severity}  ", style), text))
    if not report.findings:
        console.print(Text("no findings"))


def junit_of(report: Report) -> bytes:
    """The report as JUnit XML: a test case per check and per finding."""
    cases = [
        (one.name, None if one.passed else f"{one.value:.6g} is not below the limit {one.limit:g}")
        for one in report.checks
    ]
    cases += [(finding.kind, units.printable(finding.title)) for finding in report.findings]
    suite = ElementTree.Element(
        "testsuite", name=f"lanescope {units.printable(report.run)}", tests=str(len(cases)),
        failures=str(sum(failure is not None for _, failure in cases)),
    )  # fmt: skip
    for name, failure in cases:
        case = ElementTree.SubElement(suite, "testcase", classname="lanescope", name=name)
        if failure is not None:
            ElementTree.SubElement(case, "failure", message=failure)
    data: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return data


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be written ({error.strerror})") from None
