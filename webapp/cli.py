"""The `lanescope` command. A sub-command is imported when it is called, not before."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

import click
from click.shell_completion import CompletionItem

from lanescope.assets.bundling import BundleError
from lanescope.collector.recorder.workers import ClusterError
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.extras import missing_extra
from lanescope.webapp.runs.units import printable

# name -> where it is, and its line in the help (so that `--help` imports none of them)
COMMANDS: dict[str, tuple[str, str]] = {
    "record": ("lanescope.collector.cli:record", "Run a command and record it."),
    "attach": ("lanescope.collector.cli:attach", "Record a process that runs already."),
    "view": ("lanescope.webapp.commands.view:view", "Show a run in the browser."),
    "info": ("lanescope.webapp.commands.info:info", "Show what a run contains."),
    "check": ("lanescope.webapp.commands.check:check", "Check a run against the limits."),
    "time": ("lanescope.webapp.commands.time:time", "Show where the time of a step goes."),
    "repeat": (
        "lanescope.webapp.commands.repeat:repeat",
        "Record a command several times and compare.",
    ),
    "diff": ("lanescope.webapp.commands.diff:diff", "Compare two runs."),
    "pack": ("lanescope.webapp.commands.pack:pack", "Put a run into one file."),
    "export": (
        "lanescope.webapp.commands.export:export",
        "Write a run as a trace, a page, a table or a report.",
    ),
    "merge": ("lanescope.webapp.commands.merge:merge", "Merge runs of different ranks into one."),
    "verify": ("lanescope.webapp.commands.pack:verify", "Check a bundle or a run for damage."),
    "import": (
        "lanescope.collector.importers.command:import_",
        "Import traces of other tools as a run.",
    ),
    "doctor": ("lanescope.webapp.commands.doctor:doctor", "Check the settings of a machine."),
}


_OBJECTS_BETWEEN_COLLECTIONS = 100_000


class _Refusal(click.ClickException):
    """Input that cannot be read: its sentence on standard error, exit status 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Prints the sentence."""
        click.echo(f"lanescope: {printable(self.format_message())}", file=file, err=file is None)


class _Output:
    """Standard output whose reader may go, as `head` does: later text is dropped, and the exit
    status stays the command's answer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failed = ""  # other than for a reader that went

    def write(self, text: str) -> None:
        """Writes a text."""
        self._try(lambda: self._stream.write(text))

    def flush(self) -> None:
        """Passes buffered text on."""
        self._try(self._stream.flush)

    def _try(self, do: Callable[[], object]) -> None:
        try:
            do()
        except OSError as error:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self._stream.fileno())  # buffered text goes there as well
            os.close(devnull)
            if not isinstance(error, BrokenPipeError):
                self._failed = f"the output cannot be written ({error.strerror}); send it elsewhere"
        if self._failed:  # said again each time: click passes over what its first write raises
            raise _Refusal(self._failed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Commands(click.Group):
    """A group that knows its commands by entry point and imports the one that is called."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs the command with an output whose reader may go."""
        output = sys.stdout
        if output is None:  # closed
            return super().main(*args, **options)
        with contextlib.redirect_stdout(cast("TextIO", _Output(output))):
            try:
                return super().main(*args, **options)
            finally:
                with contextlib.suppress(_Refusal):  # said before
                    sys.stdout.flush()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns names of the commands that are installed."""
        return [name for name, (entry, _) in COMMANDS.items() if _exists(entry)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports one command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            raise _refusal(error, cmd_name) from None
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; what cannot be read becomes one sentence and status 2."""
        # What a command makes stays until its end: looking through it for cycles after every 700
        # objects takes an eighth of the time of opening a run of many ranks.
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        try:
            return super().invoke(ctx)
        except (RunError, ClusterError, BundleError) as error:
            raise _Refusal(str(error)) from None
        except ImportError as error:
            raise _refusal(error, ctx.invoked_subcommand or "") from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names of commands without importing them."""
        return [
            CompletionItem(name, help=COMMANDS[name][1])
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)


def _refusal(error: ImportError, command: str) -> Exception:
    """The sentence for a missing extra; any other failed import as it is."""
    missing = missing_extra(error, f"lanescope {command}")
    return error if missing is None else _Refusal(str(missing))


def _exists(entry: str) -> bool:
    return importlib.util.find_spec(entry.partition(":")[0]) is not None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lanescope", message="%(package)s %(version)s")
def main() -> None:
    """Record PyTorch runs and look at them: all ranks and threads on one time axis.

    Exit status: 0 fine, 1 the answer is no, 2 wrong usage or unreadable input.

    \b
    Examples:
      lanescope record -o runs/a -- python train.py
      lanescope view runs/a
    """


if __name__ == "__main__":
    main()
