"""Names of series about training loops and event loops whose calls do not do what they are for.

Needs neither torch nor pyarrow.
"""

BROKEN_TIE = "lanescope/training_loop/broken_tie/"
"""Prefix; file.py:20 of a call, the call, and the names of two parameters of its module follow,
each after a slash, that were one before it: 1."""

UNREAD_SETTING = "lanescope/training_loop/unread/"
"""Prefix; file.py:12 or nothing, what has the attribute (parameter, module, optimizer), the
attribute, its value and the name of the first such object follow, each after a slash: how many
parameters have another value of requires_grad, or the rate of the optimizer's first group."""

SPARE_GROUP = "lanescope/training_loop/spare_group/"
"""Prefix; file.py:12 or nothing that sets weight_decay to 0 and the class of an optimizer follow,
after a slash: how many parameters its groups without weight decay have, all of one dimension, where
its other groups have more of these."""

REORDERED_INPUT = "lanescope/training_loop/reordered/"
"""Prefix; file.py:12 that calls a module, its class, the shape of its input, a view, and that of
the view's base follow, each after a slash: 1 where the lengths of one are those of the other in
another order, and both have their numbers in the same order."""

LOCK_ADDRESS_AGAIN = "lanescope/threads/lock_address_again"
"""The address of a deleted lock that another one of the program has; 0: more than are kept."""

ORPHANED_LOCK = "lanescope/threads/orphaned_lock/"
"""Prefix; file.py:12 of the program follows: a forked process waits there for a lock that a thread
of its parent held as it was forked, and that no thread of its own has taken since (1)."""

BLOCKED_LOOP = "lanescope/threads/blocked_loop/"
"""Prefix; file.py:12 follows where a task of asyncio awaits a timer: by how many seconds its loop
is late as it comes to look at it, without the time that its thread had no processor."""

SAMPLED_LINE = "lanescope/threads/line/"
"""Prefix; file:12 of the program follows at which a training thread was, or ? where the sample had
to wait for Python's lock: how many seconds before."""

SUSPENDED_MODE = "lanescope/threads/suspended_mode/"
"""Prefix; file.py:20 that calls a module in training without gradients and file.py:12 follow, after
a slash, where a generator or coroutine that is suspended entered no_grad() or inference_mode(): 1
as backward begins within the mode, or as the first line calls a module with gradients again."""

LEFT_MODE = "lanescope/threads/left_mode/"
"""Prefix; the same two lines follow, the second one of set_grad_enabled(False) in a task that ended
before on this thread: 1, likewise."""

THREAD_SEED = "lanescope/threads/thread_seed"
"""A thread other than the main one calls torch.manual_seed() for the first time: 1."""

FORKED_STATE = "lanescope/threads/forked_state"
"""A hash, below 2^52, of the state of torch's default generator as a forked process begins."""

STATE_SET = "lanescope/threads/state_set"
"""A forked process sets a seed or a state of torch's default generator for the first time: 1."""

CLIPPED_NOTHING = "lanescope/training_loop/clipped_nothing/"
"""Prefix; file.py:12 of clip_grad_norm_ follows: how many parameters it gets, none with a gradient;
-1 where that line gets one after all."""

RATE_FACTOR = "lanescope/training_loop/rate_factor/"
"""Prefix; file.py:12 of a step of LambdaLR and the optimizer's first learning rate follow, after a
slash: by what the scheduler multiplies that rate, where it is another factor than before."""

MAXIMIZES = "lanescope/training_loop/maximizes"
"""An optimizer steps for the first time that goes uphill (maximize=True): 1."""

LEFT_LOOP = "lanescope/training_loop/left_loop/"
"""Prefix; file.py:20 of a return that ends the body of a loop over a DataLoader, file.py:12 of that
loop and the batches of an epoch follow, each after a slash: 1 for each iteration that begins."""

LOADED_RATE = "lanescope/training_loop/loaded_rate/"
"""Prefix; file.py:12 of load_state_dict() of an optimizer, its class and the learning rate that it
was made with follow, each after a slash: the larger one that the state brought, and that 8 steps
have kept."""

