"""Shows what the streams of devices do, and why they are idle."""

from lanescope.webapp.analysis.plugin import Page, Plugin

PLUGIN = Plugin(
    name="devices",
    depends=("time",),
    tables={
        "kernels": "kernels:kernels",
        "copies": "kernels:copies",
        "device_operators": "kernels:device_operators",
        "device_annotations": "annotations:device_annotations",
        "streams": "idle:streams",
    },
    pages=(
        Page(
            "devices",
            "Devices",
            order=11,
            within="time",
            shown="kernels:has_kernels",
            selects={"devices-rank": "rank"},
        ),
    ),
)
