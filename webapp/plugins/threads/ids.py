"""Ids of the page's components: callbacks, scripts and tests name the same ones."""

OVERLAP_PHASE = "overlap-phase"
OVERLAP_BODY = "overlap-body"
OVERLAP_CHART = "overlap-chart"
OVERLAP_RANK = "overlap-rank"
OVERLAP_RATES = "overlap-rates"
OVERLAP_MATRIX = "overlap-matrix"
WINDOWS_CHART = "windows-chart"
