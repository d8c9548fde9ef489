"""The command line as a whole: help, completion, configuration, what it offers next, extras."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from rich.console import Console
from rich.table import Table

import lanescope
from lanescope.collector.format.durations import parse_duration, parse_window
from lanescope.collector.recorder import progress
from lanescope.collector.session.worst_finding import worst_finding
from lanescope.webapp import cli
from lanescope.webapp.commands.text_output import print_table
from lanescope.webapp.commands.view import chosen_run, runs_in
from lanescope.webapp.runs import extras
from lanescope.webapp.runs.errors import RunError
from tests.support import ROOT
from tests.support.bundled import lanescope as called
from tests.support.processes import run_program
from tests.support.synthetic import START_NS, Builder, write_run

PATIENT_S = 600
"""Limit of checks that are to answer on a busy machine as well."""

TORCH = "import torch; torch.ones(2) + 1; raise SystemExit(3)"


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_help_of_each_command_has_two_examples(name: str) -> None:
    text = called(name, "--help").stdout
    examples = text.partition("Examples:")[2]
    assert examples.count(f"  lanescope {name}") == 2, text
    lines = [line for line in examples.splitlines() if line.startswith("    lanescope")]
    listed = [word for line in lines for word in line.split() if word[:1] == "-"]
    command = cli.main.get_command(click.Context(cli.main), name)
    assert command is not None
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    own = listed[: listed.index("--")] if "--" in listed else listed
    assert {word for word in own if not word[1:].isdigit()} <= known | {"--help"}


def test_package_has_a_version_and_is_a_command() -> None:
    version = importlib.metadata.version("lanescope")
    assert lanescope.__version__ == version
    done = run_program([sys.executable, "-m", "lanescope", "--version"])
    assert done.stdout == f"lanescope {version}\n"
    assert not hasattr(lanescope, "nothing")


def completed(words: str, *, number: int) -> list[str]:
    """What bash would be offered for the last word, type and value alternating."""
    environment = {"_LANESCOPE_COMPLETE": "bash_complete", "COMP_WORDS": words}
    code = "from lanescope.webapp.cli import main; main(prog_name='lanescope')"
    done = run_program(
        [sys.executable, "-c", code], environment={**environment, "COMP_CWORD": str(number)}
    )
    return done.stdout.split()


def test_shells_complete_commands_options_and_runs() -> None:
    assert completed("lanescope v", number=1) == ["plain,view", "plain,verify"]
    assert completed("lanescope info --js", number=2) == ["plain,--json"]
    assert completed("lanescope info ru", number=2) == ["file,ru"]


def test_durations_take_any_unit() -> None:
    for text, ns in (
        ("40ns", 40),
        ("250us", 250_000),
        ("250 µs", 250_000),
        ("1.5ms", 1_500_000),
        ("1e-3s", 1_000_000),
        ("2min", 120 * 10**9),
        ("1h", 3600 * 10**9),
    ):
        assert parse_duration(text) == ns
    assert parse_duration("60", "s") == 60 * 10**9
    assert parse_window("1200000-1800000") == (1_200_000, 1_800_000)
    assert parse_window("1.2ms-1.8ms") == parse_window("1.2-1.8 ms") == (1_200_000, 1_800_000)
    assert parse_window("1e-3s-1500us") == (1_000_000, 1_500_000)
    for wrong in ("", "5", "-1ms", "1 week", "1e99s"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(wrong)
    for wrong in ("5", "2ms-1ms", "a-b", "1-2-3"):
        with pytest.raises(ValueError, match="is not a window"):
            parse_window(wrong)


def test_view_prints_no_address_without_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", steps=1)
    monkeypatch.setitem(extras.EXTRAS, "view", ("dash", "no_such_package"))
    shown = called("view", run, "--no-browser", "--port", "0")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "lanescope view needs no_such_package, which is not installed" in shown.stderr


def test_view_takes_the_newest_run_or_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=r"there is no run in \./runs"):
        chosen_run(None)
    for age, name in enumerate(("new", "old", "oldest")):
        manifest = write_run(tmp_path / "runs" / name) / "manifest.json"
        words = json.loads(manifest.read_text()) | {"command": ["python", "x" * 200]}
        manifest.write_text(json.dumps(words))
        os.utime(manifest, (1_000_000 - age, 1_000_000 - age))
    assert [one.path.name for one in runs_in(Path("runs"))] == ["new", "old", "oldest"]
    assert chosen_run(None) == "runs/new"
    assert chosen_run("runs/old") == "runs/old"
    with pytest.raises(RunError, match="runs holds 3 runs; name one of them"):
        chosen_run("runs")
    # Long commands do not take the place of the numbers.
    capsys.readouterr()
    with pytest.raises(RunError):
        chosen_run("runs")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f" {number}  ") for number, line in enumerate(lines, 1))
    # On a terminal it asks.
    code = "from lanescope.webapp.commands.view import chosen_run; print(chosen_run('runs'))"
    leader, terminal = os.openpty()
    with os.fdopen(leader, "wb", buffering=0) as typed:
        asked = subprocess.Popen(
            [sys.executable, "-c", code], stdin=terminal, stdout=subprocess.PIPE, text=True
        )
        os.close(terminal)
        typed.write(b"2\n")
        answer = asked.communicate()[0]
    assert answer == "runs/old\n"


def test_a_reader_that_goes_does_not_change_the_answer(tmp_path: Path) -> None:
    """As in `lanescope check RUN | head -1`: the status is the command's, and nothing is said."""
    run = write_run(tmp_path / "run", steps=3)
    for command in ("info", "check"):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, "-m", "lanescope", command, str(run)],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENT_S,
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (called(command, run).exit_code, "")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_an_output_that_cannot_be_written_is_a_sentence(tmp_path: Path, more: tuple[str]) -> None:
    run = write_run(tmp_path / "run", steps=3)
    command = [sys.executable, "-m", "lanescope", "info", str(run), *more]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "lanescope: the output cannot be written (No space left on device); send it elsewhere\n"
    )


