"""The faults that `python -m tests.mutations` plants are still lines of the product."""

from __future__ import annotations

import pytest

from tests.mutations.__main__ import MUTATIONS, Mutation
from tests.support import ROOT


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.room)
def test_the_line_that_is_changed_is_there_once(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.line) == 1
