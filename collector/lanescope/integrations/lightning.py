"""The callback for Trainer of Lightning, under its name `lightning` or `pytorch_lightning`."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

from lanescope.integrations.training import Training

_PACKAGE = "lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning"
_Callback: Any = importlib.import_module(f"{_PACKAGE}.callbacks").Callback


class LaneScopeCallback(_Callback):
    """Puts epochs, logged metrics, evaluation and checkpoints on the timeline.

        Trainer(..., callbacks=[LaneScopeCallback("runs/a")])

    Without `run` it adds to the recording of `lanescope record`. With `report` the figures of the
    run and its findings go to the trainer's loggers for TensorBoard and Weights & Biases at the
    end. `settings` are those of `lanescope.collector.record`.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        report: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._training = Training(run, **settings)
        self._report = report

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins."""
        self._training.begin()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """States the steps of the checkpoint, which Lightning restores after `on_fit_start`."""
        self._training.resume(trainer.global_step)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Marks an epoch."""
        self._training.epoch(trainer.current_epoch)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Records the metrics of steps that the trainer logs."""
        if (trainer.global_step % max(trainer.log_every_n_steps, 1)) == 0:
            self._training.log(trainer.logged_metrics)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins an evaluation."""
        self._training.evaluating()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends an evaluation; its metrics are known now."""
        self._training.evaluated()
        self._training.log(trainer.logged_metrics)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins a test."""
        self._training.evaluating()

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends a test."""
        self._training.evaluated()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Marks a checkpoint."""
        self._training.checkpoint(f"step {trainer.global_step}")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends where the training failed."""
        self._training.end()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends, and reports."""
        self._training.end(_writers(trainer) if self._report else ())


def _writers(trainer: Any) -> list[Any]:
    """Writers for the trainer's loggers, by the names of their classes: both packages have them."""
    kinds = {type(logger).__name__: logger for logger in trainer.loggers}
    if not {"TensorBoardLogger", "WandbLogger"} & set(kinds):
        return []
    from lanescope.integrations.report import TensorBoard, WeightsAndBiases

    writers = {"TensorBoardLogger": TensorBoard, "WandbLogger": WeightsAndBiases}
    return [writers[name](one.experiment) for name, one in kinds.items() if name in writers]
