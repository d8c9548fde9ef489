"""The name of the variable that every Python process looks for at its start: needs no module."""

RUN_VARIABLE = "LANESCOPE_RECORD"
"""The folder that a process records itself into."""
