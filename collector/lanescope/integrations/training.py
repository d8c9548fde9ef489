"""What a training loop says of itself, for the timeline; all callbacks go through `Training`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lanescope.collector import api
from lanescope.collector.recorder.messages import say

if TYPE_CHECKING:
    from lanescope.integrations.report import Writer


class Training:
    """A training loop that is recorded.

        with Training("runs/a", level="numerics") as training:
            for epoch in range(3):
                training.epoch(epoch)
                ...
                training.log({"loss": loss.item()})
                with training.evaluation():
                    ...
                training.checkpoint("a.pt")

    With `run` it is recorded from `begin` to `end`, with the settings of
    `lanescope.collector.record`. Without, and under `lanescope record`, it adds to the recording
    there is; where nothing is recorded, it does nothing.
    """

    def __init__(self, run: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        self._run = run
        self._settings = settings
        self._begun = False  # the recording is ours to stop
        self._evaluation = ExitStack()
        self._evaluating = False
        self._folder: Path | None = None
        self._first = 0

    def __enter__(self) -> Training:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def begin(self, steps_done: int = 0) -> None:
        """Starts recording, if a run was named; `steps_done` before it, of a resumed training."""
        if api.active() is None and self._run is not None:
            api.start(self._run, **self._settings)
            self._begun = api.active() is not None
        session = api.active()
        self._folder = None if session is None else session.recorder.run
        if self._run is not None and self._folder not in (None, Path(self._run).absolute()):
            say(f"{self._folder} is being recorded already, so {self._run} is not made")
        if steps_done:
            self.resume(steps_done)
        else:
            api.mark("training begins")

    def resume(self, steps_done: int) -> None:
        """States the steps done before, where they become known after the begin."""
        self._first = steps_done
        if steps_done:
            api.mark(f"training goes on at step {steps_done}")

    def epoch(self, number: int) -> None:
        """Marks the begin of an epoch, counted from 0."""
        self.evaluated()
        api.mark(f"epoch {number}")

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Records the metrics that are numbers, with the current time and step."""
        for name, value in metrics.items():
            if isinstance(value, (bool, str, bytes)):
                continue
            try:
                number = float(value)
            except (TypeError, ValueError, RuntimeError):  # a text, a table, a tensor of several
                continue
            api.value(name, number)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Records the block as a phase of evaluation."""
        self.evaluating()
        try:
            yield
        finally:
            self.evaluated()

    def evaluating(self) -> None:
        """Begins a phase of evaluation, unless one has begun."""
        if not self._evaluating:
            self._evaluation.enter_context(api.phase("evaluation"))
            self._evaluating = True

    def evaluated(self) -> None:
        """Ends the phase of evaluation, if one has begun; on the thread that began it."""
        self._evaluation.close()
        self._evaluating = False

    def checkpoint(self, name: object) -> None:
        """Marks that a checkpoint was saved."""
        api.mark(f"checkpoint: {name}")

    def end(self, writers: Sequence[Writer] = ()) -> None:
        """Stops the recording that `begin` started, then writes its figures and findings.

        `writers` are those of `report`; without any the run is not read. Rank 0 writes.
        """
        self.evaluated()
        api.mark("training ends")
        session = api.active()
        rank = 0 if session is None else session.recorder.process["rank"]
        if self._begun:
            api.stop()
            self._begun = False
        if writers and self._folder is not None and rank == 0:
            try:
                from lanescope.integrations.report import report

                report(self._folder, writers, first=self._first)
            except Exception as error:  # a report must not end a training
                say(f"no report on {self._folder}: {error}")
