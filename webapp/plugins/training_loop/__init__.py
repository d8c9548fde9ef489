"""Finds calls that are allowed, and do not do what they are for."""

from lanescope.webapp.analysis.plugin import Kind, Plugin, Question

PLUGIN = Plugin(
    name="training_loop",
    area="Learning",
    depends=("data", "losses"),
    kinds=(
        Kind("growth", "memory.md#growth"),
        Kind("not_loaded", "learning.md#not_loaded"),
        Kind("unread_setting", "learning.md#unread_setting"),
        Kind("mixed_samples", "learning.md#mixed_samples"),
        Kind("wrong_scale", "learning.md#wrong_scale"),
        Kind("wrong_gradient", "learning.md#wrong_gradient"),
        Kind("wrong_average", "learning.md#wrong_average"),
    ),
    questions=(
        Question(
            "Parameters that two optimizers update",
            "double_updates:updated_twice",
            ("shared_parameter",),
            order=199,
            needs="two optimizers, and 3 backward passes",
            misses="an optimizer that holds one parameter under two names",
        ),
        Question(
            "Gradients clipped after the step",
            "late_clipping:clipped_late",
            ("exploding_gradient",),
            order=191,
            needs="clip_grad_norm_ in 5 steps",
            misses="clipping by hand or by value; clipping that never scales anything",
        ),
        Question(
            "Clippings that get no gradient",
            "ineffective_calls:clipped_nothing",
            ("exploding_gradient",),
            needs="clip_grad_norm_ in 4 steps",
            misses="clipping by hand; torch before 2.6",
        ),
        Question(
            "Gradients that the loss of another optimizer left",
            "ineffective_calls:left_gradients",
            ("wrong_gradient",),
            needs="two optimizers, and 5 steps",
            misses="losses that both train parameters of the other optimizer; gradients that are "
            "clipped in between; training in several threads",
        ),
        Question(
            "Checkpointed functions that draw other numbers in backward",
            "ineffective_calls:drawn_again",
            ("wrong_gradient",),
            needs="torch.utils.checkpoint",
            misses="checkpoints of other libraries; numbers that are not torch's",
        ),
        Question(
            "States that are loaded into their own model",
            "ineffective_calls:own_states",
            ("shared_parameter",),
            order=199,
            needs="load_state_dict() in two steps",
            misses="targets that are updated by other calls",
        ),
        Question(
            "Learning rates in place of factors",
            "schedule_findings:rates_for_factors",
            ("dead_parameter",),
            order=192,
            needs="LambdaLR of torch with 8 different factors",
            misses="learning rates above 0.1, or that are tensors; factors that still rise as the "
            "run ends",
        ),
        Question(
            "Learning rates next to zero",
            "schedule_findings:faded_rates",
            ("dead_parameter",),
            order=191,
            needs="a scheduler of torch, and 20 steps",
            misses="rates above a millionth of the first one (a thousandth for schedules of epochs "
            "that step with each batch of a DataLoader); rates that are tensors or are set by hand",
        ),
        Question(
            "Schedulers of another optimizer",
            "schedule_findings:idle_schedulers",
            ("dead_parameter",),
            order=192,
            needs="a scheduler of torch, and 3 of its steps",
            misses="schedulers that no loop steps; rates that are set by hand",
        ),
        Question(
            "Annealing given in epochs that steps with batches",
            "schedule_findings:short_annealings",
            ("dead_parameter",),
            needs="CosineAnnealingLR of torch, for twice its length",
            misses="other schedulers; lengths above 100; runs that end earlier",
        ),
        Question(
            "Cycles and warm-ups given in batches that step with epochs",
            "schedule_findings:slow_cycles",
            ("dead_parameter",),
            needs="OneCycleLR of torch and 2 of its steps, or LambdaLR and 3 of its steps",
            misses="other schedulers; cycles that get total_steps in runs that end earlier; "
            "warm-ups that have come to a fiftieth",
        ),
        Question(
            "Plateaus in the wrong mode",
            "schedule_findings:wrong_plateaus",
            ("dead_parameter",),
            needs="6 calls of ReduceLROnPlateau.step() with a Python number",
            misses="numbers that should rise in mode min and are no shares of samples, as rewards; "
            "numbers that are tensors",
        ),
        Question(
            "Optimizers made again for each step",
            "schedule_findings:renewed_optimizers",
            ("dead_parameter",),
            needs="6 steps",
            misses="optimizers that are made for a few steps each, as in each epoch; several that "
            "step in turn",
        ),
        Question(
            "Dropout that is the same in each step",
            "repeated_seeds:seeded_again",
            ("repeated_data",),
            order=48,
            native=True,
            needs="level access; dropout in a model called as a module at 4 sampled steps",
            misses="random numbers other than those of dropout; generators of the program",
        ),
        Question(
            "Epochs that shuffle alike",
            "repeated_seeds:same_orders",
            ("repeated_data",),
            native=True,
            needs="level access; a torch DataLoader that shuffles 32 samples or more, for 3 epochs",
            misses="samplers other than torch's RandomSampler; seeds that repeat after some epochs",
        ),
        Question(
            "Heads that are frozen as they were made",
            "frozen_heads:frozen_heads",
            ("dead_parameter",),
            order=155,
            native=True,
            needs="level access; a model that is loaded in part, and 4 optimizer steps",
            misses="layers other than the last; models that were loaded without a copy",
        ),
        Question(
            "Samples that are augmented alike",
            "repeated_seeds:seeded_samples",
            ("repeated_data",),
            order=48,
            needs="level access; a torch DataLoader without workers",
            misses="seeds of Python and numpy; samples that workers load; seeds that are numbers "
            "of torch",
        ),
        Question(
            "Inputs of evaluation on another scale",
            "input_scales:input_scales",
            ("evaluation_mode",),
            order=200,
            native=True,
            needs="level access; evaluations in evaluation mode without gradients, at 2 steps",
            misses="inputs that differ less than thirtyfold; results that are compared by other "
            "than eq or a loss of torch",
        ),
        Question(
            "Inputs that are divided by 255 twice",
            "input_scales:divided_twice",
            ("wrong_scale",),
            native=True,
            needs="level access; a model called as a module in training, at 4 sampled steps",
            misses="images that are normalised in between; inputs of 16 bits",
        ),
        Question(
            "Inputs that are bytes",
            "input_scales:unscaled_bytes",
            ("wrong_scale",),
            needs="3 backward passes at the steps 0, 1, 2, 4, 8, ..., of a model in host memory",
            misses="pictures of fewer than 64 numbers; layers other than linear and convolution",
        ),
        Question(
            "Dropout in evaluation",
            "evaluations:evaluated_dropout",
            ("evaluation_mode",),
            native=True,
            needs="level access; 3 calls of a model in evaluation mode, without gradients",
            misses="evaluation with gradients; compiled models",
        ),
        Question(
            "Training without a backward pass",
            "no_backward:no_backward",
            ("dead_parameter",),
            order=155,
            native=True,
            needs="level access; 8 calls of a model in training mode with gradients",
            misses="losses that are no function of torch; compiled regions; runs where only some "
            "steps fail",
        ),
        Question(
            "Updates of parameters that nothing reads",
            "dropped_updates:dropped_updates",
            ("dead_parameter",),
            native=True,
            needs="level access; 5 steps with operators on parameters outside of an optimizer",
            misses="updates of a single parameter; results that are read without torch",
        ),
        Question(
            "Evaluation in training mode",
            "evaluations:evaluated_in_training",
            ("evaluation_mode",),
            order=200,
            native=True,
            needs="level access; 3 calls without gradients, two in a row, of a model with "
            "dropout or batch normalisation",
            misses="results that are compared by other than eq or a loss of torch; models that are "
            "in evaluation mode at times",
        ),
        Question(
            "Frozen layers whose running statistics change",
            "frozen_statistics:frozen_statistics",
            ("evaluation_mode",),
            needs="level access; batch normalisation without trained parameters, at 3 sampled "
            "steps",
            misses="models within DistributedDataParallel; more than 20 buffers of a model",
        ),
        Question(
            "Running statistics of the last batch",
            "frozen_statistics:newest_batches",
            ("evaluation_mode",),
            needs="level access; batch normalisation in a model that is called as a module",
            misses="momenta below 0.9; momenta that are set after the first call of the model",
        ),
        Question(
            "Evaluation with statistics of no batch",
            "frozen_statistics:fresh_statistics",
            ("evaluation_mode",),
            needs="level access; two evaluations of a model with batch normalisation, without "
            "gradients",
            misses="models whose first batch normalisation has other statistics; models that are "
            "called with gradients as well",
        ),
        Question(
            "Averages of a model with itself",
            "moving_averages:self_average",
            ("shared_parameter",),
            order=199,
            native=True,
            needs="level access; averages by add_ or lerp_ in 5 steps",
            misses="averages that make a new tensor, or are compiled",
        ),
        Question(
            "Averages that take almost all from the newest parameters",
            "moving_averages:swapped_average",
            ("wrong_average",),
            native=True,
            needs="level access; averages by mul, add or lerp with Python numbers at four of the "
            "steps 0, 1, 2, 4, 8, ...",
            misses="weights that are tensors or change from step to step; averages of one "
            "parameter, or that are compiled",
        ),
        Question(
            "Averages that are written to the model",
            "moving_averages:reversed_average",
            ("wrong_average",),
            native=True,
            needs="level access; averages by mul, add or lerp with Python numbers at four of the "
            "steps 0, 1, 2, 4, 8, ...",
            misses="averages of one parameter, that are compiled, or by load_state_dict()",
        ),
        Question(
            "Trainings resumed without the state of their optimizer",
            "unloaded_states:fresh_optimizers",
            ("not_loaded",),
            order=198,
            needs="torch.load of a file that this run writes as well",
            misses="settings that differ from those of the file; parameters on a device; "
            "optimizers that the file holds in another form than state_dict()",
        ),
        Question(
            "Batches of one class",
            "sorted_data:sorted_targets",
            ("repeated_data",),
            order=48,
            native=True,
            needs="level access; a torch DataLoader without shuffle, with batches at 5 sampled "
            "steps",
            misses="datasets that are sorted by something other than the class of a loss",
        ),
        Question(
            "Targets of another DataLoader",
            "loader_findings:loaders_apart",
            ("wrong_loss",),
            order=197,
            native=True,
            needs="level access; two torch DataLoaders that shuffle, with batches of one tensor at "
            "4 sampled steps",
            misses="batches of several tensors; three DataLoaders",
        ),
        Question(
            "Loops over a DataLoader that return in their first round",
            "loader_findings:left_loops",
            ("repeated_data",),
            order=49,
            needs="level access; a torch DataLoader, and 3 epochs",
            misses="loops that end by break, or call a function that trains; samplers other than "
            "torch's",
        ),
        Question(
            "DataLoaders that hand out None",
            "loader_findings:lost_batches",
            ("lost_error",),
            needs="level access; a torch DataLoader",
            misses="samples that are left out of a batch",
        ),
        Question(
            "States that are not loaded",
            "unloaded_states:not_loaded",
            ("not_loaded",),
            order=198,
            needs="load_state_dict(strict=False)",
            misses="states that are loaded in part, or whose names differ by more than a prefix",
        ),
        Question(
            "Attributes that torch does not read",
            "ineffective_settings:unread_attributes",
            ("unread_setting",),
            needs="level access; a model called as a module in training, or an optimizer of torch",
            misses="spellings that are not like requires_grad; attributes that are set after the "
            "first call of the model",
        ),
        Question(
            "Groups without weight decay that leave out little",
            "ineffective_settings:spare_groups",
            ("unread_setting",),
            needs="an optimizer of several groups",
            misses="groups that have a fifth of the norms and biases, or other parameters; decay "
            "under other names than weight_decay",
        ),
        Question(
            "Parameters that are no longer tied",
            "ineffective_settings:broken_ties",
            ("shared_parameter",),
            order=199,
            needs="3 sampled optimizer steps",
            misses="ties that other calls than load_state_dict() and to_empty() break later on; "
            "copies of an embedding that are changed before the first step",
        ),
        Question(
            "Inputs whose dimensions view() exchanged",
            "ineffective_settings:reordered_inputs",
            ("mixed_samples",),
            order=197,
            needs="level access; a model called as a module, with an input of 3 dimensions or more",
            misses="views within a model; inputs that were computed after the view",
        ),
        Question(
            "Graphs and hooks that pile up",
            "growth:piling_up",
            ("growth",),
            order=193,
            needs="level access; a model called as a module, with gradients, at 16 steps",
            misses="graphs that no call of a module made, or that are kept within one step; what "
            "keeps them",
        ),
        Question(
            "Datasets that workers have an older copy of",
            "loader_findings:stale_datasets",
            ("repeated_data",),
            order=49,
            needs="level access; a torch DataLoader with persistent_workers",
            misses="attributes other than numbers, texts and flags of datasets and transforms",
        ),
    ),
)
