"""The result of a comparison in words, for a terminal, a page or an issue."""

from __future__ import annotations

from typing import Any

from lanescope.webapp.analysis.links import AROUND_NS, thread_lane, timeline_address
from lanescope.webapp.analysis.stack_frames import line_and_function
from lanescope.webapp.plugins.diff.diff import Comparison
from lanescope.webapp.plugins.diff.timing_differences import FACTOR, MIN_TIMED_STEPS, Timing
from lanescope.webapp.plugins.diff.values.first_difference import (
    other_inputs,
    other_parts,
    reads_other_parts,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

VERDICTS = {
    "identical": "identical",
    "within_tolerance": "within tolerance",
    "diverged": "diverged",
}
_TENSORS = 4  # of one operator in a sentence
_TIMED_ROWS = 10  # of a table in Markdown
TIMED = ("slower", "faster", "added", "removed")


def headline(result: Comparison) -> str:
    """Returns the verdict, and whether it speaks of all that the runs did."""
    word = VERDICTS[result.verdict]
    if result.norms + result.tensors == 0:
        return f"{word} in what ran: no values were compared"
    if result.verdict != "diverged" and any(side.count for side in result.alone):
        return f"{word} in what both runs have"
    return word


def compared_counts(result: Comparison) -> str:
    """Returns what was compared."""
    words = f"compared {units.counted(result.norms, 'gradient norm')}"
    if result.valued:
        words += f" and {units.counted(result.ops, 'operator')}, by the contents of "
        words += units.counted(result.tensors, "tensor")
    else:
        words += f" and, by their number alone, {units.counted(result.ops, 'call')} of operators"
    if result.differing:
        words += f"; {units.counted(result.differing, 'tensor')} not equal"
    return words


def uncompared(result: Comparison) -> str | None:
    """Returns what has no partner in the other run; None where all has."""
    noun = "operator" if result.valued else "call"
    sides = zip(("baseline", "run"), result.alone, strict=True)
    words = [f"{alone.words(noun)} of the {side}" for side, alone in sides if alone.count]
    return f"not compared, as only one run has it: {'; '.join(words)}" if words else None


def difference_place(first: dict[str, Any]) -> str:
    """Returns where the first difference is and what it is."""
    start = f"step {first['step']}, rank {first['rank']}, "
    if "parameter" in first:
        sides = f"{first['base']['norm']} became {first['run']['norm']}"
        return units.printable(f"{start}gradient of {first['parameter']}: {sides}")
    where = f" at {first['where']}" if first["where"] else ""
    return f"{start}thread {first['thread_name']}, {difference_values(first, where)}"


def difference_values(first: dict[str, Any], where: str = "") -> str:
    """Returns which operator is the first whose tensors differ, and these."""
    start = str(first["op"])
    start += f" in module {first['module']}" if first["module"] else ""
    start += f" ({first['phase']}){where}" if first["phase"] else where
    pairs = list(zip(first["base"]["tensors"], first["run"]["tensors"], strict=True))
    words = [f"{run['position']} {_apart(base, run)}" for base, run in pairs[:_TENSORS]]
    more = [f"{len(pairs) - _TENSORS} more tensors"] if len(pairs) > _TENSORS else []
    return units.printable(f"{start}: {'; '.join(words + more)}")


def origin(first: dict[str, Any]) -> str | None:
    """Returns where the first difference comes from; None if it is unknown."""
    found = first["origin"]
    if found is None:
        return None
    rank = found["rank"]
    known = [len(first[side].get("inputs", ())) for side in ("base", "run")]
    if other_inputs(first):
        of = " from unequal inputs, written by operators that only one run has or by views of "
        of += "different tensors"
    elif reads_other_parts(first):
        of = " from another part of an input that is the same in both"
    elif known[0] == known[1]:
        of = " from inputs that are equal as far as recorded"
    else:
        of = ", with different inputs recorded in the two runs"
    return {
        "compute": f"computed on rank {rank}{of}",
        "collective": f"came through a collective from rank {rank}",
        "input": f"came into rank {rank} from outside the recorded operators: data, loaded "
        "weights, or an unrecorded writer",
    }[found["kind"]]


def inputs(first: dict[str, Any]) -> list[str]:
    """Returns what the first operator worked on, a line per tensor whose last writer is known.

    Only where both runs know of equally many, which then belong together.
    """
    sides = [first[side].get("inputs", []) for side in ("base", "run")]
    if len(sides[0]) != len(sides[1]):
        return []
    other = other_inputs(first)
    return [
        units.printable(
            f"{_input(run)}; in the baseline {_input(base)}, {_apart(base, run)}"
            if (base, run) in other
            else f"{_input(run)}, the same in both{_other_parts(base, run)}"
        )
        for base, run in zip(*sides, strict=True)
    ]


def stack(first: dict[str, Any]) -> list[str]:
    """Returns the Python stack of the first operator in the run, innermost first: file.py:12
    function."""
    frames = map(line_and_function, first["run"].get("stack", []))
    return [units.printable(f"{place.rpartition('/')[2]} {name}") for place, name in frames]


def _input(tensor: dict[str, Any]) -> str:
    size = f"{tensor['shape']} {tensor['dtype']}"
    values = ""
    if tensor["mean"] is not None:
        values = f" of {units.number(tensor['min'], 4)} to {units.number(tensor['max'], 4)}"
    by = (
        f", written by {tensor['written_by']}"
        if tensor["written_by"]
        else ", of no recorded operator"
    )
    return f"{size}{values}{by}"


def _other_parts(base: dict[str, Any], run: dict[str, Any]) -> str:
    """Which bytes of it are read, where these are others."""
    pairs = other_parts(base, run)
    if not pairs:
        return ""
    was, now = (f"{offset} to {offset + length}" for offset, length in pairs[0])
    return f"; it reads bytes {now}, in the baseline {was}"


def difference_address(run: Run, first: dict[str, Any]) -> str:
    """Returns the address of the first operator that differs, on the timeline of `run`."""
    start = first["run"]["time_ns"]
    lane = thread_lane(first["rank"], first["thread"])
    return timeline_address(start, start + AROUND_NS, run.duration_ns, at=(lane, start))


def verdict_markdown(result: Comparison, base: str, run: str) -> str:
    """Returns the verdict as Markdown, to paste into an issue."""
    lines = [
        f"**{headline(result)}** (mode {result.mode}): `{_code(run)}` against `{_code(base)}`",
        "",
        f"- {compared_counts(result)}",
    ]
    alone = uncompared(result)
    lines += [] if alone is None else [f"- {alone.replace(chr(96), chr(39))}"]
    if result.first is not None:
        lines.append(f"- first difference: `{_code(difference_place(result.first))}`")
        source = origin(result.first)
        lines += [f"- origin: {source}"] if source else []
        lines += [f"- input: `{_code(one)}`" for one in inputs(result.first)]
        frames = stack(result.first)
        lines += [f"- stack: {' < '.join(f'`{_code(one)}`' for one in frames)}"] if frames else []
    lines += [f"- {units.printable(note)}" for note in result.notes]
    if result.timing is not None and result.timing.steps:
        lines += [f"- {step_times(result.timing)}", *_timing_rows(result.timing)]
    return "\n".join(lines).replace(units.THIN, " ")


def step_times(timing: Timing) -> str:
    """Returns the length of a step in both runs, and how many ops differ in time."""
    sides = [units.duration(ns) for ns in (timing.run_step_ns, timing.base_step_ns)]
    change = timing.run_step_ns / timing.base_step_ns if timing.base_step_ns else float("nan")
    counts = timing.changed["state"].value_counts()
    words = [f"{counts[state]} {state}" for state in TIMED if state in counts]
    of = f"{timing.steps} steps" if timing.steps > 1 else "1 step"
    times = units.number(change)
    text = f"a step takes {sides[0]}, in the baseline {sides[1]} (x {times}, median of {of})"
    beyond = "ops by module: "
    if timing.steps < MIN_TIMED_STEPS:
        words.append(
            "too few steps to call any slower or faster "
            f"(it takes {MIN_TIMED_STEPS} after the first)"
        )
    if max(timing.common, 1 / timing.common) >= FACTOR:
        common = units.number(timing.common)
        beyond = f"most ops take x {common} alike (machine or threads), beyond that: "
    return f"{text}; {beyond}{', '.join(words) or 'no op is slower or faster'}"


def ratio_text(row: Any) -> str:
    """Returns how many times as long an op takes; nothing for what only one run has."""
    return "" if row.state in ("added", "removed") else f"x {units.number(row.ratio)}"


def _timing_rows(timing: Timing) -> list[str]:
    rows = timing.changed.head(_TIMED_ROWS)
    if rows.empty:
        return []
    lines = [
        "",
        "| op | module | baseline, per step | run, per step | | |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows.itertuples():
        texts = (_code(text).replace("|", "¦") for text in (row.name, row.module))
        name, module = (f"`{text}`" if text else "" for text in texts)
        times = " | ".join(units.duration(ns) for ns in (row.base_ns, row.run_ns))
        lines.append(f"| {name} | {module} | {times} | {ratio_text(row)} | {row.state} |")
    return lines


def _apart(base: dict[str, Any], run: dict[str, Any]) -> str:
    for name in ("dtype", "shape", "nan", "inf", "mean", "l2"):
        if base[name] != run[name]:
            return f"{name} {' became '.join(_apart_enough(base[name], run[name]))}"
    return f"hash {base['hash']} became {run['hash']}"


def _apart_enough(was: Any, now: Any) -> tuple[str, str]:
    """Returns both values; numbers with as few digits, four or more, as show that they differ."""
    if not (isinstance(was, float) and isinstance(now, float)):
        return str(was), str(now)
    texts = ((f"{was:.{digits}g}", f"{now:.{digits}g}") for digits in range(4, 18))
    return next((pair for pair in texts if pair[0] != pair[1]), (str(was), str(now)))


def _code(text: str) -> str:
    return units.printable(text).replace("`", "'")
