"""Records one program with every version of Python and torch that can be had here.

    python tests/matrix/run.py                                  # make matrix
    python tests/matrix/run.py --torch 2.5.1,2.15.0 --python /opt/python3.14/bin/python3

Interpreters come from PATH, from pyenv, and from --python. For each of them and each version of
torch it makes a virtual environment under build/matrix, installs the package with that torch, runs
`program.py` plain and recorded by each engine, opens the runs with `info --json` and `check`, and
compares results and counts. An environment takes up to 6 GB, and is removed once it is done with.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "matrix"
PROGRAM = Path(__file__).parent / "program.py"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TORCHES = (
    "2.5.1",
    "2.6.0",
    "2.7.1",
    "2.8.0",
    "2.9.1",
    "2.10.0",
    "2.11.0",
    "2.12.1",
    "2.13.0",
    "2.14.1",
    "2.15.0",
)
ENGINES = ("native", "portable")
SAME = ("collective", "phase", "gradient")
"""Tables with as many rows whatever the version and the engine; operators differ."""
EXPECTED = {"steps": 4, "collective": 18, "phase": 50, "gradient": 32}
TIMEOUT_S = 1800


@dataclass
class Row:
    """What came of one pair of versions."""

    python: str
    torch: str
    engines: dict[str, str] = field(default_factory=dict)  # engine -> "ok", or what is wrong
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether something was tried, and is not as it should be."""
        return any(not said.startswith(("ok", "skipped")) for said in self.engines.values())

    def cells(self) -> list[str]:
        """Its cells of the table."""
        engines = [self.engines.get(engine, "not tried") for engine in ENGINES]
        return [self.python, self.torch, *engines, "; ".join(self.notes)]


def interpreters(given: Sequence[str]) -> dict[str, Path]:
    """Version ("3.12.1") -> interpreter: one for each minor version, given ones first."""
    found: dict[str, Path] = {}
    minors: set[str] = set()
    for path in (*map(Path, given), *_on_path(), *_of_pyenv()):
        version = _version(path)
        minor = version.rpartition(".")[0]
        if minor in PYTHONS and minor not in minors:
            minors.add(minor)
            found[version] = path
    return dict(sorted(found.items(), key=lambda item: _key(item[0])))


def _on_path() -> Iterator[Path]:
    for minor in PYTHONS:
        path = shutil.which(f"python{minor}")
        if path:
            yield Path(path)


def _of_pyenv() -> Iterator[Path]:
    root = os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv")
    yield from sorted(Path(root).glob("versions/*/bin/python3"), reverse=True)


