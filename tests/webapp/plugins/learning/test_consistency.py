"""Replicas that part, and ranks that were never meant to be equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.plugins.learning.consistency import rank_divergence
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import START_NS, Builder

NAMES = ("0.weight", "0.bias", "2.weight")
STEP_NS = 1_000_000


def training(
    path: Path,
    hashes: Any,
    *,
    steps: tuple[int, ...] = (0, 1, 2, 4),
    broadcast: bool = True,
    reduced: bool | tuple[int, ...] = True,
    exception: str = "",
) -> list[Finding]:
    """Two ranks; `hashes(rank, step, name)` gives (gradient, parameter)."""
    builder = Builder(path, world_size=2)
    for rank in (0, 1):
        builder.process(rank, exception=exception, ended="exception" if exception else "exit")
        thread = builder.thread(rank)
        begin = START_NS + rank
        values: dict[str, Any] = {"group": "0", "group_size": 2, "duration_ns": 10}
        if broadcast:
            builder.row(
                "collective",
                rank,
                thread,
                start_ns=begin,
                name="broadcast",
                bytes=1200,
                sequence=0,
                **values,
            )
        for number, step in enumerate(steps):
            at = begin + (number + 1) * STEP_NS
            if reduced is True or (reduced and step in reduced):
                builder.row(
                    "collective",
                    rank,
                    thread,
                    start_ns=at if reduced is True else at + 300,  # gradients, or parameters
                    name="all_reduce",
                    bytes=1200,
                    sequence=number + 1,
                    step=step,
                    **values,
                )
            for name in NAMES:
                grad, param = hashes(rank, step, name)
                builder.row(
                    "gradient",
                    rank,
                    thread,
                    time_ns=at + 100,
                    step=step,
                    parameter=name,
                    norm=1.0,
                    numel=100,
                    dtype="float32",
                    grad_hash=grad,
                    param_hash=param,
                )
            builder.phase(at + 200, 100, "optimizer", rank=rank, thread=thread, step=step)
    return rank_divergence(open_run(builder.write()))


def equal(rank: int, step: int, name: str) -> tuple[int, int]:
    return -(2**63) + step * 10 + NAMES.index(name), 2**63 - 1 - step


def test_replicas_that_stay_equal_are_fine(tmp_path: Path) -> None:
    assert training(tmp_path, equal) == []


def test_the_first_gradient_that_differs(tmp_path: Path) -> None:
    def hashes(rank: int, step: int, name: str) -> tuple[int, int]:
        grad, param = equal(rank, step, name)
        # As of step 2 one parameter's gradient is each rank's own; the parameter follows.
        return (
            grad + (rank if step >= 2 and name == "2.weight" else 0),
            param - (rank if step >= 3 and name == "2.weight" else 0),
        )

    (found,) = training(tmp_path, hashes)
    assert (found.kind, found.severity, found.step, found.ranks) == (
        "rank_divergence",
        "error",
        2,
        (0, 1),
    )
    assert (
        "diverge at step 2: the gradient of 2.weight differs. The others are equal" in found.title
    )
    evidence = found.evidence
    assert (evidence["parameter"], evidence["what"]) == ("2.weight", "gradient")
    assert (evidence["differing"], evidence["compared"]) == (1, 3)
    assert evidence["last_equal_step"] == 1
    assert evidence["hash"] == {"0": f"{2**63 + 22:016x}", "1": f"{2**63 + 23:016x}"}


def test_a_step_without_reduction_names_the_wrapper(tmp_path: Path) -> None:
    def hashes(rank: int, step: int, name: str) -> tuple[int, int]:
        grad, param = equal(rank, step, name)
        return grad + rank, param - (rank if step else 0)

    (found,) = training(tmp_path, hashes, reduced=False)
    assert found.step == 0
    assert "call the DDP wrapper, not the module in it" in found.title
    assert found.evidence["differing"] == 3


def test_a_parameter_written_on_one_rank_only(tmp_path: Path) -> None:
    def hashes(rank: int, step: int, name: str) -> tuple[int, int]:
        grad, param = equal(rank, step, name)
        return grad, param - (rank if step == 4 and name == "0.bias" else 0)

    (found,) = training(tmp_path, hashes)
    assert (found.step, found.evidence["what"]) == (4, "parameter")
    assert found.evidence["last_equal_step"] == 2


def test_replicas_that_never_were_equal_though_their_gradients_are(tmp_path: Path) -> None:
    def hashes(rank: int, step: int, name: str) -> tuple[int, int]:
        grad, param = equal(rank, step, name)
        return grad, param - rank

    (found,) = training(tmp_path, hashes, broadcast=False)
    assert (found.step, found.evidence["what"]) == (0, "parameter")
    assert "broadcast it from one rank at the start" in found.title


@pytest.mark.parametrize("again", [4, 5])
def test_ranks_that_average_their_parameters_now_and_then_do_not_part(
    tmp_path: Path, again: int
) -> None:
    """In step 3, which is seen in step 4; or in step 4, which is not seen any more."""

    def hashes(rank: int, step: int, name: str) -> tuple[int, int]:
        grad, param = equal(rank, step, name)
        return grad + rank, param - (rank if step not in (0, again) else 0)

    assert training(tmp_path, hashes, reduced=(again - 1,)) == []


def test_shards_and_other_models_are_not_compared(tmp_path: Path) -> None:
    def hashes(rank: int, step: int, name: str) -> tuple[int, int]:
        grad, param = equal(rank, step, name)
        own = 0 if name == "0.bias" and step == 0 else rank  # zeros are alike on all shards
        return grad + rank, param - own

    with pytest.raises(NotApplicable, match="replicas"):
        training(tmp_path, hashes)


def test_ranks_that_synchronise_nothing_are_not_compared(tmp_path: Path) -> None:
    def hashes(rank: int, step: int, name: str) -> tuple[int, int]:
        grad, param = equal(rank, step, name)
        return grad + rank, param - (rank if step else 0)

    with pytest.raises(NotApplicable, match="replicas"):
        training(tmp_path, hashes, broadcast=False, reduced=False)


def test_a_run_without_hashes_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable, match="record with --level access"):
        training(tmp_path, lambda rank, step, name: (None, None))


UNFINISHED = "RuntimeError: Expected to have finished reduction in the prior iteration (train.py:9)"


@pytest.mark.parametrize(("parts_at", "because"), [(4, True), (2, False)])
def test_gradients_of_the_step_that_ddp_could_not_finish_differ_because_of_it(
    tmp_path: Path, parts_at: int, because: bool
) -> None:
    def hashes(rank: int, step: int, name: str) -> tuple[int, int]:
        grad, param = equal(rank, step, name)
        return grad + rank * (step >= parts_at), param - rank * (step > parts_at)

    (found,) = training(tmp_path, hashes, exception=UNFINISHED)
    assert found.step == parts_at
    assert ("that is what ended this run" in found.title) == because
