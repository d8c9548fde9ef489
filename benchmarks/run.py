"""Runs every benchmark, or those whose name holds a word, and prints their tables.

    python benchmarks/run.py [WORD]...

Exits 1 if one of them failed.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERSIONS_OF = ("torch", "numpy", "pyarrow", "pandas", "dash", "plotly")


def processor() -> str:
    """The processor's name, where the system states it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine() -> str:
    """What the figures below were measured on: without it they mean nothing."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS_OF)
    return (
        f"{processor()}, {cores} cores, {platform.system()} {platform.release()}\n"
        f"Python {platform.python_version()}, {versions}"
    )


def main() -> int:
    """Run one after another, each in a process of its own; 1 if one of them failed."""
    words = sys.argv[1:]
    scripts = [
        script
        for script in sorted(HERE.glob("bench_*.py"))
        if not words or any(word in script.stem for word in words)
    ]
    if not scripts:
        there = ", ".join(script.stem for script in sorted(HERE.glob("bench_*.py"))) or "none"
        print(f"no benchmark has {' or '.join(words) or 'a name'}; there are: {there}")
        return 1 if words else 0
    print(machine(), flush=True)
    failed = []
    for script in scripts:
        print(f"\n## {script.stem}", flush=True)
        began = time.perf_counter()
        if subprocess.run([sys.executable, str(script)], cwd=HERE.parent).returncode:
            failed.append(script.stem)
        print(f"({time.perf_counter() - began:.0f} s)", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
