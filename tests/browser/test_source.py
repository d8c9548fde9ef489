"""The program's line, in the card of a finding and in the panel of a slice."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from lanescope.webapp import open_run
from tests.browser.conftest import Opener, Server
from tests.support.recording import record_program

PROGRAM = """
    import threading, torch
    def work(total):
        for _ in range(3):
            total.add_(torch.ones(3))  # </script><img src=x onerror="document.title='hurt'">
    total = torch.zeros(3)
    threads = [threading.Thread(target=work, args=(total,)) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""
LINE = "total.add_(torch.ones(3))  # </script><img src=x onerror=\"document.title='hurt'\">"


def test_the_line_is_in_the_card_and_in_the_panel(
    opened: Opener, serve: Server, tmp_path: Path
) -> None:
    run = open_run(record_program(tmp_path, PROGRAM).run)
    page = opened("/races", at=serve(run)).page
    excerpt = page.locator("details.source").first
    summary = excerpt.locator("summary")
    assert " ".join(summary.inner_text().split()) == " ".join(LINE.split())
    rows = excerpt.locator("pre")
    expect(rows).to_be_hidden()
    summary.focus()
    page.keyboard.press("Enter")
    expect(rows).to_contain_text("for _ in range(3):")
    expect(rows.locator(".named")).to_contain_text("total.add_(torch.ones(3))")
    page.get_by_role("link", name="Show on the timeline").first.click()
    expect(page.locator(".source-line")).to_contain_text("total.add_(torch.ones(3))")
    assert "hurt" not in page.title()
