"""A run that resumes from a checkpoint of its baseline, as the bits of its parameters show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lanescope.webapp.plugins.diff.diff import compare
from lanescope.webapp.plugins.diff.pairing.resumed import LOST, continued
from lanescope.webapp.runs.run import Run, open_run
from tests.support.recording import record_program
from tests.support.synthetic import START_NS, Builder

MS = 1_000_000


def trained(path: Path, norms: Sequence[float]) -> Run:
    """A run of one step for each norm, which both of its parameters have."""
    builder = Builder(path)
    thread = builder.thread()
    for step, norm in enumerate(norms):
        builder.row(
            "phase",
            0,
            thread,
            start_ns=START_NS + step * MS - MS // 2,
            duration_ns=MS * 3 // 4,
            name="SGD.step",
            kind="optimizer",
            step=step,
        )
        for parameter in ("weight", "bias"):
            builder.row(
                "gradient",
                0,
                thread,
                time_ns=START_NS + step * MS,
                step=step,
                norm=norm,
                parameter=parameter,
                numel=4,
                dtype="float32",
            )
    return open_run(builder.write())


@pytest.mark.parametrize(
    ("norms", "step", "lost"),
    [
        ([3.0, 4.0], 2, False),
        ([3.0, 4.5], 2, True),
        ([4.0, 5.0], 3, False),
        ([1.0, 2.5], None, False),  # begins where the baseline did
        ([3.0000002, 4.0], None, False),
        ([2.0, 2.0], 1, True),
    ],
)
def test_where_a_run_resumes(
    tmp_path: Path, norms: list[float], step: int | None, lost: bool
) -> None:
    base = trained(tmp_path / "base", [1.0, 2.0, 3.0, 4.0])
    result = compare(base, trained(tmp_path / "run", norms))
    said = [note for note in result.notes if "resumes" in note]
    assert [f"step {step} of the baseline" in note for note in said] == [True] * (step is not None)
    assert any(note.startswith(LOST) for note in result.notes) == lost
    if step is not None:
        assert result.only_in_base == 2 * max(0, 4 - step - len(norms))
        assert result.verdict == ("diverged" if lost else "identical")


def test_a_baseline_that_resumes_has_the_steps_of_the_run(tmp_path: Path) -> None:
    base = trained(tmp_path / "base", [3.0, 4.0])
    result = compare(base, trained(tmp_path / "run", [1.0, 2.0, 3.0, 4.0]))
    assert any(
        "step 2 of the run is compared with step 0 of the baseline" in n for n in result.notes
    )
    assert (result.verdict, result.norms, result.only_in_run) == ("identical", 4, 4)


def test_gradients_that_stay_the_same_show_nothing(tmp_path: Path) -> None:
    base = trained(tmp_path / "base", [1.0, 3.0, 3.0])
    notes = compare(base, trained(tmp_path / "run", [3.0, 3.0])).notes
    assert not any("resumes" in note for note in notes)


_RESUMED = """
    import sys
    import torch

    mode, at = sys.argv[1], int(sys.argv[3])
    torch.manual_seed(0)
    rows = torch.randn(64, 8)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    first = 0
    if mode != "whole":
        kept = torch.load(sys.argv[2])
        model.load_state_dict(kept["model"])
        if mode != "without_optimizer":
            optimizer.load_state_dict(kept["optimizer"])
        decay.load_state_dict(kept["decay"])
        optimizer.param_groups[0]["lr"] = decay.get_last_lr()[0]
        if mode != "without_random_numbers":
            torch.set_rng_state(kept["random"])
        first = at
    for step in range(first, at + 3):
        if step == at and mode == "whole":
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            kept |= {"decay": decay.state_dict(), "random": torch.get_rng_state()}
            torch.save(kept, sys.argv[2])
        optimizer.zero_grad()
        model(rows[step * 8 :][:8]).square().mean().backward()
        optimizer.step()
        decay.step()
"""


@pytest.mark.parametrize("level", ["access", "numerics"])
@pytest.mark.parametrize(
    ("mode", "lost", "at"),
    [
        ("restored", "", 4),
        ("without_optimizer", "all of the update of step 0: Adam begins without the state", 4),
        ("without_random_numbers", "the random numbers of step 0", 4),
        # Parameters of this step are not sampled: the file that it saves is known, and so are the
        # generators after it.
        ("without_random_numbers", "the random numbers of step 0", 5),
    ],
)
def test_what_a_checkpoint_does_not_restore(
    tmp_path: Path, mode: str, lost: str, at: int, level: str
) -> None:
    checkpoint = str(tmp_path / "checkpoint.pt")
    runs = []
    for name in ("whole", mode):
        (tmp_path / name).mkdir()
        arguments = name, checkpoint, str(at)
        options = "--level", level
        recorded = record_program(tmp_path / name, _RESUMED, *options, arguments=arguments)
        assert recorded.status == 0, recorded.stderr
        runs.append(open_run(recorded.run))
    result = compare(*runs)
    said = f"step 0 of the run is compared with step {at} of the baseline"
    assert any(said in note for note in result.notes), result.notes
    assert result.verdict == ("diverged" if lost else "identical")
    assert result.norms == 12
    assert result.only_in_base == 0
    notes = [note for note in result.notes if note.startswith(LOST)]
    assert [lost in note for note in notes] == [True] * bool(lost)
    assert not any(", lr " in note for note in result.notes), result.notes


def test_a_continued_baseline_begins_at_the_checkpoint(tmp_path: Path) -> None:
    base = trained(tmp_path / "base", [1.0, 2.0, 3.0, 4.0])
    run = trained(tmp_path / "run", [3.0, 4.0])
    found = continued(base, run)
    assert found.events("gradient", columns=["step"])["step"].to_pylist() == [0, 0, 1, 1]
    assert base.events("gradient", columns=["step"])["step"].to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [*found.steps(0).index] == [0, 1]
    assert continued(found, run) is found
