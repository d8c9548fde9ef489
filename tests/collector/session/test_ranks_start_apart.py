"""Ranks that start at once share no file that they write, and wait for no other rank."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_program

RANKS = 4

PROGRAM = """
    import json, os, sys, time
    from pathlib import Path

    rank, folder = os.environ["RANK"], Path(sys.argv[1])
    late = rank == "1"
    while late and len([*folder.iterdir()]) < 3:  # the others are done before it begins
        time.sleep(0.01)
    import torch

    for _ in range(100):
        torch.ones(4).sin()
    run = os.environ["LANESCOPE_RECORD"]
    mapped = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    written = {m[5] for m in mapped if len(m) == 6 and m[1].startswith("rw") and m[1][3] == "s"}
    for one in Path("/proc/self/fd").iterdir():
        try:
            flags = Path(f"/proc/self/fdinfo/{one.name}").read_text().split("flags:")[1].split()[0]
            if int(flags, 8) & os.O_ACCMODE:
                written.add(os.readlink(one))
        except OSError:
            pass  # it was that of the listing
    ours = sorted(path for path in written if path.startswith(run + "/"))
    (folder / rank).write_text(json.dumps(ours))
"""


def test_ranks_write_files_of_their_own_and_wait_for_none(tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    recorded = record_program(tmp_path, PROGRAM, ranks=RANKS, arguments=(str(tmp_path / "seen"),))
    assert recorded.status == 0, recorded.stderr
    seen = [set(json.loads((tmp_path / f"seen/{rank}").read_text())) for rank in range(RANKS)]
    assert all(seen)
    for one, other in combinations(seen, 2):
        assert not one & other
    run = open_run(recorded.run)
    assert run.ranks == tuple(range(RANKS))
    assert run.complete
