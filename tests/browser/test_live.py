"""`lanescope view` of a run that is still being recorded, in the browser, to its violent end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext

from tests.support.processes import first_line, started
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
        time.sleep(0.1)
"""


def wait_until(there: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)


def test_a_run_is_followed_until_it_is_killed(context: BrowserContext, tmp_path: Path) -> None:
    run, lanescope = tmp_path / "run", BIN / "lanescope"
    program = write_program(tmp_path, PROGRAM)
    recording = (lanescope, "record", "-o", run, "--", sys.executable, program, tmp_path)
    viewing = (lanescope, "view", run, "--no-browser", "--port", "0")
    with started(*recording) as recorder:
        wait_until(lambda: any(run.glob("journal/*/*")))
        time.sleep(1)  # something has to be there before it is opened
        with started(*viewing) as viewer:
            page = context.new_page()
            problems: list[str] = []
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.goto(first_line(viewer))
            page.wait_for_selector(".tl-lanes", timeout=60_000)  # it may be indexed

            def comes(expression: str) -> None:  # the page's policy forbids wait_for_function
                wait_until(lambda: page.evaluate(expression))

            comes("globalThis.lanescope?.debugState().live")
            page.evaluate("globalThis.sameDocument = true")
            first = page.evaluate("lanescope.debugState()")

            # More steps come, and what the user sees stays where it is.
            comes(f"lanescope.debugState().steps > {first['steps'] + 3}")
            later = page.evaluate("lanescope.debugState()")
            assert later["etag"] != first["etag"]
            for side in ("t0", "t1"):
                assert later["viewport"][side] == first["viewport"][side]
            assert later["viewport"]["duration"] > first["viewport"]["duration"]
            assert "recording" in page.locator(".pill.live").inner_text()

            # Followed, the window ends where the run ends.
            page.locator(".pill.live").click()
            comes(
                f"""(() => {{
                  const {{ viewport, live }} = lanescope.debugState();
                  return live.on && viewport.t1 > {later["viewport"]["t1"]}
                    && viewport.t1 === viewport.duration;
                }})()"""
            )

            # So do the other pages.
            page.locator("#rail-overview").click()
            steps = "parseInt(document.querySelector('.figures small')?.textContent ?? 0)"
            comes(f"{steps} > 0")
            before = page.evaluate(steps)
            comes(f"{steps} > {before}")
            page.locator("#rail-timeline").click()

            # What is found meanwhile is said.
            alert = page.locator(".live-alert")
            comes("fetch('/api/live').then(a => a.json()).then(a => a.findings !== null)")
            assert not alert.is_visible()
            (tmp_path / "fault").touch()
            alert.wait_for(timeout=60_000)
            assert "validator nothing_planted of ReLU failed" in alert.inner_text()
            assert alert.get_attribute("role") == "alert"

            # The program dies, whoever recorded it finishes the run; the page has all of it.
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
            recorder.wait()
            page.locator(".pill.live", has_text="recording ended").wait_for(timeout=60_000)
            page.evaluate("lanescope.idle()")
            last = page.evaluate("lanescope.debugState()")
            facts = page.evaluate("fetch('/api/run').then(answer => answer.json())")
            assert (last["etag"], last["steps"]) == (facts["etag"], facts["steps"]["count"])
            assert last["steps"] >= later["steps"]
            assert all(lane["loaded"] for lane in last["lanes"] if lane["visible"])
            assert page.evaluate("globalThis.sameDocument")
            assert problems == []
            page.close()
