"""`lanescope view` of a run that is still being recorded, in the browser, to its violent end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.support.processes import TIME_LIMIT_S, first_line, started
from tests.support.recording import BIN, write_program

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PROGRAM = """
    import os, sys, time
    from pathlib import Path
    import torch
    import lanescope.collector as ls

    folder = Path(sys.argv[1])
    (folder / "pid").write_text(str(os.getpid()))

    @ls.validator(torch.nn.ReLU)
    def nothing_planted(event, inputs, outputs):
        assert not (folder / "fault").exists()

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10_000):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        (folder / "first step").touch()
        time.sleep(0.1)
"""


def wait_until(there: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)


class Followed:
    """The page of a run that is being recorded."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @property
    def state(self) -> Any:
        return self.page.evaluate("lanescope.debugState()")

    def comes(self, expression: str) -> None:
        """Waits until it is true: the page's policy forbids wait_for_function."""
        wait_until(lambda: self.page.evaluate(expression))

    def steps_come(self) -> Any:
        """More of them come, and what the user sees stays where it is; returns the state."""
        first = self.state
        self.comes(f"lanescope.debugState().steps > {first['steps'] + 3}")
        later = self.state
        assert later["etag"] != first["etag"]
        for side in ("t0", "t1"):
            assert later["viewport"][side] == first["viewport"][side]
        assert later["viewport"]["duration"] > first["viewport"]["duration"]
        assert "recording" in self.page.locator(".pill.live").inner_text()
        return later

    def window_follows(self, after: float) -> None:
        """Followed, the window ends where the run ends."""
        self.page.locator(".pill.live").click()
        self.comes(
            f"""(() => {{
              const {{ viewport, live }} = lanescope.debugState();
              return live.on && viewport.t1 > {after} && viewport.t1 === viewport.duration;
            }})()"""
        )

    def other_pages_follow(self) -> None:
        self.page.locator("#rail-overview").click()
        ops = """Number(
            (document.querySelector("details.recording summary")?.textContent ?? "")
                .replaceAll("\u2009", "").match(/([0-9]+) ops/)?.[1] ?? 0)"""
        self.comes(f"{ops} > 0")
        before = self.page.evaluate(ops)
        self.comes(f"{ops} > {before}")
        self.page.locator("#rail-timeline").click()

    def finding_is_shown(self, fault: Path) -> None:
        alert = self.page.locator(".live-alert")
        self.comes("fetch('/api/live').then(a => a.json()).then(a => a.findings !== null)")
        assert not alert.is_visible()
        fault.touch()
        alert.wait_for(timeout=60_000)
        assert "Validator nothing_planted of ReLU (module 1) failed" in alert.inner_text()
        assert alert.get_attribute("role") == "alert"

    def has_all_of_it(self, steps: int) -> None:
        """After the end of the recording, which had so many steps before."""
        self.page.locator(".pill.live", has_text="recording ended").wait_for(timeout=60_000)
        self.page.evaluate("lanescope.idle()")
        last = self.state
        facts = self.page.evaluate("fetch('/api/run').then(answer => answer.json())")
        assert (last["etag"], last["steps"]) == (facts["etag"], facts["steps"]["count"])
        assert last["steps"] >= steps
        assert all(lane["loaded"] for lane in last["lanes"] if lane["visible"])


def test_a_run_is_followed_until_it_is_killed(context: BrowserContext, tmp_path: Path) -> None:
    run, lanescope = tmp_path / "run", BIN / "lanescope"
    program = write_program(tmp_path, PROGRAM)
    recording = (lanescope, "record", "-o", run, "--", sys.executable, program, tmp_path)
    viewing = (lanescope, "view", run, "--no-browser", "--port", "0")
    with started(*recording) as recorder:
        wait_until((tmp_path / "first step").exists)  # something is there before it is opened
        with started(*viewing) as viewer:
            page = context.new_page()
            problems: list[str] = []
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.goto(f"{first_line(viewer)}timeline")
            page.wait_for_selector(".tl-lanes", timeout=60_000)  # it may be indexed
            followed = Followed(page)
            followed.comes("globalThis.lanescope?.debugState().live")
            page.evaluate("globalThis.sameDocument = true")
            later = followed.steps_come()
            followed.window_follows(later["viewport"]["t1"])
            followed.other_pages_follow()
            followed.finding_is_shown(tmp_path / "fault")

            # The program dies, the recorder finishes the run; the page has all of it.
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
            recorder.wait(TIME_LIMIT_S)
            followed.has_all_of_it(later["steps"])
            assert page.evaluate("globalThis.sameDocument")
            assert problems == []
            page.close()
