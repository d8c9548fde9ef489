"""Records one of the small programs in examples/cases, each with one fault.

    python examples/record_case.py hang [OUTPUT]        (into runs/case-hang by default)

Prints the path of the run. Without a name it lists the cases.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent / "cases"


@dataclass(frozen=True)
class Case:
    """How a program is recorded, and which finding it leads to."""

    kind: str  # of its finding
    ranks: int = 1
    options: tuple[str, ...] = ()  # of lanescope record
    baseline: tuple[str, ...] | None = None  # arguments of the program, recorded a first time
    arguments: tuple[str, ...] = ()

    def command(self, name: str, arguments: tuple[str, ...]) -> list[str]:
        """What is recorded."""
        program = [os.path.relpath(HERE / f"{name}.py"), *arguments]
        if self.ranks == 1:
            return ["python", *program]
        return ["torchrun", "--standalone", "--nproc-per-node", str(self.ranks), *program]


CASES = {
    "straggler": Case("straggler", ranks=2),
    "hang": Case(
        "collective_mismatch", ranks=2, options=("--hang-timeout", "5", "--on-hang", "abort")
    ),
    "mismatch": Case("collective_mismatch", ranks=2),
    "overlap": Case("overlap"),
    "race": Case("concurrent_backward"),
    "lost_context": Case("lost_context"),
    "divergence": Case(
        "divergence", options=("--level", "numerics"), baseline=(), arguments=("--eps", "1e-2")
    ),
    "vanishing": Case("vanishing_gradient"),
    "lora": Case("lora_inactive"),
    "stops": Case("dead_parameter"),
    "leak": Case("wrong_loss"),
}


def record(name: str, output: Path) -> None:
    """Records a case, and before it its baseline where it has one, into `output`-baseline."""
    case = CASES[name]
    runs = [(output, case.arguments)]
    if case.baseline is not None:
        runs.insert(0, (output.with_name(f"{output.name}-baseline"), case.baseline))
    for path, arguments in runs:
        shutil.rmtree(path, ignore_errors=True)
        recorder = ["lanescope", "record", "-o", str(path), *case.options]
        # A case may well end in an error: that is its point.
        subprocess.run([*recorder, "--", *case.command(name, arguments)], check=False)


def main() -> int:
    """Exit status 2 for a case that does not exist."""
    if len(sys.argv) < 2 or sys.argv[1] not in CASES:
        print(f"expected one of: {', '.join(CASES)}", file=sys.stderr)
        return 2
    output = Path(sys.argv[2] if len(sys.argv) > 2 else f"runs/case-{sys.argv[1]}")
    record(sys.argv[1], output)
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
