"""Ids of components, in one place: callbacks, assets/timeline/*.js and tests name the same ones."""

LOCATION = "location"
THEME = "theme"
"""Store: "light" or "dark", told by the page."""
FRAME = "frame"
PAGE = "page"
TIMELINE = "timeline"
NOTICE = "notice"
HEALTH = "health"

# timeline
HOST = "timeline-host"
SEARCH = "search-host"
DOCK = "dock"
DOCK_BAR = "dock-bar"
SLICE = "slice-panel"
VIEW = "timeline-view"
"""Store: {t0, t1, range, number}: the window or the selected range, once it has settled."""
ANSWERED = "timeline-answered"
"""Store: number of the view that the dock shows."""
OPS_TITLE = "ops-title"
OPS = "ops"
TABS = "dock-tabs"
OPS_PANEL, SLICES_PANEL, NOTES_PANEL = "ops-panel", "slices-panel", "notes-panel"
"""What the tabs choose between; all but the first are filled by the browser."""
OVERLAP_OF = "overlap-of"
"""Where the browser puts the field that chooses whose overlap is looked for."""
DOCK_OVERLAP = "dock-overlap"

# overlap
OVERLAP_PHASE = "overlap-phase"
OVERLAP_BODY = "overlap-body"
OVERLAP_CHART = "overlap-chart"
WINDOWS_CHART = "windows-chart"

# gradients
GRADIENT_RANK = "gradient-rank"
GRADIENT_OF = "gradient-of"
GRADIENT_SCALE = "gradient-scale"
GRADIENT_CHART = "gradient-chart"
GRADIENT_NOTE = "gradient-note"
LAYER_MEASURE = "layer-measure"
LAYER_DEPTH = "layer-depth"
LAYER_RANK = "layer-rank"
LAYER_HEAT = "layer-heat"
LAYER_NOTE = "layer-note"
LAYER_CURVES = "layer-curves"
LAYER_PROFILE = "layer-profile"

# graph
GRAPH_DEPTH = "graph-depth"
GRAPH_RANK = "graph-rank"
GRAPH_OPENED = "graph-opened"
"""Store: modules that were clicked open."""
GRAPH_NOTE = "graph-note"
GRAPH_CUT = "graph-cut"
GRAPH_CHART = "graph-chart"

# diff
REPEAT_THREADS = "repeat-threads"
REPEAT_CHART = "repeat-chart"
REPEAT_TABLE = "repeat-table"
REPEAT_COUNTS = "repeat-counts"
DIFF_MODE = "diff-mode"
DIFF_RANK = "diff-rank"
DIFF_BODY = "diff-body"
DIFF_TABLES = "diff-tables"
DIFF_CHART = "diff-chart"
DIFF_GROWTH = "diff-growth"
DIFF_LAYERS = "diff-layers"
DIFF_GROWN = "diff-grown"

# sql
SQL_EXAMPLE = "sql-example"
SQL_QUERY = "sql-query"
SQL_RUN = "sql-run"
SQL_ANSWER = "sql-answer"
SQL_TABLE = "sql-table"

# collectives
COLLECTIVE_GROUP = "collective-group"
COLLECTIVE_HEAT = "collective-heat"
COLLECTIVE_NOTE = "collective-note"
COLLECTIVE_LATENCY = "collective-latency"
COLLECTIVE_BANDWIDTH = "collective-bandwidth"
COLLECTIVE_TABLE = "collective-table"


def rail(name: str) -> str:
    """Link of a page in the rail."""
    return f"rail-{name}"
