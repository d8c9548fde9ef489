"""The callback for Trainer of Hugging Face transformers."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lanescope.integrations.training import Training


class LaneScopeCallback(TrainerCallback):
    """Puts epochs, logged metrics, evaluation and checkpoints on the timeline.

        Trainer(..., callbacks=[LaneScopeCallback("runs/a")])

    Without `run` it adds to the recording of `lanescope record`. With `report` the figures of the
    run and its findings go to TensorBoard and Weights & Biases at the end, if `report_to` has them.
    `settings` are those of `lanescope.collector.record`.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        report: bool = True,
        **settings: Any,
    ) -> None:
        self._training = Training(run, **settings)
        self._report = report

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Begins."""
        self._training.begin(state.global_step)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Marks an epoch."""
        self._training.epoch(int(state.epoch or 0))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Begins an evaluation, if one follows this step or epoch."""
        if control.should_evaluate:
            self._training.evaluating()

    on_epoch_end = on_step_end

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Records the metrics."""
        self._training.log(given.get("logs") or {})

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Begins an evaluation that was asked for by hand, after its first batch."""
        self._training.evaluating()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ends an evaluation."""
        self._training.evaluated()

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any = None,
        **_: Any,
    ) -> None:
        """Ends a prediction."""
        self._training.evaluated()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Marks a checkpoint."""
        self._training.checkpoint(f"step {state.global_step}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ends, and reports."""
        reports = self._report and state.is_world_process_zero
        with _writers(args) if reports else _no_writers() as writers:
            self._training.end(writers)


@contextmanager
def _no_writers() -> Iterator[list[Any]]:
    yield []


@contextmanager
def _writers(args: TrainingArguments) -> Iterator[list[Any]]:
    """Writers for what the trainer reports to. Its own TensorBoard writer is closed by now."""
    wanted = [args.report_to] if isinstance(args.report_to, str) else list(args.report_to or ())
    wandb = importlib.import_module("wandb") if "wandb" in wanted else None
    tensorboard = "tensorboard" in wanted and importlib.util.find_spec("tensorboard") is not None
    if not tensorboard and (wandb is None or wandb.run is None):
        yield []
        return
    from lanescope.integrations.report import TensorBoard, WeightsAndBiases

    found: list[Any] = [] if wandb is None or wandb.run is None else [WeightsAndBiases(wandb.run)]
    if not tensorboard:
        yield found
        return
    from torch.utils.tensorboard import SummaryWriter

    folder = os.environ.get("TENSORBOARD_LOGGING_DIR") or getattr(args, "logging_dir", None)
    with SummaryWriter(str(folder or Path(str(args.output_dir), "runs"))) as summary:
        yield [*found, TensorBoard(summary)]
