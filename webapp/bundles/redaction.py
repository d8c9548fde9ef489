"""Removes from a run what identifies its user, machine and arguments.

Left out are the command and its arguments, and the messages of exceptions. In every text of the
run (names, stacks, sentences, notes), wherever it stands, are replaced

- names of hosts, addresses of other machines, and of people on them (`user@host`);
- names of users, as paths name them, and that of the user who packs;
- paths: below the program's own folder they become relative to it, of installed packages and of
  Python paths within them stay, any other becomes `<path 3>`;
- arguments of the command, where they occur in a name: `<argument 2>`;
- texts of recorded variables of the environment: `<variable 1>`.

Of the arguments of imported events numbers stay, and texts are left out. The lines of the program
are left out as a whole: no rule finds every secret in a program's text.

The same text is replaced by the same one everywhere, so that what was equal stays equal. Names of
modules, parameters, functions, operators and of the program's own files are what a run is about,
and stay.
"""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.collector.format.columns import ARGS
from lanescope.collector.format.names import ENVIRONMENT, SETTINGS
from lanescope.webapp.runs.run import Run

REDACTED = "<left out>"

_USER = re.compile(r"[\\/](?:home|users)[\\/]+([^\\/\s'\":;,]+)", re.IGNORECASE)
_PLAIN_USERS = {"root", "user", "users", "ubuntu", "admin", "jovyan", "shared", "public"}
"""Names that say nothing, and may well be those of something else."""

_BEFORE, _END = r"(?<![\w.\]\)<])", r"[^\s'\"<>|:,;()\[\]{}]"
_PATH = re.compile(
    r"(?P<quote>['\"])(?P<quoted>(?:[A-Za-z]:)?[\\/][^'\"]+)(?P=quote)"
    rf"|{_BEFORE}(?P<bare>(?:[A-Za-z]:[\\/]|\\\\|/){_END}+)"
)
_WHOLE = re.compile(r"(?:[A-Za-z]:[\\/]|\\\\|/)(?:(?!\s[\\/])[^\n])+")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)
_IP = re.compile(r"(?<![\w.])(?!127\.0\.0\.1\b|0\.0\.0\.0\b)(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w.])")
_ACCOUNT = re.compile(r"(?<![\w.+-])[\w.+-]{2,}@[\w-]{2,}(?:\.[\w-]+)*")
_INSTALLED = re.compile(r".*[\\/](?:site|dist)-packages[\\/](.+)")
_PYTHON = re.compile(r".*[\\/]lib[\\/](python3[^\\/]*[\\/].+)")
_OPERATOR = re.compile(r"[A-Za-z_][\w.]*::[\w.:]+")
_EXCEPTION = re.compile(r"([\w.]+)(?::.*?)?(?: \(([^()]*):([0-9]+)\))?", re.DOTALL)

_VARIABLE = f"{SETTINGS}{ENVIRONMENT}"
"""Begins the name of a recorded variable of the environment; "=" and its text follow."""

_FIXED = {
    "scope",
    "kind",
    "shapes",
    "shape",
    "dtypes",
    "dtype",
    "device",
    "position",
    "reduce_op",
    "splits",
    "reason",
    "thread",
    "peer",
    "launch_thread",
    "owner",
}
"""Columns with words of the format: an argument of the same letters is not meant there."""

_WORDS = {kind.name for kind in schema.PhaseKind} | {
    "python",
    "torchrun",
    "timing",
    "access",
    "numerics",
    "train.py",
    "main",
    "true",
    "false",
    "none",
    "auto",
}
_MIN_LETTERS = 4
"""Letters of an argument that is looked for: shorter ones are in every other word."""


