"""A plugin to copy: it finds calls of operators that took far longer than is usual for them.

SKELETON: copy this folder to `plugins/<name>/` and follow the comments that begin with this word.
Replace `_skeleton` and `skeleton` by the name of your folder, delete what you do not need, and
delete these comments last. Nothing else has to be edited: pages, tables, questions, exports, SQL
and the docs' list of findings are made from the record below.

Tests go to `tests/webapp/plugins/<name>/`, the user's page to `docs/<name>.md`.
"""

from lanescope.webapp.analysis.plugin import Kind, Page, Plugin, Question

# SKELETON: this module is imported to list what there is. Import nothing but the record's classes
# here; whatever you name as "module:function" is imported when it is first used.
PLUGIN = Plugin(
    name="_skeleton",  # SKELETON: as the folder
    # SKELETON: plugins that yours imports from, as depends=("races",). Better none.
    # SKELETON: kinds of findings, each with the section of docs/ that explains it.
    kinds=(Kind("skeleton_call", "skeleton.md", "findings:SlowCall"),),
    questions=(
        Question(
            "Operators that take far longer than usual",
            "findings:slow_calls",
            ("skeleton_call",),
            order=1000,  # SKELETON: place in lists of checks
            recorded=False,  # SKELETON: asked of imported traces as well
        ),
    ),
    # SKELETON: functions from a run to a data frame. They become lw.<name>(run), tables of
    # `lanescope export`, of SQL, and /table/<name>.csv.
    tables={"skeleton_durations": "findings:call_durations"},
    # SKELETON: /skeleton, with icon-skeleton.svg in this folder.
    pages=(Page("skeleton", "Skeleton", order=1000, selects={"skeleton-rank": "rank"}),),
    # SKELETON: there is more: metrics with a limit, rows and arrows for a selected slice
    # (span_facts), addresses for the timeline (routes). See webapp/analysis/plugin.py.
)