def _version(path: Path) -> str:
    """Its version; empty where it does not run (a shim of a version that is not switched on)."""
    code = "import ssl, sys, venv; print(sys.version.split()[0])"
    try:
        done = subprocess.run([str(path), "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _key(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


class Failure(Exception):
    """A command failed; the last line of what it said."""


class Environment:
    """A virtual environment with the package and a version of torch."""

    def __init__(self, interpreter: Path, name: str) -> None:
        self.folder = FOLDER / name
        self._interpreter = interpreter
        # Its own cache: the native engine is built for each.
        self._variables = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LANESCOPE"))},
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "PIP_CACHE_DIR": str(FOLDER / "pip"),
            # A machine's constraints may name one version of torch.
            "PIP_CONSTRAINT": os.devnull,
            "OMP_NUM_THREADS": "1",
        }

    def install(self, wheel: Path, torch: str) -> None:
        """Make it, with all that both need. Raises Failure."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.run(str(self._interpreter), "-m", "venv", str(self.folder))
        self.run("python", "-m", "pip", "install", "-q", f"torch=={torch}", f"{wheel}[view]")

    def run(self, *command: str) -> str:
        """What the command printed. Raises Failure."""
        try:
            done = subprocess.run(
                command,
                env=self._variables,
                cwd=FOLDER,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise Failure(f"{command[0]} took more than {TIMEOUT_S} s") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "rror" in line]
            last = (lines or done.stderr.splitlines() or ["nothing said"])[-1]
            raise Failure(f"{Path(command[0]).name} ended with {done.returncode}: {last.strip()}")
        return done.stdout

    def program(self, *before: str) -> list[str]:
        """The program's result on each rank."""
        launch = ("torchrun", "--standalone", "--nproc-per-node=2", str(PROGRAM))
        # Two ranks may print into one line.
        return sorted(re.findall(r"rank \d+: [0-9a-f]{16}", self.run(*before, *launch)))

    def remove(self) -> None:
        """Delete it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def record(environment: Environment, engine: str, plain: list[str], notes: list[str]) -> str:
    """Record the program by the engine. Returns "ok" with the counts, or what is wrong."""
    run = environment.folder / f"run-{engine}"
    shutil.rmtree(run, ignore_errors=True)
    command = ("lanescope", "record", "--engine", engine, "-o", str(run), "--")
    if environment.program(*command) != plain:
        return "another result than unrecorded"
    info = json.loads(environment.run("lanescope", "info", str(run), "--json"))
    environment.run("lanescope", "check", str(run), "--fail-on", "never")
    for warning in info["warnings"]:
        if "not recorded: " in warning or "newest tested" in warning:
            note = warning.partition(": ")[2]
            if note not in notes:
                notes.append(note)
    found = {"steps": info["steps"], **{name: info["events"][name] for name in SAME}}
    wrong = [f"{found[n]} {n} for {EXPECTED[n]}" for n in EXPECTED if found[n] != EXPECTED[n]]
    if info["engine"] != engine:
        wrong.append(f"recorded by {info['engine']}")
    if info["ranks"] != [0, 1] or info["dropped"] or not info["complete"]:
        wrong.append(f"ranks {info['ranks']}, {info['dropped']} dropped")
    if not info["events"]["op"]:
        wrong.append("no operators")
    return ", ".join(wrong) or f"ok ({info['events']['op']} ops)"


def tried(python: str, interpreter: Path, torch: str, wheel: Path, *, keep: bool) -> Row:
    """Install and record one pair of versions."""
    row = Row(python, torch)
    environment = Environment(interpreter, f"py{python}-torch{torch}")
    try:
        environment.install(wheel, torch)
        plain = environment.program()
        for engine in ENGINES:
            try:
                row.engines[engine] = record(environment, engine, plain, row.notes)
            except Failure as failure:
                row.engines[engine] = str(failure)
    except Failure as failure:
        row.engines = dict.fromkeys(ENGINES, "skipped")
        row.notes.append(str(failure))
    finally:
        if not keep:
            environment.remove()
    return row


def build_wheel() -> Path:
    """The package as it stands in the working tree."""
    target = FOLDER / "dist"
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # may hold files of before
    command = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(target),
        str(ROOT),
    )
    subprocess.run(command, check=True)
    return next(target.glob("*.whl"))


def markdown(rows: Sequence[Row]) -> str:
    """The table of `docs/versions.md`."""
    lines = [("Python", "torch", *ENGINES, "notes"), ("---",) * (3 + len(ENGINES))]
    lines += [tuple(row.cells()) for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    """Print the table; status 1 where something that was tried failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", action="append", default=[], help="an interpreter; repeatable")
    parser.add_argument("--only", default="", help="only these versions of Python, as 3.10,3.12")
    parser.add_argument("--torch", default=",".join(TORCHES), help="versions, as 2.5.1,2.15.0")
    parser.add_argument("--keep", action="store_true", help="leave the environments behind")
    parser.add_argument("--markdown", type=Path, help="also write the table into this file")
    chosen = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel()
    only = tuple(chosen.only.split(",")) if chosen.only else PYTHONS
    rows = []
    for python, interpreter in interpreters(chosen.python).items():
        if python.rpartition(".")[0] not in only:
            continue
        for torch in chosen.torch.split(","):
            rows.append(tried(python, interpreter, torch, wheel, keep=chosen.keep))
            print("  ".join(rows[-1].cells()), flush=True)
    table = markdown(rows)
    print(f"\n{table}")
    if chosen.markdown:
        chosen.markdown.write_text(table + "\n")
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
