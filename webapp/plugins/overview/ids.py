"""Ids of the page's components: callbacks, scripts and tests name the same ones."""

EXAMINED = "overview-examined"
FIGURES = "overview-figures"
STEPS = "overview-steps"
PATH = "overview-path"
TIME = "overview-time"
RECORDING = "overview-recording"
RECORDING_LINE = "overview-recording-line"