SLOW_CYCLE = "lanescope/training_loop/slow_cycle/"
"""Prefix; file.py:12 of a step of OneCycleLR, the steps of its cycle and those of an epoch follow
(0: not given), each after a slash: how many steps its optimizer has taken, where it took several
since the scheduler's step before."""

FRESH_STATISTICS = "lanescope/training_loop/fresh_statistics/"
"""Prefix; the name of a model that is called in evaluation mode and of its first batch
normalisation follow, after a slash: a hash of the model's first parameter, where the running
statistics are those it was built with, else -1."""

RESTING_LAYER = "lanescope/training_loop/resting_layer/"
"""Prefix; the name of a model whose first call with gradients is in evaluation mode, the path of
its first dropout or batch normalisation without a batch, and its class follow, each after a slash:
the rate of dropout, else 1. All parameters of the model require gradients."""

PLAIN_TENSOR = "lanescope/training_loop/plain_tensor/"
"""Prefix; file.py:12 or nothing that sets an attribute of a module, a slash and its name follow: a
tensor that requires a gradient, not a parameter. How many elements it has."""

UNSETTLED_MODEL = "lanescope/training_loop/unsettled/"
"""Prefix; the name of a model that is called without gradients, the path of its first dropout or
batch normalisation that is in training mode, and its class follow, each after a slash: a hash of
some elements of the model's first parameter."""

FADED_RATE = "lanescope/training_loop/faded_rate/"
"""Prefix; file.py:12 of a scheduler's step, its class and the first learning rate follow, each
after a slash: the rate as a share of that one, where it comes next to zero or leaves it."""

NUMBERS_DRAWN_AGAIN = "lanescope/training_loop/drawn_again/"
"""Prefix; file.py:12 follows that calls a checkpointed function which draws random numbers, and
does not keep the generator's state for the second run in backward (1)."""

OWN_STATE = "lanescope/training_loop/own_state/"
"""Prefix; file.py:20 of load_state_dict() and the class of the module follow, after a slash: 1
where the state was just taken from this very module."""

BATCH_MOMENTUM = "lanescope/training_loop/batch_momentum/"
"""Prefix; the name of a batch normalisation in training and its class follow, after a slash: its
momentum, the weight of the newest batch in the running statistics."""

REORDERED_VIEW = "lanescope/training_loop/reordered_view/"
"""Prefix; the number of a node of the first graph, the lengths before its view() and those after it
follow, each after a slash: 1 where they are the same lengths in another order, or one before
another was split."""

SINGLE_NORM = "lanescope/training_loop/single_norm/"
"""Prefix; the number of a node of a normalisation in the first graph follows: 1 where each mean and
variance that it computes is of a single number."""

NEXT_TOKENS = "lanescope/training_loop/next_tokens"
"""How many tokens a row has, where the targets of the first graph are the next ones."""

TOKENS_AHEAD = "lanescope/training_loop/tokens_ahead/"
"""Prefix; the number of a node of a loss in the first graph follows: by how many positions its
targets are ahead of the tokens that are read, where it is more than one in all losses of tokens."""

ATTENTION_MASKED = "lanescope/training_loop/attention_masked/"
"""Prefix; the number of a node of attention in the first graph follows: whether it has a mask or is
causal, 1 or 0. Of a softmax whether a weight is 0, or little of them goes to later positions."""

LEFT_GRADIENTS = "lanescope/training_loop/left_gradients/"
"""Prefix; file.py:12 of an optimizer's step, the name of a parameter of it and that of one of
another optimizer follow, each after a slash: 1 where the step uses the sum of what the loss before
the other's step left there, and of another loss after it."""

LOSS_COUNT = "lanescope/training_loop/loss_count"
"""Over how many elements a loss is the mean, and what its scales make of that number; for each
backward of the steps of GRAPH_SERIES."""

GRADIENT_FACTOR = "lanescope/training_loop/gradient_factor"
"""By what the program multiplies a gradient that DistributedDataParallel averaged, between the only
backward of a step and the optimizer's step."""

GATHERED_ACTIVATION = "lanescope/training_loop/gathered_activation"
"""A call of all_gather() follows that gets the result of an operator with a gradient: 1."""

MEAN_LOSS = "lanescope/training_loop/mean_loss"
"""The first backward begins at a loss that is the mean over its batch; 1."""

