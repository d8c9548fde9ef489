"""`lanescope doctor`: is this machine, or was a recorded run, set up well?"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from lanescope.collector.recorder.progress import working
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.commands.run_argument import run_argument
from lanescope.webapp.commands.text_output import output_console
from lanescope.webapp.plugins.checks.machine import Advice, diagnose, machine_facts
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run, open_run

_STYLES = {
    "ok": "green",
    "info": "",
    "warning": "yellow",
    "error": "bold red",
    "unknown": "dim",
}


@click.command()
@run_argument(required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, run: str | None, as_json: bool) -> None:
    """Check this machine's settings for distributed training, or those a RUN was made with.

    Exit status 1 where something cannot work (status error).

    \b
    Examples:
      lanescope doctor
      lanescope doctor runs/a --json
    """
    with working("Looking at the settings"):
        if run is None:
            advice = diagnose(machine_facts())
            found: list[Finding] = []
        else:
            advice, found = of_run(open_run(run))
    failed = any(one.status == "error" for one in advice)
    failed = failed or any(one.severity == "error" for one in found)
    if as_json:
        checks: list[dict[str, Any]] = [one.to_json() for one in advice]
        shown = {"run": run, "checks": checks, "findings": [one.to_json() for one in found]}
        click.echo(json.dumps(shown))
    else:
        _show(advice, output_console())
    ctx.exit(1 if failed else 0)


def of_run(run: Run) -> tuple[list[Advice], list[Finding]]:
    """Returns advice on the settings a recording was made with."""
    from lanescope.webapp.plugins.checks.environment import environment  # loads pandas

    found: list[Finding] = []
    try:
        found = environment(run)
    except NotApplicable as reason:
        advice = [Advice("settings", "unknown", str(reason))]
    else:
        advice = [
            Advice(str(f.evidence["name"]), "warning", f.title, str(f.evidence["set"]))
            for f in found
        ]
        advised = {one.name for one in advice}
        asked = ("backend", "find_unused_parameters", "DataLoader workers")
        advice += [Advice(name, "ok", "nothing found") for name in asked if name not in advised]
    engines = sorted({p["engine"] for p in run.manifest["processes"]})
    if "portable" in engines:
        why = "The native engine costs a tenth per op; it needs a C++ compiler where it records."
        advice.append(
            Advice(
                "engine",
                "info",
                "recorded by the portable engine",
                "install g++, or leave out --engine portable",
                why,
            )
        )
    if not run.clock_calibrated:
        why = "Times of different hosts were aligned by wall clock only."
        advice.append(Advice("clocks", "warning", "not calibrated", "NTP or PTP on all hosts", why))
    return advice, found


def _show(advice: list[Advice], console: Console) -> None:
    """Prints a line per rule, and below it what to set and why."""
    for one in advice:
        head = Text.assemble((f"{one.status:<8}", _STYLES[one.status]), f"{one.name}: ")
        console.print(head.append(units.printable(one.found)))
        if one.status in ("info", "warning", "error") and one.set:
            console.print(Text(f"         set {units.printable(one.set)}"))
        if one.status != "ok" and one.why:
            console.print(Text(f"         {one.why}", style="dim"))
    number = Counter(one.status for one in advice)
    said = [f"{number[s]} {s}" for s in ("error", "warning", "info", "unknown") if number[s]]
    console.print(Text(", ".join(said) or "all is well"))
