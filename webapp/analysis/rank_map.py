"""Moved to `plugins.gradients.rank_map`; this name is kept for one release."""

from lanescope.webapp.plugins.gradients.rank_map import RankMap, rank_map, ranks_with_gradients

__all__ = ["RankMap", "rank_map", "ranks_with_gradients"]
