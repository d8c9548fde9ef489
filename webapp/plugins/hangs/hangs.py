"""Finds ranks that others wait for in a collective, and what they do instead.

A call is waited for when some members of its group made it and others did not, or when all made it
and it did not end (`incomplete_collectives`). That is a

- mismatch, when those who are missing have ended normally, or themselves wait for the ranks that
  wait for them (two groups in opposite order, two receives that face each other);
- hang, when they raised, died, or were seen to do nothing for longer than is normal in this run,
  or when no rank is missing;
- late rank (`straggler`), when they went on recording events all the time: slow is not stuck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lanescope.collector.format import schema
from lanescope.webapp.analysis.collective_calls import POINT_TO_POINT, calls
from lanescope.webapp.analysis.findings import Finding, NotApplicable, NotRecorded, Severity
from lanescope.webapp.analysis.incomplete_collectives import (
    IncompleteCollective,
    cut_short,
    cycle,
    incomplete_collectives,
)
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_collectives
from lanescope.webapp.analysis.process_exits import asked_to_stop, left_by_a_stop
from lanescope.webapp.analysis.rank_state import QUIET_NS, rank_states
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.plugins.collectives.abandoned_calls import calls_left, given_up
from lanescope.webapp.plugins.collectives.early_exits import last_place, left_training
from lanescope.webapp.plugins.collectives.mismatches import (
    ended_in,
    first_mismatches,
    unlike_exchanges,
)
from lanescope.webapp.plugins.hangs.call_evidence import (
    also_waiting,
    call_evidence,
    call_place,
    call_words,
    failed_beside,
    reason_words,
    stopped_words,
    waited_words,
    waits_there,
    were,
)
from lanescope.webapp.plugins.hangs.deaths import deaths
from lanescope.webapp.plugins.hangs.wait_lengths import MIN_WAIT_NS, normal_wait_ns, waited_ns
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

MIN_STUCK_NS = 10_000_000_000
"""A call that all made moves data, which may take long: only from here on it is said to hang where
neither a watchdog nor an error says so."""

_FAILED = ("raised", "died")
"""How a rank ended by its own fault."""

ADVICE = {
    "send": "Check that their tags agree",
    "recv": "Check that their tags agree",
    "all_to_all": "Check that the sizes agree that each rank sends and expects",
    "all_to_all_single": "Check that the sizes agree that each rank sends and expects",
    schema.JOIN: "No rank is missing: check that one of them serves the address of init_method",
}
"""What to do where all ranks entered a call that did not end, though their records agree."""


def hangs(run: Run) -> list[Finding]:
    """Returns findings of kind `hang`, of `collective_mismatch` and `straggler` where that is the
    reason.

    Raises NotApplicable where a run has nothing that could hang, or not enough of it.
    """
    failed = [] if run.counts["collective"] else deaths(run, ())
    if failed:
        return failed
    need_collectives(run)
    if cut_short(run):
        if run.imported:
            raise NotApplicable("the trace is not whole")
        advice = "record without --steps and --keep-last, with a larger --max-disk"
        raise NotRecorded(f"{advice}: the recording is not whole")
    found = incomplete_collectives(run)
    rest = [wait for wait in found if not _disagrees(run, wait)]
    circle = cycle(rest)
    if circle:
        return [_circle(run, circle, [wait for wait in rest if wait not in circle])]
    roots = [wait for wait in rest if not _follows(run, wait, found)]
    if len(rest) == len(found) and not ended_in(run):
        roots = roots or rest
    roots = _one_per_reason(roots)
    made = [_verdict(run, wait, [other for other in rest if other not in roots]) for wait in roots]
    kept = [finding for finding in made if finding is not None]
    if not first_mismatches(run) and all(_was_left(run, wait) for wait in found):
        kept = given_up(run)
    missed = {rank for finding in kept for rank in finding.ranks} | ended_in(run)
    return [*kept, *deaths(run, missed)]


def _one_per_reason(found: list[IncompleteCollective]) -> list[IncompleteCollective]:
    """Of calls in which the same ranks are missing the one that holds a rank up, and longest."""
    chosen: dict[tuple[int, ...], IncompleteCollective] = {}
    alike = []
    for wait in sorted(
        found, key=lambda one: (not any(e.blocked for e in one.waiting), one.since_ns)
    ):
        if wait.missing:
            chosen.setdefault(wait.missing, wait)
        else:
            alike.append(wait)
    return sorted([*chosen.values(), *alike], key=lambda one: one.since_ns)


def _disagrees(run: Run, wait: IncompleteCollective) -> bool:
    """Returns True if ranks disagree on the call or one before: `mismatches` reports that."""
    unlike = first_mismatches(run)
    if wait.op in POINT_TO_POINT:
        pair = {*wait.ranks, *wait.missing}
        unlike = tuple(one for one in unlike_exchanges(run) if set(one.values) == pair)
    return any(one.group == wait.group and one.sequence <= wait.sequence for one in unlike)


def _follows(run: Run, wait: IncompleteCollective, found: Sequence[IncompleteCollective]) -> bool:
    """Whether those who are missing are so because of another call, that they wait or failed in."""
    if wait.missing and set(wait.missing) <= ended_in(run):
        return True
    return any(
        set(wait.missing) & set(other.ranks) and set(wait.missing) <= {*other.ranks, *other.missing}
        for other in found
        if other is not wait
    )


def _was_left(run: Run, wait: IncompleteCollective) -> bool:
    """Whether all came to a call, one of them when another had given it up."""
    left = {(one.group, one.sequence) for one in calls_left(run)}
    return not wait.missing and (wait.group, wait.sequence) in left


def _verdict(
    run: Run, wait: IncompleteCollective, others: list[IncompleteCollective]
) -> Finding | None:
    if not wait.missing:
        return _stuck(run, wait, others)
    known = rank_states(run)
    missing = [known[rank] for rank in wait.missing]
    if all(one.ending.how == "exit" for one in missing):
        return _left_behind(run, wait, others)
    if not wait.waiting:
        return None
    waited = waited_ns(run, wait)
    gone = [one for one in missing if one.left]
    stalled = _made_no_progress(run, wait)
    severity: Severity = "error"
    if not gone:
        until = wait.since_ns + waited
        at_work = all(
            one.working or until - one.since_ns < max(QUIET_NS, waited // 10) for one in missing
        )
        long = waited >= normal_wait_ns(run, wait.group)
        if at_work and long and not any(one.stalled for one in missing):
            return _late(run, wait, waited)
        if not long and not stalled:
            if all(one.ending.how == "stopped" for one in known.values()):
                return None  # all were asked to end in the middle of it
            # It may well be how an ordinary moment looks when the log ends in it.
            dumped = run.manifest["options"].get("dump")  # only asked for when something is wrong
            unknown = run.manifest["exit_status"] is None and not dumped
            severity = "info" if unknown else "warning"
            if at_work and not dumped:
                return None
    # Those who were on their way when others ended them are missing too, but not the reason.
    blamed = gone or missing
    first = blamed[0]
    who = ranks_in(run, tuple(one.rank for one in blamed))
    reasons = "; ".join(reason_words(one.activity, one.where) for one in blamed[:3])
    advice = f"Find out why {who} ended." if gone else f"Look in the stacks of {who} for the cause."
    return Finding(
        kind="hang",
        severity=severity,
        title=f"{units.sentence(who)} {_never_came(run, wait)}: {reasons}. "
        f"{waits_there(run, wait.ranks)}{waited_words(waited)}{stopped_words(run, wait)}. {advice}",
        rank=first.rank,
        ranks=tuple(one.rank for one in blamed),
        thread=first.thread,
        where=first.where,
        evidence={
            **call_evidence(run, wait),
            "waited_ns": waited,
            "also_waiting": also_waiting(run, others),
        },
        **call_place(run, wait),
    )


def _never_came(run: Run, wait: IncompleteCollective) -> str:
    """What the missing ranks of a call did not do."""
    if wait.op not in POINT_TO_POINT:
        return f"never entered {call_words(run, wait)}"
    done = "received" if wait.op == "send" else "sent"
    made = tuple(sorted({entry.rank for entry in (*wait.waiting, *wait.ended)}))
    return f"never {done} {call_words(run, wait)} of {ranks_in(run, made)}"


def _capital(run: Run, ranks: tuple[int, ...]) -> str:
    return units.sentence(ranks_in(run, ranks))


def _made_no_progress(run: Run, wait: IncompleteCollective) -> bool:
    """Whether a watchdog saw so, or an error of the call itself ended a rank that waits."""
    known = rank_states(run)
    failed = [rank for rank in wait.ranks if known[rank].gave_up and not asked_to_stop(run)]
    failed = [rank for rank in failed if wait.missing or not left_by_a_stop(run, rank)]
    return bool(failed) or any(known[rank].stalled for rank in wait.ranks)


def _stuck(
    run: Run, wait: IncompleteCollective, others: list[IncompleteCollective]
) -> Finding | None:
    """A call that all recorded members made, and that did not end."""
    waited = waited_ns(run, wait)
    # To join, ranks wait for each other and move nothing.
    least = MIN_STUCK_NS if wait.group != schema.RENDEZVOUS else MIN_WAIT_NS
    long = waited >= max(least, normal_wait_ns(run, wait.group))
    known = rank_states(run)
    gone = tuple(sorted(rank for rank in _made(run, wait) if known[rank].ending.how in _FAILED))
    if gone and not set(gone) >= set(wait.ranks):
        return _failed_inside(run, wait, gone, others)
    if not long and not _made_no_progress(run, wait):
        return None
    inside = all(known[rank].stalled and not known[rank].gave_up for rank in wait.ranks)
    if wait.group == schema.RENDEZVOUS and not (wait.unrecorded or inside):
        return None  # all came: it failed by itself, and said so
    if wait.unrecorded:
        missing = ranks_in(run, wait.unrecorded)
        reason = f"{units.sentence(missing)} {were(wait.unrecorded)} not recorded: "
        reason += failed_beside(run) or "record all ranks"
    else:
        reason = ADVICE.get(wait.op, "No rank is missing: check the network between the ranks")
    first = min(wait.waiting, key=lambda entry: entry.start_ns)
    done = f"{_capital(run, wait.ranks)} entered {call_words(run, wait)}, and it did not end"
    if wait.op in POINT_TO_POINT:
        sides = {entry.name: entry.rank for entry in wait.waiting}
        done = f"Rank {sides['send']} sends to rank {sides['recv']}, which receives. {done}"
    return Finding(
        kind="hang",
        severity="error",
        title=f"{done}{waited_words(waited)}. {reason}.",
        rank=first.rank,
        ranks=wait.ranks,
        thread=first.thread,
        where=where_of(run, first.rank, first.stack),
        evidence={
            **call_evidence(run, wait),
            "waited_ns": waited,
            "also_waiting": also_waiting(run, others),
        },
        **call_place(run, wait),
    )


def _made(run: Run, wait: IncompleteCollective) -> set[int]:
    """Ranks that made a call."""
    frame = calls(run)
    names = {entry.name for entry in wait.waiting}
    same = (frame["group"] == wait.group) & (frame["sequence"] == wait.sequence)
    return set(wait.ranks) | {int(r) for r in frame.loc[same & frame["name"].isin(names), "rank"]}


def _failed_inside(
    run: Run, wait: IncompleteCollective, gone: tuple[int, ...], others: list[IncompleteCollective]
) -> Finding:
    """Some ranks failed in a call, and left the others in it."""
    known = [rank_states(run)[rank] for rank in gone]
    left = tuple(rank for rank in wait.ranks if rank not in gone)
    reasons = "; ".join(reason_words(one.activity, one.where) for one in known[:3])
    evidence = call_evidence(run, wait)
    missing = [{"rank": one.rank, "doing": one.activity, "where": one.where} for one in known]
    return Finding(
        kind="hang",
        severity="error",
        title=f"{_capital(run, gone)} failed in {call_words(run, wait)}: {reasons}. "
        f"{waits_there(run, left)}{waited_words(waited_ns(run, wait))}. Fix that failure first.",
        rank=gone[0],
        ranks=gone,
        thread=known[0].thread,
        where=known[0].where,
        evidence={
            **evidence,
            "waiting": list(left),
            "missing": missing,
            "waited_ns": waited_ns(run, wait),
            "also_waiting": also_waiting(run, others),
        },
        **call_place(run, wait),
    )


def _late(run: Run, wait: IncompleteCollective, waited: int) -> Finding:
    known = rank_states(run)
    gave_up = tuple(rank for rank in wait.ranks if known[rank].gave_up)
    end = f"{ranks_in(run, gave_up)} gave up" if gave_up else "the recording ended"
    first = known[wait.missing[0]]
    return Finding(
        kind="straggler",
        severity="error" if gave_up else "warning",
        title=f"{_capital(run, wait.missing)} had not come to {call_words(run, wait)} when "
        f"{end}, {units.duration(waited)} after {ranks_in(run, wait.ranks)} came, but "
        f"{were(wait.missing)} still at work: {reason_words(first.activity, first.where)}. "
        "Shorten that work, or raise the timeout of the process group.",
        rank=first.rank,
        ranks=wait.missing,
        thread=first.thread,
        where=first.where,
        evidence={**call_evidence(run, wait), "waited_ns": waited},
        **call_place(run, wait),
    )


def _left_behind(
    run: Run, wait: IncompleteCollective, waiters: list[IncompleteCollective]
) -> Finding:
    who, others = ranks_in(run, wait.missing), (*wait.waiting, *wait.ended)
    ranks = tuple(sorted({entry.rank for entry in others}))
    left_at = None
    if wait.op in POINT_TO_POINT:
        needed = "recv" if wait.op == "send" else "send"
        title = (
            f"{units.sentence(who)} {_never_came(run, wait)}. Add the {needed}, or remove the "
            f"{wait.op}."
        )
    elif (leaving := left_training(run)) is not None and {*wait.missing} <= {*leaving.ranks}:
        place = where_of(run, others[0].rank, others[0].stack)
        last_at = last_place(run, wait.missing[0], leaving.step)
        left_at = leaving.skipped.where if leaving.skipped else last_at
        title = (
            f"{leaving.words(run)}{f' ({last_at})' if last_at else ''} and ended, while "
            f"{ranks_in(run, ranks)} {'trains' if len(ranks) == 1 else 'train'} on and "
            f"{'waits' if len(ranks) == 1 else 'wait'} in {call_words(run, wait)}"
            f"{at_place(place)}. {leaving.advice}"
        )
    else:
        title = (
            f"Only {ranks_in(run, ranks)} called {call_words(run, wait)}: {who} ended without it. "
            "Let all ranks make the same number of calls: look for loops of unequal length."
        )
    severity: Severity = "error" if wait.waiting else "warning"
    found = _mismatch(run, wait, title, severity, {"also_waiting": also_waiting(run, waiters)})
    return replace(found, where=left_at or found.where)


def _circle(
    run: Run, circle: tuple[IncompleteCollective, ...], others: list[IncompleteCollective]
) -> Finding:
    said = "; ".join(
        f"{ranks_in(run, wait.ranks)} {'waits' if len(wait.ranks) == 1 else 'wait'} in "
        f"{call_words(run, wait)} for {ranks_in(run, wait.missing)}"
        for wait in (*circle, *others)
        if wait.missing and wait.waiting
    )
    pairs = all(wait.op in ("send", "recv") for wait in circle)
    sending = "Let one rank receive first while the other sends, or use isend() and irecv()."
    advice = sending if pairs else "Call collectives in one order on all ranks."
    title = f"Ranks wait for each other: {said}. {advice}"
    evidence = {
        "cycle": [call_evidence(run, wait) for wait in circle],
        "also_waiting": also_waiting(run, others),
    }
    return _mismatch(run, circle[0], title, "error", evidence)


def _mismatch(
    run: Run,
    wait: IncompleteCollective,
    title: str,
    severity: Severity,
    more: dict[str, Any] | None = None,
) -> Finding:
    entry = min((*wait.waiting, *wait.ended), key=lambda one: one.start_ns)
    return Finding(
        kind="collective_mismatch",
        severity=severity,
        title=title,
        rank=entry.rank,
        ranks=tuple(sorted({one.rank for one in (*wait.waiting, *wait.ended)} | set(wait.missing))),
        thread=entry.thread,
        where=where_of(run, entry.rank, entry.stack),
        evidence={**call_evidence(run, wait), **(more or {})},
        **call_place(run, wait),
    )
