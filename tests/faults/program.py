"""Runs one program of the catalogue: `python program.py MODULE NAME planted|twin`."""

from __future__ import annotations

import importlib
import inspect
import sys

if __name__ == "__main__":
    module, name, role = sys.argv[1:]
    function = getattr(importlib.import_module(module), name)
    arguments = [role == "planted"] if inspect.signature(function).parameters else []
    function(*arguments)
