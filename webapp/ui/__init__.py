"""Draws what pages share: widgets, charts, theme, page context."""