COUNTED_PADDING = "lanescope/training_loop/counted_padding/"
"""Prefix; the number of a node of a loss in the first graph, the token that fills up rows and the
class of the targets there follow, each after a slash: the share of these among all targets that the
loss counts."""

ENDS_LEFT_OUT = "lanescope/training_loop/ends_left_out/"
"""Prefix; the number of a node of a loss of next tokens and the token that ends all rows and fills
up the shorter ones follow, after a slash: 1 where the loss leaves out that token everywhere, also
the one that ends the longest row, else 0; at the steps of GRAPH_SERIES."""

IGNORED_CLASS = "lanescope/training_loop/ignored_class/"
"""Prefix; the number of a node of a loss with a target for each sample, the class that it leaves
out and how many classes there are follow, each after a slash: the share of that class among the
targets; at the steps of GRAPH_SERIES."""

PADDING_ALONE = "lanescope/training_loop/padding_alone/"
"""Prefix; the number of a node of attention or of its mask in the first graph and the token that
fills up rows follow, after a slash: 1 where attention sees this token and no other."""

FLATTENED_APART = "lanescope/training_loop/flattened_apart/"
"""Prefix; the number of a node of a loss in the first graph and two numbers L and N follow, each
after a slash: 1 where the loss gets scores [L, N, classes] and targets [N, L], both flattened."""

PADDING_ROW = "lanescope/training_loop/padding_row/"
"""Prefix; the number of a node of a table in the first graph, its padding_idx and the token that
fills up rows follow, each after a slash: how many tokens within rows are that padding_idx."""

SELF_PAIRS = "lanescope/training_loop/self_pairs/"
"""Prefix; the number of a node of a loss of [N, N] scores in the first graph follows, whose targets
are all off the diagonal: the mean probability on the diagonal, where it is above that of chance.
With a minus sign if all targets are on the diagonal."""

PLATEAU = "lanescope/training_loop/plateau/"
"""Prefix; file.py:12 of a step of ReduceLROnPlateau and its mode follow, after a slash: the number
that it compares with the best one so far."""

KEPT_HASH = "lanescope/training_loop/kept_hash/"
"""Prefix; the name of a model that is called without gradients and that of a parameter of it
follow, after a slash: a hash of some of its elements."""

SAVED_FILE = "lanescope/training_loop/saved_file/"
"""Prefix; file.py:12 or nothing that calls torch.save and the whole path of the file follow, after
a slash: how long the call took, in s, as it ended."""

LOADED_FILE = "lanescope/training_loop/loaded_file/"
"""The same for torch.load."""

PROGRAM_FILE = "lanescope/training_loop/program_file "
"""Prefix; the whole path of a file of a module of the program and ":1" follow, a place whose lines
are kept. The value is 1."""

READ_FILE = "lanescope/training_loop/read_file/"
"""Prefix; the whole path of a file follows that the program opens to read and that is older than
it: a hash, below 2^52, of its size and of evenly spaced parts of it."""

UNFINISHED_WORK = "lanescope/threads/unfinished/"
"""Prefix; file.py:12 or nothing where a daemon thread is as the process ends and the ordinal of the
thread follow, after a slash: how many items that hold data are left in a queue from which it was
the last to take."""

CANCELLED_TASK = "lanescope/threads/cancelled_task/"
"""Prefix; file.py:12 where a task of asyncio waits as its loop ends and the name of its function
follow, after a slash: how many tasks were not done there, and that nothing waits for any more."""

NEVER_AWAITED = "lanescope/threads/never_awaited/"
"""Prefix; file.py:12 at which nothing holds a coroutine any more that never ran and the name of its
function follow, after a slash: how often."""

SEEDED_SAMPLES = "lanescope/training_loop/seeded_samples/"
"""Prefix; file.py:12 of torch.manual_seed() within a fetch of a DataLoader and the seed follow,
after a slash: for how many samples of that fetch numbers were drawn after it."""

INPUT_SCALE = "lanescope/training_loop/input_scale/"
EVALUATED_SCALE = "lanescope/training_loop/evaluated_scale/"
"""Prefixes; the name of a model and the position of a tensor among its arguments follow, after a
slash: the root of the mean square of some of its elements, in training and in evaluation mode."""

