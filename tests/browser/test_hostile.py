"""A run of a stranger, in which every text is an attack: no page takes it for more than text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lanescope.collector.format import schema
from lanescope.webapp.runs.run import Run, open_run
from tests.browser.conftest import Opener, Server
from tests.support import run_builder
from tests.support.synthetic import write_run

pytestmark = pytest.mark.browser

EVIL = "\"'</script></style><script>globalThis.hacked = 1</script><img src=x onerror=hacked=1>"
WORDS = ("thread", "kind", "scope", "op")
"""Columns that the schema gives words of its own."""


def evil_run(path: Path, **options: Any) -> Run:
    """A run whose tables, manifest and notes are attacks wherever they hold text."""
    plain = run_builder._array

    def attacking(value: Any, column: Any, count: int) -> Any:
        array = plain(value, column, count)
        texts = column.type in (schema.TEXT, pa.string())
        if not texts or column.name in WORDS:
            return array
        return plain([one and one + EVIL for one in array.to_pylist()], column, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_builder, "_array", attacking)
        write_run(path, steps=4, ops=20, **options)
    at = path / "manifest.json"
    manifest = json.loads(at.read_text())
    manifest.update(command=["python", EVIL], notes=[EVIL])
    for process in manifest["processes"]:
        process.update(host=EVIL, exception=EVIL, argv=[EVIL], modules_root=EVIL, python=EVIL)
        process["coverage"] = {EVIL: 3}
    at.write_text(json.dumps(manifest))
    view = {"name": EVIL, "search": f"?find={EVIL}"}
    note = {"id": "b", "t0": 0, "t1": 1000, "lane": None, "text": EVIL}
    kept = {"format": 1, "notes": [note], "views": [view]}
    (path / "notes.json").write_text(json.dumps(kept))
    return open_run(path)


@pytest.mark.slow
def test_texts_of_a_stranger_are_only_text(opened: Opener, serve: Server, tmp_path: Path) -> None:
    run = evil_run(tmp_path / "run")
    base = evil_run(tmp_path / "base", gradient_scale=1.5)
    # Fails at its end where the page's policy had to step in.
    page = opened("/timeline?t=0-200000", at=serve(run, base))
    page.click_slice("aten::")
    assert page.state["selection"]["name"].endswith(EVIL)
    assert EVIL in page.text("#slice-panel")
    page.page.get_by_role("tab", name="Notes").click()
    assert EVIL in page.text("#notes-panel")
    for link in page.page.locator(".rail a").all():
        link.click()
        page.idle()
        page.draw_charts()
        assert page.page.evaluate("globalThis.hacked") is None
        assert page.page.locator("img[src='x']").count() == 0
        assert page.page.locator("script:not([src]):text('hacked = 1')").count() == 0
