"""Loss scale and skipped steps of mixed precision, with a real scaler that meets a real Inf."""

from __future__ import annotations

from pathlib import Path

from tests.support.recording import record_program

PROGRAM = """
    import torch
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for step in range(4):
        x = torch.ones(2, 4) * (float("inf") if step == 1 else 1.0)
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.amp.GradScaler("cpu", enabled=False).update()
"""


def test_scale_and_skipped_steps(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM)
    assert recorded.status == 0, recorded.stderr
    assert "error" not in recorded.stderr
    rows = recorded.rows("value")
    assert [r["value"] for r in rows if r["name"] == "loss_scale"] == [8.0, 4.0, 4.0, 8.0]
    assert [r["value"] for r in rows if r["name"] == "skipped_steps"] == [1.0]
    marks = [r["name"] for r in recorded.rows("phase") if r["kind"] == "mark"]
    assert marks == ["optimizer step skipped"]
