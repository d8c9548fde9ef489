"""Names that scripts of others rely on: commands with their options, functions, fields of JSON."""

from __future__ import annotations

from typing import Any

import click
import pytest

import lanescope.collector as ls
import lanescope.webapp as lw
from lanescope.webapp import cli
from lanescope.webapp.analysis.plugin import kinds

OPTIONS = {
    "record": "-o --level --steps --keep-last --min-duration --stacks --stack-depth --include "
    "--exclude --hang-timeout --on-hang --compile-backend --engine",
    "view": "--baseline --host --port --no-browser",
    "info": "--json",
    "check": "--baseline --json --junit --fail-on",
    "diff": "--json --mode",
    "repeat": "-n -o --threads --json",
    "pack": "-o --redact --ranks",
    "verify": "",
    "merge": "-o",
    "import": "-o",
    "export": "--to -o",
    "doctor": "--json",
}
KINDS = """
    race concurrent_backward inplace_modification deadlock hang collective_mismatch straggler
    rank_divergence nan divergence nondeterminism unrecorded_write vanishing_gradient
    exploding_gradient dead_parameter lora_inactive scaler_skips cuda_context lost_context
    untraceable_graph overlap validator environment repeated_data wrong_loss shared_parameter
    evaluation_mode growth not_loaded lost_error data_stall unread_setting mixed_samples
    blocked_loop wrong_average wrong_gradient lost_work shared_file wrong_scale
"""

DEFAULTS: dict[tuple[str, str], Any] = {
    ("record", "level"): "access",
    ("record", "stacks"): "auto",
    ("record", "stack_depth"): 15,
    ("record", "hang_timeout"): "60",
    ("record", "on_hang"): "report",
    ("record", "engine"): "auto",
    ("view", "host"): "127.0.0.1",
    ("view", "port"): 8050,
    ("check", "fail_on"): "error",
    ("diff", "mode"): "bitwise",
    ("repeat", "count"): 10,
}
CHOICES = {
    ("record", "level"): "timing access numerics",
    ("record", "stacks"): "auto none collectives all",
    ("record", "on_hang"): "report abort continue",
    ("record", "engine"): "auto native portable",
    ("check", "fail_on"): "error warning never",
    ("diff", "mode"): "bitwise tolerance simple",
    ("export", "kind"): "perfetto chrome html csv parquet markdown speedscope collapsed",
}
IN_CODE = "record start stop mark phase value step validator"
QUESTIONS = "open_run overlap races collectives gradients diff findings"


def parameters(command: str) -> dict[str, click.Parameter]:
    found = cli.main.get_command(click.Context(cli.main), command)
    assert found is not None
    return {str(one.name): one for one in found.params}


@pytest.mark.parametrize("command", list(OPTIONS))
def test_every_option_is_there(command: str) -> None:
    known = {name for one in parameters(command).values() for name in one.opts}
    assert set(OPTIONS[command].split()) <= known


def test_defaults_and_choices() -> None:
    for (command, name), value in DEFAULTS.items():
        assert parameters(command)[name].default == value, (command, name)
    for (command, name), choices in CHOICES.items():
        kind = parameters(command)[name].type
        assert isinstance(kind, click.Choice)
        assert list(kind.choices) == choices.split(), (command, name)


def test_every_function_is_there() -> None:
    assert set(IN_CODE.split()) <= set(ls.__all__)
    assert set(QUESTIONS.split()) <= set(lw.__all__)
    assert set(kinds()) == set(KINDS.split())
