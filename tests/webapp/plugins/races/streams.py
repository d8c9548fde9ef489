"""Work that is given to several streams of a device: what nothing orders, and its clean twins.

The device is that of tests/fixtures/streaming_device.cpp, whose library is named first.
"""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

import lanescope.collector as ls
from lanescope.collector.format.names import CAPTURE

torch.ops.load_library(sys.argv[1])
torch._register_device_module("privateuseone", ModuleType("privateuseone"))
DEVICE = ctypes.CDLL(sys.argv[1])
ONE, TWO, THREE = 0x7001, 0x7002, 0x7003


@contextmanager
def stream(handle: int) -> Iterator[None]:
    DEVICE.use_stream(handle)
    yield
    DEVICE.use_stream(0)


def tensor() -> torch.Tensor:
    return torch.empty(4, device="privateuseone:0")


def no_wait() -> None:
    shared = tensor()
    with stream(ONE):
        shared.fill_(1)  # race: no_wait a
    with stream(TWO):
        shared.add_(1)  # race: no_wait b


def recorded_and_not_waited_for() -> None:
    shared = tensor()
    with stream(ONE):
        shared.fill_(1)  # race: recorded_and_not_waited_for a
        DEVICE.record_event(11, ONE)
    with stream(TWO):
        shared.add_(1)  # race: recorded_and_not_waited_for b


def recorded_too_early() -> None:
    shared = tensor()
    with stream(ONE):
        DEVICE.record_event(12, ONE)
        shared.fill_(1)  # race: recorded_too_early a
    DEVICE.wait_event(12, TWO)
    with stream(TWO):
        shared.add_(1)  # race: recorded_too_early b


def waited_the_wrong_way_round() -> None:
    shared = tensor()
    with stream(ONE):
        shared.fill_(1)  # race: waited_the_wrong_way_round a
    DEVICE.record_event(13, TWO)
    DEVICE.wait_event(13, ONE)
    with stream(TWO):
        shared.add_(1)  # race: waited_the_wrong_way_round b


def event_used_again() -> None:
    shared = tensor()
    with stream(ONE):
        shared.fill_(1)  # race: event_used_again a
        DEVICE.record_event(14, ONE)
    DEVICE.record_event(14, THREE)
    DEVICE.wait_event(14, TWO)
    with stream(TWO):
        shared.add_(1)  # race: event_used_again b


def handed_over_by_threads_alone() -> None:
    items: queue.Queue[torch.Tensor] = queue.Queue()

    def take() -> None:
        taken = items.get()
        with stream(TWO):
            taken.add_(1)  # race: handed_over_by_threads_alone b

    thread = threading.Thread(target=take)
    thread.start()
    shared = tensor()
    with stream(ONE):
        shared.fill_(1)  # race: handed_over_by_threads_alone a
    items.put(shared)
    thread.join()


def default_stream_and_another() -> None:
    shared = tensor()
    shared.fill_(1)  # race: default_stream_and_another a
    with stream(ONE):
        shared.add_(1)  # race: default_stream_and_another b


def read_before_it_is_written_again() -> None:
    shared, sink = tensor(), tensor()
    with stream(ONE):
        shared.fill_(1)
        sink.fill_(0)
        DEVICE.record_event(15, ONE)
    DEVICE.wait_event(15, TWO)
    with stream(TWO):
        sink.add_(shared)  # race: read_before_it_is_written_again a
    with stream(ONE):
        shared.fill_(2)  # race: read_before_it_is_written_again b


PINNED: list[torch.Tensor] = []
"""Keeps all of it: the made-up device knows pinned memory by its address alone."""


def pinned() -> torch.Tensor:
    found = torch.frombuffer(bytearray(16), dtype=torch.float32)
    DEVICE.pin(ctypes.c_void_p(found.data_ptr()))
    PINNED.append(found)
    return found


def read_before_it_has_arrived() -> None:
    here, there = pinned(), tensor()
    there.fill_(1)
    here.copy_(there, non_blocking=True)  # race: read_before_it_has_arrived a
    here.sum()  # race: read_before_it_has_arrived b


def written_before_it_was_sent() -> None:
    here, there = pinned(), tensor()
    for _ in range(2):
        here.fill_(1)  # race: written_before_it_was_sent b
        there.copy_(here, non_blocking=True)  # race: written_before_it_was_sent a


def read_by_another_thread_before_it_has_arrived() -> None:
    here, there = pinned(), tensor()
    items: queue.Queue[torch.Tensor] = queue.Queue()

    def take() -> None:
        items.get().sum()  # race: read_by_another_thread_before_it_has_arrived b

    thread = threading.Thread(target=take)
    thread.start()
    there.fill_(1)
    here.copy_(there, non_blocking=True)  # race: read_by_another_thread_before_it_has_arrived a
    items.put(here)
    thread.join()


# What follows is right. ------------------------------------------------------------------------


def waits() -> None:
    shared = tensor()
    with stream(ONE):
        shared.fill_(1)
    DEVICE.record_event(21, ONE)
    DEVICE.wait_event(21, TWO)
    with stream(TWO):
        shared.add_(1)


def waits_by_way_of_a_third() -> None:
    shared = tensor()
    with stream(ONE):
        shared.fill_(1)
    DEVICE.record_event(22, ONE)
    DEVICE.wait_event(22, THREE)
    DEVICE.record_event(23, THREE)
    DEVICE.wait_event(23, TWO)
    with stream(TWO):
        shared.add_(1)


