"""Measures this host's clock against that of rank 0, where the ranks do not share one.

The ranks exchange the identity of their clocks through the store of the default process group. If
these differ, rank 0 answers on a socket of its own, and one rank per other clock asks for the time:
when the group is made, at intervals, and at the end. Nothing here blocks the program: the thread is
unknown to Python; no call to the store waits, because that would block the program's own calls; and
the end of the process waits at most `END_S`, or `ASKED_S` for a call to the store.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import struct
import time
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from ...compaction.clock_fit import Calibration, Point
from ...journal import clock, own_threads
from ...journal.journal import CALIBRATION_FILE, write_json
from ...journal.own_files import Descriptor
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo

KEY = "lanescope/clock/"
JOIN_S = 60.0
"""Time for all ranks to report their clock, seconds."""
END_S = 0.3
"""Longest wait of an ending rank for the last measurement, seconds."""
ASKED_S = 5.0
"""Longest wait of an ending rank for a call to the store, seconds. A call that returned during the
interpreter's shutdown would kill the process: torch's bindings terminate then."""
ANSWER_S = 0.5
TRIPS = 24
"""Round trips of a measurement; the shortest counts."""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 64.0
MAX_POINTS = 64
MAX_FAILED = 3
"""Measurements that may fail in a row before a rank gives up."""

_ASK, _ANSWER = struct.Struct("!q"), struct.Struct("!qq")
_NONCE_BYTES = 16
_Now = Callable[[], int]


class _Socket(socket.socket):
    """Has a high descriptor number, which programs rarely use; call `check` before each use."""

    known: Descriptor

    @classmethod
    def of(cls, made: socket.socket) -> _Socket:
        """Moves a socket to a high number. Raises OSError if none is free."""
        known = Descriptor.lasting(made.detach())
        found = cls(fileno=known.number)
        found.known = known
        return found

    def check(self) -> None:
        """Raises ConnectionError if the program closed it."""
        if not self.known.is_ours():
            raise ConnectionError("the program closed a socket of the recorder")

    def close(self) -> None:
        """Closes it, unless the program did."""
        if self.known.is_ours():
            super().close()
        else:
            self.detach()


class ClockServer:
    """Answers clients that know the nonce with the time of this process's clock."""

    def __init__(self, now: _Now = clock.now) -> None:
        self._now = now
        self.nonce = secrets.token_bytes(_NONCE_BYTES)
        self._socket = _Socket.of(socket.create_server(("", 0)))
        self.port: int = self._socket.getsockname()[1]
        self._clients: dict[
            _Socket, bytes | None
        ] = {}  # part of a question; None: nonce not yet seen
        self.served = 0  # clients that came and went

    @property
    def connected(self) -> bool:
        """Whether a client that knows the nonce is there."""
        return any(part is not None for part in self._clients.values())

    def serve(self, until: Callable[[], bool]) -> None:
        """Answers until `until` returns True; checks that ten times a second."""
        try:
            while not until():
                for one in _readable([self._socket, *self._clients], 0.1):
                    if one is self._socket:
                        client = _Socket.of(one.accept()[0])
                        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        self._clients[client] = None
                    else:
                        self._answer(one)
        finally:
            for one in (self._socket, *self._clients):
                one.close()

    def _answer(self, client: _Socket) -> None:
        known = self._clients[client]
        try:
            data = client.recv(_ASK.size if known is not None else _NONCE_BYTES)
            received = self._now()
            if known is None:
                if not secrets.compare_digest(data, self.nonce):
                    data = b""
                self._clients[client] = b""
            elif len(known) + len(data) >= _ASK.size:
                self._clients[client] = b""
                client.check()
                client.sendall(_ANSWER.pack(received, self._now()))
            else:
                self._clients[client] = known + data
        except OSError:
            data = b""
        if not data:
            self.served += known is not None
            del self._clients[client]
            client.close()


