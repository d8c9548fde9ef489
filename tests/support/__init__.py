"""What tests of several folders share: starting programs, recording them, made-up runs."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
