"""What recording costs on a GPU, beside torch.profiler: each way in a process of its own."""

from __future__ import annotations

from pathlib import Path

from tests.gpu.checks import plain, recorded

TURNS = 2
BARE = "bare"
WAYS: dict[str, tuple[str, ...] | None] = {
    BARE: None,
    "native, timing": ("--level", "timing"),
    "native, access": (),
    "native, access, kernels": ("--device", "on"),
    "native, access, streams": ("--streams",),
    "torch.profiler": None,
}
"""Name -> options of `lanescope record`; None: without the recorder."""


def cost(program: str, folder: Path) -> list[tuple[str, str]]:
    """Returns a row for each way: its name, and times beside the bare ones, of the quicker turn."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(TURNS):
        for number, (way, options) in enumerate(WAYS.items()):
            if options is None:
                profiled = () if way == BARE else ("profiled",)
                found[way].append(plain(program, *profiled))
            else:
                run = folder / f"{program}-{number}-{turn}"
                found[way].append(recorded(run, program, *options))
    best = {
        way: {key: min(one[key] for one in turns) for key in ("wall", "cpu")}
        for way, turns in found.items()
    }
    unit, bare = ("ms" if program == "steps" else "us"), best[BARE]
    return [
        (
            f"{program}: {way}",
            f"{times['wall']:.2f} {unit} (x {times['wall'] / bare['wall']:.2f}), "
            f"processor {times['cpu']:.2f} {unit} (x {times['cpu'] / bare['cpu']:.2f})",
        )
        for way, times in best.items()
    ]
