"""Notebooks: cells are recorded, and the timeline opens in a cell of a real JupyterLab."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.support.needed import environment_with
from tests.support.processes import first_line, output_of, started, without

PROGRAM = """\
m = torch.nn.Linear(4, 2); o = torch.optim.SGD(m.parameters(), lr=0.1)
for _ in range(3):
    m(torch.ones(3, 4)).sum().backward(); o.step(); o.zero_grad()
"""
CELLS = (
    "%load_ext lanescope\nimport torch",
    f"%%lanescope -o recorded --level timing\n{PROGRAM}",
    "import lanescope.webapp as lw\nlw.findings(run)",
    "lw.view(run)",
    f"%%lanescope -o failed -n second\n{PROGRAM}raise ValueError('mine')",
    "second",
    f"%%lanescope -o recorded\n{PROGRAM}",
)


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment with Jupyter, and with all that this one has."""
    place = tmp_path_factory.mktemp("jupyter") / "venv"
    folder = environment_with(place, "jupyterlab", "nbclient", "ipykernel")
    output_of(folder / "bin/python", "-m", "ipykernel", "install", "--prefix", folder)
    return folder


def notebook(path: Path, cells: tuple[str, ...]) -> Path:
    found = [
        {"cell_type": "code", "id": f"cell-{n}", "source": text, "metadata": {}, "outputs": []}
        | {"execution_count": None}
        for n, text in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    whole = {"cells": found, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(whole))
    return path


def variables(jupyter: Path) -> dict[str, str | None]:
    path = f"{jupyter / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**without("JUPYTER"), "PATH": path, "JUPYTER_PREFER_ENV_PATH": "1"}


@pytest.mark.slow
def test_cells_are_recorded_and_runs_show_themselves(jupyter: Path, tmp_path: Path) -> None:
    path = notebook(tmp_path / "cells.ipynb", CELLS)
    code = (
        "import sys, nbformat\nfrom nbclient import NotebookClient\n"
        "n = nbformat.read(sys.argv[1], 4)\n"
        "NotebookClient(n, kernel_name='python3', allow_errors=True).execute()\n"
        "nbformat.write(n, sys.argv[1])"
    )
    output_of(
        jupyter / "bin/python", "-c", code, path, environment=variables(jupyter), folder=tmp_path
    )
    cells = json.loads(path.read_text())["cells"]
    shown = [
        "".join(one["data"]["text/html"])
        for cell in cells
        for one in cell["outputs"]
        if one["output_type"] == "execute_result"
    ]
    run, findings, view, second = shown
    assert "<b>recorded: 1 rank, 3 steps" in run
    assert "no findings" in findings
    assert '<iframe src="http://127.0.0.1:' in view
    assert "<b>failed: 1 rank, 3 steps" in second
    mine, ours = (one for one in cells[4]["outputs"] if one["output_type"] == "error")
    assert mine["evalue"] == "mine"
    assert ours["traceback"] == [
        "lanescope: the cell failed; what it did is in failed, and in second"
    ]
    (taken,) = (one for one in cells[6]["outputs"] if one["output_type"] == "error")
    assert taken["traceback"][0].startswith("lanescope: recorded is there already")


@pytest.fixture
def lab(jupyter: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab in the test's folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["-m", "jupyterlab", "--allow-root", "--no-browser", f"--port={port}"]
    open_to_all = ["--IdentityProvider.token=", "--LabApp.news_url="]
    command = [jupyter / "bin/python", *words, *open_to_all, f"--notebook-dir={tmp_path}"]
    environment = variables(jupyter)
    with started(*command, environment=environment, stderr=subprocess.STDOUT) as process:
        while "Use Control-C to stop this server" not in first_line(process):
            assert process.poll() is None, "Jupyter did not start"
        yield f"http://localhost:{port}"


def run_cell(page: Page, number: int) -> None:
    """Runs the selected cell, and waits until it is done."""
    page.keyboard.press("Shift+Enter")
    page.locator(".jp-CodeCell .jp-InputArea-prompt", has_text=f"[{number}]:").wait_for()


@pytest.mark.slow
def test_timeline_opens_in_a_cell_of_jupyterlab(
    lab: str, context: BrowserContext, tmp_path: Path
) -> None:
    notebook(tmp_path / "lab.ipynb", (*CELLS[:2], "import lanescope.webapp as lw\nlw.view(run)"))
    with context.new_page() as page:
        page.set_default_timeout(120_000)
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.goto(f"{lab}/lab/tree/lab.ipynb")
        page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()
        page.locator(".jp-CodeCell").first.click()
        for number in (1, 2, 3):
            run_cell(page, number)
        frame = page.locator("iframe[src*='/timeline?token=']").element_handle().content_frame()
        assert frame is not None
        frame.wait_for_selector("canvas")
        frame.evaluate("lanescope.idle()")
        assert frame.evaluate("document.title") == "recorded · LaneScope"
        # A link within the frame loads another document, whose address has no token.
        frame.evaluate("location.assign('/threads')")
        frame.wait_for_url("**/threads")
        frame.evaluate("lanescope.idle()")
        refused = [text for text in problems if "frame" in text.lower()]
        assert refused == []
        page.screenshot(path=os.environ.get("NOTEBOOK_PICTURE", tmp_path / "lab.png"))
