"""Finds losses, models and modes that do not fit together."""

from lanescope.webapp.analysis.plugin import Kind, Plugin, Question

PLUGIN = Plugin(
    name="losses",
    depends=("autograd_graph",),
    kinds=(
        Kind("wrong_loss", "gradients.md#losses-and-modes"),
        Kind("shared_parameter", "gradients.md#losses-and-modes"),
        Kind("evaluation_mode", "gradients.md#losses-and-modes"),
    ),
    questions=(
        Question(
            "Losses of probabilities in place of logits",
            "loss_inputs:loss_inputs",
            ("wrong_loss",),
            order=196,
            area="Learning",
            recorded=True,
            needs="the graph of the first backward",
            misses="losses that the first backward does not reach; losses that are written with "
            "single operators",
        ),
        Question(
            "Losses of shapes that are broadcast",
            "loss_shapes:loss_shapes",
            ("wrong_loss",),
            order=197,
            area="Learning",
            recorded=True,
            needs="the graph of the first backward",
            misses="targets that require a gradient; shapes other than [N, 1] and [N]",
        ),
        Question(
            "Losses of no target",
            "empty_means:empty_means",
            ("wrong_loss",),
            order=197,
            area="Learning",
            recorded=True,
            native=True,
            needs="level access; losses in host memory",
            misses="losses on a device; compiled losses; sums that are divided by hand; masks that "
            "leave no element where the program hides the NaN",
        ),
        Question(
            "Losses divided by the number of ranks",
            "loss_divisor:loss_divisor",
            ("wrong_loss",),
            order=198,
            area="Learning",
            recorded=True,
            native=True,
            needs="gradients that DistributedDataParallel averages",
            misses="sharded gradients; a sum of several losses; a divisor that is written as a "
            "number",
        ),
        Question(
            "Parameters that share memory",
            "same_memory:same_memory",
            ("shared_parameter",),
            order=199,
            area="Learning",
            recorded=True,
            needs="level access; 3 sampled optimizer steps",
            misses="parameters that share a part of their memory",
        ),
        Question(
            "States that share the memory of the model",
            "restored_in_vain:restored_in_vain",
            ("shared_parameter",),
            order=199,
            area="Learning",
            recorded=True,
            needs="load_state_dict() of a state that was kept over an optimizer step",
            misses="states that are saved to a file, or put together from named_parameters()",
        ),
        Question(
            "Layers that are one module",
            "listed_again:listed_again",
            ("shared_parameter",),
            order=199,
            area="Learning",
            recorded=True,
            needs="level access; the graph of the first backward",
            misses="copies that do not follow one another, as experts and heads; modules in a "
            "plain list; checkpointed layers",
        ),
        Question(
            "Training in evaluation mode after an evaluation",
            "left_in_evaluation:left_in_evaluation",
            ("evaluation_mode",),
            order=200,
            area="Learning",
            recorded=True,
            needs="level access; a model with dropout or batch normalisation, called as a module",
            misses="models that are in evaluation mode from the first step on",
        ),
    ),
)