DIVIDED_TWICE = "lanescope/training_loop/divided_twice/"
"""Prefix; the name of a model and the position of a tensor among its arguments follow, after a
slash: 1 where a sampled call in training gets bytes that were divided by 255, twice."""

UNSCALED_BYTES = "lanescope/training_loop/unscaled_bytes/"
"""Prefix; the number of a node of a layer that gets data without a gradient follows: the largest
one of some of its numbers, where all are whole numbers of 0 to 255 as those of a picture are, else
0; at the steps of GRAPH_SERIES."""

LARGE_FEATURES = "lanescope/training_loop/large_features/"
"""Prefix; the number of a node of a linear layer that gets data without a gradient follows: the
largest root mean square of a column of some of them; at the steps of GRAPH_SERIES."""

NARROW_DATA = "lanescope/training_loop/narrow_data/"
"""Prefix; the number of a node of a layer that gets data without a gradient follows: the standard
deviation of some of its numbers over their mean, 1 where they do not vary; at the steps of
GRAPH_SERIES."""

EQUAL_ROWS = "lanescope/training_loop/equal_rows/"
"""Prefix; the name of a trained weight follows whose rows are all one row other than zero as its
model is first called, or, if it has fewer than 8 rows, whose numbers are all the same: how many
rows it has."""

PAIRED_ROWS = "lanescope/training_loop/paired_rows/"
"""Prefix; the name of a count of rows of inputs that came again at a sampled step follows, each up
to now: "seen", how many did; "same", of these with the target that they had at first; "another",
with another one that some row has as well; "chance", the share of "same" if targets were chosen by
chance; "alike", of how many batches all rows were one row, another one in each, with different
targets (0 once the rows of a batch differ)."""

FRESH_OPTIMIZER = "lanescope/training_loop/fresh_optimizer/"
"""Prefix; file.py:12 of torch.load, the class of an optimizer and the whole path of the file
follow, each after a slash: how many parameters its first step has, all as they were loaded from
that file, which has the state of an optimizer of the same settings; the optimizer begins without a
state."""

MEAN_SLOPE = "lanescope/training_loop/slope/"
"""Prefix; the number of a node of tanh or sigmoid in the graph follows: the mean of its derivative
over some of its results, at the steps of GRAPH_SERIES."""

UNREACHED_TARGETS = "lanescope/training_loop/unreached/"
"""Prefix; the numbers of a node of a loss and of the function whose results it compares follow,
after a slash: the share of targets that this function cannot return, at the steps of
GRAPH_SERIES."""

LONG_TEXTS = "lanescope/training_loop/long_texts/"
"""Prefix; the number of a node of a CTC loss follows: the share of samples with more labels than
positions, at the steps of GRAPH_SERIES."""

FLAT_SCORES = "lanescope/training_loop/flat_scores/"
"""Prefix; the number of a node of log_softmax, how many unit vectors it compares with each one, and
the factor of their products follow, each after a slash: the least value that a cross-entropy of
them can have, as a share of that of equal scores; at the steps of GRAPH_SERIES."""

SAME_VIEWS = "lanescope/training_loop/same_views/"
"""Prefix; the number of a node of a loss follows that compares each of N vectors with N others, the
targets being on the diagonal: 1 where the others are the same numbers, though computed by
themselves, else 0; at the steps of GRAPH_SERIES."""

POLICY_RATIO = "lanescope/training_loop/policy_ratio/"
"""Prefix; the number of a node of exp() follows whose result is clamped and weighted: 1 where it is
exactly 1 for samples that an earlier graph has weighted, 0 for others, -1 where it is another
number; at the steps of GRAPH_SERIES."""

DATA_ROWS = "lanescope/training_loop/data_rows/"
"""Prefix; the number of a node of a linear layer follows that gets data without a gradient: a hash
of a row, if all rows are alike, else 0; below 0 where the row has other numbers than 0 and 1; at
the steps of GRAPH_SERIES. A row of one number that repeats does not count."""

NEGATIVE_DIVERGENCE = "lanescope/training_loop/negative_divergence/"
"""Prefix; the number of a node of exp() or log() in the first graph follows: 1 where the loss adds
x - exp(x), or log(x) - x, with a positive factor."""

