"""Input that is no run, or a damaged one: one clear sentence and status 2, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanescope.collector import schema
from lanescope.webapp.cli import main
from lanescope.webapp.run import RunError, open_run
from tests.synthetic import START_NS, Builder, write_run

OP_FILE = "rank=00001/thread=1001-0/op-00000.parquet"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ranks=2, threads=2, steps=2, ops=8)


def refusal(path: Path | str) -> str:
    """The sentence with which a path is refused, by the interface and by every command alike."""
    with pytest.raises(RunError) as caught:
        open_run(path)
    sentence = str(caught.value)
    for command in (["info"], ["info", "--json"], ["check"], ["view", "--no-browser"]):
        result = CliRunner().invoke(main, [*command, str(path)])
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("lanescope: ")
        assert result.stderr.count("\n") == 1
    return sentence


def change(run: Path, how: Callable[[dict[str, Any]], object]) -> Path:
    """Rewrites the manifest."""
    file = run / schema.MANIFEST
    manifest = json.loads(file.read_text())
    how(manifest)
    file.write_text(json.dumps(manifest))
    return run


def test_missing_directory(tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    assert refusal(path) == (
        f"{path}: no such directory; expected a run directory, as written by `lanescope record -o`"
    )


def test_empty_directory(tmp_path: Path) -> None:
    assert "the directory is empty; expected a run directory" in refusal(tmp_path)


def test_a_directory_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert "holds no manifest.json, so it is not a run; expected" in refusal(tmp_path)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("{}")
    assert "is a file that is no bundle; expected a bundle" in refusal(path)


def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "expected a run directory" in refusal(tmp_path / "file" / "run")


def test_an_impossible_path() -> None:
    assert "no such directory" in refusal("a\0b")


def test_a_path_too_long() -> None:
    assert "cannot be read (File name too long)" in refusal("a" * 5000)


def test_a_run_without_events(tmp_path: Path) -> None:
    path = Builder(tmp_path / "run").write()
    assert "the run holds no events, expected at least one" in refusal(path)
    change(path, lambda manifest: manifest.update(complete=False))
    assert "the run holds no events yet" in refusal(path)


def test_a_run_whose_tables_have_no_rows(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.rows("op", 0, "1000-0", start_ns=[], duration_ns=[])
    builder._threads.clear()
    assert "the run holds no events" in refusal(builder.write())


@pytest.mark.parametrize("version", [schema.FORMAT_VERSION + 1, 7, 10**30])
def test_a_future_format_is_named_whatever_else_it_holds(tmp_path: Path, version: int) -> None:
    (tmp_path / schema.MANIFEST).write_text(json.dumps({"format": version, "new": {}}))
    found = refusal(tmp_path)
    shown = "a number of about 100 bits" if version == 10**30 else str(version)
    reads = f"this version reads up to {schema.FORMAT_VERSION}; upgrade with"
    assert f"the run has format {shown}, {reads}" in found


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, None, True, [1]])
def test_a_format_that_is_no_version(run: Path, version: object) -> None:
    change(run, lambda manifest: manifest.update(format=version))
    assert "the format version is" in refusal(run)


MALFORMED: list[tuple[bytes, str]] = [
    (b"", "is not valid JSON"),
    (b"{", "is not valid JSON"),
    (b"\x89PNG\r\n\x1a\n", "byte 0 is not UTF-8"),
    (b'{"format": 1, "id": "\xff"}', "byte 21 is not UTF-8"),
    (b"\xef\xbb\xbf{}", "is not valid JSON"),
    (b"[" * 100_000, "is not valid JSON"),
    (b'{"format": ' + b"9" * 5000 + b"}", "is not valid JSON"),
    (b"[]", "holds a list of 0 without a format version"),
    (b"null", "holds None without a format version"),
    (b'"format"', "holds 'format' without a format version"),
    (b"{}", "holds an object of 0 without a format version"),
    (b'{"format": 1}', "the manifest has no 'id'"),
    (b'{"format": NaN}', "the format version is nan"),
]


@pytest.mark.parametrize(("data", "reason"), MALFORMED)
def test_a_manifest_that_is_none(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / schema.MANIFEST).write_bytes(data)
    assert reason in refusal(tmp_path)


def setter(*keys: Any) -> Callable[[dict[str, Any]], None]:
    """Sets a place deep in the manifest to the last argument."""
    *path, last, value = keys

    def change_it(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for key in path:
            place = place[key]
        place[last] = value

    return change_it


WRONG: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (setter("world_size", "2"), "world_size is '2', expected a whole number of 64 bits"),
    (setter("world_size", 0), "world_size is 0, expected 1 to 1000000"),
    (setter("world_size", 10**9), "world_size is 1000000000, expected 1 to 1000000"),
    (setter("world_size", 1), "processes[1].rank is 1, expected 0 to 0"),
    (setter("world_size", 10**400), "world_size is a number of about 1329 bits, expected"),
    (setter("world_size", True), "world_size is True, expected a whole number"),
    (setter("processes", {}), "processes is an object of 0, expected a list"),
    (setter("processes", 0, None), "processes[0] is None, expected an object"),
    (setter("processes", 0, "rank", -1), "processes[0].rank is -1, expected 0 to 1"),
    (setter("processes", 1, "rank", 2), "processes[1].rank is 2, expected 0 to 1"),
    (setter("processes", 1, "rank", 0.5), "processes[1].rank is 0.5, expected a whole number"),
    (setter("processes", 0, "pid", "x" * 99), "processes[0].pid is 'xxxx"),
    (setter("processes", 0, "clock", []), "processes[0].clock is a list of 0, expected an object"),
    (setter("processes", 0, "clock", "offset_ns", 2**63), "clock.offset_ns is 9223372036854775808"),
    (setter("processes", 0, "clock", "offset_ns", 2**63 - 1), "offset_ns is 9223372036854775807"),
    (setter("processes", 0, "clock", "drift_ppb", float("nan")), "drift_ppb is nan, expected a"),
    (setter("processes", 0, "clock", "drift_ppb", float("inf")), "drift_ppb is inf, expected a"),
    (setter("processes", 0, "clock", "drift_ppb", 10**400), "drift_ppb is a number of about"),
    (setter("processes", 0, "clock", "drift_ppb", -2e9), "drift_ppb is -2000000000.0, expected"),
    (setter("processes", 0, "clock", "uncertainty_ns", -1), "uncertainty_ns is -1, expected 0"),
    (setter("processes", 0, "coverage", "dropped", "many"), "coverage['dropped'] is 'many'"),
    (setter("processes", 0, "argv", [1]), "processes[0].argv[0] is 1, expected a text"),
    (setter("processes", 0, "host", "\ud800"), "processes[0].host holds text that is not valid"),
    (setter("files", []), "files is a list of 0, expected an object"),
    (setter("files", OP_FILE, 3), f"files['{OP_FILE}'] is 3, expected an object"),
    (setter("files", OP_FILE, "bytes", -1), ".bytes is -1, expected 0 to"),
    (setter("files", OP_FILE, "rows", 1e3), ".rows is 1000.0, expected a whole number"),
    (setter("complete", 1), "complete is 1, expected true or false"),
    (setter("exit_status", "0"), "exit_status is '0', expected one of int, null"),
    (setter("notes", [None]), "notes[0] is None, expected a text"),
    (setter("options", {"a": {}}), "options['a'] is an object of 0, expected one of str, int"),
]


@pytest.mark.parametrize(("how", "reason"), WRONG, ids=[reason[:50] for _, reason in WRONG])
def test_a_manifest_of_wrong_values(
    run: Path, how: Callable[[dict[str, Any]], None], reason: str
) -> None:
    found = refusal(change(run, how))
    assert reason in found
    assert found.endswith("the file is damaged or was not written by LaneScope")
    assert len(found) < 400 + len(str(run))


@pytest.mark.parametrize(
    "path",
    ["../op.parquet", "/etc/passwd", "rank=00000/../../x", "a//b", "./a", "", "C:/x", "a\\b",
     "a\0b", "rank=00000/thread=1-0/../../../op-00000.parquet"],
)  # fmt: skip
def test_a_manifest_that_leads_outside(run: Path, path: str) -> None:
    entry = {"bytes": 1, "rows": 1, "sha256": ""}
    found = refusal(change(run, setter("files", path, entry)))
    assert "expected paths that stay inside the run" in found


def test_a_rank_beyond_the_world(run: Path) -> None:
    entry = {"bytes": 1, "rows": 1, "sha256": ""}
    found = refusal(change(run, setter("files", "rank=00009/stack.parquet", entry)))
    assert "expected ranks 0-1 at world size 2" in found


def test_a_process_listed_twice(run: Path) -> None:
    def twice(manifest: dict[str, Any]) -> None:
        manifest["processes"].append(manifest["processes"][0])

    assert "processes[2] lists process 1000 of rank 0 twice" in refusal(change(run, twice))


def test_files_of_a_kind_unknown_are_left_alone(run: Path) -> None:
    entry = {"bytes": 1, "rows": 1, "sha256": ""}
    opened = open_run(change(run, setter("files", "notes/view.json", entry)))
    assert opened.warnings == ("1 file of a kind unknown to this version was not read",)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def cut_and_pad(file: Path) -> None:
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[: size // 2].ljust(size, b"\0"))


def spoil_footer(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-40:-8] = b"\xff" * 32
    file.write_bytes(data)


def other_columns(file: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), file)


def other_types(file: Path) -> None:
    table = pq.ParquetFile(file).read()
    names = pa.array(["x"] * table.num_rows)
    pq.write_table(table.set_column(0, "start_ns", names), file)


def other_rows(file: Path) -> None:
    pq.write_table(pq.ParquetFile(file).read().slice(1), file)


def directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (Path.unlink, "is missing"),
    (cut, "is truncated: "),
    (lambda file: file.write_bytes(b""), "is truncated: 0 bytes, expected "),
    (cut_and_pad, "does not end as a Parquet file does (truncated)"),
    (spoil_footer, "has an unreadable footer ("),
    (other_columns, "has no column 'start_ns'"),
    (other_types, "'start_ns' is string, expected int64"),
    (other_rows, " rows, expected 16"),
    (directory, OP_FILE),
]


@pytest.mark.parametrize(("spoil", "reason"), DAMAGE)
def test_one_damaged_rank_is_left_out_and_named(
    run: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(run / OP_FILE)
    resize(run)
    opened = open_run(run)
    assert opened.ranks == (0,)
    assert opened.missing_ranks == (1,)
    assert not opened.complete
    assert opened.counts["op"] == 2 * 2 * 8
    assert {thread.rank for thread in opened.threads} == {0}
    (warning,) = opened.warnings
    assert warning.startswith(f"rank 1 is left out: {OP_FILE}")
    assert reason in warning
    shown = CliRunner().invoke(main, ["info", str(run)])
    assert shown.exit_code == 0
    assert "rank 1 is left out" in shown.stdout


def resize(run: Path) -> None:
    """States sizes as found where a test is about what only the content shows."""
    file = run / OP_FILE
    if file.is_file() and file.read_bytes()[-4:] == b"PAR1":
        change(run, setter("files", OP_FILE, "bytes", file.stat().st_size))


def test_all_ranks_damaged_is_no_run(run: Path) -> None:
    for file in run.rglob("op-*.parquet"):
        cut(file)
    found = refusal(run)
    assert (
        "no rank can be read; rank 0: rank=00000/thread=1000-0/op-00000.parquet is trunc" in found
    )
    assert found.endswith("restore the file from a copy or record again")


def test_a_damaged_thread_table_damages_its_rank(run: Path) -> None:
    spoil_data(run / "rank=00001/thread.parquet")
    opened = open_run(run)
    assert opened.ranks == (0,)
    assert "rank 1 is left out" in opened.warnings[0]


def spoil_data(file: Path) -> None:
    """Damage within the rows, which the footer does not show."""
    footer = int.from_bytes(file.read_bytes()[-8:-4], "little")
    data = bytearray(file.read_bytes())
    data[4 : len(data) - footer - 8] = b"\xff" * (len(data) - footer - 12)
    file.write_bytes(data)


def test_rows_found_damaged_while_reading_are_a_sentence(run: Path) -> None:
    spoil_data(run / OP_FILE)
    opened = open_run(run)
    with pytest.raises(RunError, match=r"op-00000.parquet: cannot be read .*; the file is damaged"):
        opened.events("op")
    result = CliRunner().invoke(main, ["diff", str(run), str(run)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_a_rank_that_cannot_be_read_is_left_out(run: Path) -> None:
    # A loop of links cannot be read by anyone, the superuser included.
    file = run / OP_FILE
    file.unlink()
    file.symlink_to(file)
    assert open_run(run).ranks == (0,)


MUTATIONS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def sentence_of(run: Path, file: Path, spoiled: bytes) -> str:
    """How a run with one file spoiled is refused; empty where it opens and its tables read."""
    original = file.read_bytes()
    file.write_bytes(spoiled)
    try:
        opened = open_run(run)
        for table in ("op", "thread", "phase"):
            opened.events(table)
        opened.steps(opened.ranks[0])
    except RunError as error:
        return str(error)
    finally:
        file.write_bytes(original)
    return ""


@given(st.data())
@MUTATIONS
def test_a_mutated_manifest_opens_or_is_refused(run: Path, data: st.DataObject) -> None:
    file = run / schema.MANIFEST
    spoiled = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    assert "\n" not in sentence_of(run, file, bytes(spoiled))


@given(st.data())
@MUTATIONS
def test_a_mutated_table_opens_or_is_refused(run: Path, data: st.DataObject) -> None:
    file = run / data.draw(st.sampled_from([OP_FILE, "rank=00001/thread.parquet"]))
    spoiled = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # The footer is where damage is interesting; the size stays, or it would show at once.
        at = len(spoiled) - data.draw(st.integers(1, len(spoiled)))
        spoiled[at] = data.draw(st.integers(0, 255))
    assert "\n" not in sentence_of(run, file, bytes(spoiled))


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["info", str(tmp_path / "a\x1b[31m\nb")])
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr
    assert result.stderr.count("\n") == 1
    builder = Builder(tmp_path / "run", notes=["\x1b]0;owned\x07"], command=["[red]x", "\x1b[2J"])
    builder.op(START_NS, 1)
    shown = CliRunner().invoke(main, ["info", str(builder.write())])
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    assert "[red]x" in shown.stdout


def test_the_command_itself_refuses_with_status_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lanescope.webapp.cli", "info", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"lanescope: {tmp_path}: the directory is empty; expected a run directory, as written by "
        "`lanescope record -o`\n"
    )


def test_wrong_usage_is_status_2() -> None:
    for arguments in (["info"], ["nothing"], ["diff", "a"], ["diff", "a", "b", "--mode", "x"]):
        assert CliRunner().invoke(main, arguments).exit_code == 2
