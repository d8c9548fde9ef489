"""Finds schedules that are given in epochs and step with each batch, or the other way round, also
warm-ups that hardly begin then, or never end; functions of LambdaLR that return learning rates,
plateaus of a loss in mode "max" or of an accuracy in mode "min", rates that are next to zero for
long, and optimizers that are made for each step or epoch; schedulers of an optimizer that never
steps.

The rate of CosineAnnealingLR falls for T_max of its steps, and then rises for as many. One that
goes up and down within a few batches was to be stepped once per epoch, or to get all steps of the
training. What Adam and momentum keep of earlier steps is lost with the optimizer.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd

from lanescope.collector.format.loader_names import LOADER_DATA
from lanescope.collector.format.loop_names import (
    FADED_RATE,
    IDLE_SCHEDULER,
    LOADED_RATE,
    PLATEAU,
    RATE_FACTOR,
    RENEWED_AGAIN,
    RENEWED_OPTIMIZER,
    SHORT_ANNEALING,
    SLOW_CYCLE,
)
from lanescope.collector.format.names import LOADER_BEGUN
from lanescope.webapp.analysis.fault_series import found_per_series, of_first_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged
from lanescope.webapp.plugins.training_loop.line_findings import each_line, of_lines
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_KIND = "dead_parameter"

_MIN_FACTORS = 8  # that differ from the one before
_LARGEST_FACTOR = 0.02
_MIN_METRICS, _MOSTLY, _MOST_LEFT = 6, 0.7, 0.7
"""Calls of ReduceLROnPlateau, the share of them in which a loss falls, and what it falls to. It
falls less often once the learning rate is reduced."""

_MIN_SHARES, _MOST_SAMPLES, _ROUNDING = 5, 60_000, 3e-7
"""Different accuracies, samples that they are shares of, and rounding of float32 about 1."""

_NO_RATE = 1e-6
"""As the recorder has it, of the first learning rate."""

_SMALL_RATE = 1.001e-3
_OF_EPOCHS = ("ExponentialLR", "MultiStepLR", "StepLR")
"""As the recorder has them: schedules that are given in epochs, and step with each batch."""

_MIN_BATCHES = 2  # of a DataLoader in an epoch, on average
_MIN_CYCLED, _TOGETHER = 2, 0.9  # steps of OneCycleLR, and of the batches of an epoch between them

_MIN_WARMED, _MIN_TRAINED, _WARMED = 3, 8, 0.02
"""Steps of LambdaLR, of the optimizer between them, and what a warm-up has come to by then: one of
epochs comes further."""

_BETTER, _HALF, _PERCENT = 1.2, 0.5, 100.0
"""Times the first accuracy, and what most of the others reach."""

_MIN_FADED, _FADED = 10, 0.3
"""Steps with a rate next to zero, and the share of all that they are at least."""

_LARGEST_RATE = 0.1
"""First learning rate. A larger one is a scale for factors that are rates, as in Noam's."""

_MIN_STEPS = 3  # of the scheduler
_MIN_RENEWED = 3
"""Optimizers that follow one another, with one DataLoader for all."""

_WARMING, _HOT = 0.5, 2.0
"""What a warm-up multiplies the learning rate by at first, at most, and at last, at least, where
nothing ends it."""


