"""Shows gradients: norms by layer, rank and thread."""

from lanescope.webapp.analysis.plugin import Figure, Page, Plugin
from lanescope.webapp.plugins.gradients.ids import GRADIENT_RANK, LAYER_RANK, THREADS_RANK

PLUGIN = Plugin(
    name="gradients",
    depends=("autograd_graph",),
    tables={
        "gradients": "lanescope.webapp.analysis.parameter_history:gradients",
        "gradient_norms": "lanescope.webapp.analysis.parameter_history:gradient_norms",
    },
    functions={
        "added_by_layer": "backward_threads:added_by_layer",
        "backward_threads": "backward_threads:backward_threads",
        "low_precision": "not_finite:low_precision",
        "rank_map": "rank_map:rank_map",
    },
    figures=(Figure("Gradient norm", "headlines:gradient_norm", 60, "/gradients"),),
    pages=(
        Page(
            "gradients",
            "Gradients",
            order=50,
            selects=dict.fromkeys((GRADIENT_RANK, LAYER_RANK, THREADS_RANK), "rank"),
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
            body="page:body",
        ),
    ),
)
