"""Finds losses, models and modes that do not fit together."""

from lanescope.webapp.analysis.plugin import Kind, Plugin, Question

PLUGIN = Plugin(
    name="losses",
    area="Learning",
    depends=("autograd_graph",),
    kinds=(
        Kind("wrong_loss", "learning.md#wrong_loss"),
        Kind("shared_parameter", "learning.md#shared_parameter"),
        Kind("evaluation_mode", "learning.md#evaluation_mode"),
    ),
    questions=(
        Question(
            "Losses of probabilities in place of logits",
            "loss_inputs:loss_inputs",
            ("wrong_loss",),
            order=196,
            needs="the graph of the first backward",
            misses="losses that the first backward does not reach; losses that are written with "
            "single operators",
        ),
        Question(
            "Losses of a softmax over another dimension",
            "softmax_dims:softmax_dims",
            ("wrong_loss",),
            needs="the graph of the first backward",
            misses="losses other than nll_loss; a softmax whose result is reshaped; square shapes",
        ),
        Question(
            "Softmax of a single output",
            "softmax_dims:single_outputs",
            ("wrong_loss",),
            needs="the graph of the first backward",
            misses="outputs of other than linear layers; a softmax that is written with single "
            "operators",
        ),
        Question(
            "Normalisations of single numbers",
            "softmax_dims:single_norms",
            ("dead_parameter",),
            needs="the graph of the first backward",
            misses="normalisations that are written with single operators",
        ),
        Question(
            "A softmax or norm over the batch",
            "softmax_dims:batch_dims",
            ("mixed_samples",),
            needs="the graph of the first backward",
            misses="tensors of other than two dimensions; weights that are summed otherwise",
        ),
        Question(
            "Weights of a softmax over another dimension",
            "softmax_dims:attention_dims",
            ("mixed_samples",),
            needs="the graph of the first backward",
            misses="weights that are transposed, masked or scaled after the softmax, or not of a "
            "batched product of queries with keys; products with values that need no gradient",
        ),
        Question(
            "Attention that sees the next tokens",
            "masks_and_views:unmasked_attention",
            ("wrong_loss",),
            needs="the graph of the first backward, with a cross-entropy of tokens in host memory",
            misses="masks that hide too little; attention of other operators; compiled models",
        ),
        Question(
            "Tokens that are shifted twice",
            "masks_and_views:shifted_twice",
            ("wrong_loss",),
            needs="the graph of the first backward, with a cross-entropy of tokens in host memory",
            misses="models with other losses of tokens",
        ),
        Question(
            "Views that exchange dimensions within a model",
            "masks_and_views:exchanged_views",
            ("mixed_samples",),
            order=197,
            needs="the graph of the first backward",
            misses="views that merge dimensions; lengths that are equal or differ by one",
        ),
        Question(
            "Losses of shapes that are broadcast",
            "loss_shapes:loss_shapes",
            ("wrong_loss",),
            needs="the graph of the first backward",
            misses="targets that require a gradient; parameters alone; shapes other than [N, 1] "
            "and [N]",
        ),
        Question(
            "Targets that gradients flow through",
            "attached_targets:attached_targets",
            ("wrong_loss",),
            needs="the graph of the first backward",
            misses="targets other than a tensor plus a multiple of what the same model returns",
        ),
        Question(
            "Losses of no target",
            "empty_targets:empty_means",
            ("wrong_loss",),
            native=True,
            needs="level access; losses in host memory",
            misses="losses on a device; compiled losses; sums that are divided by hand; masks that "
            "leave no element where the program hides the NaN",
        ),
        Question(
            "Cross-entropies below zero",
            "negative_losses:below_zero",
            ("wrong_loss",),
            needs="level access; a binary cross-entropy that backward begins at, in host memory",
            misses="sums of losses; losses on a device",
        ),
        Question(
            "Tokens that are predicted from themselves",
            "unshifted_labels:copied_tokens",
            ("wrong_loss",),
            native=True,
            needs="level access; a cross-entropy with a class for each row of the model's table",
            misses="labels that a DataLoader or a tokenizer made; losses on parts of the tokens; "
            "models that read their table more than once; compiled models",
        ),
        Question(
            "Targets that a second permutation chose",
            "shuffled_targets:shuffled_apart",
            ("wrong_loss",),
            native=True,
            needs="level access; rows of inputs and targets that torch.randperm chose",
            misses="permutations of numpy and of random; rows that are copied before they are used",
        ),
        Question(
            "Padding that the loss counts",
            "padding:padding_in_losses",
            ("wrong_loss",),
            needs="the graph of the first backward, with a cross-entropy of tokens in host memory",
            misses="rows that are all of one length; targets that padding shares with other "
            "positions; losses without reduction",
        ),
        Question(
            "Ends of texts that the loss leaves out",
            "padding:ends_left_out",
            ("wrong_loss",),
            needs="3 backward passes at the steps 0, 1, 2, 4, 8, ..., with a cross-entropy of "
            "tokens in host memory",
            misses="rows that are all filled up; labels that the program shifts itself",
        ),
        Question(
            "Classes that the loss leaves out",
            "padding:ignored_classes",
            ("wrong_loss",),
            needs="3 backward passes at the steps 0, 1, 2, 4, 8, ..., with a cross-entropy of one "
            "class per sample in host memory",
            misses="classes of positions or pixels; classes much rarer or more frequent than the "
            "others",
        ),
        Question(
            "Masks that show padding alone",
            "padding:inverted_masks",
            ("mixed_samples",),
            needs="the graph of the first backward, with tokens and masks in host memory",
            misses="rows that are all of one length; masks on a device",
        ),
        Question(
            "Sequences and samples that are exchanged",
            "sequence_dims:sequence_dims",
            ("mixed_samples",),
            needs="the graph of the first backward",
            misses="losses of each position; batches of as many samples as positions",
        ),
        Question(
            "Scores and targets that are flattened in two orders",
            "sequence_dims:flattened_apart",
            ("mixed_samples",),
            needs="the graph of the first backward, with a cross-entropy",
            misses="as many samples as positions; targets that are copied before they are "
            "flattened; other losses",
        ),
        Question(
            "Positions that are added to samples",
            "sequence_dims:positions_of_samples",
            ("mixed_samples",),
            needs="level access; the graph of the first backward, with attention",
            misses="as many samples as positions; positions that are learned",
        ),
        Question(
            "Rows of tables that padding_idx keeps from training",
            "padding:padding_rows",
            ("dead_parameter",),
            needs="the graph of the first backward, with tokens in host memory",
            misses="rows that are all of one length; tables without padding_idx",
        ),
        Question(
            "Recurrences that are cut at each position",
            "sequence_dims:cut_recurrences",
            ("wrong_loss",),
            needs="the graph of the first backward, with RNNCell, GRUCell or LSTMCell",
            misses="other cells; states that are detached now and then",
        ),
        Question(
            "Pairs of a sample with itself",
            "self_pairs:self_pairs",
            ("wrong_loss",),
            needs="the graph of the first backward, with scores in host memory",
            misses="similarities that are computed pair by pair; losses without log_softmax",
        ),
        Question(
            "Pairs of views that are the same",
            "loss_facts:same_views",
            ("wrong_loss",),
            needs="3 backward passes at the steps 0, 1, 2, 4, 8, ..., in host memory",
            misses="temperatures that are learned; losses of one matrix of both views",
        ),
        Question(
            "Noise that a model is to predict",
            "noise_targets:other_noise",
            ("wrong_loss",),
            native=True,
            needs="level access; numbers that torch draws from a normal distribution",
            misses="uniform noise; models that compute in threads of their own",
        ),
        Question(
            "Penalties of gradients without effect",
            "constant_penalty:constant_penalty",
            ("wrong_loss",),
            native=True,
            needs="level access; a backward or autograd.grad() before the first loss",
            misses="gradients that are no term of the loss; losses after the first one",
        ),
        Question(
            "Targets that the last function cannot return",
            "loss_facts:unreached_targets",
            ("wrong_loss",),
            needs="3 backward passes at the steps 0, 1, 2, 4, 8, ..., in host memory",
            misses="functions other than relu, sigmoid, softmax and tanh; losses without reduction",
        ),
        Question(
            "Texts that are longer than what CTC gets",
            "loss_facts:long_texts",
            ("wrong_loss",),
            needs="3 backward passes at the steps 0, 1, 2, 4, 8, ...",
            misses="labels that repeat, which need a position more",
        ),
        Question(
            "Similarities without a temperature",
            "loss_facts:flat_scores",
            ("wrong_loss",),
            needs="3 backward passes at the steps 0, 1, 2, 4, 8, ..., in host memory",
            misses="temperatures that are learned; losses other than log_softmax; vectors without "
            "gradients",
        ),
        Question(
            "Ratios of a policy to itself",
            "loss_facts:constant_ratios",
            ("wrong_loss",),
            needs="the same samples at two of the steps 0, 1, 2, 4, 8, ..., in host memory",
            misses="weights that differ from step to step; ratios that are not clamped",
        ),
        Question(
            "Divergences with the wrong sign",
            "loss_facts:negative_divergences",
            ("wrong_loss",),
            needs="the graph of the first backward",
            misses="logarithms and exponentials of tensors that are computed twice",
        ),
        Question(
            "Divergences summed beside a mean",
            "loss_facts:summed_divergences",
            ("wrong_loss",),
            needs="the graph of the first backward",
            misses="divergences without exp(); losses other than binary cross-entropies and mean "
            "squares; a factor that makes up for half of it",
        ),
        Question(
            "Losses divided by the number of ranks",
            "loss_divisor:loss_divisor",
            ("wrong_loss",),
            order=198,
            native=True,
            needs="gradients that DistributedDataParallel averages",
            misses="sharded gradients; a sum of several losses; a divisor that is written as a "
            "number",
        ),
        Question(
            "Losses divided by numbers of single ranks",
            "loss_divisor:own_counts",
            ("wrong_loss",),
            needs="gradients that DistributedDataParallel averages; 3 sampled steps",
            misses="a sum of several losses; numbers that are less than twice apart; sharded "
            "gradients",
        ),
        Question(
            "Parameters that share memory",
            "aliased_parameters:same_memory",
            ("shared_parameter",),
            order=199,
            needs="level access; 3 sampled optimizer steps",
            misses="parameters that share a part of their memory",
        ),
        Question(
            "States that share the memory of the model",
            "restored_states:restored_in_vain",
            ("shared_parameter",),
            needs="load_state_dict() of a state that was kept over an optimizer step",
            misses="states that are saved to a file, or put together from named_parameters()",
        ),
        Question(
            "Samples that pass no gradient to their distribution",
            "detached_samples:cut_samples",
            ("wrong_gradient",),
            order=197,
            needs="level access; the graph of the first backward",
            misses="samples that something other than layers reads; discrete distributions",
        ),
        Question(
            "Codes that pass no gradient to the encoder",
            "detached_samples:cut_codes",
            ("wrong_gradient",),
            order=197,
            needs="level access; the graph of the first backward, with argmin() of distances",
            misses="rows that something other than a layer reads first; products with one-hot rows",
        ),
        Question(
            "Layers that are one module",
            "repeated_layers:listed_again",
            ("shared_parameter",),
            order=199,
            needs="level access; the graph of the first backward",
            misses="copies that do not follow one another, as experts and heads; modules in a "
            "plain list; checkpointed layers",
        ),
        Question(
            "Tensors of modules that are no parameters",
            "repeated_layers:plain_tensors",
            ("dead_parameter",),
            needs="level access; the graph of the first backward",
            misses="tensors in a list; programs with several passes before their first step",
        ),
        Question(
            "Training in evaluation mode after an evaluation",
            "evaluation_mode:left_in_evaluation",
            ("evaluation_mode",),
            order=200,
            needs="level access; a model with dropout or batch normalisation, called as a module",
            misses="models that are in evaluation mode from the first step on",
        ),
        Question(
            "Training in evaluation mode from the first step on",
            "evaluation_mode:never_in_training",
            ("evaluation_mode",),
            needs="level access; a model with dropout or new batch normalisation, called as a "
            "module",
            misses="models with frozen parameters, or with a train() of their own; functions of "
            "dropout",
        ),
        Question(
            "Teachers in training mode",
            "evaluation_mode:teachers_in_training",
            ("evaluation_mode",),
            needs="level access; calls without gradients at 3 sampled steps, of a model with "
            "dropout or batch normalisation",
            misses="teachers that are called with gradients",
        ),
        Question(
            "Evaluation mode that another thread sets",
            "evaluation_mode:switched_by_threads",
            ("evaluation_mode",),
            area="Threads",
            needs="level access; a model with dropout or batch normalisation that one thread "
            "trains and another one evaluates",
            misses="modes that change within a call; models that several threads train",
        ),
    ),
)