def slow_cycles(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable."""
    steps = sorted(gradient_rows(run)["step"].unique())
    warmups = of_lines(run, RATE_FACTOR, partial(_slow_warmup, steps), _KIND, "slow_warmup")
    return warmups + of_lines(run, SLOW_CYCLE, _slow_cycle, _KIND, "slow_cycle")


def faded_rates(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable."""
    steps = sorted(gradient_rows(run)["step"].unique())
    epochs = logged(run, None, LOADER_BEGUN)["step"].nunique()
    batches = len(steps) / epochs if epochs else 0.0
    return of_lines(run, FADED_RATE, partial(_faded, steps, batches), _KIND, "faded_rate")


def _faded(steps: list[int], batches: float, at: str, rest: str, rows: pd.DataFrame) -> str | None:
    scheduler, _, first = rest.partition("/")
    by_epoch = scheduler in _OF_EPOCHS
    least = _SMALL_RATE if by_epoch and batches >= _MIN_BATCHES else _NO_RATE
    edges = [*zip(rows["step"], rows["value"] <= least, strict=True)]
    ends = [step for step, _ in edges[1:]] + [steps[-1] + 1]
    faded = [
        step
        for (begin, low), end in zip(edges, ends, strict=True)
        for step in steps
        if low and begin <= step < end
    ]
    dead = edges[-1][1] and edges[-1][0] <= (steps[0] + steps[-1]) / 2 and not by_epoch
    if dead or len(faded) < max(_MIN_FADED, _FADED * len(steps)):
        return None
    below, train = ("next to zero", "nothing")
    if least > _NO_RATE:
        below, train = "a thousandth of the first one or less", "hardly anything"
    return (
        f"The learning rate is {below} in {units.count(len(faded))} of "
        f"{units.count(len(steps))} steps since step {faded[0]}, of {first} at first: they train "
        f"{train}. {scheduler}.step(){at} brings it there. If it counts epochs, call it once per "
        "epoch; else give it the number of all batches, and use / instead of // in functions that "
        "it gets."
    )


def _slow_cycle(at: str, rest: str, rows: pd.DataFrame) -> str | None:
    total, per_epoch = map(int, rest.split("/"))
    taken = [0, *map(int, rows["value"])]
    each = [after - before for before, after in pairwise(taken)]
    as_planned = per_epoch > 1 and min(each) >= _TOGETHER * per_epoch
    if len(each) < _MIN_CYCLED or not (as_planned or taken[-1] == total):
        return None
    return (
        f"OneCycleLR.step(){at} is called once in {units.count(each[0])} steps of the optimizer, "
        f"{units.count(len(each))} times, and its cycle has {units.count(total)} steps: the "
        "learning rate stays where it begins and never comes near max_lr. Call it after each batch."
    )


def _slow_warmup(steps: list[int], at: str, rest: str, rows: pd.DataFrame) -> str | None:
    factors = rows["value"]
    trained = [after - before for before, after in pairwise(np.searchsorted(steps, rows["step"]))]
    few = len(rows) < _MIN_WARMED or min(trained) < _MIN_TRAINED
    if few or not 0 < factors.iloc[-1] <= _WARMED or (factors.diff().dropna() <= 0).any():
        return None
    return (
        f"LambdaLR.step(){at} is called once in {units.count(min(trained))} steps of the optimizer "
        f"or more, {units.count(len(rows))} times, and multiplies the learning rate by "
        f"{factors.iloc[-1]:.3g} in the end: it warms up by so little that the training hardly "
        "begins. Call it after each batch, or count the warm-up in epochs."
    )


@each_line(SHORT_ANNEALING, _KIND, "short_annealing")
def short_annealings(at: str, rest: str, rows: pd.DataFrame) -> str:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable."""
    length = units.count(int(rows["value"].iloc[0]))
    return (
        f"CosineAnnealingLR.step(){at} is called with each step of the optimizer, and T_max is "
        f"{length}: the learning rate falls for {length} batches, rises again for as many, and so "
        "on. Call it once per epoch, or give T_max the number of all batches of the training."
    )


@each_line(RATE_FACTOR, _KIND, "rate_for_factor")
def rates_for_factors(at: str, rest: str, rows: pd.DataFrame) -> str | None:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable."""
    first, most = float(rest), float(rows["value"].max())
    rises = float(rows["value"].iloc[-1]) == most  # a warm-up that has only begun
    few = len(rows) < _MIN_FACTORS
    if few or rises or not 0 < first <= _LARGEST_RATE or not 0 < most <= _LARGEST_FACTOR:
        return None
    return (
        f"LambdaLR{at} multiplies the learning rate {first:g} by {most:.3g} at most: the optimizer "
        f"steps with {most * first:.3g} and less, and trains hardly anything. The function that "
        "LambdaLR gets must return a factor, such as 1.0, not a learning rate."
    )


def large_rates(run: Run) -> list[Finding]:
    """Returns findings of kind `exploding_gradient`, one per line. Raises NotApplicable."""
    return endless_warmups(run) + loaded_rates(run)


@each_line(RATE_FACTOR, "exploding_gradient", "endless_warmup")
def endless_warmups(at: str, rest: str, rows: pd.DataFrame) -> str | None:
    """Returns findings of kind `exploding_gradient`, one per line. Raises NotApplicable."""
    factors = rows["value"]
    few = len(rows) < _MIN_FACTORS
    if few or not 0 < factors.iloc[0] <= _WARMING or factors.iloc[-1] < _HOT:
        return None
    if (factors.diff().dropna() <= 0).any():
        return None
    return (
        f"The warm-up of LambdaLR{at} never ends: it multiplies the learning rate {rest} by "
        f"{factors.iloc[0]:.3g} at first, by 1 at step {int(rows['step'][factors >= 1].iloc[0])}, "
        f"and by {factors.iloc[-1]:.3g} at last, still rising. Bound it: min(1.0, step / warmup)."
    )


@each_line(LOADED_RATE, "exploding_gradient", "loaded_rate")
def loaded_rates(at: str, rest: str, rows: pd.DataFrame) -> str:
    """Returns findings of kind `exploding_gradient`, one per line. Raises NotApplicable."""
    kind, own = rest.split("/")
    return (
        f"load_state_dict(){at} brings back the learning rate {rows['value'].iloc[0]:g} of the "
        f"state, and the steps keep it: {kind} was made with {own}, which has no effect. Set "
        'group["lr"] of each of optimizer.param_groups after it, or leave the state out.'
    )


@each_line(PLATEAU, _KIND, "wrong_plateau")
def wrong_plateaus(at: str, mode: str, rows: pd.DataFrame) -> str | None:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable."""
    numbers = rows["value"].dropna()
    if len(numbers) < _MIN_METRICS:
        return None
    return _of_loss(at, numbers) if mode == "max" else _of_accuracy(at, numbers)


def _of_loss(at: str, numbers: pd.Series) -> str | None:
    """What to say of numbers that fall, in mode "max"."""
    first, last = float(numbers.iloc[0]), float(numbers.iloc[-1])
    falls = float((numbers.diff().dropna() < 0).mean())
    below = float(numbers.iloc[1:].max()) < first
    if falls < _MOSTLY or not below or not 0 < last < _MOST_LEFT * first:
        return None
    return (
        f"ReduceLROnPlateau.step(){at} gets a number that falls from {first:.3g} to {last:.3g} in "
        f'{units.count(len(numbers))} calls, and mode="max" takes each for worse than the first: '
        'the learning rate is reduced although the training goes on. Use mode="min" for a loss.'
    )


def _of_accuracy(at: str, numbers: pd.Series) -> str | None:
    """What to say of shares of samples that rise, in mode "min"; an error rate falls."""
    first, later = float(numbers.iloc[0]), numbers.iloc[1:]
    whole = _PERCENT if numbers.max() > 1 else 1.0
    rises = later.min() > first and later.median() > max(_BETTER * first, _HALF * whole)
    samples = _samples(numbers / whole) if rises else None
    if samples is None:
        return None
    return (
        f"ReduceLROnPlateau.step(){at} gets an accuracy, shares of {units.count(samples)} samples "
        f"that rise from {first:.3g} to {float(later.max()):.3g} in {units.count(len(numbers))} "
        'calls, and mode="min" takes each for worse than the first: the learning rate is reduced '
        'although the training goes on. Use mode="max" for an accuracy.'
    )


def _samples(shares: pd.Series) -> int | None:
    """The least number of samples that all numbers are shares of; None: they are no shares."""
    different = np.unique(shares)
    if len(different) < _MIN_SHARES or different[0] < 0 or different[-1] > 1:
        return None
    counts = np.arange(2, _MOST_SAMPLES + 1)
    of_all = np.ones(len(counts), bool)
    for share in different:
        parts = share * counts
        of_all &= np.abs(parts - np.round(parts)) <= _ROUNDING * np.maximum(parts, 1.0)
    return int(counts[of_all][0]) if of_all.any() else None


def made_again(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable."""
    return renewed_optimizers(run) + renewed_each_epoch(run)


@each_line(RENEWED_OPTIMIZER, _KIND, "renewed_optimizer")
def renewed_optimizers(at: str, rest: str, rows: pd.DataFrame) -> str:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable."""
    return (
        f"A new {rest} is made for each step of the same parameters (it steps{at}), "
        f"{units.count(len(rows))} times or more: what it keeps from step to step, its moments, is "
        "lost. Make it once, before the loop, unless each one begins with the same parameters."
    )


@found_per_series(RENEWED_AGAIN, need_steps)
def renewed_each_epoch(run: Run, name: str, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable.

    Tasks that follow one another have an optimizer each as well, and data of their own.
    """
    where, kind = name.split("/")
    ranks, own = of_first_rank(rows)
    begun = logged(run, ranks[0], prefix=LOADER_DATA).sort_values("time_ns")
    before = begun["time_ns"].searchsorted(own["time_ns"])
    epochs = begun["value"].iloc[before[before > 0] - 1]
    same = own["value"].nunique() == 1 and epochs.nunique() == 1
    if not same or len(np.unique(before[before > 0])) < max(_MIN_RENEWED, len(own)):
        return None
    return finding_at(
        run,
        ranks[0],
        own.iloc[0],
        kind=_KIND,
        confidence="likely",
        title=f"A new {kind} is made for each epoch of the same parameters (it steps"
        f"{at_place(where)}), {units.count(len(own))} times, after "
        f"{units.count(int(own['value'].iloc[0]))} steps each: what it keeps from step to step, "
        "its moments, begins at zero again. Make it once, before the loop.",
        ranks=ranks,
        where=where,
        evidence={"cause": "renewed_each_epoch", "times": len(own)},
    )


@found_per_series(IDLE_SCHEDULER, need_steps)
def idle_schedulers(run: Run, name: str, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `dead_parameter`, one per line. Raises NotApplicable.

    The optimizer was built again, for groups of parameters say, and the scheduler still changes the
    rates of the first one: those of the training stay as they are.
    """
    where, scheduler, optimizer = name.split("/")
    ranks, own = of_first_rank(rows)
    if len(own) < _MIN_STEPS:
        return None
    return finding_at(
        run,
        ranks[0],
        own.iloc[0],
        kind=_KIND,
        title=f"{scheduler}.step(){at_place(where)} changes the learning rates of an optimizer "
        f"({optimizer}) that never steps, {units.count(len(own))} times: another one trains its "
        "parameters, and its rates stay as they are. Build the scheduler with the optimizer that "
        "steps.",
        ranks=ranks,
        where=where,
        evidence={"cause": "idle_scheduler", "steps": len(own)},
    )