def test_tables_lose_nothing_on_a_narrow_terminal() -> None:
    table = Table("rank", "where", box=None)
    table.columns[0].no_wrap = True
    table.add_row("0", "a_file_with_a_long_name.py:12 and more")
    for width in (20, 40, 80):
        console = Console(width=width, file=io.StringIO(), soft_wrap=True)
        print_table(console, table)
        printed = console.file.getvalue()
        assert "a_file_with_a_long_name.py:12" in printed
        assert ("rank 0" in printed) == (width == 20)


def test_info_says_what_to_do_next(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=3)
    said = called("info", run).stdout
    assert f"next: lanescope view {run}" in said
    assert f"lanescope time {run}" in said
    spaced = write_run(tmp_path / "my run", steps=3)
    assert (
        f"next: lanescope view '{spaced}'\n      lanescope time '{spaced}'  "
        in called("info", spaced).stdout
    )


@pytest.mark.slow
def test_record_takes_options_from_a_file(tmp_path: Path) -> None:
    config = tmp_path / "record.toml"
    config.write_text('[record]\nlevel = "timing"\nmin-duration = "1us"\nexclude = "aten::sum"\n')
    run = tmp_path / "run"
    options = ["--config", config, "--min-duration", "2us", "-q", "-o", run]
    done = run_program(
        [sys.executable, "-m", "lanescope", "record", *options, "--", sys.executable, "-c", TORCH]
    )
    assert (done.returncode, done.stderr) == (3, "")
    found = json.loads((run / "manifest.json").read_text())["options"]
    assert (found["level"], found["min_duration_ns"]) == ("timing", 2000)
    assert found["exclude"] == ["aten::sum"]


def test_a_file_with_wrong_options_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "record.toml"
    for text, words in (
        ("levle = 1", "there is no option 'levle'"),
        ("level = 1", "Invalid value for '--level'"),
        ("level", "is not TOML"),
        ("steps = [1, 2]", "it must be a text"),
    ):
        config.write_text(text)
        result = called("record", "--config", config, "--", "true")
        assert result.exit_code == 2
        assert words in result.stderr
    assert "cannot be read" in called("record", "--config", tmp_path / "x", "--", "true").stderr


@pytest.mark.slow
def test_record_ends_with_the_most_severe_finding(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.phase(START_NS, 100, thread="1000-0")
    builder.phase(START_NS + 10, 100, thread="1000-1")
    run = builder.write()
    said = worst_finding(run, limit_s=PATIENT_S)
    assert said.startswith(("error: ", "warning: "))
    assert said.endswith(f"see: lanescope check {run}")
    assert worst_finding(run, limit_s=0).startswith("its checks take more than 0 s")
    assert worst_finding(tmp_path / "nothing") == ""
    clean = tmp_path / "clean"
    command = ["record", "--findings", "-o", clean, "--", sys.executable, "-c", TORCH]
    done = run_program([sys.executable, "-m", "lanescope", *command])
    assert done.returncode == 3
    assert "checks" in done.stderr.splitlines()[-1]  # or, on a busy machine, that they take long
    assert "checks passed" in worst_finding(clean, limit_s=PATIENT_S)


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        return True


def test_long_work_shows_a_bar_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress.working("Packing the run") as advance:
            advance(3, 4)
        # The bar starts in a thread: only its last state is sure to be drawn.
        assert ("Packing the run" in stream.getvalue() and "75%" in stream.getvalue()) == shown


WITHOUT_EXTRAS = """
import sys
from lanescope.webapp.runs.extras import EXTRAS
BLOCKED = {*EXTRAS["view"], *EXTRAS["cluster"]}

class Blocked:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from click.testing import CliRunner
from lanescope.webapp.cli import main
import json
said = []
for words in json.load(sys.stdin):
    result = CliRunner().invoke(main, words)
    said.append([result.exit_code, result.stderr, repr(result.exception)])
print(json.dumps(said))
"""


@pytest.mark.slow
def test_base_install_records_and_says_what_else_needs(tmp_path: Path) -> None:
    run, bundle = str(write_run(tmp_path / "run", steps=2)), str(tmp_path / "run.lanes")
    recorded = str(tmp_path / "recorded")
    works = [
        ["record", "-o", recorded, "--", sys.executable, "-c", TORCH],
        ["info", recorded],
        ["pack", run, "-o", bundle],
        ["info", bundle],
        ["verify", bundle],
        ["merge", bundle, "-o", str(tmp_path / "merged")],
        ["doctor"],
    ]
    needs = [
        ["view", run],
        ["check", run],
        ["diff", run, run],
        ["time", run],
        ["repeat", "--", "true"],
        ["export", run, "--to", "perfetto", "-o", str(tmp_path / "x.json")],
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS],
        input=json.dumps([*works, *needs]),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    said = json.loads(done.stdout)
    assert [one[0] for one in said[: len(works)]] == [3, *[0] * (len(works) - 1)], said
    for words, (status, sentence, _) in zip(needs, said[len(works) :], strict=True):
        assert status == 2
        assert sentence.startswith(f"lanescope: lanescope {words[0]} needs ")
        assert sentence.endswith("pip install 'lanescope[view]'\n")
