"""The tracker for Accelerator of Hugging Face accelerate."""

from __future__ import annotations

import os
from typing import Any

from accelerate.tracking import GeneralTracker

from lanescope.integrations.training import Training


class LaneScopeTracker(GeneralTracker):
    """Puts what `accelerator.log` gets on the timeline.

        accelerator = Accelerator(log_with=[LaneScopeTracker("runs/a")])
        accelerator.init_trackers("project")
        training = accelerator.get_tracker("lanescope", unwrap=True)  # a `Training`
        training.epoch(0)
        accelerator.end_training()

    Without `run` it adds to the recording of `lanescope record`. `settings` are those of
    `lanescope.collector.record`.
    """

    name = "lanescope"
    requires_logging_directory = False
    main_process_only = False  # each rank records its own metrics

    def __init__(self, run: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        super().__init__()
        self._training = Training(run, **settings)
        self._begun = False

    @property
    def tracker(self) -> Training:
        """The training, for epochs, evaluation and checkpoints."""
        self.start()
        return self._training

    def start(self) -> None:
        """Begins, unless it has begun: older versions of accelerate do not call this."""
        if not self._begun:
            self._begun = True
            self._training.begin()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Does nothing: a run holds the program's command."""

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Records the metrics."""
        self.start()
        self._training.log(values)

    def finish(self) -> None:
        """Ends."""
        self._training.end()
