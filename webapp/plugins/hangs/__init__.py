"""Explains hangs and the end of processes."""

from lanescope.webapp.analysis.plugin import Kind, Page, Plugin, Question

PLUGIN = Plugin(
    name="hangs",
    area="Communication",
    depends=("collectives",),
    kinds=(
        Kind(
            "hang",
            "hangs.md",
            "lanescope.webapp.analysis.incomplete_collectives:Collective",
            marks="lanescope.webapp.plugins.collectives.pictures:never_came",
        ),
    ),
    questions=(
        Question(
            "Hangs",
            "hangs:hangs",
            ("hang", "straggler", "collective_mismatch"),
            order=10,
            misses="hangs of programs that run no operator and no collective; waits of less "
            "than --hang-timeout",
            recorded=False,
        ),
    ),
    pages=(Page("hang", "Hangs", order=30, within="collectives", height=620, body="page:body"),),
)