SUMMED_DIVERGENCE = "lanescope/training_loop/summed_divergence/"
"""Prefix; the numbers of a node of exp() and of a loss in the first graph and how many samples both
have follow, each after a slash: how many times the loss weighs exp(x) - x, a KL divergence, what it
does in the sum of both over a sample, where it sums the divergence over the samples and is the mean
of the other loss."""

WEIGHTLESS_DIVERGENCE = "lanescope/training_loop/weightless_divergence/"
"""Prefix; the number of a node of exp() follows: 1 where the loss adds a multiple of exp(x) and one
of x, a KL divergence, and both are 0, else 0; at the steps of GRAPH_SERIES."""

BLEND_FACTOR = "lanescope/blend_factor"
"""An operator that begins then multiplies a tensor with this number between 0 and 1, or adds so
much of it; at the steps of GRAPH_SERIES."""

WRAPPED_BYTES = "lanescope/wrapped_bytes"
"""An operator that begins then adds, subtracts, multiplies or casts to whole numbers of 8 bits: the
share of its results, of some of them, that go past the last such number and begin again at the
first; where it is above 0, at the steps of GRAPH_SERIES."""

CHANGED_SAMPLE = "lanescope/training_loop/changed_sample/"
"""Prefix; the class of a dataset, "images[17]" and file.py:12 of its __getitem__ follow, each after
a slash: how many fetches of that sample have changed what the dataset holds."""

KEPT_STATE = "lanescope/training_loop/kept_state/"
"""Prefix; file.py:12 of state_dict(), file.py:20 of load_state_dict() and the class of the module
follow, each after a slash: the step at which the state was taken that shares the memory of the
parameters into which it is loaded, and these have changed since."""

OTHER_NAMES = "lanescope/training_loop/other_names/"
"""Prefix; file.py:20 of load_state_dict(), the class of the module, and the prefixes by which the
names of the state and of the module differ follow, each after a slash: how many parameters were not
loaded, and no other was; 0 once a state is loaded into that module."""

SCALED_STEP = "lanescope/training_loop/scaled_step/"
"""Prefix; file.py:12 of an optimizer's step, a slash and its class follow: the scale of the loss
whose gradients the step uses as they are."""

IDLE_SCHEDULER = "lanescope/training_loop/idle_scheduler/"
"""Prefix; file.py:12 of a scheduler's step, its class and that of its optimizer follow, each after
a slash: 1 for each step while that optimizer has not stepped, and another has its parameters."""

SHORT_ANNEALING = "lanescope/training_loop/short_annealing/"
"""Prefix; file.py:12 of a scheduler's step follows, in which a cosine annealing that steps with its
optimizer has gone up and down twice: after how many steps the rate rises again."""

RENEWED_OPTIMIZER = "lanescope/training_loop/renewed_optimizer/"
"""Prefix; file.py:12 of an optimizer's step and its class follow, after a slash: 1 where each of
the last few optimizers of these parameters stepped once, and kept nothing for the next one."""

RENEWED_AGAIN = "lanescope/training_loop/renewed_again/"
"""Prefix; file.py:12 of an optimizer's first step and its class follow, after a slash: how many
steps the optimizer before it took, of the same settings, with the same parameters, which nothing
else has written since."""

STALE_DATASET = "lanescope/training_loop/stale_dataset/"
"""Prefix; the class of a dataset and the name of a number in it follow, each after a slash: how
many iterations over a DataLoader began with another number than its persistent workers have."""

KEPT_GRAPHS = "lanescope/training_loop/kept_graphs/"
"""Prefix; file.py:12 that calls an outermost module and its class follow, after a slash: the first
of the last steps whose autograd graphs of that call are nearly all still in memory."""

KEPT_OUTPUT = "lanescope/training_loop/kept_output/"
"""Prefix; file.py:12 of the forward of an autograd function, its class and an attribute of its
context follow, each after a slash, which is what forward returns: the first of the last sampled
steps whose graphs this keeps in memory."""

MODEL_HOOKS = "lanescope/training_loop/model_hooks/"
"""Prefix; file.py:12 of a function of the program and its name follow, after a slash: how many
hooks of a model and its parameters call it."""
