"""Pickles are read without running anything: plain values, and nothing more."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.importers.import_limits import ImportRejected
from lanescope.collector.importers.plain_pickle import plain_pickle
from tests.collector.importers.test_import_ranks import dump
from tests.support.trace_files import imported


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this must not be printed",))


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil()),
        pickle.dumps({"entries": [Evil()]}),
        pickle.dumps(print, protocol=2),
        b"\x80\x02cos\nsystem\nq\x00X\x02\x00\x00\x00lsq\x01\x85q\x02Rq\x03.",
        b"\x80\x04\x82\x01.",  # a number of copyreg's registry
        b"\x80\x02Pid\n.",  # something persistent
        b"\x80\x02}q\x00h\x05.",  # what was not put there
        b"\x80\x02]q\x00(h\x00h\x00e",  # no end
        b"\x80\x02]K\x01u.",
        b"\x80\x02}](K\x01es.",  # a list as a key
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02K\x01K\x02.",
    ],
)
def test_pickles_of_more_than_plain_values_are_rejected(
    data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dump_rank0"
    path.write_bytes(data)
    with pytest.raises(ImportRejected, match="pickle"):
        imported(tmp_path / "run", path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_are_what_pickle_makes_of_them(protocol: int) -> None:
    shared: list[Any] = ["ä" * 300]
    if protocol > 2:  # for which bytes are no plain value
        shared.append(b"\0\xff")
    value = {
        "a": shared,
        "b": (shared, (), (1,), (1, 2, 3, 4)),
        5: [None, True, False, -1.5, 1 << 90],
    }
    data = pickle.dumps(value, protocol)
    assert plain_pickle(Path("dump"), data) == value
    assert plain_pickle(Path("dump"), pickletools.optimize(data)) == value


def test_a_value_may_hold_itself(tmp_path: Path) -> None:
    inner: list[Any] = []
    inner.append(inner)
    for _ in range(60):
        inner = [inner, inner]
    path = tmp_path / "dump_rank0"
    path.write_bytes(pickle.dumps(dump(1, pg_status=inner, extra=inner, version=inner)))
    assert imported(tmp_path / "run", path).counts["collective"] == 1
