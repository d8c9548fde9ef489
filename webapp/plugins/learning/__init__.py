"""Finds what keeps parameters from learning, and what tears replicas apart."""

from lanescope.webapp.analysis.plugin import Kind, Plugin, Question

PLUGIN = Plugin(
    name="learning",
    area="Gradients",
    order=152,
    depends=("autograd_graph",),
    kinds=(
        Kind("rank_divergence", "checks.md#replicas-that-part", area="Ranks"),
        Kind("vanishing_gradient", "gradients.md#vanishing_gradient"),
        Kind("exploding_gradient", "gradients.md#exploding_gradient"),
        Kind("dead_parameter", "gradients.md#dead_parameter", "dead_parameters:DeadParameter"),
        Kind("lora_inactive", "gradients.md#lora_inactive"),
        Kind("scaler_skips", "gradients.md#scaler_skips"),
        Kind("validator", "checks.md#validators-of-your-own"),
    ),
    questions=(
        Question(
            "Diverging data-parallel replicas",
            "consistency:rank_divergence",
            ("rank_divergence",),
            order=40,
            needs="level access; an optimizer step on two ranks",
            misses="sharded parameters; ranks that part and are averaged again",
        ),
        Question(
            "Ranks that train apart",
            "unsynchronised:unsynchronised",
            ("rank_divergence",),
            order=41,
            needs="level access; a DistributedSampler on two ranks, or a value reduced in every "
            "step",
            misses="ranks that share neither samples nor a loss",
        ),
        Question(
            "Models that some ranks alone update",
            "reference_models:kept_models",
            ("rank_divergence",),
            order=42,
            needs="level access; replicas that call a model without gradients at two sampled steps",
            misses="models that each rank updates in its own way; parameters after the first 20",
        ),
        Question(
            "Vanishing gradients",
            "vanishing:vanishing",
            ("vanishing_gradient",),
            order=130,
            needs="5 optimizer steps",
            misses="layers whose small gradient is usual for their position",
        ),
        Question(
            "Exploding gradients",
            "exploding:exploding",
            ("exploding_gradient",),
            order=140,
            needs="an optimizer step",
            misses="growth that a clipping hides in the norms",
        ),
        Question(
            "Parameters that do not learn",
            "dead_parameters:dead_parameters",
            ("dead_parameter",),
            order=150,
            needs="2 optimizer steps (5 for gradients of zero)",
            misses="layers that take turns; frozen parameters among others of their group",
        ),
        Question(
            "Weights that do not learn beside their bias",
            "cancelled_gradients:cancelled_gradients",
            ("dead_parameter",),
            needs="8 optimizer steps",
            misses="layers without bias; parameters under other names than weight and bias",
        ),
        Question(
            "Dead and saturated units",
            "silent_units:silent_units",
            ("dead_parameter",),
            needs="level access; 4 sampled optimizer steps, with 8 rows in a batch; a bias, or "
            "torch.nn.Tanh or Sigmoid",
            misses="units of layers without bias; a few dead units; functional tanh and sigmoid "
            "that still have a gradient",
        ),
        Question(
            "Training without optimizer steps",
            "no_step:no_step",
            ("dead_parameter",),
            order=155,
            needs="a backward pass",
            misses="programs that never call zero_grad(), or change other tensors in place; "
            "compiled regions; one of several optimizers",
        ),
        Question(
            "Accumulated gradients that are thrown away",
            "wasted_passes:wasted_passes",
            ("dead_parameter", "wrong_gradient"),
            order=155,
            native=True,
            needs="4 steps of the run's only optimizer, whose zero_grad() is called",
            misses="gradients that are zeroed by the model or by hand; several optimizers; tasks "
            "that mix their updates in another order than one after the other",
        ),
        Question(
            "Layers and parameters made in each forward",
            "layers_made_in_forward:made_in_forward",
            ("dead_parameter",),
            order=156,
            needs="3 training steps, with the graph of the first backward; for parameters level "
            "access",
            misses="compiled code; parameters where an optimizer holds others that no module has",
        ),
        Question(
            "Backward from a loss without a graph",
            "no_graph:no_graph",
            ("dead_parameter",),
            order=157,
            needs="a program that this ended",
            misses="errors that the program catches",
        ),
        Question(
            "Gradients not zeroed between steps",
            "unzeroed_gradients:kept_gradients",
            ("exploding_gradient",),
            order=160,
            native=True,
            needs="level access",
            misses="gradients that are zeroed now and then",
        ),
        Question(
            "Low-rank adapters that do not learn",
            "lora:lora",
            ("lora_inactive",),
            order=170,
            needs="names of parameters with lora_",
            misses="adapters under other names",
        ),
        Question(
            "Collapsing loss scale",
            "scaling:scaler_skips",
            ("scaler_skips",),
            order=180,
            needs="a gradient scaler",
            misses="scalers that are not torch's",
        ),
        Question(
            "Steps on gradients that are still scaled",
            "scaling:still_scaled",
            ("exploding_gradient",),
            order=185,
            needs="a gradient scaler, and 4 steps",
            misses="losses that are changed after they were scaled; several scalers; training in "
            "several threads",
        ),
        Question(
            "Gradients clipped before they are unscaled",
            "scaling:clipped_while_scaled",
            ("vanishing_gradient",),
            order=190,
            needs="a gradient scaler, clip_grad_norm_",
            misses="clipping written by hand",
        ),
        Question(
            "Gradients clipped by the norms of single ranks",
            "local_clipping:local_clipping",
            ("rank_divergence",),
            order=195,
            needs="parts of one model that exchange gradients in backward, or scatter them; or "
            "replicas that clip before they reduce",
            misses="pipelines; ranks whose backward calls no collective; clipping by hand that "
            "scales less than six steps",
        ),
        Question(
            "Failed validators",
            "validators:validators",
            ("validator",),
            order=230,
            needs="a validator or an assertion in the program",
            misses="what no validator looks at",
        ),
    ),
)
