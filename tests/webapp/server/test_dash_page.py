"""Pages load of Dash's scripts what they need, and no more."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from plotly.offline import get_plotlyjs_version

from lanescope import assets
from lanescope.webapp.server.dash_page import CHARTS, GENERATORS
from tests.support import ROOT

if TYPE_CHECKING:
    from flask.testing import FlaskClient

MAX_BYTES = 1_400_000

_REGISTERED = re.compile(r'require\("plotly\.js/lib/(\w+)"\)')
_DRAWN = re.compile(r"\bfigure\.add_(\w+)\(")
_OTHERS = {"annotation", "shape", "vline", "hline", "vrect", "hrect"}
"""Parts of figures other than charts."""


def test_dash_loads_the_charts_that_pages_draw(client: FlaskClient) -> None:
    answer = client.get("/_dash-component-suites/plotly/package_data/plotly.min.js")
    assert answer.data == CHARTS.read_bytes()
    assert answer.mimetype == "text/javascript"
    assert len(answer.data) <= MAX_BYTES
    again = client.get(answer.request.path, headers={"If-None-Match": answer.headers["ETag"]})
    assert again.status_code == 304


def test_every_kind_of_chart_is_in_it() -> None:
    registered = set(_REGISTERED.findall((CHARTS.parent / "charts.js").read_text()))
    sources = (path.read_text() for path in (ROOT / "webapp").rglob("*.py"))
    drawn = {kind for text in sources for kind in _DRAWN.findall(text)}
    assert {"bar", "heatmap", "icicle", "scatter"} <= drawn
    assert drawn - _OTHERS <= {*registered - {"core"}, "scatter"}


def test_it_is_the_version_that_its_page_says() -> None:
    page = (CHARTS.parent / "README.md").read_text()
    assert f"plotly.js) {get_plotlyjs_version()}," in page
    assert f'"{get_plotlyjs_version()}"' in CHARTS.read_text("utf-8")
    assert hashlib.sha256(CHARTS.read_bytes()).hexdigest() in page


def test_no_page_loads_the_polyfill_and_a_table_that_none_has(client: FlaskClient) -> None:
    loaded = re.findall(r'<script src="([^"]+)"[^>]* type="([^"]+)"', client.get("/overview").text)
    kinds = {
        src.partition("?")[0].rpartition("/")[2].partition(".")[0]: kind for src, kind in loaded
    }
    assert kinds["runtime"] == kinds["dash_renderer"] == "text/lanescope-held"
    assert kinds["dash_ag_grid"] == "text/lanescope-later"
    assert not [name for name in kinds if "polyfill" in name or "bundle" in name]
    generators = assets.FOLDER / GENERATORS
    served = client.get(next(src for src, _ in loaded if GENERATORS in src))
    assert served.data == generators.read_bytes()
    page = (generators.parent / "README.md").read_text()
    assert hashlib.sha256(served.data).hexdigest() in page
