"""A run that is still being recorded, as the page sees it: always its newest state.

The run is opened again and again, and served as soon as there is more of it. Each state is a run of
its own with its own etag; requests that name an older one are still answered from it, so that what
a page has asked for comes.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lanescope.collector import schema
from lanescope.webapp.errors import RunError
from lanescope.webapp.examining import Examining
from lanescope.webapp.run import Run, open_run
from lanescope.webapp.settings import Settings
from lanescope.webapp.timeline import Timeline
from lanescope.webapp.wsgi import Wsgi

POLL_S = 0.25
"""Between two looks at the run; more where opening it takes long, so that half the time is free."""

QUIET_S = 10.0
"""Nothing new for so long: the programs are in a long step, or dead."""

KEPT = 3
"""States that are still answered for."""

_NUMBER = re.compile("[0-9]+")

Make = Callable[[Timeline, Callable[[], dict[str, Any]]], Wsgi]
"""(timeline, what /api/live answers) -> application."""


def growing(run: Run) -> bool:
    """Whether more may come: the recording was not finished, and its journals are there."""
    folder = run.files.folder
    if folder is None or run.manifest["complete"]:
        return False
    return any((folder / schema.JOURNAL_FOLDER).glob("*/"))


class Following:
    """A WSGI application of the newest state of a run. Its threads end with the recording."""

    def __init__(self, first: Timeline, make: Make, settings: Settings) -> None:
        self._make = make
        self._settings = settings
        self._changed = time.monotonic()
        self._ended = False
        self._findings: list[dict[str, str]] | None = None
        self._cache = tempfile.TemporaryDirectory(prefix="lanescope-live-")
        self._timeline = first
        self._apps: dict[str, Wsgi] = {}
        self._serve(first)

    def start(self) -> None:
        """Begins to look."""
        for work in (self._follow, self._examine):
            threading.Thread(target=work, name="lanescope-live", daemon=True).start()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answers from the state that the address names, else from the newest."""
        apps = self._apps
        path = environ.get("PATH_INFO", "")
        named = next((app for etag, app in apps.items() if f"/{etag}/" in path + "/"), None)
        return (named or apps[self._timeline.etag])(environ, start)

    def told(self) -> dict[str, Any]:
        """{"etag", "state", "findings": [{"key", "title", "link"}] or null} for /api/live.

        The state is recording, quiet or ended.

        Findings are null until they were looked for once; keys stay the same while counts grow.
        """
        quiet = time.monotonic() - self._changed > QUIET_S
        state = "ended" if self._ended else "quiet" if quiet else "recording"
        return {"etag": self._timeline.etag, "state": state, "findings": self._findings}

    def _serve(self, timeline: Timeline) -> None:
        apps = dict(list(self._apps.items())[-(KEPT - 1) :])
        apps[timeline.etag] = self._make(timeline, self.told)
        self._apps = apps
        self._timeline = timeline
        self._changed = time.monotonic()

    def _follow(self) -> None:
        pause = POLL_S
        ended = False
        while not ended:
            time.sleep(pause)
            began = time.monotonic()
            try:
                run = open_run(self._timeline.run.title)
                ended = not growing(run)
                if run.etag != self._timeline.run.etag:
                    baseline, noise = self._timeline.baseline, self._timeline.noise
                    cache = Path(self._cache.name)
                    for old in sorted(cache.iterdir(), key=os.path.getmtime)[: 1 - KEPT]:
                        shutil.rmtree(old, ignore_errors=True)  # what is mapped of it stays
                    self._serve(Timeline.open(run, baseline, cache=cache, noise=noise))
            except (RunError, OSError):  # a file was replaced just now, or the run was taken away
                ended = not self._timeline.run.path.exists()
            pause = max(POLL_S, time.monotonic() - began)
        self._ended = True

    def _examine(self) -> None:
        examining = Examining(self._settings)

        def told() -> None:
            found = examining.findings()
            if found is not None:
                self._findings = [
                    {
                        "key": f"{one.kind} {one.rank} {_NUMBER.sub('#', one.title)}",
                        "title": one.title,
                        "link": one.link,
                    }
                    for one in found
                    if one.severity != "info"
                ]

        done = ""
        while not (self._ended and done == self._timeline.etag):
            last, timeline = self._ended, self._timeline
            began = time.monotonic()
            whole = done == timeline.etag or examining.look(
                timeline.run, timeline.baseline, told, noise=timeline.noise, last=last
            )
            if whole or last:
                done = timeline.etag
            time.sleep(max(POLL_S, time.monotonic() - began))
