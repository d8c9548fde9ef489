"""What is kept of an exception that ends the program, or that the program hands to its hook."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lanescope.collector.hooks.exceptions import LIMIT, describe, error_sentence
from lanescope.collector.hooks.threads import lost_errors
from lanescope.collector.recorder.messages import say
from lanescope.webapp import open_run
from tests.support.recording import record_program


class _Silent(ValueError):
    def __str__(self) -> str:
        raise RuntimeError


def _raised() -> BaseException:
    try:
        raise _Silent
    except _Silent as error:
        return error


def test_a_message_that_cannot_be_read_is_left_out() -> None:
    error = _raised()
    assert error_sentence(error) == "_Silent: (its message cannot be read)"
    place = describe(error, error.__traceback__, lambda file: False).rpartition("(")[2]
    assert place.startswith(__file__)


def test_long_messages_keep_their_first_and_last_line() -> None:
    error = ValueError("first\n" + "x\n" * LIMIT + "the cause")
    assert error_sentence(error) == "ValueError: first ... the cause"


def test_the_frame_around_a_message_is_left_out() -> None:
    error = ValueError("\n====\ntrain.py FAILED\n----\nroot cause\n====")
    assert error_sentence(error) == "ValueError: train.py FAILED root cause"
    assert error_sentence(ValueError("!!!")) == "ValueError: !!!"


def test_a_hook_called_with_anything_works_as_without(tmp_path: Path) -> None:
    source = """
        import sys, torch
        torch.ones(2).add(1)
        sys.excepthook(ValueError, ValueError("one"), 1)
        sys.excepthook(None, None, None)
        print("on")
    """
    recorded = record_program(tmp_path, source)
    assert (recorded.status, recorded.stdout) == (0, "on\n")
    run = open_run(recorded.run)
    assert "recorder_errors" not in run.coverage
    assert run.warnings == ()


def test_a_standard_error_of_the_program_may_be_any_object(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tee:
        def write(self, _: str) -> int:
            raise RuntimeError

    monkeypatch.setattr(sys, "stderr", Tee())
    say("nothing is recorded")
    monkeypatch.setattr(sys, "stderr", object())
    say("nothing is recorded")


def test_few_of_the_errors_that_a_program_got_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lost_errors, "_MAX_READ", 20)
    recorder: Any = SimpleNamespace(active=True)
    errors = lost_errors.LostErrors(recorder, lambda file: False)
    for number in range(100):
        future: Future[None] = Future()
        try:
            raise ValueError(f"error {number}")
        except ValueError as error:
            errors.failed(future, error)
        errors.read(future)
        assert len(errors._read) in range(1, 21)
