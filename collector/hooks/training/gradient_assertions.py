"""Records the program's assertions about gradients, once their parameters have names."""

from __future__ import annotations

from ...format.marks import ExpectedGradient, ValidatorVerdict
from ...recorder.recorder import Recorder
from ...validation.assertions import ASSERTIONS, Assertion, names_by_module
from .modules import Modules
from .optimizer_parameters import OptimizerParameters


class Assertions:
    """Records the assertions of one recording."""

    def __init__(self, recorder: Recorder, modules: Modules, held: OptimizerParameters) -> None:
        self._recorder = recorder
        self._modules = modules
        self._held = held
        self._tried: set[Assertion] = set()
        self._noted: set[Assertion] = set()

    def note(self) -> None:
        """Records assertions before an optimizer's step."""
        for one in ASSERTIONS:
            if one not in self._noted:
                self._note(one)

    def close(self) -> None:
        """Ends the recording; marks assertions whose parameters never got a name."""
        for one in ASSERTIONS:
            if one not in self._noted and (one.alive or not one.noted):
                self._recorder.mark(ValidatorVerdict("idle", one.function, "parameter").encode())

    def _note(self, one: Assertion) -> None:
        parameters = one.alive
        names = {self._held.name_of(parameter) for parameter in parameters}
        if None in names and one not in self._tried:
            self._tried.add(one)
            self._modules.refresh()  # too slow for every step; a call names its model anyway
            names = {self._held.name_of(parameter) for parameter in parameters}
        found = {name for name in names if name is not None}
        if not found or len(found) < len(names):
            return
        self._noted.add(one)
        one.noted = True
        for place in names_by_module(found, self._held.names()):
            self._recorder.mark(ExpectedGradient(one.function, one.bounds, place).encode())