class Client:
    """Asks a Server. Raises OSError if it does not answer in time."""

    def __init__(self, hosts: list[str], port: int, nonce: bytes, now: _Now = clock.now) -> None:
        self._now = now
        self._socket = _Socket.of(_connect(hosts, port))
        self._socket.settimeout(ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(nonce)

    def measure(self, trips: int = TRIPS) -> Point:
        """Returns the offset measured by the shortest of some round trips."""
        return min((self._trip() for _ in range(trips)), key=lambda point: point.half_ns)

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def _trip(self) -> Point:
        self._socket.check()
        sent = self._now()
        self._socket.sendall(_ASK.pack(sent))
        data = b""
        while len(data) < _ANSWER.size:
            self._socket.check()
            more = self._socket.recv(_ANSWER.size - len(data))
            if not more:
                raise ConnectionError("the clock's server is gone")
            data += more
        back = self._now()
        received, answered = _ANSWER.unpack(data)
        middle = sent + (back - sent) // 2
        half = max(0, (back - sent) - (answered - received)) // 2 + 1
        return Point(middle, ((received - sent) + (answered - back)) // 2, half)


class Clocks:
    """Calibrates one process, from the making of its default group to its end."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._process = os.getpid()
        self._begun = self._ending = False
        # Locks instead of sockets: the program may close any descriptor.
        self._wake, self._ended = allocate_lock(), allocate_lock()
        self._wake.acquire()
        self._ended.acquire()
        self._asking = False  # the store

    def joined(self, store: Any, rank: int, world_size: int) -> None:
        """Starts calibration once the process is in the default group; later calls do nothing."""
        if not self._begun and world_size > 1:
            self._begun = self._asking = True
            own_threads.start_thread(self._run, [store], rank, world_size)

    def stop(self) -> None:
        """Waits for the last measurement; later calls do nothing."""
        if self._ending:
            return
        self._ending = True
        if self._begun and self._process == os.getpid():  # not in a forked child
            self._wake.release()
            ended = self._ended.acquire(timeout=END_S)
            if not ended and self._asking:
                self._ended.acquire(timeout=ASKED_S)

    def _run(self, held: list[Any], rank: int, world_size: int) -> None:
        # Drops the store before the work: its server ends with the last owner.
        with self._recorder.contain_errors():
            try:
                store = held.pop
                work = (
                    self._refer(store(), world_size) if rank == 0 else self._compare(store(), rank)
                )
                self._asking = False
                if work is not None:
                    work()
            # Ranks and their store may end first; the run is then "not calibrated".
            except (OSError, RuntimeError):
                return
            finally:
                self._ended.release()

    def _refer(self, store: Any, world_size: int) -> Callable[[], None] | None:
        """Returns rank 0's work once all ranks have reported their clocks; None: no work."""
        key = _key(store, 0)
        own = {"reference": clock.clock_identity(), "wall": clock.wall_minus_monotonic_ns()}
        store.set(key + "reference", json.dumps(own))
        store.add(key + "joined", 1)
        if not self._until(lambda: store.add(key + "joined", 0) >= world_size):
            return None
        others = store.add(key + "others", 0)
        if not others:
            return None
        server = ClockServer()
        address = {"hosts": _addresses(), "port": server.port, "nonce": server.nonce.hex()}
        store.set(key + "address", json.dumps(address))
        return lambda: server.serve(self._until_served(server, others))

    def _compare(self, store: Any, rank: int) -> Callable[[], None] | None:
        """Returns another rank's work once it has rank 0's clock; None: no work."""
        key = _key(store, rank)
        identity = clock.clock_identity()
        if not self._until(lambda: store.check([key + "reference"])):
            return None
        reference = json.loads(store.get(key + "reference"))
        differs = reference["reference"] != identity
        # One rank measures for all that share its clock.
        measures = differs and store.add(key + identity, 1) == 1
        if measures:
            store.add(key + "others", 1)
        store.add(key + "joined", 1)
        if not measures or not self._until(lambda: store.check([key + "address"])):
            return None
        address = json.loads(store.get(key + "address"))
        known = Calibration(reference["reference"], reference["wall"], ())

        def connect() -> Client:
            return Client(address["hosts"], address["port"], bytes.fromhex(address["nonce"]))

        return lambda: self._measure(connect, known)

    def _until_served(self, server: ClockServer, clients: int) -> Callable[[], bool]:
        """Returns whether this process ends and all clients left, or had time to."""
        deadline: list[float] = []

        def over() -> bool:
            if self._ending and not deadline:
                deadline.append(time.monotonic() + END_S)
            done = server.served >= clients and not server.connected
            return bool(deadline) and (done or time.monotonic() > deadline[0])

        return over

    def _measure(self, connect: Callable[[], Client], calibration: Calibration) -> None:
        """Measures until the end, and connects again where no answer came in time: a thread of
        rank 0 may hold Python's lock for long."""
        points: list[Point] = []
        client, failed, pause = None, 0, FIRST_PAUSE_S
        try:
            while failed < MAX_FAILED:
                ending = self._ending
                try:
                    client = client or connect()
                    points.append(client.measure())
                except OSError:
                    failed += 1
                    if client is not None:
                        client.close()
                    client = None
                else:
                    failed = 0
                    self._keep(calibration, points)
                if ending:
                    return
                self._pause(pause)
                pause = min(2 * pause, MAX_PAUSE_S)
        finally:
            if client is not None:
                client.close()

    def _keep(self, calibration: Calibration, points: list[Point]) -> None:
        if len(points) > MAX_POINTS:
            del points[1:-1:2]
        folder = self._recorder.folder
        if folder is not None:
            write_json(
                folder / CALIBRATION_FILE, calibration._replace(points=tuple(points)).to_json()
            )

    def _until(self, condition: Callable[[], bool]) -> bool:
        deadline, pause = time.monotonic() + JOIN_S, 0.01
        while not condition():
            if self._ending or time.monotonic() > deadline:
                return False
            self._pause(pause)
            pause = min(2 * pause, 0.2)
        return True

    def _pause(self, seconds: float) -> None:
        """Waits some seconds; returns early when the process ends."""
        if self._wake.acquire(timeout=seconds):
            self._wake.release()


def _readable(sockets: list[_Socket], seconds: float) -> list[_Socket]:
    """Returns the sockets readable within some seconds. Raises ConnectionError."""
    numbers = select.poll()  # of any size, unlike with select
    for one in sockets:
        one.check()
        numbers.register(one, select.POLLIN)
    ready = {number for number, _ in numbers.poll(seconds * 1000)}
    found = [one for one in sockets if one.fileno() in ready]
    for one in found:
        one.check()
    return found


def _key(store: Any, rank: int) -> str:
    """Returns the prefix of a recording's keys: a group may be recorded several times."""
    return f"{KEY}{store.add(f'{KEY}{rank}', 1)}/"


def _addresses() -> list[str]:
    """Returns names under which others may reach this host, the likeliest first."""
    master = os.environ.get("MASTER_ADDR", "")
    found = []
    for target in (master, "192.0.2.1"):  # reserved for documentation: picks the outgoing interface
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))  # sends nothing
                found.append(str(probe.getsockname()[0]))
        except OSError:
            continue
    return list(dict.fromkeys(name for name in (*found, master, socket.gethostname()) if name))


def _connect(hosts: list[str], port: int) -> socket.socket:
    for host in hosts:
        try:
            return socket.create_connection((host, port), ANSWER_S)
        except OSError:
            continue
    raise ConnectionError(f"no answer on port {port} of {', '.join(hosts)}")


def _hook(context: HookContext) -> Undo:
    return context.share(Clocks(context.recorder)).stop


HOOK = Hook("clocks of other hosts", _hook)
