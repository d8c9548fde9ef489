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
            "Inputs and outputs that do not vary",
            "constant:constant_data",
            ("repeated_data",),
            order=46,
            area="Learning",
            recorded=True,
            needs="level access; a model called as a module at 4 sampled steps, with 4 rows",
            misses="outputs that hardly depend on the input",
        ),
        Question(
            "DataLoaders that hand out the same batch or target",
            "loaded:same_loaded",
            ("repeated_data",),
            order=47,
            area="Learning",
            recorded=True,
            needs="level access; a torch DataLoader with batches at 4 sampled steps, with 4 rows",
            misses="batches that no DataLoader made; targets that the model gets as an argument",
        ),
    ),
)
