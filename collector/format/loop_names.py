"""Names of series about training loops and event loops whose calls do not do what they are for.

Needs neither torch nor pyarrow.
"""

from __future__ import annotations

BROKEN_TIE = "lanescope/training_loop/broken_tie/"
"""Prefix; file.py:20 of a call, the call, and the names of two parameters of its module follow,
each after a slash, that were one before it: 1."""

UNREAD_SETTING = "lanescope/training_loop/unread/"
"""Prefix; file.py:12 or nothing, what has the attribute (parameter, module, optimizer), the
attribute, its value and the name of the first such object follow, each after a slash: how many
parameters have another value of requires_grad, or the rate of the optimizer's first group."""

REORDERED_INPUT = "lanescope/training_loop/reordered/"
"""Prefix; file.py:12 that calls a module, its class, the shape of its input, a view, and that of
the view's base follow, each after a slash: 1 where the lengths of one are those of the other in
another order, and both have their numbers in the same order."""

ORPHANED_LOCK = "lanescope/threads/orphaned_lock/"
"""Prefix; file.py:12 of the program follows: a forked process waits there for a lock that a thread
of its parent held as it was forked, and that no thread of its own has taken since (1)."""

BLOCKED_LOOP = "lanescope/threads/blocked_loop/"
"""Prefix; file.py:12 follows where a task of asyncio awaits a timer: by how many seconds its loop
is late as it comes to look at it, without the time that its thread had no processor."""
