"""`lanescope view`: serves the page of a run on this machine: of the one that is named, the newest
one, or one that is chosen of a folder."""

from __future__ import annotations

import atexit
import datetime
import json
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.text import Text

from lanescope.collector.format.file_names import MANIFEST
from lanescope.collector.recorder.progress import working
from lanescope.collector.recorder.workers import cluster_option, connected
from lanescope.webapp.analysis.check_limits import Settings, load_settings
from lanescope.webapp.analysis.cluster import ask_ahead
from lanescope.webapp.commands.baselines import NOISE_HELP, baselines
from lanescope.webapp.commands.run_argument import (
    next_command,
    run_argument,
    run_option,
    settings_option,
    shell_word,
)
from lanescope.webapp.plugins.diff.repeats import FILE as REPETITION
from lanescope.webapp.plugins.diff.repeats import repetition_in
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.extras import need_extra
from lanescope.webapp.runs.growing import growing
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.runs.types import Progress
from lanescope.webapp.server.auth import binding_of
from lanescope.webapp.server.http_server import Preparing, Server, Wsgi
from lanescope.webapp.server.live_run import Following
from lanescope.webapp.server.request_queues import Queues
from lanescope.webapp.timeline.timeline import Timeline
from lanescope.webapp.ui.examination import Examination, check_apart, is_long

_FOLDER = "runs"
"""Where `lanescope record` puts runs by default."""

_SHOWN = 20


@click.command()
@run_argument(required=False, metavar="[RUN|FOLDER]")
@run_option("--baseline", metavar="RUN0", help="A run to compare with.")
@run_option("--noise", metavar="RUN0B", help=NOISE_HELP)
@settings_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to bind. Unless it is a loopback address, visitors need the token in the "
    "printed address.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8050,
    show_default=True,
    help="Port to bind; 0 takes a free one.",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@cluster_option
def view(
    run: str | None,
    baseline: str | None,
    noise: str | None,
    settings: Path | None,
    host: str,
    port: int,
    no_browser: bool,
    cluster: str | None,
) -> None:
    """Show RUN in the browser. The first line printed is the address, alone.

    Without RUN, the newest run below ./runs opens. A FOLDER of runs lists them to choose from. The
    folder of `lanescope repeat` opens on the page Repeats, with two of its runs that differ, if any
    do, beside each other.

    \b
    Examples:
      lanescope view runs/a
      lanescope view runs/a --baseline runs/base --port 0 --no-browser
    """
    need_extra("view", "lanescope view")  # before an address is printed
    binding = binding_of(host)
    place, other, page = _to_open(chosen_run(run))
    baseline = baseline or other
    live = growing(place)
    with working("Opening the run"):
        opened = open_run(place)
        base, again = baselines(opened, baseline, noise)
    loaded = load_settings(opened.path, settings)
    for warning in opened.warnings:
        click.echo(f"lanescope: {units.printable(warning)}", err=True)

    with _listener(binding.address, host, port) as listener:
        bound = listener.getsockname()[1]
        examination: Examination | None = None
        # A run that grows is examined state by state; with workers the questions are asked here.
        if is_long(opened) and not live and cluster is None:
            examination = Examination(partial(check_apart, opened, base, again, loaded))
        app = partial(_app, opened, base, again, loaded, names=binding.names, live=live)
        make = partial(app, cluster=cluster, examination=examination)
        preparing = Preparing(make)
        server = Server(binding.guarded(preparing, bound), listener)
        if examination is not None:
            examination.begin()  # takes seconds, as the index and the first page do
        preparing.start(failed=server.stop)
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        click.echo(binding.url(bound))
        if binding.token is not None:
            click.echo("lanescope: everyone with this address can see the run", err=True)
        if not no_browser:
            webbrowser.open(binding.url(bound, page))
        try:
            server.serve()
        except KeyboardInterrupt:
            follow = next_command(opened, place)
            click.echo(f"stopped\nlanescope: next: {follow}", err=True)
        if preparing.error is not None:
            raise preparing.error
        leave()


def _to_open(run: str) -> tuple[str, str | None, str]:
    """Returns the run, its baseline and its page: of a folder of `lanescope repeat` runs of it."""
    known = repetition_in(Path(run))
    return (run, None, "") if known is None else (*known.pair(), "repeat")


