"""Sentences about a run as a whole: what of it is missing, damaged or uncertain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lanescope.collector.format import schema
from lanescope.collector.format.manifest import Process
from lanescope.collector.format.names import MISSING, THINNED, UNSEEN_BY, UNTESTED
from lanescope.webapp.runs.consistent_read import PartScan

EXACT_NS = 2**53
"""Longest run (104 days) whose nanoseconds float64, and with it the page, holds exactly."""

_DAY_NS = 86_400 * 10**9

_FOLDERS = re.compile(r"\([^()\s]*/(?=[^()\s/]+:[0-9]+\)$)")
_OWN_FILE = re.compile(r"\[\S+:[0-9]+\] ")
"""In what a process raised: folders of the file at its end, and the file of gloo that noticed."""

_NAMED_PROCESSES = 4
"""Processes that ended alike up to which each has a sentence."""


def ranks_named(ranks: Sequence[int]) -> str:
    """Returns `rank 3`, `ranks 0-2`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {ranks_text(ranks)}"


def ranks_text(ranks: Sequence[int]) -> str:
    """Returns `0-3, 7` for (0, 1, 2, 3, 7); `none` for nothing."""
    spans = rank_spans(ranks)
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) or "none"


def rank_spans(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Returns first and last of each stretch of neighbouring ranks, ascending."""
    spans: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    return spans


def warnings_of(
    manifest: schema.Manifest, found: PartScan, ranks: Sequence[int], duration_ns: int
) -> list[str]:
    """Returns what a reader of the run must know before he believes what he sees."""
    said = [
        f"rank {rank} is left out: {damage}; restore the file from a copy to see this rank"
        for rank, damage in sorted(found.damage.items())
    ]
    said += [
        f"rank {one.rank}: what {len(one.threads):,} short threads of process {one.pid} did is "
        "left out, and so are the memory accesses of the rank, whose order it may decide: "
        f"{one.damage}; restore the file from a copy to see them"
        for one in found.lost
    ]
    world = manifest["world_size"]
    missing = sorted(set(range(world)) - set(ranks) - set(found.damage))
    if missing:
        word = "rank" if len(missing) == 1 else "ranks"
        said.append(f"{word} {ranks_text(missing)} of {world} missing from the run")
    there = set(ranks)
    said += _of_processes([p for p in manifest["processes"] if p["rank"] in there])
    for engine, words in UNSEEN_BY.items():
        blind = sorted({p["rank"] for p in manifest["processes"] if p["engine"] == engine})
        unseen = {r for p in manifest["processes"] for r in p["coverage"] if p["engine"] == engine}
        if said_of := [text for reason, text in words.items() if reason in unseen]:
            said.append(
                f"rank {ranks_text(blind)} was recorded by the {engine} engine, which does not "
                f"see {'; '.join(said_of)}"
            )
    said += _by_version(manifest)
    hosts = {process["clock"]["host"] for process in manifest["processes"]}
    loose = sorted({p["rank"] for p in manifest["processes"] if not p["clock"]["calibrated"]})
    if len(hosts) > 1 and loose:
        said.append(
            f"the clock of rank {ranks_text(loose)} was not calibrated: times of different hosts "
            "are aligned by wall clock only"
        )
    if duration_ns >= EXACT_NS:
        said.append(
            f"the events span {duration_ns / _DAY_NS:.0f} days, more than the "
            f"{EXACT_NS // _DAY_NS} that can be shown exactly; the clocks are probably not aligned"
        )
    if found.ignored:
        files = "1 file" if found.ignored == 1 else f"{found.ignored} files"
        be = "was" if found.ignored == 1 else "were"
        said.append(f"{files} of a kind unknown to this version {be} not read")
    return [*said, *manifest["notes"]]


def _of_processes(processes: Sequence[Process]) -> list[str]:
    """How processes ended, and what of their logs is not there."""
    open_ones = [process for process in processes if not process["closed"]]
    dumped = sorted({one["rank"] for one in open_ones if one["engine"] == _DUMP})
    said = _unclosed([one for one in open_ones if one["engine"] != _DUMP])
    if dumped:
        said.append(
            f"{ranks_named(dumped)}: dumped while running; what had not ended then has no end here"
        )
    for process in processes:
        thinned = process["coverage"].get(THINNED, 0)
        if thinned:
            said.append(
                f"rank {process['rank']}: {thinned:,} steps of process {process['pid']} were not "
                "recorded, or only in part, because the recording came near its disk bound "
                "(--max-disk, or a journal that grew faster than it was compacted)"
            )
        overwritten = process["coverage"].get("overwritten", 0)
        if overwritten:
            said.append(
                f"rank {process['rank']}: {overwritten:,} earlier records of process "
                f"{process['pid']} were overwritten (--keep-last); each of its threads is whole "
                "from its first event here on"
            )
    raised: dict[str, list[int]] = {}
    for process in processes:
        if process["ended"] == "exception":
            raised.setdefault(process["exception"], []).append(process["rank"])
    for exception, of in raised.items():
        words = _OWN_FILE.sub("", _FOLDERS.sub("(", exception))
        said.append(f"{ranks_named(sorted(set(of)))} ended with an exception: {words}")
    return said


_DUMP = "flight_recorder"
"""Engine of processes that torch's flight recorder dumped: they had not ended."""


def _unclosed(processes: Sequence[Process]) -> list[str]:
    """How processes ended that did not close their logs; many that ended alike are one sentence."""
    alike: dict[tuple[str, str], list[Process]] = {}
    for process in processes:
        alike.setdefault(_how(process), []).append(process)
    said = []
    for (one_did, several_did), ended in alike.items():
        if len(ended) > _NAMED_PROCESSES:
            of = sorted({one["rank"] for one in ended})
            said.append(
                f"{ranks_named(of)}: {len(ended):,} processes {several_did}; their events end "
                "where their logs end"
            )
            continue
        said += [
            f"rank {one['rank']}: process {one['pid']} {one_did}; its events end where the log ends"
            for one in ended
        ]
    return said


def _how(process: Process) -> tuple[str, str]:
    """How a process ended, in words about one and about several."""
    name = process["ended"].removeprefix("signal ")
    if name.startswith("SIG"):
        return f"was ended by {name}", f"were ended by {name}"
    if process["ended"] == "abort":
        return "was ended by --on-hang abort", "were ended by --on-hang abort"
    if process.get("gone") and not process["ended"]:
        return "was killed, or left by os._exit", "were killed, or left by os._exit"
    return (
        "did not close its log (still running, or it died)",
        "did not close their logs (still running, or they died)",
    )


def _by_version(manifest: schema.Manifest) -> list[str]:
    """What was not recorded for want of a name of torch or Python, and versions never tested."""
    ranks: dict[str, set[int]] = {}
    for process in manifest["processes"]:
        for reason in process["coverage"]:
            ranks.setdefault(reason, set()).add(process["rank"])
    return [
        f"{ranks_named(sorted(of))}: {words}{reason.removeprefix(prefix)}"
        for prefix, words in ((MISSING, "not recorded: "), (UNTESTED, ""))
        for reason, of in ranks.items()
        if reason.startswith(prefix)
    ]


def nothing_to_read(
    where: str, manifest: schema.Manifest, found: PartScan, lost: Sequence[str]
) -> str:
    """Returns why a run whose manifest is fine has no rows to show."""
    if found.damage:
        rank, damage = min(found.damage.items())
        return (
            f"{where}: no rank can be read: of rank {rank}, {damage}; restore the file from a copy "
            "or record again"
        )
    if lost:
        return f"{where}: no event can be read; {lost[0]}; restore it from a copy or record again"
    if not manifest["complete"] and manifest["exit_status"] is not None:
        return (
            f"{where}: nothing was recorded: the command ended with exit status "
            f"{manifest['exit_status']} and had run no operator of torch; look at what it printed, "
            "and record again"
        )
    if not manifest["complete"]:
        return (
            f"{where}: the run holds no events yet, expected at least one; wait for the recording "
            "to finish, or look at what the recorded command printed"
        )
    return (
        f"{where}: the run holds no events, expected at least one; record a program that uses "
        "torch, with `lanescope record -o RUN -- COMMAND`"
    )
