"""Takes the pictures of the docs: the real page, on a real run, in headless Chromium.

    PYTHONPATH=. python docs/screenshots.py [RUN]
    PYTHONPATH=. python docs/screenshots.py --every-page FOLDER

RUN is a path below the repository; without it runs/demo, recorded first where it is missing. The
pictures of a hang are of runs/stuck, recorded in the same way, that of an import is of
runs/profiled, made of what torch.profiler recorded of two ranks, those of a comparison are of two
runs that differ in the learning rate, that of repeats is of a program that does not repeat, and
that of races is of the guided case.
Every picture is taken in both themes, `<name>-light.png` and `<name>-dark.png` in docs/images.

--every-page takes all pages and tabs, in both themes and at three sizes of window, into FOLDER: to
look at them after a change.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Page, ViewportSize

from examples.record_case import CASES, record
from lanescope.webapp.analysis import plugin as plugins
from lanescope.webapp.runs.run import open_run
from tests.support.chromium import launched

HERE = Path(__file__).resolve().parent
IMAGES = HERE / "images"
ROOT = HERE.parent
DEMO = "runs/demo"
STUCK = "runs/stuck"
PROFILED = "runs/profiled"
REPEATED = "runs/repeated"
RACED = "runs/case-race"
COMPARED = ("runs/lr-1e-3", "runs/lr-2e-3")
WIDTH = 1440


@dataclass(frozen=True)
class Picture:
    """One picture: which page, which address, what to do before it is taken."""

    name: str
    path: str
    query: Callable[[dict[str, Any]], str] = lambda run: ""
    prepare: Callable[[Page], None] = lambda page: None
    height: int = 900


def step_window(run: dict[str, Any], first: int, last: int) -> str:
    """The part of the address that shows the steps first..last, with a little room around."""
    steps = {step: (start, end) for step, start, end in run["steps"]["rank0"]}
    low, high = steps[first][0], steps[last][1]
    room = (high - low) // 50
    return f"t={max(0, low - room)}-{high + room}"


def middle(run: dict[str, Any]) -> int:
    """A step from the middle of the run, where everything has warmed up."""
    return int(run["steps"]["count"]) // 2


def collective_lanes(run: dict[str, Any]) -> str:
    """The collectives of all ranks, as the address pins them."""
    return ".".join(str(lane["id"]) for lane in run["lanes"] if lane["kind"] == "collectives")


def first_rank_open(run: dict[str, Any]) -> str:
    """The part of the address that opens the lanes of the first rank and closes the others."""
    others = len({lane["group"] for lane in run["lanes"]}) - 1
    return "closed=" + ".".join(map(str, range(1, others + 1)))


def select_collective(page: Page) -> None:
    """Click the widest collective: its details fill the dock."""
    state = page.evaluate("lanescope.debugState()")
    collectives = [label for label in state["labels"] if label["name"] == "all_reduce"]
    label = max(collectives, key=lambda label: label["w"])
    box = state["canvas"]
    page.mouse.click(box["x"] + label["x"] + label["w"] / 2, box["y"] + label["y"] + label["h"] / 2)
    page.mouse.move(0, 0)


def ask(page: Page) -> None:
    """Answer the first example of the SQL page."""
    page.locator("#sql-run").click()
    page.wait_for_selector("#sql-table .ag-row")


SHOWN_ON = {"hang": STUCK, "compare": COMPARED[1], "repeat": REPEATED, "races": RACED}
"""Page -> the run that its picture is of, where that is not DEMO."""
PREPARE = {"sql": ask}


def pictures_of_pages(run: str) -> tuple[Picture, ...]:
    """The pictures that are of a run, one for each page whose record asks for one."""
    return tuple(
        Picture(
            page.name,
            page.name,
            prepare=PREPARE.get(page.name, lambda _: None),
            height=page.height,
        )
        for page in plugins.pages()
        if page.height and SHOWN_ON.get(page.name, DEMO) == run
    )


PICTURES = (
    Picture(
        "timeline",
        "timeline",
        lambda run: "&".join(
            [step_window(run, middle(run), middle(run) + 2), first_rank_open(run), "overlaps=1"]
        ),
        select_collective,
    ),
    Picture(
        "step",
        "timeline",
        lambda run: step_window(run, middle(run) + 2, middle(run) + 2),  # no evaluation in it
        height=1560,
    ),
    Picture(
        "collective",
        "timeline",
        lambda run: step_window(run, middle(run), middle(run)) + "&pin=" + collective_lanes(run),
        select_collective,
        height=720,
    ),
    Picture(
        "search",
        "timeline",
        lambda run: "&".join(["q=" + quote("/^aten::_scaled_dot/"), first_rank_open(run)]),
        height=720,
    ),
    *pictures_of_pages(DEMO),
)
OF_A_HANG = pictures_of_pages(STUCK)
OF_AN_IMPORT = (Picture("imported", "timeline"),)
OF_A_PAIR = (
    Picture("baseline", "timeline", lambda run: f"{step_window(run, 1, 1)}&closed=2", height=720),
    *pictures_of_pages(COMPARED[1]),
)
OF_REPEATS = pictures_of_pages(REPEATED)


@contextmanager
def served(run: str, *options: str) -> Iterator[str]:
    """The address of the run's page, for as long as it is needed."""
    command = ["lanescope", "view", run, *options, "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        if not address.startswith("http"):
            raise SystemExit(f"no address from: {' '.join(command)}")
        yield address
    finally:
        server.terminate()
        server.communicate()


def take(page: Page, address: str, run: dict[str, Any], picture: Picture, theme: str) -> None:
    """One picture in one theme."""
    query = "&".join(filter(None, [picture.query(run), f"theme={theme}"]))
    page.set_viewport_size(ViewportSize(width=WIDTH, height=picture.height))
    page.goto(f"{address}{picture.path}?{query}")
    page.evaluate("lanescope.idle()")
    picture.prepare(page)
    page.evaluate("lanescope.idle()")
    page.screenshot(path=IMAGES / f"{picture.name}-{theme}.png")


def described(page: Page, address: str) -> dict[str, Any]:
    """The run as the page gets it, once its index is there."""
    page.goto(f"{address}timeline")
    page.wait_for_selector(".tl-lanes")  # until then the page says how far the index is
    answers = "path => fetch(path).then(answer => answer.json())"
    found: dict[str, Any] = page.evaluate(answers, "/api/run")
    while found.get("findings") is None:  # a busy server says so
        found |= page.evaluate(answers, "/api/findings")
        page.wait_for_timeout(200)
    page.close()
    return found


SHOWN_OF_CASES = {
    "divergence": "compare",
    "vanishing": "gradients",
    "lora": "gradients",
    "stops": "gradients",
    "leak": "overview",
}
"""Case -> its page; of the others the place of the first finding on the timeline."""


def finding_window(run: dict[str, Any]) -> str:
    """The part of the address that shows the first finding."""
    return str(run["findings"][0]["address"]).partition("?")[2]


def picture_of_case(name: str) -> Picture:
    """The picture of a guided case."""
    page = SHOWN_OF_CASES.get(name, "timeline")
    query = finding_window if page == "timeline" else lambda run: ""
    return Picture(f"case-{name}", page, query, height=720)


def take_export(browser: Browser, run: str, description: dict[str, Any]) -> None:
    """The exported page of two steps, in both themes."""
    window = step_window(description, middle(description), middle(description) + 1)
    with tempfile.TemporaryDirectory() as folder:
        page_file = Path(folder) / "demo.html"
        command = ["lanescope", "export", run, "--to", "html", "-o", str(page_file)]
        subprocess.run([*command, "--window", window.removeprefix("t=")], check=True)
        for theme in ("light", "dark"):
            context = browser.new_context(color_scheme=theme)
            page = context.new_page()
            page.set_viewport_size(ViewportSize(width=WIDTH, height=720))
            page.goto(page_file.as_uri())
            page.wait_for_function("globalThis.lanescope")
            page.keyboard.press("/")
            page.keyboard.type("scaled_dot_product_attention")
            page.keyboard.press("Enter")
            page.evaluate("document.activeElement.blur()")
            page.evaluate("lanescope.idle()")
            page.wait_for_selector(".search ul", state="hidden")
            page.screenshot(path=IMAGES / f"export-{theme}.png")
            print(f"export-{theme}.png")
            context.close()


def keep_report(run: str) -> None:
    """The picture of a run's worst finding, as its report has it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.md"
        subprocess.run(
            ["lanescope", "export", run, "--to", "markdown", "-o", str(report)], check=True
        )
        picture = report.with_name("report-pictures") / "finding-1.svg"
        (IMAGES / "report.svg").write_text(picture.read_text(encoding="utf-8"), encoding="utf-8")
        print("report.svg")


def record_stuck() -> None:
    """A job of two ranks, where one never comes; it ends in the error that the picture shows."""
    program = ["tests/webapp/plugins/hangs/programs.py", "missing_rank"]
    launcher = ["torchrun", "--standalone", "--nproc-per-node", "2", *program]
    subprocess.run(["lanescope", "record", "-o", STUCK, "--hang-timeout", "1", "--", *launcher])


def import_profiled() -> None:
    """Two ranks under torch.profiler, imported."""
    with tempfile.TemporaryDirectory() as folder:
        program = ["tests/support/profiled.py", folder]
        subprocess.run(["torchrun", "--standalone", "--nproc-per-node", "2", *program], check=True)
        files = sorted(map(str, Path(folder).glob("rank-*.json")))
        subprocess.run(["lanescope", "import", *files, "-o", PROFILED], check=True)


def record_pair() -> None:
    """The same training twice, with two learning rates."""
    for path in COMPARED:
        program = [
            "python",
            "examples/train_gpt.py",
            "--steps",
            "5",
            "--lr",
            path[len("runs/lr-") :],
        ]
        recorder = ["lanescope", "record", "-o", path, "--level", "numerics"]
        subprocess.run([*recorder, "--", *program], check=True)


def record_repeats() -> None:
    """One and two threads, three runs each; with two they differ, which is status 1."""
    program = ["python", "tests/support/unsteady.py", "{threads}"]
    recorder = ["lanescope", "repeat", "-n", "3", "--threads", "1,2", "-o", REPEATED]
    subprocess.run([*recorder, "--", *program])


SIZES = ((1280, 720), (1600, 900), (1920, 1080))


def take_every_page(folder: Path) -> list[str]:
    """All pages of the runs that fill them; returns what went wrong on a page."""
    folder.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    options = {COMPARED[1]: ("--baseline", COMPARED[0])}
    for run in (DEMO, STUCK, COMPARED[1], REPEATED, *case_run("race")):
        opened = open_run(next(Path(run).rglob("manifest.json")).parent)  # of repeats, one of them
        listed = [
            one for one in plugins.pages() if not one.shown or plugins.load(one.shown)(opened)
        ]
        of_it = [one.name for one in listed if SHOWN_ON.get(one.name, DEMO) == run]
        names = ["timeline", *(name for name in of_it if name != "timeline")]
        with served(run, *options.get(run, ())) as address, launched() as browser:
            described(browser.new_page(), address)
            for theme, name in product(("light", "dark"), names):
                context = browser.new_context(color_scheme=theme)
                page = context.new_page()
                page.on("pageerror", lambda error: problems.append(str(error)))
                for width, height in SIZES:
                    page.set_viewport_size(ViewportSize(width=width, height=height))
                    page.goto(f"{address}{name}?theme={theme}")
                    page.evaluate("lanescope.idle()")
                    PREPARE.get(name, lambda _: None)(page)
                    page.evaluate("lanescope.idle()")
                    file = folder / f"{Path(run).name}-{name}-{theme}-{width}.png"
                    page.screenshot(path=file)
                    print(file, flush=True)
                context.close()
    return problems


def case_run(name: str) -> tuple[str, ...]:
    """What `lanescope view` gets for a guided case, recorded where it is missing."""
    path = f"runs/case-{name}"
    if not Path(path).exists():
        record(name, Path(path))
    return (path,) if CASES[name].baseline is None else (path, "--baseline", f"{path}-baseline")


def main() -> int:
    """All pictures in both themes; an error in the page's console ends it."""
    every = len(sys.argv) > 2 and sys.argv[1] == "--every-page"
    run = sys.argv[1] if len(sys.argv) > 1 and not every else DEMO
    os.chdir(ROOT)  # the page shows the path as it was given: a short one, the same everywhere
    if run == DEMO and not Path(DEMO).exists():
        subprocess.run(["make", "demo", "HEADLESS=1"], check=True)
    if not Path(STUCK).exists():
        record_stuck()
    if not Path(PROFILED).exists():
        import_profiled()
    if not Path(COMPARED[1]).exists():
        record_pair()
    if not Path(REPEATED).exists():
        record_repeats()
    if every:
        return reported(take_every_page(Path(sys.argv[2])))
    IMAGES.mkdir(exist_ok=True)
    keep_report(STUCK)
    problems: list[str] = []
    taken = (
        ((run,), PICTURES),
        ((STUCK,), OF_A_HANG),
        ((PROFILED,), OF_AN_IMPORT),
        ((COMPARED[1], "--baseline", COMPARED[0]), OF_A_PAIR),
        ((REPEATED,), OF_REPEATS),
        (case_run("race"), pictures_of_pages(RACED)),
        *[(case_run(name), (picture_of_case(name),)) for name in CASES],
    )
    for (path, *options), pictures in taken:
        with served(path, *options) as address, launched() as browser:
            description = described(browser.new_page(), address)
            for theme in ("light", "dark"):
                context = browser.new_context(color_scheme=theme)
                page = context.new_page()
                page.on("pageerror", lambda error: problems.append(str(error)))
                for picture in pictures:
                    take(page, address, description, picture, theme)
                    print(f"{picture.name}-{theme}.png")
                context.close()
            if path == run:
                take_export(browser, run, description)
    return reported(problems)


def reported(problems: list[str]) -> int:
    """Prints errors of pages; returns the exit status."""
    for problem in problems:
        print(f"error in the page: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
