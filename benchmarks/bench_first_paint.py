"""How long every page takes to its first paint and to its last part, and what it holds then.

    python benchmarks/bench_first_paint.py [RANKS]...

A page is painted when its heading, or on the timeline all lanes in sight, are drawn; it is complete
when no part of it is still being computed. Each page is opened in a fresh context, first when
nothing of it was computed, then twice more; the faster one counts. Beside the times on the
clock, from the request on, stands the processor time of server and browser up to the paint: other
work on the same cores does not add to that. Then the elements that the complete page holds, and the
longest task of its main thread on the first visit, in which it answers no click. Before them stands
the time from the command `lanescope view` to the first finding on the Overview, without an index.
Runs of more than 64 ranks are those of generate_job.py, with 2 threads and 5 steps.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from playwright.sync_api import Browser, ViewportSize

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bench_view import served
from benchmarks.generate_job import generate_job
from lanescope.webapp.analysis.plugin import load, pages
from lanescope.webapp.runs.run import Run, open_run
from tests.support.chromium import launched
from tests.support.synthetic import write_run

AIM_S = {4: 1.0, 64: 2.0}
"""Ranks -> what a first paint may take, s."""

WINDOW: ViewportSize = {"width": 1280, "height": 800}

_PAINTED = """timeline => new Promise((done) => {
  const look = () => {
    const there = timeline
      ? window.lanescope?.debugState?.().sharp
      : document.querySelector(".page h1")?.textContent;
    requestAnimationFrame(there ? () => done(performance.now()) : look);
  };
  look();
})"""

_COMPLETE = "lanescope.idle().then(() => performance.now())"

_TASKS = """window.longest = 0;
new PerformanceObserver((found) => {
  for (const task of found.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ type: "longtask", buffered: true });"""

_HELD = "[document.querySelectorAll('*').length, window.longest]"


def names_of(run: Run) -> list[str]:
    """Names of the pages that a run has, the timeline first."""
    shown = [one.name for one in pages() if not one.shown or load(one.shown)(run)]
    return ["timeline", *(name for name in shown if name != "timeline")]


def spent(browser: Browser, server: int) -> float:
    """Processor time of the browser's processes and the server's so far, s."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return own + sum(float(one["cpuTime"]) for one in processes)


def visit(browser: Browser, address: str, server: int, name: str) -> tuple[float, ...]:
    """Seconds to the first paint of a page, of processor time for it, and until it is complete;
    elements that it holds then, and its longest task, s (0: none of 50 ms)."""
    context = browser.new_context(viewport=WINDOW)
    page = context.new_page()
    page.add_init_script(_TASKS)
    before = spent(browser, server)
    page.goto(f"{address}/{name}", wait_until="commit")
    painted = page.evaluate(_PAINTED, name == "timeline")
    processor = spent(browser, server) - before
    complete = page.evaluate(_COMPLETE)
    elements, longest = page.evaluate(_HELD)
    context.close()
    return float(painted) / 1e3, processor, float(complete) / 1e3, elements, longest / 1e3


def indexed(address: str) -> None:
    """Waits until the run is served."""
    while True:
        try:
            urllib.request.urlopen(f"{address}/api/run").close()
            return
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            time.sleep(0.1)


def first_finding(browser: Browser, path: Path) -> float:
    """Seconds from the command to the first finding, of a run that was never opened before."""
    began = time.perf_counter()
    with served(path) as (address, _):
        page = browser.new_context(viewport=WINDOW).new_page()
        page.goto(address)
        page.wait_for_selector(".finding", timeout=600_000)
        seconds = time.perf_counter() - began
        page.context.close()
    return seconds


def measure(browser: Browser, path: Path, ranks: int) -> None:
    """Prints a line per page of a run."""
    run = open_run(path)
    print(f"\n{ranks} ranks, {run.counts['op']:,} ops")
    print(f"first finding {first_finding(browser, path):.1f} s after the command")
    heads = "".join(f"{word:>11}" for word in ("painted", "processor", "complete"))
    more = f"{'elements':>11}{'longest':>11}"
    print(f"{'':12}{'first visit':>33}{'again':>33}\n{'':12}{heads}{heads}{more}")
    slowest = [0.0, 0.0]
    with served(path) as (address, server):
        indexed(address)
        for name in names_of(run):
            first, *again = (visit(browser, address, server, name) for _ in range(3))
            best = [min(side) for side in zip(*again, strict=True)]
            slowest = [max(pair) for pair in zip(slowest, first, strict=False)]
            times = "".join(f"{s:9.2f} s" for s in (*first[:3], *best[:3]))
            print(f"{name:12}{times}{first[3]:11,.0f}{first[4] * 1e3:8.0f} ms", flush=True)
    aim = f" (aim: {AIM_S[ranks]:g} s)" if ranks in AIM_S else ""
    print(f"slowest first paint {slowest[0]:.2f} s, {slowest[1]:.2f} s of processor time{aim}")


def main() -> None:
    """Prints a table per number of ranks."""
    wanted = [int(word) for word in sys.argv[1:]] or list(AIM_S)
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        for ranks in wanted:
            path = Path(folder) / f"run-{ranks}"
            if ranks > max(AIM_S):
                generate_job(path, ranks, threads=2, steps=5)
            else:
                write_run(path, ranks=ranks, steps=20, ops=200)
            measure(browser, path, ranks)


if __name__ == "__main__":
    main()
