"""Which ops are recorded: the deny list of ops that compute nothing, and the user's patterns."""

from __future__ import annotations

from fnmatch import fnmatchcase

NOT_COMPUTING = (
    "aten::_reshape_alias",
    "aten::_reshape_copy",
    "aten::_unsafe_view",
    "aten::alias",
    "aten::arange",
    "aten::as_strided",
    "aten::chunk",
    "aten::detach",
    "aten::detach_",
    "aten::diagonal",
    "aten::empty*",
    "aten::expand",
    "aten::full_like",
    "aten::is_*",
    "aten::lift*",
    "aten::movedim",
    "aten::narrow",
    "aten::new_empty*",
    "aten::ones_like",
    "aten::permute",
    "aten::rand_like",
    "aten::randn_like",
    "aten::reshape",
    "aten::resolve_*",
    "aten::select",
    "aten::slice",
    "aten::split*",
    "aten::squeeze",
    "aten::squeeze_",
    "aten::stride",
    "aten::sym_*",
    "aten::t",
    "aten::t_",
    "aten::transpose",
    "aten::transpose_",
    "aten::unbind",
    "aten::unflatten",
    "aten::unfold",
    "aten::unsqueeze",
    "aten::unsqueeze_",
    "aten::view",
    "aten::view_as*",
    "aten::zeros_like",
    "profiler::*",
    # Scopes that torch opens around what is recorded as a phase.
    "Optimizer.step#*",
    "enumerate(DataLoader)#*",
)
"""Ops left out by default: they make views, shells or ramps, and fill a log without telling much.
`--include PATTERN` brings back what it matches; what is left out is counted in the coverage."""


class OpFilter:
    """Decides by name. Exclusion by the user wins, then inclusion, then the deny list."""

    def __init__(self, include: tuple[str, ...], exclude: tuple[str, ...]) -> None:
        self._include = include
        self._exclude = exclude

    def wanted(self, name: str) -> bool:
        """Whether ops of that name (aten::mm) are recorded. Patterns are those of fnmatch."""
        if any(fnmatchcase(name, p) for p in self._exclude):
            return False
        if any(fnmatchcase(name, p) for p in self._include):
            return True
        return not any(fnmatchcase(name, p) for p in NOT_COMPUTING)
