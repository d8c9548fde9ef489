"""Is a machine set up for distributed training? What `lanescope doctor` asks of it.

Every rule takes the facts and says what it found, what to set and why; none of them changes
anything. Facts are gathered apart from judging, so rules can be tried on any machine's.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "info", "warning", "error", "unknown"]

PORTS = range(29500, 29551)
"""Where torchrun and the examples of torch put the rendezvous."""

LOCAL = ("", "localhost", "127.0.0.1", "::1")
_COMPILERS = ("c++", "g++", "clang++")

_PROBE = """
import json, torch, torch.distributed as dist
print(json.dumps({
    "torch": torch.__version__, "gpus": torch.cuda.device_count(),
    "distributed": dist.is_available(),
    "backends": [name for name in ("gloo", "nccl", "mpi")
                 if dist.is_available() and getattr(dist, f"is_{name}_available")()],
}))
"""


@dataclass(frozen=True)
class Advice:
    """What one rule says."""

    name: str
    status: Status
    found: str
    set: str = ""  # what to set; empty: nothing
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns one entry of `checks` of `doctor --json`."""
        return asdict(self)


@dataclass(frozen=True)
class Facts:
    """What is known of a machine and the environment of a process on it."""

    variables: Mapping[str, str]
    torch: Mapping[str, Any] | None  # of the probe; None: torch cannot be imported
    cores: int
    busy_ports: tuple[int, ...]  # of PORTS, on this machine
    infiniband: bool
    compiler: str | None
    shared_memory: int | None  # bytes free in /dev/shm; None: no /dev/shm
    master_port_free: bool | None = field(default=None)  # None: not named, or on another machine
    master: Literal["here", "elsewhere", "unknown"] = "here"  # where MASTER_ADDR leads

    @property
    def gpus(self) -> int:
        """GPUs that torch can use."""
        return int(self.torch["gpus"]) if self.torch else 0

    def number(self, name: str) -> int | None:
        """Returns a variable as an integer; None if unset or not an integer."""
        text = self.variables.get(name, "").strip()
        return int(text) if text.removeprefix("-").isdecimal() else None


def machine_facts(python: str = sys.executable) -> Facts:
    """Returns the facts of this machine and process. Torch is asked in a process of its own."""
    variables = dict(os.environ)
    port = variables.get("MASTER_PORT", "")
    master = _place_of(variables.get("MASTER_ADDR", ""))
    ours = master == "here" and variables.get("RANK", "0") == "0"
    named = int(port) if port.isdecimal() and int(port) < 65536 else None
    preferred = variables.get("CXX", "")
    names = (preferred, *_COMPILERS) if preferred else _COMPILERS
    shared = Path("/dev/shm")
    return Facts(
        variables=variables,
        torch=_probe(python),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        busy_ports=tuple(port for port in PORTS if not _free(port)),
        infiniband=any(Path("/sys/class/infiniband").glob("*")),
        compiler=next((found for found in map(shutil.which, names) if found), None),
        shared_memory=shutil.disk_usage(shared).free if shared.is_dir() else None,
        master_port_free=_free(named) if ours and named else None,
        master=master,
    )


def diagnose(facts: Facts) -> list[Advice]:
    """Returns what every rule says, in a fixed order."""
    return [rule(facts) for rule in RULES]