def the_host_waits(wait: Callable[[], object]) -> None:
    shared = tensor()
    with stream(ONE):
        shared.fill_(1)
        DEVICE.record_event(24, ONE)
    wait()
    with stream(TWO):
        shared.add_(1)


def the_host_waits_and_releases_a_thread() -> None:
    items: queue.Queue[torch.Tensor] = queue.Queue()

    def take() -> None:
        taken = items.get()
        with stream(TWO):
            taken.add_(1)

    thread = threading.Thread(target=take)
    thread.start()
    shared = tensor()
    with stream(ONE):
        shared.fill_(1)
    DEVICE.synchronize_stream(ONE)
    items.put(shared)
    thread.join()


def read_once_it_has_arrived(wait: Callable[[], object]) -> None:
    here, there = pinned(), tensor()
    for _ in range(2):
        there.fill_(1)
        here.copy_(there, non_blocking=True)
        DEVICE.record_event(26, 0)
        wait()
        here.sum()


def sent_from_two_buffers_in_turn() -> None:
    buffers, there = (pinned(), pinned()), tensor()
    for number in range(6):
        here = buffers[number % 2]
        if number > 1:
            DEVICE.synchronize_event(27 + number % 2)
        here.fill_(number)
        there.copy_(here, non_blocking=True)
        DEVICE.record_event(27 + number % 2, 0)


def read_by_a_thread_once_it_has_arrived() -> None:
    here, there = pinned(), tensor()
    items: queue.Queue[torch.Tensor] = queue.Queue()

    def take() -> None:
        items.get().sum()

    thread = threading.Thread(target=take)
    thread.start()
    there.fill_(1)
    here.copy_(there, non_blocking=True)
    DEVICE.synchronize_device()
    items.put(here)
    thread.join()


def copies_of_pageable_memory() -> None:
    """Such a call returns once the copy is done."""
    here, there = torch.frombuffer(bytearray(16), dtype=torch.float32), tensor()
    there.fill_(1)
    here.copy_(there, non_blocking=True)
    here.sum()


def captured_into_a_graph() -> None:
    """What is captured does not run, whatever replays of the graph do later."""
    shared = tensor()
    with ls.phase(CAPTURE), stream(ONE):
        shared.fill_(1)
    with stream(TWO):
        shared.add_(1)


def one_stream_of_two_threads() -> None:
    items: queue.Queue[torch.Tensor] = queue.Queue()

    def take() -> None:
        taken = items.get()
        with stream(ONE):
            taken.add_(1)

    thread = threading.Thread(target=take)
    thread.start()
    shared = tensor()
    with stream(ONE):
        shared.fill_(1)
    items.put(shared)
    thread.join()


def both_only_read() -> None:
    shared = tensor()
    shared.fill_(1)
    DEVICE.synchronize_device()
    for handle in (ONE, TWO):
        with stream(handle):
            sink = tensor()
            sink.fill_(0)
            sink.add_(shared)
    DEVICE.synchronize_device()


def memory_is_used_again() -> None:
    for handle in (ONE, TWO, ONE, TWO):
        with stream(handle):
            tensor().fill_(1)


def kept_for_another_stream() -> None:
    shared = tensor()
    shared.fill_(1)
    DEVICE.record_event(25, 0)
    DEVICE.wait_event(25, ONE)
    with stream(ONE):
        sink = tensor()
        sink.fill_(0)
        sink.add_(shared)
    kind = int(torch._C._autograd.DeviceType.PrivateUse1)
    shared.record_stream(torch.Stream(stream_id=ONE, device_index=0, device_type=kind))


def on_the_host() -> None:
    shared = torch.zeros(4)
    for handle in (ONE, TWO):
        with stream(handle):
            shared.add_(1)


def main() -> None:
    for run in (
        no_wait,
        recorded_and_not_waited_for,
        recorded_too_early,
        waited_the_wrong_way_round,
        event_used_again,
        handed_over_by_threads_alone,
        default_stream_and_another,
        read_before_it_is_written_again,
        read_before_it_has_arrived,
        written_before_it_was_sent,
        read_by_another_thread_before_it_has_arrived,
        lambda: read_once_it_has_arrived(lambda: DEVICE.synchronize_event(26)),
        lambda: read_once_it_has_arrived(lambda: DEVICE.synchronize_stream(0)),
        lambda: read_once_it_has_arrived(DEVICE.synchronize_device),
        sent_from_two_buffers_in_turn,
        read_by_a_thread_once_it_has_arrived,
        copies_of_pageable_memory,
        waits,
        waits_by_way_of_a_third,
        lambda: the_host_waits(lambda: DEVICE.synchronize_event(24)),
        lambda: the_host_waits(lambda: DEVICE.synchronize_stream(ONE)),
        lambda: the_host_waits(DEVICE.synchronize_device),
        the_host_waits_and_releases_a_thread,
        captured_into_a_graph,
        one_stream_of_two_threads,
        both_only_read,
        memory_is_used_again,
        kept_for_another_stream,
        on_the_host,
    ):
        run()
        DEVICE.synchronize_device()


if __name__ == "__main__":
    main()