class Redactor:
    """Replaces what it was made for, the same by the same."""

    def __init__(
        self,
        hosts: Iterable[str] = (),
        users: Iterable[str] = (),
        arguments: Iterable[str] = (),
        roots: Iterable[str] = (),
    ) -> None:
        named = {name for host in hosts for name in (host, host.partition(".")[0])}
        self._hosts = _any_of(n for n in named if len(n) > 2 and n.lower() != "localhost")
        self._users = _any_of(n for n in users if len(n) > 2 and n.lower() not in _PLAIN_USERS)
        self._arguments = _any_of(a for a in arguments if _reveals(a))
        self._roots = sorted({root.rstrip("/\\") for root in roots} - {""}, key=len, reverse=True)
        self._numbers: dict[tuple[str, str], int] = {}
        self._known: dict[tuple[str, bool], str] = {}

    @classmethod
    def of(cls, run: Run) -> Redactor:
        """Finds the texts to replace in a run."""
        processes = run.manifest["processes"]
        files = {frame["file"] or "" for frame in _frames(run)}
        said = [*run.manifest["command"], *(word for p in processes for word in p["argv"])]
        texts = [*said, *files, *(p["exception"] for p in processes)]
        users = {name for text in texts for name in _USER.findall(text)} | _own_name()
        scripts = {p["argv"][0] for p in processes if p["argv"]}
        return cls(
            hosts={p["host"] for p in processes},
            users=users,
            arguments=_values(said),
            roots=_roots(scripts, files),
        )

    def text(self, text: str, arguments: bool = True) -> str:
        """Returns a text without the parts to leave out. `arguments`: those too."""
        known = self._known.get((text, arguments))
        if known is None:
            known = self._known[text, arguments] = self._text(text, arguments)
        return known

    def rows(self, table: str, rows: pa.Table) -> pa.Table:
        """Returns rows of a table with all texts replaced; no rows of the source table."""
        if table == schema.SOURCE.name:
            return rows.slice(0, 0)
        for position, field in enumerate(rows.schema):
            text = partial(self.text, arguments=field.name not in _FIXED)
            change = _changer(field.type, self.event if field.name == ARGS.name else text)
            if change is not None:
                rows = rows.set_column(position, field, change(rows.column(position)))
        return rows

    def event(self, args: str) -> str:
        """Returns the arguments of an imported event without their texts: numbers stay."""
        try:
            return json.dumps(_numbers_of(json.loads(args)))
        except (ValueError, RecursionError):
            return json.dumps(REDACTED)

    def manifest(self, manifest: schema.Manifest) -> dict[str, Any]:
        """Returns a manifest without command, arguments, hosts and messages."""
        made = self.tree({k: v for k, v in manifest.items() if k not in _AS_THEY_ARE})
        made |= {k: v for k, v in manifest.items() if k in _AS_THEY_ARE}
        made["command"] = []
        axis = manifest["axis"]
        if axis is not None:
            made["axis"] = {**axis, "clock_identity": self._number("clock", axis["clock_identity"])}
        made["processes"] = [self._process(process) for process in manifest["processes"]]
        return {key: made[key] for key in manifest}

    def tree(self, value: Any) -> Any:
        """Returns what JSON can hold, all texts of it replaced; of addresses (`search`) their
        values."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.tree(one) for one in value]
        if isinstance(value, dict):
            return {
                key: self._search(one) if key == "search" else self.tree(one)
                for key, one in value.items()
            }
        return value

    def _process(self, process: schema.Process) -> dict[str, Any]:
        clock = process["clock"]
        first = process["argv"][0] if process["argv"] else ""
        program = first.replace("\\", "/").rpartition("/")[2]
        return {
            **process,
            "host": self._number("host", process["host"]),
            "argv": [self.text(program, arguments=False)] if program else [],
            "exception": self._exception(process["exception"]),
            "ended": self.text(process["ended"]),
            "modules_root": self.text(process["modules_root"]),
            **({"worker": self.text(process["worker"])} if "worker" in process else {}),
            "clock": {**clock, "host": self._number("clock", clock["host"])},
        }

    def _exception(self, text: str) -> str:
        found = _EXCEPTION.fullmatch(text)
        if not text or found is None:
            return REDACTED if text else ""
        kind, file, line = found.groups()
        return f"{kind}: {REDACTED}" + (f" ({self.text(file)}:{line})" if file else "")

    def _search(self, search: str) -> str:
        pairs = [(k, self.text(v)) for k, v in parse_qsl(search[1:], keep_blank_values=True)]
        return f"?{urlencode(pairs, quote_via=quote)}" if pairs else ""

    def _text(self, text: str, arguments: bool) -> str:
        if text.startswith(_VARIABLE):
            name, _, given = text.partition("=")
            return f"{name}=<{self._number('variable', given)}>"
        if _WHOLE.fullmatch(text):
            return self._rest(self._path(text), arguments)
        text = _URL.sub(lambda m: "<address>", text)
        text = _PATH.sub(self._found_path, text)
        return self._rest(text, arguments)

    def _rest(self, text: str, arguments: bool) -> str:
        text = _ACCOUNT.sub("<address>", text)
        text = _IP.sub("<address>", text)
        text = self._hosts.sub(lambda m: f"<{self._number('host', m[0].lower())}>", text)
        text = self._users.sub("<user>", text)
        if arguments and not _OPERATOR.fullmatch(text):
            text = self._arguments.sub(lambda m: f"<{self._number('argument', m[0])}>", text)
        return text

    def _found_path(self, found: re.Match[str]) -> str:
        quoted = found["quoted"]
        if quoted is not None:
            return f"{found['quote']}{self._path(quoted)}{found['quote']}"
        return self._path(found["bare"])

    def _path(self, path: str) -> str:
        for root in self._roots:
            if path.startswith((f"{root}/", f"{root}\\")):
                return path[len(root) + 1 :]
        for kept in (_INSTALLED, _PYTHON):
            if found := kept.fullmatch(path):
                return found[1]
        return f"<{self._number('path', path)}>"

    def _number(self, kind: str, text: str) -> str:
        same = sum(other == kind for other, _ in self._numbers)
        return f"{kind} {self._numbers.setdefault((kind, text), same + 1)}"


_AS_THEY_ARE = {
    "format",
    "id",
    "created",
    "level",
    "world_size",
    "complete",
    "exit_status",
    "files",
}


def _own_name() -> set[str]:
    try:
        return {getpass.getuser()}
    except (OSError, KeyError, ImportError):  # a process without a known user
        return set()


def _frames(run: Run) -> Iterable[dict[str, Any]]:
    for frames in run.events("stack", columns=["frames"])["frames"].to_pylist():
        yield from frames or ()


def _roots(scripts: set[str], files: set[str]) -> set[str]:
    """Folders of the program: those of its scripts, and those above the files they name."""
    roots = set()
    for script in scripts:
        if script.startswith("/"):
            roots.add(script.rpartition("/")[0])
        elif script and not script.startswith("-"):
            ending = "/" + script.removeprefix("./")
            roots |= {file[: -len(ending)] for file in files if file.endswith(ending)}
    return {root for root in roots if not _INSTALLED.match(root + "/x") and "/bin" not in root[-4:]}


def _values(arguments: Iterable[str]) -> set[str]:
    """Words of commands' arguments: values of options, and positional arguments."""
    values = set()
    for argument in arguments:
        option, given, value = argument.partition("=")
        values.add(value if given and option.startswith("-") else argument)
    return {value for value in values if not value.startswith("-")}


