"""Finds batches that repeat, and inputs and outputs that do not vary."""

from lanescope.webapp.analysis.plugin import Kind, Plugin, Question

PLUGIN = Plugin(
    name="data",
    depends=("learning",),
    kinds=(Kind("repeated_data", "checks.md#batches", "batches:RepeatedData"),),
    questions=(
        Question(
            "Same batches on several ranks",
            "repeated:same_batches",
            ("repeated_data",),
            order=42,
            area="Learning",
            recorded=True,
            needs="level access; data-parallel replicas; a model called as a module at 3 sampled "
            "steps",
            misses="ranks that share only some batches; the same batches at other steps",
        ),
        Question(
            "Epochs in the same order",
            "repeated:same_order",
            ("repeated_data",),
            order=44,
            area="Learning",
            recorded=True,
            needs="level access; two epochs with a DistributedSampler that shuffles",
            misses="samplers that are not torch's DistributedSampler; epochs that end early",
        ),
        Question(
            "Random numbers of ranks",
            "random_numbers:same_numbers",
            ("repeated_data",),
            order=45,
            area="Learning",
            recorded=True,
            needs="level access; data-parallel replicas whose batches differ; dropout or noise",
            misses="generators of the program's own; numbers that are not torch's",
        ),
        Question(
            "Dropout of ranks with parts of one model",
            "random_numbers:other_numbers",
            ("rank_divergence",),
            order=46,
            area="Learning",
            recorded=True,
            needs="level access; collective calls in the passes of a model; dropout",
            misses="parameters that all begin as constants",
        ),
        Question(
            "Samplers of ranks",
            "sampler_seeds:sampler_seeds",
            ("repeated_data",),
            order=43,
            area="Learning",
            recorded=True,
            needs="level access; a DistributedSampler that shuffles on two ranks",
            misses="samplers that are not torch's DistributedSampler",
        ),
        Question(
            "Inputs and outputs that do not vary",
            "constant:constant_data",
            ("repeated_data",),
            order=47,
            area="Learning",
            recorded=True,
            needs="level access; a model called as a module at 4 sampled steps, with 4 rows",
            misses="targets; outputs that hardly depend on the input",
        ),
    ),
)
