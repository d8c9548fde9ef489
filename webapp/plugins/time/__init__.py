"""Breaks down where the time of each step goes."""

from lanescope.webapp.analysis.plugin import Figure, Kind, Page, Plugin, Question
from lanescope.webapp.plugins.time.ids import FLAME, STEP

PLUGIN = Plugin(
    name="time",
    area="Data",
    depends=("collectives", "flame"),
    kinds=(Kind("data_stall", "time.md#data-stalls"),),
    questions=(
        Question(
            "Steps that wait for data",
            "data_stalls:data_stalls",
            ("data_stall",),
            order=38,
            needs="10 steps of a program that iterates over a DataLoader",
            misses="data that is read without a DataLoader; waits below 5 ms or three tenths of a "
            "step",
            recorded=False,
        ),
        Question(
            "Steps that take longer and longer",
            "slowing:slowing",
            ("growth",),
            order=39,
            needs="more than 40 steps; stacks of the operators",
            misses="growth below half of a step or 2 ms; growth of several places together",
        ),
    ),
    tables={
        "step_time": "breakdown:step_time",
        "critical_path": "critical_path:critical_path",
        "worker_slowdown": "slowdown:worker_slowdown",
    },
    pages=(
        Page(
            "time",
            "Time",
            order=8,
            height=1100,
            kinds=("data_stall",),
            body="page:body",
            selects={STEP: "step", f"{FLAME}-lanes": "lane"},
        ),
    ),
    changes={"step_changes": "changes:step_changes"},
    functions={
        "slowdown": "slowdown:slowdown",
        "what_if": "what_if:what_if",
    },
    figures=(
        Figure("Step time, median", "headlines:step_length_headline", 10, "/time"),
        Figure(
            "Waiting for other ranks", "headlines:waiting_headline", 20, "/collectives", "waiting"
        ),
        Figure(
            "Exposed communication",
            "headlines:communication_headline",
            30,
            "/collectives",
            "collective",
        ),
        Figure("Data loading", "headlines:data_loading_headline", 40, "/time", "data"),
        Figure("Python between operators", "headlines:python_headline", 70, "/time", "python"),
        Figure("Backward", "headlines:backward_headline", 80, "/time", "backward"),
        Figure("Forward", "headlines:forward_headline", 90, "/time", "forward"),
        Figure("Optimizer", "headlines:optimizer_headline", 100, "/time", "optimizer"),
    ),
)
