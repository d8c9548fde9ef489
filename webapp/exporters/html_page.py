"""The timeline of a run, or a part of it, as one HTML file that needs no server.

It holds the page's own modules and style, the description of the run, tiles as the server would
answer them, from the coarsest level down to the finest that fits, and the slices
(`offline_answers`). Panning and zooming, selecting and searching work as in the page; past the
finest level the spans are drawn larger. Nothing is fetched: the page's own policy forbids it.
"""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lanescope import assets
from lanescope.assets.bundling import script
from lanescope.webapp.exporters.base import ExportRequest, window_within
from lanescope.webapp.exporters.offline_answers import Kept, kept_slices
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.lane_pages import all_lanes
from lanescope.webapp.timeline.lod import TILE_BITS
from lanescope.webapp.timeline.span_details import run_facts
from lanescope.webapp.timeline.timeline import Timeline

MAX_TILES = 2_000_000
"""Bytes of deflated tiles; base64 makes four of three."""
MAX_PAGE = 5_000_000
_MAX_PLACES = 1500
"""Tiles: each level has twice as many as the one before it, however little is in them."""
_RAW = 32 << 20
"""Bytes of tiles before they are deflated: what the browser has to keep."""

OFFLINE_SCRIPT = "page/offline_page.js"
_PICTURE = re.compile(r"""url\(["']?([a-z-]+\.svg)["']?\)""")
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
_STYLE = """
html, body { height: 100%; margin: 0 }
body { display: flex; flex-direction: column }
.still-head { display: flex; gap: 1rem; align-items: center; padding: .5rem .75rem }
.still-head > span { color: var(--muted) }
.still-head > .search-host { margin-left: auto }
.still-panel { height: 156px; overflow: auto; padding: 12px 16px; display: block }
.still-panel .facts { grid-template-columns: 90px minmax(0, 1fr); max-width: 60rem }
#timeline-host { flex: 1; min-height: 0; position: relative }
"""


def page_of(
    run: Run,
    window: tuple[int, int] | None = None,
    ranks: Sequence[int] | None = None,
    timeline: Timeline | None = None,
) -> str:
    """Returns the page. `window` [t0, t1) in ns is what it opens with and holds in detail.

    RunError where the window is not within the run, and where even the coarsest view is too large.
    """
    opened = Timeline.open(run) if timeline is None else timeline
    t0, t1 = window_within(run, window)
    lanes = [lane.id for lane in opened.index.lanes if ranks is None or lane.rank in ranks]
    places, packed = _tiles(opened, t0, t1, lanes)
    facts = run_facts(opened)
    kept_lanes = set(lanes)
    facts["lanes"] = [lane for lane in all_lanes(opened) if lane["id"] in kept_lanes]
    facts["title"] = run.title
    kept = kept_slices(opened, (t0, t1), lanes)
    data = {
        "run": facts,
        "view": {"t0": t0, "t1": t1},
        "places": places,
        "slices": kept.to_json(),
    }
    made = _page(run, data, packed, kept)
    if len(made.encode()) > MAX_PAGE:
        raise RunError(
            f"the page would have {units.size(len(made))}, expected less than "
            f"{units.size(MAX_PAGE)}: take fewer ranks, with --ranks"
        )
    return made


def _tiles(
    timeline: Timeline, t0: int, t1: int, lanes: list[int]
) -> tuple[list[tuple[int, int, int, int]], bytes]:
    """(level, index, first byte, bytes) of each tile, and all of them deflated.

    Levels are taken whole: a row in which only some parts are sharp would say something untrue.
    """
    top = max((max(timeline.run.duration_ns, 1) - 1).bit_length() - TILE_BITS, 0)
    places: list[tuple[int, int, int, int]] = []
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed, size, raw = [b""], 0, 0
    for level in range(top, -1, -1):
        first, last = t0 >> (level + TILE_BITS), (t1 - 1) >> (level + TILE_BITS)
        if len(places) + last - first >= _MAX_PLACES:
            break
        probe = packer.copy()
        found, data, at = [], [], raw
        for index in range(first, last + 1):
            tile = timeline.tile(level, index, lanes)
            found.append((level, index, at, len(tile)))
            data.append(probe.compress(tile))
            at += len(tile)
            grown = size + sum(map(len, data))
            if level < top and (grown > MAX_TILES or at > _RAW):
                packed.append(packer.flush())
                return places, b"".join(packed)
        packer, raw = probe, at
        packed += data
        size += sum(map(len, data))
        places += found
    packed.append(packer.flush())
    return places, b"".join(packed)


def _page(run: Run, data: dict[str, Any], tiles: bytes, kept: Kept) -> str:
    folder = assets.FOLDER
    style = "".join((folder / f"{name}.css").read_text(encoding="utf-8") for name in _STYLES)
    style = _PICTURE.sub(lambda found: _picture(found[1]), style)
    title = html.escape(units.printable(run.title))
    ranks = sorted({lane["rank"] for lane in data["run"]["lanes"]})
    span = data["view"]["t1"] - data["view"]["t0"]
    about = f"{units.duration(span)} of {units.duration(run.duration_ns)}, {len(ranks)} ranks"
    if kept.shortest_ns:
        least = units.duration(kept.shortest_ns)
        about += f" · slices of {least} or more can be selected and found"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · LaneScope</title>
<style>{style}{_STYLE}</style>
<script type="application/json" id="run">{_script(data)}</script>
<script type="text/plain" id="tiles">{base64.b64encode(tiles).decode()}</script>
<script type="text/plain" id="slices">{base64.b64encode(kept.block).decode()}</script>
</head>
<body data-page="timeline">
<header class="still-head"><b>{title}</b><span>{about} · press ? for the keys</span>
<div id="search-host" class="search-host"></div></header>
<main id="timeline-host"></main>
<aside id="slice-panel" class="dock still-panel" aria-label="Selected slice"></aside>
<script type="module">{script(OFFLINE_SCRIPT)[0]}</script>
</body>
</html>
"""


_STYLES = ("style", "style_pages", "timeline")


def _picture(name: str) -> str:
    data = base64.b64encode((assets.FOLDER / name).read_bytes()).decode()
    return f'url("data:image/svg+xml;base64,{data}")'


def _script(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def export(run: Run, path: Path, wanted: ExportRequest) -> None:
    """Writes the page of some ranks and of a window."""
    path.write_text(page_of(run, wanted.window, wanted.ranks), encoding="utf-8")
