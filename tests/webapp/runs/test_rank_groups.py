"""Names of groups of ranks: hosts, and places along the parallel dimensions of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.runs.rank_groups import dimensions, ranks_in
from lanescope.webapp.runs.run import Run, open_run
from tests.support.run_builder import START_NS, Builder

MESH = {"pp": [(r, r + 8) for r in range(8)], "tp": [(r, r + 1) for r in range(0, 16, 2)]}


def run_of(path: Path, groups: dict[str, list[tuple[int, ...]]], hosts: int = 1) -> Run:
    """16 ranks, rank 13 not recorded, with the process groups and on so many hosts."""
    builder = Builder(path, world_size=16)
    number = 0
    for name, of in groups.items():
        for ranks in of:
            number += 1
            group = {"ranks": list(ranks), "description": name}
            builder.manifest["groups"][str(number)] = group
    for rank in range(16):
        if rank != 13:
            builder.process(rank, host=f"gpu-{rank * hosts // 16:03d}")
            builder.op(START_NS, 100, rank=rank, thread=f"{1000 + rank}-0")
    return open_run(builder.write())


@pytest.fixture
def mesh(tmp_path: Path) -> Run:
    """Two pipeline stages, two tensor-parallel ranks, four hosts."""
    return run_of(tmp_path / "run", {f"mesh_{name}": of for name, of in MESH.items()}, hosts=4)


def test_ranks_of_one_host_are_named_with_it(mesh: Run) -> None:
    assert ranks_in(mesh, [6]) == "rank 6 (host gpu-001)"
    assert ranks_in(mesh, [5, 4, 6]) == "ranks 4-6 (host gpu-001)"
    assert ranks_in(mesh, [3, 4]) == "ranks 3-4"
    assert ranks_in(mesh, [13]) == "rank 13"  # its host is not known


def test_ranks_that_make_up_a_group_are_named_by_it(mesh: Run) -> None:
    stage = [rank for rank in range(8, 16) if rank != 13]
    assert ranks_in(mesh, stage) == "ranks 8-12, 14-15 (pipeline stage 1)"
    assert ranks_in(mesh, range(0, 16, 2)) == "8 ranks (tensor-parallel rank 0)"
    assert ranks_in(mesh, [0, 2, 4, 6]) == (
        "ranks 0, 2, 4, 6 (tensor-parallel rank 0, pipeline stage 0)"
    )
    assert ranks_in(mesh, [0, 1, 2, 4, 5, 6, 7]) == (
        "ranks 0-2, 4-7 (pipeline stage 0 without rank 3)"
    )


def test_ranks_that_have_little_in_common_are_counted(mesh: Run) -> None:
    assert ranks_in(mesh, [0, 1, 5, 9]) == "ranks 0-1, 5, 9"
    assert ranks_in(mesh, [0, 3, 5, 8, 12, 15]) == "ranks 0, 3, 5 and 3 more"
    assert ranks_in(mesh, range(16)) == "ranks 0-15"


def test_a_plain_run_has_plain_names(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", {"default_pg": [tuple(range(16))]})
    assert dimensions(run) == ()
    assert ranks_in(run, [0]) == "rank 0"
    assert ranks_in(run, [0, 1, 2]) == "ranks 0-2"


def test_dimensions_are_found_by_the_names_that_libraries_give(tmp_path: Path) -> None:
    groups = {
        "TENSOR_MODEL_PARALLEL_GROUP": MESH["tp"],
        "mesh_dp_shard": MESH["pp"],
        "mesh_dp_replicate": [(r, r + 4) for r in (0, 1, 2, 3, 8, 9, 10, 11)],
        "mesh_dp_cp": MESH["pp"],
        "EMBEDDING_GROUP": MESH["pp"],
    }
    run = run_of(tmp_path / "run", groups)
    assert [(one.name, one.word) for one in dimensions(run)] == [
        ("dp_shard", "dp_shard rank"),
        ("dp_replicate", "dp_replicate rank"),
        ("tensor", "tensor-parallel rank"),
    ]
    assert [one.place_of(9) for one in dimensions(run)] == ["1", "0", "1"]
    assert [one.place_of(15) for one in dimensions(run)] == ["1", "1", "1"]


def test_groups_that_overlap_are_no_dimension(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", {"tp": [(0, 1), (1, 2), (2, 3)]})
    assert dimensions(run) == ()
