"""Finds batches that repeat, and inputs and outputs that do not vary."""

from lanescope.webapp.analysis.plugin import Kind, Plugin, Question

PLUGIN = Plugin(
    name="data",
    area="Data",
    order=46,
    depends=("autograd_graph", "learning", "losses"),
    kinds=(Kind("repeated_data", "checks.md#batches", "batches:RepeatedData"),),
    questions=(
        Question(
            "Same batches on several ranks",
            "repeated_batches:same_batches",
            ("repeated_data",),
            order=42,
            needs="level access; data-parallel replicas; a model called as a module at 3 sampled "
            "steps",
            misses="ranks that share only some batches; the same batches at other steps",
        ),
        Question(
            "Epochs in the same order",
            "repeated_batches:same_order",
            ("repeated_data",),
            order=44,
            needs="level access; two epochs with a DistributedSampler that shuffles",
            misses="samplers that are not torch's DistributedSampler; epochs that end early",
        ),
        Question(
            "Random numbers of ranks",
            "random_numbers:same_numbers",
            ("repeated_data",),
            order=45,
            needs="level access; data-parallel replicas whose batches differ; dropout or noise",
            misses="generators of the program's own; numbers that are not torch's",
        ),
        Question(
            "Dropout of ranks with parts of one model",
            "random_numbers:other_numbers",
            ("rank_divergence",),
            needs="level access; collective calls in the passes of a model; dropout",
            misses="parameters that all begin as constants",
        ),
        Question(
            "Ranks with parts of one model",
            "model_parallel_start:parts_of_a_model",
            ("rank_divergence",),
            needs="level access; all_reduce in forward and backward of a model called with the "
            "same input on all ranks",
            misses="sharded tensors of torch (DTensor); losses that ranks compute together; "
            "parts that begin equal next to others that do not",
        ),
        Question(
            "Samplers of ranks",
            "sampler_seeds:sampler_seeds",
            ("repeated_data",),
            order=43,
            needs="level access; a DistributedSampler that shuffles on two ranks",
            misses="samplers that are not torch's DistributedSampler; splits other than a Subset",
        ),
        Question(
            "Inputs and outputs that do not vary",
            "constant_data:constant_data",
            ("repeated_data",),
            order=47,
            needs="level access; a model called as a module at 4 sampled steps, with 4 rows",
            misses="outputs that hardly depend on the input",
        ),
        Question(
            "Layers that get the same data for all samples",
            "constant_rows:constant_rows",
            ("repeated_data",),
            order=47,
            needs="linear layers that get tensors without gradients, of 8 rows, at 4 of the steps "
            "0, 1, 2, 4, 8, ..., in host memory",
            misses="data that are all zero; other layers; embeddings",
        ),
        Question(
            "DataLoaders that hand out the same batch or target",
            "constant_batches:same_loaded",
            ("repeated_data",),
            order=47,
            needs="level access; a torch DataLoader with batches at 4 sampled steps, with 4 rows",
            misses="batches that no DataLoader made; targets that the model gets as an argument",
        ),
        Question(
            "Workers of DataLoaders",
            "workers:workers",
            ("repeated_data",),
            order=48,
            needs="level access; a torch DataLoader with num_workers",
            misses="random numbers of an IterableDataset, of a collate_fn or of another object "
            "within the dataset; numbers that are drawn after the first batch alone",
        ),
        Question(
            "Datasets that change their samples",
            "changed_samples:changed_samples",
            ("inplace_modification",),
            area="Data",
            order=49,
            needs="level access; a torch DataLoader, and the same sample in three epochs",
            misses="workers that start again in each epoch; samples that the dataset does not hold "
            "by their index",
        ),
        Question(
            "Files that workers of a DataLoader share",
            "shared_offsets:shared_offsets",
            ("shared_file",),
            area="Data",
            order=49,
            needs="level access; a torch DataLoader with two workers, and some batches more than "
            "these load ahead",
            misses="files that the dataset does not hold itself, or reads at a given place; those "
            "of h5py, lmdb and other libraries in C",
        ),
        Question(
            "Gradients that ranks sum and do not average",
            "undivided_gradients:summed_gradients",
            ("wrong_gradient",),
            needs="level access; replicas that all_reduce gradients after backward; SGD; the graph "
            "of the first backward",
            misses="losses that are summed from several; sums within hooks of parameters; learning "
            "rates that are meant for a sum",
        ),
        Question(
            "Gradients that are averaged again",
            "undivided_gradients:divided_again",
            ("wrong_gradient",),
            needs="gradients that DistributedDataParallel averages; 3 sampled steps of a single "
            "backward",
            misses="gradients that a communication hook reduces; a divisor that is written as a "
            "number",
        ),
        Question(
            "Plateaus of single ranks",
            "rank_metrics:own_plateaus",
            ("rank_divergence",),
            needs="level access; replicas; 3 calls of ReduceLROnPlateau.step() with Python numbers",
            misses="numbers that are tensors",
        ),
        Question(
            "Averages of means over unequal parts",
            "rank_metrics:unequal_means",
            ("wrong_average",),
            needs="level access; an all_reduce of one number in an evaluation",
            misses="means that the program divides in Python; last batches of other lengths",
        ),
        Question(
            "Evaluations that count samples twice",
            "padded_evaluations:padded_evaluations",
            ("wrong_average",),
            needs="level access; an evaluation over a DistributedSampler, and a sum over the ranks",
            misses="results that are gathered; less than 0.5 % of the samples; other samplers",
        ),
        Question(
            "Numbers that ranks reduce in different orders",
            "rank_metrics:metric_orders",
            ("wrong_average",),
            needs="level access; several numbers that are reduced one by one in each of 3 steps",
            misses="numbers that the same operator makes; tensors of several numbers",
        ),
        Question(
            "Gathered activations without their gradients",
            "gathered_activations:gathered_activations",
            ("wrong_gradient",),
            native=True,
            needs="level access; all_gather() of activations before backward",
            misses="activations that are detached before; losses that do not multiply activations "
            "with those of other ranks; results in which each rank puts its own part back",
        ),
        Question(
            "Models that change their data in place",
            "changed_inputs:changed_inputs",
            ("inplace_modification",),
            area="Data",
            order=49,
            native=True,
            needs="level access; a model that gets slices of a tensor, and 3 epochs",
            misses="data that the model gets as a whole; changes outside of forward; slices that "
            "are copied",
        ),
        Question(
            "Tensors to be learned that no optimizer holds",
            "loose_tensors:loose_tensors",
            ("dead_parameter",),
            order=47,
            native=True,
            needs="level access; the graph of the first backward; 5 steps",
            misses="tensors that modules read, or of more than 4 KiB; programs that call "
            "autograd.grad()",
        ),
        Question(
            "Functions whose backward ignores its gradient",
            "ignored_gradients:ignored_gradients",
            ("wrong_gradient",),
            native=True,
            needs="level access; the graph of the first backward, in host memory",
            misses="functions that hand on a gradient beside one that they compute; gradients that "
            "no operator wrote, as that of the loss itself; results that were saved as a whole",
        ),
        Question(
            "Sums over ranks that are summed again",
            "repeated_sums:summed_again",
            ("wrong_gradient",),
            needs="level access; an all_reduce by a sum, of one tensor several times",
            misses="sums of copies, as of gradients in one vector; additions out of place",
        ),
        Question(
            "Replicas with their parameters in different orders",
            "exchanged_values:exchanged_values",
            ("rank_divergence",),
            needs="level access; data-parallel replicas; half of the parameters equal by name",
            misses="parameters that begin as constants, and those that are drawn again later",
        ),
        Question(
            "Rows that get other targets each time",
            "inconsistent_targets:paired_rows",
            ("wrong_loss",),
            order=197,
            needs="level access; a model called as a module with tensors of 8 to 256 rows; 64 rows "
            "that come again at sampled steps; a loss of torch with one target per row",
            misses="samples that never come again, as those that are augmented or of a large "
            "dataset; targets of several numbers; tensors on a device",
        ),
        Question(
            "States of other samples",
            "carried_states:carried_states",
            ("mixed_samples",),
            order=197,
            native=True,
            needs="level access; a torch DataLoader that shuffles; LSTM, GRU or RNN of torch",
            misses="recurrences that are written by hand; samplers other than torch's "
            "RandomSampler; states that are copied",
        ),
        Question(
            "Functions that are saturated from the first step on",
            "saturated_functions:saturated",
            ("dead_parameter",),
            order=197,
            native=True,
            needs="level access; tanh or sigmoid in the graphs of four of the steps 0, 1, 2, 4, 8, "
            "..., in host memory",
            misses="functions that saturate later; fused layers",
        ),
        Question(
            "Units that are copies of each other",
            "equal_units:equal_units",
            ("dead_parameter",),
            order=153,
            needs="level access; 4 sampled optimizer steps; a model in host memory that is called "
            "as a module",
            misses="layers without bias; layers of fewer than 8 units; the last layer",
        ),
        Question(
            "Actions that are sampled again",
            "resampled_actions:sampled_again",
            ("wrong_loss",),
            order=197,
            native=True,
            needs="level access; samples of Categorical, Bernoulli or Normal without gradients",
            misses="actions that only numpy reads; distributions that are made again for log_prob",
        ),
    ),
)
