"""Tests of CPython and of packages as a judge of the recorder: run plain and recorded, compared.

`make harmless` is the way in; `runner.py` runs inside of the observed process and imports nothing
of LaneScope.
"""
