"""What takes longer than the parts of a page begins after them."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from lanescope.webapp.ui.parts import Parts


def test_the_wait_ends_with_the_last_part() -> None:
    parts, begun, end, after = Parts(), Event(), Event(), Event()

    def make() -> None:
        with parts.making():
            begun.set()
            end.wait()

    def wait() -> None:
        parts.wait(60)
        after.set()

    threads = [Thread(target=make), Thread(target=wait)]
    threads[0].start()
    begun.wait()
    threads[1].start()
    assert not after.wait(0.2)
    end.set()
    assert after.wait(60)
    for thread in threads:
        thread.join()


def test_a_part_that_waits_for_what_comes_after_holds_nothing_up() -> None:
    parts = Parts()
    with parts.making(), parts.waiting():
        parts.wait(60)
    with pytest.raises(ZeroDivisionError), parts.making():
        _ = 1 // 0
    parts.wait(60)
