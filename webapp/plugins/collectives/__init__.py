"""Analyses collectives: skew, stragglers, bandwidth, mismatches."""

from lanescope.webapp.analysis.plugin import Kind, Metric, Page, Plugin, Question

PLUGIN = Plugin(
    name="collectives",
    area="Communication",
    kinds=(
        Kind(
            "collective_mismatch",
            "collectives.md#mismatches",
            "lanescope.webapp.analysis.incomplete_collectives:Collective",
            marks="pictures:never_came",
        ),
        Kind(
            "straggler",
            "collectives.md#stragglers",
            picture="pictures:late_ranks",
            marks="pictures:late_gap",
        ),
        Kind("shared_file", "collectives.md#files"),
    ),
    questions=(
        Question(
            "Mismatched collective calls",
            "mismatches:mismatches",
            ("collective_mismatch",),
            order=20,
            needs="collective calls of two ranks or more",
            misses="groups that share a name",
            recorded=False,
        ),
        Question(
            "Groups that ranks do not make together",
            "group_creation:groups_apart",
            ("collective_mismatch",),
            order=25,
            needs="two ranks",
            misses="ranks that wait until the job is stopped, which are hangs; groups of one rank",
        ),
        Question(
            "Calls of groups that a rank is not in",
            "non_members:outside_groups",
            ("collective_mismatch",),
            order=26,
            needs="two ranks",
            misses="operations for which torch gives no warning",
        ),
        Question(
            "Stragglers",
            "stragglers:stragglers",
            ("straggler",),
            order=30,
            needs="clocks compared: all ranks under one lanescope record; 9 steps",
            misses="delays below 10 ms or a fifth of a step; now and then, below 100 ms or a "
            "twentieth of the training",
            recorded=False,
        ),
        Question(
            "Evaluation that other ranks wait for",
            "lone_evaluation:lone_evaluation",
            ("straggler",),
            order=35,
            needs="modules called without gradients on some ranks alone; clocks compared",
            misses="evaluation without torch modules; waits below 10 ms",
        ),
        Question(
            "Files that ranks share",
            "shared_files:shared_files",
            ("shared_file",),
            order=37,
            needs="torch.save or torch.load on two ranks of a host; clocks compared",
            misses="files that other functions write; writes that did not overlap in this run",
        ),
    ),
    tables={
        "collectives": "collectives:collectives",
        "communication": "communication:communication",
        "temporal_breakdown": "devices:temporal_breakdown",
    },
    metrics=(
        Metric(
            "comm_compute_overlap",
            "communication:overlaps_by_rank",
            "communication behind computation",
            order=50,
            unmeasured="no communication was recorded",
            link="/collectives",
        ),
    ),
    pages=(
        Page(
            "collectives",
            "Collectives",
            order=20,
            kinds=("hang", "straggler", "collective_mismatch"),
            height=1240,
            body="page:body",
        ),
    ),
)
