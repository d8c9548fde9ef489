"""Finds data races between threads and between streams."""

from lanescope.webapp.analysis.plugin import Kind, Page, Plugin, Question

PLUGIN = Plugin(
    name="races",
    area="Threads",
    kinds=(
        Kind("race", "races.md", "race_findings:RaceEvidence"),
        Kind("inplace_modification", "races.md#changed-in-place"),
    ),
    questions=(
        Question(
            "Data races between threads or streams",
            "race_findings:race_findings",
            ("race",),
            order=50,
            native=True,
            needs="level access",
            misses="memory that is reached without torch; draws that a lock orders; functions of "
            "torch.jit.fork that did not overlap; reads of memory that another process writes; "
            "processes that are ranks",
        ),
        Question(
            "Tensors used before their communication ends",
            "unfinished_communication:before_the_wait",
            ("race",),
            order=52,
            area="Communication",
            native=True,
            needs="level access; a collective with async_op=True, isend or irecv",
            misses="tensors on a device; other threads; what had ended by then",
        ),
        Question(
            "Random numbers of forked processes",
            "forked_numbers:forked_numbers",
            ("repeated_data",),
            order=54,
            native=True,
            needs="level access; a forked process",
            misses="numbers of numpy and random; dropout; programs that do not train, or that fork "
            "while other threads run; states that a generator of torch is given by its own methods",
        ),
        Question(
            "In-place changes of tensors that backward needs",
            "inplace:inplace_modifications",
            ("inplace_modification",),
            order=80,
            needs="level access",
            misses="changes of tensors that backward did not come to use",
        ),
        Question(
            "Writes that backward does not see",
            "silent_writes:silent_writes",
            ("inplace_modification",),
            order=81,
            native=True,
            needs="level access; a backward pass",
            misses="passes of backward after the first four; tensors that are filled, zeroed or "
            "copied into; memory that is written without torch",
        ),
    ),
    tables={"races": "race_findings:races"},
    pages=(
        Page(
            "races",
            "Races and deadlocks",
            order=42,
            within="threads",
            kinds=("race", "concurrent_backward", "inplace_modification", "deadlock"),
            height=820,
        ),
    ),
    span_facts="span_provider:race_facts",
)