def _reveals(argument: str) -> bool:
    """Whether an argument says something that is looked for."""
    if len(argument) < _MIN_LETTERS or argument.lower() in _WORDS or argument.endswith(".py"):
        return False
    return not re.fullmatch(r"[0-9.,:xXeE+-]+", argument)


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Any of some texts where they are no part of a longer word, the longest first."""
    found = sorted(set(texts), key=lambda text: (-len(text), text))
    if not found:
        return re.compile(r"(?!)")
    words = "|".join(map(re.escape, found))
    return re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])", re.IGNORECASE)


def _changer(
    kind: pa.DataType, text: Callable[[str], str]
) -> Callable[[pa.ChunkedArray], pa.ChunkedArray] | None:
    """How the texts of a column are replaced; None where it has none."""
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind):

        def change(column: pa.ChunkedArray) -> pa.ChunkedArray:
            coded = column if pa.types.is_dictionary(kind) else column.dictionary_encode()
            chunks = [
                pa.array([text(v) for v in chunk.dictionary.to_pylist()], pa.string()).take(
                    chunk.indices
                )
                for chunk in coded.unify_dictionaries().chunks
            ]
            plain = pa.chunked_array(chunks, pa.string())
            return plain.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else plain

        return change
    if not pa.types.is_nested(kind):
        return None

    def change_frames(column: pa.ChunkedArray) -> pa.ChunkedArray:
        return pa.chunked_array([pa.array(_replaced(column.to_pylist(), text), kind)])

    return change_frames


def _numbers_of(value: Any) -> Any:
    if isinstance(value, str):
        return REDACTED
    if isinstance(value, list):
        return [_numbers_of(one) for one in value]
    if isinstance(value, dict):
        return {key: _numbers_of(one) for key, one in value.items()}
    return value


def _replaced(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return [_replaced(one, text) for one in value]
    if isinstance(value, dict):
        return {key: _replaced(one, text) for key, one in value.items()}
    return value
