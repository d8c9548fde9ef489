"""Two runs with texts that can be compared, where one of them was redacted, or both.

In a redacted run names of arguments, hosts and users are replaced (`redaction`), numbered in the
order in which they were met. So the same is replaced in the other run, and the numbers left out.
"""

from __future__ import annotations

import re
from dataclasses import replace

from lanescope.webapp.bundles.redaction import Redactor
from lanescope.webapp.runs.run import Run

_NUMBERED = re.compile(r"<(argument|host|path|clock) [0-9]+>")
_HOST = re.compile(r"host [0-9]+")


def comparable(base: Run, run: Run) -> tuple[Run, Run]:
    """Returns both as they are where none was redacted. Rows and their order are those of the
    runs."""
    if not (redacted(base) or redacted(run)):
        return base, run
    return _plain(base), _plain(run)


def redacted(run: Run) -> bool:
    """Returns True if everything that identifies the user was removed."""
    hosts = [process["host"] for process in run.manifest["processes"]]
    return bool(hosts) and all(_HOST.fullmatch(host) for host in hosts)


class _Plain(Redactor):
    """Replaces what a redactor does, by words without numbers."""

    def text(self, text: str, arguments: bool = True) -> str:
        return _NUMBERED.sub(r"<\1>", super().text(text, arguments))


def _plain(run: Run) -> Run:
    redactor = _Plain() if redacted(run) else _Plain.of(run)
    threads = tuple(one._replace(name=redactor.text(one.name)) for one in run.threads)
    return replace(run, rows=run.rows.changed_by(redactor.rows), threads=threads)
