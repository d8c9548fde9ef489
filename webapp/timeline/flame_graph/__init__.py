"""Folds the spans of lanes into a tree of frames: the flame graph, on the page and in exports."""
