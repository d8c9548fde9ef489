"""Analyses gradients: norms by layer, rank and thread; what fails to learn."""

from lanescope.webapp.analysis.plugin import Figure, Kind, Page, Plugin, Question

PLUGIN = Plugin(
    name="gradients",
    depends=("autograd_graph",),
    kinds=(
        Kind("rank_divergence", "checks.md#replicas-that-part"),
        Kind("vanishing_gradient", "gradients.md#findings"),
        Kind("exploding_gradient", "gradients.md#findings"),
        Kind("dead_parameter", "gradients.md#findings", "dead_parameters:DeadParameter"),
        Kind("lora_inactive", "gradients.md#findings"),
        Kind("scaler_skips", "gradients.md#findings"),
        Kind("validator", "checks.md#validators-of-your-own"),
    ),
    questions=(
        Question(
            "Do data-parallel replicas stay equal?",
            "consistency:divergence",
            ("rank_divergence",),
            order=40,
            area="Learning",
        ),
        Question(
            "Do gradients vanish on their way?",
            "vanishing:vanishing",
            ("vanishing_gradient",),
            order=130,
            area="Learning",
        ),
        Question(
            "Do gradients explode?",
            "exploding:exploding",
            ("exploding_gradient",),
            order=140,
            area="Learning",
        ),
        Question(
            "Does every parameter learn?",
            "dead_parameters:dead_parameters",
            ("dead_parameter",),
            order=150,
            area="Learning",
        ),
        Question(
            "Are gradients zeroed between steps?",
            "kept_gradients:kept_gradients",
            ("exploding_gradient",),
            order=160,
            area="Learning",
            recorded=True,
        ),
        Question(
            "Do low-rank adapters learn?",
            "lora:lora",
            ("lora_inactive",),
            order=170,
            area="Learning",
        ),
        Question(
            "Does the loss scale hold?",
            "scaling:scaler_skips",
            ("scaler_skips",),
            order=180,
            area="Learning",
        ),
        Question(
            "Are gradients unscaled before they are clipped?",
            "scaling:clipped_while_scaled",
            ("vanishing_gradient",),
            order=190,
            area="Learning",
        ),
        Question(
            "Do the validators of the program agree?",
            "validators:validators",
            ("validator",),
            order=230,
            area="Learning",
        ),
    ),
    tables={
        "gradients": "lanescope.webapp.analysis.gradients:gradients",
        "gradient_norms": "lanescope.webapp.analysis.gradients:gradient_norms",
    },
    functions={
        "added_by_layer": "backward_threads:added_by_layer",
        "backward_threads": "backward_threads:backward_threads",
        "low_precision": "low_precision:low_precision",
        "rank_map": "rank_map:rank_map",
    },
    figures=(Figure("Gradient norm", "headlines:gradient_norm", 60, "/gradients"),),
    pages=(
        Page(
            "gradients",
            "Gradients",
            order=50,
            kinds=(
                "vanishing_gradient",
                "exploding_gradient",
                "dead_parameter",
                "lora_inactive",
                "scaler_skips",
                "rank_divergence",
                "nan",
                "validator",
            ),
            height=2030,
        ),
    ),
)