def _probe(python: str) -> dict[str, Any] | None:
    # A recorder need not follow, and torch does not start with a level that it does not know.
    hidden = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LANESCOPE_RECORD", "TORCH_DISTRIBUTED_DEBUG")
    }
    try:
        done = subprocess.run(
            [python, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env=hidden,
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return found


def _place_of(address: str) -> Literal["here", "elsewhere", "unknown"]:
    if address in LOCAL:
        return "here"
    try:
        family, *_, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        return "unknown"
    try:
        with socket.socket(family, socket.SOCK_STREAM) as server:
            server.bind(place)
    except OSError:  # this machine has no such address
        return "elsewhere"
    return "here"


def _free(port: int) -> bool:
    """Whether a server could listen on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


# ---- rules ----


def _torch(facts: Facts) -> Advice:
    if facts.torch is None:
        why = "Without torch nothing can be recorded; looking at runs needs none."
        return Advice("torch", "warning", "torch cannot be imported", "pip install torch", why)
    if not facts.torch["distributed"]:
        why = "Several ranks need torch.distributed."
        return Advice(
            "torch",
            "error",
            "torch was built without torch.distributed",
            "install an official build of torch",
            why,
        )
    return Advice("torch", "ok", f"torch {facts.torch['torch']}")


def _backend(facts: Facts) -> Advice:
    if facts.torch is None:
        return Advice("backend", "unknown", "torch cannot be imported")
    known = ", ".join(facts.torch["backends"]) or "none"
    mpi = any(name in facts.variables for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    if facts.gpus and "nccl" not in facts.torch["backends"]:
        why = "Gloo copies every tensor through the host's memory."
        return Advice(
            "backend",
            "error",
            f"{facts.gpus} GPUs, backends {known}",
            "install a build of torch with NCCL",
            why,
        )
    if facts.gpus:
        return Advice(
            "backend",
            "ok",
            f"{facts.gpus} GPUs, backends {known}",
            'init_process_group("nccl")',
            "NCCL moves data from GPU to GPU.",
        )
    if mpi:
        why = "The job was started by MPI, whose launcher already knows ranks and addresses."
        fit = "mpi" if "mpi" in facts.torch["backends"] else "gloo"
        return Advice(
            "backend",
            "info",
            f"started by MPI, backends {known}",
            f'init_process_group("{fit}")',
            why,
        )
    return Advice(
        "backend",
        "ok",
        f"no GPU, backends {known}",
        'init_process_group("gloo")',
        "Gloo is the backend for CPU tensors; NCCL has none.",
    )


def _init_timeout(facts: Facts) -> Advice:
    address = facts.variables.get("MASTER_ADDR", "")
    if facts.master == "here":
        return Advice("init timeout", "ok", "the rendezvous is on this machine")
    if facts.master == "unknown":
        why = "Every rank connects to rank 0 there; without an address it waits until the timeout."
        return Advice(
            "init timeout",
            "error",
            f"MASTER_ADDR {address} has no address",
            "MASTER_ADDR to a name that this machine can resolve, or to an address",
            why,
        )
    why = (
        "Hosts that are far apart, or start late, need longer to find each other than a local job; "
        "much longer only hides that one of them never comes."
    )
    setting = "init_process_group(timeout=timedelta(seconds=120)), 60 to 120"
    return Advice("init timeout", "info", f"the rendezvous is on {address}", setting, why)


def _ports(facts: Facts) -> Advice:
    span = f"{PORTS[0]}-{PORTS[-1]}"
    port, number = facts.variables.get("MASTER_PORT", ""), facts.number("MASTER_PORT")
    if port and (number is None or not 0 <= number < 65536):
        why = "All ranks read it, and stop where it is not the number of a port."
        found = f"MASTER_PORT is {port!r}, expected 0 to 65535"
        return Advice("ports", "error", found, f"MASTER_PORT={PORTS[0]}", why)
    if facts.master_port_free is False:
        why = "Rank 0 must listen there; the others would reach another program, or none."
        return Advice(
            "ports",
            "error",
            f"MASTER_PORT {port} is taken",
            "MASTER_PORT=0 with torchrun --standalone, or another port",
            why,
        )
    if len(facts.busy_ports) == len(PORTS):
        why = "torchrun's rendezvous needs one that other hosts can reach."
        return Advice("ports", "error", f"all of {span} are taken", "free one", why)
    if facts.busy_ports:
        taken = ", ".join(map(str, facts.busy_ports[:8]))
        why = "Another job, or one that was not ended, listens there."
        return Advice(
            "ports",
            "warning",
            f"taken of {span}: {taken}",
            "MASTER_PORT, torchrun --master-port, to one that is free",
            why,
        )
    why = "The firewall between hosts must also let them pass; one host cannot check that."
    return Advice("ports", "ok", f"{span} are free", "", why)


def _in_range(
    name: str, low: int, high: int, advised: int, why: str, *, default: int
) -> Callable[[Facts], Advice]:
    """A rule for a variable of NCCL's InfiniBand transport."""

    def rule(facts: Facts) -> Advice:
        text, value = facts.variables.get(name), facts.number(name)
        setting = f"{name}={advised}"
        if text is not None and (value is None or not low <= value <= high):
            return Advice(name, "error", f"{text!r}, expected {low} to {high}", setting, why)
        if not facts.infiniband:
            return Advice(name, "ok", f"{text or 'not set'}; there is no InfiniBand")
        if value is None and default >= advised:
            return Advice(name, "ok", f"not set; NCCL takes {default}")
        if value is None:
            return Advice(name, "info", "not set", setting, why)
        status: Status = "ok" if value >= advised else "warning"
        return Advice(name, status, str(value), "" if status == "ok" else setting, why)

    return rule


def _socket_threads(facts: Facts) -> Advice:
    name, each = "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"
    text, threads = facts.variables.get(name), facts.number(name)
    why = (
        "Threads that move data over TCP: 2 to 4 use a fast network without InfiniBand; NCCL "
        "allows at most 16, and 64 for the product with NCCL_NSOCKS_PERTHREAD."
    )
    if text is not None and (threads is None or not 1 <= threads <= 16):
        return Advice(name, "error", f"{text!r}, expected 1 to 16", f"{name}=4", why)
    product = (threads or 1) * (facts.number(each) or 1)
    if product > 64:
        return Advice(name, "error", f"{threads} x {each} is {product}", f"{name}=4 {each}=4", why)
    if threads is None and facts.gpus and not facts.infiniband:
        return Advice(name, "info", "not set", f"{name}=4", why)
    return Advice(name, "ok", text or "not set")


def _async_errors(facts: Facts) -> Advice:
    name, old = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"
    why = (
        "Without it a rank whose peer failed waits for ever; with it the process ends, and an "
        "elastic launcher starts again. It is on by default."
    )
    used = old if old in facts.variables and name not in facts.variables else name
    value = facts.variables.get(used)
    if value == "0":
        return Advice("async error handling", "warning", f"{used}=0", f"unset {used}", why)
    if used == old:
        renamed = "The old name is going to be ignored."
        return Advice("async error handling", "info", f"{old}={value}", f"{name}={value}", renamed)
    return Advice("async error handling", "ok", "on by default" if value is None else value)


def _debug(facts: Facts) -> Advice:
    name, value = "TORCH_DISTRIBUTED_DEBUG", facts.variables.get("TORCH_DISTRIBUTED_DEBUG", "OFF")
    if value.upper() not in ("OFF", "INFO", "DETAIL"):
        why = "torch refuses to start with anything else."
        return Advice(name, "error", f"{value!r}, expected OFF, INFO or DETAIL", f"{name}=OFF", why)
    if value.upper() == "DETAIL":
        why = "Every collective is checked by another one first: find the mistake, then go without."
        return Advice(name, "warning", "DETAIL", f"{name}=OFF", why)
    return Advice(name, "ok", value.upper(), "", "DETAIL checks every call across ranks, slowly.")


def _unused_parameters(facts: Facts) -> Advice:
    return Advice(
        "find_unused_parameters",
        "unknown",
        "set in the program, and known of a recorded run: lanescope doctor RUN",
        "lanescope doctor RUN, of a recorded run",
        "With True, DDP walks the graph in every step and reduces a map of what was used.",
    )


def _workers(facts: Facts) -> Advice:
    name = "DataLoader workers"
    ranks = max(1, facts.number("LOCAL_WORLD_SIZE") or facts.gpus or 1)
    fit = max(0, facts.cores // ranks - 1)
    if facts.shared_memory is not None and facts.shared_memory < 256 << 20:
        why = "Workers hand batches over in shared memory; when it is full they die of SIGBUS."
        return Advice(
            name,
            "warning",
            f"{facts.shared_memory >> 20} MB free in /dev/shm",
            "docker run --shm-size=8g",
            why,
        )
    why = "One core is left to the rank itself; more workers than cores take turns."
    found = f"{facts.cores} cores for {ranks} rank{'' if ranks == 1 else 's'}"
    return Advice(name, "ok", found, f"DataLoader(num_workers={fit}) at most", why)


def _engine(facts: Facts) -> Advice:
    if facts.compiler is None:
        why = "The recorder's native engine is compiled once; the portable one costs more per op."
        return Advice(
            "compiler",
            "warning",
            f"none of {', '.join(_COMPILERS)}",
            "apt-get install g++, or CXX",
            why,
        )
    return Advice("compiler", "ok", facts.compiler)


def rules() -> Iterator[Callable[[Facts], Advice]]:
    """Yields every rule, in the order in which they are shown."""
    yield from (_torch, _backend, _init_timeout, _ports)
    yield _in_range(
        "NCCL_IB_TIMEOUT",
        1,
        31,
        22,
        "How long InfiniBand waits for an acknowledgement, 4 us * 2^value; large or busy fabrics "
        "need 22, else a short disturbance ends the job.",
        default=20,
    )
    why = "How often InfiniBand tries again before it gives up."
    yield _in_range("NCCL_IB_RETRY_CNT", 1, 7, 7, why, default=7)
    yield from (_socket_threads, _async_errors, _debug, _unused_parameters, _workers, _engine)


RULES = tuple(rules())
