"""The documentation site builds without a warning, and every picture and link of it is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    assert "does not contain an anchor" not in made.stderr, made.stderr
    return folder


def test_pages_of_all_rooms_are_there(site: Path) -> None:
    for page in (
        "index.html",
        "time/index.html",
        "contributing/index.html",
        "benchmarks/index.html",
    ):
        assert (site / page).is_file()
    assert "Two commands to begin with" in (site / "index.html").read_text(encoding="utf-8")


def test_pictures_and_links_lead_somewhere_within_the_site(site: Path) -> None:
    missing = []
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":  # its addresses are those of a server
            continue
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r'(?:src|srcset|href)="([^"#?]+)[#?"]', text):
            if ":" in target or target.startswith("//"):
                continue
            path = (page.parent / target).resolve()
            if not (path.is_file() or (path / "index.html").is_file()):
                missing.append(f"{page.relative_to(site)}: {target}")
    assert missing == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|link|img|source)[^>]+(?:src|href|srcset)="([^"]+)"', text)
        assert [one for one in loaded if "://" in one] == [], page
