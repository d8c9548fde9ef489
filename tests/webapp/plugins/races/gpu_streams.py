"""Two streams of a GPU: one that forgets to wait, and what torch itself does rightly."""

from __future__ import annotations

import torch


def forgets() -> None:
    side = torch.cuda.Stream()
    shared = torch.ones(1 << 20, device="cuda")  # race: forgets a
    with torch.cuda.stream(side):
        shared.mul_(2)  # race: forgets b
    torch.cuda.synchronize()


def waits() -> None:
    side = torch.cuda.Stream()
    shared = torch.ones(1 << 20, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        shared.mul_(2)
    torch.cuda.current_stream().wait_stream(side)
    shared.add_(1)
    torch.cuda.synchronize()


def backward_of_two_streams() -> None:
    """autograd runs a node on the stream of its forward, and orders the streams by itself."""
    weight = torch.ones(256, 256, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        half = weight @ weight
    torch.cuda.current_stream().wait_stream(side)
    (half.sum() + (weight * 2).sum()).backward()
    assert weight.grad is not None
    weight.grad.sum().item()


def main() -> None:
    for run in (forgets, waits, backward_of_two_streams):
        run()


if __name__ == "__main__":
    main()