def leave() -> NoReturn:
    """Ends the process with status 0, whatever other threads do.

    A thread that still answers a question may be within Arrow, whose workers need the interpreter:
    they end with it, and Arrow's own end would wait for them for ever.
    """
    atexit._run_exitfuncs()  # ends processes of its own, removes temporary folders
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _listener(address: str, host: str, port: int) -> socket.socket:
    """Binds the port; raises RunError, which names the `host` that was asked for."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family)
    except OSError as error:
        raise RunError(
            f"port {port} of {host} cannot be bound ({error.strerror}); choose another with "
            "--port, or 0 for a free one, and an address of this machine"
        ) from None


def _app(
    run: Run,
    baseline: Run | None,
    noise: Run | None,
    settings: Settings,
    progress: Progress,
    *,
    names: tuple[str, ...],
    live: bool,
    cluster: str | None,
    examination: Examination | None,
) -> Wsgi:
    """The page, with its index made first; `progress` is called with how far that is.

    `live`: the run was being recorded before it was opened. `cluster` is the address of the one
    that answers ahead what the checks ask of each rank, while the index is made; `examination`
    asks elsewhere.
    """
    # Dash: a second that refusals need not wait
    from lanescope.webapp.server.server import make_app

    with working("Indexing the run") as advance:

        def both(done: int, of: int) -> None:
            progress(done, of)
            advance(done, of)

        with connected(cluster) as workers, ThreadPoolExecutor(1) as beside:
            answered = beside.submit(ask_ahead, run, None if live else workers)
            index = Timeline.open(run, baseline, progress=both, noise=noise)
            answered.result()
    queues = Queues()  # of all states of a run that grows

    def make(timeline: Timeline, state: Callable[[], dict[str, Any]] | None = None) -> Wsgi:
        application: Wsgi = make_app(
            timeline.run,
            timeline.baseline,
            trusted_hosts=names,
            index=timeline,
            settings=settings,
            live=state,
            queues=queues,
            examination=examination,
        ).server
        return application

    if not live:
        return make(index)
    following = Following(index, make, settings)
    following.start()
    return following


@dataclass(frozen=True)
class Known:
    """A run in a folder that is not opened yet."""

    path: Path
    changed: float  # Unix time, seconds

    @property
    def about(self) -> str:
        """Ranks and command, from the manifest; empty for a bundle and an unreadable manifest."""
        try:
            manifest = json.loads((self.path / MANIFEST).read_bytes())
            command = " ".join(map(str, manifest["command"]))
            ranks = units.counted(int(manifest["world_size"]), "rank")
            return f"{ranks}, {command}" if command else ranks
        except (OSError, ValueError, LookupError, TypeError):
            return ""


def runs_in(folder: Path) -> list[Known]:
    """Returns the runs, bundles and repetitions right below a folder, the newest first."""
    found = []
    for path in _entries(folder):
        file = next(
            (path / name for name in (MANIFEST, REPETITION) if (path / name).is_file()), None
        )
        if file is None and path.suffix == ".lanes" and path.is_file():
            file = path
        if file is not None:
            found.append(Known(path, file.stat().st_mtime))
    return sorted(found, key=lambda one: (-one.changed, one.path))


def chosen_run(given: str | None) -> str:
    """Returns the run to show: the given one, the newest below `runs`, or one chosen of a folder.

    RunError without any, and for a folder of several runs unless standard input is a terminal.
    """
    if given is None:
        known = runs_in(Path(_FOLDER))
        if not known:
            raise RunError(
                f"there is no run in ./{_FOLDER}; name one, or record one with: "
                "lanescope record -- COMMAND"
            )
        click.echo(f"lanescope: the newest run, {units.printable(str(known[0].path))}", err=True)
        return str(known[0].path)
    folder = Path(given)
    if not os.path.isdir(folder) or any((folder / n).exists() for n in (MANIFEST, REPETITION)):
        return given
    known = runs_in(folder)
    return str(_asked(folder, known)) if known else given  # opening it says what is wrong


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _asked(folder: Path, known: list[Known]) -> Path:
    """Lists the runs and asks for one of them."""
    if len(known) == 1:
        return known[0].path
    console = Console(stderr=True, highlight=False)
    wide = max(len(units.printable(one.path.name)) for one in known[:_SHOWN])
    for number, one in enumerate(known[:_SHOWN], 1):
        when = datetime.datetime.fromtimestamp(one.changed)
        name = units.printable(one.path.name).ljust(wide)
        words = f"{number:>2}  {name}  {when:%Y-%m-%d %H:%M}  {units.printable(one.about)}"
        console.print(Text(words), no_wrap=True, overflow="ellipsis")
    if len(known) > _SHOWN:
        console.print(Text(f"and {units.count(len(known) - _SHOWN)} older ones"))
    if not sys.stdin.isatty():
        raise RunError(
            f"{folder} holds {len(known)} runs; name one of them, as in: "
            f"lanescope view {shell_word(str(known[0].path))}"
        )
    among = click.IntRange(1, min(_SHOWN, len(known)))
    number = click.prompt("Which run?", type=among, default=1, err=True)
    return known[int(number) - 1].path
