"""Runs one program of the catalogue: `python program.py MODULE NAME`."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
