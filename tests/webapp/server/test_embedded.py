"""The page in a frame: for the server's own token, and for nothing else."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

import lanescope.webapp as lw
from lanescope.webapp.analysis.findings import Finding, Findings
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.server.embedded import View, view
from lanescope.webapp.server.server import make_app
from tests.support.spoiled import change
from tests.support.synthetic import write_run

ELSEWHERE = {"Host": "127.0.0.1", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
FRAME = {**ELSEWHERE, "Sec-Fetch-Dest": "iframe"}
INSIDE = {**FRAME, "Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module")
def client(run: Run) -> FlaskClient:
    found: FlaskClient = make_app(run, frame_token="secret").server.test_client()
    return found


def test_only_the_token_s_document_may_be_framed(client: FlaskClient) -> None:
    framed = client.get("/timeline?token=secret", headers=FRAME)
    assert framed.status_code == 200
    assert "frame-ancestors" not in framed.headers["Content-Security-Policy"]
    assert "X-Frame-Options" not in framed.headers
    inside = client.get("/threads", headers=INSIDE)
    assert "X-Frame-Options" not in inside.headers
    for address in ("/timeline", "/timeline?token=other", "/timeline?token="):
        refused = client.get(address, headers=FRAME)
        assert refused.status_code == 403
        assert refused.headers["X-Frame-Options"] == "DENY"
        assert "frame-ancestors 'none'" in refused.headers["Content-Security-Policy"]
    # The token frames documents; it opens no data to other pages.
    data = client.get("/api/run?token=secret", headers={**FRAME, "Sec-Fetch-Mode": "cors"})
    assert data.status_code == 403


def test_without_a_token_nothing_may_be_framed(run: Run) -> None:
    client = make_app(run).server.test_client()
    for headers in (FRAME, INSIDE):
        answer = client.get("/timeline?token=None", headers=headers)
        assert answer.headers["X-Frame-Options"] == "DENY"


@pytest.fixture
def shown(run: Run) -> Iterator[View]:
    found = view(run, height=300)
    yield found
    found.close()


def test_a_view_is_served_until_it_is_closed(run: Run, shown: View) -> None:
    assert lw.view is view
    assert view(run) is shown  # one server per run
    view(run, height=300)
    html = shown._repr_html_()
    assert 'height="300"' in html
    assert f'<iframe src="{shown.address}?token=' in html
    with urllib.request.urlopen(shown.address) as answer:
        assert b"LaneScope" in answer.read()
    shown.close()
    assert not shown.open
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(shown.address)
    again = view(run)
    assert again is not shown
    again.close()


def test_runs_and_findings_show_themselves(tmp_path: Path) -> None:
    path = write_run(tmp_path / "<b>run", ranks=2, threads=2, steps=3, ops=8)
    change(path, lambda manifest: manifest.update(world_size=3))
    run = open_run(path)
    assert repr(run).endswith("run: 2 ranks, 3 steps, 3.35 ms, not complete>")
    html = run._repr_html_()
    assert "&lt;b&gt;run" in html
    assert "<tr><td>1</td><td>2</td><td>3</td><td>48</td>" in html
    assert html.count("<li>") == len(run.warnings) == 1
    one = Finding("race", "error", "two <i>threads</i>", where="a.py:3", evidence={"n": "<i>"})
    assert repr(one) == "<error race: two <i>threads</i> (a.py:3)>"
    text = one._repr_html_()
    assert "two &lt;i&gt;threads&lt;/i&gt;" in text
    assert "<i>" not in text
    assert Findings([one, one])._repr_html_() == text * 2
    assert "no findings" in Findings()._repr_html_()
