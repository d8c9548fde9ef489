"""Lists all faults by room, records their programs, and compares findings with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lanescope.webapp.analysis.findings import Finding, run_question
from lanescope.webapp.analysis.plugin import questions
from lanescope.webapp.runs.run import Run, open_run
from tests.faults import (
    built_again,
    mixed_up,
    two_changes,
    two_resumes,
    two_runs,
    two_sources,
    two_starts,
    two_teachers,
)
from tests.faults.base import Fault, Program
from tests.faults.inputs import (
    changed_slices,
    first_layers,
    held_twice,
    mixed_rows,
    nearest_rows,
    nested_passes,
    own_functions,
    own_pairs,
    own_tensors,
    plain_training,
    rates_and_parts,
    thrown_away,
    uneven_weights,
    weighed_losses,
    without_a_slope,
)
from tests.faults.learning import (
    cut_off,
    epochs,
    frozen_heads,
    graph_order,
    growing,
    in_vain,
    left_gradients,
    loss_modules,
    loss_values,
    losses,
    made_in_forward,
    no_targets,
    noise_and_pairs,
    optimizer_settings,
    order_of_a_step,
    same_slices,
    seeds_and_scales,
    seen_padding,
    shared_layers,
    silent_units,
    tokens,
    too_large,
    training_loop,
    underflow,
    unused_results,
)
from tests.faults.ranks import (
    again,
    alone,
    averages,
    by_hand,
    crossed,
    data,
    files,
    kept_models,
    metrics,
    one_model,
    orders,
    parts,
    reduced,
    slow,
    splits,
    summed_parts,
    unequal_parts,
    unfrozen,
    wrong_groups,
)
from tests.faults.threads import (
    drawn_apart,
    endless,
    failed_processes,
    failed_tasks,
    forked_operators,
    handed_over,
    loader_workers,
    lock_orders,
    lost_wakeups,
    lost_work,
    second_backward,
    shared_memory,
    shared_modes,
    swapped_weights,
    thread_modes,
    torch_threads,
    turns,
    waiting,
    waiting_processes,
    worker_transforms,
)
from tests.support.recording import WITH_TESTS, record_script

_ROOMS = (
    optimizer_settings,
    silent_units,
    cut_off,
    order_of_a_step,
    made_in_forward,
    losses,
    loss_values,
    shared_layers,
    no_targets,
    training_loop,
    graph_order,
    in_vain,
    epochs,
    left_gradients,
    tokens,
    noise_and_pairs,
    unused_results,
    seeds_and_scales,
    frozen_heads,
    first_layers,
    held_twice,
    changed_slices,
    nearest_rows,
    own_functions,
    own_pairs,
    own_tensors,
    plain_training,
    mixed_rows,
    rates_and_parts,
    thrown_away,
    uneven_weights,
    weighed_losses,
    without_a_slope,
    same_slices,
    seen_padding,
    loss_modules,
    mixed_up,
    underflow,
    too_large,
    growing,
    nested_passes,
    waiting,
    waiting_processes,
    failed_processes,
    failed_tasks,
    forked_operators,
    handed_over,
    lost_wakeups,
    lost_work,
    second_backward,
    lock_orders,
    torch_threads,
    swapped_weights,
    thread_modes,
    shared_modes,
    loader_workers,
    worker_transforms,
    shared_memory,
    drawn_apart,
    endless,
    turns,
    one_model,
    data,
    parts,
    alone,
    averages,
    by_hand,
    crossed,
    reduced,
    kept_models,
    metrics,
    files,
    slow,
    splits,
    summed_parts,
    unequal_parts,
    unfrozen,
    orders,
    wrong_groups,
    again,
    two_changes,
    two_resumes,
    two_runs,
    two_sources,
    two_starts,
    two_teachers,
    built_again,
)
"""Modules with programs and, as `FAULTS`, their faults."""

FAULTS: tuple[Fault, ...] = tuple(fault for room in _ROOMS for fault in room.FAULTS)

SCRIPT = Path(__file__).with_name("program.py")


@dataclass(frozen=True)
class Verdict:
    """What is found in a program and in its twin: errors and warnings.

    Where the questions that look for the fault find it, the program is asked no other ones.
    """

    fault: Fault
    found: list[Finding]
    alarms: list[Finding]

    @property
    def right(self) -> list[Finding]:
        """Findings that say what is wrong."""
        return [one for one in self.found if _is_right(self.fault, one)]


def judged(fault: Fault, folder: Path) -> Verdict:
    """Records program and twin of a form below `folder`, and what both are compared with."""
    baseline = None
    if fault.baseline is not None:
        baseline = recorded(fault, fault.baseline, folder / "baseline")
    program = recorded(fault, fault.program, folder / "program", planted=True)
    found = _grave(program, baseline, fault.kinds)
    if not any(_is_right(fault, one) for one in found):
        found = _grave(program, baseline)
    twin = recorded(fault, fault.twin or fault.program, folder / "twin")
    return Verdict(fault, found, _grave(twin, baseline))


def recorded(fault: Fault, program: Program, run: Path, *, planted: bool = False) -> Run:
    """The run of a program of a form; `planted` where it has the fault."""
    named = program.__module__, program.__name__, "planted" if planted else "twin"
    done = record_script(
        run,
        SCRIPT,
        *named,
        options=fault.options,
        ranks=fault.ranks,
        environment=WITH_TESTS,
    )
    assert "recorder error" not in done.stderr, done.stderr
    assert "ImportError" not in done.stderr, done.stderr
    return open_run(run)


def _grave(run: Run, baseline: Run | None, kinds: tuple[str, ...] = ()) -> list[Finding]:
    """Errors and warnings, of the questions that find these kinds or of all questions."""
    asked = [*questions(), *(questions(baseline=True) if baseline is not None else ())]
    chosen = [one for one in asked if not kinds or set(kinds).intersection(one.kinds)]
    answers = [run_question(question, run, baseline) for question in chosen]
    assert not (failed := [one.failed for one in answers if one.failed]), failed
    return [one for answer in answers for one in answer.findings if one.severity != "info"]


def _is_right(fault: Fault, finding: Finding) -> bool:
    placed = not fault.place or fault.place in (finding.where or "", *_places(finding))
    return finding.kind in fault.kinds and fault.says in finding.title and placed


def _places(finding: Finding) -> list[str]:
    """Places that the sentence names."""
    return [word.strip(".,;:()") for word in finding.title.split()]
