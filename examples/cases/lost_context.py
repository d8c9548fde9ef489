"""A context variable that is set in the main thread is not there in the thread it starts."""

import contextvars
import threading

import torch

precision = contextvars.ContextVar("precision", default="float32")


def evaluate() -> None:
    for _ in range(3):
        x = torch.randn(64, 64)
        if precision.get() == "bfloat16":  # never true here: a new thread has a context of its own
            x = x.bfloat16()
        (x @ x).sum()


precision.set("bfloat16")
thread = threading.Thread(target=evaluate, name="evaluator")
thread.start()
thread.join()
